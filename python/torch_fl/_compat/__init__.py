# SPDX-License-Identifier: Apache-2.0
"""Gaps of torch that only a patch can close: one function a gap, applied when first needed, listed here.

A module of this package defines the patch and calls `record` when it applies it. Nothing needs one on torch 2.11 yet.
"""

from __future__ import annotations

from typing import NamedTuple


class Patch(NamedTuple):
    """One change made to torch in this process."""

    name: str  # what was changed, e.g. "torch.Tensor.__dlpack_device__"
    torch_versions: str  # minors that have the gap, e.g. "2.10-2.11"
    why: str


_applied: list[Patch] = []


def record(patch: Patch) -> None:
    """Notes that a patch is in force. A patch is noted once."""
    if patch not in _applied:
        _applied.append(patch)


def patches() -> list[Patch]:
    """The patches in force in this process, in the order in which they were applied."""
    return list(_applied)
