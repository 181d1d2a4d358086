# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What the modules about weights document alike. Their argument specs take the same from ``_manifest.OPTION`` and ``_jobs.OPTIONS``."""

from __future__ import annotations


class ModuleDocFragment:
    """Parts of documentation, by name."""

    MANIFEST = r"""
options:
  manifest:
    description: The files of the weights. Where the directory must hold them, it must hold no others.
    type: list
    elements: dict
    suboptions:
      path:
        description: Path relative to O(path), without C(..) and not absolute.
        type: str
        required: true
      size:
        description: Size in bytes.
        type: int
        required: true
      sha256:
        description: SHA-256 digest, 64 hex digits.
        type: str
        required: true
"""

    JOB = r"""
options:
  detach:
    description: Whether to return while a job works. Filled in on the controller; not for use in playbooks.
    type: bool
    default: false
  job:
    description: The job that is waited for. Filled in on the controller; not for use in playbooks.
    type: str
    default: ""
"""
