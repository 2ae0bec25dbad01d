# SPDX-License-Identifier: Apache-2.0
"""Registers flagos with torch: once, in an order that leaves torch alone when something does not fit."""

from __future__ import annotations

from torch_fl import _boot, _owner

NAME = "flagos"
_UNNAMED = "privateuseone"


def register() -> None:
    """Makes `flagos` a device of this process. May be called again; the second call does nothing.

    Raises:
        ImportError: torch is of another minor version than the build, the compiled part is missing, or another
            backend already took torch's one slot for outside devices, or FLAGOS_DRIVER=delegated cannot be had.
    """
    _boot.check_torch()
    import torch

    taken = torch._C._get_privateuse1_backend_name()
    if taken not in (_UNNAMED, NAME):
        raise ImportError(
            f"torch has one slot for outside devices and '{taken}' is registered in it already; "
            f"{NAME} needs a process that does not import that backend",
            name="torch_fl",
        )
    try:
        import torch_fl._C as _C
    except ModuleNotFoundError as error:
        if error.name != "torch_fl._C":
            raise
        raise ImportError(
            "the compiled module torch_fl._C is missing: build it with `./dev build` in the source tree",
            name="torch_fl",
        ) from error
    _boot.require_same_minor(_C._torch_version_built(), torch.__version__)

    delegate = _owner.choose()
    torch.utils.rename_privateuse1_backend(NAME)
    _C._register(delegate)

    from torch_fl import _compat, flagos

    if delegate:
        from torch_fl.flagos import _delegated

        _delegated.forward(flagos, getattr(torch, delegate))

    if not hasattr(torch, NAME):
        torch._register_device_module(NAME, flagos)
    if not hasattr(torch.Tensor, f"is_{NAME}"):
        torch.utils.generate_methods_for_privateuse1_backend(for_storage=True)
    _compat.apply_at_registration()
