# SPDX-License-Identifier: Apache-2.0
"""Memory history and snapshots: the shape of torch.cuda.memory._snapshot, read by torch's own viewer code."""

from __future__ import annotations

import copy
import pickle
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.cuda import _memory_viz as viz

import torch_fl  # noqa: F401 - registers the device
from helpers import D, run_ok

f = torch.flagos
MIB = 1 << 20

SEGMENT = {"device", "address", "total_size", "allocated_size", "active_size", "requested_size", "stream",
           "segment_type", "segment_pool_id", "is_expandable", "frames", "blocks"}  # fmt: skip
BLOCK = {"address", "size", "requested_size", "state", "frames"}
ENTRY = {"action", "size", "stream", "time_us", "frames", "segment_pool_id"}


@pytest.fixture
def history() -> Iterator[None]:
    f.empty_cache()
    f.memory._record_memory_history(stacks="python")  # resolving compiled frames takes seconds
    yield
    f.memory._record_memory_history(None)


def make_and_drop() -> torch.Tensor:
    kept = torch.empty(24 * MIB, dtype=torch.uint8, device=D)  # a segment of its own
    dropped = torch.empty(2 * MIB, dtype=torch.uint8, device=D)
    del dropped
    return kept


def names(frames: list[dict[str, Any]]) -> list[str]:
    return [frame["name"] for frame in frames]


def block_of(snapshot: dict[str, Any], tensor: torch.Tensor) -> tuple[dict[str, Any], dict[str, Any]]:
    ((segment, block),) = [
        (s, b) for s in snapshot["segments"] for b in s["blocks"] if b["address"] == tensor.data_ptr()
    ]
    return segment, block


def test_shape_of_a_snapshot() -> None:
    f.empty_cache()  # segments of pools that are gone
    x = torch.empty(3 * MIB, dtype=torch.uint8, device=D)
    small = torch.empty(100, dtype=torch.uint8, device=D)
    snapshot = f.memory._snapshot()
    assert set(snapshot) == {"segments", "device_traces", "allocator_settings", "external_annotations"}
    assert snapshot["external_annotations"] == []
    for segment in snapshot["segments"]:
        assert set(segment) == SEGMENT
        assert segment["segment_type"] in ("small", "large") and tuple(segment["segment_pool_id"]) == (0, 0)
        place = segment["address"]
        for block in segment["blocks"]:
            assert set(block) == BLOCK and block["address"] == place
            place += block["size"]
        assert place == segment["address"] + segment["total_size"]
        active = [b for b in segment["blocks"] if b["state"] != "inactive"]
        assert sum(b["size"] for b in active) == segment["active_size"] >= segment["allocated_size"]
    segment, block = block_of(snapshot, x)
    assert segment["segment_type"] == "large" and segment["device"] == 0 and segment["stream"] == 0
    assert block["state"] == "active_allocated" and block["requested_size"] == x.nbytes <= block["size"]
    segment, block = block_of(snapshot, small)
    assert segment["segment_type"] == "small" and (block["requested_size"], block["size"]) == (100, 512)
    assert sum(s["total_size"] for s in snapshot["segments"] if s["device"] == 0) == f.memory_reserved()
    assert sum(s["allocated_size"] for s in snapshot["segments"] if s["device"] == 0) == f.memory_allocated()


def test_history_of_a_device(history: None) -> None:
    kept = make_and_drop()
    traces = f.memory._snapshot()["device_traces"]
    assert len(traces) == f.device_count()
    trace = traces[0]
    for entry in trace:
        assert set(entry) - {"addr", "device_free"} == ENTRY and ("addr" in entry) == (entry["action"] != "oom")
    assert [e["time_us"] for e in trace] == sorted(e["time_us"] for e in trace)
    assert trace[0]["time_us"] > 1_600_000_000_000_000, "microseconds since 1970"
    actions = [e["action"] for e in trace]
    assert actions.index("segment_alloc") < actions.index("alloc") < actions.index("free_requested")
    allocations = [e for e in trace if e["action"] == "alloc"]
    assert allocations[0]["addr"] == kept.data_ptr()
    freed = [e["addr"] for e in trace if e["action"] == "free_completed"]
    assert freed == [allocations[1]["addr"]]


