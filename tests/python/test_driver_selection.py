# SPDX-License-Identifier: Apache-2.0
"""Which driver is chosen, and what a user reads when the choice cannot work. `import torch_fl` never fails for it."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from helpers import REPOSITORY, run_ok, run_python

# Every test starts processes of its own, which import torch anew.
pytestmark = pytest.mark.slow

# Prints the type and the first line of what the first use of the device raises.
FIRST_USE = """
    import torch, torch_fl
    assert (torch.ones(2) + 1).tolist() == [2.0, 2.0]
    assert torch.flagos.is_available() is False and torch.flagos.device_count() == 0
    try:
        torch.ones(1, device="flagos")
    except Exception as error:
        first = str(error).splitlines()[0]
        print(type(error).__name__)
        print(first)
    try:
        torch.zeros(1, device="flagos")
    except Exception as error:
        assert str(error).splitlines()[0] == first, "the second use says something else"
    else:
        raise SystemExit("the second use did not raise")
    """

TABLE = r"""
#include "torch_fl/driver.h"
static flagos_error_t error = {sizeof(flagos_error_t), FLAGOS_OK, -1, 0, "", ""};
static flagos_status_t init(const flagos_option_t* o, size_t n) { (void)o; (void)n; return INIT_STATUS; }
static uint64_t capabilities(void) { return 0; }
static flagos_status_t device_count(int32_t* out) { *out = 0; return FLAGOS_OK; }
static const flagos_error_t* last_error(void) { error.status = INIT_STATUS; error.vendor_text = "no luck today";
  error.vendor_code = 42; return &error; }
