# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""From pids to containers by the forms control groups really have, and containers that own a card while no process shows."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.ironserve.llm.plugins.module_utils._accelerators import Card, Holder
from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError, UnknownOutput
from ansible_collections.ironserve.llm.plugins.module_utils._holders import container_ids, container_of, name_holders, owned

A = "3f0c6a4e5b7d8190a2b3c4d5e6f708192a3b4c5d6e7f8091a2b3c4d5e6f70819"
B = "b1946ac92492d2347c6235b4d2611184c6235b4d2611184b1946ac92492d2347"
POD = "d41d8cd98f00b204e9800998ecf8427ed41d8cd98f00b204e9800998ecf8427e"

# Forms of /proc/<pid>/cgroup -> ids, the outermost first.
FORMS = {
    "docker, v1, cgroupfs": (
        "12:pids:/docker/{A}\n11:cpuset:/docker/{A}\n4:devices:/docker/{A}\n1:name=systemd:/docker/{A}\n0::/system.slice/containerd.service\n",
        [A],
    ),
    "docker, v1, systemd": ("9:memory:/system.slice/docker-{A}.scope\n1:name=systemd:/system.slice/docker-{A}.scope\n", [A]),
    "docker, v2, systemd": ("0::/system.slice/docker-{A}.scope\n", [A]),
    "docker, v2, cgroupfs": ("0::/docker/{A}\n", [A]),
    "docker, v2, a group made inside": ("0::/system.slice/docker-{A}.scope/init.scope\n", [A]),
    "docker, v2, seen from another group namespace": ("0::/../../system.slice/docker-{A}.scope\n", [A]),
    "docker, v2, the group was removed": ("0::/system.slice/docker-{A}.scope (deleted)\n", [A]),
    "docker, a parent group of the user's": ("0::/models.slice/models-llm.slice/docker-{A}.scope\n", [A]),
    "docker in docker, v1": ("5:devices:/docker/{A}/docker/{B}\n", [A, B]),
    "docker in docker, v2": ("0::/system.slice/docker-{A}.scope/docker/{B}\n", [A, B]),
    "kubernetes, v1, cgroupfs": ("3:devices:/kubepods/burstable/pod0a1b2c3d-1111-2222-3333-444455556666/{A}\n", [A]),
    "kubernetes, v1, systemd, containerd": (
        "3:devices:/system.slice/containerd.service/kubepods-burstable-pod0a1b2c3d_1111_2222_3333_444455556666.slice:cri-containerd:{A}\n",
        [A],
    ),
    "kubernetes, v2, containerd": (
        "0::/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod0a1b2c3d_1111_2222_3333_444455556666.slice/cri-containerd-{A}.scope\n",
        [A],
    ),
    "kubernetes, v2, cri-o": ("0::/kubepods.slice/kubepods-pod0a1b2c3d_1111_2222_3333_444455556666.slice/crio-{A}.scope/container\n", [A]),
    "cri-o's monitor is beside its container": ("0::/system.slice/crio-conmon-{A}.scope\n", []),
    "podman, v1": ("8:devices:/machine.slice/libpod-{A}.scope\n", [A]),
    "podman, v1, cgroupfs": ("8:devices:/libpod_parent/libpod-{A}\n", [A]),
    "podman, v2": ("0::/machine.slice/libpod-{A}.scope/container\n", [A]),
    "podman, v2, rootless": ("0::/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{A}.scope/container\n", [A]),
    "podman, v2, in a pod": ("0::/machine.slice/machine-libpod_pod_{POD}.slice/libpod-{A}.scope/container\n", [A]),
    "podman's monitor is beside its container": ("0::/machine.slice/libpod-conmon-{A}.scope\n", []),
    "nerdctl, v2": ("0::/system.slice/nerdctl-{A}.scope\n", [A]),
    "containerd's own client, v1": ("7:cpu,cpuacct:/default/{A}\n", [A]),
    "hybrid: one controller is left at the top": ("2:rdma:/\n1:devices:/docker/{A}\n0::/\n", [A]),
    "hybrid: only one line goes deepest": ("6:cpuset:/docker/{A}\n1:devices:/docker/{A}/docker/{B}\n", [A, B]),
    "service of the host": ("0::/system.slice/ssh.service\n", []),
    "login": ("12:pids:/user.slice/user-0.slice/session-3.scope\n1:name=systemd:/user.slice/user-0.slice/session-3.scope\n", []),
    "the engine's daemon itself": ("0::/system.slice/docker.service\n", []),
    "kernel thread": ("0::/\n", []),
    "no groups at all": ("", []),
    "half an id is none": ("0::/docker/{A:.12}\n", []),
    "longer than an id is none": ("0::/docker/{A}ab\n", []),
}


@pytest.mark.parametrize("form", FORMS)
def test_forms_of_control_groups(form):
    text, expected = FORMS[form]
    assert container_ids(text.format(A=A, B=B, POD=POD)) == expected