def test_frames_name_the_python_line(history: None) -> None:
    kept = make_and_drop()
    snapshot = f.memory._snapshot()
    (frame,) = [g for g in block_of(snapshot, kept)[1]["frames"] if g["name"] == "make_and_drop"]
    assert Path(frame["filename"]).name == Path(__file__).name
    assert frame["line"] == make_and_drop.__code__.co_firstlineno + 1
    for entry in snapshot["device_traces"][0]:
        if entry["action"] in ("alloc", "free_requested"):
            assert "make_and_drop" in names(entry["frames"]), entry


@pytest.mark.parametrize(
    ("context", "live", "allocations", "frees"),
    [(None, 0, 0, 0), ("state", 1, 0, 0), ("alloc", 1, 1, 1), ("all", 1, 1, 1)],
)
def test_what_gets_a_stack_trace(history: None, context: str | None, live: int, allocations: int, frees: int) -> None:
    f.memory._record_memory_history(context=context, stacks="python")
    kept = make_and_drop()
    snapshot = f.memory._snapshot()
    trace = snapshot["device_traces"][0]
    assert bool(block_of(snapshot, kept)[1]["frames"]) == bool(live)
    assert bool([e for e in trace if e["action"] == "alloc"][-1]["frames"]) == bool(allocations)
    assert bool([e for e in trace if e["action"] == "free_requested"][-1]["frames"]) == bool(frees)


@pytest.mark.slow
def test_compiled_frames(history: None) -> None:
    """With them, as is the default, or Python's only."""
    f.memory._record_memory_history()
    kept = make_and_drop()
    snapshot = f.memory._snapshot()
    both = block_of(snapshot, kept)[1]["frames"]
    f.memory._record_memory_history(stacks="python")
    more = make_and_drop()
    python = block_of(f.memory._snapshot(), more)[1]["frames"]
    assert python[0]["name"] == "make_and_drop" and all(".py" in frame["filename"] for frame in python[:3])
    assert any("torch_fl::" in frame["name"] for frame in both) and "make_and_drop" in names(both)


def test_history_is_a_ring(history: None) -> None:
    f.memory._record_memory_history(max_entries=5, stacks="python")
    for _ in range(20):
        make_and_drop()
    assert len(f.memory._snapshot()["device_traces"][0]) <= 5


def test_stopped_history_does_not_grow(history: None) -> None:
    make_and_drop()
    f.memory._record_memory_history(None)
    before = len(f.memory._snapshot()["device_traces"][0])
    make_and_drop()
    assert len(f.memory._snapshot()["device_traces"][0]) == before


def test_history_of_threads_with_and_without_python(history: None) -> None:
    """Allocations of autograd's own threads are noted too; taking the GIL for that never blocks for good."""
    weight = torch.ones(64, 64, device=D, requires_grad=True)

    def work() -> None:
        for _ in range(20):
            (weight @ weight).relu().sum().backward()

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not any(thread.is_alive() for thread in threads)
    trace = f.memory._snapshot()["device_traces"][0]
    assert any("work" in names(e["frames"]) for e in trace)


def test_an_oom_is_in_the_history(history: None) -> None:
    f.set_per_process_memory_fraction(min(1.0, (f.memory_reserved() + 64 * MIB) / f.mem_get_info()[1]))
    try:
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(256 * MIB, dtype=torch.uint8, device=D)
    finally:
        f.set_per_process_memory_fraction(1.0)
    (entry,) = [e for e in f.memory._snapshot()["device_traces"][0] if e["action"] == "oom"]
    assert entry["size"] >= 256 * MIB and entry["device_free"] >= 0


