# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The contract of the house: rules every role, module and file keeps, checked over the whole checkout.

Each rule is a function that returns the findings as text. It is run twice: over the checkout, where it must find nothing,
and over a bad sample, where it must find exactly what is wrong; a rule that cannot fail protects nothing.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
ROLES = sorted(path.parent for path in ROOT.glob("roles/*/meta"))
MODULES = sorted(ROOT.glob("plugins/modules/*.py"))
MODULE_UTILS = sorted(ROOT.glob("plugins/module_utils/*.py"))
FQCN = "ansible_collections.ironserve.llm.plugins.module_utils"

#: Third-party libraries, and the only file that may import each.
DOORS = {"requests": "_http.py", "docker": "_docker.py", "huggingface_hub": "_hubs.py", "modelscope_hub": "_hubs.py"}

#: Roles that change nothing on a host, and so have nothing to remove.
LEAVES_NOTHING = ("accelerator", "catalog")

#: What a playbook may do before it has the run lock: roles, modules, and parts of roles, that look and judge.
LOOKS_ONLY = [
    "ironserve.llm.catalog",
    "ironserve.llm.gateway_info",
    "ansible.builtin.assert",
    ("ironserve.llm.replica", "pinned"),
    ("ironserve.llm.gateway", "options"),
]

#: The documentation of check mode and diff mode that modules share, by the name of the fragment.
ATTRIBUTES = {
    "ironserve.llm.attributes" + ("" if target.id == "DOCUMENTATION" else "." + target.id.lower()): yaml.safe_load(node.value.value)[
        "attributes"
    ]
    for node in ast.walk(ast.parse((ROOT / "plugins" / "doc_fragments" / "attributes.py").read_text(encoding="utf-8")))
    if isinstance(node, ast.Assign)
    for target in node.targets
    if isinstance(target, ast.Name) and isinstance(node.value, ast.Constant)
}

SPDX = "SPDX-License-Identifier: GPL-3.0-or-later"

#: Registries and mirrors belong to the user's environment, and paths of one developer's machine to nobody.
FORBIDDEN = [
    re.compile(pattern)
    for pattern in (
        r"\bpypi\.org\b",
        r"\bpythonhosted\.org\b",
        r"\bdeb\.debian\.org\b",
        r"\bftp\.[a-z.]*debian\.org\b",
        r"\barchive\.ubuntu\.com\b",
        r"(?<![\w.-])/work/[a-z]",
        r"/root/\.pyenv\b",
        r"/tmp/eng\b",
        r"/tmp/brief\b",
        r"\b(TODO|FIXME|XXX)\b",
    )
]


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else path.name


