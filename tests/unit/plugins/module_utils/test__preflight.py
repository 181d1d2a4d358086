# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Each thing that is known to go wrong has a check that catches it, and a host on which everything is right has none that complains."""

from __future__ import annotations

import copy

import pytest

from ansible_collections.ironserve.llm.plugins.module_utils import _preflight
from ansible_collections.ironserve.llm.plugins.module_utils._catalog import resolve
from ansible_collections.ironserve.llm.plugins.module_utils._checks import Check
from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError

PLATFORM = {
    "name": "acme",
    "probe": "acme",
    "card": {"memory_mib": 1000, "memory_share": 0.9, "idle_mib": 10},
    "container": {"shm_mib": 16384, "environment": {"A": 1}},
}


def choice(**changes):
    return _preflight.Choice(**dict({"platform": copy.deepcopy(PLATFORM), "engine": "vllm", "model": "m", "weights": "w"}, **changes))


def on(**container):
    platform = copy.deepcopy(PLATFORM)
    platform["container"].update(container)
    return platform


def card(index=0, **changes):
    values = {
        "id": "0000:0{0}:00.0".format(index + 1),
        "index": index,
        "name": "A1",
        "name_raw": "Acme A1",
        "architecture": "a1",
        "memory_total_mib": 1000,
        "memory_used_mib": 2,
        "holders": [],
        "numa_node": 0,
        "link": None,
        "link_detail": "",
    }
    return dict(values, **changes)


def by_name(checks):
    found = {}
    for check in checks:
        found.setdefault(check.name, []).append(check)
    return found


def only(checks):
    (check,) = checks
    return check


# ---- the sum


@pytest.mark.parametrize(
    ("statuses", "code"),
    [
        ([], 2),
        (["pass"], 0),
        (["pass", "warn", "not_applicable"], 0),
        (["pass", "unknown"], 2),
        (["unknown", "fail"], 1),
        (["fail", "pass"], 1),
        (["something else"], 2),
    ],
)
def test_status_of_a_host(statuses, code):
    assert _preflight.status([Check("x", item, "") for item in statuses]) == code


def test_what_does_not_apply_shares_one_line():
    checks = [
        Check("a", "not_applicable", "x"),
        Check("b", "fail", "y", "z"),
        Check("c", "not_applicable", "x"),
        Check("a", "not_applicable", "q"),
    ]
    assert _preflight.lines(checks) == ["FAIL     b                        y. Fix: z", "N/A      a, c"]


# ---- the choice


def test_wishes_are_laid_over_the_recipe(catalog):
    chosen = resolve(catalog, "cpu", "smollm2-135m", engine="vllm")
    found = _preflight.choose(
        chosen, settings={"tensor_parallel_size": 2, "max_num_seqs": 9}, environment={"OMP_NUM_THREADS": 4, "X": None}
    )
    assert (found.engine, found.model, found.weights, found.replica_cards) == ("vllm", "smollm2-135m", "hf_bf16", 2)
    assert (found.settings["max_num_seqs"], found.settings["max_model_len"]) == (9, 4096)
    assert found.environment["OMP_NUM_THREADS"] == "4", "the user's, as text"
    assert found.environment["VLLM_CACHE_ROOT"] == "/cache/vllm", "the engine's"
    assert "X" not in found.environment
    assert found.image["build"] == "vllm_cpu"


@pytest.mark.parametrize(
    ("image", "version", "runtime"),
    [
        ({}, "0.18.1", "26.04"),
        ({"reference": "mine/vllm@sha256:0"}, "0.18.1", "26.04"),
        ({"reference": "mine/vllm:0.21.0-dtk26.10-py3"}, "0.21.0", "26.10"),
        ({"reference": "mine/vllm:0.21.0", "version": "0.22.0", "runtime": "DTK 27.04"}, "0.22.0", "DTK 27.04"),
    ],
)
def test_versions_of_the_image_that_is_used(catalog, image, version, runtime):
    found = _preflight.choose(resolve(catalog, "hygon_k100ai", "qwen3.6-35b-a3b"), image=image)
    assert (found.image["version"], found.image["runtime"]) == (version, runtime)
    assert not image or found.image["reference"] == image["reference"]