def test_torchs_viewer_reads_it(history: None) -> None:
    """`python -m torch.cuda._memory_viz` and the page at pytorch.org/memory_viz."""
    kept = make_and_drop()
    with f.use_mem_pool(f.MemPool()):
        make_and_drop()
    before = f.memory._snapshot()
    more = make_and_drop()
    after = f.memory._snapshot()

    text = viz.segsum(after)
    assert "segments: " in text.lower() or "total_reserved" in text
    assert "alloc(" in viz.trace(after) or "= alloc" in viz.trace(after)
    assert "make_and_drop" in viz.memory(after, format_flamegraph=str)
    assert "active_allocated" in viz.segments(after, format_flamegraph=str)
    assert "only_after" in viz.compare(before["segments"], after["segments"], format_flamegraph=str)
    pages = [viz.trace_plot(after), viz.segment_plot(after)]
    pages.append(viz.trace_plot(copy.deepcopy(after), filter_freed=True))
    for page in pages:
        assert "add_local_files" in page and len(page) > 1000
    assert kept.nbytes == more.nbytes


def test_dump_and_load(history: None, tmp_path: Path) -> None:
    kept = make_and_drop()
    file = tmp_path / "snapshot.pickle"
    f.memory._dump_snapshot(str(file))
    with file.open("rb") as opened:
        snapshot = pickle.load(opened)
    assert block_of(snapshot, kept)[1]["state"] == "active_allocated"


def test_memory_snapshot_is_the_list_of_segments(history: None) -> None:
    kept = make_and_drop()
    segments = f.memory_snapshot()
    assert block_of({"segments": segments}, kept)[1]["frames"]
    bare = f.memory_snapshot(include_traces=False)
    assert not block_of({"segments": bare}, kept)[1]["frames"]


@pytest.mark.slow
def test_memory_that_a_stream_still_uses_is_pending() -> None:
    out = run_ok(
        """
        import torch, torch_fl
        f = torch.flagos
        x = torch.ones(1 << 20, device="flagos")
        target = torch.empty(1 << 20).pin_memory()
        s = f.Stream()
        s.wait_stream(f.current_stream())
        with f.stream(s):
            target.copy_(x, non_blocking=True)
        x.record_stream(s)
        address = x.data_ptr()
        del x
        state = lambda: [b["state"] for g in f.memory_snapshot() for b in g["blocks"] if b["address"] == address][0]
        print(state())
        stats = f.memory_stats()
        print(stats["active.all.current"] - stats["allocation.all.current"])
        s.synchronize()
        torch.ones(1 << 20, device="flagos")
        print(state())
        """,
        FLAGOS_HOST_QUEUE="lazy",
    )
    assert out.split() == ["active_pending_free", "1", "inactive"]


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ({"enabled": "some"}, "'some'"),
        ({"context": "some"}, "'some'"),
        ({"stacks": "c"}, "'c'"),
        ({"max_entries": 0}, "0"),
    ],
)
def test_wrong_words_are_refused(arguments: dict[str, Any], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        f.memory._record_memory_history(**arguments)


def test_skip_actions_are_not_offered() -> None:
    with pytest.raises(NotImplementedError, match="skip_actions"):
        f.memory._record_memory_history(skip_actions=["alloc"])


@pytest.mark.slow
def test_settings_reach_the_allocator_and_the_snapshot() -> None:
    out = run_ok(
        """
        import torch, torch_fl
        f = torch.flagos
        first = f.memory._snapshot()["allocator_settings"]
        print(first["max_split_size"] >> 20, first["garbage_collection_threshold"])
        torch._C._accelerator_setAllocatorSettings("max_split_size_mb:99")
        print(f.memory._snapshot()["allocator_settings"]["max_split_size"] >> 20)
        f.memory._set_allocator_settings("roundup_power2_divisions:[64:8,256:4,>:1]")
        divisions = f.memory._snapshot()["allocator_settings"]["roundup_power2_divisions"]
        print(divisions["64"], divisions["256"])
        x = torch.empty(65 << 20, dtype=torch.uint8, device="flagos")
        print(f.memory_allocated() >> 20)
        try:
            f.memory._set_allocator_settings("nonsense:1")
        except ValueError as error:
            print("nonsense" in str(error))
        """,
        PYTORCH_ALLOC_CONF="max_split_size_mb:64,garbage_collection_threshold:0.5",
    )
    # 65 MiB rounded up to a multiple of 64 MiB / 8.
    assert out.split() == ["64", "0.5", "99", "8", "4", "72", "True"]
