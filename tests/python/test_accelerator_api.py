# SPDX-License-Identifier: Apache-2.0
"""All of torch.accelerator on flagos: one test for each public name of the installed torch.

A torch that adds a name fails `test_every_name_has_a_test` until a test for it is written here.
"""

from __future__ import annotations

import gc
import inspect
import json
from collections.abc import Callable
from types import ModuleType

import pytest
import torch

import torch_fl  # noqa: F401 - registers the device
from helpers import D, run_ok

a = torch.accelerator
f = torch.flagos
MIB = 1 << 20

TESTS: dict[str, Callable[[], None]] = {}


def covers(*names: str) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Enters a test for names of torch.accelerator; "memory.x" is the name in its submodule."""

    def enter(test: Callable[[], None]) -> Callable[[], None]:
        for name in names:
            assert name not in TESTS, name
            TESTS[name] = test
        return test

    return enter


def public_names(module: ModuleType, prefix: str = "") -> set[str]:
    """What a user may call: everything without an underscore that is the module's own, or that it exports."""
    found = set()
    for name in dir(module):
        thing = getattr(module, name)
        if name.startswith("_") or inspect.ismodule(thing):
            continue
        own = str(getattr(thing, "__module__", "")).startswith("torch.accelerator")
        if own or name in getattr(module, "__all__", ()):
            found.add(prefix + name)
    return found


ALL_NAMES = public_names(a) | public_names(a.memory, "memory.")


def test_every_name_has_a_test() -> None:
    new = sorted(ALL_NAMES - set(TESTS))
    assert not new, (
        f"torch {torch.__version__} has names in torch.accelerator that nobody has tried on flagos: {', '.join(new)}; "
        f"write a test for each in {__file__}"
    )


def test_every_submodule_is_walked() -> None:
    modules = {name for name, thing in vars(a).items() if inspect.ismodule(thing) and not name.startswith("_")}
    own = {m for m in modules if str(getattr(a, m).__name__).startswith("torch.accelerator")}
    assert own <= {"memory"}, f"torch {torch.__version__} has new submodules of torch.accelerator: {sorted(own)}"


@pytest.mark.parametrize("name", sorted(ALL_NAMES))
def test_name(name: str, two_devices: None) -> None:
    if name not in TESTS:
        pytest.fail(f"no test for torch.accelerator.{name}; see test_every_name_has_a_test")
    try:
        TESTS[name]()
    finally:
        f.set_device(0)
        f.set_stream(f.default_stream())


# -- devices ----------------------------------------------------------------------------------------------------------


@covers("device_count", "is_available")
def _() -> None:
    assert a.device_count() == f.device_count() >= 2 and a.is_available()


@covers("current_accelerator")
def _() -> None:
    assert a.current_accelerator() == a.current_accelerator(check_available=True) == torch.device(D)
    assert torch.get_device_module(a.current_accelerator()) is f
    assert torch.get_device_module() is f


@covers("current_device_index", "set_device_index")
def _() -> None:
    for device in (1, "flagos:0", torch.device("flagos:1")):
        a.set_device_index(device)
        assert a.current_device_index() == f.current_device() == torch.device(device).index
        assert torch.ones(1, device=D).device.index == a.current_device_index()
    a.set_device_index(-1)
    assert a.current_device_index() == 1
    with pytest.raises(ValueError, match="cpu"):
        a.set_device_index("cpu")
    with pytest.raises(RuntimeError, match=f"{f.device_count()}"):
        a.set_device_index(f.device_count())


@covers("current_device_idx", "set_device_idx")
def _() -> None:
    with pytest.warns(FutureWarning, match="set_device_index"):
        a.set_device_idx(1)
    with pytest.warns(FutureWarning, match="current_device_index"):
        assert a.current_device_idx() == 1


@covers("device_index")
def _() -> None:
    with a.device_index(1):
        assert a.current_device_index() == 1
        with a.device_index(None):
            assert a.current_device_index() == 1
        with a.device_index(0):
            assert a.current_device_index() == 0
        assert a.current_device_index() == 1
    assert a.current_device_index() == 0
    with pytest.raises(KeyError), a.device_index(1):
        raise KeyError
    assert a.current_device_index() == 0