def test_enhancements_that_are_on(catalog):
    chosen = resolve(catalog, "hygon_k100ai", "qwen3.6-35b-a3b")
    found = _preflight.choose(chosen)
    assert "prefix_caching" in found.enhancements and "mtp" not in found.enhancements
    assert found.settings["mamba_cache_mode"] == "align"
    other = _preflight.choose(chosen, enhancements={"prefix_caching": False, "mtp": True})
    assert "mtp" in other.enhancements and "prefix_caching" not in other.enhancements


def test_a_platform_alone_is_enough(catalog):
    found = _preflight.choose(resolve(catalog, "hygon_k100ai", ""))
    assert (found.engine, found.model, found.image, found.enhancements, found.replica_cards) == ("", "", {}, [], 1)
    assert found.platform["name"] == "hygon_k100ai"


@pytest.mark.parametrize("size", [0, -1, "two", None])
def test_a_size_that_is_none(catalog, size):
    with pytest.raises(LLMError, match="tensor_parallel_size"):
        _preflight.choose(resolve(catalog, "cpu", "smollm2-135m"), settings={"tensor_parallel_size": size})


def test_a_wish_the_plan_refuses(catalog):
    with pytest.raises(LLMError, match="forbidden together"):
        _preflight.choose(resolve(catalog, "hygon_k100ai", "qwen3.6-35b-a3b"), enhancements={"mtp": True, "prefix_caching": True})


# ---- cards


@pytest.mark.parametrize(
    ("name", "raw", "products", "status"),
    [
        ("K100_AI", "K100_AI", ["K100-AI"], "pass"),
        ("K100_AI", "k100 ai", ["K100_AI"], "pass"),
        ("H100 80GB HBM3", "NVIDIA H100 80GB HBM3", ["H100 80GB HBM3"], "pass"),
        ("H100 80GB HBM3", "NVIDIA H100 80GB HBM3", ["NVIDIA H100 *"], "pass"),
        ("910B2", "910B2", ["910B2", "910B3"], "pass"),
        ("910B4", "910B4", ["910B2", "910B3"], "fail"),
        ("Z200SM", "Z200SM 80", ["K100_AI"], "fail"),
        ("K100", "K100", ["K100_AI"], "fail"),
    ],
)
def test_expected_product(name, raw, products, status):
    checks = by_name(_preflight.product_checks([card(0, name=name, name_raw=raw)], products, []))
    assert only(checks["expected_product"]).status == status
    if status == "fail":
        assert checks["expected_product"][0].detail == "not one of {0}: {1}: 0000:01:00.0".format(", ".join(products), raw)


def test_only_the_odd_card_is_named():
    cards = [card(0), card(1, name="B2", name_raw="B2"), card(2, name="C3", name_raw=""), card(3, name="B2", name_raw="B2")]
    check = by_name(_preflight.product_checks(cards, ["Acme A1"], []))["expected_product"][0]
    assert check.detail == "not one of Acme A1: B2: 0000:02:00.0, 0000:04:00.0; C3: 0000:03:00.0"


def test_nothing_is_expected_where_the_platform_names_no_product():
    assert only(_preflight.product_checks([card()], [], [])).status == "not_applicable"


@pytest.mark.parametrize(("wanted", "status"), [(["a1"], "pass"), (["A*"], "pass"), (["b*"], "fail")])
def test_expected_architecture(wanted, status):
    assert by_name(_preflight.product_checks([card()], [], wanted))["expected_architecture"][0].status == status


def test_cards_of_two_kinds_are_told():
    checks = by_name(_preflight.product_checks([card(0), card(1, memory_total_mib=2000)], ["A1"], []))
    assert checks["equal_cards"][0].status == "warn"
    assert "A1 1000, A1 2000" in checks["equal_cards"][0].detail


OWN = ["ironserve-c0"]


@pytest.mark.parametrize(
    ("holders", "used", "status", "words"),
    [
        ([], 2, "pass", "nobody holds a card"),
        ([{"pid": 9, "container": "ironserve-c0"}], 900, "pass", "replicas only: ironserve-c0"),
        ([{"pid": 9, "container": "jupyter"}], 900, "fail", "0000:01:00.0 is held by container jupyter"),
        ([{"pid": 0, "container": "privileged-one"}], 2, "fail", "container privileged-one"),
        ([{"pid": 77, "container": "", "name": "python3"}], 900, "fail", "process 77 (python3)"),
        ([{"pid": 77, "container": "", "name": ""}], 900, "fail", "process 77"),
        (
            [{"pid": 7, "container": "ironserve-c0"}, {"pid": 8, "container": "x"}, {"pid": 9, "container": ""}],
            9,
            "fail",
            "by container x, process 9",
        ),
        ([], 900, "fail", "0000:01:00.0 has 900 MiB in use and nobody is seen on it"),
        ([], 10, "pass", "nobody holds a card"),
        ([], None, "pass", "nobody holds a card"),
    ],
)
def test_who_holds_a_card(holders, used, status, words):
    check = only(_preflight.holder_checks([card(0, holders=holders, memory_used_mib=used), card(1)], OWN, 10))
    assert (check.status, check.name) == (status, "card_holders")
    assert words in check.detail


