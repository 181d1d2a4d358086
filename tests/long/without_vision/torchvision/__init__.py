# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Stands in for torchvision in an engine that reads no pictures: every module and every name is there, and none does anything.

vLLM imports the vision tower's Python whenever it loads Qwen3.5, also when it is told to leave the tower itself out.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types

#: transformers asks whether it is new enough.
__version__ = "0.28.0"


def refuse_dunder(name: str) -> None:
    """Names that Python itself asks for are not there."""
    if name.startswith("__"):
        raise AttributeError(name)


class Anything(type):
    """A class with every attribute."""

    def __getattr__(cls, name: str) -> type:
        refuse_dunder(name)
        return Nothing


class Nothing(metaclass=Anything):
    """What every name here stands for."""


class Module(types.ModuleType):
    """A module with every name."""

    def __getattr__(self, name: str) -> type:
        refuse_dunder(name)
        return Nothing


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds every module below this one."""

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> importlib.machinery.ModuleSpec | None:
        below = fullname.startswith(__name__ + ".")
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True) if below else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> Module:
        return Module(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


sys.meta_path.append(Finder())