def tracked() -> list[Path]:
    """Files git knows, and those it would take: what is ignored is nobody's business."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    paths = [ROOT / name for name in listing.stdout.split("\0") if name]
    return [path for path in paths if path.is_file() and not path.is_symlink()]


# ---- roles


def role_layout(role: Path) -> list[str]:
    """Findings about the files a role must have."""
    needed = ["README.md", "defaults/main.yml", "meta/main.yml", "meta/argument_specs.yml", "tasks/main.yml"]
    if role.name not in LEAVES_NOTHING:
        needed.append("tasks/absent.yml")
    return [f"{role.name}: {name} is missing" for name in needed if not (role / name).is_file()]


def commented_out(text: str) -> list[str]:
    """Names of options that stand in a defaults file as a comment, because they have no sensible default."""
    return re.findall(r"^#\s?([a-z][a-z0-9_]*):", text, re.MULTILINE)


def defaults_against_specs(role: str, defaults_text: str, specs_text: str) -> list[str]:
    """Findings where ``defaults/main.yml`` and the main entry point of ``meta/argument_specs.yml`` disagree."""
    defaults = yaml.safe_load(defaults_text) or {}
    options = (yaml.safe_load(specs_text) or {}).get("argument_specs", {}).get("main", {}).get("options") or {}
    without = commented_out(defaults_text)
    findings = []
    for name, spec in options.items():
        if not spec.get("description"):
            findings.append(f"{role}: {name} has no description")
        if "type" not in spec:
            findings.append(f"{role}: {name} has no type")
        if name in defaults:
            if spec.get("required"):
                findings.append(f"{role}: {name} is required but has a default")
            if "default" not in spec:
                findings.append(f"{role}: {name} has a default in defaults but none in the specs")
            elif type(spec["default"]) is not type(defaults[name]) or spec["default"] != defaults[name]:
                findings.append(f"{role}: {name} is {defaults[name]!r} in defaults and {spec['default']!r} in the specs")
        elif name in without:
            if not spec.get("required"):
                findings.append(f"{role}: {name} has no default and is not required")
        else:
            findings.append(f"{role}: {name} is in the specs only")
        if not name.startswith(f"{role}_"):
            findings.append(f"{role}: option {name} does not begin with {role}_")
    findings += [f"{role}: {name} is in defaults only" for name in list(defaults) + without if name not in options]
    order = [name for name in re.findall(r"^#?\s?([a-z][a-z0-9_]*):", defaults_text, re.MULTILINE) if name in options]
    if order != [name for name in options if name in order]:
        findings.append(f"{role}: the order of defaults and specs differs")
    if f"{role}_state" not in defaults and role not in LEAVES_NOTHING:
        findings.append(f"{role}: {role}_state is missing")
    return findings


def contents(tasks: list[dict]) -> list[dict]:
    """The tasks of a list with those of its blocks in place of the blocks."""
    flat = []
    for task in tasks:
        flat += contents(task["block"]) if "block" in task else [task]
    return flat


def contents_tags(role: str, tasks_text: str, roles: tuple[str, ...] = ()) -> list[str]:
    """Findings about ``tasks/main.yml`` as a table of contents: only imports and includes, every one tagged with the role.

    A role as short as its own table of contents (three tasks or fewer, no other task file) may do its work there. Besides
    ``always``, a task may carry the bare name of another role that cannot run without it.
    """
    findings = []
    keys = ("import_tasks", "include_tasks")
    tasks = contents(yaml.safe_load(tasks_text) or [])
    short = len(tasks) <= 3 and not any("_tasks:" in line for line in tasks_text.splitlines())
    for task in tasks:
        name = task.get("name", "(unnamed)")
        if not short and not any(f"ansible.builtin.{key}" in task for key in keys):
            findings.append(f"{role}: {name}: tasks/main.yml does work itself")
        tags = task.get("tags") or []
        if role not in tags or any(tag not in ("always", role, *roles) and not tag.startswith(f"{role}_") for tag in tags):
            findings.append(f"{role}: {name}: tags {tags} are not {role} and {role}_<phase>")
    return findings


# ---- plugins


def imports(tree: ast.AST) -> set[str]:
    """Every module that is imported anywhere in ``tree``, by its full name. Imports for type checkers only do not count."""
    found = set()
    skipped = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            skipped |= {id(child) for child in ast.walk(node)}
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            found |= {f"{base}.{alias.name}" if base == FQCN else base for alias in node.names}
    return found


def module_utils_imports(name: str, source: str) -> list[str]:
    """Findings about what a file of module_utils imports: the standard library, siblings, and its own door only."""
    findings = []
    for module in sorted(imports(ast.parse(source))):
        top = module.split(".")[0]
        if module.startswith(FQCN + ".") or top in sys.stdlib_module_names:
            continue
        if DOORS.get(top) == name:
            continue
        if top in DOORS:
            findings.append(f"{name}: imports {top}, which belongs in {DOORS[top]}")
        else:
            findings.append(f"{name}: imports {module}, which is neither the standard library nor a sibling")
    if name != "_run.py" and "subprocess" in imports(ast.parse(source)):
        findings.append(f"{name}: runs commands, which belongs in _run.py")
    return findings


def shared_attributes(fragments: list[str]) -> dict | None:
    """What the one fragment about attributes among ``fragments`` says; None when there is not one of them."""
    found = [ATTRIBUTES[name] for name in fragments if name in ATTRIBUTES]
    return found[0] if len(found) == 1 else None


def module_parts(name: str, source: str) -> list[str]:
    """Findings about the fixed parts of a module."""
    findings = []
    head = source.splitlines()[:6]
    if head[:1] != ["#!/usr/bin/python"]:
        findings.append(f"{name}: does not begin with #!/usr/bin/python")
    if not any(SPDX in line for line in head):
        findings.append(f"{name}: no SPDX line at its head")
    tree = ast.parse(source)
    texts = {
        target.id: node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    findings += [f"{name}: no {part}" for part in ("DOCUMENTATION", "EXAMPLES", "RETURN") if not texts.get(part)]
    documentation = yaml.safe_load(texts.get("DOCUMENTATION") or "{}")
    shared = shared_attributes(documentation.get("extends_documentation_fragment") or [])
    if shared is None:
        findings.append(f"{name}: does not extend one of {', '.join(ATTRIBUTES)}")
    for attribute in ("check_mode", "diff_mode"):
        own, known = (documentation.get("attributes") or {}).get(attribute, {}), (shared or {}).get(attribute, {})
        stated = {**known, **own}
        if shared is not None and not (stated.get("support") and stated.get("description")):
            findings.append(f"{name}: does not state its {attribute} support, with a description")
        findings += [f"{name}: says again what the fragment says of {attribute}: {key}" for key in own if own[key] == known.get(key)]
    if documentation and documentation.get("module") != name:
        findings.append(f"{name}: documents itself as {documentation.get('module')}")
    if texts.get("EXAMPLES") and f"ironserve.llm.{name}:" not in texts["EXAMPLES"]:
        findings.append(f"{name}: no example calls ironserve.llm.{name}")
    return findings + maybe_secret(name, tree)


def maybe_secret(name: str, tree: ast.Module) -> list[str]:
    """Arguments that ansible-test takes for secrets by their name, and that do not say whether they are."""
    return [
        f"{name}: {key.value} may be a secret by its name: say no_log true or false"
        for node in ast.walk(tree)
        if isinstance(node, ast.Dict)
        for key, value in zip(node.keys, node.values, strict=True)
        if isinstance(key, ast.Constant)
        and re.search("pass(?!ive)|secret|token|cryptkey", str(key.value), re.I)
        and isinstance(value, ast.Dict)
        for words in [[word.value for word in value.keys if isinstance(word, ast.Constant)]]
        if "type" in words and "no_log" not in words
    ]


def action_group(runtime_text: str, names: list[str]) -> list[str]:
    """Findings where the action group ``llm`` and the modules that exist differ."""
    group = yaml.safe_load(runtime_text)["action_groups"]["llm"]
    findings = [f"{name} is not in the action group" for name in names if name not in group]
    findings += [f"the action group names {name}, which does not exist" for name in group if name not in names]
    if group != sorted(group):
        findings.append("the action group is not sorted")
    return findings


def nameless(name: str, source: str) -> list[str]:
    """Places where something is bound to ``_``, which ansible-test's pylint refuses; `make lint` would not see it."""
    tree = ast.parse(source)
    return [
        f"{name}:{node.lineno}"
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and node.id == "_" and isinstance(node.ctx, ast.Store)
    ]