def test_memory_in_use_is_not_judged_where_nobody_knows_what_idle_is():
    assert only(_preflight.holder_checks([card(0, memory_used_mib=900)], OWN, None)).status == "pass"


def test_one_card_per_replica_needs_no_link():
    assert only(_preflight.link_checks([card(0, link="down")], 1)).status == "not_applicable"


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        (["up", "up"], ["pass"]),
        (["up", "down"], ["fail"]),
        (["unknown", "down"], ["fail", "unknown"]),
        (["up", "sleeping"], ["unknown"]),
        (["up", None], ["fail"]),
        ([None, None], ["not_applicable"]),
    ],
)
def test_links_of_a_replica_of_two(states, expected):
    cards = [card(number, link=state, link_detail="module absent" if state == "down" else "") for number, state in enumerate(states)]
    checks = by_name(_preflight.link_checks(cards, 2))
    assert [check.status for check in checks["card_links"]] == expected
    if "down" in states:
        assert "0000:02:00.0 (module absent)" in checks["card_links"][0].detail


def test_links_the_probe_has_judged_are_not_judged_twice():
    assert [check.name for check in _preflight.link_checks([card(0, link="down"), card(1)], 2, told=True)] == ["card_topology"]


@pytest.mark.parametrize(
    ("nodes", "status", "words"),
    [
        ([0, 0, 1, 1], "pass", "each group of 2 cards"),
        ([0, 1, 1, 0], "warn", "group 0 (0000:01:00.0, 0000:02:00.0) spans NUMA nodes 0, 1; group 1"),
        ([0, 0, None, 1], "warn", "the NUMA node of 0000:03:00.0 is not known"),
    ],
)
def test_groups_of_cards_and_numa_nodes(nodes, status, words):
    checks = by_name(_preflight.link_checks([card(number, numa_node=node) for number, node in enumerate(nodes)], 2))
    assert checks["card_topology"][0].status == status
    assert words in checks["card_topology"][0].detail


@pytest.mark.parametrize(
    ("live", "told", "expected"), [(True, [], ["pass"]), (False, [], ["fail"]), (None, [], []), (False, [{"name": "driver_live"}], [])]
)
def test_driver(live, told, expected):
    assert [check.status for check in _preflight.driver_check({"driver_live": live, "checks": told})] == expected


@pytest.mark.parametrize(
    ("found", "expected", "statuses", "words"),
    [
        ({"driver_version": "6.3.31-V1.5.0a", "tool_version": "1.7"}, {}, ["pass"], "driver 6.3.31-V1.5.0a, tool 1.7"),
        ({}, {}, ["not_applicable"], ""),
        ({"driver_version": "6.3.31"}, {"driver": ">=6.3"}, ["pass"], ""),
        ({"driver_version": "6.2.26"}, {"driver": ">=6.3"}, ["fail", "pass"], "driver is 6.2.26, must be >=6.3"),
        ({"driver_version": "odd"}, {"driver": ">=6.3"}, ["unknown", "pass"], "'odd' is no version"),
        ({}, {"runtime": "26.04"}, ["unknown"], "runtime must be 26.04: it is not known"),
        ({"firmware_version": "7.1"}, {"firmware": "new"}, ["unknown", "pass"], "'new'"),
    ],
)
def test_versions(found, expected, statuses, words):
    checks = _preflight.version_checks(found, expected)
    assert [check.status for check in checks] == statuses
    assert words in checks[0].detail


def test_a_probe_that_told_the_versions_is_not_repeated():
    found = {"driver_version": "610", "checks": [{"name": "versions"}]}
    assert _preflight.version_checks(found, {}) == []
    assert [check.status for check in _preflight.version_checks(found, {"driver": "<600"})] == ["fail"]