@pytest.mark.parametrize("text", ["docker", "0:/docker/" + A, "x::/docker/" + A, "0::docker/" + A, "4:devices:/docker/{0}\n\n".format(A)])
def test_line_that_is_none(text):
    with pytest.raises(UnknownOutput, match="/proc/<pid>/cgroup has a line"):
        container_ids(text)


@given(st.text(alphabet="/:-_.0123456789abcdefgdocker\n", max_size=200))
def test_no_text_is_a_crash(text):
    try:
        found = container_ids(text)
    except UnknownOutput:
        return
    assert all(len(identity) == 64 and identity in text for identity in found)


def process(proc, pid, text):
    (proc / str(pid)).mkdir(parents=True)
    (proc / str(pid) / "cgroup").write_text(text)


def test_container_of(tmp_path):
    process(tmp_path, 7, "0::/system.slice/docker-{0}.scope/docker/{1}\n".format(A, B))
    process(tmp_path, 8, "0::/init.scope\n")
    assert container_of(7, str(tmp_path)) == A
    assert container_of(8, str(tmp_path)) == ""
    assert container_of(9, str(tmp_path)) == "", "it has ended"
    (tmp_path / "10" / "cgroup").mkdir(parents=True)
    with pytest.raises(LLMError, match="10/cgroup: cannot be read: Is a directory"):
        container_of(10, str(tmp_path))


def test_container_of_this_very_process():
    with open("/proc/self/cgroup", encoding="utf-8") as handle:
        text = handle.read()
    assert container_of(os.getpid()) == (container_ids(text) or [""])[0]


def card(index, devices=None, identity=None, **more):
    return Card(identity or "0000:0{0}:00.0".format(index), index, "X", "X", "x", 65520, devices=devices or {}, **more)


def hygon(count=3):
    return [
        card(index, {"card": "/dev/dri/card{0}".format(index + 1), "render": "/dev/dri/renderD{0}".format(index + 128)})
        for index in range(count)
    ]


def nvidia(count=3):
    # The minors count the other way round.
    return [
        card(index, {"nvidia": "/dev/nvidia{0}".format(count - 1 - index)}, logical_id=index, physical_id=count - 1 - index)
        for index in range(count)
    ]


def inspect(name="replica", identity=A, devices=(), state=None, env=(), **host):
    mapped = [{"PathOnHost": path, "PathInContainer": path, "CgroupPermissions": "rwm"} for path in devices]
    return {
        "Id": identity,
        "Name": "/" + name,
        "State": {"Running": True, "Paused": False, "Restarting": False, "Pid": 4242} if state is None else state,
        "Config": {"Env": list(env)},
        "HostConfig": dict({"Devices": mapped or None, "DeviceRequests": None, "Privileged": False, "Runtime": "runc"}, **host),
    }


@pytest.mark.parametrize(
    ("devices", "expected"),
    [
        ((), []),
        (("/dev/kfd", "/dev/mkfd"), []),
        (("/dev/kfd", "/dev/dri/card2", "/dev/dri/renderD129"), [1]),
        (("/dev/dri/renderD130",), [2]),
        (("/dev/dri",), [0, 1, 2]),
        (("/dev/dri/",), [0, 1, 2]),
        (("/dev",), [0, 1, 2]),
        (("/dev/dri/card",), []),
        (("/dev/dri/card22",), []),
        (("/dev/dri/by-path/pci-0000:01:00.0-render",), [1]),
        (("",), []),
    ],
)
def test_mapped_nodes(devices, expected):
    cards = hygon()
    assert owned(cards, inspect(devices=devices)) == [cards[index].id for index in expected]


def test_node_that_mig_devices_share_tells_none_of_them():
    cards = [
        card(
            100, {"nvidia": "/dev/nvidia0", "mig_gi": "/dev/nvidia-caps/nvidia-cap21", "mig_ci": "/dev/nvidia-caps/nvidia-cap22"}, "MIG-a"
        ),
        card(
            101, {"nvidia": "/dev/nvidia0", "mig_gi": "/dev/nvidia-caps/nvidia-cap30", "mig_ci": "/dev/nvidia-caps/nvidia-cap31"}, "MIG-b"
        ),
    ]
    assert owned(cards, inspect(devices=["/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap30", "/dev/nvidia-caps/nvidia-cap31"])) == ["MIG-b"]
    assert owned(cards, inspect(devices=["/dev/nvidia-caps"])) == ["MIG-a", "MIG-b"]
    bare = [card(100, {"nvidia": "/dev/nvidia0"}, "MIG-a"), card(101, {"nvidia": "/dev/nvidia0"}, "MIG-b")]
    assert owned(bare, inspect(devices=["/dev/nvidia0"])) == ["MIG-a", "MIG-b"], "what cannot be told apart is not free"


def request(driver="", ids=None, count=0):
    return [{"Driver": driver, "Count": count, "DeviceIDs": ids, "Capabilities": [["gpu"]], "Options": {}}]


