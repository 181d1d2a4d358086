# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A mistyped variable is found, and nothing that is right is called wrong."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from ansible_collections.ironserve.llm.plugins.action.catalog_info import role_options
from ansible_collections.ironserve.llm.plugins.module_utils._variables import COLLECTION_VARIABLES, unknown_variables

ROOT = Path(__file__).resolve().parents[4]
OPTIONS = {"replica": ["replica_count", "replica_port_base"], "gateway": ["gateway_port"]}


def test_typo_in_a_role_option_is_named_with_the_nearest():
    lines = unknown_variables(["replica_cuont"], OPTIONS)
    assert lines == ["unknown variable 'replica_cuont'; did you mean \"replica_count\"?"]


def test_typo_in_a_collection_variable():
    (line,) = unknown_variables(["llm_modell"], OPTIONS)
    assert '"llm_model"' in line


def test_nothing_near_still_is_an_error():
    (line,) = unknown_variables(["gateway_zzzzqqqqxxxxzzzzqqqqjjjj"], OPTIONS)
    assert line == "unknown variable 'gateway_zzzzqqqqxxxxzzzzqqqqjjjj'; see the roles' READMEs"


@pytest.mark.parametrize("name", ["repica_count", "replicacount", "eplica_count", "gatway_port", "llmmodel", "lm_platform"])
def test_a_slip_in_the_prefix_is_named_too(name):
    (line,) = unknown_variables([name], OPTIONS)
    assert line.startswith(f"unknown variable '{name}'; did you mean \"")


@pytest.mark.parametrize(
    "name",
    [
        "replica_count",
        "replica_out",
        "llm_platform",
        "ansible_host",
        "__replica_x",
        "replicas",
        "hostvars",
        "groups",
        "port_base",
        "my_replica_count_of_old",
    ],
)
def test_right_and_foreign_names_pass(name):
    assert unknown_variables([name], OPTIONS) == []


def test_every_collection_variable_the_collection_reads_is_known():
    used = set()
    for pattern in ("roles/*/defaults/*.yml", "roles/*/tasks/*.yml", "playbooks/*.yml"):
        for path in ROOT.glob(pattern):
            # What is assigned or compared is text; what is read is a word that nothing follows up into a longer one.
            used |= set(re.findall(r"(?<![\w'\"/.])llm_[a-z_]+(?=\s*(?:\||\}|==|\)|,|~|\]))", path.read_text(encoding="utf-8")))
    assert used, "the pattern finds nothing any more"
    assert used - set(COLLECTION_VARIABLES) == set()


@pytest.mark.parametrize("path", sorted(ROOT.glob("inventories/*/*_vars/**/*.yml")), ids=lambda path: str(path.relative_to(ROOT)))
def test_shipped_inventories_have_no_unknown_variable(path):
    assert unknown_variables(list(yaml.safe_load(path.read_text(encoding="utf-8"))), role_options()) == []
