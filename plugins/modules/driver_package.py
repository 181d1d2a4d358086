#!/usr/bin/python
# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
---
module: driver_package
short_description: Install drivers, firmware and container toolkits from local, pinned packages
version_added: "0.1.0"
description:
  - Says what is to be done about each package, from the version on the disk, the version that runs and the journal of earlier runs,
    and runs installers that no package manager runs, with a time limit.
  - A package is used only when its bytes are the pinned ones. An exit status of 0 is not believed until the version that the host shows
    is the pinned one.
  - The journal in O(directory) is written before anything is changed. An installer is not ended because the run that started it was;
    the next run waits for it and judges it. One that was killed is run again.
  - Nothing is changed while replicas of this collection run on the host, or while the container engine does not say whether any do.
  - A toolkit that makes itself the container engine's default runtime loses that again; its runtime stays registered. The engine is
    neither restarted nor reloaded.
  - Reboots nothing. Packages of kinds C(deb), C(rpm) and C(archive) are installed by other modules between V(begun) and V(ended).
author:
  - ironserve.llm contributors (@ironserve)
extends_documentation_fragment:
  - ironserve.llm.attributes
attributes:
  check_mode:
    support: full
  diff_mode:
    description: Shows the versions on the disk and live before and after.
    support: full
options:
  packages:
    description: The packages. They are always taken in the order driver, firmware, runtime, toolkit.
    type: list
    elements: dict
    required: true
    suboptions:
      name:
        description: Name of the package, unique.
        type: str
        required: true
      kind:
        description:
          - V(run) is an installer that is executed.
          - V(deb) and V(rpm) go through the package manager, V(archive) is unpacked into O(packages[].directory).
        type: str
        choices: [run, deb, rpm, archive]
        required: true
      file:
        description: Path of the file. The copy of that name in O(directory) is verified and used.
        type: path
        required: true
      on_host:
        description: Whether O(packages[].file) lies on the host and not on the controller. Not read by the module.
        type: bool
        default: false
      sha256:
        description: SHA-256 of the file, 64 hex digits.
        type: str
        required: true
      version:
        description: The pinned version, as O(packages[].installed_version) reads it. Upper and lower case do not matter.
        type: str
        required: true
      provides:
        description: What the package brings.
        type: str
        choices: [driver, firmware, runtime, toolkit]
        required: true
      installed_version:
        description: Where the version on the disk is read. Exactly one of C(file), C(command), C(module) and C(package).
        type: dict
        required: true
        suboptions: &reader
          file:
            description: Path of a file.
            type: str
          command:
            description: Command and its arguments. A command that is not there means that nothing is installed.
            type: list
            elements: str
          module:
            description:
              - Names of a kernel module; the first that is loaded counts.
              - Only tells what runs. As an O(packages[].installed_version) it is helped by the journal.
            type: list
            elements: str
          package:
            description: Name of a deb or rpm.
            type: str
          pattern:
            description: Regular expression over the text; its group, or all of it, is the version. Empty takes the first line.
            type: str
            default: ""
          absent_status:
            description: Exit statuses of C(command) that mean that nothing is installed. Any other but 0 is an error.
            type: list
            elements: int
            default: []
      live_version:
        description: Where the version that runs is read. A driver must have it, unless O(packages[].installed_version) is a module.
        type: dict
        suboptions: *reader
      complete:
        description: File, and a regular expression over it, that tell that an installation is whole.
        type: dict
        suboptions:
          file:
            description: Path of the file.
            type: str
            required: true
          pattern:
            description: Regular expression that matches once the installation is whole.
            type: str
            required: true
      arguments:
        description: Arguments of an installer.
        type: list
        elements: str
        default: []
      upgrade_arguments:
        description: Arguments over another version. Empty means O(packages[].arguments).
        type: list
        elements: str
        default: []
      needs_reboot:
        description:
          - V(auto) asks for a reboot when the exit status or the installer says so, or when what runs is not what was installed.
        type: str
        choices: [auto, "true", "false"]
        default: auto
      reboot_status:
        description: Exit statuses that mean installed, and to be rebooted.
        type: list
        elements: int
        default: []
      needs_kernel_headers:
        description: Whether it builds a kernel module, so that the headers of the running kernel must be there.
        type: bool
        default: false
      free_mib:
        description: Free space it needs under each of O(packages[].free_paths), in MiB.
        type: int
        default: 0
      free_paths:
        description: Places that must have the space.
        type: list
        elements: str
        default: [/usr/local, /tmp]
      log:
        description: The installer's own log; what it added is shown when it fails.
        type: str
        default: ""
      timeout_s:
        description: Longest run of the installer, in seconds; V(0) takes O(timeout_s).
        type: float
        default: 0
      directory:
        description: Where an archive is unpacked.
        type: path
        default: ""
      allow_downgrade:
        description: Whether an older version, or one that cannot be compared, may replace what is installed.
        type: bool
        default: false
  state:
    description:
      - V(planned) says what is to be done about each package and changes nothing.
      - V(installed) runs the installer of the package O(name) if it has to run.
      - V(begun) verifies the package O(name) and writes down that another module is about to install it.
      - V(ended) judges what that module left.
      - V(rebooting) writes down that a reboot follows. What is not live after it is an error and asks for no further reboot.
    type: str
    choices: [planned, installed, begun, ended, rebooting]
    default: planned
  name:
    description: The package that is meant, for V(installed), V(begun) and V(ended).
    type: str
  directory:
    description: Directory on the host for the packages, what installers say, and the journal.
    type: path
    required: true
  timeout_s:
    description: Longest run of an installer, in seconds. It is then asked to end, and killed if it does not.
    type: float
    default: 3600
  tool_environment:
    description: Environment of the commands that read a version.
    type: dict
    default: {}
  tool_timeout_s:
    description: Time limit of one such command, in seconds.
    type: float
    default: 30
  engine_socket:
    description: The container engine's socket.
    type: path
    default: /var/run/docker.sock
  root:
    description: Directory that stands for the root of the host, for a host that is played.
    type: path
    default: /
  sysfs:
    description: Directory that stands for C(/sys), for a host that is played. Default is C(sys) under O(root).
    type: path
    default: ""
