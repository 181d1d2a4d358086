#!/usr/bin/python
# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
---
module: catalog_info
short_description: Choose platform, engine, model recipe and weights from the catalog
version_added: "0.1.0"
description:
  - Reads the collection's own catalog and the user's overlay directories on the controller, merges and checks them, and returns
    the entries that go together.
  - An overlay directory has the folders C(platforms), C(engines), C(models), C(compatibility) and C(log_messages), with one entry per file,
      C(probes) and C(files).
    An entry of the same name as a shipped one states only what differs.
  - Files that lie over an image's own (C(files) of a platform's container or a recipe) are found in C(files) of the directories and held
    against their digests; what has another content is refused.
  - It also compares the variables of the host with the options of the collection's roles, so that a mistyped variable is an error
    instead of a default.
author:
  - ironserve.llm contributors (@ironserve)
extends_documentation_fragment:
  - ironserve.llm.attributes.reads
options:
  platform:
    description: Name of the platform.
    type: str
    required: true
  model:
    description: Name of the model recipe; empty chooses the platform alone, which is enough to look at its cards.
    type: str
    default: ""
  engine:
    description: Name of the engine; empty takes the recipe's choice for the platform.
    type: str
    default: ""
  weights:
    description: Name of the weights variant; empty takes the recipe's choice for the platform.
    type: str
    default: ""
  overlays:
    description: Directories on the controller with the user's own entries; absent ones are passed over.
    type: list
    elements: path
    default: []
  check_variables:
    description: Whether to look for mistyped variables.
    type: bool
    default: true
"""

EXAMPLES = r"""
---
- name: Choose what goes together
  ironserve.llm.catalog_info:
    platform: cpu
    model: smollm2-135m
    overlays: ["{{ inventory_dir }}/catalog"]
  register: catalog
"""

RETURN = r"""
catalog:
  description:
    - The entries C(platform), C(engine), C(model) and C(weights), and the baseline C(settings).
    - C(log_messages) has what an engine's last words mean, by name, with C(pattern), C(cause) and C(fix).
    - C(compatibility) has the C(rows) and C(vulnerabilities) of the table that can concern this platform and engine, by id.
  returned: success
  type: dict
known:
  description: Names of all known entries by kind.
  returned: success
  type: dict
"""