def untested(sources: list[Path], tests: list[Path], texts: str) -> list[str]:
    """Python files without a unit test file named after them, nor any test that imports them."""
    names = {path.stem for path in tests}
    return [
        relative(path)
        for path in sources
        if f"test_{path.stem}" not in names and not re.search(rf"\b{re.escape(path.stem)}\b", texts) and path.stem != "__init__"
    ]


def unannotated(name: str, source: str) -> list[str]:
    """Public functions without full annotations, and a missing ``from __future__ import annotations``."""
    tree = ast.parse(source)
    findings = []
    if tree.body and not any(isinstance(node, ast.ImportFrom) and node.module == "__future__" for node in tree.body):
        findings.append(f"{name}: no from __future__ import annotations")
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.returns is None and node.name != "__init__":
            findings.append(f"{name}: {node.name} does not say what it returns")
    return findings


# ---- every file


def outside_knowledge(name: str, text: str) -> list[str]:
    """Findings where shipped content refers to what the artifact does not carry."""
    lines = text.splitlines()
    return [
        f"{name}:{number}: refers to {match.group(0)}"
        for number, line in enumerate(lines, 1)
        for match in [re.search(r"(?<![\w./-])(\.\./)*(inventories|molecule|tests)/", line)]
        if match and not line.lstrip().startswith("#")
    ]


