# SPDX-License-Identifier: Apache-2.0
"""Random numbers: each device owns a generator. A draw on flagos never advances the CPU's, nor the reverse."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, overload

import torch

from torch_fl import _C
from torch_fl.flagos._utils import DeviceLike, _checked_index


class _DefaultGenerators(Sequence[torch.Generator]):
    """The devices' generators, looked up when used, so that importing touches no device."""

    def __len__(self) -> int:
        return _C._device_count()

    @overload
    def __getitem__(self, index: int) -> torch.Generator: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[torch.Generator]: ...
    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [_C._default_generator(position) for position in range(len(self))[index]]
        if not -len(self) <= index < len(self):
            raise IndexError(f"torch.flagos.default_generators: index {index}, there are {len(self)}")
        return _C._default_generator(index % len(self))

    def __iter__(self) -> Iterator[torch.Generator]:
        return (_C._default_generator(position) for position in range(len(self)))

    def __repr__(self) -> str:
        return f"<{len(self)} flagos generators>"


default_generators = _DefaultGenerators()


def get_rng_state(device: DeviceLike = "flagos") -> torch.Tensor:
    """State of a device's generator, a uint8 CPU tensor of one dimension.

    Raises:
        RuntimeError: there is no such device.
    """
    return _C._default_generator(_checked_index(device, "get_rng_state")).get_state()


def get_rng_state_all() -> list[torch.Tensor]:
    """States of all devices' generators."""
    return [get_rng_state(index) for index in range(_C._device_count())]


def set_rng_state(new_state: torch.Tensor, device: DeviceLike = "flagos") -> None:
    """Sets the state of a device's generator to one that `get_rng_state` gave.

    Raises:
        RuntimeError: there is no such device, or the state is not one.
    """
    _C._default_generator(_checked_index(device, "set_rng_state")).set_state(new_state)


def set_rng_state_all(new_states: Iterable[torch.Tensor]) -> None:
    """Sets the states of the devices' generators, first to last."""
    for index, state in enumerate(new_states):
        set_rng_state(state, index)


def manual_seed(seed: int) -> None:
    """Seeds the current device's generator. Does nothing without a device."""
    if _C._device_count() > 0:
        _C._default_generator(_C._current_device()).manual_seed(int(seed))


def manual_seed_all(seed: int) -> None:
    """Seeds the generators of all devices; `torch.manual_seed` calls it. Does nothing without a device."""
    for generator in default_generators:
        generator.manual_seed(int(seed))


def seed() -> None:
    """Seeds the current device's generator from the system's randomness. Does nothing without a device."""
    if _C._device_count() > 0:
        _C._default_generator(_C._current_device()).seed()


def seed_all() -> None:
    """Seeds the generators of all devices with one and the same random number. Does nothing without a device."""
    if _C._device_count() > 0:
        manual_seed_all(_C._default_generator(0).seed())


def initial_seed() -> int:
    """The seed that the current device's generator started from.

    Raises:
        RuntimeError: there is no device; says why.
    """
    return _C._default_generator(_checked_index(None, "initial_seed")).initial_seed()
