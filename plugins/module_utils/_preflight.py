# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Whether a host is fit for what shall run on it: its cards, its settings, its engine. Pure. Private to the collection.

Cards are looked at by ``_accelerators.preflight`` on the host; here is what needs the catalog, the user's settings or the whole host.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import re
from typing import Any

from ansible_collections.ironserve.llm.plugins.module_utils import _compatibility, _host, _ports
from ansible_collections.ironserve.llm.plugins.module_utils._catalog import merge
from ansible_collections.ironserve.llm.plugins.module_utils._checks import FAIL, NOT_APPLICABLE, PASS, UNKNOWN, WARN, Check
from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError, UnknownOutput
from ansible_collections.ironserve.llm.plugins.module_utils._plan import BASE_ENVIRONMENT, REFUSED_ENVIRONMENT, settle

#: What a preflight ends with. A failed check beats one that could not tell.
OK, FAILED, COULD_NOT_TELL = 0, 1, 2

#: The smallest shared memory an engine on a card starts with, MiB; the container engine's own default of 64 kills it.
LEAST_SHM_MIB = 1024

#: Open files an engine and its clients need; the container engine hands its own limit down.
LEAST_NOFILE = 65536

#: Share of the host's memory that huge pages may take away unused.
HUGEPAGES_SHARE = 0.1

#: Variables that choose cards inside a container. A card that is mapped alone is index 0 there, whatever its number on the host.
VISIBLE = ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "ASCEND_RT_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")

#: Vendors' runtimes for containers that map every card into an image of theirs unless told otherwise: words in the runtime's name,
#: the variable by which a container chooses, and the variable in an image that wakes the runtime up. Source: hcu-container-toolkit,
#: docs/user-guide/docker.md and graphics.go; NVIDIA container toolkit, docker specialized configurations.
GRABBING_RUNTIMES = (
    (("hcu", "dcu", "hygon"), "HCU_VISIBLE_DEVICES", ("ROCM_VERSION", "NVIDIA_VISIBLE_DEVICES")),
    (("nvidia",), "NVIDIA_VISIBLE_DEVICES", ("NVIDIA_VISIBLE_DEVICES",)),
)
#: Values by which an image or container says that it wants no card.
NO_CARDS = ("", "void", "none")


@dataclasses.dataclass
class Choice:
    """What shall run on a host.

    Attributes:
        platform: the platform's catalog entry.
        engine, model, weights: names; empty where only a platform was chosen.
        image: the engine's image on this platform.
        settings, environment: as the engine will get them, the user's laid over the recipe's.
        enhancements: names of those that are on.
        replica_cards: cards of one replica.
    """

    platform: dict[str, Any]
    engine: str = ""
    model: str = ""
    weights: str = ""
    image: dict[str, Any] = dataclasses.field(default_factory=dict)
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)
    environment: dict[str, str] = dataclasses.field(default_factory=dict)
    enhancements: list[str] = dataclasses.field(default_factory=list)
    replica_cards: int = 1

    @property
    def has_cards(self) -> bool:
        """Whether the platform has real cards; CPU cores that play some need nothing of a host."""
        return self.platform["probe"] != "cpu"


def _known_image(own: dict[str, Any], shipped: dict[str, Any]) -> dict[str, Any]:
    """The image to be used, with its versions: what it states, else what its tag says, else what the catalog says of its own image.

    The plan spells the engine's arguments by the catalog's version too, whichever image is used.
    """
    if not own and not shipped:
        return {}
    version, runtime = _compatibility.image_versions(own)
    others = _compatibility.image_versions(shipped)
    return dict(own or shipped, version=version or others[0], runtime=runtime or others[1])


def choose(
    catalog: dict[str, Any],
    settings: dict[str, Any] | None = None,
    environment: dict[str, Any] | None = None,
    enhancements: dict[str, bool] | None = None,
    allow_forbidden: list[str] | None = None,
    image: dict[str, Any] | None = None,
) -> Choice:
    """Lay the user's wishes over what the catalog resolved to, as the plan will.

    Args:
        catalog: the outcome of ``_catalog.resolve``.
        image: the image to be used; empty takes the catalog's.
    Raises LLMError for wishes the plan would refuse.
    """
    platform, engine, model = catalog["platform"], catalog["engine"], catalog["model"]
    decisions: list[dict[str, str]] = []
    final = merge(catalog["settings"], settings or {})
    if model:
        decisions, final = settle(catalog, enhancements or {}, allow_forbidden or [], settings or {})
    variables = merge(
        merge(merge(BASE_ENVIRONMENT, engine.get("environment", {})), platform["container"].get("environment", {})), environment or {}
    )
    try:
        size = int(final.get("tensor_parallel_size", 1)) * int(final.get("pipeline_parallel_size", 1))
    except (TypeError, ValueError):
        size = 0
    if size < 1:
        raise LLMError("setting 'tensor_parallel_size' must be a number, 1 or more, found {0!r}".format(final.get("tensor_parallel_size")))
    return Choice(
        platform=platform,
        engine=engine.get("name", ""),
        model=model.get("name", ""),
        weights=catalog["weights"].get("name", ""),
        image=_known_image(image or {}, engine.get("image", {})),
        settings=final,
        environment={name: str(value) for name, value in variables.items() if value is not None},
        enhancements=[item["name"] for item in decisions if item["state"] == "on"],
        replica_cards=size,
    )


