# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The whole life of a replica's container on this machine's real engine.

The image is made here from this machine's own shell, so no registry is needed. Names begin with ``itest-`` and everything made is
removed, however a test ends.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shutil
import signal
import socket
import subprocess
import tarfile
import threading
import time
import uuid

import pytest

from ansible_collections.ironserve.llm.plugins.module_utils import _container_request, _containers, _docker, _log_messages, _warmup
from ansible_collections.ironserve.llm.plugins.module_utils._endpoints import Endpoint
from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError
from ansible_collections.ironserve.llm.plugins.modules import replica_containers

LABEL = "itest-test"

#: Lives until it is told to end, and then ends at once.
LIVE = ["/bin/sh", "-c", 'trap "exit 0" TERM; while :; do /bin/sleep 60 & wait $!; done']


def engine():
    """The real engine's client, or a skipped test that says why."""
    try:
        return _docker.connect()
    except _docker.EngineAbsent as exc:
        pytest.skip("no container engine: {0}".format(exc))


def shell_tree() -> bytes:
    """A tar of this machine's shell, sleep and the libraries they load: the smallest image that runs."""
    wanted = {}
    for name in ("sh", "sleep"):
        real = os.path.realpath(shutil.which(name))
        wanted["bin/" + name] = real
        said = subprocess.run(["ldd", real], capture_output=True, text=True, check=False).stdout
        for path in re.findall(r"(/\S+\.so\S*)", said):
            wanted[path.lstrip("/")] = os.path.realpath(path)
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, source in sorted(wanted.items()):
            info = tarfile.TarInfo(name)
            info.mode = 0o755
            with open(source, "rb") as handle:
                info.size = os.fstat(handle.fileno()).st_size
                tar.addfile(info, handle)
        # A read-only root cannot grow the places things are mounted on.
        for name in ("models", "cache", "tmp", "run/secrets", "proc", "sys", "dev"):
            info = tarfile.TarInfo(name)
            info.type, info.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
            tar.addfile(info)
        tar.addfile(tarfile.TarInfo("run/secrets/engine.key"))
    return buffer.getvalue()


@pytest.fixture(scope="module")
def image():
    if os.geteuid() != 0:
        pytest.skip("replicas get directories of another user: these tests take root")
    client = engine()
    repository = "itest-shell-{0}".format(uuid.uuid4().hex[:8])
    client.import_image_from_data(shell_tree(), repository=repository, tag="test")
    yield repository + ":test"
    client.remove_image(repository + ":test", force=True)
    client.close()


@pytest.fixture
def client():
    client = engine()
    yield client
    client.close()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def make_spec(image, client, tmp_path):
    """Make specifications of replicas of a fleet of this test alone; at the end nothing of it is left."""
    fleet = "itest-{0}".format(uuid.uuid4().hex[:8])
    made = []
    (tmp_path / "weights").mkdir()
    (tmp_path / "engine.key").write_text("a-secret-word", encoding="ascii")

    def make(number=0, spec_hash="one", **changes):
        name = "{0}-c{1}".format(fleet, number)
        made.append(name)
        values = {
            "name": name,
            "image": image,
            "entrypoint": None,
            "command": LIVE,
            "environment": {"HOME": "/cache"},
            "mounts": [
                {"source": str(tmp_path / "weights"), "target": "/models", "read_only": True},
                {
                    "source": str(tmp_path / "cache" / "c{0}".format(number) / "image"),
                    "target": "/cache",
                    "read_only": False,
                    "owner": 64064,
                },
                {"source": str(tmp_path / "engine.key"), "target": "/run/secrets/engine.key", "read_only": True},
            ],
            "devices": [],
            "own_devices": [],
            "device_requests": [],
            "cap_add": [],
            "security_opt": [],
            "ipc": "private",
            "groups": [],
            "cpuset": "0",
            "memory_mib": 64,
            "shm_mib": 8,
            "pids_limit": 32,
            "stop_timeout_s": 5,
            "user": "64064:64064",
            "network": fleet,
            "publish": {"address": "127.0.0.1", "port": free_port(), "container_port": 8000},
            "spec_hash": spec_hash,
        }
        values.update(changes)
        values["labels"] = {"ironserve.replica": name, "ironserve.spec": values["spec_hash"], LABEL: fleet}
        return values

    yield make
    for name in made:
        for ending in ("", _containers.PREVIOUS_SUFFIX):
            _docker.remove(client, name + ending)
    _docker.remove_network(client, fleet)


@pytest.fixture
def module(tmp_path):
    """Run the module's work: ``module([specs], state, check_mode)``."""

    def run(specs, state="present", check_mode=False, neighbours=()):
        params = {"specs": specs, "state": state, "cache_dir": str(tmp_path / "cache"), "socket": _docker.DEFAULT_SOCKET}
        params["neighbours"] = list(neighbours)
        # No card but cores, which nobody waits for.
        params.update(card_tools={}, idle_mib=0, free_timeout_s=0)
        return replica_containers.run(params, check_mode)

    return run


