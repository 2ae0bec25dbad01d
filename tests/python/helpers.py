# SPDX-License-Identifier: Apache-2.0
"""What several test files need: child processes with their own FLAGOS_* variables, and comparisons with the CPU."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import torch_fl  # noqa: F401  registers the device for every test that imports this module

D = "flagos"
REPOSITORY = Path(__file__).resolve().parents[2]
# Says where the driver libraries of this build lie; everything else a child gets from the test that starts it.
KEPT_VARIABLES = ("FLAGOS_DRIVER_PATH",)


def torch_version() -> tuple[int, int]:
    """Major and minor number of the installed torch, for what only some versions do."""
    major, minor = torch.__version__.split(".")[:2]
    return int(major), int(minor)


def run_python(code: str, timeout: float = 120.0, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs ``code`` in a fresh interpreter whose only FLAGOS_* variables are ``variables``; never raises on failure."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("FLAGOS_") or k in KEPT_VARIABLES}
    environment.update(variables)
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def run_ok(code: str, timeout: float = 120.0, **variables: str) -> str:
    """Like ``run_python``, but fails the test unless the child exits with 0; returns what it printed on stdout."""
    done = run_python(code, timeout, **variables)
    assert done.returncode == 0, f"exit code {done.returncode}\n--- stdout\n{done.stdout}\n--- stderr\n{done.stderr}"
    return done.stdout


def same(actual: Any, expected: Any, **tolerances: float) -> None:
    """Asserts that tensors (or nests of them) on flagos equal their CPU twins: values, dtype, shape and strides."""
    if isinstance(expected, torch.Tensor):
        assert actual.device.type == D, f"result is on {actual.device}"
        assert actual.dtype == expected.dtype
        assert actual.shape == expected.shape
        if expected.layout == torch.strided:
            assert actual.stride() == expected.stride()
        tolerances = tolerances or {"rtol": 0.0, "atol": 0.0}
        torch.testing.assert_close(actual.detach().cpu(), expected.detach(), equal_nan=True, **tolerances)
    elif isinstance(expected, (list, tuple)):
        assert len(actual) == len(expected)
        for a, e in zip(actual, expected, strict=True):
            same(a, e, **tolerances)
    else:
        assert actual == expected


def like_cpu(f: Callable[..., Any], *tensors: torch.Tensor, **tolerances: float) -> None:
    """Asserts that ``f`` gives on flagos copies of the CPU ``tensors`` what it gives on the tensors themselves.

    Copies keep strides and ``requires_grad``; gradients are compared too when any input asks for them.
    """
    copies = [t.detach().to(D).requires_grad_(t.requires_grad) for t in tensors]
    for copy, original in zip(copies, tensors, strict=True):
        assert copy.stride() == original.stride() or original.numel() == 0 or not original.is_contiguous()
    expected, actual = f(*tensors), f(*copies)
    same(actual, expected, **tolerances)
    if any(t.requires_grad for t in tensors):
        for result in (expected, actual):
            parts = [p for p in (result if isinstance(result, (list, tuple)) else [result]) if p.requires_grad]
            torch.autograd.backward(parts, [torch.ones_like(p) for p in parts])
        for copy, original in zip(copies, tensors, strict=True):
            if original.requires_grad:
                same(copy.grad, original.grad, **tolerances)
