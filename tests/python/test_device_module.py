# SPDX-License-Identifier: Apache-2.0
"""torch.flagos against what torch.cuda documents for the same names."""

from __future__ import annotations

import io

import pytest
import torch

import torch_fl
from helpers import D, run_ok
from torch_fl import _C

f = torch.flagos

# Names that libraries and torch's own code ask of a device module.
SURFACE = """
is_available device_count current_device set_device device device_of synchronize is_initialized init _lazy_init
_initialized _is_in_bad_fork exchange_device maybe_exchange_device _exchange_device _maybe_exchange_device
get_device_name get_device_properties get_device_capability mem_get_info memory_allocated memory_reserved
max_memory_allocated max_memory_reserved reset_peak_memory_stats reset_accumulated_memory_stats
reset_max_memory_allocated memory_stats memory_summary empty_cache ipc_collect manual_seed manual_seed_all seed
seed_all initial_seed get_rng_state get_rng_state_all set_rng_state set_rng_state_all default_generators Stream Event
ExternalStream StreamContext stream current_stream default_stream set_stream is_bf16_supported
get_amp_supported_dtype is_autocast_enabled amp memory random FloatTensor is_current_stream_capturing
memory_snapshot memory_cached max_memory_cached memory_stats_as_nested_dict host_memory_stats
host_memory_stats_as_nested_dict reset_peak_host_memory_stats reset_accumulated_host_memory_stats empty_host_cache
set_per_process_memory_fraction get_per_process_memory_fraction caching_allocator_alloc caching_allocator_delete
get_allocator_backend MemPool use_mem_pool can_device_access_peer get_stream_from_external
""".split()


@pytest.mark.parametrize("name", SURFACE)
def test_surface(name: str) -> None:
    assert hasattr(torch.flagos, name)


def test_module_is_registered() -> None:
    """U6: `torch.flagos` is an attribute, a module and what torch finds for the device."""
    import torch.flagos  # the statement is what is tested

    assert torch.get_device_module(D) is torch_fl.flagos is torch.flagos
    assert torch.get_device_module(torch.ones(1, device=D).device) is torch.flagos
    assert torch.accelerator.current_accelerator() == torch.device(D)


def test_old_spelling() -> None:
    """U5: the device's name inside torch still works."""
    assert torch.ones(1, device="privateuseone").device == torch.device("flagos:0")


def test_generated_methods() -> None:
    x = torch.ones(2)
    assert x.flagos().is_flagos and not x.is_flagos
    assert x.flagos(1 % f.device_count()).device.index == 1 % f.device_count()
    assert next(torch.nn.Linear(2, 2).flagos().parameters()).is_flagos
    assert x.untyped_storage().flagos().is_flagos


def test_queries_create_no_context() -> None:
    """S1: harmless queries in a parent leave the device untouched, so a forked child may use it."""
    out = run_ok(
        """
        import os, torch, torch_fl
        f = torch.flagos
        f.is_available(); f.device_count(); f.get_device_name(0); f.get_device_properties(1); f.is_bf16_supported()
        f.get_device_capability(1); f.current_device(); f.mem_get_info(0); f.memory_stats(1); f.memory_allocated()
        f.max_memory_reserved(); f.empty_cache(); f.reset_peak_memory_stats(); f.default_generators
        f.set_device(1); f.current_device(); f.is_current_stream_capturing(); torch.device("flagos:1")
        torch.manual_seed(3); f.get_rng_state_all(); f.initial_seed()
        torch.accelerator.is_available(); torch.accelerator.device_count(); torch.accelerator.current_device_index()
        print(f.is_initialized(), f._initialized)
        child = os.fork()
        if child == 0:
            ok = torch.ones(3, device="flagos").sum().item() == 3 and not f._is_in_bad_fork()
            os._exit(0 if ok else 1)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        torch.ones(1, device="flagos")
        print(f.is_initialized(), f._initialized)
        """,
        FLAGOS_HOST_DEVICES="2",
    )
    assert out.split() == ["False", "False", "0", "True", "True"]


def test_use_in_a_forked_child_names_spawn() -> None:
    """S1: a child of a process that used a device gets one clear error."""
    out = run_ok(
        """
        import os, sys, torch, torch_fl
        torch.ones(1, device="flagos")
        child = os.fork()
        if child == 0:
            try:
                print(torch.flagos._is_in_bad_fork(), torch.flagos.is_initialized(), torch.flagos.memory_stats())
                torch.manual_seed(1)
                torch.ones(1, device="flagos")
            except RuntimeError as error:
                print("spawn" in str(error))
            sys.stdout.flush()
            os._exit(0)
        os.waitpid(child, 0)
        """
    )
    assert out.split() == ["True", "False", "OrderedDict()", "True"]


