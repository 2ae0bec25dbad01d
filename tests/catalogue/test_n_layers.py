# SPDX-License-Identifier: Apache-2.0
"""Group N: convolution, normalisation and recurrent layers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from helpers import D, like_cpu, same


def test_N1_channels_last_1x1_weight_gradients() -> None:
    x = torch.randn(8, 16, 1, 1)
    w = torch.randn(8, 16, 3, 3)
    gradients = []
    for device in ("cpu", D):
        for memory_format in (torch.contiguous_format, torch.channels_last):
            weight = w.detach().to(device).to(memory_format=memory_format).requires_grad_()
            F.conv2d(x.to(device), weight, padding=1).square().sum().backward()
            gradients.append(weight.grad.cpu())
    for gradient in gradients[1:]:
        torch.testing.assert_close(gradient, gradients[0], rtol=1e-4, atol=1e-4)


def test_N1_channels_last_is_kept() -> None:
    x, w = torch.randn(2, 3, 6, 6).to(memory_format=torch.channels_last), torch.randn(4, 3, 3, 3)
    like_cpu(lambda a, b: F.conv2d(a, b), x, w.to(memory_format=torch.channels_last), rtol=1e-5, atol=1e-5)
    like_cpu(lambda a: F.max_pool2d(a, 2), x)
    like_cpu(lambda a: F.interpolate(a, scale_factor=2), x)


LAYERS: dict[str, Callable[[], torch.nn.Module]] = {
    "LSTM": lambda: torch.nn.LSTM(3, 4),
    "LSTM, two layers, both directions": lambda: torch.nn.LSTM(3, 4, num_layers=2, bidirectional=True),
    "LSTM with projections": lambda: torch.nn.LSTM(3, 4, proj_size=2),
    "LSTM without bias": lambda: torch.nn.LSTM(3, 4, bias=False),
    "GRU": lambda: torch.nn.GRU(3, 4, num_layers=2),
    "RNN": lambda: torch.nn.RNN(3, 4, nonlinearity="relu"),
}


def outcomes(make: Callable[[], torch.nn.Module], use: Callable[..., torch.Tensor]) -> list[list[torch.Tensor]]:
    """Output and all gradients, on the CPU and on the device."""
    results = []
    for device in ("cpu", D):
        torch.manual_seed(0)
        layer = make()
        x = torch.randn(5, 2, 3)
        layer.to(device)
        x = x.to(device).requires_grad_()
        y = use(layer, x)
        y.square().sum().backward()
        results.append([y.detach(), x.grad, *(p.grad for p in layer.parameters())])
    return results


def compare(results: list[list[torch.Tensor]]) -> None:
    for actual, expected in zip(results[1], results[0], strict=True):
        assert actual.device.type == D
        torch.testing.assert_close(actual.cpu(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("training", [True, False])
def test_N3_recurrent_layers(name: str, training: bool) -> None:
    def use(layer: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        return layer.train(training)(x)[0]

    compare(outcomes(LAYERS[name], use))


@pytest.mark.parametrize("name", LAYERS)
def test_N3_recurrent_layers_without_gradients(name: str) -> None:
    layer = LAYERS[name]()
    x = torch.randn(5, 2, 3)
    with torch.no_grad():
        expected = layer(x)[0]
        torch.testing.assert_close(layer.to(D)(x.to(D))[0].cpu(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("make", [torch.nn.LSTMCell, torch.nn.GRUCell, torch.nn.RNNCell])
def test_N3_cells(make: type[torch.nn.Module]) -> None:
    def use(cell: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        state = None
        for step in x:
            state = cell(step, state)
        return state[0] + state[1] if isinstance(state, tuple) else state

    compare(outcomes(lambda: make(3, 4), use))


@pytest.mark.parametrize("name", ["LSTM", "GRU"])
def test_N3_packed_sequences_with_cpu_lengths(name: str) -> None:
    def use(layer: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        packed = pack_padded_sequence(x, torch.tensor([5, 3]))  # lengths stay on the CPU
        out, lengths = pad_packed_sequence(layer(packed)[0])
        assert lengths.device.type == "cpu"
        return out

    compare(outcomes(LAYERS[name], use))


def test_N4_batch_norm_in_eval_returns_what_the_cpu_returns() -> None:
    x, w, b = torch.randn(4, 3, 5), torch.rand(3), torch.rand(3)
    mean, var = torch.rand(3), torch.rand(3) + 0.5
    expected = torch.native_batch_norm(x, w, b, mean, var, False, 0.1, 1e-5)
    actual = torch.native_batch_norm(*(t.to(D) for t in (x, w, b, mean, var)), False, 0.1, 1e-5)
    assert [a.shape for a in actual] == [e.shape for e in expected]
    same(actual, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("training", [True, False])
def test_N4_batch_norm_gradients_and_running_statistics(training: bool) -> None:
    states = []
    for device in ("cpu", D):
        torch.manual_seed(0)
        layer = torch.nn.BatchNorm2d(3)
        x = torch.randn(4, 3, 5, 5)
        layer.to(device).train(training)
        x = x.to(device).requires_grad_()
        layer(x).square().sum().backward()
        states.append([x.grad, layer.weight.grad, layer.running_mean, layer.running_var, layer.num_batches_tracked])
    for actual, expected in zip(states[1], states[0], strict=True):
        same(actual, expected, rtol=1e-4, atol=1e-5)


def test_N6_group_norm_of_non_contiguous_input() -> None:
    x = torch.randn(2, 8, 6, 6).transpose(2, 3)
    same(F.group_norm(x.to(D), 4), F.group_norm(x, 4), rtol=1e-5, atol=1e-6)
    like_cpu(
        lambda t: F.group_norm(t.transpose(2, 3), 4).square(),
        torch.randn(2, 8, 6, 6, requires_grad=True),
        rtol=1e-4,
        atol=1e-5,
    )