# ---- settings


@pytest.mark.parametrize(
    ("value", "bad"),
    [
        ("expandable_segments:True,max_split_size_mb:512", True),
        ("max_split_size_mb:512, expandable_segments:true", True),
        ("expandable_segments:True,garbage_collection_threshold:0.8", True),
        ("expandable_segments:True", False),
        ("max_split_size_mb:512", False),
        ("expandable_segments:False,max_split_size_mb:512", False),
        ("", False),
    ],
)
@pytest.mark.parametrize("name", ["PYTORCH_NPU_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"])
def test_segments_that_expand_and_a_split_size(name, value, bad):
    check = only(_preflight.environment_checks(choice(environment={name: value})))
    assert check.status == ("fail" if bad else "pass")
    assert not bad or name in check.detail


@pytest.mark.parametrize(
    ("environment", "status", "words"),
    [
        ({"VLLM_SERVER_DEV_MODE": "1"}, "fail", "VLLM_SERVER_DEV_MODE is set: it opens remote procedure calls"),
        ({"VLLM_SERVER_DEV_MODE": "0"}, "fail", "VLLM_SERVER_DEV_MODE"),
        ({"VLLM_PORT": "8000"}, "fail", "VLLM_PORT"),
        ({"VLLM_API_KEY": "k"}, "fail", "VLLM_API_KEY is set: the key belongs"),
        ({"HIP_VISIBLE_DEVICES": "3"}, "fail", "HIP_VISIBLE_DEVICES=3: inside its container"),
        ({"CUDA_VISIBLE_DEVICES": "0,1"}, "fail", "CUDA_VISIBLE_DEVICES"),
        ({"ASCEND_RT_VISIBLE_DEVICES": "4,5"}, "fail", "ASCEND_RT_VISIBLE_DEVICES"),
        ({"HIP_VISIBLE_DEVICES": "0"}, "pass", "1 variables"),
        ({"SOC_VERSION": "Ascend910B2"}, "fail", "SOC_VERSION=Ascend910B2"),
        ({"SOC_VERSION": "ascend910b2"}, "pass", ""),
        ({"HCCL_IB_HCA": "mlx5_0"}, "warn", "HCCL_IB_HCA=mlx5_0"),
        ({"VLLM_USE_MODELSCOPE": "1"}, "warn", "only the word true"),
        ({"VLLM_USE_MODELSCOPE": "True"}, "pass", ""),
        ({}, "pass", "0 variables, none refused"),
    ],
)
def test_variables(environment, status, words):
    check = only(_preflight.environment_checks(choice(environment=environment)))
    assert (check.name, check.status) == ("environment", status)
    assert words in check.detail
    assert "=k" not in check.detail, "a key is never shown"


def test_the_way_to_spell_a_chip_is_given():
    assert only(_preflight.environment_checks(choice(environment={"SOC_VERSION": "Ascend910B2"}))).fix == "SOC_VERSION=ascend910b2"


def test_a_replica_of_two_cards_may_see_both():
    assert only(_preflight.environment_checks(choice(environment={"HIP_VISIBLE_DEVICES": "0, 1"}, replica_cards=2))).status == "pass"


def test_every_bad_variable_has_its_line():
    checks = _preflight.environment_checks(choice(environment={"VLLM_PORT": "1", "SOC_VERSION": "X", "HCCL_IB_HCA": "y"}))
    assert [check.status for check in checks] == ["fail", "fail", "warn"]


def test_threshold_stops_the_engine():
    check = only(_preflight.settings_checks(choice(settings={"speculative": {"method": "mtp", "threshold": 0.8}})))
    assert (check.status, "threshold" in check.detail) == ("fail", True)
    assert only(_preflight.settings_checks(choice(settings={"speculative": {"method": "mtp"}}))).status == "pass"
    assert only(_preflight.settings_checks(choice(engine=""))).status == "not_applicable"


