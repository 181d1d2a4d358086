# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Hubs and mirrors, through the real client libraries, from a server that speaks their protocols: right bytes, or one clear error."""

from __future__ import annotations

import os
import random
import sys
import threading
import time

import pytest
from faults import hub_server
from faults.hub_server import Hub, sha256

from ansible_collections.ironserve.llm.plugins.module_utils import _hubs, _manifest, _progress
from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError

NAME = "org/model"
BIG = "model-00001-of-00001.safetensors"
FILES = {
    BIG: random.Random(1).randbytes(1_500_000),
    "tokenizer.json": random.Random(2).randbytes(40_000),
    "config.json": b'{"model_type": "x"}\n',
    "assets/notes.txt": b"one\n",
    ".gitattributes": b"*.safetensors filter=lfs\n",
}
WANTED = {path: data for path, data in FILES.items() if path != ".gitattributes"}
CLIENTS = ("modelscope", "huggingface")
KINDS = (*CLIENTS, "http")


@pytest.fixture(scope="session", autouse=True)
def quiet_clients(tmp_path_factory):
    """The environment of a worker, before a client library is imported: it reads most of it only then."""
    scratch = str(tmp_path_factory.mktemp("clients"))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in _hubs.environment_for({}, scratch, 1).items():
            patch.setenv(name, value)
        import modelscope_hub._download as client

        # The waits between a client's own tries.
        patch.setattr(client, "DOWNLOAD_INTEGRITY_RETRY_BACKOFF", 0.01)
        patch.setattr(client, "DOWNLOAD_RETRY_MAX_DELAY_SECONDS", 0.01)
        patch.setattr(client, "DOWNLOAD_RETRY_TIMES", 1)
        from huggingface_hub import constants

        # Its client writes 10 MB at a time, more than the files here.
        patch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 1 << 16)
        yield


@pytest.fixture
def hub(monkeypatch):
    monkeypatch.setattr(_hubs, "_pause", lambda exc, tries: 0.01)
    with Hub() as server:
        server.commit = server.repo(NAME, FILES)
        yield server


class Site:
    """A place to download to, and short ways to ask for it."""

    def __init__(self, folder, hub) -> None:
        self.hub = hub
        self.path = folder / "weights" / "q"
        self.part = folder / "weights" / "q.part"
        self.scratch = folder / "weights" / "q.job" / "scratch"
        self.progress = folder / "progress.json"

    def source(self, kind: str, **more) -> dict:
        if kind == "http":
            return {"kind": "http", "url": f"{self.hub.url}/mirror/{NAME}", "tries": 1, **more}
        return {"kind": kind, "repo": NAME, "endpoint": self.hub.url, "tries": 1, **more}

    def arguments(self, source: dict, **more) -> dict:
        known = {"source": source, "path": str(self.path), "marker": "", "staging": str(self.part), "scratch": str(self.scratch)}
        return {**known, "workers": 2, "stall_s": 60, "margin": 0, **more}

    def list(self, kind: str, token: str = "", **more) -> dict:
        return _hubs.list_job(self.arguments(self.source(kind, **more)), token, str(self.progress))

    def fetch(self, kind: str, files=None, token: str = "", **more) -> dict:
        source = self.source(kind, **more.pop("about", {}))
        # A job that failed is a process that ended, and with it what was still on its way; here it is the same process.
        for thread in threading.enumerate():
            if thread.name == _hubs.THREAD:
                thread.join(30)
                assert not thread.is_alive()
        return _hubs.fetch_job(self.arguments(source, files=manifest(files or WANTED), **more), token, str(self.progress))

    def content(self) -> dict:
        return {path: (self.part / path).read_bytes() for path in _manifest.tree_files(str(self.part))}

    def refused(self, kind: str, says: str, **more) -> str:
        """Fetch, see it fail with one line that holds ``says`` and names nothing secret; returns the message."""
        with pytest.raises(LLMError, match=says) as caught:
            self.fetch(kind, **more)
        text = str(caught.value)
        assert "\n" not in text and "Traceback" not in text and self.path.exists() is False
        return text


@pytest.fixture
def site(tmp_path, hub) -> Site:
    return Site(tmp_path, hub)


def manifest(files) -> list[dict]:
    return [{"path": path, "size": len(data), "sha256": sha256(data)} for path, data in files.items()]


# ---- what goes well