def forbidden_words(name: str, text: str) -> list[str]:
    """Findings of words that must not stand in any tracked file."""
    return [
        f"{name}:{number}: {match.group(0)}"
        for number, line in enumerate(text.splitlines(), 1)
        for pattern in FORBIDDEN
        for match in [pattern.search(line)]
        if match
    ]


def head_of(name: str, text: str) -> list[str]:
    """Findings about the first lines of a file: the SPDX header of Python, the document start of YAML."""
    if name.endswith(".py") and text.strip() and SPDX not in "\n".join(text.splitlines()[:6]):
        return [f"{name}: no SPDX line at its head"]
    if name.endswith((".yml", ".yaml")) and text.strip() and not any(line == "---" for line in text.splitlines()[:4]):
        return [f"{name}: does not start with ---"]
    return []


def unlocked(name: str, plays: list[dict]) -> list[str]:
    """What a playbook does that may change something before it has the run lock of every host; ``plays`` in their order."""
    seen = []
    for play in plays:
        steps = [{"role": role} if isinstance(role, str) else role for role in play.get("roles", [])]
        steps = play.get("pre_tasks", []) + steps + play.get("tasks", []) + play.get("post_tasks", [])
        for step in steps:
            lock = step.get("ironserve.llm.run_lock")
            if lock is not None and lock.get("state", "present") == "present":
                short = [group for group in ("llm_node_group", "llm_gateway_group") if group not in play["hosts"]]
                return seen + ["{0}: the lock is not taken on the hosts of {1}".format(name, group) for group in short]
            (kind,) = [key for key in step if key == "role" or "." in key]
            loads = step[kind] if isinstance(step[kind], dict) else {}
            looks = step[kind] in LOOKS_ONLY or kind in LOOKS_ONLY or (loads.get("name"), loads.get("tasks_from")) in LOOKS_ONLY
            if not looks:
                seen.append("{0}: {1} comes before the run lock".format(name, step.get("name", step[kind])))
    return seen + ["{0}: takes no run lock".format(name)]


def plays_of(path: Path) -> list[dict]:
    """The plays of a playbook and of those it imports."""
    found = []
    for play in yaml.safe_load(path.read_text(encoding="utf-8")):
        imported = play.get("ansible.builtin.import_playbook")
        found += plays_of(path.parent / imported) if imported else [play]
    return found


def undeclared_collections(galaxy_text: str, texts: dict[str, str]) -> list[str]:
    """Collections that are used without being declared in galaxy.yml, and the other way round."""
    declared = set(yaml.safe_load(galaxy_text).get("dependencies") or {})
    used = {}
    for name, text in texts.items():
        for found in re.findall(
            r"\b((?:community|ansible)\.(?!builtin|module_utils|cfg|com\b)(?:docker|general|posix|utils|crypto))\.[a-z_]+", text
        ):
            used.setdefault(found, name)
    findings = [
        f"{name}: uses {collection}, which galaxy.yml does not declare" for collection, name in used.items() if collection not in declared
    ]
    return findings + [f"galaxy.yml declares {collection}, which nothing uses" for collection in sorted(declared - set(used))]