@pytest.mark.parametrize(
    ("container", "status", "words"),
    [
        ({}, "pass", ""),
        ({"privileged": True}, "fail", "privileged gives every replica every card"),
        ({"privileged": False}, "pass", ""),
        ({"security_opt": ["seccomp=unconfined"]}, "warn", "seccomp=unconfined"),
        ({"cap_add": ["SYS_ADMIN"]}, "warn", "cap_add SYS_ADMIN"),
        ({"cap_add": ["CAP_SYS_ADMIN"]}, "warn", "cap_add CAP_SYS_ADMIN"),
        ({"cap_add": ["SYS_PTRACE"]}, "pass", ""),
        ({"ipc": "host"}, "warn", "ipc host"),
        ({"shm_mib": 64}, "fail", "64 MiB of shared memory"),
        ({"shm_mib": 1024}, "pass", ""),
    ],
)
def test_rights_of_the_container(container, status, words):
    check = only(_preflight.container_checks(choice(platform=on(**container))))
    assert check.status == status
    assert words in check.detail


def test_cores_that_play_cards_need_little_shared_memory():
    platform = dict(on(shm_mib=64), probe="cpu")
    assert only(_preflight.container_checks(choice(platform=platform))).status == "pass"


FOUND = {"cards": [card()], "driver_version": "6.3.31", "firmware_version": None}


def test_what_the_table_is_asked():
    asked = _preflight.situation(
        choice(image={"reference": "r/vllm:0.18.1-dtk26.04"}, settings={"tensor_parallel_size": 2}, enhancements=["mtp"]), FOUND
    )
    assert asked["driver"] == "6.3.31" and asked["firmware"] is None
    assert (asked["architecture"], asked["product"]) == (["a1"], ["A1"])
    assert (asked["engine_version"], asked["runtime"], asked["tensor_parallel_size"]) == ("0.18.1", "26.04", 2)
    assert (asked["model"], asked["weights"], asked["enhancement"]) == ("m", "w", ["mtp"])


@pytest.mark.parametrize(
    ("image", "named"),
    [
        ({"reference": "r/x:1", "source": "registry"}, "r/x:1"),
        ({"source": "build", "build": "llama_cpp"}, "llama_cpp"),
        ({"source": "archive", "archive": "/srv/x.tar"}, "/srv/x.tar"),
        ({}, None),
    ],
)
def test_how_the_table_knows_an_image(image, named):
    assert _preflight.situation(choice(image=image), FOUND)["image"] == named


def test_what_was_not_asked_for_is_not_in_the_question():
    asked = _preflight.situation(choice(engine="", model=""), {})
    assert sorted(asked) == ["environment", "platform", "settings"]


def test_a_probe_that_failed_makes_no_row_undecided():
    row = {"when": {"driver": ">=7"}, "verdict": "refuse", "reason": "r", "source": "s", "date": "2026-01-01", "grade": "vendor_verified"}
    table = {"rows": {"t/r": row}, "vulnerabilities": {}}
    here = choice(engine="", model="")
    assert by_name(_preflight.wish_checks(here, {}, table))["compatibility"][0].status == "not_applicable"
    unknown = dict(FOUND, driver_version=None)
    assert by_name(_preflight.wish_checks(here, unknown, table))["compatibility"][0].status == "unknown"


def test_wishes_are_judged_by_table_and_vulnerabilities():
    hole = {
        "engine": "vllm",
        "severity": "9.8",
        "verdict": "refuse",
        "reason": "r",
        "fix": "f",
        "source": "s",
        "date": "d",
        "grade": "g",
        "below": "0.19",
    }
    here = choice(image={"version": "0.18.1"})
    checks = by_name(_preflight.wish_checks(here, FOUND, {"rows": {}, "vulnerabilities": {"CVE-1": hole}}))
    assert checks["vulnerabilities"][0].status == "fail"
    assert checks["compatibility"][0].status == "warn"
    checks = by_name(_preflight.wish_checks(choice(), FOUND, {"rows": {}, "vulnerabilities": {"CVE-1": hole}}))
    assert checks["vulnerabilities"][0].status == "unknown", "an image of unknown version"


# ---- host