@pytest.mark.parametrize("kind", CLIENTS)
def test_a_listing_has_every_file_its_digest_and_the_commit(site, kind):
    found = site.list(kind)
    assert {item["path"]: item["sha256"] for item in found["files"]} == {path: sha256(data) for path, data in WANTED.items()}
    assert [item["path"] for item in found["files"]] == sorted(WANTED)
    assert found["commit"] == site.hub.commit
    # Hugging Face tells a sha256 of large files only; those of the others are taken once, and said to be
    small = {"config.json", "assets/notes.txt"} if kind == "huggingface" else set()
    assert set(found["computed"]) == small
    assert set(site.content() if site.part.exists() else {}) == small


@pytest.mark.parametrize("kind", KINDS)
def test_every_byte_arrives_and_nothing_else(site, kind):
    done = site.fetch(kind)
    assert site.content() == WANTED
    assert (done["fetched"], done["kept"]) == (sorted(WANTED), [])
    state = _progress.read(str(site.progress))
    total = sum(map(len, WANTED.values()))
    assert (state["done_bytes"], state["total_bytes"], state["files_done"], state["finished"]) == (total, total, len(WANTED), True)
    asked = len(site.hub.requests)
    assert site.fetch(kind) == {"fetched": [], "kept": sorted(WANTED)}
    # not even a list is asked for when nothing is missing
    assert len(site.hub.requests) == asked


def test_what_is_good_in_place_or_staged_does_not_come_again(site):
    site.path.mkdir(parents=True)
    site.part.mkdir(parents=True)
    (site.path / BIG).write_bytes(WANTED[BIG])
    (site.part / "config.json").write_bytes(WANTED["config.json"])
    (site.part / "tokenizer.json").write_bytes(b"half")
    (site.part / "stray.bin").write_bytes(b"?")
    done = site.fetch("modelscope")
    assert (done["fetched"], done["kept"]) == (["assets/notes.txt", "tokenizer.json"], ["config.json", BIG])
    assert site.content() == {path: data for path, data in WANTED.items() if path != BIG}


@pytest.mark.parametrize("kind", CLIENTS)
def test_patterns_choose_files(site, kind):
    found = site.list(kind, include=["*.json", "assets/*"], exclude=["tok*"])
    assert [item["path"] for item in found["files"]] == ["assets/notes.txt", "config.json"]
    with pytest.raises(LLMError, match="none of its 5 files matches"):
        site.list(kind, include=["*.gguf"])


def test_modelscope_is_asked_directory_by_directory_when_its_list_is_cut(site):
    many = {f"experts/{group}/{number:04d}.bin": b"%d" % number for group in "ab" for number in range(2000)}
    site.hub.repo(NAME, many)
    assert len(site.hub._servers) and len(site.list("modelscope")["files"]) == 4000


def test_a_list_that_stays_cut_is_refused(site):
    site.hub.repo(NAME, {f"{number:04d}.bin": b"%d" % number for number in range(hub_server.CUT + 1)})
    with pytest.raises(LLMError, match="its file list is cut by the hub at 3000 entries"):
        site.list("modelscope")


# ---- tokens


@pytest.mark.parametrize("kind", KINDS)
def test_a_token_goes_to_the_hub_and_to_nobody_else(site, kind):
    site.hub.token = "hf_canary_4711"
    if kind == "http":
        site.fetch(kind, token="hf_canary_4711")
    else:
        site.list(kind, token="hf_canary_4711")
        site.fetch(kind, token="hf_canary_4711")
    assert site.content() == WANTED
    assert {item.token for item in site.hub.requests if item.path.startswith("/store")} <= {""}
    assert kind == "http" or any(item.path.startswith("/store") for item in site.hub.requests)
    for folder, _folders, names in os.walk(site.path.parent):
        for name in names:
            assert b"canary" not in (open(os.path.join(folder, name), "rb").read())


def test_a_mirror_that_sends_us_elsewhere_keeps_the_token_to_itself(site):
    site.hub.token = "hf_canary_4711"
    site.fetch("http", token="hf_canary_4711", about={"url": f"{site.hub.url}/moved/{NAME}"})
    assert site.content() == WANTED
    assert {(item.path.split("/")[1], item.token) for item in site.hub.requests} == {("moved", "hf_canary_4711"), ("store", "")}


@pytest.mark.parametrize("kind", KINDS)
def test_a_wrong_token_is_said_and_never_shown(site, kind, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "right")
    monkeypatch.setenv("MODELSCOPE_API_TOKEN", "right")
    site.hub.token = "right"
    for token in ("", "hf_canary_4711"):
        text = site.refused(kind, "HTTP 401.*weights_token_file", token=token)
        assert "canary" not in text


