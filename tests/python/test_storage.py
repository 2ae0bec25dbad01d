# SPDX-License-Identifier: Apache-2.0
"""Storages, the memory they own, and the tensors that share one."""

from __future__ import annotations

import gc

import numpy
import pytest
import torch

from helpers import D, same


def test_views_share_one_storage() -> None:
    x = torch.arange(12.0, device=D).view(3, 4)
    for view in (x[1:], x.t(), x.view(-1), x[:, ::2], x.unfold(0, 2, 1), x.diagonal(), x.detach(), x.expand(2, 3, 4)):
        assert view.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
        assert view.untyped_storage()._cdata == x.untyped_storage()._cdata
    x[1:].zero_()
    assert x.cpu().sum().item() == 0 + 1 + 2 + 3


def test_a_view_keeps_the_memory_alive() -> None:
    gc.collect()
    before = torch.flagos.memory_allocated()
    x = torch.full((1 << 16,), 2.0, device=D)
    tail = x[-4:]
    del x
    gc.collect()
    assert torch.flagos.memory_allocated() >= before + (4 << 16)
    assert tail.cpu().tolist() == [2.0] * 4
    del tail
    gc.collect()
    assert torch.flagos.memory_allocated() == before


def test_a_result_keeps_its_memory_after_its_inputs_died() -> None:
    x = torch.arange(100.0, device=D)
    y = (x + 1).view(10, 10).t()
    del x
    junk = [torch.full((100,), -1.0, device=D) for _ in range(10)]
    assert torch.equal(y.cpu(), (torch.arange(100.0) + 1).view(10, 10).t())
    del junk


def test_storage_properties() -> None:
    storage = torch.arange(6, dtype=torch.int32, device=D).untyped_storage()
    assert storage.device == torch.device("flagos:0")
    assert storage.nbytes() == 24 and len(storage) == 24
    assert storage.cpu().device.type == "cpu" and storage.cpu().nbytes() == 24
    clone = storage.clone()
    assert clone.device.type == D and clone.data_ptr() != storage.data_ptr()
    typed = torch.arange(6, dtype=torch.int32, device=D)
    assert torch.tensor([], dtype=torch.int32, device=D).set_(clone).cpu().tolist() == typed.cpu().tolist()


def test_storage_is_resized_to_0_and_back() -> None:
    gc.collect()
    x = torch.ones(1 << 16, device=D)
    held = torch.flagos.memory_allocated()
    storage = x.untyped_storage()
    storage.resize_(0)
    assert storage.nbytes() == 0
    assert torch.flagos.memory_allocated() == held - (4 << 16), "the memory was not given back"
    assert x.shape == (1 << 16,)  # FSDP keeps the shape and drops the bytes
    storage.resize_(4 << 16)
    assert torch.flagos.memory_allocated() == held
    x.fill_(3.0)
    assert (x + 1).sum().item() == 4.0 * (1 << 16)
    assert x.untyped_storage().data_ptr() == x.data_ptr() != 0


def test_growing_a_storage_keeps_the_bytes() -> None:
    x = torch.arange(4.0, device=D)
    x.untyped_storage().resize_(64)
    y = torch.empty(0, device=D).set_(x.untyped_storage(), 0, (16,), (1,))
    assert y[:4].cpu().tolist() == [0.0, 1.0, 2.0, 3.0]
    x.resize_(8)
    assert x[:4].cpu().tolist() == [0.0, 1.0, 2.0, 3.0] and x.shape == (8,)


def test_resize_through_a_view_is_seen_by_the_base() -> None:
    x = torch.arange(4.0, device=D)
    y = x.detach()
    (x + 1)  # the storage has been routed already
    y.resize_(1000)
    y.zero_()
    assert x.cpu().tolist() == [0.0] * 4, "base and view parted"
    x.add_(1)
    assert y[:5].cpu().tolist() == [1.0, 1.0, 1.0, 1.0, 0.0]


def test_set_moves_a_tensor_to_another_storage() -> None:
    x, y = torch.arange(6.0, device=D), torch.zeros(2, device=D)
    y + 1
    y.set_(x)
    assert y.data_ptr() == x.data_ptr() and y.shape == (6,)
    y.add_(1)
    assert x.cpu().tolist() == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    y.set_(x.untyped_storage(), 2, (2, 2), (2, 1))
    assert (y * 1).cpu().tolist() == [[3.0, 4.0], [5.0, 6.0]]
    y.set_()
    assert y.numel() == 0


