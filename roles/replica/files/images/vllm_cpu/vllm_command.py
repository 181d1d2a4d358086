# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The command "vllm" of this image; the wheels were unpacked without their programs."""

import os
import signal
import sys

set_handler = signal.signal


def leave_at_once(_number, _frame):
    """End the whole container: nothing is served yet, so there is nothing to finish."""
    os._exit(0)


def set_later_handler(number, handler):
    """Like ``signal.signal``, but vLLM's own handler for a stop while it starts, whose tidying up never ends, is not taken."""
    if getattr(handler, "__name__", "") == "_interrupt_init":
        handler = leave_at_once
    return set_handler(number, handler)


# The engine's processes import this file again, so nothing may happen at import.
if __name__ == "__main__":
    # The first process of a container ignores a signal that it has no handler for. Once it serves, vLLM has one that finishes
    # what was begun; until then a stop would wait until the container is killed.
    set_handler(signal.SIGTERM, leave_at_once)
    signal.signal = set_later_handler
    from vllm.entrypoints.cli.main import main

    sys.exit(main())
