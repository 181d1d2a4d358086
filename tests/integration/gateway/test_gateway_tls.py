# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""TLS at the gateway with a real HAProxy: certificates are renewed under open streams, and bad ones refused before anything changes."""

from __future__ import annotations

import hashlib
import http.client
import json
import socket
import ssl
import subprocess

import pytest
from integration.gateway.gateway_lab import free_port, server

from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError


def openssl(*arguments):
    return subprocess.run(["openssl", *arguments], capture_output=True, text=True, timeout=60, check=True).stdout


def certificate(folder, name, days=30, key=None):
    """Make a certificate for 127.0.0.1 with its key in one file, as people do; return the file and its sha1."""
    crt, made, pem = folder / (name + ".crt"), folder / (name + ".key"), folder / (name + ".pem")
    openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", str(made))
    asked = folder / (name + ".csr")
    openssl("req", "-new", "-key", str(made), "-subj", "/CN=" + name, "-addext", "subjectAltName=IP:127.0.0.1", "-out", str(asked))
    # This one can make a certificate that has ended.
    openssl("x509", "-req", "-in", str(asked), "-signkey", str(made), "-copy_extensions", "copy", "-days", str(days), "-out", str(crt))
    pem.touch(mode=0o600)
    pem.write_text(
        "Bag Attributes\n\n" + crt.read_text(encoding="ascii") + "\n" + (key or made).read_text(encoding="ascii"), encoding="ascii"
    )
    return pem, hashlib.sha1(ssl.PEM_cert_to_DER_cert(crt.read_text(encoding="ascii"))).hexdigest()


@pytest.fixture
def secured(make, tmp_path):
    """A gateway with TLS, its engine, its port, and what certificates are made of."""
    port = free_port()
    pem, fingerprint = certificate(tmp_path, "first")
    gateway, engine = make(gateway_tls_certificate=str(pem), gateway_tls_port=port), make.engine()
    servers = [server("n-c0", engine.port)]
    # The configuration of a host that has nothing yet can be judged.
    assert gateway.put(servers, check=True)["validated"]
    assert gateway.certify(pem)["action"] == "written"
    gateway.put(servers)
    return gateway, engine, port, fingerprint