def test_a_token_file_is_strict(tmp_path):
    path = tmp_path / "token"
    assert _hubs.read_token("") == ""
    with pytest.raises(LLMError, match="cannot be read: No such file"):
        _hubs.read_token(str(path))
    path.write_text("secret\n")
    path.chmod(0o640)
    with pytest.raises(LLMError, match="mode 0640, so others may read it: chmod 600") as caught:
        _hubs.read_token(str(path))
    assert "secret" not in str(caught.value)
    path.chmod(0o600)
    assert _hubs.read_token(str(path)) == "secret"
    path.write_text("two secrets")
    with pytest.raises(LLMError, match="exactly one token, it holds 2 words"):
        _hubs.read_token(str(path))


def test_the_environment_of_a_worker_holds_no_token_and_keeps_the_rest():
    given = dict.fromkeys(_hubs.TOKENS, "secret")
    given.update(HF_ENDPOINT="http://mirror", https_proxy="http://proxy", HF_HUB_OFFLINE="1", MODELSCOPE_DOWNLOAD_MAX_RETRIES="9")
    found = _hubs.environment_for(given, "/s", 5)
    assert "secret" not in found.values()
    assert (found["HF_ENDPOINT"], found["https_proxy"], found["HF_HUB_OFFLINE"]) == ("http://mirror", "http://proxy", "1")
    assert (found["MODELSCOPE_DOWNLOAD_MAX_RETRIES"], found["MODELSCOPE_HOME"]) == ("9", "/s/.modelscope")
    assert _hubs.offline_by(found) == "HF_HUB_OFFLINE=1"
    assert _hubs.offline_by({"TRANSFORMERS_OFFLINE": "true", "HF_HUB_OFFLINE": "0"}) == "TRANSFORMERS_OFFLINE=true"
    assert _hubs.offline_by({"HF_HUB_OFFLINE": ""}) == ""


def test_a_container_gets_variables_by_name_and_the_folder():
    command = _hubs.container_command(
        "reg/engine:1", "/srv/w", {"HF_ENDPOINT": "http://u:canary@h", "PATH": "/x", "https_proxy": "p"}, "0:0"
    )
    assert command[:2] == ["docker", "run"] and command[-2:] == ["--entrypoint=python3", "reg/engine:1"]
    assert "--volume=/srv/w:/srv/w" in command and "--user=0:0" in command
    assert [item for item in command if item.startswith("--env")] == ["--env=HOME=/tmp", "--env=HF_ENDPOINT", "--env=https_proxy"]
    assert "canary" not in " ".join(command)


# ---- bad input


@pytest.mark.parametrize("kind", KINDS)
def test_a_wrong_byte_of_the_right_size_is_named_and_thrown_away(site, kind):
    fault = site.hub.fault(BIG, flip=True)
    text = site.refused(kind, f"{BIG}: .* delivered wrong bytes")
    assert BIG not in site.content()
    # no half is left that a later try could go on from
    assert not [name for name in _manifest.tree_files(str(site.scratch)) if name.startswith(BIG) and not name.endswith(".lock")]
    assert "run again" in text.lower()
    kept = set(site.content())
    site.hub.faults.remove(fault)
    done = site.fetch(kind)
    # a file that was on its way when the bad one was found may have arrived
    assert BIG in done["fetched"] and kept <= set(done["kept"])
    assert site.content() == WANTED


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("status", "says"),
    [
        (403, "HTTP 403: it wants a token"),
        (404, "HTTP 404: there is no such repository, revision or file"),
        (429, "HTTP 429: too many requests. Wait"),
        (503, "HTTP 503: the hub is out of order. Run again"),
    ],
)
def test_an_answer_that_is_no_file_is_named(site, kind, status, says):
    site.hub.fault(BIG, status=status)
    text = site.refused(kind, says)
    assert text.startswith(BIG + ": ")


@pytest.mark.parametrize("kind", CLIENTS)
@pytest.mark.parametrize(("status", "says"), [(404, "no such repository"), (429, "too many requests"), (503, "out of order")])
def test_a_list_that_does_not_come_is_named(site, kind, status, says):
    site.hub.fault("<list>", status=status)
    with pytest.raises(LLMError, match=f"the file list: {kind} .*HTTP {status}: .*{says}"):
        site.list(kind)
    site.refused(kind, f"the file list: {kind} .*{says}")


@pytest.mark.parametrize("kind", KINDS)
def test_a_hub_that_recovers_is_asked_again(site, kind):
    site.hub.fault(BIG, status=503, times=1)
    site.hub.fault("tokenizer", status=429, headers={"Retry-After": "0"}, times=1)
    site.fetch(kind)
    assert site.content() == WANTED


