# SPDX-License-Identifier: Apache-2.0
"""Group M: complex numbers, the conjugate bit and the negative bit."""

from __future__ import annotations

import torch

import torch_fl
from helpers import D, like_cpu, same


def test_M1_resolving_the_bits_changes_the_values() -> None:
    z = torch.tensor([1 + 2j], device=D)
    assert z.conj().is_conj() and not z.is_conj()
    assert z.conj().resolve_conj().imag.item() == -2
    assert z.conj().cpu().imag.item() == -2
    assert z.conj().imag.is_neg()
    assert z.conj().imag.resolve_neg().item() == -2
    assert z.conj().imag.cpu().item() == -2
    assert not z.conj().resolve_conj().is_conj()


def test_M1_the_bits_through_every_way_of_copying() -> None:
    c = torch.tensor([1 + 2j, 3 - 4j])
    x = c.to(D)
    target = torch.empty(2, dtype=torch.complex64, device=D)
    assert target.copy_(x.conj()).cpu().tolist() == [1 - 2j, 3 + 4j]
    assert torch.empty(2, dtype=torch.complex64).copy_(x.conj()).tolist() == [1 - 2j, 3 + 4j]
    assert target.copy_(c.conj()).cpu().tolist() == [1 - 2j, 3 + 4j]
    assert c.conj().to(D).cpu().tolist() == [1 - 2j, 3 + 4j]
    assert x.conj().clone().cpu().tolist() == [1 - 2j, 3 + 4j]
    assert x.conj().to(torch.complex128).cpu().tolist() == [1 - 2j, 3 + 4j]
    assert x.conj().tolist() == [1 - 2j, 3 + 4j] and x.conj()[1].item() == 3 + 4j
    assert x.conj().imag.clone().cpu().tolist() == [-2.0, 4.0]
    real = torch.empty(2, device=D)
    assert real.copy_(x.conj().imag).cpu().tolist() == [-2.0, 4.0]
    view = target.conj()
    view.copy_(x)
    assert target.cpu().tolist() == [1 - 2j, 3 + 4j], "a write through a conjugate view"


def test_M1_the_bits_in_arithmetic_and_gradients() -> None:
    a, b = torch.randn(3, 3, dtype=torch.complex64), torch.randn(3, 3, dtype=torch.complex64)
    for f in (
        lambda x, y: x.conj() @ y,
        lambda x, y: x @ y.mH,
        lambda x, y: (x.conj() + y).resolve_conj(),
        lambda x, y: x.conj().imag + y.real,
        lambda x, y: torch.cat([x.conj(), y]),
        lambda x, y: x.conj().sum(0),
        lambda x, y: torch.vdot(x[0], y[0]),
        lambda x, y: x.conj().abs(),
        lambda x, y: torch.linalg.solve(x.conj(), y),
        lambda x, y: torch.where(x.real > 0, x.conj(), y),
    ):
        like_cpu(f, a, b, rtol=1e-5, atol=1e-5)
    like_cpu(lambda x: (x.conj() * x).real.sum(), a.clone().requires_grad_(), rtol=1e-5, atol=1e-5)
    like_cpu(lambda x: torch.view_as_real(x.conj().resolve_conj()), a)


def test_M3_the_conjugate_is_a_bit() -> None:
    z = torch.randn(100, dtype=torch.complex64, device=D)
    before = torch.flagos.memory_allocated()
    y = z.conj()
    assert y.data_ptr() == z.data_ptr() and y.is_conj()
    assert z.conj().imag.data_ptr() == z.data_ptr() + 4
    assert torch.flagos.memory_allocated() == before
    assert y.conj().data_ptr() == z.data_ptr() and not y.conj().is_conj()


def test_M4_a_fallback_resolves_the_bits_first(forced_cpu: None) -> None:
    a, b = torch.randn(2, 3, 4, dtype=torch.complex64), torch.randn(2, 4, 5, dtype=torch.complex64)
    torch_fl.reset_counters()
    like_cpu(
        lambda m, x, y: torch.addbmm(m, x.conj(), y),
        torch.randn(3, 5, dtype=torch.complex64),
        a,
        b,
        rtol=1e-5,
        atol=1e-5,
    )
    assert any(row["route"] == "cpu" for row in torch_fl.counters())
    for f in (
        lambda x: x.conj() * 2,
        lambda x: x.conj().imag * 2,
        lambda x: x.conj().sum(1),
        lambda x: torch.nn.functional.group_norm(x.conj().imag, 3),
        lambda x: x.clone().conj_physical_(),
        lambda x: x.conj().clone().mul_(2),
    ):
        like_cpu(f, a, rtol=1e-5, atol=1e-5)
    x, e = a.to(D), a.clone()
    x.conj().mul_(1j)  # written back through the bit
    e.conj().mul_(1j)
    same(x, e)
    x.conj().imag.add_(1)
    e.conj().imag.add_(1)
    same(x, e)
