# SPDX-License-Identifier: Apache-2.0
"""Group T: DataParallel."""

from __future__ import annotations

import torch

from helpers import D


def test_T1_data_parallel_on_one_and_on_two_devices(two_devices: None) -> None:
    torch.manual_seed(0)
    reference = torch.nn.Linear(4, 2)
    x = torch.randn(8, 4)
    reference(x).square().sum().backward()
    for ids in ([0], [0, 1], None):
        model = torch.nn.Linear(4, 2)
        model.load_state_dict(reference.state_dict())
        parallel = torch.nn.DataParallel(model.to(D), device_ids=ids)
        y = parallel(x.to(D))
        assert y.device == torch.device("flagos:0") and y.shape == (8, 2)
        y.square().sum().backward()
        assert model.weight.grad is not None
        torch.testing.assert_close(model.weight.grad.cpu(), reference.weight.grad)
        torch.testing.assert_close(model.bias.grad.cpu(), reference.bias.grad)
        assert torch.flagos.current_device() == 0


def test_T1_queries_leave_the_current_device(two_devices: None) -> None:
    for index in range(2):
        torch.flagos.get_device_properties(index), torch.flagos.get_device_name(index), torch.flagos.mem_get_info(index)
        assert torch.flagos.current_device() == 0
