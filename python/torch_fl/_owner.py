# SPDX-License-Identifier: Apache-2.0
"""Who owns the flagos devices of this process.

*Direct*: torch_fl's own runtime over a driver. *Delegated*: the vendor's backend of the torch in this process, under
its own device type; a flagos tensor, stream or event is then that backend's, and both kinds share one memory pool.
"""

from __future__ import annotations

import os

DELEGATED = "delegated"  # as a value of FLAGOS_DRIVER


def choose() -> str:
    """torch's name for the device type to delegate to, "" for the direct way.

    FLAGOS_DRIVER=<driver> and FLAGOS_DRIVER_PLUGIN choose the direct way, FLAGOS_DRIVER=delegated the other; without
    them the vendor's backend owns the devices if it reports any.

    Raises:
        ImportError: FLAGOS_DRIVER=delegated, but torch has no other backend with a device.
    """
    driver = os.environ.get("FLAGOS_DRIVER", "")
    if driver and driver != DELEGATED:
        return ""
    if os.environ.get("FLAGOS_DRIVER_PLUGIN") and not driver:
        return ""
    found = available()
    if driver == DELEGATED and not found:
        raise ImportError(
            "FLAGOS_DRIVER=delegated, but the installed torch has no other backend that reports a device; "
            "unset FLAGOS_DRIVER or name a driver",
            name="torch_fl",
        )
    return found


def available() -> str:
    """The device type of a backend in this torch that has devices, "" if there is none. Creates no context."""
    import torch

    # vendor-word: the one backend of torch itself that a device can be delegated to; counting asks the driver's library
    # and leaves the runtime alone, so that a fork afterwards is harmless.
    if torch.backends.cuda.is_built() and torch.cuda.device_count() > 0:  # vendor-word: as above
        return "cuda"  # vendor-word: as above
    return ""
