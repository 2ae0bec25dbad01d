# SPDX-License-Identifier: Apache-2.0
"""One PyTorch device, `flagos`, for every accelerator: `import torch_fl`, then `device="flagos"`.

Importing registers the device with torch. It writes no environment variable and changes no default of torch; what
registering a backend changes by itself is printed by `torch-fl info`.
"""

from torch_fl._boot import autoload as _autoload  # noqa: F401 - the entry point in the group torch.backends
from torch_fl._boot import light_import as _light_import

__version__ = "0.1.0"

if not _light_import():
    from torch_fl._register import register as _register

    _register()

    from torch_fl import flagos
    from torch_fl.native import from_native, to_native
    from torch_fl.report import counters, reset_counters, summary, timing
    from torch_fl.routing import get_fallback_policy, get_registered_ops, keep_on_cpu, set_fallback_policy

__all__ = [
    "__version__",
    "counters",
    "flagos",
    "from_native",
    "get_fallback_policy",
    "get_registered_ops",
    "keep_on_cpu",
    "reset_counters",
    "set_fallback_policy",
    "summary",
    "timing",
    "to_native",
]
