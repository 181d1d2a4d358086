# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Unknown never lets a deployment go on, and neither does having checked nothing."""

from __future__ import annotations

import pytest

from ansible_collections.ironserve.llm.plugins.module_utils._checks import Check, all_good, failures


@pytest.mark.parametrize(
    ("status", "good"),
    [("pass", True), ("warn", True), ("not_applicable", True), ("fail", False), ("unknown", False), ("", False), ("passed", False)],
)
def test_only_known_good_statuses_are_good(status, good):
    assert Check("driver", status, "x").good is good


def test_line_has_status_name_detail_and_fix():
    line = Check("driver", "fail", "no node /dev/kfd.", "load the driver").line()
    assert line.split() == ["FAIL", "driver", "no", "node", "/dev/kfd.", "Fix:", "load", "the", "driver"]


def test_line_without_fix_does_not_speak_of_one():
    assert "Fix" not in Check("driver", "pass", "6.2").line()
    assert Check("driver", "not_applicable", "cpu").line().startswith("N/A ")


def test_no_checks_prove_nothing():
    assert all_good([]) is False


def test_one_unknown_spoils_all_and_is_listed():
    checks = [Check("a", "pass", "fine"), Check("b", "unknown", "new line")]
    assert all_good(checks) is False
    assert failures(checks) == [checks[1].line()]
    assert all_good(checks[:1]) is True


def test_as_dict_is_plain_data():
    assert Check("a", "fail", "bad", "mend").as_dict() == {"name": "a", "status": "fail", "detail": "bad", "fix": "mend"}
