# SPDX-License-Identifier: Apache-2.0
"""Group I: allocator, out of memory, statistics. I6 (memory kept by a tuner) comes with the tuner."""

from __future__ import annotations

import pytest
import torch

import torch_fl  # noqa: F401 - registers the device
from helpers import D, run_ok, run_python
from torch_fl import _C

f = torch.flagos
MIB = 1 << 20


def test_I1_reset_of_the_peak_keeps_the_live_numbers() -> None:
    before = f.memory_allocated()
    x = torch.empty(4 * MIB, dtype=torch.uint8, device=D)
    f.reset_peak_memory_stats()
    assert f.memory_allocated() == before + x.nbytes == f.max_memory_allocated()
    y = torch.empty(8 * MIB, dtype=torch.uint8, device=D)
    del y
    assert f.max_memory_allocated() == f.memory_allocated() + 8 * MIB
    del x
    assert f.memory_allocated() == before >= 0
    f.reset_peak_memory_stats()
    assert f.max_memory_allocated() == before
    f.reset_accumulated_memory_stats()
    stats = f.memory_stats()
    assert f.memory_allocated() == before and stats.pop("max_split_size") == -1
    assert all(value >= 0 for value in stats.values())


@pytest.mark.slow
def test_I2_the_accelerators_memory_calls_before_first_use() -> None:
    out = run_ok(
        """
        import torch, torch_fl
        a = torch.accelerator
        for module in (a, a.memory):
            module.empty_cache(), module.reset_peak_memory_stats(), module.reset_accumulated_memory_stats()
            print(module.memory_allocated(), module.max_memory_allocated(), module.memory_reserved(),
                  module.max_memory_reserved(), any(module.memory_stats().values()))
        free, total = a.get_memory_info()
        print(0 < free <= total, torch.flagos.is_initialized())
        """
    )
    assert out.split() == ["0", "0", "0", "0", "False"] * 2 + ["True", "False"]


@pytest.mark.slow
def test_I4_memory_figures_are_real() -> None:
    """What loading with a device map does: ask what is free, take nearly all of it at once, give it back."""
    out = run_ok(
        """
        import torch, torch_fl
        f = torch.flagos
        MIB = 1 << 20
        free, total = f.mem_get_info(0)
        print(f.is_initialized(), free >> 20, total >> 20)
        x = torch.empty(int(free * 0.9), dtype=torch.uint8, device="flagos")
        print(f.memory_allocated() >= x.nbytes, f.memory_reserved() >= f.memory_allocated(),
              f.mem_get_info(0)[0] <= free - x.nbytes)
        try:
            torch.empty(32 * MIB, dtype=torch.uint8, device="flagos")
        except torch.OutOfMemoryError as error:
            text = str(error)
        words = "flagos out of memory. Tried to allocate 32.00 MiB", "total capacity", "is free"
        print(all(word in text for word in words))
        del x  # the cache is given back and the driver asked again
        y = torch.empty(32 * MIB, dtype=torch.uint8, device="flagos").fill_(3)
        print(float(y[-1]), f.memory_stats()["num_ooms"])
        """,
        FLAGOS_HOST_MEMORY="64M",
    )
    assert out.split() == ["False", "64", "64", "True", "True", "True", "True", "3.0", "1"]


def resident_bytes() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * 4096


@pytest.mark.parametrize("what", ["device", "pinned"])
def test_I5_emptying_the_cache_in_a_loop_leaks_nothing(what: str) -> None:
    def step() -> None:
        if what == "device":
            x = torch.empty(4096, device=D)
            del x
            f.empty_cache()
        else:
            x = torch.empty(4096, pin_memory=True)
            del x
            f.empty_host_cache()

    for _ in range(200):
        step()
    before = resident_bytes()
    for _ in range(2000):
        step()
    assert resident_bytes() - before < 2 * MIB  # 2000 leaks of even 1 KiB would be more


