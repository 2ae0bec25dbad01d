# SPDX-License-Identifier: Apache-2.0
"""Group K: attention (K1, K2)."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import torch_fl
from helpers import D, like_cpu


def qkv(requires_grad: bool = False) -> list[torch.Tensor]:
    return [torch.randn(2, 4, 16, 8, requires_grad=requires_grad) for _ in range(3)]


@pytest.mark.parametrize("causal", [False, True])
def test_K1_the_fused_path_of_the_cpu_is_chosen(causal: bool) -> None:
    cpu = qkv()
    device = [t.to(D) for t in cpu]
    choice = torch._fused_sdp_choice(*device, is_causal=causal)
    assert choice == torch._fused_sdp_choice(*cpu, is_causal=causal)
    assert SDPBackend(choice) != SDPBackend.MATH
    torch_fl.reset_counters()
    F.scaled_dot_product_attention(*device, is_causal=causal)
    ran = [row["op"] for row in torch_fl.counters()]
    assert any("_scaled_dot_product" in op for op in ran), ran
    assert not any("softmax" in op or "bmm" in op for op in ran), "it was decomposed"


@pytest.mark.parametrize("causal", [False, True])
def test_K1_forward_and_gradients_equal_the_cpu_and_the_math_path(causal: bool) -> None:
    like_cpu(
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=causal), *qkv(True), rtol=1e-6, atol=1e-6
    )
    results = []
    base = [t.to(D) for t in qkv()]
    for backends in ([SDPBackend.MATH], [SDPBackend.FLASH_ATTENTION]):
        inputs = [t.clone().requires_grad_() for t in base]
        with sdpa_kernel(backends):
            F.scaled_dot_product_attention(*inputs, is_causal=causal).square().sum().backward()
        results.append([t.grad.cpu() for t in inputs])
    for fused, math in zip(results[1], results[0], strict=True):
        torch.testing.assert_close(fused, math, rtol=1e-4, atol=1e-5)


def test_K1_grouped_heads_scale_and_other_dtypes() -> None:
    q, k = torch.randn(2, 4, 6, 8), torch.randn(2, 2, 6, 8)
    like_cpu(
        lambda a, b: F.scaled_dot_product_attention(a, b, b, enable_gqa=True, scale=0.3), q, k, rtol=1e-6, atol=1e-6
    )
    for dtype in (torch.bfloat16, torch.float64):
        like_cpu(F.scaled_dot_product_attention, *(t.to(dtype) for t in qkv()), rtol=1e-6, atol=1e-6)
    attention = torch.nn.MultiheadAttention(8, 2, batch_first=True)
    x = torch.randn(2, 5, 8)
    expected = attention(x, x, x)[0]
    torch.testing.assert_close(attention.to(D)(*[x.to(D)] * 3)[0].cpu(), expected, rtol=1e-5, atol=1e-6)


def test_K2_a_fully_masked_row_does_not_leak_into_others() -> None:
    mask = torch.ones(2, 1, 16, 16, dtype=torch.bool)
    mask[0, :, 3] = False  # a row that sees nothing
    mask[1, :, :, 12:] = False  # right padding
    like_cpu(lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m), *qkv(), mask, rtol=1e-6, atol=1e-6)
    out = F.scaled_dot_product_attention(*(t.to(D) for t in qkv()), mask.to(D))
    assert out[1].isfinite().all() and out[0, :, 4:].isfinite().all()


def test_K2_a_large_negative_bias() -> None:
    for value in (-1e9, torch.finfo(torch.float32).min, float("-inf")):
        bias = torch.zeros(2, 1, 16, 16)
        bias[:, :, :, 10:] = value
        like_cpu(lambda q, k, v, b: F.scaled_dot_product_attention(q, k, v, b), *qkv(True), bias, rtol=1e-5, atol=1e-6)


def test_K2_cached_decoding_with_one_query() -> None:
    q, k, v = torch.randn(2, 4, 1, 8), torch.randn(2, 4, 16, 8), torch.randn(2, 4, 16, 8)
    mask = torch.arange(16) < torch.tensor([[16], [9]])
    like_cpu(
        lambda a, b, c, m: F.scaled_dot_product_attention(a, b, c, m[:, None, None]),
        q,
        k,
        v,
        mask,
        rtol=1e-6,
        atol=1e-6,
    )
