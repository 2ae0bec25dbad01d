# SPDX-License-Identifier: Apache-2.0
"""`torch-fl conformance modules`: every entry of module_db in train and eval mode."""

from __future__ import annotations

import inspect
import sys
import time
from typing import Any

from conformance.ops.run import Beacon, apply_expectation, finish_options, parser, run_suite

_MODES = ((True, "train"), (False, "eval"))


class ModuleSuite:
    """Entries are "name dtype"; built inside a worker process."""

    def __init__(self, options: dict[str, Any]) -> None:
        from conformance.ops.device import open_device
        from conformance.ops.entry import quiet
        from conformance.ops.expectations import Expectations

        self.options = options
        self.device = open_device(options["device"])
        self.reference = open_device(options["against"])
        quiet()
        from torch.testing._internal.common_modules import module_db

        self.infos = {info.name: info for info in module_db}
        self.expectations = Expectations.load("modules", self.device.type, self.reference.type)

    def keys(self) -> list[str]:
        """All entries that the reference supports."""
        from conformance.ops.device import chosen_dtypes

        keys = []
        for name, info in self.infos.items():
            dtypes = chosen_dtypes(self.options["dtypes"], set(info.supported_dtypes(self.reference.type)))
            keys += [f"{name} {dtype}" for dtype in dtypes]
        return keys

    def run(self, key: str, beacon: Beacon) -> Any:
        """Runs one entry: both modes, all inputs, then the error inputs."""
        from conformance.ops.pair import Pair
        from conformance.ops.result import SKIPPED, EntryResult

        name, dtype = key.rsplit(" ", 1)
        skip = self.expectations.find("skip", name, dtype)
        if skip:
            return EntryResult(key=key, status=SKIPPED, reason=skip["reason"])
        start = time.process_time()
        pair = Pair(self.device, self.reference, self.expectations.rules(name, dtype), beacon)
        run_module(self.infos[name], dtype, pair, self.options["sample_count"])
        result = pair.finish()
        result.seconds = time.process_time() - start
        strict = self.options["sample_count"] == 0
        return apply_expectation(result, self.expectations.find("expect", name, dtype), strict)


def run_module(info: Any, dtype_name: str, pair: Any, samples: int = 0) -> None:
    """Runs one ModuleInfo through `pair`: forward, gradients, state after the call, construction on the device."""
    import torch

    from conformance.ops.device import DTYPES
    from conformance.ops.pair import SEED

    dtype = DTYPES[dtype_name]
    index = 0
    for training, mode in _MODES:
        torch.manual_seed(SEED)
        arguments = {"device": pair.device, "dtype": dtype, "requires_grad": True, "training": training}
        try:
            inputs = list(info.module_inputs_func(info, **arguments))
        except Exception as e:
            pair.error(f"{mode}: making inputs", e)
            continue
        for item in inputs[: samples or None]:
            pair.index = index
            index += 1
            _run_input(info, dtype, item, training, mode, pair)
    if info.module_error_inputs_func is not None:
        _run_errors(info, dtype, pair)


def _split(item: Any) -> tuple:
    forward = item.forward_input
    made = item.constructor_input
    return (made.args, made.kwargs, forward.args if forward else None, forward.kwargs if forward else None)


def _run_input(info: Any, dtype: Any, item: Any, training: bool, mode: str, pair: Any) -> None:
    from conformance.ops.move import tensors_in

    try:
        want_tree = pair.to_reference()(_split(item))
        got_tree = pair.to_device()(_split(item))
    except Exception as e:
        return pair.error(f"{mode}: copying the input", e)

    def build(tree: tuple, place: Any) -> Any:
        return info.module_cls(*tree[0], **tree[1]).to(place, dtype).train(training)

    made = pair.both(
        f"{mode} construct", lambda: build(want_tree, pair.reference), lambda: build(got_tree, pair.device)
    )
    if not made:
        return
    want, got = made
    factory = "device" in inspect.signature(info.module_cls.__init__).parameters and "device" not in want_tree[1]
    if factory and not info.is_lazy:
        _compare_factory(info, dtype, want_tree, got_tree, mode, pair)
    if want_tree[2] is None:
        return
    outs = pair.both(
        f"{mode} forward", lambda: want(*want_tree[2], **want_tree[3]), lambda: got(*got_tree[2], **got_tree[3])
    )
    if not outs:
        return
    pair.result.samples += 1
    if any(t.numel() == 0 for t in tensors_in(want_tree)):
        pair.result.add_stat("zero_size")
    pair.same(f"{mode}_forward", *outs)
    pair.same(f"{mode}_state", dict(want.state_dict()), dict(got.state_dict()))

    def leaves(tree: tuple, module: Any) -> list:
        found = [t for t in tensors_in(tree[2:]) if t.requires_grad and t.is_leaf]
        return found + [p for p in module.parameters() if p.requires_grad]

    pair.backward(mode, *outs, leaves(want_tree, want), leaves(got_tree, got))


def _compare_factory(info: Any, dtype: Any, want_tree: tuple, got_tree: tuple, mode: str, pair: Any) -> None:
    def build(tree: tuple, place: Any) -> Any:
        return info.module_cls(*tree[0], **{**tree[1], "device": place, "dtype": dtype})

    made = pair.both(f"{mode} factory", lambda: build(want_tree, pair.reference), lambda: build(got_tree, pair.device))
    if made:
        pair.same("factory", dict(made[0].state_dict()), dict(made[1].state_dict()))


def _run_errors(info: Any, dtype: Any, pair: Any) -> None:
    for training, mode in _MODES:
        arguments = {"device": pair.device, "dtype": dtype, "requires_grad": False, "training": training}
        for pair.index, item in enumerate(info.module_error_inputs_func(info, **arguments)):
            tree = _split(item.module_error_input)

            def attempt(copy: tuple, place: Any, train: bool = training) -> None:
                module = info.module_cls(*copy[0], **copy[1]).to(place, dtype).train(train)
                if copy[2] is not None:
                    module(*copy[2], **copy[3])

            want, got = pair.to_reference()(tree), pair.to_device()(tree)
            pair.raises(
                f"{mode} error input",
                lambda w=want: attempt(w, pair.reference),
                lambda g=got: attempt(g, pair.device),
            )


def make_suite(options: dict[str, Any]) -> ModuleSuite:
    """Called in each worker."""
    return ModuleSuite(options)


def main(argv: list[str]) -> int:
    """Entry point of the command line; returns the exit code."""
    p = parser("modules", "f32", "Runs the module database of the installed torch on the device, train and eval.")
    return run_suite("modules", "conformance.ops.module_suite", finish_options(p, argv))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
