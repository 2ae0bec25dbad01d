# SPDX-License-Identifier: Apache-2.0
"""Group S: forked and spawned processes. What a child may still do, call by call, is in tests/python/test_fork.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from helpers import run_ok, run_python

# Every test starts processes of its own, which import torch anew.
pytestmark = pytest.mark.slow

PARENTS = {
    # What the parent has done before it forks: statements, and whether that used the device.
    "asked questions": (
        """
        f.device_count(), f.is_available(), f.get_device_name(0), f.is_bf16_supported(), f.mem_get_info(1)
        f.get_device_properties(1), f.memory_stats(), f.current_device(), f.can_device_access_peer(0, 1)
        f.Stream.priority_range(), f.memory_summary(), torch.accelerator.get_memory_info(), torch.manual_seed(1)
        torch.__version__, f.set_per_process_memory_fraction(0.9)
        """,
        False,
    ),
    "made a tensor": ('x = torch.arange(1000.0, device="flagos")', True),
    "made a stream": ('s = f.Stream(); x = torch.arange(1000.0, device="flagos"); s.synchronize()', True),
    "work in flight": (
        """
        x = torch.zeros(1000, device="flagos")
        pinned = torch.arange(1000.0).pin_memory()
        s = f.Stream()
        s.wait_stream(f.current_stream())
        with f.stream(s):
            x.copy_(pinned, non_blocking=True)
            done = s.record_event()
        x.record_stream(s)
        """,
        True,
    ),
    "a private pool and a history": (
        """
        f.memory._record_memory_history()
        pool = f.MemPool()
        with f.use_mem_pool(pool):
            x = torch.arange(1000.0, device="flagos")
        """,
        True,
    ),
}


def indent(text: str, columns: int) -> str:
    lines = [line.strip("\n") for line in text.split("\n") if line.strip()]
    margin = min(len(line) - len(line.lstrip()) for line in lines)
    return ("\n" + " " * columns).join(line[margin:] for line in lines)


@pytest.mark.parametrize("queue", ["eager", "lazy"])
@pytest.mark.parametrize("parent", PARENTS)
def test_S1_fork_matrix(parent: str, queue: str) -> None:
    """A child of a parent that used the device gets one clear error; of one that only asked, a device of its own. The
    child ends cleanly whichever way it leaves, and the parent is untouched."""
    statements, used = PARENTS[parent]
    run_ok(
        f"""
        import gc, os, sys, torch, torch_fl
        f = torch.flagos
        {indent(statements, 8)}
        assert f.is_initialized() == {used}

        def child(end):
            try:
                assert f._is_in_bad_fork() == {used} and not f.is_initialized()
                assert f.device_count() == 2 and f.is_available()
                uses = (lambda: torch.ones(3, device="flagos"), lambda: torch.ones(3).to("flagos:1"),
                        lambda: f.synchronize(), lambda: f.Stream(), lambda: torch.ones(3).pin_memory(),
                        lambda: f.Event().record())
                for number, use in enumerate(uses):
                    try:
                        use()
                        assert not {used}, f"no error from use {{number}}"
                    except RuntimeError as error:
                        assert {used} and "spawn" in str(error), (number, error)
                assert (torch.ones(3) + 1).tolist() == [2.0] * 3
            except BaseException as error:
                print("child:", repr(error), file=sys.stderr, flush=True)
                os._exit(4)
            if end == "at once":
                os._exit(0)
            if end == "collection":
                globals().pop("x", None)
                gc.collect()
            sys.exit(0)

        for end in ("exit handlers", "at once", "collection"):
            sys.stdout.flush()
            pid = os.fork()
            if pid == 0:
                child(end)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, end
            assert not f._is_in_bad_fork() and f.is_initialized() == {used}
        if {used}:
            f.synchronize()
            assert torch.equal(x.cpu(), torch.arange(1000.0))
            del x
        y = torch.ones(1000, device="flagos") + 1
        assert y.cpu().eq(2).all()
        """,
        FLAGOS_HOST_DEVICES="2",
        FLAGOS_HOST_QUEUE=queue,
        FLAGOS_HOST_POISON="1",
    )


@pytest.mark.parametrize("collect", [False, True])
@pytest.mark.parametrize("used", [False, True])
def test_S1_workers_of_a_data_loader(used: bool, collect: bool) -> None:
    """Forked workers read CPU data; their garbage collection meets the parent's device tensors."""
    run_ok(
        f"""
        import gc, torch, torch_fl
        from torch.utils.data import DataLoader, Dataset

        class Data(Dataset):
            def __len__(self):
                return 16
            def __getitem__(self, index):
                if {collect}:
                    globals().pop("weights", None)
                    gc.collect()
                return torch.full((4,), float(index))

        assert torch.flagos.is_available()
        if {used}:
            weights = [torch.full((100,), float(i), device="flagos") for i in range(10)]
            weights.append(weights)  # only a collection can free them
        for _ in range(2):
            loader = DataLoader(Data(), batch_size=4, num_workers=2, multiprocessing_context="fork", pin_memory={used})
            seen = [batch.to("flagos").sum().item() for batch in loader]
            assert seen == [24.0, 88.0, 152.0, 216.0], seen
        if {used}:
            assert all(w.cpu().eq(i).all() for i, w in enumerate(weights[:-1]))
        """,
        FLAGOS_HOST_POISON="1",
    )


