# SPDX-License-Identifier: Apache-2.0
"""torch.flagos: random numbers, against what torch.cuda documents for the same names."""

from __future__ import annotations

import io

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import torch_fl  # noqa: F401 - registers the device
from helpers import D

# Every test starts processes of its own, which import torch anew.
pytestmark = pytest.mark.slow

f = torch.flagos


@pytest.mark.parametrize("through_file", [False, True])
def test_rng_state_all(through_file: bool) -> None:
    """A4: saved states of all devices bring the same draws back, through a checkpoint as well."""
    states = f.get_rng_state_all()
    if through_file:
        file = io.BytesIO()
        torch.save({"rng": states}, file)
        file.seek(0)
        states = torch.load(file, weights_only=True)["rng"]
    assert len(states) == f.device_count()
    assert all(s.dtype == torch.uint8 and s.dim() == 1 and s.device.type == "cpu" for s in states)
    first = [torch.rand(3, device=f"flagos:{i}") for i in range(f.device_count())]
    f.set_rng_state_all(states)
    assert all(torch.equal(a, torch.rand(3, device=a.device)) for a in first)


def test_rng_states_are_apart(two_devices: None) -> None:
    state = f.get_rng_state("flagos:1")
    torch.rand(3, device="flagos:0")
    assert torch.equal(state, f.get_rng_state(1))
    torch.rand(3, device="flagos:1")
    assert not torch.equal(state, f.get_rng_state(1))


def test_fork_rng() -> None:
    """F6: fork_rng restores the device's state."""
    draws = []
    for _ in range(2):
        with torch.random.fork_rng(devices=[0], device_type=D):
            draws.append(torch.rand(4, device=D))
    assert torch.equal(*draws)


def test_manual_seed_reaches_all_devices() -> None:
    def draws() -> list[torch.Tensor]:
        return [torch.rand(4, device=f"flagos:{i}").cpu() for i in range(f.device_count())]

    torch.manual_seed(7)
    first = draws()
    assert f.initial_seed() == 7
    torch.manual_seed(7)
    assert all(torch.equal(a, b) for a, b in zip(first, draws(), strict=True))
    f.manual_seed_all(8)
    assert not torch.equal(first[0], draws()[0]) and f.initial_seed() == 8


def test_manual_seed_is_of_the_current_device(two_devices: None) -> None:
    before = f.get_rng_state(0)
    with f.device(1):
        f.manual_seed(123)
        assert f.initial_seed() == 123
    assert torch.equal(before, f.get_rng_state(0))


def test_seed_is_random() -> None:
    f.seed()
    first = f.initial_seed()
    f.seed()
    assert f.initial_seed() != first
    f.seed_all()
    assert len({g.initial_seed() for g in f.default_generators}) == 1


def test_default_generators() -> None:
    generators = f.default_generators
    assert len(generators) == f.device_count() and [g.device.index for g in generators] == list(range(len(generators)))
    assert generators[-1].device.index == len(generators) - 1 and len(generators[:1]) == 1
    generators[0].manual_seed(5)
    a = torch.rand(3, device=D)
    generators[0].manual_seed(5)
    assert torch.equal(a, torch.rand(3, device=D, generator=generators[0]))
    with pytest.raises(IndexError, match=f"index {len(generators)}"):
        generators[len(generators)]


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpoint_restores_dropout(use_reentrant: bool) -> None:
    """The recomputed forward draws the same mask, so the gradient is that of the first forward."""
    x = torch.ones(1000, device=D, requires_grad=True)
    y = checkpoint(lambda t: torch.nn.functional.dropout(t, 0.5), x, use_reentrant=use_reentrant)
    torch.rand(10, device=D)
    y.sum().backward()
    assert torch.equal(x.grad, y.detach())
