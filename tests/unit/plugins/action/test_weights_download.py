# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The controller's side of long work: how it asks for a job, what it shows of it, when it gives up. The real thing is played in test_weights_download."""

from __future__ import annotations

import pytest

from ansible_collections.ironserve.llm.plugins.action import weights_download, weights_files


class Module(weights_download.ActionModule):
    """The action with a module that answers what it is given."""

    def __init__(self, answers) -> None:
        self.answers, self.asked = iter(answers), []

    def _execute_module(self, module_args=None, task_vars=None):
        self.asked.append(module_args)
        return dict(next(self.answers))


def job(done=0, nonce="n", mine=True, running=True, phase="download") -> dict:
    progress = {"phase": phase, "files": ["f"], "files_done": 0, "files_total": 1, "done_bytes": done, "total_bytes": 100}
    progress.update(rate_bytes_s=None, idle_s=0.0, seconds=0.0, finished=False)
    return {"changed": False, "job": {"nonce": nonce, "running": running, "mine": mine, "who": "x, pid 7", "progress": progress}}


@pytest.fixture
def clock(monkeypatch):
    """Time that passes only in pauses; what was shown."""
    state = {"now": 0.0, "lines": []}
    monkeypatch.setattr(weights_download.time, "monotonic", lambda: state["now"])
    monkeypatch.setattr(weights_download.time, "sleep", lambda seconds: state.update(now=state["now"] + seconds))
    monkeypatch.setattr(weights_download.display, "display", state["lines"].append)
    return state


def test_the_job_is_asked_for_until_it_ends_and_shown_now_and_then(clock):
    module = Module([job(1)] + [job(done) for done in range(2, 41)] + [{"changed": True, "fetched": ["f"]}])
    assert module.follow("h", {"path": "/p"}, {}) == {"changed": True, "fetched": ["f"]}
    assert module.asked[0] == {"path": "/p", "detach": True, "job": ""}
    assert all(item["job"] == "n" and item["detach"] is True for item in module.asked[1:])
    # 40 looks, one a five seconds: a line at first, and then one for every 5 per cent
    assert clock["lines"][0] == "h: downloading f, 1 % of 100 B" and len(clock["lines"]) == 8


def test_short_work_says_nothing(clock):
    module = Module([{"changed": False, "fetched": []}])
    assert module.follow("h", {}, {}) == {"changed": False, "fetched": []}
    assert clock == {"now": 0.0, "lines": []}


def test_an_error_ends_it(clock):
    module = Module([job(1), {"failed": True, "msg": "no"}])
    assert module.follow("h", {}, {}) == {"failed": True, "msg": "no"}


def test_another_job_is_waited_for_and_then_ours_begins(clock):
    module = Module([job(nonce="o", mine=False)] * 3 + [job(nonce="n"), {"changed": True}])
    assert module.follow("h", {"lock_timeout": 60}, {})["changed"]
    assert clock["lines"][0] == "h: waiting for another job: x, pid 7"
    assert [item["job"] for item in module.asked] == ["", "", "", "", "n"]


def test_another_job_is_not_waited_for_for_ever(clock):
    module = Module([job(nonce="o", mine=False)] * 100)
    result = module.follow("h", {"lock_timeout": 60, "path": "/p"}, {})
    assert result["failed"] and result["msg"].startswith("/p: another job is still at work there after 60 s: x, pid 7.")
    assert 60 < clock["now"] < 70 and clock["lines"] == ["h: waiting for another job: x, pid 7"]


def test_placing_is_followed_as_well():
    assert issubclass(weights_files.ActionModule, weights_download.ActionModule)