"""

EXAMPLES = r"""
---
- name: Say what is to be done
  ironserve.llm.driver_package:
    directory: /var/lib/ironserve/packages
    packages:
      - name: ascend-driver
        kind: run
        file: /srv/packages/Ascend-hdk-910b-npu-driver_25.5.1_linux-aarch64.run
        sha256: 2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae
        version: 25.5.1
        provides: driver
        arguments: [--full, --install-for-all, --quiet]
        upgrade_arguments: [--upgrade, --quiet]
        reboot_status: [2]
        installed_version: {file: /usr/local/Ascend/driver/version.info, pattern: '^Version=(\S+)'}
        live_version:
          command: [/usr/local/bin/npu-smi, info, -t, board, -i, "0"]
          pattern: 'Software Version\s*:\s*(\S+)'
        log: /var/log/ascend_seclog/ascend_install.log

- name: Install one of them
  ironserve.llm.driver_package:
    directory: /var/lib/ironserve/packages
    packages: "{{ accelerator_packages }}"
    state: installed
    name: ascend-driver
"""

RETURN = r"""
decisions:
  description:
    - What is to be done about each package, or after the call still to be done about the one that was meant, in the order the packages
      have to come.
    - Each has C(name), C(provides), C(kind), C(version), C(action) (nothing, install, upgrade, resume, wait, reboot or refuse),
      C(reason), C(installed) and C(live) (null where the package has no such thing).
  returned: success
  type: list
  elements: dict
lines:
  description: The decisions as lines for a person.
  returned: success
  type: list
  elements: str
refusals:
  description: The lines of what cannot be done.
  returned: success
  type: list
  elements: str
reboot:
  description: Names of the packages that wait for a reboot.
  returned: success
  type: list
  elements: str
said:
  description: The last lines of what the installer said; empty when none ran.
  returned: success
  type: list
  elements: str
journal:
  description: Path of the journal.
  returned: success
  type: str