def host(**changes):
    kernel = {
        "release": "5.10.0",
        "arguments": ["quiet", "iommu=pt"],
        "modules": ["hycu", "vfio_pci"],
        "sysctl": {"vm.swappiness": "0", "kernel.numa_balancing": "0"},
        "governors": {"performance": 64},
        "hugepages": {"reserved_mib": 0, "transparent": "madvise"},
        "memory_total_mib": 1000000,
        "numa_nodes": 2,
        "limits": {"nofile": [1024, 1048576], "memlock": [-1, -1]},
        "limits_of": "the container engine",
        "iommu": {"active": True, "groups": {"identity": 20}},
        "acs": {"bridges": ["0000:00:01.0"], "redirecting": [], "unreadable": []},
    }
    engine = {
        "installed": True,
        "running": True,
        "reachable": True,
        "version": "24.0.7",
        "default_runtime": "runc",
        "configured_runtime": "",
        "configuration_error": "",
        "runtimes": ["runc"],
        "root_dir": "/var/lib/docker",
        "error": "",
    }
    facts = {
        "kernel": kernel,
        "disks": [{"path": "/w", "parent": "/", "device": 1, "free_mib": 1000, "total_mib": 5000, "present_mib": 0}],
        "ports": [{"port": 8001, "free": True, "own": False}],
        "firewalls": [],
        "engine": engine,
        "image": {"present": True, "digests": [], "environment": {}},
        "toolkits": {},
        "clock_skew_s": 0.4,
    }
    for key, value in changes.items():
        if key in kernel:
            kernel[key] = value
        elif key in engine and key not in facts:
            engine[key] = value
        else:
            facts[key] = value
    return facts


WANTED = {
    "governor": "performance",
    "swappiness": 0,
    "numa_balancing": 0,
    "kernel_arguments": ["iommu=pt"],
    "kernel_modules": ["hycu"],
    "kernel_modules_refused": ["amdgpu"],
}


def judge(facts, here=None, wanted=None, space=None, address="10.0.0.1"):
    return by_name(
        _preflight.host_checks(facts, here or choice(replica_cards=2), WANTED if wanted is None else wanted, space or {}, address)
    )


def test_a_host_on_which_everything_is_right():
    checks = judge(host())
    assert {name: [item.status for item in items] for name, items in checks.items() if {item.status for item in items} - {"pass"}} == {
        "container_toolkit": ["not_applicable"]
    }
    assert sorted(checks) == sorted(
        ["kernel", "kernel_arguments", "kernel_modules", "governor", "swappiness", "numa_balancing", "hugepages", "limits", "iommu", "acs"]
        + ["container_engine", "default_runtime", "container_toolkit", "space", "ports", "firewall", "clock"]
    )