def presented(port):
    """The sha1 of the certificate that a new connection is shown."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with socket.create_connection(("127.0.0.1", port), timeout=10) as door, context.wrap_socket(door) as secure:
        return hashlib.sha1(secure.getpeercert(binary_form=True)).hexdigest()


def connect(port, trusted):
    """A connection of a client that trusts one certificate and nothing else."""
    return http.client.HTTPSConnection("127.0.0.1", port, timeout=20, context=ssl.create_default_context(cafile=str(trusted)))


def test_a_stream_outlives_the_renewal_of_the_certificate(secured, tmp_path):
    gateway, engine, port, first = secured
    pids, before = gateway.info()["pids"], gateway.config.read_text(encoding="utf-8")
    door = connect(port, tmp_path / "first.crt")
    door.request("POST", "/v1/completions", json.dumps({"stream": 6, "once_a_step": True}), {"Authorization": "Bearer " + gateway.key})
    answer = door.getresponse()
    assert answer.readline() == b"data: 0\n"
    assert presented(port) == first
    second_pem, second = certificate(tmp_path, "second")
    checked = gateway.certify(second_pem, check=True)
    assert (checked["changed"], checked["action"], presented(port)) == (True, "renewed", first)
    done = gateway.certify(second_pem)
    assert (done["action"], done["fingerprint"], presented(port)) == ("renewed", second, second)
    assert gateway.certify(second_pem)["changed"] is False
    # No reload, no other file, and the next one says the same.
    assert gateway.info()["pids"] == pids
    assert gateway.config.read_text(encoding="utf-8") == before
    for number in range(1, 6):
        engine.step.set()
        assert (answer.readline(), answer.readline()) == (b"\n", b"data: %d\n" % number)
    engine.step.set()
    assert answer.read() == b"\n"
    # The connection goes on with what it began with; a new one that trusts the first only does not come about.
    door.request("GET", "/v1/models", headers={"Authorization": "Bearer " + gateway.key})
    assert door.getresponse().status == 200
    door.close()
    with pytest.raises(ssl.SSLCertVerificationError):
        connect(port, tmp_path / "first.crt").request("GET", "/v1/models")
    assert gateway.script("restart").returncode == 0
    assert presented(port) == second


SAID = {
    "another key": "not that of the first certificate",
    "ended": "not today",
    "open": "chmod 600",
    "no key": "1 certificates and 0 private keys",
    "no certificate": "0 certificates and 1 private keys",
    "locked": "encrypted",
    "cut": "no end",
    "damaged": "no base64",
    "two keys": "1 certificates and 2 private keys",
    "missing": "does not exist",
}


def spoil(what, folder):
    """Make the file that is bad in this way; return it and the lines of its key."""
    days, other = (-1 if what == "ended" else 30), (folder / "first.key" if what == "another key" else None)
    pem, _sha1 = certificate(folder, "bad", days, other)
    crt, key = ((folder / ("bad." + end)).read_text(encoding="ascii") for end in ("crt", "key"))
    texts = {
        "no key": crt,
        "no certificate": key,
        "locked": crt + openssl("pkcs8", "-topk8", "-in", str(folder / "bad.key"), "-passout", "pass:secret"),
        "cut": (crt + key)[:-40],
        "damaged": (crt + key).replace("MII", "M?I", 1),
        "two keys": crt + key + key,
    }
    if what in texts:
        pem.write_text(texts[what], encoding="ascii")
    elif what == "open":
        pem.chmod(0o644)
    elif what == "missing":
        pem.unlink()
    return pem, key.splitlines()[1:-1]


def test_a_bad_file_is_refused_before_anything_changes(secured, tmp_path):
    gateway, _engine, port, first = secured
    own = gateway.home / "etc/gateway/tls.pem"
    kept = own.read_text(encoding="ascii")
    for what, said in SAID.items():
        pem, secret = spoil(what, tmp_path)
        for check in (True, False):
            with pytest.raises(AssertionError, match=said) as caught:
                gateway.certify(pem, check=check)
            assert str(pem) in str(caught.value)
            assert not any(line in str(caught.value) for line in secret)
        pem.unlink(missing_ok=True)
    assert (own.read_text(encoding="ascii"), presented(port)) == (kept, first)
    assert gateway.certify(tmp_path / "first.pem")["changed"] is False


def test_what_haproxy_itself_refuses_leaves_the_one_before(secured, tmp_path):
    gateway, _engine, port, first = secured
    own = str(gateway.home / "etc/gateway/tls.pem")
    with pytest.raises(LLMError, match="stays in use"):
        gateway.door.set_certificate(own, (tmp_path / "first.crt").read_text(encoding="ascii"))
    assert presented(port) == first
    # A run that was cut short before its commit is not in the way of the next.
    gateway.door.ask(
        "set ssl cert {0} <<\n{1}".format(
            own, (tmp_path / "first.pem").read_text(encoding="ascii").partition("\n\n")[2].replace("\n\n", "\n")
        )
    )
    pem, second = certificate(tmp_path, "second")
    assert gateway.certify(pem)["action"] == "renewed"
    assert presented(port) == second


def test_a_gateway_gets_tls_without_cutting_its_clear_streams(make, tmp_path):
    """From then on clear HTTP is spoken on the host itself only: keys are not sent in the clear."""
    gateway, engine, port = make(gateway_bind_address="0.0.0.0"), make.engine(), free_port()
    servers = [server("n-c0", engine.port)]
    gateway.put(servers)
    door = gateway.connect()
    door.request("POST", "/v1/completions", json.dumps({"stream": 3}), {"Authorization": "Bearer " + gateway.key})
    answer = door.getresponse()
    assert answer.readline() == b"data: 0\n"
    with socket.create_connection(("127.0.0.2", gateway.port), timeout=5):
        pass
    pem, first = certificate(tmp_path, "first")
    gateway.certify(pem)
    changes = {"gateway_tls_certificate": str(pem), "gateway_tls_port": port}
    assert gateway.put(servers, **changes)["action"] == "reloaded"
    assert gateway.put(servers, **changes)["action"] == "none"
    engine.step.set()
    assert answer.read().endswith(b"data: 2\n\n")
    assert presented(port) == first
    assert gateway.post()[0] == 200
    with socket.create_connection(("127.0.0.2", port), timeout=5):
        pass
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", gateway.port), timeout=5)
