# SPDX-License-Identifier: Apache-2.0
"""Gaps of torch that only a patch can close: one function a gap, applied when first needed, listed here.

A module of this package defines the patch and calls `record` when it applies it. Where torch offers a moment between
`import torch_fl` and the first need (a first compile, a first import of a module), that moment applies the patch. Where
the first need is itself the call of a function that `import torch` has loaded, nothing but registering flagos comes
before it for certain; `apply_at_registration` is the complete list of those.
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


def apply_at_registration() -> None:
    """Applies the patches that no later moment can apply. May be called again; the second call does nothing."""
    from torch_fl import _C
    from torch_fl._compat import autograd_exit, data_parallel, sharing

    autograd_exit.apply()  # changes nothing in torch, so it is not recorded as a patch
    data_parallel.apply()
    sharing.apply()
    if _C._delegate():
        from torch_fl._compat import dlpack, rnn_weights

        dlpack.apply()
        rnn_weights.apply()
