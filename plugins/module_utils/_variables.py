# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Find mistyped variables: names with one of our roles' prefixes that no role knows. Private to the collection."""

from __future__ import annotations

from ansible_collections.ironserve.llm.plugins.module_utils._errors import nearest

#: Values shared by all roles; they are read in role defaults only.
COLLECTION_VARIABLES = (
    "llm_allow_forbidden",
    "llm_config_dir",
    "llm_enhancements",
    "llm_engine",
    "llm_environment",
    "llm_gateway_group",
    "llm_lock_lease_s",
    "llm_lock_takeover",
    "llm_model",
    "llm_node_group",
    "llm_platform",
    "llm_run_dir",
    "llm_settings",
    "llm_state_dir",
    "llm_weights",
)


def unknown_variables(names: list[str], options: dict[str, list[str]]) -> list[str]:
    """Return one line for each name that looks like ours and is not.

    Args:
        names: the variable names of a host.
        options: role -> its options. A role's prefix is ``<role>_``; ``<role>_out`` is its result.
    """
    known = sorted(set(COLLECTION_VARIABLES).union(*[set(items) for items in options.values()]))
    prefixes = tuple("{0}_".format(role) for role in options) + ("llm_",)
    results = {"{0}_out".format(role) for role in options}
    lines = []
    for name in sorted(names):
        if name.startswith(prefixes) and name not in known and name not in results:
            lines.append(
                "unknown variable '{0}'; {1}".format(name, nearest(name, known).split("Known:")[0].strip() or "see the roles' READMEs")
            )
    return lines
