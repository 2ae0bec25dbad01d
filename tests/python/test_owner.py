# SPDX-License-Identifier: Apache-2.0
"""Who owns the devices: the choice, and registering for devices that another backend of torch owns."""

from __future__ import annotations

import subprocess

import pytest
import torch

import torch_fl
from helpers import run_python
from torch_fl import _C, _owner


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in ("FLAGOS_DRIVER", "FLAGOS_DRIVER_PLUGIN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(_owner, "available", lambda: "other")
    return monkeypatch


def test_a_backend_with_devices_owns_them(environment: pytest.MonkeyPatch) -> None:
    assert _owner.choose() == "other"


def test_without_such_a_backend_the_runtime_does(environment: pytest.MonkeyPatch) -> None:
    environment.setattr(_owner, "available", lambda: "")
    assert _owner.choose() == ""


@pytest.mark.parametrize("name", ["FLAGOS_DRIVER", "FLAGOS_DRIVER_PLUGIN"])
def test_naming_a_driver_means_the_direct_way(environment: pytest.MonkeyPatch, name: str) -> None:
    environment.setenv(name, "host")
    assert _owner.choose() == ""


def test_delegated_can_be_demanded(environment: pytest.MonkeyPatch) -> None:
    environment.setenv("FLAGOS_DRIVER", "delegated")
    assert _owner.choose() == "other"
    environment.setattr(_owner, "available", lambda: "")
    with pytest.raises(ImportError, match="FLAGOS_DRIVER=delegated.*unset FLAGOS_DRIVER"):
        _owner.choose()


@pytest.mark.skipif(_C._delegate() != "", reason="the devices are delegated here")
def test_conversion_needs_another_backend() -> None:
    for convert in (torch_fl.to_native, torch_fl.from_native):
        with pytest.raises(RuntimeError, match="not delegated"):
            convert(torch.ones(2))


_REGISTER = """
import sys
sys.argv = ["torch-fl"]  # the command line tool imports without registering
import torch_fl
from torch_fl import _boot, _owner
_owner.choose = lambda: {name!r}
_boot.activate()
import torch
from torch_fl import _C
print(_C._delegate(), torch.flagos.device_count(), torch.flagos.is_available())
print(len(torch_fl.get_registered_ops()) > 1500)
"""


def register_for(name: str) -> subprocess.CompletedProcess[str]:
    """Registers flagos for the devices of `name` in a fresh interpreter."""
    return run_python(_REGISTER.format(name=name), TORCH_DEVICE_BACKEND_AUTOLOAD="0")


@pytest.mark.skipif(not torch.backends.cuda.is_built(), reason="this torch has no other backend to delegate to")
def test_registration_does_not_need_a_device() -> None:
    done = register_for("cuda")
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()[-2:]
    count = torch.cuda.device_count()
    assert first == f"cuda {count} {count > 0}" and second == "True"


def test_an_unknown_backend_is_refused() -> None:
    done = register_for("nobody")
    assert done.returncode != 0 and "cannot delegate devices to 'nobody'" in done.stderr
