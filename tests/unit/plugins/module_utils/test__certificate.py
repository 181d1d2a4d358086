# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""PEM files, held against what openssl says about them. What HAProxy makes of them is in tests/integration/gateway."""

from __future__ import annotations

import calendar
import ssl
import subprocess
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.ironserve.llm.plugins.module_utils import _certificate
from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError


def openssl(*arguments):
    return subprocess.run(["openssl", *arguments], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True).stdout.decode()


def made(folder, days):
    key, crt = folder / "key", folder / "crt"
    openssl("ecparam", "-name", "prime256v1", "-genkey", "-out", str(key))
    openssl("req", "-new", "-x509", "-key", str(key), "-subj", "/CN=a", "-days", str(days), "-out", str(crt))
    return crt.read_text(encoding="ascii"), key.read_text(encoding="ascii")


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    return made(tmp_path_factory.mktemp("pem"), 30)


def openssl_times(folder, crt):
    (folder / "read").write_text(crt, encoding="ascii")
    lines = openssl("x509", "-in", str(folder / "read"), "-noout", "-startdate", "-enddate", "-fingerprint", "-sha1").splitlines()
    values = [line.partition("=")[2] for line in lines]
    return [calendar.timegm(time.strptime(value, "%b %d %H:%M:%S %Y GMT")) for value in values[:2]] + [values[2].replace(":", "").lower()]


@pytest.mark.parametrize("days", [30, 20000])
def test_times_and_fingerprint_are_those_that_openssl_reads(tmp_path, days):
    """Before 2050 a time has two digits for its year, from then on four."""
    crt, key = made(tmp_path, days)
    pem = _certificate.read_pem(crt + key, "a.pem", time.time())
    assert [pem.begins, pem.ends, pem.fingerprint] == openssl_times(tmp_path, crt)


def test_text_has_the_blocks_only_and_no_empty_line(pair):
    crt, key = pair
    messy = "subject=CN = a\n\n" + crt.replace("\n", "\r\n") + "\n\n\nKey:\n" + key
    text = _certificate.read_pem(messy, "a.pem", time.time()).text
    assert text == _certificate.read_pem(crt + key, "a.pem", time.time()).text
    assert "" not in text[:-1].split("\n") and "subject" not in text and "\r" not in text
    # openssl ecparam puts the curve before the key.
    assert [line for line in text.splitlines() if line.startswith("-----BEGIN")] == [
        "-----BEGIN CERTIFICATE-----",
        "-----BEGIN EC PARAMETERS-----",
        "-----BEGIN EC PRIVATE KEY-----",
    ]


def test_a_certificate_is_good_from_its_first_to_before_its_last_second(pair):
    crt, key = pair
    begins, ends = _certificate.validity(ssl.PEM_cert_to_DER_cert(crt))
    for now in (begins, ends - 1):
        assert _certificate.read_pem(crt + key, "a.pem", now).ends == ends
    for now in (begins - 1, ends):
        with pytest.raises(LLMError, match="a.pem: certificate 1 is valid from"):
            _certificate.read_pem(crt + key, "a.pem", now)


def test_a_chain_is_looked_at_too(pair, tmp_path):
    crt, key = pair
    other, _key = made(tmp_path, 1)
    now = time.time()
    assert _certificate.read_pem(crt + other + key, "a.pem", now).fingerprint == _certificate.read_pem(crt + key, "a.pem", now).fingerprint
    with pytest.raises(LLMError, match="certificate 2 is valid"):
        _certificate.read_pem(crt + other + key, "a.pem", now + 2 * 86400)


@pytest.mark.parametrize(
    "change, said",
    [
        (lambda crt, key: crt, "1 certificates and 0 private keys"),
        (lambda crt, key: key, "0 certificates and 1 private keys"),
        (lambda crt, key: "", "0 certificates and 0 private keys"),
        (lambda crt, key: crt + key[:-10], "no end"),
        (lambda crt, key: crt + key.replace("EC PRIVATE", "ENCRYPTED PRIVATE"), "encrypted"),
        (lambda crt, key: crt + key.replace("KEY-----\n", "KEY-----\nProc-Type: 4,ENCRYPTED\n\n", 1), "encrypted"),
        (lambda crt, key: crt.replace("CERTIFICATE", "PUBLIC KEY") + key, '"PUBLIC KEY", which does not belong'),
        (lambda crt, key: crt.replace("MII", "M-I", 1) + key, "no base64"),
        (lambda crt, key: crt.replace("MII", "AII", 1) + key, "certificate 1 cannot be read"),
    ],
)
def test_what_is_unfit_is_refused_by_name(pair, change, said):
    with pytest.raises(LLMError, match="^a.pem: .*" + said):
        _certificate.read_pem(change(*pair), "a.pem", time.time())


@given(cut=st.integers(0, 200), noise=st.binary(max_size=60))
def test_nothing_but_a_certificate_has_a_validity(pair, cut, noise):
    """Whatever comes is an error that says so, and no other."""
    der = ssl.PEM_cert_to_DER_cert(pair[0])
    with pytest.raises(ValueError):
        _certificate.validity(der[:cut])
    for data in (noise, der[:cut] + noise):
        try:
            begins, ends = _certificate.validity(data)
        except ValueError:
            continue
        assert isinstance(begins, int) and isinstance(ends, int)


def test_key_and_certificate_belong_together(pair, tmp_path):
    good, bad = tmp_path / "good", tmp_path / "bad"
    good.write_text("".join(pair), encoding="ascii")
    _certificate.require_pair(str(good), "a.pem")
    bad.write_text(pair[0] + made(tmp_path, 30)[1], encoding="ascii")
    with pytest.raises(LLMError, match="a.pem: .*the key is not that of the first certificate"):
        _certificate.require_pair(str(bad), "a.pem")
