# SPDX-License-Identifier: Apache-2.0
"""The models of host_overhead.py: each entry builds a training step that returns its loss.

`foreach` chooses the optimizer's form. It is the same on both devices: torch's default would be the loop on the CPU and
foreach on flagos, and the ratio would compare two optimizers.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Step = Callable[[], float]


class Residual(nn.Module):
    """Two 3x3 convolutions and a shortcut, as in ResNet-18."""

    def __init__(self, inputs: int, outputs: int, stride: int):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(y)) + self.shortcut(x))


def resnet18(classes: int = 1000) -> nn.Module:
    """The layers and widths of ResNet-18: [N, 3, H, W] -> [N, classes]."""
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    layers.append(nn.MaxPool2d(3, 2, 1))
    inputs = 64
    for width, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        layers += [Residual(inputs, width, stride), Residual(width, width, 1)]
        inputs = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, classes))


class Block(nn.Module):
    """One pre-norm causal transformer layer: [N, T, hidden] -> the same."""

    def __init__(self, hidden: int, heads: int):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.qkv, self.out = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.up, self.down = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)

    def forward(self, x: Tensor) -> Tensor:
        n, t, hidden = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(n, t, 3, self.heads, hidden // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(n, t, hidden))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Transformer(nn.Module):
    """Two causal layers over tokens: [N, T] -> [N, T, vocabulary]."""

    def __init__(self, hidden: int, heads: int, vocabulary: int, length: int):
        super().__init__()
        self.token, self.position = nn.Embedding(vocabulary, hidden), nn.Embedding(length, hidden)
        self.blocks = nn.Sequential(Block(hidden, heads), Block(hidden, heads))
        self.norm, self.head = nn.LayerNorm(hidden), nn.Linear(hidden, vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        position = torch.arange(tokens.shape[1], device=tokens.device)
        return self.head(self.norm(self.blocks(self.token(tokens) + self.position(position))))


def conv_step(device: str, foreach: bool) -> Step:
    """SGD with momentum on four 64x64 images."""
    torch.manual_seed(0)
    model = resnet18().to(device)
    images, labels = torch.randn(4, 3, 64, 64).to(device), torch.tensor([1, 2, 3, 4]).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, foreach=foreach)

    def step() -> float:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def transformer_step(device: str, foreach: bool, hidden: int, heads: int, batch: int, length: int) -> Step:
    """AdamW, next token of random text."""
    torch.manual_seed(0)
    vocabulary = 256
    model = Transformer(hidden, heads, vocabulary, length).to(device)
    text = torch.randint(vocabulary, (batch, length + 1)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=foreach)

    def step() -> float:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


# name: (builds the step for a device and an optimizer form, steps a slice)
MODELS: dict[str, tuple[Callable[[str, bool], Step], int]] = {
    "ResNet-18, batch 4, 64x64, SGD": (conv_step, 1),
    "transformer, 2 layers, hidden 256, batch 4 x 64, AdamW": (
        partial(transformer_step, hidden=256, heads=4, batch=4, length=64),
        1,
    ),
    "transformer, 2 layers, hidden 64, batch 1 x 16, AdamW": (
        partial(transformer_step, hidden=64, heads=2, batch=1, length=16),
        10,
    ),
}