def test_accelerator_memory_calls_before_use() -> None:
    """I2: zeros and no-ops in a fresh process, and the device stays untouched. I4: mem_get_info answers at once."""
    out = run_ok(
        """
        import torch, torch_fl
        a = torch.accelerator
        a.memory.empty_cache(); a.memory.reset_peak_memory_stats(); a.memory.reset_accumulated_memory_stats()
        print(a.memory.memory_allocated(), a.memory.max_memory_reserved(), any(a.memory.memory_stats().values()))
        print(torch.flagos.is_initialized(), 0 < torch.flagos.mem_get_info()[0] <= torch.flagos.mem_get_info()[1])
        """
    )
    assert out.split() == ["0", "0", "False", "False", "True"]


# -- devices ----------------------------------------------------------------------------------------------------------


def test_info_leaves_the_current_device(two_devices: None) -> None:
    """H8: asking about a device does not select it."""
    for index in range(f.device_count()):
        for ask in (
            f.get_device_properties, f.get_device_name, f.get_device_capability, f.mem_get_info, f.memory_stats,
            f.memory_summary, f.current_stream, f.default_stream, f.get_rng_state, f.synchronize,
        ):  # fmt: skip
            ask(index)
            assert f.current_device() == 0, ask


def test_device_context(two_devices: None) -> None:
    with f.device(1):
        assert f.current_device() == 1
        assert torch.ones(1, device=D).device.index == 1
        with f.device("flagos:0"), f.device(-1):
            assert f.current_device() == 0
        assert f.current_device() == 1
    assert f.current_device() == 0
    with pytest.raises(KeyError), f.device(torch.device("flagos:1")):
        raise KeyError
    assert f.current_device() == 0


def test_negative_index_changes_nothing(two_devices: None) -> None:
    f.set_device(1)
    f.set_device(-1)
    assert f.current_device() == 1
    with f.device(-1):
        f.set_device(0)
    assert f.current_device() == 0
    assert f.exchange_device(-1) == -1 and f.exchange_device(1) == 0 and f.maybe_exchange_device(0) == 1


def test_device_of(two_devices: None) -> None:
    with f.device_of(torch.ones(1, device="flagos:1")):
        assert f.current_device() == 1
    with f.device_of(torch.ones(1)):
        assert f.current_device() == 0


def test_current_device_is_of_the_thread(two_devices: None) -> None:
    from concurrent.futures import ThreadPoolExecutor

    f.set_device(1)
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(f.current_device).result() == 0


@pytest.mark.parametrize(
    "call", ["set_device", "synchronize", "mem_get_info", "memory_stats", "get_rng_state", "current_stream", "Stream",
             "default_stream", "exchange_device", "reset_peak_memory_stats", "memory_summary"]
)  # fmt: skip
def test_index_out_of_range(call: str) -> None:
    count = f.device_count()
    with pytest.raises(RuntimeError, match=rf"{call}: invalid device {count + 5}, valid are 0\.\.{count - 1}"):
        getattr(f, call)(count + 5)


@pytest.mark.parametrize("call", ["get_device_properties", "get_device_name", "get_device_capability"])
@pytest.mark.parametrize("index", [-1, 99])
def test_properties_out_of_range(call: str, index: int) -> None:
    """torch.cuda raises AssertionError here."""
    with pytest.raises(AssertionError, match=f"invalid device {index}, valid are"):
        getattr(f, call)(index)
    with pytest.raises(AssertionError, match=r"can_device_access_peer: invalid device 99"):
        f.can_device_access_peer(0, 99)


def test_peers(two_devices: None) -> None:
    """The driver's word, or False where it has none; either way copies between the devices work."""
    reachable = f.can_device_access_peer(0, "flagos:1")
    assert isinstance(reachable, bool)
    if "peer_can_access" in _C._driver_info()["missing_entries"]:
        assert not reachable
    assert torch.arange(4.0, device="flagos:0").to("flagos:1").tolist() == [0.0, 1.0, 2.0, 3.0]