# ---- over the checkout


def ids(paths: list[Path]) -> list[str]:
    return [path.stem for path in paths]


@pytest.mark.parametrize("role", ROLES, ids=ids(ROLES))
def test_role_has_all_its_files(role: Path) -> None:
    assert role_layout(role) == []


@pytest.mark.parametrize("role", ROLES, ids=ids(ROLES))
def test_role_defaults_equal_its_specs(role: Path) -> None:
    defaults, specs = role / "defaults/main.yml", role / "meta/argument_specs.yml"
    assert defaults_against_specs(role.name, defaults.read_text(), specs.read_text()) == []


@pytest.mark.parametrize("role", ROLES, ids=ids(ROLES))
def test_role_main_is_a_table_of_contents(role: Path) -> None:
    assert contents_tags(role.name, (role / "tasks/main.yml").read_text(), tuple(other.name for other in ROLES)) == []


@pytest.mark.parametrize("path", MODULE_UTILS, ids=ids(MODULE_UTILS))
def test_module_utils_know_only_what_they_may(path: Path) -> None:
    assert module_utils_imports(path.name, path.read_text()) == []
    assert path.name == "__init__.py" or path.name.startswith("_")


@pytest.mark.parametrize("path", MODULES + MODULE_UTILS, ids=ids(MODULES + MODULE_UTILS))
def test_python_is_annotated(path: Path) -> None:
    assert unannotated(path.name, path.read_text()) == []


def test_nothing_that_sanity_looks_at_is_bound_to_an_underscore() -> None:
    places = [*ROOT.glob("plugins/**/*.py"), *ROOT.glob("tests/unit/plugins/**/*.py"), *ROOT.glob("tests/integration/**/*.py")]
    assert places and [line for path in places for line in nameless(relative(path), path.read_text())] == []


@pytest.mark.parametrize("path", MODULES, ids=ids(MODULES))
def test_module_has_all_its_parts(path: Path) -> None:
    assert module_parts(path.stem, path.read_text()) == []


def test_action_group_lists_every_module() -> None:
    assert action_group((ROOT / "meta/runtime.yml").read_text(), [path.stem for path in MODULES]) == []


def test_every_python_file_of_the_plugins_is_tested() -> None:
    tests = [path for path in ROOT.glob("tests/**/test_*.py") if path != Path(__file__)]
    texts = "\n".join(path.read_text() for path in tests)
    assert untested(sorted(ROOT.glob("plugins/*/*.py")), tests, texts) == []


def test_shipped_content_knows_nothing_outside_the_artifact() -> None:
    shipped = [
        path for path in tracked() if relative(path).split("/")[0] in ("roles", "plugins", "playbooks", "meta") and path.suffix != ".md"
    ]
    assert [finding for path in shipped for finding in outside_knowledge(relative(path), path.read_text(errors="replace"))] == []


def test_no_file_names_registries_or_this_machine() -> None:
    texts = [path for path in tracked() if path != Path(__file__) and path.stat().st_size < 1_000_000]
    assert [finding for path in texts for finding in forbidden_words(relative(path), path.read_text(errors="replace"))] == []


def test_every_file_begins_as_it_should() -> None:
    texts = [path for path in tracked() if path.suffix in (".py", ".yml", ".yaml")]
    assert [finding for path in texts for finding in head_of(relative(path), path.read_text())] == []


@pytest.mark.parametrize("name", ["site.yml", "playbooks/site.yml", "playbooks/rolling_update.yml", "playbooks/teardown.yml"])
def test_playbook_changes_nothing_before_it_has_the_lock(name: str) -> None:
    assert unlocked(name, plays_of(ROOT / name)) == []