def actions(result):
    return [item["action"] for item in result["actions"]]


def running(client, name):
    found = _docker.inspect(client, name)
    return bool(found and found["State"]["Running"])


def test_the_whole_life(client, make_spec, module, tmp_path):
    first = make_spec()
    name, previous = first["name"], first["name"] + "-previous"

    result = module([first], check_mode=True)
    assert (result["changed"], actions(result)) == (True, ["create"])
    assert _docker.inspect(client, name) is None
    assert not (tmp_path / "cache").exists()

    result = module([first])
    assert (result["changed"], actions(result)) == (True, ["create"])
    assert running(client, name)
    born = _docker.inspect(client, name)["Id"]

    for check_mode in (True, False):
        result = module([first], check_mode=check_mode)
        assert (result["changed"], actions(result), result["diff"]) == (False, ["keep"], [])
    assert _docker.inspect(client, name)["Id"] == born

    changed = dict(first, spec_hash="two", labels=dict(first["labels"], **{"ironserve.spec": "two"}))
    result = module([changed], check_mode=True)
    assert actions(result) == ["replace"]
    assert _docker.inspect(client, name)["Id"] == born
    module([changed])
    assert _docker.inspect(client, name)["Id"] != born
    assert running(client, name)
    assert _docker.inspect(client, previous)["Id"] == born
    assert not running(client, previous)
    assert actions(module([changed])) == ["keep"]

    result = module([changed], "reverted")
    assert (result["changed"], actions(result)) == (True, ["revert"])
    assert _docker.inspect(client, name)["Id"] == born
    assert running(client, name)
    assert _docker.inspect(client, previous) is None

    module([changed])
    result = module([changed], "committed")
    assert actions(result) == ["commit"]
    assert _docker.inspect(client, previous) is None
    assert running(client, name)
    assert module([changed], "committed")["changed"] is False

    result = module([changed], "absent", check_mode=True)
    assert (result["changed"], running(client, name)) == (True, True)
    result = module([changed], "absent")
    assert actions(result) == ["remove"]
    assert _docker.inspect(client, name) is None
    assert client.networks(names=[first["network"]]) == []
    assert module([changed], "absent")["changed"] is False


def test_rights_as_the_engine_sees_them(client, make_spec, module, tmp_path):
    spec = make_spec()
    module([spec])
    found = _docker.inspect(client, spec["name"])
    host = found["HostConfig"]
    assert host["Privileged"] is False
    assert host["CapDrop"] == ["ALL"] and not host["CapAdd"]
    assert host["SecurityOpt"] == ["no-new-privileges:true"]
    assert host["ReadonlyRootfs"] is True
    assert (host["CpusetCpus"], host["Memory"], host["PidsLimit"]) == ("0", 64 * 2**20, 32)
    assert found["Config"]["User"] == "64064:64064"
    assert {mount["Destination"]: mount["RW"] for mount in found["Mounts"]} == {
        "/models": False,
        "/cache": True,
        "/run/secrets/engine.key": False,
    }
    assert "a-secret-word" not in str(found)
    status = (tmp_path / "cache" / "c0" / "image").stat()
    assert (status.st_uid, status.st_mode & 0o777) == (64064, 0o700)


def test_what_the_engine_made_is_what_it_was_asked_for(client, make_spec, module):
    """Every field, in the engine's own spelling; otherwise each run would make every replica anew."""
    spec = make_spec(devices=["/dev/null", "/dev/zero"], groups=[44, 1000], cap_add=["SYS_PTRACE"], security_opt=["seccomp=unconfined"])
    module([spec])
    assert _container_request.differences(spec, _docker.inspect(client, spec["name"])) == {}


def test_a_limit_that_was_changed_by_hand_is_put_right(client, make_spec, module):
    spec = make_spec()
    module([spec])
    born = _docker.inspect(client, spec["name"])["Id"]
    client.update_container(spec["name"], restart_policy={"Name": "no"})
    result = module([spec], check_mode=True)
    assert (actions(result), result["actions"][0]["reason"]) == (["replace"], "it is not as planned: HostConfig.RestartPolicy")
    module([spec])
    found = _docker.inspect(client, spec["name"])
    assert found["Id"] != born and found["HostConfig"]["RestartPolicy"]["Name"] == "unless-stopped"
    assert actions(module([spec])) == ["keep"]


