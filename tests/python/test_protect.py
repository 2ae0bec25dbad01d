# SPDX-License-Identifier: Apache-2.0
"""FLAGOS_HOST_PROTECT=1: the host cannot read device memory behind the device's back, and a try does not kill it."""

from __future__ import annotations

import re

import pytest

from helpers import run_ok, run_python

ERROR = r"host access to device memory: allocation #\d+, \d+ bytes"


def test_host_views_of_device_memory_are_refused() -> None:
    run_ok(
        """
        import numpy, torch, torch_fl
        x = torch.arange(6.0, device="flagos")
        tries = {
            "numpy()": lambda: x.numpy(),
            "numpy.asarray": lambda: numpy.asarray(x),
            "__array__": lambda: x.__array__(),
            "from_numpy of it": lambda: torch.from_numpy(x),
            "array_interface": lambda: x.__array_interface__,
            "detached": lambda: torch.ones(3, device="flagos", requires_grad=True).detach().numpy(),
            "as CPU storage": lambda: torch.empty(0).set_(x.untyped_storage()),
        }
        for name, f in tries.items():
            try:
                f()
            except (TypeError, RuntimeError, AttributeError, ValueError):
                continue
            raise SystemExit(f"{name} did not raise")
        assert x.tolist() == [0, 1, 2, 3, 4, 5] and x[2].item() == 2
        assert x.cpu().numpy().sum() == 15
        print(x)
        """,
        FLAGOS_HOST_PROTECT="1",
    )


@pytest.mark.parametrize("order", ["before", "after"])
def test_a_raw_read_is_reported_by_the_next_call(order: str) -> None:
    enable = "import faulthandler; faulthandler.enable()"
    out = run_ok(
        f"""
        {enable if order == "before" else ""}
        import ctypes, re, torch, torch_fl
        x = torch.full((16,), 3.0, device="flagos")
        {enable if order == "after" else ""}
        value = ctypes.c_float.from_address(x.data_ptr()).value
        print("alive")
        try:
            x + 1
        except RuntimeError as error:
            print(error)
        else:
            raise SystemExit("the next call did not raise")
        # Reported once; the device goes on.
        y = torch.ones(4, device="flagos") * 2
        assert y.cpu().tolist() == [2.0] * 4
        assert x.cpu().tolist() == [3.0] * 16
        """,
        FLAGOS_HOST_PROTECT="1",
    )
    assert "alive" in out
    found = re.search(ERROR + "(.*)", out)
    assert found, out
    assert ", 64 bytes" in found.group(0), "the size of the allocation is wrong"
    assert re.search(r"full|fill|empty", found.group(0)), "the operator that allocated it is not named"


def test_a_raw_write_is_reported_too() -> None:
    out = run_ok(
        """
        import ctypes, torch, torch_fl
        x = torch.zeros(1024, device="flagos")
        ctypes.c_float.from_address(x.data_ptr() + 256).value = 1.0
        try:
            torch.flagos.synchronize()
            x.sum().item()
        except RuntimeError as error:
            print(error)
        """,
        FLAGOS_HOST_PROTECT="1",
    )
    assert re.search(ERROR, out), out


def test_a_real_segmentation_fault_still_kills_the_process() -> None:
    done = run_python(
        """
        import faulthandler; faulthandler.enable()
        import ctypes, torch, torch_fl
        x = torch.ones(3, device="flagos") + 1
        ctypes.c_int.from_address(8).value
        print("survived")
        """,
        FLAGOS_HOST_PROTECT="1",
    )
    assert done.returncode == -11, done
    assert "survived" not in done.stdout
    assert "Segmentation fault" in done.stderr, "faulthandler was not called"


def test_training_runs_with_protection_poison_and_misaligned_blocks() -> None:
    code = """
        import sys, torch
        device = sys.argv[1] if len(sys.argv) > 1 else DEVICE
        torch.set_num_threads(1)
        torch.manual_seed(0)
        net = torch.nn.Sequential(
            torch.nn.Conv2d(1, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.MaxPool2d(2),
            torch.nn.Flatten(), torch.nn.Linear(72, 4),
        )
        x, y = torch.randn(16, 1, 8, 8), torch.randint(4, (16,))
        net, x, y = net.to(device), x.to(device), y.to(device)
        optimizer = torch.optim.Adam(net.parameters())
        for _ in range(10):
            loss = torch.nn.functional.cross_entropy(net(x), y)
            optimizer.zero_grad(); loss.backward(); optimizer.step()
            print(f"{loss.item():.5f}")
        """
    expected = run_ok(code.replace("DEVICE", "'cpu'"))
    actual = run_ok(
        code.replace("import sys, torch", "import sys, torch, torch_fl").replace("DEVICE", "'flagos'"),
        FLAGOS_HOST_PROTECT="1",
        FLAGOS_HOST_POISON="1",
        FLAGOS_HOST_MISALIGN="1",
    )
    for a, e in zip(actual.split(), expected.split(), strict=True):
        assert float(a) == pytest.approx(float(e), rel=1e-4)


def test_fresh_and_freed_memory_is_poisoned() -> None:
    run_ok(
        """
        import torch, torch_fl
        fresh = torch.empty(4096, dtype=torch.uint8, device="flagos").cpu()
        assert fresh.unique().numel() == 1 and fresh[0] != 0, "fresh memory is not poisoned"
        x = torch.zeros(4096, dtype=torch.uint8, device="flagos")
        del x
        again = torch.empty(4096, dtype=torch.uint8, device="flagos").cpu()
        assert (again == fresh[0]).all(), "freed memory shows its old bytes"
        """,
        FLAGOS_HOST_POISON="1",
    )


def test_without_protection_nothing_is_reported() -> None:
    run_ok(
        """
        import ctypes, torch, torch_fl
        x = torch.full((4,), 3.0, device="flagos")
        assert ctypes.c_float.from_address(x.data_ptr()).value == 3.0
        assert (x + 1).cpu().tolist() == [4.0] * 4
        """,
        FLAGOS_HOST_PROTECT="0",
    )
