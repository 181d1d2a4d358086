#!/usr/bin/python
# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
---
module: accelerator_preflight
short_description: Judge whether a host is fit for what shall run on it
version_added: "0.1.0"
description:
  - Runs on the controller, from what M(ironserve.llm.accelerator_info) and M(ironserve.llm.accelerator_host_info) read, the catalog and the
    user's wishes. It contacts no host.
  - Looks at the cards (product, versions, who holds them, links), the host (kernel, limits, IOMMU, engine, space, ports, firewall, clock),
    the wishes (variables, settings and rights that are known to go wrong), and the compatibility table with its known vulnerabilities.
  - What could not be found out is V(unknown), which is not good.
author:
  - ironserve.llm contributors (@ironserve)
extends_documentation_fragment:
  - ironserve.llm.attributes.reads
options:
  probe_result:
    description: What M(ironserve.llm.accelerator_info) left, whether it succeeded or not.
    type: dict
    required: true
  host_result:
    description: What M(ironserve.llm.accelerator_host_info) left, whether it succeeded or not.
    type: dict
    required: true
  catalog:
    description: What M(ironserve.llm.catalog_info) chose. A platform alone is enough; engine and model add checks.
    type: dict
    required: true
  settings:
    description: The user's engine settings, laid over the recipe's.
    type: dict
    default: {}
  environment:
    description: The user's environment variables, laid over the engine's.
    type: dict
    default: {}
  enhancements:
    description: The user's choice of enhancements, by name.
    type: dict
    default: {}
  allow_forbidden:
    description: Forbidden pairs of enhancements that may run all the same.
    type: list
    elements: str
    default: []
  image:
    description: The engine image that will be used; empty takes the catalog's.
    type: dict
    default: {}
  expected_products:
    description: Products the cards may be. Without it the platform's C(card.products) count; an empty list asks nothing.
    type: list
    elements: str
  expected_architectures:
    description: Architectures the cards may have. Without it the platform's C(card.architectures) count; an empty list asks nothing.
    type: list
    elements: str
  expected_versions:
    description: Conditions such as V(>=6.3) on C(driver), C(runtime), C(firmware) and C(tool), for a site that pins them.
    type: dict
    default: {}
  space_mib:
    description: How many MiB will be written under each path that M(ironserve.llm.accelerator_host_info) looked at.
    type: dict
    default: {}
  image_mib:
    description: Size of the engine image, in MiB, for the engine's own directory; needed only while the image is not on the host.
    type: int
    default: 0
  address:
    description: Address the replicas listen on.
    type: str
    default: ""
"""

EXAMPLES = r"""
---
- name: Judge the host
  ironserve.llm.accelerator_preflight:
    probe_result: "{{ accelerators }}"
    host_result: "{{ host }}"
    catalog: "{{ catalog_out }}"
    expected_versions: {driver: ">=6.3"}
  register: preflight
"""

RETURN = r"""
checks:
  description: Checks, each with C(name), C(status), C(detail) and C(fix).
  returned: success
  type: list
  elements: dict
lines:
  description: The checks as lines for a person; those that do not apply share one.
  returned: success
  type: list
  elements: str
status:
  description: V(0) when every check is good, V(1) when one failed, V(2) when one could not tell.
  returned: success
  type: int
ok:
  description: Whether every check lets a deployment go on.
  returned: success
  type: bool
"""
