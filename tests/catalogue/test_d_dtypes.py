# SPDX-License-Identifier: Apache-2.0
"""Group D: dtypes and promotion."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

from helpers import D, same

DTYPES = [
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32,
    torch.uint64, torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128,
]  # fmt: skip


@pytest.mark.parametrize("source", DTYPES, ids=str)
def test_D1_every_cast_gives_what_the_cpu_gives(source: torch.dtype) -> None:
    values = [0, 1, 2, 100]
    if source.is_floating_point or source.is_complex:
        values += [-1, -3.7, float("nan"), float("inf"), float("-inf")]
    elif source.is_signed:
        values += [-1, -100]
    c = torch.tensor(values, dtype=torch.complex128 if source.is_complex else torch.float64).to(source)
    x = c.to(D)
    for target in DTYPES:
        same(x.to(target), c.to(target))
        same(torch.empty(len(values), dtype=target, device=D).copy_(x), torch.empty(len(values), dtype=target).copy_(c))
        same(c.to(D, target), c.to(target))
        torch.testing.assert_close(x.to("cpu", target), c.to(target), rtol=0, atol=0, equal_nan=True)


def test_D2_unsigned_dtypes() -> None:
    for dtype in (torch.uint16, torch.uint32, torch.uint64):
        same(torch.arange(4, device=D).to(dtype).to(torch.float32), torch.arange(4).to(dtype).to(torch.float32))
        same(torch.tensor([1, 2, 65535], device=D).to(dtype).to(torch.int64), torch.tensor([1, 2, 65535]))
        assert torch.tensor([3], dtype=dtype, device=D).item() == 3


def test_D4_unary_results_of_integers_are_floating() -> None:
    c = torch.arange(1, 4)
    for f in (torch.log, torch.log1p, torch.log2, torch.erf, torch.rad2deg, torch.sqrt, torch.sin, torch.sigmoid):
        assert f(c.to(D)).dtype == torch.float32
        same(f(c.to(D)), f(c))
    same(torch.atan2(c.to(D), c.to(D)), torch.atan2(c, c))


def same_dtype(f: Callable[..., torch.Tensor], a: torch.Tensor, b: Any, *others: Any) -> None:
    """f(a, b) on the device, also with each of `others` for b, has the dtype that the CPU gives it, or its error."""
    try:
        expected = f(a, b).dtype
    except NotImplementedError as error:  # torch 2.14 and later: bfloat16 with 1j is bcomplex32, which has no kernels
        assert "BComplex32" in str(error)
        for other in others:
            with pytest.raises(NotImplementedError, match=re.escape(str(error))):
                f(a.to(D), other)
        return
    for other in others:
        assert f(a.to(D), other).dtype == expected, (a.dtype, other, f)


def test_D4_the_promotion_table() -> None:
    numbers = (True, 2, 2.5, 1j)
    for dtype in DTYPES[:6] + DTYPES[9:]:
        c = torch.ones(2, dtype=dtype)
        for number in numbers:
            for f in (torch.add, torch.mul, torch.eq):
                if f is torch.add and dtype == torch.bool and number is True:
                    continue
                same_dtype(f, c, number, number)
    for a, b in itertools.product(DTYPES[:6] + DTYPES[9:], repeat=2):
        c, e = torch.ones(2, dtype=a), torch.ones(2, dtype=b)
        same_dtype(torch.mul, c, e, e.to(D))
        # 0-dim tensors rank below others of their category, on the device and on the CPU.
        same_dtype(torch.mul, c, e[0], e[0].to(D), e[0])
        assert torch.result_type(c.to(D), e[0].to(D)) == torch.result_type(c, e[0])


def test_D7_double_and_complex_stay_what_they_are() -> None:
    for dtype in (torch.float64, torch.complex64, torch.complex128):
        c = torch.randn(4, 4, dtype=dtype)
        x = c.to(D)
        for f in (lambda t: t @ t, lambda t: t * 2, lambda t: t.sum(0), torch.exp, torch.linalg.inv, torch.fft.fft):
            same(f(x), f(c), rtol=1e-5, atol=1e-5)
    angles = torch.outer(torch.arange(5.0, dtype=torch.float64), torch.arange(3.0, dtype=torch.float64))
    same(torch.polar(torch.ones_like(angles).to(D), angles.to(D)), torch.polar(torch.ones_like(angles), angles))


def test_D9_full_then_broadcasting_add() -> None:
    same(
        torch.full((1, 3, 1), 2.0, device=D) + torch.arange(4.0, device=D),
        torch.full((1, 3, 1), 2.0) + torch.arange(4.0),
    )