@covers("get_device_capability")
def _() -> None:
    for device in (None, 1, "flagos:0"):
        types = a.get_device_capability(device)["supported_dtypes"]
        assert {torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.bool} <= set(types)


# -- streams and events -----------------------------------------------------------------------------------------------


@covers("current_stream", "set_stream")
def _() -> None:
    default = a.current_stream()
    assert default.device == torch.device("flagos:0") and default == f.default_stream()
    assert a.current_stream(1).device == a.current_stream("flagos:1").device == torch.device("flagos:1")
    here, there = torch.Stream(D), torch.Stream("flagos:1", priority=-1)
    a.set_stream(here)
    assert a.current_stream() == here == f.current_stream()
    a.set_stream(there)
    assert a.current_device_index() == 1 and a.current_stream() == there and a.current_stream(0) == here
    a.set_stream(default)
    assert a.current_device_index() == 0 and a.current_stream() == default


@covers("synchronize")
def _() -> None:
    source, target = torch.arange(1000.0, device=D), torch.empty(1000).pin_memory()
    target.copy_(source, non_blocking=True)
    a.synchronize()
    assert torch.equal(target, torch.arange(1000.0))
    for device in (None, 1, "flagos:0", torch.device("flagos:1")):
        a.synchronize(device)
    assert a.current_device_index() == 0


def test_streams_and_events_of_torch(two_devices: None) -> None:
    """What torch's own tests ask of any accelerator: streams differ, contexts nest over devices, events order."""
    first, second = torch.Stream(D), torch.Stream(device=torch.device("flagos:0"))
    assert first != second and first.device_index == 0 and hash(first) != hash(second)
    default = a.current_stream()
    assert default.query()
    with first:
        assert a.current_stream() == first
        with torch.Stream("flagos:1") as other:
            assert a.current_device_index() == 1 and a.current_stream() == other
        assert a.current_device_index() == 0 and a.current_stream() == first
        x = torch.ones(1000, device=D) * 3
        event = first.record_event()
    assert a.current_stream() == default
    default.wait_event(event)
    assert (x + 1).sum().item() == 4000
    second.wait_stream(first)
    first.synchronize()
    event.synchronize()
    assert first.query() and event.query() and event.device == torch.device("flagos:0")

    begin, end = torch.Event(D, enable_timing=True), torch.Event(D, enable_timing=True)
    begin.record(first)
    end.record(first)
    end.synchronize()
    assert begin.elapsed_time(end) >= 0
    plain = torch.Event(D)
    plain.record()
    with pytest.raises((RuntimeError, ValueError)):
        plain.elapsed_time(end)
    with pytest.raises((RuntimeError, ValueError), match="recorded"):
        torch.Event(D, enable_timing=True).elapsed_time(end)


def test_a_copy_to_the_host_that_does_not_block_lands_in_pinned_memory() -> None:
    x = torch.randn(100, device=D)
    host = x.to("cpu", non_blocking=True)
    a.synchronize()
    assert host.is_pinned() and torch.equal(host, x.cpu())


# -- memory -----------------------------------------------------------------------------------------------------------


def both(name: str) -> list[Callable[..., object]]:
    """The function of torch.accelerator.memory and, where it has one of that name, of torch.accelerator."""
    return [getattr(module, name) for module in (a.memory, a) if hasattr(module, name)]


@covers("memory_allocated", "memory.memory_allocated", "max_memory_allocated", "memory.max_memory_allocated",
       "reset_peak_memory_stats", "memory.reset_peak_memory_stats")  # fmt: skip
def _() -> None:
    for allocated, peak, reset in zip(
        both("memory_allocated"), both("max_memory_allocated"), both("reset_peak_memory_stats"), strict=True
    ):
        gc.collect()
        reset()
        before = allocated()
        assert peak() == before == f.memory_allocated()
        x = torch.empty(4 * MIB, dtype=torch.uint8, device=D)
        assert allocated() == before + x.nbytes and allocated("flagos:1") == f.memory_allocated(1)
        del x
        assert allocated() == before and peak() == before + 4 * MIB == f.max_memory_allocated()
        reset("flagos:0")
        assert peak() == before == allocated()


