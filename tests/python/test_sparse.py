# SPDX-License-Identifier: Apache-2.0
"""COO and compressed sparse tensors: built, converted, multiplied, differentiated, pickled."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable

import pytest
import torch

from helpers import D

INDICES = [[0, 2, 2, 0], [1, 0, 0, 1]]  # (0, 1) and (2, 0), each twice
VALUES = [1.0, 2.0, 3.0, 4.0]


def coo(device: str, **options: object) -> torch.Tensor:
    return torch.sparse_coo_tensor(
        torch.tensor(INDICES, device=device), torch.tensor(VALUES, device=device), (3, 3), **options
    )


def dense(device: str) -> torch.Tensor:
    return torch.tensor(
        [[0.0, 2.0, 0.0, 1.0], [0.0, 0.0, 0.0, 0.0], [5.0, 0.0, 6.0, 0.0], [0.0, 7.0, 0.0, 8.0]], device=device
    )


def check(actual: torch.Tensor, expected: torch.Tensor) -> None:
    """Same layout, members and values; every member on the device."""
    assert actual.device.type == D and actual.layout == expected.layout
    assert actual.shape == expected.shape and actual.dtype == expected.dtype
    if expected.layout == torch.sparse_coo:
        assert actual.is_coalesced() == expected.is_coalesced()
        pairs = [(actual._indices(), expected._indices()), (actual._values(), expected._values())]
    elif expected.layout in (torch.sparse_csr, torch.sparse_bsr):
        pairs = [(actual.crow_indices(), expected.crow_indices()), (actual.col_indices(), expected.col_indices())]
        pairs.append((actual.values(), expected.values()))
    elif expected.layout in (torch.sparse_csc, torch.sparse_bsc):
        pairs = [(actual.ccol_indices(), expected.ccol_indices()), (actual.row_indices(), expected.row_indices())]
        pairs.append((actual.values(), expected.values()))
    else:
        pairs = [(actual, expected)]
    for a, e in pairs:
        assert a.device.type == D, a.device
        assert a.dtype == e.dtype
        torch.testing.assert_close(a.detach().cpu(), e.detach(), rtol=1e-6, atol=1e-6)


def both(f: Callable[[str], torch.Tensor]) -> None:
    check(f(D), f("cpu"))


def test_construction() -> None:
    both(coo)
    both(lambda d: torch.sparse_coo_tensor(torch.tensor(INDICES), torch.tensor(VALUES), (3, 3), device=d))
    both(lambda d: torch.sparse_coo_tensor(INDICES, VALUES, (3, 3), device=d, dtype=torch.float64))
    both(lambda d: torch.sparse_coo_tensor(size=(2, 3), device=d))
    both(lambda d: torch.sparse_coo_tensor(torch.tensor(INDICES, device=d), torch.ones(4, 2, device=d), (3, 3, 2)))
    both(lambda d: torch.zeros(2, 3, layout=torch.sparse_coo, device=d))
    both(lambda d: torch.empty(2, 3, layout=torch.sparse_coo, device=d))
    x = coo(D)
    assert x.is_sparse and x._nnz() == 4 and x.sparse_dim() == 2 and x.dense_dim() == 0
    with pytest.raises(RuntimeError):
        torch.sparse_coo_tensor(
            torch.tensor([[5], [0]], device=D), torch.ones(1, device=D), (3, 3), check_invariants=True
        )


def test_coalesce_sums_duplicates() -> None:
    both(lambda d: coo(d).coalesce())
    x = coo(D).coalesce()
    assert x.is_coalesced() and x._nnz() == 2
    assert x.values().cpu().tolist() == [5.0, 5.0]
    assert x.coalesce() is x


def test_to_dense_and_back() -> None:
    both(lambda d: coo(d).to_dense())
    both(lambda d: dense(d).to_sparse())
    both(lambda d: dense(d).to_sparse(1))
    both(lambda d: dense(d).to_sparse().to_dense())
    both(lambda d: torch.eye(3, device=d).to_sparse())


def test_moves() -> None:
    x = coo("cpu").to(D)
    check(x, coo("cpu"))
    back = x.cpu()
    assert back.device.type == "cpu" and torch.equal(back.to_dense(), coo("cpu").to_dense())
    check(dense("cpu").to_sparse_csr().to(D), dense("cpu").to_sparse_csr())
    csr = dense(D).to_sparse_csr().cpu()
    assert csr.device.type == "cpu" and torch.equal(csr.to_dense(), dense("cpu"))


def test_elementwise() -> None:
    both(lambda d: coo(d) + coo(d))
    both(lambda d: (coo(d) * 2).coalesce())
    both(lambda d: coo(d).coalesce() * coo(d).coalesce())
    both(lambda d: torch.ones(3, 3, device=d) + coo(d))
    both(lambda d: coo(d).coalesce().sqrt())
    both(lambda d: coo(d).coalesce().neg())
    both(lambda d: torch.sparse.sum(coo(d)))
    both(lambda d: torch.sparse.sum(coo(d), 1))
    both(lambda d: torch.sparse.softmax(coo(d).coalesce(), 1))
    both(lambda d: coo(d).t().coalesce())
    both(lambda d: torch.cat([coo(d), coo(d)]).coalesce())
    both(lambda d: coo(d).index_select(0, torch.tensor([2, 0], device=d)).coalesce())
    both(lambda d: torch.ones(3, 3, device=d).sparse_mask(coo(d).coalesce()))
    both(lambda d: coo(d).clone())
    both(lambda d: coo(d).double())


def test_in_place() -> None:
    results = []
    for device in ("cpu", D):
        x, y = coo(device).coalesce(), torch.ones(3, 3, device=device)
        assert x.mul_(3) is x
        assert y.add_(x) is y
        assert x.add_(coo(device)) is x
        results.append([x.clone(), y])
        assert x.zero_() is x and x._nnz() == 0
    for actual, expected in zip(results[1], results[0], strict=True):
        check(actual, expected)


def test_products() -> None:
    def b(device: str) -> torch.Tensor:
        return torch.arange(6.0, device=device).view(3, 2)

    both(lambda d: torch.sparse.mm(coo(d), b(d)))
    both(lambda d: coo(d) @ b(d))
    both(lambda d: torch.mm(coo(d), b(d)))
    both(lambda d: torch.sparse.mm(coo(d).coalesce(), coo(d).coalesce()).coalesce())
    both(lambda d: torch.addmm(torch.ones(3, 2, device=d), coo(d), b(d)))
    both(lambda d: torch.sparse.addmm(torch.ones(3, 2, device=d), coo(d), b(d), beta=0.5, alpha=2.0))
    both(lambda d: coo(d) @ torch.ones(3, device=d))
    csr = lambda d: dense(d).to_sparse_csr()  # noqa: E731
    y = lambda d: torch.arange(8.0, device=d).view(4, 2)  # noqa: E731
    both(lambda d: csr(d) @ y(d))
    both(lambda d: csr(d) @ torch.ones(4, device=d))
    both(lambda d: torch.addmm(torch.ones(4, 2, device=d), csr(d), y(d)))
    both(lambda d: dense(d) @ dense(d).to_sparse_csc())


def test_mixed_devices_are_refused() -> None:
    with pytest.raises(RuntimeError):
        torch.sparse.mm(coo(D), torch.ones(3, 2))
    with pytest.raises(RuntimeError):
        coo(D) + coo("cpu")
    with pytest.raises(RuntimeError):
        torch.sparse_coo_tensor(torch.tensor(INDICES, device=D), torch.tensor(VALUES), (3, 3))


def test_gradients() -> None:
    gradients = []
    for device in ("cpu", D):
        values = torch.tensor(VALUES, device=device, requires_grad=True)
        other = torch.arange(6.0, device=device).view(3, 2).requires_grad_()
        s = torch.sparse_coo_tensor(torch.tensor(INDICES, device=device), values, (3, 3))
        (torch.sparse.mm(s, other) ** 2).sum().backward()
        d = dense(device).requires_grad_()
        (d.to_sparse() * 2).to_dense().sum().backward()
        torch.sparse.sum(coo(device).requires_grad_()).backward()
        gradients.append([values.grad, other.grad, d.grad])
    for actual, expected in zip(gradients[1], gradients[0], strict=True):
        check(actual, expected)


def test_csr_gradients() -> None:
    gradients = []
    for device in ("cpu", D):
        s = dense(device).to_sparse_csr().requires_grad_()
        y = torch.arange(8.0, device=device).view(4, 2).requires_grad_()
        (s @ y).sum().backward()
        gradients.append([s.grad, y.grad])
    for actual, expected in zip(gradients[1], gradients[0], strict=True):
        check(actual, expected)


def test_embedding_with_sparse_gradients_and_sparse_adam() -> None:
    weights = []
    for device in ("cpu", D):
        torch.manual_seed(0)
        table = torch.nn.Embedding(10, 3, sparse=True)
        table.to(device)
        bag = torch.nn.EmbeddingBag(10, 3, sparse=True, mode="sum").to(device)
        with torch.no_grad():
            bag.weight.copy_(table.weight)
        optimizer = torch.optim.SparseAdam([*table.parameters(), *bag.parameters()], lr=0.1)
        index = torch.tensor([[1, 4, 1], [9, 4, 4]], device=device)
        for _ in range(3):
            optimizer.zero_grad()
            ((table(index) ** 2).sum() + (bag(index) ** 2).sum()).backward()
            assert table.weight.grad is not None and table.weight.grad.is_sparse
            assert table.weight.grad.device.type == torch.device(device).type
            optimizer.step()
        weights.append([table.weight, bag.weight])
    for actual, expected in zip(weights[1], weights[0], strict=True):
        check(actual.detach(), expected.detach())


CONVERSIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "csr": lambda t: t.to_sparse_csr(),
    "csc": lambda t: t.to_sparse_csc(),
    "bsr": lambda t: t.to_sparse_bsr((2, 2)),
    "bsc": lambda t: t.to_sparse_bsc((2, 2)),
    "coo": lambda t: t.to_sparse(),
}


@pytest.mark.parametrize("target", CONVERSIONS)
@pytest.mark.parametrize("source", ["dense", *CONVERSIONS])
def test_conversions_between_layouts(source: str, target: str) -> None:
    def convert(device: str) -> torch.Tensor:
        start = dense(device)
        if source != "dense":
            start = CONVERSIONS[source](start)
        return CONVERSIONS[target](start)

    try:
        expected = convert("cpu")
    except RuntimeError:
        with pytest.raises(RuntimeError):  # what the CPU cannot do either
            convert(D)
        return
    actual = convert(D)
    check(actual, expected)
    assert torch.equal(actual.to_dense().cpu(), dense("cpu"))


@pytest.mark.parametrize("layout", ["csr", "csc", "bsr", "bsc"])
def test_compressed_construction(layout: str) -> None:
    make = getattr(torch, f"sparse_{layout}_tensor")
    block = (2, 2) if layout.startswith("b") else ()

    def build(device: str) -> torch.Tensor:
        pointers, other = torch.tensor([0, 1, 2], device=device), torch.tensor([0, 1], device=device)
        values = torch.arange(1.0, 1 + 2 * (4 if block else 1), device=device).view(2, *block)
        size = (4, 4) if block else (2, 2)
        return make(pointers, other, values, size)

    both(build)
    both(lambda d: build(d).to_dense())
    both(lambda d: build(d).clone())
    assert build(D)._nnz() == 2
    with pytest.raises(RuntimeError):
        make(
            torch.tensor([0, 1, 2], device=D), torch.tensor([0, 9], device=D), torch.ones(2, *block, device=D),
            (4, 4) if block else (2, 2), check_invariants=True,
        )  # fmt: skip


def test_members_of_two_devices_are_refused(two_devices: None) -> None:
    with pytest.raises(RuntimeError, match="(?i)device"):
        torch.sparse_csr_tensor(
            torch.tensor([0, 1, 2], device="flagos:0"), torch.tensor([0, 1], device="flagos:1"),
            torch.ones(2, device="flagos:0"), (2, 2),
        )  # fmt: skip


def test_results_stay_on_the_second_device(two_devices: None) -> None:
    x = coo("flagos:1")
    for result in (x.coalesce(), x.to_dense(), x + x, x @ torch.ones(3, 2, device="flagos:1"), x.to_sparse_csr()):
        assert result.device == torch.device("flagos:1")
    assert x.coalesce().values().device == torch.device("flagos:1")


@pytest.mark.parametrize("layout", CONVERSIONS)
def test_pickling(layout: str) -> None:
    x = CONVERSIONS[layout](dense(D))
    check(pickle.loads(pickle.dumps(x)), CONVERSIONS[layout](dense("cpu")))
    buffer = io.BytesIO()
    torch.save(x, buffer)
    buffer.seek(0)
    check(torch.load(buffer, weights_only=True), CONVERSIONS[layout](dense("cpu")))
    buffer.seek(0)
    assert torch.load(buffer, map_location="cpu").device.type == "cpu"


def test_printing() -> None:
    assert "flagos:0" in repr(coo(D)) and "nnz=4" in repr(coo(D))
    assert "flagos:0" in repr(dense(D).to_sparse_csr())
