# SPDX-License-Identifier: Apache-2.0
"""Group G: data loading, page-locked memory, copies that do not block. Their order is in test_h_streams.py."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import torch_fl  # noqa: F401 - registers the device
from helpers import D, run_ok
from torch_fl import _C

needs_pinned = pytest.mark.skipif(
    "host_alloc" in _C._driver_info()["missing_entries"], reason="the driver has no page-locked memory"
)


@needs_pinned
def test_G1_the_data_loader_pins() -> None:
    loader = DataLoader(TensorDataset(torch.arange(4.0), torch.arange(4)), batch_size=2, pin_memory=True)
    for numbers, labels in loader:
        assert numbers.is_pinned() and labels.is_pinned()
        assert numbers.to(D, non_blocking=True).cpu().equal(numbers)
    assert next(iter(DataLoader(torch.arange(4.0), pin_memory=True))).is_pinned()
    assert not next(iter(DataLoader(torch.arange(4.0)))).is_pinned()


@needs_pinned
@pytest.mark.slow
def test_G1_the_data_loader_pins_with_workers() -> None:
    """The device is in use before the workers are forked, and the thread that pins works beside the training."""
    run_ok(
        """
        import torch, torch_fl
        from torch.utils.data import DataLoader
        weight = torch.ones(1, device="flagos")
        for context in ("fork", "spawn"):
            loader = DataLoader(torch.arange(32.0), batch_size=4, pin_memory=True, num_workers=2,
                                multiprocessing_context=context)
            for _ in range(2 if context == "fork" else 1):
                seen = []
                for batch in loader:
                    assert batch.is_pinned()
                    seen.append(batch.to("flagos", non_blocking=True) * weight)
                assert torch.equal(torch.cat(seen).cpu(), torch.arange(32.0)), context
        """
    )


@needs_pinned
def test_G3_a_copy_to_the_host_that_does_not_block_is_pinned() -> None:
    x = torch.ones(4, device=D)
    host = x.to("cpu", non_blocking=True)
    assert host.is_pinned()
    torch.flagos.synchronize()
    assert host.equal(torch.ones(4))
    assert not x.to("cpu").is_pinned() and not x.cpu().is_pinned()


@needs_pinned
def test_G3_dtype_and_layout_survive_a_copy_that_does_not_block() -> None:
    x = torch.arange(12.0, device=D).view(3, 4)
    for view in (x.t(), x[:, ::2], x[1:], x.expand(2, 3, 4)):
        host = view.to("cpu", torch.float64, non_blocking=True)
        torch.flagos.synchronize()  # the conversion below reads it on the host
        back = host.to(D, torch.float32, non_blocking=True)
        torch.flagos.synchronize()
        assert host.dtype == torch.float64 and torch.equal(host, view.cpu().double())
        assert torch.equal(back, view)


@needs_pinned
def test_G4_pinned_memory() -> None:
    plain = torch.arange(10.0)
    assert not plain.is_pinned() and not plain[2:].is_pinned()
    pinned = plain.pin_memory()
    assert pinned.is_pinned() and pinned.equal(plain) and pinned.device.type == "cpu"
    assert pinned[3:].is_pinned() and pinned.view(2, 5).t().is_pinned()
    assert pinned.pin_memory() is pinned or pinned.pin_memory().data_ptr() == pinned.data_ptr()
    assert torch.empty(4, pin_memory=True).is_pinned() and torch.zeros(4, pin_memory=True).is_pinned()
    assert not pinned.clone().is_pinned()
    x = torch.ones(3, device=D)
    assert not x.is_pinned() and not x.to("cpu", copy=True).is_pinned()
    with pytest.raises(RuntimeError, match="(?i)pin"):
        x.pin_memory()
    with pytest.raises(RuntimeError, match="(?i)pin"):
        torch.empty(4, device=D, pin_memory=True)


@needs_pinned
def test_G4_factories_keep_the_wish_to_pin() -> None:
    assert torch.empty_like(torch.ones(4), pin_memory=True).is_pinned()
    assert torch.ones(4).new_empty(3, pin_memory=True).is_pinned()
