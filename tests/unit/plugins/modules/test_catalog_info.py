# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The module file is documentation for the action plugin: both must speak of the same options."""

from __future__ import annotations

import inspect

import yaml

from ansible_collections.ironserve.llm.plugins.action import catalog_info as action
from ansible_collections.ironserve.llm.plugins.modules import catalog_info as module


def test_documented_options_are_the_plugins(monkeypatch):
    seen = {}

    class Stop(Exception):
        pass

    def keep(_self, argument_spec):
        seen.update(argument_spec)
        raise Stop

    monkeypatch.setattr(action.ActionModule, "validate_argument_spec", keep)
    monkeypatch.setattr(action.ActionBase, "run", lambda *_args: {})
    try:
        object.__new__(action.ActionModule).run(None, {})
    except Stop:
        pass
    documented = yaml.safe_load(module.DOCUMENTATION)["options"]
    assert list(documented) == list(seen)
    for name, option in documented.items():
        wanted = {key: value for key, value in option.items() if key in ("type", "elements", "default", "required")}
        assert wanted == seen[name], name


def test_documented_results_are_the_plugins():
    returned = inspect.getsource(action.ActionModule.run).rsplit("return {", 1)[1]
    for name in yaml.safe_load(module.RETURN):
        assert '"{0}":'.format(name) in returned
