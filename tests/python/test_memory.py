# SPDX-License-Identifier: Apache-2.0
"""torch.flagos: memory of the devices and page-locked host memory, against what torch.cuda documents."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
import torch

import torch_fl  # noqa: F401 - registers the device
from helpers import D, run_ok

f = torch.flagos
MIB = 1 << 20


def bytes_on_device(size: int, device: str = D) -> torch.Tensor:
    return torch.empty(size, dtype=torch.uint8, device=device)


def test_memory_stats_keys() -> None:
    x = torch.empty(1 << 20, dtype=torch.uint8, device=D)
    stats = f.memory_stats()
    assert list(stats) == sorted(stats) and all(isinstance(v, int) for v in stats.values())
    assert all(value >= 0 for key, value in stats.items() if key != "max_split_size")  # -1: no limit
    # The original plugin's nine names.
    for key in ("allocated_bytes", "reserved_bytes", "peak_allocated_bytes", "peak_reserved_bytes", "num_alloc_calls",
                "num_free_calls", "num_device_malloc", "num_device_free", "num_alloc_retries"):  # fmt: skip
        assert key in stats
    # What libraries read of torch.cuda's.
    for key in ("allocated_bytes.all.current", "allocated_bytes.all.peak", "active_bytes.all.peak",
                "reserved_bytes.all.current", "reserved_bytes.all.peak", "requested_bytes.all.current", "num_ooms",
                "inactive_split_bytes.all.current", "active.all.current", "allocation.all.allocated"):  # fmt: skip
        assert key in stats
    # All of torch.cuda's, which are those of torch.accelerator too.
    quantities = ("allocation", "segment", "active", "inactive_split", "allocated_bytes", "reserved_bytes",
                  "active_bytes", "inactive_split_bytes", "requested_bytes")  # fmt: skip
    metrics = ("current", "peak", "allocated", "freed")
    names = {f"{q}.{pool}.{m}" for q in quantities for pool in ("all", "small_pool", "large_pool") for m in metrics}
    names |= {f"{q}.{m}" for q in ("oversize_allocations", "oversize_segments") for m in metrics}
    assert names | set(torch.accelerator.memory_stats()) <= set(stats)
    for quantity in quantities:
        parts = [stats[f"{quantity}.{pool}.current"] for pool in ("all", "small_pool", "large_pool")]
        assert parts[0] == parts[1] + parts[2], quantity
    assert stats["allocated_bytes"] == stats["allocated_bytes.all.current"] == f.memory_allocated() >= x.nbytes
    assert stats["reserved_bytes"] == f.memory_reserved() >= f.memory_allocated()
    assert f.max_memory_reserved() >= f.memory_reserved()
    assert f.memory_allocated() == torch.accelerator.memory.memory_allocated()


def test_counts_since_the_start_can_be_reset() -> None:
    torch.empty(64, device=D)
    f.reset_accumulated_memory_stats()
    assert f.memory_stats()["allocation.all.allocated"] == 0
    x = torch.empty(64, device=D)
    stats = f.memory_stats()
    assert stats["allocation.all.allocated"] == 1 and stats["allocated_bytes.all.allocated"] >= x.nbytes
    assert stats["allocation.all.freed"] == 0


def test_empty_cache_gives_memory_back() -> None:
    x = torch.empty(32 << 20, dtype=torch.uint8, device=D)
    held = f.memory_reserved()
    del x
    f.empty_cache()
    assert f.memory_reserved() <= held - (32 << 20)


def test_memory_of_each_device_is_counted_apart(two_devices: None) -> None:
    before = f.memory_allocated(0), f.memory_allocated(1)
    x = torch.empty(1 << 20, dtype=torch.uint8, device="flagos:1")
    assert (f.memory_allocated(0), f.memory_allocated(1)) == (before[0], before[1] + x.nbytes)


def test_mem_get_info_shrinks() -> None:
    f.empty_cache()
    free, total = f.mem_get_info()
    x = torch.empty(64 << 20, dtype=torch.uint8, device=D)
    assert f.mem_get_info()[0] <= free - x.nbytes and f.mem_get_info()[1] == total


def test_old_reset_names_warn() -> None:
    for call in (f.reset_max_memory_allocated, f.reset_max_memory_cached):
        with pytest.warns(FutureWarning, match="reset_peak_memory_stats"):
            call()


def test_nested_stats_are_the_flat_ones() -> None:
    x = bytes_on_device(MIB)
    nested = f.memory_stats_as_nested_dict()
    assert nested["allocated_bytes"]["all"]["current"] == f.memory_allocated() >= x.nbytes
    assert nested["num_ooms"] == f.memory_stats()["num_ooms"]


def test_small_and_large_requests_are_counted_apart() -> None:
    def held() -> tuple[int, int]:
        stats = f.memory_stats()
        return stats["allocation.small_pool.current"], stats["allocation.large_pool.current"]

    small, large = held()
    x, y = bytes_on_device(1000), bytes_on_device(3 * MIB)
    assert held() == (small + 1, large + 1)
    del x, y
    assert held() == (small, large)


def test_requested_and_rounded_sizes() -> None:
    before = f.memory_stats()
    x = bytes_on_device(1000)
    after = f.memory_stats()
    requested = after["requested_bytes.all.current"] - before["requested_bytes.all.current"]
    rounded = after["allocated_bytes.all.current"] - before["allocated_bytes.all.current"]
    assert requested == x.nbytes and rounded == 1024  # blocks are multiples of 512 bytes


def test_memory_summary() -> None:
    x = bytes_on_device(3 * MIB)
    text = f.memory_summary()
    lines = text.splitlines()
    assert {len(line) for line in lines} == {77} and all(line[0] == line[-1] == "|" for line in lines)
    for part in ("device ID 0", "Cur Usage", "Peak Usage", "Tot Alloc", "Tot Freed", "Allocated memory",
                 "GPU reserved memory", "from large pool", "Non-releasable allocs", "Oversize allocations",
                 f"flagos OOMs: {f.memory_stats()['num_ooms']}", "KiB"):  # fmt: skip
        assert part in text, part
    assert len(f.memory_summary(abbreviated=True).splitlines()) == len(lines) - 18
    assert x.nbytes and "device ID 0" in f.memory_summary("flagos:0", abbreviated=True)


def test_summary_picks_the_unit_by_the_first_row_of_a_block() -> None:
    from torch_fl.flagos._summary import summary_text

    stats = {"allocated_bytes.all.current": 3 << 30, "allocated_bytes.small_pool.current": 5 << 20,
             "allocation.all.current": 750_000, "allocation.large_pool.current": 12_345, "num_ooms": 7}  # fmt: skip
    text = summary_text(stats, 2, abbreviated=False)
    rows = {line[1:23].strip(): line[25:37] for line in reversed(text.splitlines()) if "|" in line[1:-1]}
    assert rows["Allocated memory"].split() == ["3072", "MiB"]
    assert rows["Allocations"].split() == ["750", "K"]
    assert "device ID 2" in text and "flagos OOMs: 7" in text and "     5 MiB" in text and "     12 K" in text


@pytest.fixture
def no_limit() -> Iterator[None]:
    yield
    f.set_per_process_memory_fraction(1.0)


def test_memory_fraction_limits_this_process(no_limit: None) -> None:
    f.empty_cache()
    total = f.mem_get_info()[1]
    assert f.get_per_process_memory_fraction() == 1.0
    fraction = (f.memory_reserved() + 64 * MIB) / total
    f.set_per_process_memory_fraction(fraction)
    assert f.get_per_process_memory_fraction() == pytest.approx(fraction)
    ooms = f.memory_stats()["num_ooms"]
    with pytest.raises(torch.OutOfMemoryError, match="flagos out of memory. Tried to allocate 128.00 MiB"):
        bytes_on_device(128 * MIB)
    assert f.memory_stats()["num_ooms"] == ooms + 1
    assert bytes_on_device(32 * MIB).nbytes == 32 * MIB, "work goes on after the error"
    f.set_per_process_memory_fraction(1.0)
    assert bytes_on_device(128 * MIB).nbytes == 128 * MIB


def test_memory_fraction_checks_its_argument() -> None:
    for wrong in (0.0, -0.5, 1.5):
        with pytest.raises(ValueError, match="0 < fraction <= 1"):
            f.set_per_process_memory_fraction(wrong)
    with pytest.raises(TypeError, match="float"):
        f.set_per_process_memory_fraction(1)
    with pytest.raises(RuntimeError, match="invalid device 99"):
        f.set_per_process_memory_fraction(0.5, 99)


def test_memory_without_a_tensor() -> None:
    before = f.memory_allocated()
    for stream in (None, f.Stream(), 0):
        pointer = f.caching_allocator_alloc(5000, stream=stream)
        assert pointer and f.memory_allocated() >= before + 5000
        f.caching_allocator_delete(pointer)
        assert f.memory_allocated() == before
    with pytest.raises(RuntimeError, match="not the start of live memory"):
        f.caching_allocator_delete(pointer)
    with pytest.raises(TypeError, match="str"):
        f.caching_allocator_alloc(5000, stream="0")


def test_a_pool_keeps_its_memory_to_itself() -> None:
    f.empty_cache()
    pool, other = f.MemPool(), f.MemPool()
    assert pool.id != other.id and pool.use_count() == 1
    with f.use_mem_pool(pool):
        x = bytes_on_device(4 * MIB)
    outside = bytes_on_device(4 * MIB)
    (segment,) = pool.snapshot()
    assert tuple(segment["segment_pool_id"]) == pool.id
    assert segment["address"] <= x.data_ptr() < segment["address"] + segment["total_size"]
    assert not segment["address"] <= outside.data_ptr() < segment["address"] + segment["total_size"]
    assert other.snapshot() == []
    address = x.data_ptr()
    del x
    assert bytes_on_device(4 * MIB).data_ptr() != address, "free memory of a pool is the pool's"
    with f.use_mem_pool(pool):
        assert bytes_on_device(4 * MIB).data_ptr() == address
    f.empty_cache()
    assert len(pool.snapshot()) == 1, "kept while the pool lives"
    reserved = f.memory_reserved()
    del pool, segment
    gc.collect()
    assert f.memory_reserved() <= reserved - 4 * MIB


def test_a_pool_serves_its_thread_only() -> None:
    from concurrent.futures import ThreadPoolExecutor

    pool = f.MemPool()
    with f.use_mem_pool(pool), ThreadPoolExecutor(1) as threads:
        x = threads.submit(bytes_on_device, 4 * MIB).result()
    assert pool.snapshot() == [] and x.nbytes


def test_tensors_outlive_their_pool() -> None:
    pool = f.MemPool()
    with f.use_mem_pool(pool):
        x = torch.full((1000,), 3.0, device=D)
    del pool
    gc.collect()
    f.empty_cache()
    assert x.cpu().eq(3).all()


def test_pools_of_another_device(two_devices: None) -> None:
    pool = f.MemPool()
    with f.use_mem_pool(pool, "flagos:1"):
        x, y = bytes_on_device(MIB, "flagos:1"), bytes_on_device(MIB, "flagos:0")
    assert [s["device"] for s in pool.snapshot()] == [1] and x.nbytes == y.nbytes


@pytest.mark.parametrize("argument", ["allocator", "use_on_oom", "no_split"])
def test_what_pools_do_not_offer(argument: str) -> None:
    with pytest.raises(NotImplementedError, match=argument):
        f.MemPool(**{argument: True})


def test_host_memory_stats() -> None:
    before = f.host_memory_stats()
    x = torch.ones(3000, dtype=torch.uint8).pin_memory()
    during = f.host_memory_stats()
    assert list(during) == sorted(during)
    assert during["active_requests.current"] == before["active_requests.current"] + 1
    assert during["active_bytes.current"] == before["active_bytes.current"] + 4096  # powers of two
    assert during["allocated_bytes.current"] >= during["active_bytes.current"]
    assert f.host_memory_stats_as_nested_dict()["active_requests"]["current"] == during["active_requests.current"]
    f.reset_peak_host_memory_stats()
    assert f.host_memory_stats()["active_bytes.peak"] == during["active_bytes.current"]
    del x
    after = f.host_memory_stats()
    assert after["active_requests.current"] == before["active_requests.current"]
    f.empty_host_cache()
    assert f.host_memory_stats()["allocated_bytes.current"] <= after["allocated_bytes.current"] - 4096
    f.reset_accumulated_host_memory_stats()
    assert f.host_memory_stats()["active_requests.allocated"] == 0 == f.host_memory_stats()["num_host_alloc"]


def test_freed_page_locked_memory_is_used_again() -> None:
    f.synchronize()
    x = torch.ones(100_000).pin_memory()
    address, calls = x.data_ptr(), f.host_memory_stats()["num_host_alloc"]
    del x
    assert torch.ones(100_000).pin_memory().data_ptr() == address
    assert f.host_memory_stats()["num_host_alloc"] == calls


def test_old_names_warn() -> None:
    for old, new in ((f.memory_cached, f.memory_reserved), (f.max_memory_cached, f.max_memory_reserved)):
        with pytest.warns(FutureWarning, match=new.__name__):
            assert old() == new()


def test_what_only_the_vendors_tool_knows() -> None:
    assert f.get_allocator_backend() == "native"
    with pytest.raises(NotImplementedError, match="vendor's own tool"):
        f.list_gpu_processes()


def test_a_storage_shrinks_to_nothing_and_back() -> None:
    """What FSDP does with the parameters it has gathered."""
    before = f.memory_allocated()
    x = torch.ones(MIB, device=D)
    x.untyped_storage().resize_(0)
    assert f.memory_allocated() == before
    x.untyped_storage().resize_(4 * MIB)
    x.fill_(2)
    assert x.cpu().eq(2).all() and f.memory_allocated() == before + 4 * MIB


@pytest.mark.slow
def test_memory_is_a_question_before_first_use() -> None:
    out = run_ok(
        """
        import torch, torch_fl
        f = torch.flagos
        f.memory_stats(), f.memory_stats_as_nested_dict(), f.memory_summary(), f.memory_snapshot(), f.memory._snapshot()
        f.host_memory_stats(), f.empty_cache(), f.empty_host_cache(), f.reset_peak_memory_stats()
        f.reset_accumulated_memory_stats(), f.reset_peak_host_memory_stats(), f.reset_accumulated_host_memory_stats()
        f.set_per_process_memory_fraction(0.5), f.get_per_process_memory_fraction(), f.mem_get_info()
        f.can_device_access_peer(0, 1), f.Stream.priority_range(), f.memory._record_memory_history()
        f.memory._record_memory_history(None)
        print(f.is_initialized(), f.memory_allocated(), f.max_memory_reserved(), any(f.memory_stats().values()))
        """,
        FLAGOS_HOST_DEVICES="2",
    )
    assert out.split()[:3] == ["False", "0", "0"]


@pytest.mark.slow
def test_memory_functions_in_a_forked_child() -> None:
    """Statistics of a process that cannot have any are empty; nothing hangs."""
    out = run_ok(
        """
        import os, sys, torch, torch_fl
        f = torch.flagos
        pool = f.MemPool()
        with f.use_mem_pool(pool):
            x = torch.ones(1000, device="flagos")
        pinned = torch.ones(1000).pin_memory()
        child = os.fork()
        if child == 0:
            print(f.memory_stats(), f.host_memory_stats(), f.memory_snapshot(), f.memory_allocated())
            f.empty_cache(), f.empty_host_cache(), f.reset_peak_memory_stats()
            del pool, x, pinned
            sys.stdout.flush()
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        """
    )
    assert out.split() == ["OrderedDict()", "OrderedDict()", "[]", "0"]
