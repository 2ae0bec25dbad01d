# SPDX-License-Identifier: Apache-2.0
"""Group A: serialization and map_location."""

from __future__ import annotations

import io

import pytest
import torch

from helpers import D, same


def test_A3_a_mistyped_location_is_refused_with_the_accepted_form() -> None:
    buffer = io.BytesIO()
    torch.save(torch.ones(2, device=D), buffer)
    for location in ("flagos1", "flagos:x", "flagos:", "flagoss"):
        buffer.seek(0)
        with pytest.raises((RuntimeError, ValueError)) as raised:
            torch.load(buffer, map_location=location)
        assert location in str(raised.value) or "flagos:" in str(raised.value), str(raised.value)
    buffer.seek(0)
    assert torch.load(buffer, map_location="flagos:0").device == torch.device("flagos:0")


def test_A4_the_device_state_survives_a_checkpoint(two_devices: None) -> None:
    states = torch.flagos.get_rng_state_all()
    buffer = io.BytesIO()
    torch.save({"rng": states}, buffer)
    drawn = [torch.rand(3, device=f"flagos:{i}") for i in range(2)]
    torch.flagos.set_rng_state_all(states)
    assert all(torch.equal(torch.rand(3, device=f"flagos:{i}"), drawn[i]) for i in range(2))
    buffer.seek(0)
    torch.flagos.set_rng_state_all(torch.load(buffer, weights_only=True)["rng"])
    assert all(torch.equal(torch.rand(3, device=f"flagos:{i}"), drawn[i]) for i in range(2))
    assert not torch.equal(drawn[0], torch.rand(3, device="flagos:0"))


def test_A8_a_program_exported_on_the_cpu_runs_on_the_device() -> None:
    from torch.export import export, load, save
    from torch.export.passes import move_to_device_pass

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU(), torch.nn.Linear(3, 2))
    x = torch.randn(5, 4)
    buffer = io.BytesIO()
    save(export(model, (x,)), buffer)
    buffer.seek(0)
    program = move_to_device_pass(load(buffer), "flagos:0").module()
    assert all(p.device.type == D for p in program.parameters())
    same(program(x.to(D)), model(x), rtol=1e-6, atol=1e-6)