"""

import os
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.ironserve.llm.plugins.module_utils import _drivers, _installer, _lock
from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError, nearest
from ansible_collections.ironserve.llm.plugins.module_utils._vendor import Vendor

#: Actions that put files on the host, now or by an installer that already works.
ACTS = _drivers.WRITES + (_drivers.WAIT,)

READER = {
    "file": {"type": "str"},
    "command": {"type": "list", "elements": "str"},
    "module": {"type": "list", "elements": "str"},
    "package": {"type": "str"},
    "pattern": {"type": "str", "default": ""},
    "absent_status": {"type": "list", "elements": "int", "default": []},
}

PACKAGE = {
    "name": {"type": "str", "required": True},
    "kind": {"type": "str", "choices": ["run", "deb", "rpm", "archive"], "required": True},
    "file": {"type": "path", "required": True},
    "on_host": {"type": "bool", "default": False},
    "sha256": {"type": "str", "required": True},
    "version": {"type": "str", "required": True},
    "provides": {"type": "str", "choices": ["driver", "firmware", "runtime", "toolkit"], "required": True},
    "installed_version": {"type": "dict", "options": READER, "required": True},
    "live_version": {"type": "dict", "options": READER},
    "complete": {
        "type": "dict",
        "options": {"file": {"type": "str", "required": True}, "pattern": {"type": "str", "required": True}},
    },
    "arguments": {"type": "list", "elements": "str", "default": []},
    "upgrade_arguments": {"type": "list", "elements": "str", "default": []},
    "needs_reboot": {"type": "str", "choices": ["auto", "true", "false"], "default": "auto"},
    "reboot_status": {"type": "list", "elements": "int", "default": []},
    "needs_kernel_headers": {"type": "bool", "default": False},
    "free_mib": {"type": "int", "default": 0},
    "free_paths": {"type": "list", "elements": "str", "default": ["/usr/local", "/tmp"]},
    "log": {"type": "str", "default": ""},
    "timeout_s": {"type": "float", "default": 0.0},
    "directory": {"type": "path", "default": ""},
    "allow_downgrade": {"type": "bool", "default": False},
}


def chosen(packages: list[_drivers.Package], name: str, state: str) -> _drivers.Package:
    """The package that is meant. Raises LLMError for one that is not there, or that this state is not for."""
    found = [package for package in packages if package.name == name]
    if not found:
        raise LLMError("no package is called '{0}': {1}".format(name, nearest(name, [package.name for package in packages])))
    if (found[0].kind == "run") != (state == "installed"):
        raise LLMError("{0}: state {1} is not for packages of kind {2}".format(name, state, found[0].kind))
    return found[0]


def after(decision: _drivers.Decision) -> str:
    """What will be there once a decision was carried out, as one line of a diff."""
    if decision.action in (_drivers.NOTHING, _drivers.REFUSE):
        return decision.state()
    return "{0} {1}{2}".format(decision.name, decision.version, "" if decision.live is None else ", live " + decision.version)


def change(site: _installer.Site, state: str, packages: list[_drivers.Package]) -> list[str]:
    """Do what ``state`` asks for with the packages that are meant; returns what an installer said."""
    os.makedirs(site.directory, mode=0o700, exist_ok=True)
    with _lock.guard(site.directory):
        if state == "rebooting":
            site.expect_reboot(packages)
            return []
        if state == "ended":
            site.finish(packages[0])
            return []
        decision = site.decide(packages[0])
        if decision.action == _drivers.REFUSE:
            raise LLMError(decision.line())
        if state == "installed":
            return site.install(packages[0])
        if decision.action in ACTS:
            site.begin(packages[0], decision.action)
        return []


def work(params: dict[str, Any], check_mode: bool, site: _installer.Site) -> dict[str, Any]:
    """Look, change what is to be changed, and look again; returns the module's result."""
    state = params["state"]
    packages = _drivers.read_packages(params["packages"])
    meant = packages if state in ("planned", "rebooting") else [chosen(packages, params["name"], state)]
    before = [site.decide(package) for package in meant]
    said: list[str] = []
    decisions, then = before, [after(decision) for decision in before]
    if state != "planned" and not check_mode:
        said = change(site, state, meant)
        decisions = [site.decide(package) for package in meant]
        then = [decision.state() for decision in decisions]
    return {
        # Journal entries are no change of the host; what the package manager does is reported by its own module.
        "changed": state == "installed" and before[0].action in ACTS,
        "decisions": [decision.as_dict() for decision in decisions],
        "lines": [decision.line() for decision in decisions],
        "refusals": [decision.line() for decision in decisions if decision.action == _drivers.REFUSE],
        "reboot": [decision.name for decision in decisions if decision.action == _drivers.REBOOT],
        "said": said,
        "journal": site.journal_path,
        "diff": {
            "before_header": "packages",
            "after_header": "packages",
            "before": "".join(decision.state() + "\n" for decision in before),
            "after": "".join(line + "\n" for line in then),
        },
    }


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "packages": {"type": "list", "elements": "dict", "options": PACKAGE, "required": True},
            "state": {"type": "str", "choices": ["planned", "installed", "begun", "ended", "rebooting"], "default": "planned"},
            "name": {"type": "str"},
            "directory": {"type": "path", "required": True},
            "timeout_s": {"type": "float", "default": 3600.0},
            "tool_environment": {"type": "dict", "default": {}},
            "tool_timeout_s": {"type": "float", "default": 30.0},
            "engine_socket": {"type": "path", "default": "/var/run/docker.sock"},
            "root": {"type": "path", "default": "/"},
            "sysfs": {"type": "path", "default": ""},
        },
        required_if=[("state", name, ["name"]) for name in ("installed", "begun", "ended")],
        supports_check_mode=True,
    )
    params = module.params
    vendor = Vendor(
        environment={name: str(value) for name, value in params["tool_environment"].items()},
        timeout_s=params["tool_timeout_s"],
        root=params["root"],
        sysfs=params["sysfs"],
    )
    site = _installer.Site(vendor, os.path.abspath(params["directory"]), params["engine_socket"], params["timeout_s"])
    try:
        module.exit_json(**work(params, module.check_mode, site))
    except (LLMError, OSError) as exc:
        module.fail_json(msg=str(exc))


if __name__ == "__main__":
    main()