def status(checks: list[Check]) -> int:
    """0 when every check is good, 1 when one failed, else 2: one could not tell, or nothing was checked."""
    if any(check.status == FAIL for check in checks):
        return FAILED
    return OK if checks and all(check.good for check in checks) else COULD_NOT_TELL


def lines(checks: list[Check]) -> list[str]:
    """The checks as a person reads them; those that do not apply share one line."""
    shown = [check.line() for check in checks if check.status != NOT_APPLICABLE]
    rest = [check.name for check in checks if check.status == NOT_APPLICABLE]
    return shown + (["{0:<8} {1}".format("N/A", ", ".join(dict.fromkeys(rest)))] if rest else [])


# ---- cards


def plain_name(text: str) -> str:
    """A product name without blanks, ``-``, ``_``, case and the vendor's own name: tools and catalogs spell it as they like."""
    return re.sub(r"[-_\s]", "", re.sub(r"^(nvidia|hygon|ascend(?=\s))\s*", "", text.strip().lower()))


def _fits_product(card: dict[str, Any], products: list[str]) -> bool:
    names = {plain_name(str(card.get(key) or "")) for key in ("name", "name_raw")}
    return any(fnmatch.fnmatchcase(name, plain_name(product)) for name in names for product in products)


def _by_word(pairs: list[tuple[str, str]]) -> str:
    """Cards by what is said of them: ``B2: 0000:02:00.0, 0000:03:00.0; C3: 0000:04:00.0``, from pairs of word and card."""
    found: dict[str, list[str]] = {}
    for word, card in pairs:
        found.setdefault(word, []).append(card)
    return "; ".join("{0}: {1}".format(word, ", ".join(cards)) for word, cards in found.items())


def product_checks(cards: list[dict[str, Any]], products: list[str], architectures: list[str]) -> list[Check]:
    """Whether the cards are what the platform is made for."""
    checks = []
    fix = "choose the platform these cards belong to (llm_platform)"
    if not products:
        checks.append(Check("expected_product", NOT_APPLICABLE, "the platform names no product"))
    elif cards:
        odd = [(card["name_raw"] or card["name"], card["id"]) for card in cards if not _fits_product(card, products)]
        more = ", or add the product to the platform's card.products"
        checks.append(
            Check("expected_product", FAIL, "not one of {0}: {1}".format(", ".join(products), _by_word(odd)), fix + more)
            if odd
            else Check("expected_product", PASS, ", ".join(sorted({card["name"] for card in cards})))
        )
    mixed = sorted({"{0} {1}".format(card["name"], card["memory_total_mib"]) for card in cards})
    if len(mixed) > 1:
        checks.append(Check("equal_cards", WARN, "cards of {0} kinds on one host: {1} MiB".format(len(mixed), ", ".join(mixed))))
    if architectures and cards:
        odd = [(card["architecture"], card["id"]) for card in cards if not _compatibility.fits_text([card["architecture"]], architectures)]
        checks.append(
            Check("expected_architecture", FAIL, "not one of {0}: {1}".format(", ".join(architectures), _by_word(odd)), fix)
            if odd
            else Check("expected_architecture", PASS, ", ".join(sorted({card["architecture"] for card in cards})))
        )
    return checks


def _holder_name(holder: dict[str, Any]) -> str:
    if holder.get("container"):
        return "container {0}".format(holder["container"])
    return "process {0}{1}".format(holder.get("pid") or "unknown", " ({0})".format(holder["name"]) if holder.get("name") else "")


