#!/usr/bin/python
# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
---
module: replica_plan
short_description: Compute which replicas a host will run, and why
version_added: "0.1.0"
description:
  - Turns card facts and catalog data into the plan of one host, which every later step reads.
  - Runs on the controller, from facts alone. It contacts no host and changes nothing.
author:
  - ironserve.llm contributors (@ironserve)
extends_documentation_fragment:
  - ironserve.llm.attributes.reads
options:
  host:
    description: Inventory name of the host.
    type: str
    required: true
  address:
    description: Address the replicas' ports are bound to, and where the gateway reaches them.
    type: str
    default: 127.0.0.1
  catalog:
    description: Platform, engine, model, weights and settings, as M(ironserve.llm.catalog_info) returns them.
    type: dict
    required: true
  cards:
    description: Cards, as M(ironserve.llm.accelerator_info) returns them.
    type: list
    elements: dict
    required: true
  device_nodes:
    description: Numeric group id of each device node on the host, by path.
    type: dict
    default: {}
  image:
    description: Reference of the engine image.
    type: str
    required: true
  weights_path:
    description: Directory of the weights on the host.
    type: path
    required: true
  weights_id:
    description: Manifest id of the weights; a new one is a new spec.
    type: str
    default: ""
  weights_config:
    description: The C(config.json) the engine must see, on the host; one that lies elsewhere than with the weights is mounted over theirs.
    type: path
    default: ""
  weights_config_id:
    description: SHA-256 digest of it; a new one is a new spec.
    type: str
    default: ""
  weights_found:
    description:
      - What lies on the host, the C(found) of M(ironserve.llm.weights_info). The plan goes by it where the model's geometry is known, and says so.
      - When empty, the recipe's figures count.
    type: dict
    default: {}
  key_file:
    description: The file on the host that holds the engine key.
    type: path
    required: true
  key_id:
    description: Fingerprint of the engine key; a new one is a new spec.
    type: str
    default: ""
  cache_dir:
    description: Directory on the host with one cache directory per replica and image.
    type: path
    required: true
  files_dir:
    description: Directory on the host that holds the files which lie over an image's own, under their digests.
    type: path
    default: /var/lib/ironserve/files
  port_base:
    description: Port of the first card group; the others follow in card order.
    type: int
    default: 8001
  uid:
    description: Numeric user and group id the engines run as.
    type: int
    default: 64064
  network:
    description: Container network of the replicas.
    type: str
    default: ironserve
  settings:
    description: Engine settings, laid over the recipe's.
    type: dict
    default: {}
  environment:
    description: Environment variables, laid over the engine's.
    type: dict
    default: {}
  enhancements:
    description: Enhancements switched on (V(true)) or off (V(false)) by name.
    type: dict
    default: {}
  allow_forbidden:
    description: Forbidden pairs of enhancements to run all the same, as V(mtp+prefix_caching).
    type: list
    elements: str
    default: []
  count:
    description: Most replicas to plan; V(0) plans one per card group.
    type: int
    default: 0
  min_count:
    description: Fewest replicas worth serving with; fewer is an error.
    type: int
    default: 1
  allow_degraded:
    description: Leave out cards that are not healthy, instead of stopping.
    type: bool
    default: false
  aliases:
    description: Names beside the recipe's under which the model is served.
    type: list
    elements: str
    default: []
  engine_version:
    description: The engine's version, by which settings are spelled and checked; empty takes what the image's tag says, if that.
    type: str
    default: ""
  card_groups:
    description:
      - Numbers of the cards that share a replica, group by group; cards in no group are left alone.
      - When empty, neighbours share one, or cards of one NUMA node where the neighbours are on several.
    type: list
    elements: list
    default: []
"""

EXAMPLES = r"""
---
- name: Plan the host on the controller
  ironserve.llm.replica_plan:
    host: "{{ inventory_hostname }}"
    catalog: "{{ catalog_out }}"
    cards: "{{ accelerator_out.cards }}"
    image: ironserve/llama-cpp:0123456789ab
    weights_path: /var/lib/ironserve/weights/smollm2-135m/q4_1
    key_file: /etc/ironserve/keys/engine.key
    cache_dir: /var/lib/ironserve/cache
  delegate_to: localhost
  register: plan
"""

RETURN = r"""
plan:
  description:
    - The plan, with the keys C(host), C(platform), C(engine), C(model), C(weights), C(served_names), C(image), C(enhancements),
      C(replicas), C(left_out) and C(reasons). Memory is in MiB, lengths are in tokens.
  returned: success
  type: dict
lines:
  description: The plan as lines for a person.
  returned: success
  type: list
  elements: str
"""