@pytest.mark.parametrize(
    ("requests", "expected"),
    [
        ([], []),
        (None, []),
        (request(ids=["1"]), [1]),
        (request("nvidia", ["0", "2"]), [0, 2]),
        (request("nvidia", ["0000:02:00.0"]), [2]),
        (request("nvidia", ["GPU-b"]), [1]),
        (request("nvidia", ["GPU-nobody-knows"]), [0, 1, 2]),
        (request("nvidia", ["7"]), [0, 1, 2]),
        (request(count=-1), [0, 1, 2]),
        (request(count=1), [0, 1, 2]),
        (request("cdi", ["nvidia.com/gpu=1"]), [1]),
        (request("cdi", ["nvidia.com/gpu=all"]), [0, 1, 2]),
    ],
)
def test_device_requests(requests, expected):
    cards = nvidia()
    aliases = {"GPU-b": cards[1].id}
    assert owned(cards, inspect(DeviceRequests=requests), aliases) == [cards[index].id for index in expected]


@pytest.mark.parametrize(
    ("runtime", "env", "expected"),
    [
        ("runc", "NVIDIA_VISIBLE_DEVICES=all", []),
        ("nvidia", "NVIDIA_VISIBLE_DEVICES=all", [0, 1, 2]),
        ("nvidia", "NVIDIA_VISIBLE_DEVICES=2,1", [1, 2]),
        ("nvidia", "NVIDIA_VISIBLE_DEVICES=void", []),
        ("nvidia", "NVIDIA_VISIBLE_DEVICES=none", []),
        ("nvidia", "NVIDIA_VISIBLE_DEVICES=", []),
        ("nvidia", "CUDA_VISIBLE_DEVICES=1", []),
        ("ascend", "ASCEND_VISIBLE_DEVICES=0-1", [1, 2]),
        ("hcu", "HCU_VISIBLE_DEVICES=0", [0]),
    ],
)
def test_runtime_that_gives_cards_by_a_variable(runtime, env, expected):
    # Physical ids count the other way round than indexes here.
    cards = nvidia()
    assert owned(cards, inspect(Runtime=runtime, env=["PATH=/bin", env])) == [cards[index].id for index in expected]


def test_privileged_container_owns_every_card():
    cards = hygon()
    assert owned(cards, inspect(Privileged=True)) == [each.id for each in cards]


def test_list_entry_does_not_say_what_it_owns():
    entry = {"Id": A, "Names": ["/replica"], "State": "running", "HostConfig": {"NetworkMode": "bridge"}}
    assert owned(hygon(), entry) == []


def test_names_of_processes(tmp_path):
    process(tmp_path, 11, "0::/system.slice/docker-{0}.scope\n".format(A))
    process(tmp_path, 12, "0::/machine.slice/libpod-{0}.scope/container\n".format(B))
    process(tmp_path, 13, "0::/user.slice\n")
    cards = hygon(2)
    cards[0].holders = [Holder(11, name="VLLM::Worker", memory_mib=9), Holder(12), Holder(13), Holder(14), Holder(15, "known"), Holder(0)]
    containers = [
        {"Id": A, "Names": ["/other/alias", "/replica"], "State": "running"},
        {"Id": POD, "Names": ["/idle"], "State": "exited"},
    ]
    name_holders(cards, containers, proc=str(tmp_path))
    assert cards[0].holders == [
        Holder(11, "replica", "VLLM::Worker", 9),
        Holder(12, B[:12]),
        Holder(13),
        Holder(14),
        Holder(15, "known"),
        Holder(0),
    ]
    assert cards[1].holders == []


def test_container_that_owns_a_card_without_a_process_is_a_holder_once(tmp_path):
    process(tmp_path, 11, "0::/system.slice/docker-{0}.scope\n".format(A))
    cards = hygon(2)
    cards[0].holders = [Holder(11)]
    containers = [
        inspect("replica", A, ["/dev/kfd", "/dev/dri/card1", "/dev/dri/renderD128"]),
        inspect("foreign", B, ["/dev/dri"]),
        inspect("web", POD),
    ]
    name_holders(cards, containers, proc=str(tmp_path))
    assert [[(holder.pid, holder.container) for holder in each.holders] for each in cards] == [
        [(11, "replica"), (0, "foreign")],
        [(0, "foreign")],
    ]
    before = [list(each.holders) for each in cards]
    name_holders(cards, containers, proc=str(tmp_path))
    assert [each.holders for each in cards] == before, "once more changes nothing"


@pytest.mark.parametrize(
    ("state", "holds"),
    [
        ({"Running": True, "Paused": True}, True),
        ({"Running": False, "Restarting": True}, True),
        ({"Running": False, "Paused": False, "Restarting": False, "Status": "exited"}, False),
        ({"Running": False, "Status": "created"}, False),
    ],
)
def test_only_what_lives_holds_a_card(state, holds):
    cards = hygon(1)
    name_holders(cards, [inspect(devices=["/dev/dri/card1"], state=state)])
    assert [holder.container for holder in cards[0].holders] == (["replica"] if holds else [])


def test_container_without_a_name_has_its_short_id():
    cards = hygon(1)
    name_holders(cards, [dict(inspect(Privileged=True), Name="")])
    assert cards[0].holders == [Holder(0, A[:12])]
