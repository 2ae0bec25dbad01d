# SPDX-License-Identifier: Apache-2.0
"""A small GPT-style transformer that learns to write Python documentation, character by character.

The text is what ``help()`` prints for Python's language topics: module ``pydoc_data.topics`` of the standard library.
Run it alone with ``python examples/tiny_gpt.py --device flagos:0``; ``demo.py`` runs it on two devices.
"""

from __future__ import annotations

import argparse
import re
from dataclasses import dataclass
from pydoc_data import topics

import torch
from torch import nn
from torch.nn import functional as F
from training import OnStep, TrainingRun, train


@dataclass(frozen=True)
class Shape:
    """Sizes of the transformer and of a training batch."""

    context: int = 64  # characters it sees
    width: int = 96
    heads: int = 4
    layers: int = 3
    batch: int = 24


class Block(nn.Module):
    """One transformer layer, norm first: ``(n, t, width)`` to ``(n, t, width)``."""

    def __init__(self, shape: Shape, dropout: float) -> None:
        super().__init__()
        self.heads = shape.heads
        self.dropout = dropout
        self.norm_attention = nn.LayerNorm(shape.width)
        self.to_qkv = nn.Linear(shape.width, 3 * shape.width)
        self.from_heads = nn.Linear(shape.width, shape.width)
        self.norm_mlp = nn.LayerNorm(shape.width)
        self.mlp = nn.Sequential(
            nn.Linear(shape.width, 4 * shape.width),
            nn.GELU(),
            nn.Linear(4 * shape.width, shape.width),
            nn.Dropout(dropout),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Causal self-attention, then the two-layer perceptron, each added to its input."""
        n, t, width = x.shape
        q, k, v = self.to_qkv(self.norm_attention(x)).view(n, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(
            q, k, v, is_causal=True, dropout_p=self.dropout if self.training else 0.0
        )
        x = x + self.from_heads(attended.transpose(1, 2).reshape(n, t, width))
        return x + self.mlp(self.norm_mlp(x))


class TinyGpt(nn.Module):
    """Characters ``(n, t)`` (int64) to logits of the next character ``(n, t, vocabulary)``."""

    def __init__(self, vocabulary: int, shape: Shape, dropout: float = 0.0) -> None:
        super().__init__()
        self.shape = shape
        self.characters = nn.Embedding(vocabulary, shape.width)
        self.positions = nn.Embedding(shape.context, shape.width)
        self.blocks = nn.Sequential(*(Block(shape, dropout) for _ in range(shape.layers)))
        self.norm = nn.LayerNorm(shape.width)
        self.head = nn.Linear(shape.width, vocabulary, bias=False)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        """Logits of shape ``(n, t, vocabulary)``; ``t`` is at most the context length."""
        positions = torch.arange(text.shape[1], device=text.device)
        return self.head(self.norm(self.blocks(self.characters(text) + self.positions(positions))))


class Corpus:
    """The training text as numbers.

    Attributes:
        alphabet: the characters, sorted; a character's number is its place in this string.
        text: the whole text, int64 of shape ``(length,)``, on the CPU.
    """

    def __init__(self) -> None:
        whole = "\n".join(text for _, text in sorted(topics.topics.items()))
        # Tables drawn with bars and typographic characters would cost capacity and teach no language.
        whole = "\n".join(line.strip() for line in whole.splitlines() if "|" not in line and "+--" not in line)
        whole = "".join(c for c in re.sub(r"\n{3,}", "\n\n", whole) if c == "\n" or " " <= c <= "~")
        self.alphabet = "".join(sorted(set(whole)))
        number_of = {c: i for i, c in enumerate(self.alphabet)}
        self.text = torch.tensor([number_of[c] for c in whole])

    def encode(self, text: str) -> torch.Tensor:
        """``text`` as numbers, int64 of shape ``(len(text),)``; every character must be in the alphabet."""
        return torch.tensor([self.alphabet.index(c) for c in text])

    def decode(self, numbers: torch.Tensor) -> str:
        """The text that one row of numbers stands for."""
        return "".join(self.alphabet[i] for i in numbers.tolist())


@torch.no_grad()
def write(model: TinyGpt, corpus: Corpus, device: str, seed: int, length: int = 240, start: str = "The ") -> str:
    """``length`` characters that the model writes after ``start``, drawn from its 8 likeliest at each place."""
    model.eval()
    generator = torch.Generator(device).manual_seed(seed)
    text = corpus.encode(start).to(device).unsqueeze(0)
    for _ in range(length):
        logits = model(text[:, -model.shape.context :])[:, -1]
        best, number = logits.topk(8)
        choice = torch.multinomial(F.softmax(best / 0.7, dim=-1), 1, generator=generator)
        text = torch.cat([text, number.gather(1, choice)], dim=1)
    return corpus.decode(text[0].cpu())


def run(
    device: str,
    steps: int = 800,
    seed: int = 0,
    dropout: float = 0.0,
    on_step: OnStep | None = None,
    write_characters: int = 240,
) -> TrainingRun:
    """Trains the transformer on ``device`` for ``steps`` steps and lets it write ``write_characters`` characters."""
    shape = Shape()
    corpus = Corpus()
    text = corpus.text.to(device)
    torch.manual_seed(seed)
    model = TinyGpt(len(corpus.alphabet), shape, dropout).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-3, betas=(0.9, 0.95), weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=6e-3, total_steps=max(steps, 20), pct_start=0.1)
    generator = torch.Generator().manual_seed(seed)
    window = torch.arange(shape.context + 1, device=device)

    def loss_of_step(_: int) -> torch.Tensor:
        starts = torch.randint(len(corpus.text) - shape.context - 1, (shape.batch, 1), generator=generator)
        rows = text[starts.to(device) + window]
        return F.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())

    result = TrainingRun(device)
    train(model, optimizer, loss_of_step, steps, result, on_step, schedule)
    if write_characters > 0:
        result.sample = write(model, corpus, device, seed, write_characters)
    return result


def main() -> None:
    """Command line: trains once and prints what the model writes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="flagos:0")
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dropout", type=float, default=0.0)
    options = parser.parse_args()
    if not options.device.startswith("cpu"):
        import torch_fl  # noqa: F401  registers the device
    result = run(options.device, options.steps, options.seed, options.dropout)
    print(f"{result.device}: loss {result.losses[0]:.4f} -> {result.losses[-1]:.4f} in {result.seconds:.1f} s")
    print(result.sample)


if __name__ == "__main__":
    main()
