# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Find mistyped variables: names with one of our roles' prefixes that no role knows, and names almost like an option. Private to the collection."""

from __future__ import annotations

import difflib

from ansible_collections.ironserve.llm.plugins.module_utils._errors import nearest

#: Values shared by all roles; they are read in role defaults only.
COLLECTION_VARIABLES = (
    "llm_aliases",
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


#: A name without our prefixes that is as near as this to an option (difflib's ratio) is that option with a slip in the prefix.
SLIP = 0.92


def unknown_variables(names: list[str], options: dict[str, list[str]]) -> list[str]:
    """Return one line for each name that looks like ours, or is an option with a slip, and is not.

    Args:
        names: the variable names of a host.
        options: role -> its options. A role's prefix is ``<role>_``; ``<role>_out`` is its result.
    """
    known = sorted(set(COLLECTION_VARIABLES).union(*[set(items) for items in options.values()]))
    prefixes = tuple("{0}_".format(role) for role in options) + ("llm_",)
    results = {"{0}_out".format(role) for role in options}
    lines = []
    for name in sorted(names):
        if name.startswith(("ansible_", "_")) or name in known or name in results:
            continue
        if name.startswith(prefixes) or difflib.get_close_matches(name, known, n=1, cutoff=SLIP):
            lines.append(
                "unknown variable '{0}'; {1}".format(name, nearest(name, known, 0.8).split("Known:")[0].strip() or "see the roles' READMEs")
            )
    return lines
