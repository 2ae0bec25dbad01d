# SPDX-License-Identifier: Apache-2.0
"""The FLAGOS_* environment variables: which exist, which are set, which nobody reads."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

KNOWN = {
    "FLAGOS_DRIVER": "driver to use, by name; also lets `import torch` load flagos",
    "FLAGOS_DRIVER_PLUGIN": "driver to use, a path to its shared object",
    "FLAGOS_DRIVER_PATH": "folder that holds the drivers",
    "FLAGOS_FALLBACK": "allow, warn or error: when an operator can only run as a copying CPU fallback",
    "FLAGOS_FORCE_BACKEND": "alias or cpu: the one route that operators may take",
    "FLAGOS_LOG": "what to log on stderr: dispatch, fallback",
    "FLAGOS_LOG_DISPATCH": "1 logs every routed call",
    "FLAGOS_LOG_FALLBACK": "1 logs every CPU fallback",
    "FLAGOS_HOST_DEVICES": "simulated devices, 0 for none",
    "FLAGOS_HOST_MEMORY": "bytes of a simulated device; K, M, G",
    "FLAGOS_HOST_QUEUE": "eager or lazy: when queued work runs",
    "FLAGOS_HOST_PROTECT": "1 makes device memory unreadable for host code",
    "FLAGOS_HOST_POISON": "1 fills fresh and freed memory with a pattern",
    "FLAGOS_HOST_MISALIGN": "1 hands out badly aligned addresses",
}


def active(drivers: Iterable[str], environment: Mapping[str, str] = os.environ) -> list[tuple[str, str, str | None]]:
    """(name, value, meaning) of each FLAGOS_* variable that is set, sorted.

    The meaning is None for a variable that nothing reads: a typing error, or one of another version. `drivers` are
    the names of installed drivers, whose own options start with `FLAGOS_<NAME>_`.
    """
    prefixes = {f"FLAGOS_{name.upper()}_": name for name in drivers}
    prefixes.pop("FLAGOS_HOST_", None)  # its options are known by name, so a typing error shows
    found = []
    for name in sorted(environment):
        if name.startswith("FLAGOS_"):
            owner = next((driver for prefix, driver in prefixes.items() if name.startswith(prefix)), None)
            found.append((name, environment[name], KNOWN.get(name) or (f"option of driver {owner}" if owner else None)))
    return found
