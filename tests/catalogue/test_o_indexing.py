# SPDX-License-Identifier: Apache-2.0
"""Group O: indexing and scatter."""

from __future__ import annotations

import torch

from helpers import D, like_cpu, run_ok, same


def test_O1_the_size_of_a_masked_selection_is_right_every_time() -> None:
    x = torch.randn(300_000, device=D)
    mask = x > 0.3
    expected = int(mask.sum())
    assert 0 < expected < x.numel()
    for _ in range(10):
        assert x[mask].numel() == expected
        assert torch.nonzero(mask).shape == (expected, 1)
    assert torch.equal(x[mask].cpu(), x.cpu()[mask.cpu()])


ODD_VIEWS = """
    import torch, torch_fl
    for dtype in (torch.bool, torch.int8, torch.uint8, torch.float16, torch.bfloat16):
        for start in range(1, 4):
            results = []
            for device in ("cpu", "flagos"):
                whole = torch.zeros(16, dtype=dtype, device=device)
                part = whole[start:start + 7]
                index = torch.tensor([0, 3, 3, 6], device=device)
                part.index_put_((index,), torch.ones(4, dtype=dtype, device=device), accumulate=True)
                part[1:3].fill_(1)
                part.logical_or_(part.flip(0)) if dtype == torch.bool else part.add_(part.flip(0))
                results.append(whole.cpu())
            assert torch.equal(results[0], results[1]), (dtype, start, results)
            assert (results[1][:start] == 0).all() and (results[1][start + 7:] == 0).all()
    """


def test_O2_accumulating_into_views_at_odd_offsets() -> None:
    b = torch.zeros(8, dtype=torch.bool, device=D)
    b[1:5].index_put_((torch.tensor([0, 2], device=D),), torch.tensor([True, True], device=D), accumulate=True)
    assert b.cpu().tolist() == [False, True, False, True, False, False, False, False]


def test_O2_on_misaligned_protected_memory() -> None:
    run_ok(ODD_VIEWS, FLAGOS_HOST_PROTECT="1", FLAGOS_HOST_POISON="1", FLAGOS_HOST_MISALIGN="1")


def test_O2_misaligned_memory_is_misaligned() -> None:
    # Else the test above would prove nothing.
    out = run_ok(
        "import torch, torch_fl; print(*(torch.empty(100, device='flagos').data_ptr() % 64 for _ in range(20)))",
        FLAGOS_HOST_MISALIGN="1",
    )
    assert any(int(offset) != 0 for offset in out.split())


def boolean_and_accumulating_indexing() -> None:
    x = torch.randn(4, 3)
    like_cpu(lambda t: t[torch.ones_like(t, dtype=torch.bool)], x)
    like_cpu(lambda t: t[t > 0], x)
    index, value = torch.tensor([[0, 1], [1, 3]]), torch.tensor([1.0, 2.0])
    like_cpu(lambda t, i, v: torch.index_put(t, (i,), v, accumulate=True), torch.zeros(4), index, value)
    for accumulate in (False, True):
        outcomes = []
        for device in ("cpu", D):
            try:
                outcomes.append(
                    torch.index_put(
                        x.to(device), (index.to(device),), torch.arange(3.0, device=device), accumulate=accumulate
                    ).cpu()
                )
            except (RuntimeError, IndexError) as error:
                outcomes.append(type(error))
        assert type(outcomes[0]) is type(outcomes[1])
        assert outcomes[0] is outcomes[1] or torch.equal(*outcomes)
    for bad in (torch.tensor([7]), torch.tensor([-9])):
        for device in ("cpu", D):
            try:
                x.to(device)[bad.to(device)]
            except (IndexError, RuntimeError):
                continue
            raise AssertionError(f"index {bad.tolist()} was accepted on {device}")


def test_O4_boolean_masks_and_broadcast_accumulation() -> None:
    boolean_and_accumulating_indexing()


def test_O4_through_the_fallback(forced_cpu: None) -> None:
    boolean_and_accumulating_indexing()


def test_O6_new_axes_and_ellipsis() -> None:
    c = torch.arange(24.0).view(2, 3, 4)
    x = c.to(D)
    for key in (None, (None, ..., None), (..., 1), (slice(None), None, 1), (torch.tensor(1), None), ([0, 1], None)):
        same(x[key], c[key])
    assert x[None].data_ptr() == x.data_ptr()