def test_set_refuses_a_cpu_storage() -> None:
    with pytest.raises(RuntimeError):
        torch.zeros(2, device=D).set_(torch.zeros(2).untyped_storage())
    with pytest.raises(RuntimeError):
        torch.zeros(2).set_(torch.zeros(2, device=D).untyped_storage())


def test_empty_tensors() -> None:
    x = torch.empty(0, 3, device=D)
    assert (x + 1).shape == (0, 3) and x.sum().item() == 0.0
    assert torch.cat([x, torch.ones(1, 3, device=D)]).cpu().tolist() == [[1.0] * 3]
    assert x.clone().device.type == D and x.cpu().shape == (0, 3)
    x.resize_(2, 3).fill_(5.0)
    assert x.cpu().tolist() == [[5.0] * 3] * 2


def test_data_assignment_keeps_the_parameter() -> None:
    p = torch.nn.Parameter(torch.zeros(3, device=D))
    p + 1
    p.data = torch.arange(3.0, device=D)
    assert (p * 2).detach().cpu().tolist() == [0.0, 2.0, 4.0]
    p.data = torch.ones(5)  # to the CPU and to another shape
    assert p.device.type == "cpu" and p.shape == (5,) and (p + 1).sum().item() == 10.0
    p.data = torch.full((2,), 4.0, device=D)
    assert p.device.type == D and (p + 1).detach().cpu().tolist() == [5.0, 5.0]
    (p * 2).sum().backward()
    assert p.grad is not None and p.grad.device.type == D


def test_the_device_has_all_its_names() -> None:
    x = torch.ones(2, device="privateuseone")
    assert x.device == torch.device("flagos:0") == torch.device("privateuseone:0")
    assert str(x.device) == "flagos:0"
    assert x.is_flagos and not torch.ones(1).is_flagos
    assert x.flagos() is x
    moved = torch.ones(2).flagos()
    assert moved.device.type == D
    assert torch.nn.Linear(1, 1).flagos().weight.is_flagos
    assert torch.utils.backend_registration._get_custom_mod_func("device_count")() == torch.flagos.device_count()
    assert "flagos:0" in repr(x)


def test_to_and_back() -> None:
    c = torch.randn(4, 6)
    for source in (c, c.t(), c[:, ::2], c.double(), c.to(torch.bfloat16), c.to(memory_format=torch.contiguous_format)):
        x = source.to(D)
        same(x, source.to("cpu", copy=True))
        assert torch.equal(x.cpu(), source) and x.cpu().stride() == x.stride()
    x = c.to(D)
    assert x.to(D) is x and x.to("flagos:0") is x and x.to(torch.float32) is x
    copied = x.to(D, copy=True)
    assert copied is not x and copied.data_ptr() != x.data_ptr()
    assert x.to("cpu", torch.float64).dtype == torch.float64
    image = torch.randn(2, 3, 4, 4).to(D, memory_format=torch.channels_last)
    assert image.is_contiguous(memory_format=torch.channels_last)
    assert torch.tensor(numpy.arange(3), device=D).cpu().tolist() == [0, 1, 2]
    assert torch.as_tensor([1, 2], device=D).is_flagos


def test_empty_strided_and_like() -> None:
    x = torch.empty_strided((2, 3), (1, 2), device=D)
    assert x.stride() == (1, 2) and torch.empty_like(x).stride() == (1, 2)
    assert torch.zeros_like(x).cpu().eq(0).all() and torch.ones_like(x, dtype=torch.int64).dtype == torch.int64
    assert x.new_empty(3).device == x.device and x.new_tensor([1.0]).device == x.device
    with pytest.raises(RuntimeError):
        torch.empty(-1, device=D)


def test_dlpack_refuses_or_shares() -> None:
    x = torch.arange(4.0, device=D)
    try:
        y = torch.from_dlpack(x)
    except (RuntimeError, BufferError, ValueError, TypeError) as error:
        assert str(error), "an empty refusal"
    else:
        assert y.device == x.device
        y[0] = 9.0
        assert x[0].item() == 9.0, "DLPack made a copy that silently diverges"
    with pytest.raises((RuntimeError, BufferError, ValueError, TypeError)):
        numpy.from_dlpack(x)


def test_storage_of_a_complex_part() -> None:
    z = torch.tensor([1 + 2j, 3 - 4j], device=D)
    z.real.mul_(10)
    assert z.cpu().tolist() == [10 + 2j, 30 - 4j]
    assert torch.view_as_real(z).data_ptr() == z.data_ptr()
    assert z.imag.data_ptr() == z.data_ptr() + 4
    assert z.view(torch.float32).cpu().tolist() == [10.0, 2.0, 30.0, -4.0]