def holder_checks(cards: list[dict[str, Any]], own_containers: list[str], idle_mib: int | None) -> list[Check]:
    """Whether nobody but this collection's replicas is on the cards.

    Args:
        own_containers: names of the running containers of this collection.
        idle_mib: device memory that a card shows when nothing runs on it, at most; None where it is not known.
    """
    foreign = []
    silent = []
    for card in cards:
        holders = card.get("holders") or []
        others = [_holder_name(holder) for holder in holders if not holder.get("container") or holder["container"] not in own_containers]
        if others:
            foreign.append("{0} is held by {1}".format(card["id"], ", ".join(others)))
        used = card.get("memory_used_mib")
        if not holders and idle_mib is not None and used is not None and used > idle_mib:
            silent.append("{0} has {1} MiB in use".format(card["id"], used))
    checks = []
    if foreign:
        fix = "stop what is not yours to run there, or take another host; nothing is ended from here"
        checks.append(Check("card_holders", FAIL, "; ".join(foreign), fix))
    if silent:
        fix = "find the process (a worker that outlived its container), or restart the host; an idle card shows {0} MiB at most"
        checks.append(Check("card_holders", FAIL, "{0} and nobody is seen on it".format("; ".join(silent)), fix.format(idle_mib)))
    if not checks:
        ours = sorted({holder["container"] for card in cards for holder in card.get("holders") or []})
        checks.append(Check("card_holders", PASS, "replicas only: {0}".format(", ".join(ours)) if ours else "nobody holds a card"))
    return checks


def link_checks(cards: list[dict[str, Any]], replica_cards: int, told: bool = False) -> list[Check]:
    """Links and layout of the cards that a replica joins; a replica of one card needs neither.

    Args:
        told: whether the probe has judged the links itself.
    """
    if replica_cards < 2:
        return [Check("card_links", NOT_APPLICABLE, "one card per replica needs no link between cards")]
    if told:
        return [_topology_check(cards, replica_cards)]
    checks = []
    linked = [card for card in cards if card.get("link") is not None]
    for state, verdict, fix in (
        ("down", FAIL, "look at cable, switch and address of the link; a replica of one card needs none: tensor_parallel_size 1"),
        ("unknown", UNKNOWN, "find out why the link's state cannot be read"),
    ):
        bad = [
            "{0}{1}".format(card["id"], " ({0})".format(card["link_detail"]) if card.get("link_detail") else "")
            for card in linked
            if card["link"] == state
        ]
        if bad:
            checks.append(Check("card_links", verdict, "{0}: {1}".format(state, ", ".join(bad)), fix))
    strange = sorted({str(card["link"]) for card in linked} - {"up", "down", "unknown"})
    if strange:
        checks.append(Check("card_links", UNKNOWN, "state {0} is not known".format(", ".join(strange)), "report the probe's output"))
    if linked and not checks:
        without = [card["id"] for card in cards if card.get("link") is None]
        checks.append(
            Check("card_links", FAIL, "no link on {0}, while others have one".format(", ".join(without)), "look at the link of that card")
            if without
            else Check("card_links", PASS, "{0} links up".format(len(linked)))
        )
    if not linked:
        checks.append(Check("card_links", NOT_APPLICABLE, "the cards have no link of their own; they meet on PCI"))
    checks.append(_topology_check(cards, replica_cards))
    return checks


