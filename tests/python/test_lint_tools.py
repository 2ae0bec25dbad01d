# SPDX-License-Identifier: Apache-2.0
"""Each check of tools/lint accepts a good tree and names the file of a bad one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

LINT = Path(__file__).resolve().parents[2] / "tools" / "lint"
SPDX = "SPDX-License-Identifier: Apache-2.0"

# A tree that every check accepts.
GOOD = {
    "pyproject.toml": 'version = "1.2"\n',
    "include/torch_fl/driver.h": f"/* {SPDX} */\n#include <stdint.h>\n",
    "src/base/status.h": f'// {SPDX}\n#include <string>\n#include "torch_fl/driver.h"\n',
    "src/runtime/pool.cpp": f'// {SPDX}\n#include "base/status.h"\n',
    "src/router/policy.h": f'// {SPDX}\n#include "base/status.h"\n',
    "src/torch/guard.cpp": f'// {SPDX}\n#include <c10/core/Device.h>\n#include "router/policy.h"\n',
    "src/torch/check.cpp": f'// {SPDX}\n#include "torch_fl_generated/a.inc"\n',
    "tests/python/__init__.py": "",
    "src/torch/targets/cuda/keys.cpp": f"// {SPDX}\n// kCUDA is at home here.\n",
    "src/python/module.cpp": f"// {SPDX}\n#include <pybind11/pybind11.h>\n#include <ATen/ATen.h>\n",
    "drivers/sdk/t.h": f"// {SPDX}\n",
    "drivers/host/memory.h": f"// {SPDX}\n",
    "drivers/host/memory.cpp": f'// {SPDX}\n#include "memory.h"\n#include "sdk/t.h"\n#include <torch_fl/driver.h>\n',
    "python/torch_fl/__init__.py": f'# {SPDX}\n__version__ = "1.2"\n',
    "python/torch_fl/a.py": f"# {SPDX}\nx = t.is_cuda  # vendor-word: torch's own property\nascending = True\n",
    "tools/vendor_words.txt": "# comment\ncuda\nascend\nd-robotics\n",
    "tools/lint/long_files.txt": "",
}


def run(check: str, folder: Path, changes: dict[str, str]) -> tuple[int, str]:
    """Writes the good tree with `changes` and runs one check on it; returns its exit status and output."""
    for name, text in {**GOOD, **changes}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    result = subprocess.run([sys.executable, LINT / f"{check}.py", folder], capture_output=True, text=True, check=False)
    assert not result.stderr
    return result.returncode, result.stdout


@pytest.mark.parametrize(
    "check", ["check_layers", "check_vendor_words", "check_spdx", "check_file_sizes", "check_version"]
)
def test_good_tree_passes(check: str, tmp_path: Path) -> None:
    assert run(check, tmp_path, {}) == (0, f"{check}: 0 findings\n")


@pytest.mark.parametrize(
    ("name", "include", "reason"),
    [
        ("src/base/a.cpp", '"runtime/pool.h"', "is not a file of the tree"),
        ("src/base/a.cpp", '"router/policy.h"', "src/base may not include src/router"),
        ("src/runtime/a.cpp", '"router/policy.h"', "src/runtime may not include src/router"),
        ("src/runtime/a.cpp", "<c10/core/Device.h>", "src/runtime may not use torch"),
        ("src/router/a.cpp", '"ATen/ATen.h"', "src/router may not use torch"),
        ("src/torch/a.cpp", "<Python.h>", "src/torch may not use Python"),
        ("src/torch/a.cpp", "<pybind11/pybind11.h>", "src/torch may not use Python"),
        ("src/base/a.cpp", '"torch_fl_generated/a.inc"', "src/base may not use torch"),
        ("src/torch/a.cpp", '"../../drivers/host/memory.h"', "leaves src/"),
        ("src/extra/a.cpp", "<string>", "src/extra is not a layer"),
        ("drivers/null/a.c", '"base/status.h"', "a driver includes"),
        ("drivers/null/a.c", '"host/memory.h"', "a driver includes"),
        ("drivers/null/a.c", "<ATen/ATen.h>", "a driver may not use torch"),
        ("include/torch_fl/more.h", '"torch_fl/driver.h"', "the public header stands alone"),
    ],
)
def test_layers(name: str, include: str, reason: str, tmp_path: Path) -> None:
    status, output = run("check_layers", tmp_path, {name: f"// {SPDX}\n#include {include}\n"})
    assert status == 1
    assert output.startswith(f"{name}:2: {include[1:-1]}: {reason}")
    assert output.endswith("check_layers: 1 findings\n")


@pytest.mark.parametrize(
    ("name", "line", "word"),
    [
        ("src/torch/a.cpp", "if (t.is_cuda()) return;", "cuda"),
        ("src/torch/a.cpp", "auto key = kCUDA;", "cuda"),
        ("src/torch/a.cpp", "c10::CUDAGuard guard;", "cuda"),
        ("python/torch_fl/b.py", "libcuda12 = 1", "cuda"),
        ("python/torch_fl/b.py", "# Ascend", "ascend"),
        ("python/torch_fl/b.py", "# the D-Robotics board", "d-robotics"),
        ("python/torch_fl/b.py", "is_cuda = 1  # vendor-word:", "cuda"),
    ],
)
def test_vendor_words(name: str, line: str, word: str, tmp_path: Path) -> None:
    status, output = run("check_vendor_words", tmp_path, {name: f"{line}\n"})
    assert status == 1
    assert f"{name}:1: the vendor word '{word}' may not stand here\n" in output


def test_vendor_word_in_a_file_name(tmp_path: Path) -> None:
    status, output = run("check_vendor_words", tmp_path, {"src/torch/cuda_stream.cpp": ""})
    assert (status, "src/torch/cuda_stream.cpp: the vendor word 'cuda' is in the name\n" in output) == (1, True)


def test_vendor_word_allowed_by_the_comment_line_before_only(tmp_path: Path) -> None:
    text = "# vendor-word: torch's name\nx = t.is_cuda\ny = t.is_cuda\n"
    status, output = run("check_vendor_words", tmp_path, {"python/torch_fl/a.py": text})
    assert status == 1
    assert "a.py:2" not in output
    assert "a.py:3" in output


@pytest.mark.parametrize("name", ["src/base/a.cpp", "python/torch_fl/a.py", "drivers/CMakeLists.txt", "dev"])
def test_spdx(name: str, tmp_path: Path) -> None:
    status, output = run("check_spdx", tmp_path, {name: f"1\n2\n3\n{SPDX}\n"})
    assert status == 1
    assert output.startswith(f"{name}: no line")


@pytest.mark.parametrize(
    ("length", "reasons", "finding"),
    [
        (500, "", None),
        (501, "", "src/base/a.cpp: 501 lines, over 500 without a reason"),
        (501, "src/base/a.cpp:\n", "src/base/a.cpp: 501 lines, over 500 without a reason"),
        (800, "src/base/a.cpp: one table\n", None),
        (801, "src/base/a.cpp: one table\n", "src/base/a.cpp: 801 lines, the ceiling is 800"),
        (500, "src/base/a.cpp: one table\n", "tools/lint/long_files.txt: src/base/a.cpp needs no reason"),
    ],
)
def test_file_sizes(length: int, reasons: str, finding: str | None, tmp_path: Path) -> None:
    changes = {"src/base/a.cpp": "\n" * length, "tools/lint/long_files.txt": reasons}
    status, output = run("check_file_sizes", tmp_path, changes)
    assert status == (0 if finding is None else 1)
    assert output.startswith(finding or "check_file_sizes: 0 findings")


@pytest.mark.parametrize(
    ("text", "finding"),
    [
        ('__version__ = "1.3"\n', "versions differ: {'pyproject.toml': '1.2', 'python/torch_fl/__init__.py': '1.3'}\n"),
        ("", "python/torch_fl/__init__.py: no version found\n"),
    ],
)
def test_version(text: str, finding: str, tmp_path: Path) -> None:
    status, output = run("check_version", tmp_path, {"python/torch_fl/__init__.py": text})
    assert (status, output) == (1, finding + "check_version: 1 findings\n")
