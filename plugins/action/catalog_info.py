# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Controller side of ironserve.llm.catalog_info: the files and variables it reads are the controller's."""

from __future__ import annotations

import pathlib
from typing import Any

import yaml
from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

from ansible_collections.ironserve.llm.plugins.module_utils._catalog import SHAPES, collect, resolve
from ansible_collections.ironserve.llm.plugins.module_utils._compatibility import read_table, select
from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError, nearest
from ansible_collections.ironserve.llm.plugins.module_utils._log_messages import collect_messages
from ansible_collections.ironserve.llm.plugins.module_utils._overlay_files import find
from ansible_collections.ironserve.llm.plugins.module_utils._variables import unknown_variables

ROLES = pathlib.Path(__file__).resolve().parents[2] / "roles"
SHIPPED = ROLES / "catalog"
#: The parser in C, where PyYAML has it: the catalog is read once per host.
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
#: Folder of an overlay with probes of cards the collection does not know, ``<probe>.py`` each.
PROBES = "probes"
#: Folder with files that lie over an image's own.
FILES = "files"


def read_yaml(path: pathlib.Path) -> Any:
    """Parse one YAML file; the error names the file and the line."""
    try:
        return yaml.load(path.read_text(encoding="utf-8"), Loader=LOADER)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as exc:
        raise LLMError(f"{path}: cannot be read as YAML: {exc}") from exc


def entry_files(folder: pathlib.Path) -> list[pathlib.Path]:
    """Entry files of one folder, by name; an absent folder has none."""
    return sorted(path for path in folder.glob("*") if path.suffix in (".yml", ".yaml"))


def read_catalog(overlays: list[str]) -> dict[str, dict[str, dict[str, Any]]]:
    """Collect all entries of all kinds from the shipped catalog and the overlays, in this order."""
    roots = [SHIPPED] + [pathlib.Path(item).expanduser() for item in overlays]
    for root in roots[1:]:
        # What is not read must not look as if it were.
        for path in sorted(root.iterdir()) if root.is_dir() else []:
            if not path.name.startswith(".") and path.is_dir() and path.name not in (*SHAPES, PROBES, FILES):
                raise LLMError(f"{path}: the catalog has no folder of this name; {nearest(path.name, [*SHAPES, PROBES, FILES])}")
    return {kind: collect(kind, [(str(path), read_yaml(path)) for root in roots for path in entry_files(root / kind)]) for kind in SHAPES}


def read_probe(overlays: list[str], name: str) -> str:
    """Source of a probe that an overlay brings, empty when none does; the last overlay wins."""
    files = [pathlib.Path(item).expanduser() / PROBES / f"{name}.py" for item in overlays]
    found = [path for path in files if path.is_file()]
    return found[-1].read_text(encoding="utf-8") if found else ""


def role_options() -> dict[str, list[str]]:
    """Options of every role of this collection, from their argument specs."""
    specs = {}
    for path in sorted(ROLES.glob("*/meta/argument_specs.yml")):
        entry_points = read_yaml(path)["argument_specs"].values()
        specs[path.parents[1].name] = [option for point in entry_points for option in point.get("options", {})]
    return specs


class ActionModule(ActionBase):
    """Resolve the catalog on the controller, without a round trip to the host."""

    TRANSFERS_FILES = False
    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the module's result; see its documentation."""
        super().run(tmp, task_vars)
        _spec, args = self.validate_argument_spec(
            argument_spec={
                "platform": {"type": "str", "required": True},
                "model": {"type": "str", "default": ""},
                "engine": {"type": "str", "default": ""},
                "weights": {"type": "str", "default": ""},
                "overlays": {"type": "list", "elements": "path", "default": []},
                "check_variables": {"type": "bool", "default": True},
            }
        )
        try:
            if args["check_variables"]:
                wrong = unknown_variables(list(task_vars or {}), role_options())
                if wrong:
                    raise LLMError("; ".join(wrong))
            catalog = read_catalog(args["overlays"])
            chosen = resolve(catalog, args["platform"], args["model"], args["engine"], args["weights"])
            chosen["compatibility"] = select(read_table(catalog["compatibility"]), args["platform"], chosen["engine"].get("name", ""))
            chosen["log_messages"] = collect_messages(catalog["log_messages"], chosen["engine"].get("name", ""))
            container = chosen["platform"]["container"]
            if chosen["model"] and container.get("files"):
                roots = [SHIPPED] + [pathlib.Path(item).expanduser() for item in args["overlays"]]
                container["files"] = find(container["files"], [str(root / FILES) for root in roots])
            chosen["platform"]["probe_source"] = read_probe(args["overlays"], chosen["platform"]["probe"])
        except LLMError as exc:
            raise AnsibleActionFail(str(exc)) from exc
        return {"changed": False, "catalog": chosen, "known": {kind: sorted(entries) for kind, entries in catalog.items()}}