def test_rights_as_the_kernel_enforces_them(client, make_spec, module):
    """Root file system, weights and capabilities, tried from within."""
    script = (
        "echo x > /models/x && exit 11; echo x > /x && exit 12; echo x > /run/secrets/engine.key && exit 13; "
        "echo x > /cache/x || exit 14; echo x > /tmp/x || exit 15; "
        'while read -r word value; do case "$word" in CapEff:) [ "$value" = 0000000000000000 ] || exit 16;; '
        'NoNewPrivs:) [ "$value" = 1 ] || exit 17;; esac; done < /proc/self/status; echo x > /cache/done; ' + LIVE[2]
    )
    spec = make_spec(command=["/bin/sh", "-c", script])
    module([spec])
    done = os.path.join(spec["mounts"][1]["source"], "done")
    deadline = time.monotonic() + 30
    while not os.path.exists(done):
        state = _docker.container_state(spec["name"])
        assert state["running"] and not state["restarts"], "ended with {0}: {1}".format(state["exit_code"], state["log_tail"])
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_several_replicas_in_one_call(client, make_spec, module):
    specs = [make_spec(0), make_spec(1), make_spec(2)]
    assert actions(module(specs)) == ["create"] * 3
    client.stop(specs[1]["name"])
    assert actions(module(specs)) == ["keep", "start", "keep"]
    assert all(running(client, spec["name"]) for spec in specs)


def test_orphans_are_named_and_can_be_removed_with_their_predecessors(client, make_spec, module):
    kept, gone = make_spec(0), make_spec(1)
    module([kept, gone])
    changed = dict(gone, spec_hash="two", labels=dict(gone["labels"], **{"ironserve.spec": "two"}))
    module([kept, changed])
    ours = [name for name in module([kept])["orphans"] if name.startswith(gone["name"])]
    assert ours == [gone["name"], gone["name"] + "-previous"]
    module([{"name": name, "stop_timeout_s": 5, "network": gone["network"]} for name in ours], "absent")
    assert [name for name in module([kept])["orphans"] if name.startswith(gone["name"])] == []
    assert running(client, kept["name"])


def test_port_of_a_process_is_named_and_nothing_is_made(client, make_spec, module):
    spec = make_spec()
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", spec["publish"]["port"]))
        holder.listen()
        with pytest.raises(LLMError) as caught:
            module([spec])
    assert "127.0.0.1:{0} is taken by ".format(spec["publish"]["port"]) in str(caught.value)
    assert "(pid {0})".format(os.getpid()) in str(caught.value)
    assert spec["name"] in str(caught.value)
    assert _docker.inspect(client, spec["name"]) is None


def test_new_port_that_is_taken_leaves_the_running_replica_alone(client, make_spec, module):
    first, other = make_spec(0), make_spec(1)
    module([first, other])
    born = _docker.inspect(client, first["name"])["Id"]
    moved = dict(first, spec_hash="two", publish=dict(first["publish"], port=other["publish"]["port"]))
    with pytest.raises(LLMError, match="is taken by container " + other["name"]):
        module([moved])
    assert _docker.inspect(client, first["name"])["Id"] == born
    assert running(client, first["name"])


def test_foreign_container_on_the_card_stops_it_before_anything_happens(client, make_spec, module):
    """``/dev/null`` plays the card's node; the foreign container was given the whole node folder's worth of it."""
    stranger = make_spec(7, devices=["/dev/null"])
    module([stranger])
    spec = make_spec(0, devices=["/dev/null"], own_devices=["/dev/null"])
    for check_mode in (True, False):
        with pytest.raises(LLMError, match="card node /dev/null is held by container {0}".format(stranger["name"])):
            module([spec], check_mode=check_mode)
    assert _docker.inspect(client, spec["name"]) is None


def test_missing_image_is_a_message_that_names_the_replica(make_spec, module):
    spec = make_spec(image="itest-no-such-image:1")
    with pytest.raises(LLMError, match="{0}: .*itest-no-such-image".format(spec["name"])):
        module([spec])


@pytest.fixture(scope="module")
def messages():
    """What log lines mean, as the catalog ships it."""
    from ansible_collections.ironserve.llm.plugins.action.catalog_info import read_catalog

    return _log_messages.collect_messages(read_catalog([])["log_messages"], "vllm")


def warm(spec, messages, timeout_s=60):
    """Warm up a replica whose engine never answers; returns what went wrong and the seconds that took."""
    endpoint = Endpoint(spec["name"], "http://127.0.0.1:{0}".format(spec["publish"]["port"]), "", spec["name"])
    start = time.monotonic()
    found = _warmup.warm_all([endpoint], "m", 1, timeout_s, knowledge=_warmup.Knowledge(messages=messages))[0]
    return found.error, time.monotonic() - start


#: As engines do it: a first process that ends, with a word, when the one that computes is gone.
PARENT = ["/bin/sh", "-c", "/bin/sleep 600 & wait $!; echo 'EngineDeadError: EngineCore encountered an issue.'; exit 1"]