@pytest.mark.parametrize(
    ("changes", "name", "status", "words"),
    [
        ({"release": None}, "kernel", "unknown", ""),
        ({"arguments": ["quiet"]}, "kernel_arguments", "warn", "iommu=pt is not on the kernel's command line"),
        ({"arguments": None}, "kernel_arguments", "unknown", "/proc/cmdline"),
        ({"modules": ["vfio_pci"]}, "kernel_modules", "fail", "hycu is not loaded"),
        ({"modules": ["hycu", "amdgpu"]}, "kernel_modules", "fail", "amdgpu is loaded"),
        ({"modules": None}, "kernel_modules", "unknown", "/proc/modules"),
        ({"governors": {"performance": 60, "powersave": 4}}, "governor", "warn", "powersave on 4 processors, performance wanted"),
        ({"governors": {}}, "governor", "warn", "no frequency governor"),
        ({"sysctl": {"vm.swappiness": "60", "kernel.numa_balancing": "0"}}, "swappiness", "warn", "vm.swappiness = 60, 0 wanted"),
        ({"sysctl": {"vm.swappiness": "0", "kernel.numa_balancing": "1"}}, "numa_balancing", "warn", "kernel.numa_balancing = 1"),
        ({"sysctl": {"vm.swappiness": None, "kernel.numa_balancing": "0"}}, "swappiness", "unknown", ""),
        ({"sysctl": {"vm.swappiness": "0", "kernel.numa_balancing": None}}, "numa_balancing", "unknown", ""),
        ({"hugepages": {"reserved_mib": 500000, "transparent": "never"}}, "hugepages", "warn", "500000 MiB reserved"),
        ({"hugepages": {"reserved_mib": 100000, "transparent": ""}}, "hugepages", "pass", "transparent: none"),
        ({"limits": {"nofile": [1024, 4096], "memlock": [-1, -1]}}, "limits", "warn", "may open 4096 files"),
        ({"limits": {"nofile": [1024, -1], "memlock": [-1, 65536]}}, "limits", "warn", "may lock 65536 bytes"),
        ({"limits": None}, "limits", "unknown", ""),
        ({"limits": {"nofile": [1024, 65536], "memlock": [-1, -1]}}, "limits", "pass", ""),
        ({"iommu": {"active": True, "groups": {"DMA": 3, "identity": 2}}}, "iommu", "warn", "3 of 5 groups translate"),
        ({"iommu": {"active": False, "groups": {}}}, "iommu", "pass", "off"),
        ({"acs": {"bridges": ["b"], "redirecting": ["0000:00:01.0"], "unreadable": []}}, "acs", "warn", "0000:00:01.0"),
        ({"acs": {"bridges": ["b"], "redirecting": [], "unreadable": ["0000:00:01.0"]}}, "acs", "unknown", "cannot be read"),
        ({"version": "19.03.1"}, "container_engine", "fail", "too old"),
        ({"version": "moby"}, "container_engine", "unknown", "'moby'"),
        ({"reachable": False, "error": "refused"}, "container_engine", "fail", "does not answer: refused"),
        ({"reachable": False, "running": False}, "container_engine", "pass", "not running"),
        ({"reachable": False, "running": False, "installed": False}, "container_engine", "warn", "none yet"),
        ({"configuration_error": "no JSON"}, "engine_configuration", "fail", "no JSON"),
        ({"configured_runtime": "nvidia"}, "engine_configuration", "warn", "the next start changes that"),
        ({"ports": None}, "ports", "unknown", ""),
        ({"ports": []}, "ports", "not_applicable", ""),
        ({"firewalls": ["ufw"]}, "firewall", "warn", "ports 8001 must be open"),
        ({"clock_skew_s": -31.0}, "clock", "warn", "-31 s"),
        ({"clock_skew_s": 301.0}, "clock", "fail", "+301 s"),
        ({"clock_skew_s": None}, "clock", "not_applicable", ""),
        ({"toolkits": None}, "container_toolkit", "not_applicable", ""),
        ({"toolkits": {"hcu-container-toolkit": "1.3.1"}}, "container_toolkit", "pass", "hcu-container-toolkit 1.3.1"),
    ],
)
def test_what_a_host_can_have_wrong(changes, name, status, words):
    checks = judge(host(**changes))
    assert checks[name][0].status == status
    assert words in checks[name][0].detail
    assert status not in ("fail", "unknown") or checks[name][0].fix
    others = {key: [item.status for item in items] for key, items in checks.items() if key != name}
    usual = {key: [item.status for item in items] for key, items in judge(host()).items() if key != name}
    if name not in ("container_engine", "engine_configuration"):
        assert others == usual, "one fault, one complaint"


def test_a_kernel_without_numa_has_nothing_to_balance():
    assert judge(host(sysctl={"vm.swappiness": "0", "kernel.numa_balancing": None}, numa_nodes=1))["numa_balancing"][0].status == "pass"


def test_what_the_platform_does_not_ask_for_does_not_apply():
    checks = judge(host(governors={"powersave": 8}, modules=None), wanted={})
    for name in ("kernel_arguments", "kernel_modules", "governor", "swappiness", "numa_balancing"):
        assert checks[name][0].status == "not_applicable"


def test_one_card_per_replica_needs_no_way_between_cards():
    checks = judge(
        host(acs={"bridges": [], "redirecting": ["x"], "unreadable": []}, limits={"nofile": [1, -1], "memlock": [0, 0]}), choice()
    )
    assert {name: checks[name][0].status for name in ("iommu", "acs", "limits")} == {
        "iommu": "not_applicable",
        "acs": "not_applicable",
        "limits": "pass",
    }


def test_taken_port_names_who_has_it():
    taken = {"port": 8002, "free": False, "own": False, "address": "0.0.0.0", "pid": 7, "command": "nginx", "container": ""}
    mine = {"port": 8001, "free": False, "own": True, "address": "127.0.0.1", "pid": 8, "command": "ironserve", "container": "ironserve-c0"}
    check = judge(host(ports=[mine, taken]))["ports"][0]
    assert (check.status, check.detail) == ("fail", "0.0.0.0:8002 is taken by nginx (pid 7)")
    check = judge(host(ports=[mine, {"port": 8002, "free": True, "own": False}]))["ports"][0]
    assert (check.status, check.detail) == ("pass", "8001 to 8002 are free or ours (8001)")


def test_a_firewall_does_not_matter_to_who_listens_on_the_host_only():
    assert judge(host(firewalls=["firewalld"]), address="127.0.0.1")["firewall"][0].status == "pass"


