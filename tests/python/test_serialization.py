# SPDX-License-Identifier: Apache-2.0
"""Saving, loading, pickling and copying of tensors and modules."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import pytest
import torch

from helpers import D, run_ok, same


def through_file(value: Any, **options: Any) -> Any:
    """`value` after torch.save and torch.load."""
    buffer = io.BytesIO()
    torch.save(value, buffer)
    buffer.seek(0)
    return torch.load(buffer, **options)


@pytest.mark.parametrize("weights_only", [True, False])
def test_a_tensor_comes_back_where_it_was(weights_only: bool) -> None:
    c = torch.randn(3, 4)
    y = through_file(c.to(D), weights_only=weights_only)
    assert y.device == torch.device("flagos:0")
    same(y, c)
    same(y + 1, c + 1)
    y.add_(1)
    same(y, c + 1)


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.int8, torch.bool, torch.complex64, torch.float64]
)
def test_dtypes(dtype: torch.dtype) -> None:
    c = torch.tensor([0, 1, 1, 0]).to(dtype)
    same(through_file(c.to(D)), c)


def test_map_location_moves_between_devices(two_devices: None) -> None:
    c = torch.randn(5)
    assert through_file(c.to(D), map_location="cpu").device.type == "cpu"
    assert through_file(c, map_location=D).device == torch.device("flagos:0")
    assert through_file(c, map_location="flagos:1").device == torch.device("flagos:1")
    assert through_file(c, map_location=torch.device("flagos", 1)).device == torch.device("flagos:1")
    assert through_file(c.to("flagos:1")).device == torch.device("flagos:1")
    assert through_file(c.to(D), map_location={"flagos:0": "flagos:1"}).device == torch.device("flagos:1")
    assert through_file(c.to(D), map_location={"flagos:0": "cpu"}).device.type == "cpu"
    assert through_file(c.to("flagos:1"), map_location=lambda storage, location: storage).device.type == "cpu"
    y = through_file(c, map_location="flagos:1")
    assert torch.equal(y.cpu(), c) and torch.equal((y * 2).cpu(), c * 2)


def test_a_file_from_a_device_loads_without_the_plugin(tmp_path: Any) -> None:
    torch.save({"w": torch.arange(4.0, device=D)}, tmp_path / "file.pt")
    path = str(tmp_path / "file.pt")
    run_ok(
        f"""
        import os, torch
        os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
        assert torch.load({path!r}, map_location="cpu")["w"].tolist() == [0.0, 1.0, 2.0, 3.0]
        """,
        TORCH_DEVICE_BACKEND_AUTOLOAD="0",
    )


def test_shared_storages_stay_shared() -> None:
    x = torch.arange(10.0, device=D)
    a, b = through_file([x[:6], x[4:]])
    assert a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()
    a[5] = -1.0
    assert b[1].item() == -1.0


def test_views_keep_their_strides() -> None:
    c = torch.randn(4, 6)
    same(through_file(c.to(D).t()[::2]), c.t()[::2])


def test_modules_and_optimizers() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3)).to(D)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(5, 4, device=D)).sum().backward()
    optimizer.step()
    state = through_file({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    assert all(v.device.type == D for v in state["model"].values())
    other = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3)).to(D)
    other.load_state_dict(state["model"])
    fresh = torch.optim.Adam(other.parameters())
    fresh.load_state_dict(state["optimizer"])
    x = torch.randn(2, 4, device=D)
    model.eval(), other.eval()
    assert torch.equal(model(x), other(x))
    moments = fresh.state[next(iter(other.parameters()))]
    assert moments["exp_avg"].device.type == D
    # Loading into a module on another device moves the values.
    cpu = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))
    cpu.load_state_dict(state["model"])
    assert torch.equal(cpu[0].weight, model[0].weight.cpu())


@pytest.mark.parametrize(
    "duplicate", [copy.deepcopy, lambda t: pickle.loads(pickle.dumps(t))], ids=["deepcopy", "pickle"]
)
def test_duplicates_are_independent(duplicate: Any) -> None:
    x = torch.arange(4.0, device=D)
    y = duplicate(x)
    assert y.device == x.device and y.data_ptr() != x.data_ptr() and torch.equal(x, y)
    y.add_(1)
    assert x.cpu().tolist() == [0.0, 1.0, 2.0, 3.0] and y.cpu().tolist() == [1.0, 2.0, 3.0, 4.0]
    p = duplicate(torch.nn.Parameter(x))
    assert isinstance(p, torch.nn.Parameter) and p.device == x.device and p.requires_grad
    (p * 2).sum().backward()
    assert p.grad is not None and p.grad.cpu().tolist() == [2.0] * 4


def test_deepcopy_keeps_sharing_inside() -> None:
    x = torch.zeros(4, device=D)
    first, second = copy.deepcopy([x, x[1:]])
    first.fill_(1.0)
    assert second.cpu().tolist() == [1.0] * 3 and x.sum().item() == 0.0


def test_deepcopy_of_a_module() -> None:
    model = torch.nn.LSTM(3, 4).to(D)
    twin = copy.deepcopy(model)
    x = torch.randn(5, 2, 3, device=D)
    assert torch.equal(model(x)[0], twin(x)[0])
    with torch.no_grad():
        twin.weight_ih_l0.zero_()
    assert not torch.equal(model(x)[0], twin(x)[0])


def test_storages_are_pickled() -> None:
    storage = torch.arange(4.0, device=D).untyped_storage()
    other = copy.deepcopy(storage)
    assert other.device == storage.device and other.data_ptr() != storage.data_ptr()
    assert torch.empty(0, device=D).set_(other).cpu().tolist() == [0.0, 1.0, 2.0, 3.0]


def test_an_old_style_file() -> None:
    buffer = io.BytesIO()
    torch.save(torch.arange(3.0, device=D), buffer, _use_new_zipfile_serialization=False)
    buffer.seek(0)
    y = torch.load(buffer, weights_only=True)
    assert y.device.type == D and y.cpu().tolist() == [0.0, 1.0, 2.0]


def test_module_to_keeps_parameters_and_their_optimizer() -> None:
    model = torch.nn.Linear(3, 2)
    parameters = dict(model.named_parameters())
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    model.to(D)
    for name, p in model.named_parameters():
        assert p is parameters[name] and p.device.type == D
    before = model.weight.detach().clone()
    model(torch.ones(1, 3, device=D)).sum().backward()
    optimizer.step()
    assert torch.equal(model.weight.detach(), before - 1.0)
    model.to("cpu")
    assert model.weight is parameters["weight"] and model.weight.device.type == "cpu"
    model.to(D).half()
    assert model.weight is parameters["weight"] and model.weight.dtype == torch.float16


def test_a_device_that_does_not_exist_is_named() -> None:
    with pytest.raises((RuntimeError, ValueError), match="9"):
        through_file(torch.ones(1), map_location="flagos:9")
    # torch keeps the location of a load that failed until the next one succeeds, and unpickling would obey it.
    through_file(torch.ones(1))
