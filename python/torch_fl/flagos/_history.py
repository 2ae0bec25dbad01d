# SPDX-License-Identifier: Apache-2.0
"""Memory history and snapshots in the form that torch's memory viewer reads (pytorch.org/memory_viz).

Everything here is reached as `torch.flagos.memory._record_memory_history` and so on: the names, with their underscore,
are those of torch's GPU module.
"""

from __future__ import annotations

import os
import pickle
import sys
from typing import Any, Literal

import torch

from torch_fl import _C
from torch_fl.flagos._utils import DeviceLike, _require_device

_UNLIMITED = 1 << 63


def _record_memory_history(
    enabled: Literal["state", "all"] | bool | None = "all",
    context: Literal["state", "alloc", "all"] | None = "all",
    stacks: Literal["python", "all"] = "all",
    max_entries: int = sys.maxsize,
    device: DeviceLike = None,
    clear_history: bool = False,
    skip_actions: list[str] | None = None,
) -> None:
    """Starts or stops noting where memory is allocated and freed, on all devices. Creates no context.

    Args:
        enabled: None or False stops; "state" notes the origin of live memory only; "all" or True keeps the history of
            allocations and frees as well.
        context: which entries get a stack trace: none, live memory ("state"), also allocations in the history
            ("alloc"), also frees ("all").
        stacks: Python frames only, or C++ frames too.
        max_entries: length of the history of each device; older entries are dropped.
        device: taken for compatibility; recording is always of all devices, as in torch.
        clear_history: taken for compatibility; starting and stopping both begin with an empty history.
        skip_actions: not offered.

    Raises:
        ValueError: an unknown word for `enabled`, `context` or `stacks`, or `max_entries` below 1.
        NotImplementedError: `skip_actions` was given.
        RuntimeError: there is no device.
    """
    _require_device("memory._record_memory_history")
    if skip_actions:
        raise NotImplementedError("torch.flagos.memory._record_memory_history: skip_actions is not offered")
    if enabled is None or enabled is False:
        _C._record_memory_history(0, None, stacks)
        return
    if enabled not in ("state", "all", True):
        raise ValueError(f"enabled is None, 'state' or 'all', but got {enabled!r}")
    if max_entries < 1:
        raise ValueError(f"max_entries is at least 1, but got {max_entries}")
    if enabled == "state":
        max_entries, context = 1, None if context is None else "state"
    _C._record_memory_history(max_entries, context, stacks)


def _snapshot(device: DeviceLike = None, augment_with_fx_traces: bool = False) -> dict[str, Any]:
    """The state of the allocators of all devices, and their history if it is recorded.

    Args:
        device: taken for compatibility; the snapshot is always of all devices, as in torch.
        augment_with_fx_traces: adds the original source of code that torch.fx generated, where torch can.

    Returns:
        dict with

        - `segments`: memory held from the driver. Each has `device`, `address`, `total_size`, `allocated_size`,
          `active_size`, `requested_size` (bytes), `stream` (id, 0: the default stream), `segment_type` ("small" or
          "large"), `segment_pool_id`, `is_expandable`, `frames` and `blocks`. Blocks cover the segment without gaps;
          each has `address`, `size`, `requested_size`, `state` ("active_allocated", "active_pending_free",
          "inactive") and `frames`, the stack trace of its allocation as dicts of `filename`, `line`, `name`.
        - `device_traces`: a list for each device, oldest entry first: dicts of `action` ("alloc", "free_requested",
          "free_completed", "segment_alloc", "segment_free", "segment_map", "segment_unmap", "snapshot", "oom"), `addr`
          (for "oom" instead `device_free`, bytes), `size`, `stream`, `time_us` (since 1970), `frames`,
          `segment_pool_id`.
        - `allocator_settings`, `external_annotations`.
    """
    snapshot = _take(None)
    augment = getattr(torch._utils, "_augment_memory_snapshot_stack_traces", None)
    if augment_with_fx_traces and augment is not None:
        snapshot = augment(snapshot)
    return snapshot


def _dump_snapshot(filename: str = "dump_snapshot.pickle", augment_with_fx_traces: bool = False) -> None:
    """Writes `_snapshot()` to a file that the viewer at pytorch.org/memory_viz opens."""
    snapshot = _snapshot(augment_with_fx_traces=augment_with_fx_traces)
    with open(filename, "wb") as file:
        pickle.dump(snapshot, file)


def memory_snapshot(mempool_id: tuple[int, int] | None = None, include_traces: bool = True) -> list[dict[str, Any]]:
    """The segments of all devices, or of one private pool, as `_snapshot` describes them.

    Args:
        mempool_id: `MemPool.id`; None means all pools.
        include_traces: whether frames are resolved; without them every `frames` is empty.
    """
    segments = _take(mempool_id)["segments"]
    if not include_traces:
        for part in [*segments, *(block for segment in segments for block in segment["blocks"])]:
            part["frames"] = []
    return segments


def _set_allocator_settings(env: str) -> None:
    """Changes the allocator's settings, in the syntax of PYTORCH_ALLOC_CONF ("max_split_size_mb:64"). They are torch's
    own, so those of another accelerator in the process change with them.

    Raises:
        ValueError: torch does not know a key, or a value is out of range.
    """
    _C._set_allocator_settings(env)


def _take(pool: tuple[int, int] | None) -> dict[str, Any]:
    if _C._device_count() == 0 or _C._is_in_bad_fork():
        return {"segments": [], "device_traces": [], "allocator_settings": {}, "external_annotations": []}
    return {**_C._memory_snapshot(pool), "allocator_settings": _settings(), "external_annotations": []}


def _settings() -> dict[str, Any]:
    """The settings under the names and in the units of torch's snapshots."""
    config = _C._allocator_settings()
    divisions = config["roundup_power2_divisions"]
    return {
        "PYTORCH_ALLOC_CONF": os.environ.get("PYTORCH_ALLOC_CONF", ""),
        "max_split_size": -1 if config["max_split_size"] >= _UNLIMITED else config["max_split_size"],
        "garbage_collection_threshold": config["garbage_collection_threshold"],
        "expandable_segments": config["expandable_segments"],
        # By the size in MiB from which a number of divisions holds.
        "roundup_power2_divisions": {str(1 << power): count for power, count in enumerate(divisions)},
    }