@covers("memory_reserved", "memory.memory_reserved", "max_memory_reserved", "memory.max_memory_reserved",
       "empty_cache", "memory.empty_cache")  # fmt: skip
def _() -> None:
    for reserved, peak, empty in zip(
        both("memory_reserved"), both("max_memory_reserved"), both("empty_cache"), strict=True
    ):
        x = torch.empty(64 * MIB, dtype=torch.uint8, device=D)
        held = reserved()
        assert f.memory_reserved() == held >= x.nbytes and reserved(1) == f.memory_reserved(1)
        del x
        assert reserved(0) == held
        empty()
        assert reserved() <= held - 64 * MIB and peak() >= held


@covers("memory_stats", "memory.memory_stats")
def _() -> None:
    x = torch.empty(3 * MIB, dtype=torch.uint8, device="flagos:1")
    ours = f.memory_stats(1)
    for stats in both("memory_stats"):
        theirs = stats("flagos:1")
        assert theirs and theirs == {key: ours[key] for key in theirs}
        assert theirs["allocated_bytes.large_pool.current"] >= x.nbytes


@covers("reset_accumulated_memory_stats", "memory.reset_accumulated_memory_stats")
def _() -> None:
    for reset in both("reset_accumulated_memory_stats"):
        torch.empty(64, device=D)
        assert a.memory_stats()["allocation.all.allocated"] > 0
        reset()
        assert a.memory_stats()["allocation.all.allocated"] == 0 == a.memory_stats()["num_device_alloc"]


@covers("get_memory_info", "memory.get_memory_info")
def _() -> None:
    for info in both("get_memory_info"):
        free, total = info()
        assert 0 < free <= total and (free, total) == f.mem_get_info()
        assert info("flagos:1")[1] == f.mem_get_info(1)[1]
        assert a.current_device_index() == 0


# -- a process that has not used the device ---------------------------------------------------------------------------


@pytest.mark.slow
def test_questions_before_first_use() -> None:
    """I2: zeros and no-ops, and the device stays untouched. Names that by their meaning use a device are left out."""
    working = {"set_stream", "current_stream", "synchronize"}
    arguments = {"set_device_index": "(1)", "set_device_idx": "(1)", "device_index": "(1)"}
    calls = [f"torch.accelerator.{n}{arguments.get(n, '()')}" for n in sorted(ALL_NAMES) if n not in working]
    out = run_ok(
        f"""
        import json, warnings, torch, torch_fl
        warnings.simplefilter("ignore")
        results = {{}}
        for call in {calls!r}:
            results[call] = str(eval(call))
            assert not torch.flagos.is_initialized(), call
        a = torch.accelerator
        print(json.dumps([a.memory.memory_allocated(), a.memory.max_memory_allocated(), a.memory.memory_reserved(),
                          a.memory.max_memory_reserved(), any(a.memory.memory_stats().values())]))
        """,
        FLAGOS_HOST_DEVICES="2",
    )
    assert json.loads(out) == [0, 0, 0, 0, False]


@pytest.mark.slow
def test_without_a_device() -> None:
    out = run_ok(
        """
        import torch, torch_fl
        a = torch.accelerator
        print(a.is_available(), a.device_count(), a.current_accelerator(check_available=True))
        a.memory.empty_cache()
        print(a.memory.memory_allocated.__name__, len(a.memory.memory_stats()))
        for call in (lambda: torch.ones(1, device="flagos"), lambda: a.set_device_index(0), lambda: a.current_stream()):
            try:
                call()
            except RuntimeError as error:
                print("device" in str(error))
        """,
        FLAGOS_HOST_DEVICES="0",
    )
    assert out.split() == ["False", "0", "None", "memory_allocated", "0", "True", "True", "True"]
