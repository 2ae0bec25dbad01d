# SPDX-License-Identifier: Apache-2.0
"""Two simulated devices for the whole session, and the fixtures of the behaviour tests."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest

# Read when the driver is loaded, so it has to be here before the first import of torch_fl. Without a second device the
# tests that need one would skip.
os.environ.setdefault("FLAGOS_HOST_DEVICES", "2")


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    """Every test starts from the same seed on device 0. Tests of tools never import torch_fl and are left alone."""
    if "torch_fl" in sys.modules:
        import torch

        torch.manual_seed(0)
        torch.flagos.set_device(0)
    yield


@pytest.fixture
def two_devices() -> None:
    """Skips the test where there is one device only."""
    import torch

    if torch.flagos.device_count() < 2:
        pytest.skip("needs two devices")


@pytest.fixture
def forced_cpu() -> Iterator[None]:
    """Every operator of the test runs as the copying CPU fallback, without warnings."""
    import torch_fl
    from torch_fl import _C

    route, policy = _C._get_forced_route(), torch_fl.get_fallback_policy()
    _C._set_forced_route("cpu")
    torch_fl.set_fallback_policy("allow")
    torch_fl.reset_counters()
    yield
    _C._set_forced_route(route)
    torch_fl.set_fallback_policy(policy)
