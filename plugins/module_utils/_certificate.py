# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""PEM files as the gateway needs them: certificate, chain and key in one. Private to the collection.

Everything that makes a file unfit is an error here, before HAProxy sees it. Messages name the file and never show a key.
"""

from __future__ import annotations

import base64
import binascii
import calendar
import dataclasses
import hashlib
import re
import ssl
import time

from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError

_BLOCK = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----[ \t]*\r?\n(.*?)-----END \1-----", re.DOTALL)
_KEYS = ("PRIVATE KEY", "RSA PRIVATE KEY", "EC PRIVATE KEY")
_PARAMETERS = ("DH PARAMETERS", "EC PARAMETERS")

#: Tags of DER.
_SEQUENCE, _VERSION, _UTC_TIME, _TIME = 0x30, 0xA0, 0x17, 0x18


@dataclasses.dataclass
class Pem:
    """A file that is fit. ``text`` has its blocks and nothing else, no empty line among them, as HAProxy's socket wants it.

    ``fingerprint`` is the sha1 of the first certificate, lower-case hex, by which HAProxy says which one it has. ``begins`` and ``ends``
    are seconds of the epoch.
    """

    text: str
    fingerprint: str
    begins: int
    ends: int


def _element(data: bytes, at: int) -> tuple[int, int, int]:
    """Return tag, start and end of the content of the DER element at ``at``. Raises ValueError where there is none."""
    if at + 2 > len(data):
        raise ValueError("it ends too early")
    tag, length, start = data[at], data[at + 1], at + 2
    if length & 0x80:
        size = length & 0x7F
        if not 0 < size <= 4 or start + size > len(data):
            raise ValueError("a length is wrong")
        length, start = int.from_bytes(data[start : start + size], "big"), start + size
    if start + length > len(data):
        raise ValueError("it ends too early")
    return tag, start, start + length


def _moment(data: bytes, at: int) -> tuple[int, int]:
    """Return the second of the epoch that the DER time at ``at`` means, and where it ends."""
    tag, start, end = _element(data, at)
    text = data[start:end].decode("ascii", "replace")
    if tag == _UTC_TIME and len(text) == 13:
        # RFC 5280: two digits of a year are 1950 to 2049.
        text = ("19" if text[:2] >= "50" else "20") + text
    elif tag != _TIME:
        raise ValueError("a time is missing")
    return calendar.timegm(time.strptime(text, "%Y%m%d%H%M%SZ")), end


def validity(der: bytes) -> tuple[int, int]:
    """Return when a certificate begins and ends, seconds of the epoch. Raises ValueError for what is no certificate (RFC 5280, 4.1)."""
    at, end = 0, 0
    for _level in range(2):
        tag, at, end = _element(der, at)
        if tag != _SEQUENCE:
            raise ValueError("it is no certificate")
    if _element(der, at)[0] == _VERSION:
        at = _element(der, at)[2]
    # Serial number, algorithm, issuer.
    for _field in range(3):
        at = _element(der, at)[2]
    tag, at, end = _element(der, at)
    if tag != _SEQUENCE or at >= end:
        raise ValueError("its validity is missing")
    begins, at = _moment(der, at)
    return begins, _moment(der, at)[0]


def day(second: int) -> str:
    """Return a time for people, UTC."""
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(second))


def read_pem(text: str, path: str, now: float) -> Pem:
    """Return what the text of ``path`` holds: the certificate first, then its chain, and one key that is not encrypted, anywhere.

    Raises LLMError when something is missing, more than once there, unknown, or the certificate is not valid at ``now``.
    """
    blocks = _BLOCK.findall(text)
    if text.count("-----BEGIN ") != len(blocks) or text.count("-----END ") != len(blocks):
        raise LLMError("{0}: a block of the PEM file has no end. Nothing was changed".format(path))
    lines, certificates, keys = [], [], 0
    for label, body in blocks:
        if label == "ENCRYPTED PRIVATE KEY" or "Proc-Type:" in body:
            raise LLMError(
                "{0}: the private key is encrypted, and nobody is there to unlock it: openssl pkey -in OLD -out NEW".format(path)
            )
        if label not in ("CERTIFICATE",) + _KEYS + _PARAMETERS:
            raise LLMError('{0}: it holds a "{1}", which does not belong there'.format(path, label))
        body = "".join(body.split())
        try:
            der = base64.b64decode(body, validate=True)
        except (binascii.Error, ValueError):
            raise LLMError("{0}: its {1} is damaged: no base64".format(path, label.lower())) from None
        keys += label in _KEYS
        if label == "CERTIFICATE":
            certificates.append(der)
        wrapped = [body[start : start + 64] for start in range(0, len(body), 64)]
        lines += ["-----BEGIN {0}-----".format(label)] + wrapped + ["-----END {0}-----".format(label)]
    if not certificates or keys != 1:
        raise LLMError(
            "{0}: it holds {1} certificates and {2} private keys. One file is needed with the certificate, its chain, and one key, in this"
            " order: cat fullchain.pem privkey.pem".format(path, len(certificates), keys)
        )
    for number, der in enumerate(certificates, 1):
        try:
            begins, ends = validity(der)
        except ValueError as exc:
            raise LLMError("{0}: certificate {1} cannot be read: {2}".format(path, number, exc)) from exc
        if not begins <= now < ends:
            raise LLMError("{0}: certificate {1} is valid from {2} to {3}, not today".format(path, number, day(begins), day(ends)))
    begins, ends = validity(certificates[0])
    return Pem("\n".join(lines) + "\n", hashlib.sha1(certificates[0]).hexdigest(), begins, ends)


def require_pair(checked: str, path: str) -> None:
    """Raise LLMError unless key and first certificate in the file ``checked``, a copy of ``path``, belong together."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        # Never asks on a terminal.
        context.load_cert_chain(checked, password=lambda: "")
    except (ssl.SSLError, OSError, ValueError) as exc:
        reason = getattr(exc, "reason", None) or str(exc)
        hint = ": the key is not that of the first certificate" if reason == "KEY_VALUES_MISMATCH" else " ({0})".format(reason)
        raise LLMError("{0}: certificate and key do not work together{1}".format(path, hint)) from exc
