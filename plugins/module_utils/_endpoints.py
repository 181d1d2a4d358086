# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Where inference is asked for. A file of its own: who only wants to know where needs none of what asks. Private to the collection."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Endpoint:
    """Where one replica, or the gateway, answers. ``url`` has no path."""

    name: str
    url: str
    api_key_file: str = ""
    container: str = ""
    cards: tuple = ()
    platform: str = ""
    #: How the platform's cards are read, as ``_card_use.sampler`` takes it.
    tools: dict = dataclasses.field(default_factory=dict)
