# SPDX-License-Identifier: Apache-2.0
"""A small convolutional network that reads the handwritten digits bundled with scikit-learn.

Run it alone with ``python examples/digits_convnet.py --device flagos:0``; ``demo.py`` runs it on two devices.
"""

from __future__ import annotations

import argparse

import torch
from torch import nn
from torch.nn import functional as F
from training import OnStep, TrainingRun, shuffled_batches, train

TEST_EXAMPLES = 360  # of 1797
BATCH_SIZE = 64


class DigitsNet(nn.Module):
    """Two convolution blocks and a classifier: images ``(n, 1, 8, 8)`` to logits ``(n, 10)``."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 32, kernel_size=3, padding=1),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.Conv2d(32, 32, kernel_size=3, padding=1),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, kernel_size=3, padding=1),
            nn.BatchNorm2d(64),
            nn.ReLU(),
            nn.AvgPool2d(2),
        )
        self.dropout = nn.Dropout(dropout)
        self.classifier = nn.Linear(64 * 2 * 2, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Logits of shape ``(n, 10)`` for images of shape ``(n, 1, 8, 8)``."""
        return self.classifier(self.dropout(self.features(images).flatten(1)))


def load_digits(seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Training images, training labels, test images, test labels, all on the CPU.

    Images are float32 of shape ``(n, 1, 8, 8)`` in 0..1, labels int64 of shape ``(n,)``.
    """
    from sklearn import datasets

    digits = datasets.load_digits()
    images = torch.from_numpy(digits.images).float().unsqueeze(1) / 16.0
    labels = torch.from_numpy(digits.target).long()
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    images, labels = images[order], labels[order]
    return images[TEST_EXAMPLES:], labels[TEST_EXAMPLES:], images[:TEST_EXAMPLES], labels[:TEST_EXAMPLES]


def run(
    device: str, steps: int = 300, seed: int = 0, dropout: float = 0.0, on_step: OnStep | None = None
) -> TrainingRun:
    """Trains the network on ``device`` for ``steps`` steps and measures its test accuracy."""
    train_images, train_labels, test_images, test_labels = (part.to(device) for part in load_digits(seed))
    torch.manual_seed(seed)
    model = DigitsNet(dropout).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=max(steps, 1))
    batches = shuffled_batches(len(train_labels), BATCH_SIZE, seed)

    def loss_of_step(_: int) -> torch.Tensor:
        batch = next(batches).to(device)
        return F.cross_entropy(model(train_images[batch]), train_labels[batch])

    result = TrainingRun(device)
    train(model, optimizer, loss_of_step, steps, result, on_step, schedule)
    model.eval()
    with torch.no_grad():
        right = (model(test_images).argmax(dim=1) == test_labels).float().mean()
    result.accuracy = right.item()
    return result


def main() -> None:
    """Command line: trains once and prints the accuracy."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="flagos:0")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dropout", type=float, default=0.0)
    options = parser.parse_args()
    if not options.device.startswith("cpu"):
        import torch_fl  # noqa: F401  registers the device
    result = run(options.device, options.steps, options.seed, options.dropout)
    print(f"{result.device}: loss {result.losses[0]:.4f} -> {result.losses[-1]:.4f} in {result.seconds:.1f} s")
    print(f"test accuracy {result.accuracy:.2%}")


if __name__ == "__main__":
    main()
