# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What the container engine is asked to make for the shipped inventories, whole, as files: any change of what a container gets is a diff.

The way is the real one: catalog, variables and recorded cards to the plan, plan to requests. After a change that is meant:
``REQUESTS=write .venv/bin/python -m pytest tests/unit/test_container_requests.py``, and read the diff.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from ansible_collections.ironserve.llm.plugins.action.catalog_info import read_catalog
from ansible_collections.ironserve.llm.plugins.module_utils._catalog import resolve
from ansible_collections.ironserve.llm.plugins.module_utils._container_request import request
from ansible_collections.ironserve.llm.plugins.module_utils._plan import PlanInput, make_plan
from ansible_collections.ironserve.llm.plugins.module_utils._probe_cpu import lay_out

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).with_name("container_requests")

#: Platform -> its inventory, and the host in it.
SITES = {
    "cpu": ("local", "localhost"),
    "hygon_k100ai": ("k100", "k100-01"),
    "ascend_910b": ("ascend910b", "a2-01"),
    "ascend_a3": ("ascend_a3", "a3-01"),
    "nvidia_h100": ("h100", "h100-01"),
}

HEAD = """\
---
# What the container engine is asked to make, for inventories/{inventory}: the first replica in full, of the others what differs.
# Written by tests/unit/test_container_requests.py, whose first lines say how.
"""


def cards(inventory: str, host: str, variables: dict[str, Any], platform: dict[str, Any]) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """The cards of a host as its inventory recorded them, with its device nodes; a CPU's are laid out as on a machine of two cores."""
    if platform["probe"] == "cpu":
        found = lay_out([0, 1], 16384, variables["accelerator_cpu_cards"], platform["card"]["memory_mib"])
        return [vars(card) for card in found], {}
    path = ROOT / "inventories" / inventory / "host_vars" / host / "cards.yml"
    recorded = yaml.safe_load(path.read_text(encoding="utf-8"))["accelerator_recorded"]
    return recorded["cards"], recorded["device_nodes"]


def plan_of(platform: str, **changes: Any) -> dict[str, Any]:
    """The plan of a shipped inventory, as playbooks/plan.yml makes it without the host."""
    inventory, host = SITES[platform]
    path = ROOT / "inventories" / inventory / "group_vars" / "all" / "llm.yml"
    variables = yaml.safe_load(path.read_text(encoding="utf-8"))
    defaults = yaml.safe_load((ROOT / "roles/replica/defaults/main.yml").read_text(encoding="utf-8"))
    options = {**defaults, **variables}
    assert variables["llm_platform"] == platform
    catalog = resolve(read_catalog([]), platform, variables["llm_model"], weights=variables.get("llm_weights", ""))
    found, nodes = cards(inventory, host, variables, catalog["platform"])
    image = catalog["engine"]["image"]
    reference = image.get("reference") or "{0}:{1}".format(image["source"], image["build"])
    values = {
        "host": host,
        "address": "127.0.0.1",
        "catalog": catalog,
        "cards": found,
        "device_nodes": nodes,
        "image": reference + ("@" + image["digest"] if image.get("digest") else ""),
        "weights_path": "/var/lib/ironserve/weights/{0}/{1}".format(catalog["model"]["name"], catalog["weights"]["name"]),
        "key_file": "/etc/ironserve/keys/engine.key",
        "cache_dir": "/var/lib/ironserve/cache",
        "port_base": options["replica_port_base"],
        "uid": options["replica_uid"],
        "network": options["replica_network"],
        "enhancements": variables.get("llm_enhancements", {}),
        "count": options["replica_count"],
        "min_count": options["replica_min_count"],
        "engine_version": image.get("version", ""),
    }
    return make_plan(PlanInput(**{**values, **changes}))