static flagos_driver_v1_t table = {
    .struct_size = STRUCT_SIZE, .abi_version = ABI_VERSION, .platform = "broken", .implementation = "test",
    .init = init, .capabilities = capabilities, .device_count = device_count, .last_error = last_error,
};
FLAGOS_EXPORT flagos_status_t ENTRY(uint32_t abi_version, const flagos_driver_v1_t** out) {
  (void)abi_version;
  *out = HAND_OUT;
  return ENTRY_STATUS;
}
"""
DEFAULTS = {
    "INIT_STATUS": "FLAGOS_OK",
    "STRUCT_SIZE": "sizeof(flagos_driver_v1_t)",
    "ABI_VERSION": "FLAGOS_DRIVER_ABI_VERSION",
    "ENTRY": "flagos_driver_entry_v1",
    "HAND_OUT": "&table",
    "ENTRY_STATUS": "FLAGOS_OK",
}

# What is wrong with the library -> how it is compiled, and the first line a user reads.
BROKEN_PLUGINS: dict[str, tuple[dict[str, str], str]] = {
    "wrong abi_version": (
        {"ABI_VERSION": "7"},
        r"FLAGOS_DRIVER_PLUGIN=.*: the driver has abi_version 7, torch_fl needs 1; rebuild",
    ),
    "truncated struct": (
        {"STRUCT_SIZE": "24"},
        r"FLAGOS_DRIVER_PLUGIN=.*: the driver table is truncated: struct_size is 24 bytes, at least \d+ are needed",
    ),
    "missing entry symbol": (
        {"ENTRY": "some_other_name"},
        r"FLAGOS_DRIVER_PLUGIN=.*: the library does not export flagos_driver_entry_v1",
    ),
    "refuses this version": (
        {"ENTRY_STATUS": "FLAGOS_UNSUPPORTED"},
        r"FLAGOS_DRIVER_PLUGIN=.*: flagos_driver_entry_v1\(1\) returned UNSUPPORTED",
    ),
    "hands out no table": (
        {"HAND_OUT": "0"},
        r"FLAGOS_DRIVER_PLUGIN=.*: flagos_driver_entry_v1\(1\) handed out no table",
    ),
    "lacks required entries": (
        {},
        r"FLAGOS_DRIVER_PLUGIN=.*: the driver table lacks required entries: .*memory_alloc",
    ),
}


def first_use(**variables: str) -> tuple[str, str]:
    """Type and first line of the error of the first use."""
    kind, line = run_ok(FIRST_USE, **variables).splitlines()[:2]
    return kind, line


@pytest.fixture(scope="module")
def plugin_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler, cc")
    return tmp_path_factory.mktemp("plugins")


def compile_plugin(folder: Path, name: str, changes: dict[str, str]) -> Path:
    source, library = folder / f"{name}.c", folder / f"libmy_{name}.so"
    source.write_text(TABLE)
    defines = [f"-D{key}={value}" for key, value in (DEFAULTS | changes).items()]
    command = ["cc", "-shared", "-fPIC", "-std=c11", f"-I{REPOSITORY / 'include'}", *defines, str(source)]
    subprocess.run([*command, "-o", str(library)], check=True)
    return library


@pytest.mark.parametrize("fault", BROKEN_PLUGINS)
def test_a_broken_plugin_is_refused_with_the_reason(fault: str, plugin_folder: Path) -> None:
    changes, expected = BROKEN_PLUGINS[fault]
    library = compile_plugin(plugin_folder, fault.replace(" ", "_"), changes)
    kind, line = first_use(FLAGOS_DRIVER_PLUGIN=str(library))
    assert kind == "RuntimeError"
    assert re.search(expected, line), line
    assert str(library) in line


# Variables -> first line. {here} is a folder of the test.
WRONG_CHOICES: dict[str, tuple[dict[str, str], str]] = {
    "unknown driver": (
        {"FLAGOS_DRIVER": "nosuch"},
        r"FLAGOS_DRIVER=nosuch: no such driver; available: .*\bhost\b.*\bnull\b",
    ),
    "plugin path that does not exist": (
        {"FLAGOS_DRIVER_PLUGIN": "{here}/absent.so"},
        r"FLAGOS_DRIVER_PLUGIN={here}/absent.so: no such file: {here}/absent.so",
    ),
    "plugin that is a folder": (
        {"FLAGOS_DRIVER_PLUGIN": "{here}"},
        r"FLAGOS_DRIVER_PLUGIN={here}: no such file",
    ),
    "plugin that is no library": (
        {"FLAGOS_DRIVER_PLUGIN": "{here}/text.so"},
        r"FLAGOS_DRIVER_PLUGIN={here}/text.so: .*(ELF|too short)",
    ),
    "unknown option": (
        {"FLAGOS_HOST_BOGUS": "1"},
        r"(?i)bogus.*known.*devices.*|known.*devices.*bogus",
    ),
    "number of devices is a word": (
        {"FLAGOS_HOST_DEVICES": "many"},
        r"FLAGOS_HOST_DEVICES=many|devices.*many",
    ),
    "negative number of devices": (
        {"FLAGOS_HOST_DEVICES": "-1"},
        r"FLAGOS_HOST_DEVICES=-1|devices.*-1",
    ),
    "bad size": (
        {"FLAGOS_HOST_MEMORY": "12Q"},
        r"FLAGOS_HOST_MEMORY=12Q|memory.*12Q",
    ),
    "bad switch": (
        {"FLAGOS_HOST_PROTECT": "maybe"},
        r"FLAGOS_HOST_PROTECT=maybe|protect.*maybe",
    ),
    "bad queue": (
        {"FLAGOS_HOST_QUEUE": "sometimes"},
        r"sometimes.*eager|eager.*sometimes",
    ),
}


@pytest.mark.parametrize("choice", WRONG_CHOICES)
def test_a_wrong_choice_is_explained_at_first_use(choice: str, tmp_path: Path) -> None:
    variables, expected = WRONG_CHOICES[choice]
    (tmp_path / "text.so").write_text("not a library\n")
    here = str(tmp_path)
    kind, line = first_use(**{key: value.replace("{here}", here) for key, value in variables.items()})
    assert kind == "RuntimeError"
    assert re.search(expected.replace("{here}", re.escape(here)), line), line


def test_the_driver_s_own_words_reach_the_user(plugin_folder: Path) -> None:
    # A complete table, so that init is reached; the functions that matter later are never called.
    source = TABLE.replace(
        ".last_error = last_error,",
        ".last_error = last_error,"
        + "".join(
            f".{entry} = (void*)init,"
            for entry in (
                "device_info device_sync memory_alloc memory_free copy fill stream_create stream_destroy stream_query "
                "stream_sync stream_wait event_create event_destroy event_record event_query event_sync"
            ).split()
        ),
    )
    file, library = plugin_folder / "init.c", plugin_folder / "libmy_init.so"
    file.write_text(source)
    defines = [f"-D{k}={v}" for k, v in (DEFAULTS | {"INIT_STATUS": "FLAGOS_VENDOR_ERROR"}).items()]
    subprocess.run(
        ["cc", "-w", "-shared", "-fPIC", f"-I{REPOSITORY / 'include'}", *defines, str(file), "-o", str(library)],
        check=True,
    )
    kind, line = first_use(FLAGOS_DRIVER_PLUGIN=str(library))
    assert kind == "RuntimeError"
    assert "init failed with VENDOR_ERROR: no luck today (vendor code 42)" in line


@pytest.mark.parametrize(
    "variables",
    [
        {"FLAGOS_DRIVER": "nosuch"},
        {"FLAGOS_DRIVER_PLUGIN": "/does/not/exist.so"},
        {"FLAGOS_HOST_BOGUS": "1"},
        {"FLAGOS_HOST_DEVICES": "0"},
        {"FLAGOS_DRIVER": "host"},
    ],
    ids=lambda v: "=".join(*v.items()),
)
def test_import_torch_is_unharmed(variables: dict[str, str]) -> None:
    out = run_ok("import torch; print((torch.ones(2) + 1).sum().item(), torch.accelerator.is_available())", **variables)
    assert out.split()[0] == "4.0"


def test_no_device() -> None:
    kind, line = first_use(FLAGOS_HOST_DEVICES="0")
    assert kind == "RuntimeError"
    assert re.search(r"(?i)no .*device|0 devices|device_count|FLAGOS_HOST_DEVICES", line), line
    run_ok(
        """
        import torch, torch_fl
        assert torch.device("flagos:0").type == "flagos"
        assert not torch.accelerator.is_available()
        torch.manual_seed(1)
        torch.flagos.manual_seed_all(1)
        torch.flagos.empty_cache()
        assert torch.flagos.get_rng_state_all() == []
        assert torch.load  # nothing of torch is hurt
        torch_fl.summary()
        x = torch.ones(2, requires_grad=True)
        (x * 2).sum().backward()
        assert x.grad.tolist() == [2.0, 2.0]
        """,
        FLAGOS_HOST_DEVICES="0",
    )


def test_an_index_that_does_not_exist_is_refused() -> None:
    out = run_ok(
        """
        import torch, torch_fl
        for f in (lambda: torch.ones(1, device="flagos:2"), lambda: torch.flagos.set_device(7),
                  lambda: torch.ones(1).to("flagos:5"), lambda: torch.flagos.get_device_properties(2)):
            try:
                f()
            except (RuntimeError, AssertionError) as error:
                print(str(error).splitlines()[0])
            else:
                raise SystemExit("accepted")
        assert torch.flagos.current_device() == 0
        """,
        FLAGOS_HOST_DEVICES="2",
    )
    assert all(re.search(r"[257]", line) for line in out.splitlines())


def test_the_chosen_driver_can_be_read_back() -> None:
    run_ok(
        """
        import torch_fl
        from torch_fl import _C
        info = _C._driver_info()
        assert info["name"] == "host" and info["platform"] == "host", info
        assert "host" in _C._available_drivers() and "null" in _C._available_drivers()
        """,
        FLAGOS_DRIVER="host",
    )


def test_the_null_driver_says_that_it_has_no_device() -> None:
    kind, line = first_use(FLAGOS_DRIVER="null")
    assert kind == "RuntimeError"
    assert "null" in line


@pytest.mark.parametrize(
    ("variable", "value", "known"),
    [("FLAGOS_FALLBACK", "perhaps", "allow, warn or error"), ("FLAGOS_FORCE_BACKEND", "gpu", "alias or cpu")],
)
def test_an_unknown_word_of_a_switch_is_refused(variable: str, value: str, known: str) -> None:
    done = run_python("import torch, torch_fl; torch.ones(2, device='flagos') + 1", **{variable: value})
    assert done.returncode != 0
    assert value in done.stderr and known in done.stderr
