# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A headless Chromium, spoken to through its DevTools pipe: no driver, no library, no port."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NAMES = ("chromium-headless-shell", "chrome-headless-shell", "chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
#: Where tests/gate/browser.sh unpacks one: the packages' own tree.
UNPACKED = ROOT / ".cache/chromium/root"


def find() -> tuple[str, dict] | None:
    """The browser to use and the variables it needs: ``IRONSERVE_CHROMIUM`` (a program, or a tree of unpacked packages), the tree under
    ``.cache``, or what is installed. None where there is none."""
    named = os.environ.get("IRONSERVE_CHROMIUM", "")
    for tree in [Path(named)] if named else [UNPACKED]:
        program = tree / "usr/lib/chromium/chromium-headless-shell"
        if program.is_file():
            places = sorted({str(path.parent) for path in (tree / "usr/lib").rglob("*.so*") if path.parent.parent != program.parent})
            return str(program), {"LD_LIBRARY_PATH": ":".join(places), "FONTS": str(tree / "usr/share/fonts")}
    if named:
        return (named, {}) if Path(named).is_file() else None
    for name in NAMES:
        program = shutil.which(name)
        if program:
            return program, {}
    return None


class BrowserError(Exception):
    """The browser said no, or nothing in time."""


class Browser:
    """One page of a browser that forgets everything; use it as a context manager.

    Attributes:
        requests: addresses the page asked for, data addresses left out, in order.
        messages: what the page and its policy complained about.
        dialogs: texts of dialogs that opened.
    """

    def __init__(self, width: int = 1280, height: int = 900) -> None:
        found = find()
        if found is None:
            raise BrowserError("there is no Chromium: run tests/gate/browser.sh, or name one in IRONSERVE_CHROMIUM")
        self._home = tempfile.mkdtemp(prefix="ironserve-browser-")
        variables = dict(found[1])
        if "FONTS" in variables:
            os.symlink(variables.pop("FONTS"), self._home + "/.fonts")
        to_read, self._to = os.pipe()
        self._from, to_write = os.pipe()
        arguments = [
            found[0],
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--hide-scrollbars",
            "--remote-debugging-pipe",
            "--user-data-dir=" + self._home,
            "--window-size={0},{1}".format(width, height),
        ]
        # The pipe's two ends are 3 and 4 by agreement.
        script = 'exec 3<&"$0" 4>&"$1"; shift; exec "$@"'
        self._process = subprocess.Popen(
            ["bash", "-c", script, str(to_read), str(to_write), *arguments],
            pass_fds=(to_read, to_write),
            env=dict(os.environ, HOME=self._home, XDG_CACHE_HOME=self._home + "/cache", **variables),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_read)
        os.close(to_write)
        self._buffer = b""
        self._number = 0
        self._session = ""
        self._events: list[dict] = []
        self.requests: list[str] = []
        self.messages: list[str] = []
        self.dialogs: list[str] = []
        target = self.call("Target.createTarget", url="about:blank", width=width, height=height)["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(domain + ".enable")

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_exc: object) -> None:
        try:
            self.call("Browser.close")
            self._process.wait(10)
        except (BrowserError, subprocess.TimeoutExpired, OSError):
            self._process.kill()
            self._process.wait(10)
        os.close(self._to)
        os.close(self._from)
        shutil.rmtree(self._home, ignore_errors=True)

    def _read(self, until: float) -> dict:
        while b"\0" not in self._buffer:
            left = until - time.monotonic()
            if left <= 0 or not select.select([self._from], [], [], left)[0]:
                raise BrowserError("the browser said nothing in time")
            data = os.read(self._from, 1 << 20)
            if not data:
                raise BrowserError("the browser ended with status {0}".format(self._process.wait(10)))
            self._buffer += data
        message, self._buffer = self._buffer.split(b"\0", 1)
        return json.loads(message)

    def _note(self, event: dict) -> None:
        method, told = event.get("method", ""), event.get("params", {})
        if method == "Network.requestWillBeSent" and not told["request"]["url"].startswith("data:"):
            self.requests.append(told["request"]["url"])
        elif method == "Log.entryAdded":
            self.messages.append(told["entry"]["text"])
        elif method == "Runtime.exceptionThrown":
            self.messages.append(str(told["exceptionDetails"]))
        elif method == "Page.javascriptDialogOpening":
            self.dialogs.append(told["message"])
        self._events.append(event)

    def call(self, method: str, timeout: float = 60.0, **parameters: object) -> dict:
        """Ask the browser for something and return its answer. Raises BrowserError."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session and not method.startswith(("Target.", "Browser.")):
            message["sessionId"] = self._session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._to, data) :]
        until = time.monotonic() + timeout
        while True:
            answer = self._read(until)
            if answer.get("id") != self._number:
                self._note(answer)
            elif "error" in answer:
                raise BrowserError("{0}: {1}".format(method, answer["error"].get("message")))
            else:
                return answer["result"]

    def open(self, address: str, timeout: float = 60.0) -> None:
        """Load a page and wait until all of it is there."""
        self._events.clear()
        self.call("Page.navigate", url=address)
        until = time.monotonic() + timeout
        while not any(event.get("method") == "Page.loadEventFired" for event in self._events):
            self._note(self._read(until))
        # Layout and late requests have happened once two frames have been drawn.
        self.ask("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))")

    def ask(self, expression: str) -> object:
        """Evaluate an expression in the page; a promise is waited for."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise BrowserError(str(answer["exceptionDetails"]))
        return answer["result"].get("value")

    def look(self, width: int = 1280, height: int = 900, dark: bool = False, media: str = "screen") -> None:
        """Choose the size of the window, light or dark, and screen or print."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", media=media, features=[scheme])

    def picture(self, path: Path, whole: bool = True) -> None:
        """Write what is seen, or the whole page, as PNG."""
        answer = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(answer["data"]))

    def paper(self, path: Path) -> None:
        """Write the page as PDF, as it would be printed."""
        answer = self.call("Page.printToPDF", printBackground=False, preferCSSPageSize=True)
        path.write_bytes(base64.b64decode(answer["data"]))
