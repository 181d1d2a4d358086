#!/usr/bin/python
# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gateway_certificate
short_description: Renew the gateway's certificate without a reload
version_added: "0.1.0"
description:
  - Takes a PEM file on the host, refuses it when it is unfit, and brings it to the running gateway through HAProxy's socket. Nothing is
    reloaded, open connections keep the certificate they began with, and no stream is cut.
  - Unfit is a file that others can read, without a certificate or a key, with more than one key, a key that is encrypted or another
    certificate's, and one that has ended or has not begun. Then nothing is changed.
  - A gateway that has no certificate yet gets it with its configuration.
author:
  - ironserve.llm contributors (@ironserve)
extends_documentation_fragment:
  - ironserve.llm.attributes
attributes:
  check_mode:
    description: Can run in check mode. Says what it would do and touches neither file nor gateway.
    support: full
  diff_mode:
    support: full
    description: Shows fingerprints and ends, never a key.
options:
  source:
    description: The certificate, its chain and the key in one file on the host, mode 0600. It is only read.
    type: path
    required: true
  path:
    description: The gateway's own copy, which its configuration names.
    type: path
    default: /etc/ironserve/gateway/tls.pem
  socket:
    description: The gateway's runtime socket. Without a gateway behind it only the file is written.
    type: path
    default: /run/ironserve/gateway.sock
"""

EXAMPLES = r"""
- name: Renew the certificate
  ironserve.llm.gateway_certificate:
    source: /etc/ssl/private/gateway.pem
"""

RETURN = r"""
action:
  description: V(renewed) in the running gateway, V(written) where it does not use the certificate yet, V(none).
  returned: success
  type: str
fingerprint:
  description: The sha1 of the certificate, as C(openssl x509 -fingerprint) has it, in lower case and without colons.
  returned: success
  type: str
ends:
  description: When the certificate ends, in seconds of the epoch.
  returned: success
  type: int
"""

import os
import tempfile
import time

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.ironserve.llm.plugins.module_utils import _certificate, _files, _haproxy
from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError

#: A certificate that ends sooner is worth a warning: two weeks.
SOON_S = 14 * 86400


def read(path: str) -> str | None:
    """Return the text of a file, None when it does not exist."""
    try:
        with open(path, encoding="ascii", errors="replace") as source:
            return source.read()
    except FileNotFoundError:
        return None
    except OSError as exc:
        raise LLMError("{0} cannot be read: {1}".format(path, exc.strerror)) from exc


def wanted(source: str) -> _certificate.Pem:
    """Return what ``source`` holds, if it is fit."""
    text = read(source)
    if text is None:
        raise LLMError("{0} does not exist on this host: put certificate, chain and key there, mode 0600".format(source))
    if os.stat(source).st_mode & 0o077:
        raise LLMError("{0} holds a private key and can be read by others: chmod 600 {0}".format(source))
    pem = _certificate.read_pem(text, source, time.time())
    handle, copy = tempfile.mkstemp(prefix="ironserve-gateway-")
    try:
        with os.fdopen(handle, "w", encoding="ascii") as sink:
            sink.write(pem.text)
        _certificate.require_pair(copy, source)
    finally:
        os.unlink(copy)
    return pem


def run(module: AnsibleModule) -> dict[str, object]:
    """Do it and return the result."""
    path, socket = module.params["path"], module.params["socket"]
    pem = wanted(module.params["source"])
    if pem.ends - time.time() < SOON_S:
        module.warn("{0}: the certificate ends on {1}".format(module.params["source"], _certificate.day(pem.ends)))
    before = read(path)
    same = before == pem.text and _files.is_private(path)
    door = _haproxy.AdminSocket(socket)
    live = door.certificate(path) if _haproxy.running(socket) is not None else ""
    # The first certificate tells whether the gateway has it; of its chain only the file tells.
    action = "none" if same and live in ("", pem.fingerprint) else "renewed" if live else "written"
    if action != "none" and not module.check_mode:
        # The gateway first: a run that is cut short in between finds another file and does both again.
        if live:
            door.set_certificate(path, pem.text)
        _files.put(path, pem.text)
    described = "sha1 {0}, ends {1}\n".format(pem.fingerprint, _certificate.day(pem.ends))
    return {
        "changed": action != "none",
        "action": action,
        "fingerprint": pem.fingerprint,
        "ends": pem.ends,
        "diff": {
            "before_header": path,
            "after_header": path,
            "before": described if action == "none" else "sha1 {0}\n".format(live) if live else "",
            "after": described,
        },
    }


def main() -> None:
    """Answer the module call."""
    module = AnsibleModule(
        argument_spec={
            "source": {"type": "path", "required": True},
            "path": {"type": "path", "default": "/etc/ironserve/gateway/tls.pem"},
            "socket": {"type": "path", "default": "/run/ironserve/gateway.sock"},
        },
        supports_check_mode=True,
    )
    try:
        with _haproxy.turn(module.params["socket"], module.check_mode):
            result = run(module)
    except LLMError as exc:
        module.fail_json(msg=str(exc))
    module.exit_json(**result)


if __name__ == "__main__":
    main()
