# SPDX-License-Identifier: Apache-2.0
"""Group E: AMP and GradScaler."""

from __future__ import annotations

import torch

from helpers import D


def test_E1_the_scaler_skips_a_step_with_infinite_gradients_and_grows_again() -> None:
    p = torch.nn.Parameter(torch.ones(2, device=D))
    optimizer = torch.optim.SGD([p], lr=1.0)
    scaler = torch.amp.GradScaler(D, init_scale=8.0, growth_interval=2)

    def step(grad: float) -> None:
        optimizer.zero_grad()
        scaler.scale((p * grad).sum()).backward()
        scaler.step(optimizer)
        scaler.update()

    step(float("inf"))
    assert p.detach().cpu().tolist() == [1.0, 1.0], "the step was not skipped"
    assert scaler.get_scale() == 4.0
    step(0.5)
    assert p.detach().cpu().tolist() == [0.5, 0.5]
    step(0.25)
    assert p.detach().cpu().tolist() == [0.25, 0.25]
    assert scaler.get_scale() == 8.0, "two finite steps did not grow the scale"


def test_E1_unscale_and_clip() -> None:
    p = torch.nn.Parameter(torch.ones(4, device=D))
    optimizer = torch.optim.SGD([p], lr=1.0)
    scaler = torch.amp.GradScaler(D, init_scale=1024.0)
    scaler.scale((p * 3.0).sum()).backward()
    scaler.unscale_(optimizer)
    assert p.grad is not None and p.grad.cpu().tolist() == [3.0] * 4
    norm = torch.nn.utils.clip_grad_norm_([p], 1.0)
    assert norm.item() == 6.0 and abs(p.grad.norm().item() - 1.0) < 1e-5
    state = scaler.state_dict()
    other = torch.amp.GradScaler(D)
    other.load_state_dict(state)
    assert other.get_scale() == 1024.0


def test_E1_autocast_training_agrees_with_the_cpu() -> None:
    losses = []
    for device in ("cpu", D):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        x, y = torch.randn(16, 8).to(device), torch.randint(2, (16,)).to(device)
        model.to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(5):
            with torch.autocast(device, dtype=torch.bfloat16):
                out = model(x)
                assert out.dtype == torch.bfloat16
                loss = torch.nn.functional.cross_entropy(out.float(), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        losses.append(loss.item())
    assert abs(losses[0] - losses[1]) < 2e-2 * abs(losses[0])


def test_E5_unscaling_bfloat16_gradients_ends_as_on_the_cpu() -> None:
    outcomes = []
    for device in ("cpu", D):
        p = torch.nn.Parameter(torch.ones(2, device=device, dtype=torch.bfloat16))
        optimizer = torch.optim.SGD([p], lr=1.0)
        scaler = torch.amp.GradScaler(device, init_scale=4.0)
        try:
            scaler.scale((p * 2).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
            outcomes.append(p.detach().cpu().tolist())
        except Exception as error:
            assert "bf" in str(error).lower() or "bfloat16" in str(error).lower(), "the reason is not named"
            outcomes.append(type(error).__name__)
    assert outcomes[0] == outcomes[1]
