# SPDX-License-Identifier: Apache-2.0
"""What happens before flagos is registered: who imports us, does this machine want it, does torch fit.

Standard library only, since it also runs half-way through `import torch` and in front of a broken installation.
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from typing import Literal

from torch_fl._text import one_line

_PACKAGE = "torch_fl"
_ASKING = ("FLAGOS_DRIVER", "FLAGOS_DRIVER_PLUGIN")
_SIMULATED = {"host", "null"}

_importer: Literal["user", "torch", "command"] = "user"
_activated = False


def light_import() -> bool:
    """Whether this run of `torch_fl/__init__.py` must leave torch alone.

    True for two importers that decide themselves: torch's own import, which loads our entry point, and the command
    line tool, which has to come up when registering fails because it explains the failure.
    """
    global _importer
    torch_spec = getattr(sys.modules.get("torch"), "__spec__", None)
    if _activated:
        _importer = "user"
    elif getattr(torch_spec, "_initializing", False):
        _importer = "torch"
    elif sys.argv and os.path.basename(sys.argv[0]) == "torch-fl" and not _is_worker():
        _importer = "command"
    else:
        _importer = "user"
    return _importer != "user"


def _is_worker() -> bool:
    """Whether multiprocessing spawned this process: it carries its parent's sys.argv, but imports us for real."""
    return "--multiprocessing-fork" in sys.orig_argv


def activate() -> None:
    """Turns a light import into the full one. Raises ImportError as `import torch_fl` does."""
    global _activated
    if _importer != "user":
        _activated = True
        importlib.reload(sys.modules[_PACKAGE])


def autoload() -> None:
    """Entry point of the group `torch.backends`, called at the end of `import torch`. Never raises.

    Registers flagos only if FLAGOS_DRIVER or FLAGOS_DRIVER_PLUGIN asks for it or accelerator hardware is found, so
    that a laptop does not suddenly report an accelerator. Otherwise the light module is forgotten again, which makes
    a later `import torch_fl` the real one.
    """
    if _importer != "torch":  # `import torch_fl` or `torch-fl` imported torch, and registers by itself
        return
    try:
        if wanted():
            activate()
            return
    except Exception as error:  # noqa: BLE001 - whatever it is, `import torch` must survive it
        # Not a Python warning: a filter may turn those into exceptions.
        print(f"torch_fl: warning: flagos is not available: {one_line(error)} (run `torch-fl info`)", file=sys.stderr)
    _forget()


def _forget() -> None:
    global _activated
    _activated = False
    sys.modules.pop(_PACKAGE, None)


def wanted() -> bool:
    """Whether the environment asks for flagos or hardware is found: by a backend of torch or by a driver. Creates
    no context."""
    if any(os.environ.get(name) for name in _ASKING):
        return True
    from torch_fl import _owner

    if _owner.available():
        return True
    if not hardware_drivers():  # one directory listing; nothing is loaded on a machine that has only simulated drivers
        return False
    check_torch()
    return bool(importlib.import_module(f"{_PACKAGE}._C")._hardware_detected())


def hardware_drivers() -> list[str]:
    """Names of the installed drivers that stand for real hardware."""
    override = os.environ.get("FLAGOS_DRIVER_PATH")
    folders = [Path(override)] if override else [folder / "drivers" for folder in _library_folders()]
    files = [file.stem for folder in folders for file in folder.glob("lib*_driver_*.so")]
    return sorted({stem.rpartition("_driver_")[2] for stem in files} - _SIMULATED)


def check_torch() -> None:
    """Raises ImportError when the installed torch is of another minor version than the one this build was made for.

    There is no binary compatibility between minor versions of torch: loading the compiled part would crash, so the
    record that the build left beside it is read first.
    """
    import torch

    for folder in _library_folders():
        record = folder / "torch_version.txt"
        if record.is_file():
            require_same_minor(record.read_text(encoding="utf-8").strip(), torch.__version__)
            return


def require_same_minor(built: str, installed: str) -> None:
    """Raises ImportError that names both versions and the remedy unless they agree in major and minor number."""
    if _minor(built) != _minor(installed):
        raise ImportError(
            f"torch_fl was built for torch {built} but torch {installed} is installed; "
            f"install torch {_minor(built)}.* or rebuild torch_fl in its source tree (./dev build)",
            name=_PACKAGE,
        )


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _library_folders() -> list[Path]:
    # An editable install has two folders in the path: the sources and the place where the build puts its libraries.
    return [Path(folder) / "lib" for folder in sys.modules[_PACKAGE].__path__]
