# SPDX-License-Identifier: Apache-2.0
"""A flagos tensor sent to another process is refused with words that help.

torch's pickler for `torch.multiprocessing` takes every storage that is neither its own GPU's nor meta for CPU memory
and fails on a detail of shared memory files. The front refuses flagos storages and hands all others, unchanged, to
torch's function. It is in place from registration on: `import torch` has loaded the pickler already, and nothing comes
before the call that needs it. It keeps no state; any thread may call it.
"""

from __future__ import annotations

from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch.multiprocessing import reductions

from torch_fl import _compat

_NAME = "torch.multiprocessing.reductions.reduce_storage"


def apply() -> None:
    """Puts the front in place and notes it. May be called again; the second call does nothing."""
    ForkingPickler.register(torch.UntypedStorage, _reduce_storage)
    _compat.record(_compat.Patch(_NAME, "2.10 and later", "it takes flagos memory for CPU memory"))


def _reduce_storage(storage: torch.UntypedStorage) -> Any:
    if storage.device.type == "flagos":
        raise RuntimeError(
            f"memory of {storage.device} cannot be sent to another process: device memory is not shared between "
            "processes yet; send tensor.cpu() and move it to flagos on the other side"
        )
    return reductions.reduce_storage(storage)