@pytest.mark.parametrize("kind", KINDS)
def test_a_login_page_is_no_file(site, kind):
    site.hub.fault("tokenizer.json", login=True)
    text = site.refused(kind, "tokenizer.json: ")
    assert "tokenizer.json" not in site.content()
    assert "page" in text or "bytes" in text


@pytest.mark.parametrize("kind", CLIENTS)
def test_a_login_page_is_no_list(site, kind):
    site.hub.fault("<list>", login=True)
    with pytest.raises(LLMError, match="is no JSON, probably the login or error page of a proxy"):
        site.list(kind)


@pytest.mark.parametrize("kind", KINDS)
def test_a_cut_connection_goes_on_where_it_was(site, kind):
    site.hub.fault(BIG, short=0.4, times=1)
    site.fetch(kind)
    assert site.content() == WANTED
    size = len(WANTED[BIG])
    # what was in a buffer when the connection broke may come twice, the file may not
    assert size <= site.hub.sent(BIG) < size * 1.3
    assert len(site.hub.ranges(BIG)) == 2 and site.hub.ranges(BIG)[1].startswith("bytes=")


@pytest.mark.parametrize("kind", KINDS)
def test_a_short_file_is_no_file(site, kind):
    site.hub.fault(BIG, announce_short=0.5)
    site.refused(kind, BIG + ": .*" + str(len(WANTED[BIG])))
    assert BIG not in site.content()


def test_a_branch_that_moved_is_named_before_anything_is_fetched(site):
    newer = dict(FILES, **{BIG: FILES[BIG][:-1] + b"!", "config.json": b'{"model_type": "yy"}\n'})
    site.hub.repo(NAME, newer)
    for kind in CLIENTS:
        before = site.hub.sent(BIG)
        text = site.refused(kind, "moved since the manifest was made")
        assert sha256(FILES[BIG]) in text and sha256(newer[BIG]) in text and "weights_refresh" in text
        assert site.hub.sent(BIG) == before
    site.hub.repo(NAME, {"config.json": FILES["config.json"]})
    site.refused("modelscope", f"{BIG}: is not there any more")


def test_a_commit_is_a_commit_whatever_the_branch_does(site):
    site.hub.repo(NAME, {"other": b"x"})
    site.fetch("huggingface", about={"commit": site.hub.commit})
    assert site.content() == WANTED


def test_a_branch_that_moves_between_list_and_file_gives_no_mixed_set(site):
    newer = dict(FILES, **{BIG: bytes(reversed(FILES[BIG]))})
    hold = site.hub.fault("tokenizer.json", hold=0.5, times=1)

    def move() -> None:
        hold.reached.wait(20)
        site.hub.repo(NAME, newer)
        hold.release.set()

    thread = threading.Thread(target=move)
    thread.start()
    # largest first, so with one worker the other one is asked for after the branch moved
    files = {path: WANTED[path] for path in ("tokenizer.json", "config.json")}
    newer["config.json"] = b'{"model_type": "z"}\n'
    site.refused("modelscope", "config.json: .*delivered wrong bytes", files=files, workers=1)
    thread.join()
    assert site.content() == {"tokenizer.json": WANTED["tokenizer.json"]}


@pytest.mark.parametrize("kind", CLIENTS)
@pytest.mark.parametrize("path", ["../evil.txt", "/evil.txt", "a/../../evil.txt"])
def test_a_list_that_leaves_the_directory_is_refused(site, kind, path, tmp_path):
    site.hub.repo(NAME, {**FILES, path: b"evil"})
    with pytest.raises(LLMError, match="file list of .* cannot be used: .*path must stay inside .*Nothing was downloaded"):
        site.list(kind)
    assert not list(tmp_path.rglob("*evil*"))


def test_a_list_that_names_a_file_twice_is_refused():
    with pytest.raises(LLMError, match="path occurs twice"):
        _hubs.safe([_hubs.Remote("a", 1), _hubs.Remote("a", 1)], "hub")


def test_nothing_is_written_through_a_link_in_the_staging_directory(site, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "notes.txt").write_bytes(b"mine")
    site.part.mkdir(parents=True)
    (site.part / "assets").symlink_to(outside)
    site.fetch("http")
    assert (outside / "notes.txt").read_bytes() == b"mine" and site.content() == WANTED