def _topology_check(cards: list[dict[str, Any]], replica_cards: int) -> Check:
    """Whether the cards of each replica hang on one NUMA node. Groups are made by index, as the plan makes them."""
    groups: dict[int, list[dict[str, Any]]] = {}
    for card in cards:
        groups.setdefault(card["index"] // replica_cards, []).append(card)
    unknown = sorted(card["id"] for card in cards if card.get("numa_node") is None)
    spread = []
    for number, members in sorted(groups.items()):
        nodes = sorted({card["numa_node"] for card in members if card.get("numa_node") is not None})
        if len(nodes) > 1:
            spread.append(
                "group {0} ({1}) spans NUMA nodes {2}".format(number, ", ".join(card["id"] for card in members), ", ".join(map(str, nodes)))
            )
    if spread:
        return Check("card_topology", WARN, "{0}: traffic between its cards crosses the processors' link".format("; ".join(spread)))
    if unknown:
        return Check("card_topology", WARN, "the NUMA node of {0} is not known".format(", ".join(unknown)))
    return Check("card_topology", PASS, "each group of {0} cards is on one NUMA node".format(replica_cards))


def driver_check(found: dict[str, Any]) -> list[Check]:
    """Whether the kernel runs the driver, where the probe has not said so itself."""
    if found.get("driver_live") is None or any(check["name"] == "driver_live" for check in found.get("checks", [])):
        return []
    if found["driver_live"]:
        return [Check("driver_live", PASS, "the kernel runs it")]
    return [Check("driver_live", FAIL, "the kernel does not run the driver", "load it, or install it and restart the host")]


def version_checks(found: dict[str, Any], expected: dict[str, str]) -> list[Check]:
    """Versions on the host, each against what the site pins, if it pins it.

    Args:
        expected: conditions such as ``>=6.3`` by ``driver``, ``firmware``, ``runtime`` and ``tool``.
    """
    checks = []
    said = []
    for kind in ("driver", "runtime", "firmware", "tool"):
        version = found.get(kind + "_version")
        if version:
            said.append("{0} {1}".format(kind, version))
        if kind not in expected:
            continue
        try:
            if not version:
                raise UnknownOutput("it is not known")
            good = _compatibility.satisfies(version, str(expected[kind]))
        except UnknownOutput as exc:
            checks.append(Check("versions", UNKNOWN, "{0} must be {1}: {2}".format(kind, expected[kind], exc), "find out its version"))
            continue
        if not good:
            text = "{0} is {1}, must be {2}".format(kind, version, expected[kind])
            checks.append(Check("versions", FAIL, text, "install the version asked for, or change accelerator_expected_versions"))
    if any(check["name"] == "versions" for check in found.get("checks", [])):
        return checks
    if said:
        checks.append(Check("versions", PASS, ", ".join(said)))
    return checks or [Check("versions", NOT_APPLICABLE, "the platform has none")]


def card_checks(
    found: dict[str, Any], choice: Choice, products: list[str], architectures: list[str], versions: dict[str, str]
) -> list[Check]:
    """Everything about the cards beyond what the probe and ``_accelerators.preflight`` said on the host.

    Args:
        found: what ``accelerator_info`` returned.
        products, architectures: what the cards should be; empty asks nothing.
        versions: conditions on versions the site pins.
    """
    cards = found["cards"]
    told = {check["name"] for check in found.get("checks", [])}
    return (
        driver_check(found)
        + version_checks(found, versions)
        + product_checks(cards, products, architectures)
        + holder_checks(cards, found.get("own_containers", []), choice.platform["card"].get("idle_mib"))
        + link_checks(cards, choice.replica_cards, "links" in told)
    )


# ---- settings


def _allocator_checks(environment: dict[str, str]) -> list[Check]:
    checks = []
    for name, value in sorted(environment.items()):
        if not re.match(r"^PYTORCH_(?:[A-Z]+_)?ALLOC_CONF$", name):
            continue
        options = dict(part.split(":", 1) for part in re.split(r"\s*,\s*", value.strip()) if ":" in part)
        options = {key.strip().lower(): item.strip() for key, item in options.items()}
        rivals = [key for key in ("max_split_size_mb", "garbage_collection_threshold") if key in options]
        if options.get("expandable_segments", "").lower() == "true" and rivals:
            # Documented for NPU (envref_07_0053, vllm-ascend PR 5855); nowhere is the pair documented to be of use.
            checks.append(
                Check(
                    "environment",
                    FAIL,
                    "{0}: expandable_segments does not go together with {1}".format(name, ", ".join(rivals)),
                    "keep expandable_segments:True alone",
                )
            )
    return checks


def environment_checks(choice: Choice) -> list[Check]:
    """Variables that are known to open the engine, hide its card or do nothing of what they promise."""
    environment = choice.environment
    checks = [
        Check("environment", FAIL, "{0} is set: {1}".format(name, why), "remove it from llm_environment")
        for name, why in sorted(REFUSED_ENVIRONMENT.items())
        if name in environment
    ]
    checks += _allocator_checks(environment)
    allowed = ",".join(str(number) for number in range(choice.replica_cards))
    for name in VISIBLE:
        if choice.has_cards and environment.get(name) is not None and environment[name].replace(" ", "") != allowed:
            text = "{0}={1}: inside its container a card that is mapped alone is 0, another number hides it".format(name, environment[name])
            checks.append(Check("environment", FAIL, text, "remove it from llm_environment"))
    chip = environment.get("SOC_VERSION", "")
    if chip != chip.lower():
        text = "SOC_VERSION={0}: the build knows lower case only".format(chip)
        checks.append(Check("environment", FAIL, text, "SOC_VERSION={0}".format(chip.lower())))
    if environment.get("HCCL_IB_HCA"):
        text = "HCCL_IB_HCA={0}: vllm-ascend does not know this variable; its name is made after one of NCCL".format(
            environment["HCCL_IB_HCA"]
        )
        checks.append(Check("environment", WARN, text))
    if environment.get("VLLM_USE_MODELSCOPE", "true").lower() != "true":
        checks.append(
            Check(
                "environment", WARN, "VLLM_USE_MODELSCOPE={0}: only the word true has an effect".format(environment["VLLM_USE_MODELSCOPE"])
            )
        )
    return checks or [Check("environment", PASS, "{0} variables, none refused".format(len(environment)))]


def settings_checks(choice: Choice) -> list[Check]:
    """Engine settings that are known not to start."""
    speculative = choice.settings.get("speculative")
    if isinstance(speculative, dict) and "threshold" in speculative:
        text = "speculative.threshold is no key of the engine, and its start fails"
        return [Check("settings", FAIL, text, "remove threshold from llm_settings.speculative")]
    if not choice.engine:
        return [Check("settings", NOT_APPLICABLE, "no engine is chosen")]
    return [Check("settings", PASS, "{0} settings, none refused".format(len(choice.settings)))]


def container_checks(choice: Choice) -> list[Check]:
    """Rights of the container that would undo the binding of one card to one replica."""
    container = choice.platform["container"]
    checks = []
    if container.get("privileged"):
        text = "privileged gives every replica every card, and two of them end up on card 0"
        checks.append(Check("container_rights", FAIL, text, "remove privileged from the platform's container"))
    wide = [str(item) for item in container.get("security_opt") or [] if "unconfined" in str(item)]
    wide += [
        "cap_add {0}".format(item)
        for item in container.get("cap_add") or []
        if str(item).upper().replace("CAP_", "") in ("ALL", "SYS_ADMIN")
    ]
    if wide:
        checks.append(Check("container_rights", WARN, "{0}: more than a card needs".format(", ".join(wide))))
    if str(container.get("ipc", "private")) == "host":
        checks.append(Check("container_rights", WARN, "ipc host: replicas see the shared memory of everything on the host"))
    if choice.has_cards and int(container.get("shm_mib", 0)) < LEAST_SHM_MIB:
        text = "{0} MiB of shared memory; the engine dies below {1}".format(container.get("shm_mib", 0), LEAST_SHM_MIB)
        checks.append(Check("container_shm", FAIL, text, "raise container.shm_mib of the platform"))
    return checks or [Check("container_rights", PASS, "the card's own nodes and no more")]


def situation(choice: Choice, found: dict[str, Any]) -> dict[str, Any]:
    """What the compatibility table is asked: None for what is not known, no key for what is not asked for."""
    answer: dict[str, Any] = {"platform": choice.platform["name"], "settings": choice.settings, "environment": choice.environment}
    # A probe that failed has said so; that its cards are not known is no second fault.
    if found:
        answer.update(
            driver=found.get("driver_version"),
            firmware=found.get("firmware_version"),
            architecture=sorted({str(card["architecture"]) for card in found["cards"]}) or None,
            product=sorted({str(card["name"]) for card in found["cards"]}) or None,
        )
    if choice.engine:
        version, runtime = _compatibility.image_versions(choice.image)
        answer.update(
            engine=choice.engine,
            engine_version=version,
            runtime=runtime,
            image=str(choice.image.get("reference") or choice.image.get("build") or choice.image.get("archive") or "") or None,
            tensor_parallel_size=choice.settings.get("tensor_parallel_size", 1),
            enhancement=choice.enhancements,
        )
    if choice.model:
        answer.update(model=choice.model, weights=choice.weights)
    return answer


def wish_checks(choice: Choice, found: dict[str, Any], table: dict[str, Any]) -> list[Check]:
    """What was asked for, against what is known not to work: variables, settings, rights, combinations, vulnerabilities.

    Args:
        found: what ``accelerator_info`` returned; empty when it failed.
        table: ``rows`` and ``vulnerabilities`` of the compatibility table.
    """
    asked = situation(choice, found)
    checks = environment_checks(choice) + settings_checks(choice) + container_checks(choice)
    checks += _compatibility.judge(table.get("rows", {}), asked)
    if choice.engine:
        checks += _compatibility.known_holes(table.get("vulnerabilities", {}), choice.engine, asked["engine_version"], asked)
    return checks


# ---- host


def _tuning_checks(kernel: dict[str, Any], wanted: dict[str, Any]) -> list[Check]:
    """The kernel's settings against what the platform asks for; what it does not ask for does not apply."""
    checks = []
    nothing = "the platform asks for nothing"

    arguments = [str(item) for item in wanted.get("kernel_arguments") or []]
    if not arguments:
        checks.append(Check("kernel_arguments", NOT_APPLICABLE, nothing))
    elif kernel["arguments"] is None:
        checks.append(Check("kernel_arguments", UNKNOWN, "/proc/cmdline is not there", "find out how this kernel was started"))
    else:
        missing = [item for item in arguments if item not in kernel["arguments"]]
        fix = "add it to the boot loader's kernel command line and restart the host"
        checks.append(
            Check("kernel_arguments", WARN, "{0} is not on the kernel's command line".format(", ".join(missing)), fix)
            if missing
            else Check("kernel_arguments", PASS, " ".join(arguments))
        )

    needed = [str(item) for item in wanted.get("kernel_modules") or []]
    refused = [str(item) for item in wanted.get("kernel_modules_refused") or []]
    if not needed and not refused:
        checks.append(Check("kernel_modules", NOT_APPLICABLE, nothing))
    elif kernel["modules"] is None:
        checks.append(Check("kernel_modules", UNKNOWN, "/proc/modules is not there", "find out which modules this kernel has"))
    else:
        missing = [item for item in needed if item not in kernel["modules"]]
        there = [item for item in refused if item in kernel["modules"]]
        if missing:
            checks.append(Check("kernel_modules", FAIL, "{0} is not loaded".format(", ".join(missing)), "load it (modprobe)"))
        if there:
            checks.append(Check("kernel_modules", FAIL, "{0} is loaded and takes the cards".format(", ".join(there)), "blacklist it"))
        if not missing and not there:
            checks.append(Check("kernel_modules", PASS, ", ".join(needed) or "none of {0}".format(", ".join(refused))))

    if not wanted.get("governor"):
        checks.append(Check("governor", NOT_APPLICABLE, nothing))
    elif not kernel["governors"]:
        checks.append(Check("governor", WARN, "the kernel shows no frequency governor; a virtual machine or the firmware decides"))
    else:
        other = {name: count for name, count in kernel["governors"].items() if name != wanted["governor"]}
        text = ", ".join("{0} on {1} processors".format(name, count) for name, count in sorted(other.items()))
        checks.append(
            Check(
                "governor",
                WARN,
                "{0}, {1} wanted".format(text, wanted["governor"]),
                "cpupower frequency-set -g {0}".format(wanted["governor"]),
            )
            if other
            else Check("governor", PASS, str(wanted["governor"]))
        )

    for name, key in (("swappiness", "vm.swappiness"), ("numa_balancing", "kernel.numa_balancing")):
        value = kernel["sysctl"].get(key)
        if wanted.get(name) is None:
            checks.append(Check(name, NOT_APPLICABLE, nothing))
        elif value is None:
            # A kernel without NUMA has no balancing to be switched off.
            bad = name != "numa_balancing" or kernel["numa_nodes"] > 1
            text = "the kernel has no {0}".format(key)
            checks.append(Check(name, UNKNOWN, text, "look at sysctl {0}".format(key)) if bad else Check(name, PASS, text))
        elif value == str(wanted[name]):
            checks.append(Check(name, PASS, "{0} = {1}".format(key, value)))
        else:
            checks.append(
                Check(name, WARN, "{0} = {1}, {2} wanted".format(key, value, wanted[name]), "sysctl -w {0}={1}".format(key, wanted[name]))
            )
    return checks


def _memory_checks(kernel: dict[str, Any]) -> list[Check]:
    pages, memory_total_mib = kernel["hugepages"], kernel["memory_total_mib"]
    text = "{0} MiB reserved, transparent: {1}".format(pages["reserved_mib"], pages["transparent"] or "none")
    if pages["reserved_mib"] > HUGEPAGES_SHARE * memory_total_mib:
        fix = "nothing here uses reserved huge pages; lower vm.nr_hugepages if nothing else does"
        return [Check("hugepages", WARN, "{0} of {1} MiB".format(text, memory_total_mib), fix)]
    return [Check("hugepages", PASS, text)]


def _limit_checks(kernel: dict[str, Any], choice: Choice) -> list[Check]:
    if not choice.has_cards:
        return [Check("limits", NOT_APPLICABLE, "CPU cores that play cards need no more than any process")]
    limits = kernel["limits"]
    if limits is None:
        return [Check("limits", UNKNOWN, "the limits of {0} cannot be read".format(kernel["limits_of"]), "run as root")]
    checks = []
    hard = limits["nofile"][1]
    if hard != -1 and hard < LEAST_NOFILE:
        fix = "raise LimitNOFILE of the container engine's service"
        checks.append(
            Check("limits", WARN, "{0} may open {1} files at most, {2} wanted".format(kernel["limits_of"], hard, LEAST_NOFILE), fix)
        )
    hard = limits["memlock"][1]
    if choice.replica_cards > 1 and hard != -1:
        fix = "set LimitMEMLOCK=infinity for the container engine's service; links between cards pin memory"
        checks.append(Check("limits", WARN, "{0} may lock {1} bytes at most".format(kernel["limits_of"], hard), fix))
    return checks or [Check("limits", PASS, "{0} opens enough files".format(kernel["limits_of"]))]


def _peer_checks(kernel: dict[str, Any], replica_cards: int) -> list[Check]:
    """IOMMU and access control on the way between cards, where a replica joins several."""
    if replica_cards < 2:
        return [Check(name, NOT_APPLICABLE, "one card per replica") for name in ("iommu", "acs")]
    groups = kernel["iommu"]["groups"]
    translated = sum(count for kind, count in groups.items() if kind != "identity")
    if not kernel["iommu"]["active"]:
        checks = [Check("iommu", PASS, "off")]
    elif translated:
        text = "{0} of {1} groups translate addresses, and traffic between cards goes through it".format(translated, sum(groups.values()))
        checks = [Check("iommu", WARN, text, "start the kernel with iommu=pt, or switch it off in the firmware")]
    else:
        checks = [Check("iommu", PASS, "passes addresses through")]
    acs = kernel["acs"]
    if acs["redirecting"]:
        text = "bridges {0} send traffic between cards up to the root".format(", ".join(acs["redirecting"]))
        checks.append(Check("acs", WARN, text, "switch ACS off in the firmware, or with setpci at every start"))
    elif acs["unreadable"]:
        text = "the configuration space of {0} cannot be read".format(", ".join(acs["unreadable"]))
        checks.append(Check("acs", UNKNOWN, text, "run as root"))
    else:
        checks.append(Check("acs", PASS, "{0} bridges above the cards, none redirects".format(len(acs["bridges"]))))
    return checks


def _engine_checks(host: dict[str, Any], choice: Choice) -> list[Check]:
    engine = host["engine"]
    checks = []
    if engine["configuration_error"]:
        fix = "mend the file; the engine does not start with it"
        checks.append(Check("engine_configuration", FAIL, engine["configuration_error"], fix))
    if engine["reachable"]:
        try:
            old = _host.version_tuple(engine["version"]) < _host.OLDEST_ENGINE
        except UnknownOutput as exc:
            checks.append(Check("container_engine", UNKNOWN, str(exc), "look at `docker version`; 20.10 or newer is needed"))
        else:
            text = "Docker {0}, runtime {1}".format(engine["version"], engine["default_runtime"] or "unknown")
            checks.append(
                Check("container_engine", FAIL, text + ": too old", "upgrade Docker to {0}.{1} or newer".format(*_host.OLDEST_ENGINE))
                if old
                else Check("container_engine", PASS, text)
            )
        if engine["configured_runtime"] and engine["configured_runtime"] != engine["default_runtime"]:
            text = "its file says default-runtime {0}, it runs with {1}; the next start changes that".format(
                engine["configured_runtime"], engine["default_runtime"] or "another"
            )
            checks.append(Check("engine_configuration", WARN, text))
    elif engine["running"]:
        checks.append(
            Check("container_engine", FAIL, "Docker runs but does not answer: {0}".format(engine["error"]), "look at its log and mend it")
        )
    elif engine["installed"]:
        checks.append(Check("container_engine", PASS, "Docker is installed and not running; the host role starts it"))
    else:
        text = "none yet; the host role installs Docker on Debian and Ubuntu, elsewhere it must be there first"
        checks.append(Check("container_engine", WARN, text))
    checks.append(runtime_check(engine, host["image"], choice))
    return checks


def runtime_check(engine: dict[str, Any], image: dict[str, Any], choice: Choice) -> Check:
    """Whether the engine's default runtime would give a replica more cards than its own."""
    names = {name for name in (engine["default_runtime"], engine["configured_runtime"]) if name}
    for words, variable, wakers in GRABBING_RUNTIMES:
        grabbing = sorted(name for name in names if any(word in name.lower() for word in words))
        if not grabbing:
            continue
        if any(str(item.get("driver")) in words for item in choice.platform["container"].get("device_requests") or []):
            return Check("default_runtime", PASS, "{0}; replicas ask it for their own card".format(grabbing[0]))
        own = choice.environment.get(variable)
        if own == "all":
            return Check(
                "default_runtime",
                FAIL,
                "{0} with {1}=all gives every card".format(grabbing[0], variable),
                "remove {0} from llm_environment".format(variable),
            )
        if own is not None:
            return Check("default_runtime", PASS, "{0}, and replicas say {1}={2}".format(grabbing[0], variable, own))
        text = "default runtime {0} gives every card to an image that names {1}".format(grabbing[0], " or ".join(wakers))
        fix = "make runc the default runtime again (default-runtime in /etc/docker/daemon.json), or give {0} in llm_environment".format(
            variable
        )
        if not image["present"]:
            return Check("default_runtime", UNKNOWN, text + "; the image is not here to be asked", fix)
        woken = sorted(name for name in wakers if image["environment"].get(name, "") not in NO_CARDS)
        if woken:
            return Check("default_runtime", FAIL, "{0}, and this image names {1}".format(text, ", ".join(woken)), fix)
        return Check("default_runtime", PASS, "{0}, and the image does not wake it up".format(grabbing[0]))
    if not engine["default_runtime"]:
        return Check("default_runtime", NOT_APPLICABLE, "no engine to ask")
    return Check("default_runtime", PASS, engine["default_runtime"])


def _toolkit_check(host: dict[str, Any], choice: Choice) -> Check:
    toolkits = host["toolkits"]
    wanted = [item for item in choice.platform["container"].get("device_requests") or [] if item.get("driver") == "nvidia"]
    if toolkits is None:
        if wanted and not any("nvidia" in name for name in host["engine"]["runtimes"]):
            return Check(
                "container_toolkit", UNKNOWN, "neither dpkg nor rpm can be asked", "see that nvidia-container-toolkit is installed"
            )
        return Check("container_toolkit", NOT_APPLICABLE, "neither dpkg nor rpm can be asked, and none is needed")
    if wanted and "nvidia-container-toolkit" not in toolkits and "nvidia" not in host["engine"]["runtimes"]:
        return Check(
            "container_toolkit", FAIL, "nvidia-container-toolkit is not installed", "install it; the driver's libraries come through it"
        )
    if not toolkits:
        return Check("container_toolkit", NOT_APPLICABLE, "none is installed and none is needed")
    return Check("container_toolkit", PASS, ", ".join("{0} {1}".format(*item) for item in sorted(toolkits.items())))


def _space_checks(disks: list[dict[str, Any]], space: dict[str, int]) -> list[Check]:
    """Free space against what will be written, added up over the paths that share a file system."""
    checks = []
    devices: dict[int, list[dict[str, Any]]] = {}
    for disk in disks:
        devices.setdefault(disk["device"], []).append(disk)
    for members in devices.values():
        needs = {disk["path"]: max(0, space.get(disk["path"], 0) - (disk["present_mib"] or 0)) for disk in members}
        total = sum(needs.values())
        free = members[0]["free_mib"]
        text = "{0}: {1} MiB free, {2} MiB needed".format(", ".join(sorted(needs)), free, total)
        fix = "free space in the file system of {0}, or put one of these directories elsewhere".format(members[0]["parent"])
        checks.append(Check("space", PASS, text) if free >= total else Check("space", FAIL, text, fix))
    return checks or [Check("space", NOT_APPLICABLE, "no directory was asked for")]


def _port_checks(ports: list[dict[str, Any]] | None) -> list[Check]:
    if ports is None:
        return [Check("ports", UNKNOWN, "the kernel does not show its sockets", "look at /proc/net/tcp")]
    taken = [_ports.describe(port) for port in ports if not port["free"] and not port["own"]]
    if taken:
        return [Check("ports", FAIL, "; ".join(taken), "stop that process, or choose other ports (replica_port_base)")]
    if not ports:
        return [Check("ports", NOT_APPLICABLE, "no port was asked for")]
    own = [str(port["port"]) for port in ports if not port["free"]]
    return [
        Check(
            "ports",
            PASS,
            "{0} to {1} are free{2}".format(ports[0]["port"], ports[-1]["port"], " or ours ({0})".format(", ".join(own)) if own else ""),
        )
    ]


def _firewall_check(firewalls: list[str], address: str, ports: list[dict[str, Any]] | None) -> Check:
    if not firewalls:
        return Check("firewall", PASS, "no firewalld, ufw or nftables service")
    if address.startswith("127.") or address == "::1":
        return Check("firewall", PASS, "{0} is on; replicas listen on {1} only".format(", ".join(firewalls), address))
    numbers = [str(port["port"]) for port in ports or []]
    text = "{0} is on: ports {1} must be open for the gateway, and for nobody else".format(
        ", ".join(firewalls), ", ".join(numbers) or "of the replicas"
    )
    return Check("firewall", WARN, text)


def _clock_check(skew_s: float | None) -> Check:
    if skew_s is None:
        return Check("clock", NOT_APPLICABLE, "it was not compared")
    verdict = FAIL if abs(skew_s) > _host.CLOCK_FAIL_S else WARN if abs(skew_s) > _host.CLOCK_WARN_S else PASS
    fix = "" if verdict == PASS else "set the clock (timedatectl set-ntp true); certificates and tokens fail otherwise"
    if verdict == PASS:
        return Check("clock", PASS, "within {0} s of the controller's".format(_host.CLOCK_WARN_S))
    return Check("clock", verdict, "{0:+.0f} s from the controller's".format(skew_s), fix)


def host_checks(host: dict[str, Any], choice: Choice, wanted: dict[str, Any], space: dict[str, int], address: str) -> list[Check]:
    """Everything about the host besides its cards.

    Args:
        host: what ``accelerator_host_info`` returned.
        wanted: what the platform asks of a host (its ``host``).
        space: MiB that will be written under each path.
        address: where replicas listen.
    """
    kernel = host["kernel"]
    checks = [
        Check("kernel", PASS, kernel["release"])
        if kernel["release"]
        else Check("kernel", UNKNOWN, "it does not say its release", "look at uname -r")
    ]
    checks += _tuning_checks(kernel, wanted)
    checks += _memory_checks(kernel)
    checks += _limit_checks(kernel, choice)
    checks += _peer_checks(kernel, choice.replica_cards)
    checks += _engine_checks(host, choice)
    checks.append(_toolkit_check(host, choice))
    checks += _space_checks(host["disks"], space)
    checks += _port_checks(host["ports"])
    checks.append(_firewall_check(host["firewalls"], address, host["ports"]))
    checks.append(_clock_check(host["clock_skew_s"]))
    return checks
