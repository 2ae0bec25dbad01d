# SPDX-License-Identifier: Apache-2.0
"""Import order, the entry point that `import torch` calls, and refusing a torch the build does not fit."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from helpers import run_ok, run_python
from torch_fl import _boot

# Every test starts processes of its own, which import torch anew.
pytestmark = pytest.mark.slow

STATE = "print(hasattr(torch, 'flagos'), 'torch_fl' in sys.modules)\n"


@pytest.fixture
def entry_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Children find the entry point even where torch_fl is not installed; a second one beside the installed is fine."""
    info = tmp_path / "torch_fl_entry-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: torch-fl-entry\nVersion: 0\n")
    (info / "entry_points.txt").write_text("[torch.backends]\ntorch_fl_entry = torch_fl:_autoload\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.delenv("TORCH_DEVICE_BACKEND_AUTOLOAD", raising=False)


needs_no_hardware = pytest.mark.skipif(bool(_boot.hardware_drivers()), reason="a hardware driver is installed here")


@needs_no_hardware
def test_import_torch_alone_stays_as_it_is(entry_point: None) -> None:
    """DESIGN 6: a laptop does not suddenly report an accelerator, and a later import registers for real."""
    out = run_ok(
        "import sys, torch\n" + STATE + "print(torch.accelerator.is_available())\n"
        "import torch_fl\n" + STATE + "print(torch.flagos is torch_fl.flagos, torch.ones(1, device='flagos').item())\n"
    )
    assert out.splitlines() == ["False False", str(torch.cuda.is_available()), "True True", "True 1.0"]


def test_import_torch_loads_when_asked(entry_point: None) -> None:
    out = run_ok("import sys, torch\n" + STATE + "print(torch.ones(1, device='flagos').item())", FLAGOS_DRIVER="host")
    assert out.splitlines() == ["True True", "1.0"]


@pytest.mark.parametrize("driver", ["", "host"])
@pytest.mark.parametrize("order", ["import torch_fl, torch", "import torch, torch_fl", "import numpy, torch_fl, torch"])
def test_every_import_order(entry_point: None, order: str, driver: str) -> None:
    """U1: the entry point may run while torch_fl is half imported, or import it while torch is."""
    code = order + "\nprint(torch.flagos is torch_fl.flagos, callable(torch_fl.summary), torch_fl.__version__)"
    assert run_ok(code, FLAGOS_DRIVER=driver).split()[:2] == ["True", "True"]


def test_import_twice_and_reload(entry_point: None) -> None:
    """U1: registering again does nothing."""
    run_ok("import importlib, torch_fl, torch\nimportlib.reload(torch_fl)\ntorch.ones(1, device='flagos')")


@pytest.mark.parametrize("variable", ["FLAGOS_DRIVER", "FLAGOS_DRIVER_PLUGIN"])
def test_bad_driver_leaves_import_torch_unharmed(entry_point: None, variable: str) -> None:
    """U3: import works, first use says why."""
    done = run_python(
        "import torch\nprint(torch.ones(1).item(), torch.flagos.is_available())\ntorch.ones(1, device='flagos')",
        **{variable: "/nowhere/libnone.so" if variable.endswith("PLUGIN") else "nosuchdriver"},
    )
    assert done.stdout.split() == ["1.0", "False"], done.stderr
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("RuntimeError") and ("nosuchdriver" in last or "/nowhere/libnone.so" in last)


def test_error_in_autoload_is_one_warning_line(entry_point: None) -> None:
    """U2: the cause and the check to run, even with warnings turned into errors; a later import raises in full."""
    done = run_python(
        "import sys\n"
        "class Broken:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'torch_fl._C': raise ImportError('libx.so: undefined symbol: _Z3foo')\n"
        "sys.meta_path.insert(0, Broken())\n"
        "import warnings; warnings.simplefilter('error')\n"
        "import torch\n" + STATE + "import torch_fl\n",
        FLAGOS_DRIVER="host",
    )
    assert done.stdout.split() == ["False", "False"]
    lines = [line for line in done.stderr.splitlines() if line.startswith("torch_fl: warning")]
    assert lines and "undefined symbol: _Z3foo" in lines[0] and "`torch-fl info`" in lines[0]
    assert done.returncode == 1 and done.stderr.strip().endswith("ImportError: libx.so: undefined symbol: _Z3foo")


def test_other_torch_minor_is_refused_before_loading(tmp_path: Path) -> None:
    """U7: refuse before anything that would crash is loaded; the message names both versions and the remedy."""
    (tmp_path / "torch_version.txt").write_text("1.99.0+cpu\n")
    out = run_ok(
        "import sys\nsys.argv = ['torch-fl']\nimport torch_fl\nfrom torch_fl import _boot\nfrom pathlib import Path\n"
        f"_boot._library_folders = lambda: [Path({str(tmp_path)!r})]\n"
        "try:\n    _boot.activate()\nexcept ImportError as error:\n    print(error)\n"
        "print('torch_fl._C' in sys.modules)\n"
    )
    message, loaded = out.splitlines()
    assert "1.99.0+cpu" in message and torch.__version__ in message and "rebuild" in message
    assert loaded == "False"


def test_same_minor_is_accepted() -> None:
    _boot.require_same_minor("2.11.0+cpu", "2.11.3+cu130")
    with pytest.raises(ImportError, match=r"2\.11\.0.*2\.12\.0"):
        _boot.require_same_minor("2.11.0", "2.12.0")


def test_other_backend_in_the_slot() -> None:
    done = run_python("import torch\ntorch.utils.rename_privateuse1_backend('other')\nimport torch_fl")
    assert done.returncode == 1
    assert "ImportError" in done.stderr and "'other'" in done.stderr.strip().splitlines()[-1]


def test_import_writes_no_environment_variable() -> None:
    """DESIGN 6: neither through os.environ nor behind its back."""
    out = run_ok(
        "import torch, os, ctypes\n"
        "def raw():\n"
        "    p = ctypes.POINTER(ctypes.c_char_p).in_dll(ctypes.CDLL(None), 'environ')\n"
        "    found, i = [], 0\n"
        "    while p[i]:\n"
        "        found.append(p[i]); i += 1\n"
        "    return sorted(found)\n"
        "before = dict(os.environ), raw()\n"
        "import torch_fl\n"
        "torch.ones(1, device='flagos')\n"
        "print(before == (dict(os.environ), raw()))\n"
    )
    assert out.strip() == "True"


def test_no_walk_over_foreign_modules() -> None:
    """F4: a module in sys.modules whose attributes raise does not matter."""
    out = run_ok(
        "import sys, types, torch\n"
        "class Lazy(types.ModuleType):\n"
        "    def __getattr__(self, name): raise RuntimeError('not now')\n"
        "sys.modules['lazy_thing'] = Lazy('lazy_thing')\n"
        "import torch_fl\n"
        "torch.manual_seed(3); a = torch.rand(4, device='flagos')\n"
        "torch.manual_seed(3); print(torch.equal(a, torch.rand(4, device='flagos')))\n"
    )
    assert out.strip() == "True"


def test_no_device() -> None:
    """U3: import works, is_available() is False, first use raises with the reason."""
    out = run_ok(
        """
        import torch, torch_fl
        f = torch.flagos
        print(f.is_available(), f.device_count(), f.is_initialized(), torch.device("flagos:0"))
        torch.manual_seed(1); f.manual_seed(1); f.seed_all(); f.empty_cache(); f.reset_peak_memory_stats()
        print(f.memory_allocated(), f.get_rng_state_all(), len(f.default_generators), f.is_bf16_supported())
        for use in (lambda: torch.ones(1, device="flagos"), lambda: torch.ones(1).to("flagos"), f.init, f.Stream,
                    f.current_device, f.get_device_properties, f.synchronize, lambda: f.set_device(0), f.Event,
                    f.get_rng_state, f.mem_get_info, f.current_stream):
            try:
                use()
            except RuntimeError as error:
                print("reason" if "FLAGOS_HOST_DEVICES" in str(error) else f"no reason: {error}")
            else:
                print("no error", use)
        """,
        FLAGOS_HOST_DEVICES="0",
    )
    lines = out.splitlines()
    assert lines[:2] == ["False 0 False flagos:0", "0 [] 0 False"]
    assert lines[2:] == ["reason"] * 12


def test_the_build_left_its_torch_version_beside_the_libraries() -> None:
    """U7: without this record another minor version of torch would be loaded against, and crash."""
    from torch_fl import _C, _boot

    records = [folder / "torch_version.txt" for folder in _boot._library_folders()]
    written = [record.read_text(encoding="utf-8").strip() for record in records if record.is_file()]
    assert written == [_C._torch_version_built()]