@pytest.mark.slow
@pytest.mark.parametrize("expandable", ["True", "False"])
def test_I8_settings_of_the_allocator_never_break_it(expandable: str) -> None:
    out = run_ok(
        """
        import torch, torch_fl
        f = torch.flagos
        kept = [torch.full((3 << 20,), float(i), device="flagos") for i in range(4)]
        for _ in range(3):
            torch.empty(40 << 20, dtype=torch.uint8, device="flagos")
            torch.empty(100, device="flagos")
        f.empty_cache()
        print([int(x[-1].item()) for x in kept], any(s["is_expandable"] for s in f.memory_snapshot()))
        """,
        PYTORCH_ALLOC_CONF=f"expandable_segments:{expandable},garbage_collection_threshold:0.8,"
        "max_split_size_mb:32,roundup_power2_divisions:4,pinned_use_background_threads:True",
    )
    values, _, is_expandable = out.strip().rpartition(" ")
    assert values == "[0, 1, 2, 3]"
    offered = "memory_map" not in _C._driver_info()["missing_entries"]
    assert is_expandable == str(expandable == "True" and offered)


@pytest.mark.slow
def test_I8_an_unknown_setting_is_ignored_with_one_warning() -> None:
    done = run_python(
        """
        import torch, torch_fl
        torch.ones(3, device="flagos"), torch.flagos.memory_snapshot()
        print("alive")
        """,
        PYTORCH_ALLOC_CONF="nonsense:1",
    )
    assert done.returncode == 0 and done.stdout.split() == ["alive"], done.stderr
    assert done.stderr.count("nonsense") == 1, done.stderr


@pytest.mark.slow
def test_I9_an_allocation_never_waits_for_work_that_nobody_waits_for() -> None:
    """A block that a held stream still reads is pending for ever; new memory comes from elsewhere, at once."""
    out = run_ok(
        """
        import torch, torch_fl
        from torch_fl import _C
        f = torch.flagos
        x = torch.full((1 << 20,), 7.0, device="flagos")
        target = torch.zeros(1 << 20).pin_memory()
        side = f.Stream()
        side.wait_stream(f.current_stream())
        with f.stream(side):
            target.copy_(x, non_blocking=True)
        x.record_stream(side)
        address = x.data_ptr()
        del x
        before = _C._runtime_counters()
        y = torch.empty(1 << 20, device="flagos")
        after = _C._runtime_counters()
        waits = [after[k] - before[k] for k in ("device_syncs", "stream_syncs", "event_syncs")]
        print(y.data_ptr() != address, not any(waits))
        """,
        timeout=60,
        FLAGOS_HOST_QUEUE="lazy",
    )
    assert out.split() == ["True", "True"]


@pytest.mark.slow
def test_I9_before_an_oom_pending_work_is_waited_for() -> None:
    """The same where there is no memory elsewhere: the allocator waits for the stream and uses the block."""
    out = run_ok(
        """
        import torch, torch_fl
        f = torch.flagos
        x = torch.full((10 << 20,), 7.0, device="flagos")
        target = torch.zeros(10 << 20).pin_memory()
        side = f.Stream()
        side.wait_stream(f.current_stream())
        with f.stream(side):
            target.copy_(x, non_blocking=True)
        x.record_stream(side)
        del x
        y = torch.zeros(10 << 20, device="flagos")
        print(f.memory_stats()["num_ooms"], f.memory_stats()["num_sync_all_streams"] > 0, target.eq(7).all().item())
        """,
        timeout=60,
        FLAGOS_HOST_QUEUE="lazy",
        FLAGOS_HOST_MEMORY="64M",
    )
    assert out.split() == ["0", "True", "True"]


@pytest.mark.slow
@pytest.mark.parametrize("entry", ["event_query", "event_record", "event_create"])
def test_I9_an_event_that_fails_is_an_error_not_a_wait(entry: str) -> None:
    """An allocator that asks a broken event whether a block is free says so, and goes on when the device does."""
    out = run_ok(
        f"""
        import torch, torch_fl
        from torch_fl import _C
        f = torch.flagos
        def use():
            x = torch.full((1 << 20,), 7.0, device="flagos")
            side = f.Stream()
            side.wait_stream(f.current_stream())
            with f.stream(side):
                y = x + 1
            x.record_stream(side)
            del x
            torch.zeros(1 << 20, device="flagos")
            f.synchronize()
            return y.cpu().eq(8).all().item()
        assert use()
        fired = _C._faults_fired()
        _C._arm_fault("{entry}", 1, "VENDOR_ERROR")
        try:
            print("right" if use() else "wrong")
        except RuntimeError as error:
            print("named" if "{entry}" in str(error) else str(error))
        _C._disarm_faults()
        print(use(), f.memory_stats()["num_ooms"])
        """,
        timeout=60,
        FLAGOS_DRIVER_LAYERS="fault",
    )
    first, *rest = out.split("\n")
    assert first in ("right", "named") and rest[0].split() == ["True", "0"], out
