# SPDX-License-Identifier: Apache-2.0
"""Group U: import order, autoload, names and ABI. U9 (preflight) and U11 (layer switches) come with their features."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
import torch

import torch_fl
from helpers import D, run_ok, run_python

# Every test starts processes of its own, which import torch anew.
pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    "imports",
    [
        "import torch_fl",
        "import torch",
        "import torch, torch_fl",
        "import torch_fl, torch",
        "import torch_fl.routing",
        "from torch_fl import flagos",
        "import torch_fl; import importlib; importlib.import_module('torch_fl')",
        "import torch._dynamo, torch_fl",
        "import torch.utils.data, torch.distributed, torch_fl",
    ],
)
def test_U1_any_order_of_imports_works(imports: str) -> None:
    done = run_python(imports)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    if "torch_fl" in imports:
        run_ok(imports + "; import torch, torch_fl; assert (torch.ones(1, device='flagos') + 1).item() == 2")


def test_U1_autoload_by_request() -> None:
    code = "import torch; print(torch._C._get_privateuse1_backend_name())"
    import importlib.metadata

    if not any(e.module == "torch_fl" for e in importlib.metadata.entry_points(group="torch.backends")):
        pytest.skip("torch_fl is used from the source tree; its entry point is not installed")
    assert run_ok(code, FLAGOS_DRIVER="host").strip() == "flagos"
    assert run_ok(code).strip() == "privateuseone", "a machine without an accelerator must not report one"


def test_U2_the_cause_of_a_broken_installation_is_shown() -> None:
    done = run_python(
        """
        import sys

        class Broken:
            def find_spec(self, name, path=None, target=None):
                if name == "torch_fl._C":
                    raise ImportError("libtorch_fl.so: undefined symbol: _ZN3c105Error4whatEv")

        sys.meta_path.insert(0, Broken())
        import torch
        assert (torch.ones(2) + 1).sum().item() == 4.0
        import torch_fl
        """
    )
    assert done.returncode != 0
    assert "undefined symbol: _ZN3c105Error4whatEv" in done.stderr, "the real cause is hidden"
    assert (torch.ones(2) + 1).sum().item() == 4.0


def test_U3_installed_but_no_device() -> None:
    out = run_ok(
        """
        import torch, torch_fl
        assert torch.flagos.is_available() is False and torch.flagos.device_count() == 0
        assert torch.device("flagos").type == "flagos"
        try:
            torch.ones(1).to("flagos")
        except RuntimeError as error:
            print(str(error).splitlines()[0])
        else:
            raise SystemExit("did not raise")
        """,
        FLAGOS_HOST_DEVICES="0",
    )
    assert "device" in out


def test_U5_privateuseone_is_an_alias() -> None:
    assert torch.ones(1, device="privateuseone").device == torch.device("flagos:0")
    assert torch.device("privateuseone:0") == torch.device("flagos:0")
    assert torch.ones(1).to("privateuseone").is_flagos


def test_U6_the_device_module_is_registered() -> None:
    import torch.flagos

    assert torch.get_device_module(D) is torch.flagos
    assert torch.get_device_module("flagos:0") is torch.flagos
    assert torch.accelerator.current_accelerator() == torch.device(D)
    assert torch.flagos is torch_fl.flagos


def test_U7_another_torch_minor_is_refused_before_anything_is_loaded() -> None:
    done = run_python(
        """
        import torch
        torch.__version__ = "2.3.1"
        import torch_fl
        """
    )
    assert done.returncode != 0 and "ImportError" in done.stderr
    last = done.stderr.strip().splitlines()[-1]
    assert "2.3.1" in last and torch.__version__.split("+")[0].rsplit(".", 1)[0] in last


def test_U10_nothing_of_cuda_changes(tmp_path: Path) -> None:
    code = """
        import torch
        PLUGIN

        @torch.jit.script
        def f(x):
            return x + 1
        print(torch.cuda.is_available(), torch.device("cuda").type, f(torch.ones(1)).item(), torch.get_default_device())
        print(torch._dynamo.list_backends() if hasattr(torch, "_dynamo") else "", torch.get_default_dtype())
        print(torch.cuda.device_count(), torch.cuda.is_initialized(), torch.distributed.is_nccl_available())
        """
    outputs = []
    for name, plugin in (("with", "import torch_fl"), ("without", "")):
        script = tmp_path / f"{name}.py"  # TorchScript reads the source of what it compiles
        script.write_text(textwrap.dedent(code).replace("PLUGIN", plugin))
        outputs.append(run_ok(f"import runpy; runpy.run_path({str(script)!r}, run_name='__main__')"))
    assert outputs[0] == outputs[1]