def flat(value: Any, path: str = "") -> dict[str, Any]:
    """Every leaf of a request by its path; a list is one leaf."""
    if not isinstance(value, dict) or not value:
        return {path: value}
    leaves: dict[str, Any] = {}
    for key, item in value.items():
        leaves.update(flat(item, f"{path}/{key}" if path else str(key)))
    return leaves


def written(platform: str) -> str:
    """The file of a platform as it is to be."""
    specs = [replica["spec"] for replica in make(platform)]
    first = request(specs[0])
    leaves = flat(first)
    others = {}
    for spec in specs[1:]:
        own = flat(request(spec))
        others[spec["name"]] = {path: own.get(path, "not there") for path in sorted({*own, *leaves}) if own.get(path) != leaves.get(path)}
    content = {specs[0]["name"]: first, "others": others}
    text = yaml.dump(content, Dumper=Indented, sort_keys=True, width=10**6, default_flow_style=False, allow_unicode=True)
    return HEAD.format(inventory=SITES[platform][0]) + text


class Indented(yaml.SafeDumper):
    """Lists inside what they belong to, as lint wants all YAML."""

    def increase_indent(self, flow=False, indentless=False):
        return super().increase_indent(flow, False)


@functools.cache
def make(platform: str) -> list[dict[str, Any]]:
    """The replicas of a platform's plan."""
    return plan_of(platform)["replicas"]


@pytest.mark.parametrize("platform", sorted(SITES))
def test_a_container_gets_what_its_file_says(platform: str) -> None:
    path = HERE / (platform + ".yml")
    now = written(platform)
    if os.environ.get("REQUESTS") == "write":
        path.write_text(now, encoding="utf-8")
    assert now == path.read_text(encoding="utf-8"), f"{path} is another; if that is meant, write it anew: see the top of {__file__}"


@pytest.fixture(params=sorted(SITES))
def requests(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    """The requests of one platform; the promises below are held for every one of them."""
    from ansible_collections.ironserve.llm.plugins.module_utils._container_request import request as body

    return [body(replica["spec"]) for replica in make(request.param)]


def test_no_container_has_more_rights_than_its_cards_need(requests: list[dict[str, Any]]) -> None:
    for body in requests:
        host = body["HostConfig"]
        assert "Privileged" not in host and host["CapDrop"] == ["ALL"] and host["CapAdd"] == []
        assert host["SecurityOpt"] == ["no-new-privileges:true"] and host["ReadonlyRootfs"] is True and host["IpcMode"] == "private"
        assert host["NetworkMode"] == "ironserve"
        assert not body["User"].startswith("0") and "0" not in host["GroupAdd"]
        writable = [item["Target"] for item in host["Mounts"] if not item["ReadOnly"]]
        assert writable == ["/cache"]


def test_no_two_containers_share_a_card_a_port_or_a_cache(requests: list[dict[str, Any]]) -> None:
    shared = set.intersection(*({item["PathOnHost"] for item in body["HostConfig"]["Devices"]} for body in requests))
    own: list[str] = []
    for body in requests:
        host = body["HostConfig"]
        own += [item["PathOnHost"] for item in host["Devices"] if item["PathOnHost"] not in shared]
        own += [name for item in host["DeviceRequests"] for name in item["DeviceIDs"]]
        own += [item["HostPort"] for items in host["PortBindings"].values() for item in items]
        own += [item["Source"] for item in host["Mounts"] if item["Target"] == "/cache"]
    assert len(own) == len(set(own))


def test_an_h100_comes_with_the_libraries_of_its_driver() -> None:
    """Nodes alone are a card without a driver: the toolkit is asked for the same card, by its uuid."""
    replicas = make("nvidia_h100")
    for number, replica in enumerate(replicas):
        assert request(replica["spec"])["HostConfig"]["DeviceRequests"] == [
            {"Driver": "nvidia", "DeviceIDs": [f"GPU-00000000-0000-0000-0000-{number:012d}"], "Capabilities": [["gpu"]]}
        ]
        assert replica["spec"]["own_devices"] == [f"/dev/nvidia{number}"]