def test_collections_in_use_are_declared() -> None:
    shipped = [path for path in tracked() if relative(path).split("/")[0] in ("roles", "playbooks") and path.suffix == ".yml"]
    assert undeclared_collections((ROOT / "galaxy.yml").read_text(), {relative(path): path.read_text() for path in shipped}) == []


PLAYBOOKS = [path for path in [ROOT / "site.yml", *sorted(ROOT.glob("playbooks/*.yml"))] if path.is_file()]


@pytest.mark.slow
@pytest.mark.parametrize("path", PLAYBOOKS, ids=ids(PLAYBOOKS))
def test_playbook_passes_the_syntax_check(path: Path) -> None:
    result = syntax_check(path)
    assert result.returncode == 0, result.stdout + result.stderr


def syntax_check(path: Path) -> subprocess.CompletedProcess:
    """Run ansible-playbook --syntax-check of this interpreter's environment on ``path``, as from the checkout."""
    command = [str(Path(sys.executable).with_name("ansible-playbook")), "--syntax-check", "-i", "localhost,", str(path)]
    environment = {**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_LOCALHOST_WARNING": "false"}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL)


# ---- each rule over a bad sample


def test_rule_role_layout_fails(tmp_path: Path) -> None:
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks/main.yml").write_text("---\n")
    findings = role_layout(tmp_path)
    assert len(findings) == 5 and not any("tasks/main.yml" in finding for finding in findings)


GOOD_DEFAULTS = '---\n# Whether.\nx_state: "present"\n# Port.\nx_port: 8000\n# Name; no default.\n# x_name: ""\n'
GOOD_SPECS = """---
argument_specs:
  main:
    options:
      x_state: {type: str, default: present, description: Whether.}
      x_port: {type: int, default: 8000, description: Port.}
      x_name: {type: str, required: true, description: Name.}
"""


@pytest.mark.parametrize(
    ("defaults", "specs", "expected"),
    [
        (GOOD_DEFAULTS, GOOD_SPECS, []),
        (GOOD_DEFAULTS.replace("8000", "8001"), GOOD_SPECS, ["x: x_port is 8001 in defaults and 8000 in the specs"]),
        (GOOD_DEFAULTS.replace("8000", '"8000"'), GOOD_SPECS, ["x: x_port is '8000' in defaults and 8000 in the specs"]),
        (GOOD_DEFAULTS + "x_more: 1\n", GOOD_SPECS, ["x: x_more is in defaults only"]),
        (GOOD_DEFAULTS, GOOD_SPECS + "      x_more: {type: int, default: 1, description: More.}\n", ["x: x_more is in the specs only"]),
        (GOOD_DEFAULTS, GOOD_SPECS.replace("required: true, ", ""), ["x: x_name has no default and is not required"]),
        (GOOD_DEFAULTS, GOOD_SPECS.replace(", description: Port.", ""), ["x: x_port has no description"]),
        (
            '---\nx_port: 8000\nx_state: "present"\n# x_name: ""\n',
            GOOD_SPECS,
            ["x: the order of defaults and specs differs"],
        ),
    ],
)
def test_rule_defaults_against_specs_fails(defaults: str, specs: str, expected: list[str]) -> None:
    assert defaults_against_specs("x", defaults, specs) == expected


def test_rule_contents_fails() -> None:
    good = "- {name: A, ansible.builtin.import_tasks: a.yml, tags: [x, x_a]}\n"
    assert contents_tags("x", good) == []
    assert len(contents_tags("x", good.replace("x_a", "y_a"))) == 1
    assert len(contents_tags("x", good.replace("x_a", "y"))) == 1
    assert contents_tags("x", good.replace("x_a", "y"), ("y",)) == []
    assert contents_tags("x", f"- block:\n  {good}") == []
    assert len(contents_tags("x", f"- block:\n  {good.replace('x_a', 'y_a')}")) == 1
    assert len(contents_tags("x", good.replace(", tags: [x, x_a]", ""))) == 1
    assert len(contents_tags("x", good + good.replace("import_tasks", "debug"))) == 1
    assert contents_tags("x", good.replace("import_tasks", "debug")) == []
    assert len(contents_tags("x", 4 * good.replace("import_tasks", "debug"))) == 4


@pytest.mark.parametrize(
    ("name", "source", "found"),
    [
        ("_a.py", f"import json\nfrom {FQCN}._errors import LLMError\nfrom {FQCN} import _b", 0),
        ("_http.py", "import requests", 0),
        ("_a.py", "import requests", 1),
        ("_a.py", "def f():\n    import docker", 1),
        ("_a.py", "from docker.errors import NotFound", 1),
        ("_a.py", "from ansible.module_utils.basic import AnsibleModule", 1),
        ("_a.py", "from ansible_collections.community.docker.plugins.module_utils import x", 1),
        ("_a.py", "from ansible_collections.ironserve.llm.plugins.modules import x", 1),
        ("_a.py", "import yaml", 1),
        ("_a.py", "import subprocess", 1),
        ("_run.py", "import subprocess", 0),
        ("_a.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import requests", 0),
    ],
)
def test_rule_imports_fails(name: str, source: str, found: int) -> None:
    assert len(module_utils_imports(name, source)) == found


GOOD_MODULE = f'''#!/usr/bin/python
# {SPDX}
DOCUMENTATION = """
module: m
extends_documentation_fragment: [ironserve.llm.attributes]
attributes: {{check_mode: {{support: full, description: d}}, diff_mode: {{support: none}}}}
"""
EXAMPLES = """
- ironserve.llm.m:
"""
RETURN = """x: y"""
SPEC = {{"max_tokens": {{"type": "int", "no_log": False}}, "path": {{"type": "path"}}}}
'''


@pytest.mark.parametrize(
    ("old", "new", "finding"),
    [
        ("", "", None),
        ("#!/usr/bin/python\n", "", "does not begin with"),
        (SPDX, "", "no SPDX line"),
        ("RETURN", "RETURNS", "no RETURN"),
        ("diff_mode: {support: none}", "", "diff_mode support"),
        ("full, description: d", "full, description: ''", "check_mode support, with a description"),
        ("[ironserve.llm.attributes]", "[ironserve.llm.weights.job]", "does not extend one of ironserve.llm.attributes, "),
        ("[ironserve.llm.attributes]", "[ironserve.llm.attributes, ironserve.llm.attributes.reads]", "does not extend one of"),
        ("{support: none}", "{support: none, description: Returns what has changed or would change.}", "says again"),
        ("module: m", "module: n", "documents itself as n"),
        ("ironserve.llm.m:", "m:", "no example calls"),
        (', "no_log": False', "", "max_tokens may be a secret by its name"),
        ('"path": {', '"passphrase": {', "passphrase may be a secret by its name"),
    ],
)
def test_rule_module_parts_fails(old: str, new: str, finding: str | None) -> None:
    findings = module_parts("m", GOOD_MODULE.replace(old, new) if old else GOOD_MODULE)
    assert findings == [] if finding is None else len(findings) == 1 and finding in findings[0]


def test_rule_action_group_fails() -> None:
    text = "action_groups: {llm: [b, a]}"
    assert len(action_group(text, ["a", "b"])) == 1
    assert len(action_group(text, ["a", "b", "c"])) == 2
    assert len(action_group("action_groups: {llm: [a, b]}", ["a"])) == 1


def test_rule_nameless_fails() -> None:
    assert nameless("x.py", "for _ in ():\n    pass\nfirst, _ = 1, 2\nall(_ for _ in ())\n_x = 1\n") == ["x.py:1", "x.py:3", "x.py:4"]


def test_rule_untested_fails(tmp_path: Path) -> None:
    assert untested([tmp_path / "_a.py"], [tmp_path / "test__a.py"], "") == []
    assert untested([tmp_path / "_a.py"], [], "from x import _a") == []
    assert untested([tmp_path / "_a.py"], [tmp_path / "test__b.py"], "from x import _ab") == ["_a.py"]


def test_rule_annotations_fails() -> None:
    assert unannotated("a", "from __future__ import annotations\ndef f() -> None: ...") == []
    assert len(unannotated("a", "def f(): ...")) == 2


def test_rule_outside_knowledge_fails() -> None:
    assert outside_knowledge("a", "path: /etc/tests/x\n# see tests/unit\n{{ playbook_dir }}/catalog") == []
    assert len(outside_knowledge("a", "src: ../../inventories/local\nsrc: tests/faults/x.py\nsrc: molecule/default")) == 3


@pytest.mark.parametrize(
    "word", ["https://pypi.org/simple", "deb.debian.org", "/root/.pyenv/x", "/work/main", "# TODO: later", "files.pythonhosted.org"]
)
def test_rule_forbidden_words_fails(word: str) -> None:
    assert len(forbidden_words("a", f"fine\nsee {word}")) == 1
    assert forbidden_words("a", "/srv/work/x and homework/x") == []


def test_rule_heads_fails() -> None:
    assert head_of("a.py", f"# {SPDX}\n") == head_of("a.yml", "---\na: 1\n") == head_of("a.py", "") == []
    assert len(head_of("a.py", "import x\n")) == len(head_of("a.yml", "a: 1\n")) == 1


LOCK = {"name": "Lock", "ironserve.llm.run_lock": {"path": "/run/lock.json"}}
EVERYWHERE = "{{ llm_node_group }}:{{ llm_gateway_group }}"


@pytest.mark.parametrize(
    ("plays", "expected"),
    [
        ([{"hosts": EVERYWHERE, "roles": ["ironserve.llm.catalog"], "tasks": [LOCK], "post_tasks": [{"a.b.copy": {}}]}], []),
        ([{"hosts": EVERYWHERE, "pre_tasks": [LOCK], "roles": ["ironserve.llm.replica"]}], []),
        (
            [{"hosts": EVERYWHERE, "roles": [{"role": "ironserve.llm.replica"}], "tasks": [LOCK]}],
            ["p: ironserve.llm.replica comes before the run lock"],
        ),
        (
            [{"hosts": "a", "tasks": [{"name": "Half", "ansible.builtin.import_role": {"name": "ironserve.llm.replica"}}]}],
            ["p: Half comes before the run lock", "p: takes no run lock"],
        ),
        ([{"hosts": "a", "tasks": [dict(LOCK, **{"ironserve.llm.run_lock": {"state": "absent"}})]}], None),
        ([{"hosts": "{{ llm_node_group }}", "tasks": [LOCK]}], ["p: the lock is not taken on the hosts of llm_gateway_group"]),
        ([], ["p: takes no run lock"]),
    ],
)
def test_rule_unlocked_fails(plays: list[dict], expected: list[str] | None) -> None:
    assert unlocked("p", plays) == (["p: Lock comes before the run lock", "p: takes no run lock"] if expected is None else expected)


def test_rule_undeclared_collections_fails() -> None:
    text = {"a.yml": "community.docker.docker_image_pull:"}
    assert undeclared_collections("dependencies: {community.docker: '*'}", text) == []
    assert undeclared_collections("dependencies: {}", text) == ["a.yml: uses community.docker, which galaxy.yml does not declare"]
    assert undeclared_collections("dependencies: {community.docker: '*'}", {}) == [
        "galaxy.yml declares community.docker, which nothing uses"
    ]


@pytest.mark.slow
def test_rule_syntax_check_fails(tmp_path: Path) -> None:
    (tmp_path / "bad.yml").write_text("---\n- hosts: all\n  tasks: [{ansible.builtin.nothing_such: {}}]\n")
    assert syntax_check(tmp_path / "bad.yml").returncode != 0