def disk(path, device, free, present=None):
    return {"path": path, "parent": "/", "device": device, "free_mib": free, "total_mib": 10000, "present_mib": present}


@pytest.mark.parametrize(
    ("disks", "statuses"),
    [
        ([disk("/w", 1, 700, 0), disk("/c", 1, 700)], ["fail"]),
        ([disk("/w", 1, 800, 0), disk("/c", 1, 800)], ["pass"]),
        ([disk("/w", 1, 700, 300), disk("/c", 1, 700)], ["pass"]),
        ([disk("/w", 1, 700, 0), disk("/c", 2, 200)], ["pass", "pass"]),
        ([disk("/w", 1, 700, 0), disk("/c", 2, 199)], ["pass", "fail"]),
        ([disk("/w", 1, 0, 9000), disk("/other", 1, 0)], ["pass"]),
    ],
)
def test_paths_of_one_file_system_share_its_space(disks, statuses):
    checks = judge(host(disks=disks), space={"/w": 600, "/c": 200})["space"]
    assert [check.status for check in checks] == statuses


HYGON = {"default_runtime": "hcu", "configured_runtime": "hcu"}


@pytest.mark.parametrize(
    ("engine", "image", "environment", "status", "words"),
    [
        (HYGON, {"present": True, "environment": {"ROCM_VERSION": "6.3"}}, {}, "fail", "this image names ROCM_VERSION"),
        (HYGON, {"present": True, "environment": {"NVIDIA_VISIBLE_DEVICES": "all"}}, {}, "fail", "NVIDIA_VISIBLE_DEVICES"),
        (HYGON, {"present": True, "environment": {}}, {}, "pass", "does not wake it up"),
        (HYGON, {"present": False, "environment": {}}, {}, "unknown", "the image is not here"),
        (HYGON, {"present": None, "environment": {}}, {}, "unknown", "the image is not here"),
        (HYGON, {"present": True, "environment": {"ROCM_VERSION": "6.3"}}, {"HCU_VISIBLE_DEVICES": "0"}, "pass", "HCU_VISIBLE_DEVICES=0"),
        (HYGON, {"present": True, "environment": {}}, {"HCU_VISIBLE_DEVICES": "all"}, "fail", "HCU_VISIBLE_DEVICES=all"),
        (
            {"default_runtime": "runc", "configured_runtime": "hcu"},
            {"present": True, "environment": {"ROCM_VERSION": "6"}},
            {},
            "fail",
            "hcu",
        ),
        ({"default_runtime": "nvidia"}, {"present": True, "environment": {"NVIDIA_VISIBLE_DEVICES": "all"}}, {}, "fail", "nvidia"),
        ({"default_runtime": "nvidia"}, {"present": True, "environment": {"NVIDIA_VISIBLE_DEVICES": "void"}}, {}, "pass", ""),
        ({"default_runtime": "runc"}, {"present": True, "environment": {"ROCM_VERSION": "6.3"}}, {}, "pass", "runc"),
        ({"default_runtime": ""}, {"present": None, "environment": {}}, {}, "not_applicable", ""),
    ],
)
def test_a_default_runtime_that_grabs_all_cards(engine, image, environment, status, words):
    facts = host(**engine)
    check = _preflight.runtime_check(facts["engine"], image, choice(environment=environment))
    assert check.status == status
    assert words in check.detail


def test_a_replica_that_asks_the_runtime_for_its_own_card_is_given_that():
    platform = on(device_requests=[{"driver": "nvidia", "per_card": "uuid"}])
    facts = host(default_runtime="nvidia")
    assert _preflight.runtime_check(facts["engine"], {"present": False, "environment": {}}, choice(platform=platform)).status == "pass"


@pytest.mark.parametrize(
    ("toolkits", "runtimes", "status"),
    [
        ({}, ["runc"], "fail"),
        ({"nvidia-container-toolkit": "1.17.8"}, ["runc"], "pass"),
        ({}, ["nvidia", "runc"], "not_applicable"),
        (None, ["runc"], "unknown"),
        (None, ["nvidia", "runc"], "not_applicable"),
    ],
)
def test_a_platform_that_needs_its_toolkit(toolkits, runtimes, status):
    platform = on(device_requests=[{"driver": "nvidia", "per_card": "uuid"}])
    assert judge(host(toolkits=toolkits, runtimes=runtimes), choice(platform=platform))["container_toolkit"][0].status == status
