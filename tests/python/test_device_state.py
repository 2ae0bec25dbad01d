# SPDX-License-Identifier: Apache-2.0
"""torch.flagos: random numbers and memory, against what torch.cuda documents for the same names."""

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


# -- memory -----------------------------------------------------------------------------------------------------------


def test_reset_peak_keeps_live_numbers() -> None:
    """I1: live counters survive a reset of the peaks and never become negative."""
    before = f.memory_allocated()
    x = torch.empty(4 << 20, dtype=torch.uint8, device=D)
    f.reset_peak_memory_stats()
    assert f.memory_allocated() >= before + (4 << 20)
    assert f.max_memory_allocated() == f.memory_allocated()
    y = torch.empty(8 << 20, dtype=torch.uint8, device=D)
    del y
    assert f.max_memory_allocated() >= f.memory_allocated() + (8 << 20)
    del x
    assert 0 <= f.memory_allocated() == before
    f.reset_peak_memory_stats()
    assert f.max_memory_allocated() == before


def test_memory_stats_keys() -> None:
    x = torch.empty(1 << 20, dtype=torch.uint8, device=D)
    stats = f.memory_stats()
    assert list(stats) == sorted(stats) and all(isinstance(v, int) and v >= 0 for v in stats.values())
    # The original plugin's nine names.
    for key in ("allocated_bytes", "reserved_bytes", "peak_allocated_bytes", "peak_reserved_bytes", "num_alloc_calls",
                "num_free_calls", "num_device_malloc", "num_device_free", "num_alloc_retries"):  # fmt: skip
        assert key in stats
    # What libraries read of torch.cuda's.
    for key in ("allocated_bytes.all.current", "allocated_bytes.all.peak", "active_bytes.all.peak",
                "reserved_bytes.all.current", "reserved_bytes.all.peak", "requested_bytes.all.current", "num_ooms",
                "inactive_split_bytes.all.current", "active.all.current", "allocation.all.allocated"):  # fmt: skip
        assert key in stats
    assert stats["allocated_bytes"] == stats["allocated_bytes.all.current"] == f.memory_allocated() >= x.nbytes
    assert stats["reserved_bytes"] == f.memory_reserved() >= f.memory_allocated()
    assert f.max_memory_reserved() >= f.memory_reserved()
    assert f.memory_allocated() == torch.accelerator.memory.memory_allocated()


def test_counts_since_the_start_can_be_reset() -> None:
    torch.empty(64, device=D)
    f.reset_accumulated_memory_stats()
    assert f.memory_stats()["allocation.all.allocated"] == 0
    x = torch.empty(64, device=D)
    stats = f.memory_stats()
    assert stats["allocation.all.allocated"] == 1 and stats["allocated_bytes.all.allocated"] >= x.nbytes
    assert stats["allocation.all.freed"] == 0


def test_empty_cache_gives_memory_back() -> None:
    x = torch.empty(32 << 20, dtype=torch.uint8, device=D)
    held = f.memory_reserved()
    del x
    f.empty_cache()
    assert f.memory_reserved() <= held - (32 << 20)


def test_memory_of_each_device_is_counted_apart(two_devices: None) -> None:
    before = f.memory_allocated(0), f.memory_allocated(1)
    x = torch.empty(1 << 20, dtype=torch.uint8, device="flagos:1")
    assert (f.memory_allocated(0), f.memory_allocated(1)) == (before[0], before[1] + x.nbytes)


def test_mem_get_info_shrinks() -> None:
    f.empty_cache()
    free, total = f.mem_get_info()
    x = torch.empty(64 << 20, dtype=torch.uint8, device=D)
    assert f.mem_get_info()[0] <= free - x.nbytes and f.mem_get_info()[1] == total


def test_old_reset_names_warn() -> None:
    for call in (f.reset_max_memory_allocated, f.reset_max_memory_cached):
        with pytest.warns(FutureWarning, match="reset_peak_memory_stats"):
            call()


def test_memory_summary() -> None:
    x = torch.empty(3 << 20, dtype=torch.uint8, device=D)
    text = f.memory_summary()
    assert "device 0" in text and "Allocated memory" in text and "MiB" in text and x.nbytes
    assert len(f.memory_summary(abbreviated=True).splitlines()) < len(text.splitlines())