def run_script(folder: Path, text: str, **variables: str) -> str:
    """Runs a file, since spawned children import the main module."""
    script = folder / "main.py"
    script.write_text(text)
    return run_ok(f"import runpy; runpy.run_path({str(script)!r}, run_name='__main__')", 240.0, **variables)


def test_S1_spawned_children_may_use_the_device(tmp_path: Path) -> None:
    run_script(
        tmp_path,
        """
import torch, torch_fl
import torch.multiprocessing as mp

def child(rank, queue):
    torch.flagos.set_device(rank)
    x = torch.full((3,), rank + 1.0, device="flagos")
    queue.put((x.device.index, x.cpu().tolist()))

if __name__ == "__main__":
    kept = torch.ones(3, device="flagos")
    queue = mp.get_context("spawn").SimpleQueue()
    mp.spawn(child, args=(queue,), nprocs=2)
    assert sorted(queue.get() for _ in range(2)) == [(0, [1.0] * 3), (1, [2.0] * 3)]
    assert kept.cpu().eq(1).all()
""",
        FLAGOS_HOST_DEVICES="2",
    )


@pytest.mark.parametrize("what", ["x", "x[2:]", "torch.nn.Parameter(x)", "x.untyped_storage()", "[x, x]"])
def test_S2_a_tensor_for_another_process_is_refused(what: str) -> None:
    """Device memory is not shared between processes yet; the error names the way out."""
    done = run_python(
        f"""
        import torch, torch_fl
        import torch.multiprocessing as mp
        x = torch.arange(8.0, device="flagos")
        mp.get_context("spawn").SimpleQueue().put({what})
        """
    )
    assert done.returncode == 1, done.stdout
    last = done.stderr.strip().splitlines()[-1]
    assert "flagos" in last and ".cpu()" in last, done.stderr


def test_S2_what_is_on_the_cpu_travels_as_ever(tmp_path: Path) -> None:
    run_script(
        tmp_path,
        """
import torch, torch_fl
import torch.multiprocessing as mp

def child(inbox, outbox):
    x = inbox.get()
    x.add_(1)
    outbox.put(x.to("flagos").mul(2).cpu())
    inbox.get()  # a shared tensor needs its sender until it has arrived

if __name__ == "__main__":
    context = mp.get_context("spawn")
    inbox, outbox = context.Queue(), context.Queue()
    process = context.Process(target=child, args=(inbox, outbox))
    process.start()
    shared = torch.arange(3.0)
    inbox.put(shared)
    assert outbox.get(timeout=200).tolist() == [2.0, 4.0, 6.0]
    assert shared.tolist() == [1.0, 2.0, 3.0]
    inbox.put(None)
    process.join(60)
    assert process.exitcode == 0
""",
    )


def test_S2_the_patch_is_still_needed() -> None:
    """Fails when torch's own words become clear: then torch_fl/_compat/sharing.py can go."""
    run_ok(
        """
        import torch, torch_fl
        from torch.multiprocessing import reductions
        x = torch.arange(8.0, device="flagos")
        assert x.share_memory_() is x  # does nothing, as for torch's own GPU
        try:
            reductions.reduce_storage(x.untyped_storage())
        except RuntimeError as error:
            assert "flagos" not in str(error), error
        else:
            raise AssertionError("torch can send it")
        """
    )


@pytest.mark.parametrize(
    ("way", "queue"),
    [
        ("end of the program", "eager"),
        ("end of the program", "lazy"),
        ("exception", "lazy"),
        ("thread", "eager"),
        ("thread", "lazy"),
    ],
)
def test_a_program_may_end_with_work_in_flight(way: str, queue: str) -> None:
    end = {
        "end of the program": "pass",
        "exception": "raise SystemExit(0)",
        "thread": "threading.Thread(target=lambda: x.add_(1)).start()",
    }[way]
    run_ok(
        f"""
        import sys, threading, torch, torch_fl
        f = torch.flagos
        f.memory._record_memory_history()
        x = torch.zeros(1 << 20, device="flagos", requires_grad=False)
        pinned = torch.ones(1 << 20).pin_memory()
        side = f.Stream()
        side.wait_stream(f.current_stream())
        with f.stream(side):
            for _ in range(10):
                x.copy_(pinned, non_blocking=True)
                pinned.copy_(x, non_blocking=True)
            done = side.record_event()
        x.record_stream(side)
        {end}
        """,
        FLAGOS_HOST_QUEUE=queue,
    )
