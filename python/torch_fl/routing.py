# SPDX-License-Identifier: Apache-2.0
"""Which operators flagos runs, and what it may do when one has no kernel."""

from __future__ import annotations

from collections.abc import Sequence

from torch_fl import _C


def get_registered_ops() -> list[str]:
    """Every overload that has a flagos route, such as `"aten::add.Tensor"`, sorted.

    Operators that other libraries registered since the last look are picked up first.
    """
    _C._rescan_routes()
    return _C._routed_ops()


def get_fallback_policy() -> str:
    """`"allow"`, `"warn"` or `"error"`: what happens when an operator can only run as a copying CPU fallback."""
    return _C._get_fallback_policy()


def set_fallback_policy(policy: str) -> None:
    """Sets what happens when an operator can only run as a copying CPU fallback, for the whole process.

    Args:
        policy: `"allow"` is silent, `"warn"` warns once for every operator, `"error"` raises RuntimeError.

    Raises:
        ValueError: another word.
    """
    if policy not in ("allow", "warn", "error"):
        raise ValueError(f"set_fallback_policy: policy is {policy!r}, known are 'allow', 'warn', 'error'")
    _C._set_fallback_policy(policy)


def keep_on_cpu(op: str, outputs: int | Sequence[int] = 0) -> None:
    """Declares outputs of a custom operator that are CPU tensors by design, so that flagos does not adopt them.

    Args:
        op: qualified name with the overload after a dot if it has one, `"my::sizes"` or `"my::sizes.out"`.
        outputs: position, or positions, of those outputs; 0 is the first one.

    Raises:
        ValueError: the name has no namespace, or a position is negative.
    """
    positions = [outputs] if isinstance(outputs, int) else list(outputs)
    if "::" not in op:
        raise ValueError(f"keep_on_cpu: op is {op!r}, expected 'namespace::name' or 'namespace::name.overload'")
    if any(position < 0 for position in positions):
        raise ValueError(f"keep_on_cpu: outputs is {outputs!r}, positions count from 0")
    _C._keep_on_cpu(op, positions)