def test_a_killed_engine_process_is_noticed_within_seconds_although_its_container_is_started_again(client, make_spec, module, messages):
    spec = make_spec(command=PARENT)
    module([spec])

    def kill():
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            top = client.top(spec["name"], "-o pid,args")["Processes"]
            for pid, command in top:
                if command.endswith("/bin/sleep 600"):
                    # After the warm-up's first look at it.
                    time.sleep(_warmup.WATCH_S + 1)
                    os.kill(int(pid), signal.SIGKILL)
                    return
            time.sleep(0.1)

    killer = threading.Thread(target=kill)
    killer.start()
    error, seconds = warm(spec, messages)
    killer.join()
    assert seconds < _warmup.WATCH_S + 1 + 10 + 3, "within 10 s of its end"
    assert re.search("container {0} (ended while it warmed up, and was started again|exited with code 1)".format(spec["name"]), error)
    assert "It means: the engine's core process ended" in error and "EngineCore encountered an issue." in error


def test_a_full_disk_is_called_so(client, make_spec, module, messages, tmp_path):
    """The replica's cache on a file system without room for one more file."""
    cache = tmp_path / "cache"
    cache.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k,nr_inodes=3", "tmpfs", str(cache)], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip("no file system can be mounted here: {0}".format(mounted.stderr.strip()))
    try:
        # As long as it would take to load; the container engine has then forgotten earlier ends.
        spec = make_spec(command=["/bin/sh", "-c", "/bin/sleep 1; echo loading; : >/cache/compiled"])
        module([spec])
        error, seconds = warm(spec, messages)
        assert seconds < 15
        assert "It means: a disk is full. Fix: free space where replica_cache_dir" in error
        assert "No space left on device" in error.split("Its last log lines:")[1]
        _docker.remove(client, spec["name"])
    finally:
        subprocess.run(["umount", str(cache)], check=True)


def test_a_card_that_died_is_named_and_what_ran_before_comes_back(client, make_spec, module):
    """Its device node is gone: the new container cannot be made, and the way back is."""
    first = make_spec()
    module([first])
    born = _docker.inspect(client, first["name"])["Id"]
    dead = "/dev/itest-card-that-died"
    changed = dict(first, spec_hash="two", devices=[dead], own_devices=[dead], labels=dict(first["labels"], **{"ironserve.spec": "two"}))
    with pytest.raises(LLMError, match="{0}: .*{1}".format(first["name"], dead)):
        module([changed])
    assert not running(client, first["name"])
    assert actions(module([changed], "reverted")) == ["revert"]
    assert running(client, first["name"]) and _docker.inspect(client, first["name"])["Id"] == born
    assert _docker.inspect(client, first["name"] + "-previous") is None


@contextlib.contextmanager
def killed_at(monkeypatch, client_method):
    """Let the run die just when it would call ``client_method`` of the engine's client."""

    class Killed(RuntimeError):
        pass

    def die(*_args, **_kwargs):
        raise Killed("killed")

    with monkeypatch.context() as patch:
        patch.setattr(_docker.docker.APIClient, client_method, die)
        with pytest.raises(LLMError, match="killed"):
            yield


@pytest.mark.parametrize("method", ["stop", "rename", "create_container_from_config", "start"])
def test_replacement_killed_anywhere_goes_on(client, make_spec, module, monkeypatch, method):
    first = make_spec()
    module([first])
    born = _docker.inspect(client, first["name"])["Id"]
    changed = dict(first, spec_hash="two", labels=dict(first["labels"], **{"ironserve.spec": "two"}))
    with killed_at(monkeypatch, method):
        module([changed])
    module([changed])
    assert running(client, first["name"])
    assert _docker.inspect(client, first["name"])["Config"]["Labels"]["ironserve.spec"] == "two"
    assert _docker.inspect(client, first["name"] + "-previous")["Id"] == born, "the way back is still there"


@pytest.mark.parametrize("method", ["stop", "remove_container", "start", "rename"])
@pytest.mark.parametrize("goes_on", ["reverted", "present"])
def test_revert_killed_anywhere_goes_on(client, make_spec, module, monkeypatch, method, goes_on):
    first = make_spec()
    module([first])
    born = _docker.inspect(client, first["name"])["Id"]
    changed = dict(first, spec_hash="two", labels=dict(first["labels"], **{"ironserve.spec": "two"}))
    module([changed])
    with killed_at(monkeypatch, method):
        module([changed], "reverted")
    module([changed], goes_on)
    assert running(client, first["name"])
    if goes_on == "reverted":
        assert _docker.inspect(client, first["name"])["Id"] == born
        assert _docker.inspect(client, first["name"] + "-previous") is None
    else:
        assert _docker.inspect(client, first["name"])["Config"]["Labels"]["ironserve.spec"] == "two"
        assert _docker.inspect(client, first["name"] + "-previous")["Id"] == born
