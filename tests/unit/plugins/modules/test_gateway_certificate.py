# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""gateway_certificate where no gateway runs. With a real HAProxy: tests/integration/gateway/test_gateway_tls.py."""

from __future__ import annotations

import os
import subprocess

import pytest
from ansible.module_utils.basic import AnsibleModule

from ansible_collections.ironserve.llm.plugins.modules import gateway_certificate


def made(folder, days):
    """One file with a certificate for so many days, and its key."""
    key, crt, pem = folder / "key", folder / "crt", folder / "source.pem"
    command = ["openssl", "req", "-new", "-x509", "-nodes", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-subj", "/CN=a"]
    subprocess.run(command + ["-days", str(days), "-keyout", str(key), "-out", str(crt)], check=True, stderr=subprocess.DEVNULL)
    pem.write_text(crt.read_text(encoding="ascii") + key.read_text(encoding="ascii"), encoding="ascii")
    pem.chmod(0o600)
    return pem


@pytest.fixture
def call(run_module, tmp_path):
    def run(check=False):
        options = {"source": str(tmp_path / "source.pem"), "path": str(tmp_path / "tls.pem"), "socket": str(tmp_path / "sock")}
        return run_module(gateway_certificate, options, check_mode=check)

    return run


def test_the_copy_is_private_and_written_once(call, tmp_path):
    source, own = made(tmp_path, 30), tmp_path / "tls.pem"
    assert (call(check=True)["action"], own.exists()) == ("written", False)
    first = call()
    assert (first["changed"], first["action"], own.stat().st_mode & 0o777) == (True, "written", 0o600)
    assert own.read_text(encoding="ascii") == source.read_text(encoding="ascii")
    assert (call()["changed"], call(check=True)["changed"]) == (False, False)
    own.chmod(0o644)
    assert (call()["action"], own.stat().st_mode & 0o777) == ("written", 0o600)
    secret = (tmp_path / "key").read_text(encoding="ascii").splitlines()[1]
    assert secret not in str(first)


def test_another_certificate_replaces_it_and_nothing_is_left_beside_it(call, tmp_path):
    made(tmp_path, 30)
    before = call()["fingerprint"]
    made(tmp_path, 31)
    after = call()
    assert after["action"] == "written" and after["fingerprint"] != before
    assert sorted(os.listdir(str(tmp_path))) == ["crt", "key", "source.pem", "tls.pem"]


@pytest.mark.parametrize("days, warned", [(13, True), (15, False)])
def test_two_weeks_before_the_end_it_warns(call, tmp_path, monkeypatch, days, warned):
    told = []
    monkeypatch.setattr(AnsibleModule, "warn", lambda _module, text, **_more: told.append(text))
    made(tmp_path, days)
    call()
    assert [text.partition(":")[0] for text in told] == ([str(tmp_path / "source.pem")] if warned else [])


def test_a_file_that_others_can_read_is_refused_and_the_copy_stays(call, tmp_path):
    made(tmp_path, 30)
    call()
    kept = (tmp_path / "tls.pem").read_text(encoding="ascii")
    made(tmp_path, 31).chmod(0o640)
    assert "chmod 600 " + str(tmp_path / "source.pem") in call()["msg"]
    assert (tmp_path / "tls.pem").read_text(encoding="ascii") == kept