@pytest.mark.parametrize("name", ["utilization", "temperature", "power_draw", "clock_rate", "memory_usage"])
def test_what_drivers_do_not_report(name: str) -> None:
    assert not hasattr(f, name)
    with pytest.raises(AttributeError, match=f"torch.flagos.{name}: drivers do not report it"):
        getattr(f, name)


def test_device_of_another_kind() -> None:
    for call in (f.set_device, f.synchronize, f.get_device_properties, f.device, f.get_rng_state):
        with pytest.raises(ValueError, match="Expected a flagos device, but got: cpu"):
            call("cpu")
    with pytest.raises(ValueError, match="index"):
        f.set_device("flagos")
    with pytest.raises(TypeError, match="float"):
        f.set_device(1.0)  # type: ignore[arg-type]


def test_mistyped_device() -> None:
    """A3: a mistyped location is an error that shows the accepted form."""
    with pytest.raises(RuntimeError, match=r"flagos1.*'flagos:<index>'"):
        f.set_device("flagos1")
    file = io.BytesIO()
    torch.save(torch.ones(2), file)
    file.seek(0)
    with pytest.raises(RuntimeError, match=r"flagos1.*'flagos:<index>'"):
        torch.load(file, map_location="flagos1")


def test_load_on_a_device_that_is_not_there() -> None:
    file = io.BytesIO()
    torch.save(torch.ones(2), file)
    file.seek(0)
    with pytest.raises(RuntimeError, match=r"device 99 but torch.flagos.device_count\(\) is"):
        torch.load(file, map_location="flagos:99")
    file.seek(0)
    last = f.device_count() - 1
    assert torch.load(file, map_location=f"flagos:{last}").device == torch.device("flagos", last)


def test_properties() -> None:
    properties = f.get_device_properties(0)
    assert properties.name == f.get_device_name() != ""
    assert properties.total_memory == f.mem_get_info(0)[1] > 0
    assert (properties.major, properties.minor) == f.get_device_capability("flagos:0")
    assert properties.multi_processor_count > 0


# -- the rest ---------------------------------------------------------------------------------------------------------


def test_amp() -> None:
    assert f.get_amp_supported_dtype() == [torch.float16, torch.bfloat16]
    assert not f.is_autocast_enabled()
    x = torch.ones(4, 4, device=D)
    with f.amp.autocast(dtype=torch.bfloat16):
        assert f.is_autocast_enabled() and f.get_autocast_dtype() == torch.bfloat16
        assert (x @ x).dtype == torch.bfloat16 and not torch.is_autocast_enabled("cpu")
    assert (x @ x).dtype == torch.float32
    with pytest.warns(UserWarning, match="not supported"), torch.autocast(D, dtype=torch.float32):
        assert not f.is_autocast_enabled()


def test_grad_scaler() -> None:
    w = torch.ones(3, device=D, requires_grad=True)
    optimizer = torch.optim.SGD([w], lr=1.0)
    scaler = f.amp.GradScaler(init_scale=4.0)
    scaler.scale((w * 2).sum()).backward()
    assert w.grad.tolist() == [8.0] * 3
    scaler.step(optimizer)
    scaler.update()
    assert w.tolist() == [-1.0] * 3 and scaler.is_enabled()


def test_legacy_types() -> None:
    assert f.FloatTensor(2, 3).shape == (2, 3) and f.FloatTensor().shape == (0,)
    assert f.LongTensor([1, 2]).tolist() == [1, 2] and f.LongTensor([1]).dtype == torch.int64
    assert isinstance(torch.ones(1, device=D), f.FloatTensor)
    assert not isinstance(torch.ones(1), f.FloatTensor) and not isinstance(torch.ones(1, device=D), f.HalfTensor)
    assert torch.ones(1, device=D).type() == "torch.flagos.FloatTensor"
    assert torch.ones(1).type("torch.flagos.HalfTensor").dtype == torch.float16
    with pytest.raises(TypeError, match="2 arguments"):
        f.FloatTensor([1.0], [2.0])


def test_host_libraries_are_refused() -> None:
    """A device tensor is no host array: torch itself says so, on every way there."""
    import numpy

    x = torch.ones(2, device=D)
    for convert in (x.numpy, x.__array__, lambda: numpy.asarray(x)):
        with pytest.raises(TypeError, match="flagos"):
            convert()
    assert not hasattr(x, "__array_interface__")


def test_unknown_name_of_the_module() -> None:
    with pytest.raises(AttributeError, match="torch.flagos.*nonsense"):
        _ = f.nonsense