def test_a_hub_that_falls_silent_is_given_up_and_the_half_is_kept(site):
    hold = site.hub.fault(BIG, hold=0.5, times=1)
    begin = time.monotonic()
    text = site.refused("http", f"{BIG}: nothing came from mirror .*for [12] s", files={BIG: WANTED[BIG]}, stall_s=1)
    assert time.monotonic() - begin < 20 and "run again" in text
    half = [name for name in os.listdir(site.scratch) if name.startswith(BIG)]
    assert len(half) == 1 and (site.scratch / half[0]).stat().st_size > 600_000
    hold.release.set()


def test_progress_tells_file_and_share_while_it_comes(site):
    hold = site.hub.fault(BIG, hold=0.5, times=1)
    seen = {}

    def watch() -> None:
        hold.reached.wait(20)
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            state = _progress.read(str(site.progress))
            if state.get("phase") == "download" and state["done_bytes"] > 500_000:
                seen.update(state)
                break
            time.sleep(0.05)
        hold.release.set()

    thread = threading.Thread(target=watch)
    thread.start()
    site.fetch("http")
    thread.join()
    assert seen["files"] == [BIG] and 40 <= _progress.percent(seen) <= 60
    assert seen["files_total"] == len(WANTED)


def test_no_room_is_said_before_anything_is_fetched(site, monkeypatch):
    text = site.refused("modelscope", "not enough disk space", margin=1 << 60)
    assert str(site.part) in text and not site.hub.sent(BIG)


def test_a_disk_that_fills_up_is_named_and_the_half_is_kept(site, monkeypatch):
    def full(self, item, part, had):
        with open(part, "wb") as out:
            out.write(FILES[BIG][:1000])
        raise OSError(28, "No space left on device", part)

    monkeypatch.setattr(_hubs._Mirror, "_get", full)
    text = site.refused("http", f"{BIG}: no space left on the disk", files={BIG: WANTED[BIG]})
    assert "run again" in text
    monkeypatch.undo()
    site.fetch("http", files={BIG: WANTED[BIG]})
    assert site.hub.ranges(BIG) == ["bytes=1000-"] and site.content() == {BIG: WANTED[BIG]}


def test_halves_of_two_versions_are_never_mixed(site):
    other = bytes(reversed(WANTED[BIG]))
    site.scratch.mkdir(parents=True)
    half = _hubs._part(str(site.scratch / BIG), _hubs.Remote(BIG, len(other), sha256(other)))
    with open(half, "wb") as out:
        out.write(other[:700_000])
    site.fetch("http", files={BIG: WANTED[BIG]})
    assert site.content() == {BIG: WANTED[BIG]} and site.hub.ranges(BIG) == [""]


def test_a_library_that_is_not_there_is_named_with_what_to_do(site, monkeypatch):
    monkeypatch.setitem(sys.modules, "modelscope_hub", None)
    text = site.refused("modelscope", "library modelscope is missing")
    assert sys.executable in text and "requirements-hubs.txt" in text and "weights_hub_python" in text


def test_nobody_listens(site):
    text = site.refused("huggingface", "the file list: could not be fetched from", about={"endpoint": "http://127.0.0.1:9"})
    assert "network of the download host" in text
    site.refused(
        "http", "could not be fetched from mirror http://127.0.0.1:9/x", about={"url": "http://me:canary@127.0.0.1:9/x?key=canary"}
    )


def test_names_hold_no_secrets():
    name = _hubs.name_of({"kind": "http", "url": "https://me:canary@host/dir?token=canary"})
    assert name == "mirror https://host/dir"
    name = _hubs.name_of({"kind": "modelscope", "repo": "a/b", "endpoint": "https://me:canary@host"})
    assert name == "modelscope a/b at master on https://host"
    assert _hubs.public({"kind": "http", "url": "https://me:canary@host/dir"}) == {"kind": "http", "url": "https://host/dir"}


# ---- the stored manifest


def test_a_stored_manifest_belongs_to_its_source(site):
    source = site.source("huggingface", include=["*.json"])
    document = {"source": _hubs.about(dict(source, endpoint="https://me:canary@host"), "c0ffee")}
    assert document["source"] == {
        "kind": "huggingface",
        "repo": NAME,
        "include": ["*.json"],
        "endpoint": "https://host",
        "revision": "main",
        "commit": "c0ffee",
    }
    # another address may hold the same bytes; another revision or choice is another set
    assert _hubs.same_source(document, dict(source, endpoint="http://elsewhere"))
    for change in ({"revision": "v2"}, {"repo": "org/other"}, {"include": []}, {"kind": "modelscope"}):
        assert not _hubs.same_source(document, dict(source, **change))
