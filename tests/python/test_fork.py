# SPDX-License-Identifier: Apache-2.0
"""A forked child may free what it inherited and ask harmless questions; everything else names `spawn`."""

from __future__ import annotations

import pytest

from helpers import run_ok

CHILD_ENDS = {
    # How the child leaves: through exit handlers and garbage collection, or at once.
    "interpreter exit": "sys.exit(0)",
    "os._exit": "os._exit(0)",
}


@pytest.mark.parametrize("end", CHILD_ENDS)
@pytest.mark.parametrize("protect", ["0", "1"])
def test_a_child_frees_inherited_tensors_and_leaves_the_parent_alone(end: str, protect: str) -> None:
    out = run_ok(
        f"""
        import gc, os, sys, torch, torch_fl
        device = "flagos"
        tensors = [torch.full((1000,), float(i), device=device) for i in range(20)]
        big = torch.arange(1 << 18, device=device)
        view = big[1000:2000]
        weight = torch.ones(8, 8, device=device, requires_grad=True)
        (weight * 2).sum().backward()
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            try:
                del tensors, big, view, weight
                gc.collect()
                try:
                    torch.ones(1000, device=device)
                except RuntimeError as error:
                    assert "spawn" in str(error), error
                else:
                    os._exit(3)
                assert torch.flagos._is_in_bad_fork()
                assert (torch.ones(3) + 1).tolist() == [2.0] * 3  # the CPU side works as ever
            except BaseException as error:
                print("child:", repr(error), file=sys.stderr, flush=True)
                os._exit(4)
            {CHILD_ENDS[end]}
        _, status = os.waitpid(pid, 0)
        assert os.waitstatus_to_exitcode(status) == 0, os.waitstatus_to_exitcode(status)
        assert not torch.flagos._is_in_bad_fork()
        for i, t in enumerate(tensors):
            assert (t.cpu() == float(i)).all(), i
        assert torch.equal(big.cpu(), torch.arange(1 << 18)) and view[0].item() == 1000
        assert weight.grad.cpu().eq(2).all()
        # The parent's pool still works: blocks freed now are its own.
        del tensors
        assert (torch.ones(1000, device=device) + 1).cpu().eq(2).all()
        assert torch.equal(big.cpu(), torch.arange(1 << 18))
        print("parent fine")
        """,
        FLAGOS_HOST_POISON="1",
        FLAGOS_HOST_PROTECT=protect,
    )
    assert "parent fine" in out


def test_a_multiprocessing_child_ends_with_exit_code_0() -> None:
    run_ok(
        """
        import multiprocessing, torch, torch_fl
        x = torch.arange(100.0, device="flagos")

        def child(queue):
            global x
            errors = []
            for use in (lambda: x + 1, lambda: x.cpu(), lambda: torch.empty(1, device="flagos"),
                        lambda: torch.flagos.synchronize(), lambda: x.fill_(-1)):
                try:
                    use()
                    errors.append("no error")
                except RuntimeError as error:
                    errors.append(str(error))
            del x
            queue.put(errors)

        context = multiprocessing.get_context("fork")
        queue = context.Queue()
        process = context.Process(target=child, args=(queue,))
        process.start()
        errors = queue.get(timeout=60)
        process.join(60)
        assert process.exitcode == 0, process.exitcode
        assert all("spawn" in e for e in errors), errors
        assert torch.equal(x.cpu(), torch.arange(100.0))
        """,
        FLAGOS_HOST_POISON="1",
    )


def test_queries_before_the_fork_do_not_spoil_the_child() -> None:
    run_ok(
        """
        import os, torch, torch_fl
        assert torch.flagos.device_count() == 2 and torch.flagos.is_available()
        torch.flagos.get_device_name(0)
        torch.flagos.get_device_properties(1)
        torch.flagos.mem_get_info(0)
        torch.flagos.is_bf16_supported()
        torch.accelerator.device_count(), torch.accelerator.is_available()
        torch.manual_seed(3)
        assert not torch.flagos.is_initialized()
        pid = os.fork()
        if pid == 0:
            try:
                assert not torch.flagos._is_in_bad_fork()
                assert (torch.ones(3, device="flagos:1") * 2).cpu().tolist() == [2.0] * 3
                os._exit(0)
            except BaseException as error:
                print("child:", repr(error), flush=True)
                os._exit(4)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        """,
        FLAGOS_HOST_DEVICES="2",
    )


def test_a_spawned_child_may_use_the_device(tmp_path: object) -> None:
    script = f"{tmp_path}/spawned.py"
    with open(script, "w") as file:
        file.write(
            "import multiprocessing, torch, torch_fl\n"
            "def child(queue):\n"
            "    queue.put((torch.ones(3, device='flagos') * 2).cpu().tolist())\n"
            "if __name__ == '__main__':\n"
            "    x = torch.ones(1, device='flagos') + 1\n"
            "    context = multiprocessing.get_context('spawn')\n"
            "    queue = context.Queue()\n"
            "    process = context.Process(target=child, args=(queue,))\n"
            "    process.start()\n"
            "    assert queue.get(timeout=100) == [2.0, 2.0, 2.0]\n"
            "    process.join(60)\n"
            "    assert process.exitcode == 0\n"
        )
    run_ok(f"import runpy; runpy.run_path({script!r}, run_name='__main__')")


def test_data_loader_workers_read_cpu_data_while_the_parent_holds_device_tensors() -> None:
    run_ok(
        """
        import torch, torch_fl
        from torch.utils.data import DataLoader, TensorDataset
        weight = torch.full((4, 2), 2.0, device="flagos", requires_grad=True)
        data = TensorDataset(torch.arange(64.0).view(16, 4))
        seen = torch.zeros(0)
        for _ in range(2):
            for (batch,) in DataLoader(data, batch_size=4, num_workers=2, multiprocessing_context="fork"):
                out = batch.to("flagos") @ weight
                out.sum().backward()
                assert torch.equal(out.detach().cpu(), batch.sum(1, keepdim=True).mul(2).expand(4, 2))
                seen = torch.cat([seen, batch.flatten()])
        assert torch.equal(seen, torch.arange(64.0).repeat(2))
        assert weight.grad.isfinite().all()
        """,
        FLAGOS_HOST_POISON="1",
    )
