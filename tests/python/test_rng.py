# SPDX-License-Identifier: Apache-2.0
"""Random numbers: flagos draws from generators of its own, one a device, and touches nobody else's."""

from __future__ import annotations

import io
from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F

from helpers import D

Draw = Callable[[str], torch.Tensor]

DRAWS: dict[str, Draw] = {
    "rand": lambda d: torch.rand(16, device=d),
    "randn": lambda d: torch.randn(16, device=d),
    "randint": lambda d: torch.randint(1000, (16,), device=d),
    "randperm": lambda d: torch.randperm(64, device=d),
    "rand_like": lambda d: torch.rand_like(torch.empty(16, device=d)),
    "randn_like": lambda d: torch.randn_like(torch.empty(16, device=d)),
    "normal": lambda d: torch.normal(torch.zeros(16, device=d), torch.ones(16, device=d)),
    "normal_": lambda d: torch.empty(16, device=d).normal_(),
    "uniform_": lambda d: torch.empty(16, device=d).uniform_(),
    "random_": lambda d: torch.empty(16, device=d).random_(),
    "exponential_": lambda d: torch.empty(16, device=d).exponential_(),
    "cauchy_": lambda d: torch.empty(16, device=d).cauchy_(),
    "log_normal_": lambda d: torch.empty(16, device=d).log_normal_(),
    "geometric_": lambda d: torch.empty(16, device=d).geometric_(0.1),
    "bernoulli": lambda d: torch.bernoulli(torch.full((64,), 0.5, device=d)),
    "bernoulli_": lambda d: torch.empty(64, device=d).bernoulli_(0.5),
    "poisson": lambda d: torch.poisson(torch.full((64,), 4.0, device=d)),
    "binomial": lambda d: torch.binomial(torch.full((64,), 9.0, device=d), torch.full((64,), 0.5, device=d)),
    "multinomial": lambda d: torch.multinomial(torch.ones(64, device=d), 32),
    "gamma": lambda d: torch._standard_gamma(torch.full((64,), 2.0, device=d)),
    "dirichlet": lambda d: torch._sample_dirichlet(torch.full((64,), 2.0, device=d)),
    "rrelu": lambda d: F.rrelu(-torch.ones(64, device=d), training=True),
    "dropout": lambda d: F.dropout(torch.ones(256, device=d), 0.5),
    "native_dropout": lambda d: torch.native_dropout(torch.ones(256, device=d), 0.5, True)[0],
    "alpha_dropout": lambda d: F.alpha_dropout(torch.ones(256, device=d), 0.5, training=True),
    "dropout2d": lambda d: F.dropout2d(torch.ones(1, 64, 2, 2, device=d), 0.5),
    "sdpa with dropout": lambda d: F.scaled_dot_product_attention(
        *(torch.ones(1, 2, 8, 8, device=d) * torch.arange(1, 9, device=d) for _ in range(3)), dropout_p=0.5
    ),
    "lstm with dropout": lambda d: _lstm(d),
}


def _lstm(device: str) -> torch.Tensor:
    layer = torch.nn.LSTM(4, 4, num_layers=2, dropout=0.5)
    with torch.no_grad():
        for p in layer.parameters():
            p.fill_(0.3)
    return layer.to(device)(torch.ones(8, 2, 4, device=device))[0].detach()


def seed(value: int) -> None:
    torch.flagos.manual_seed(value)


@pytest.mark.parametrize("name", DRAWS)
def test_a_draw_on_the_device_leaves_the_cpu_generator_alone(name: str) -> None:
    if name == "lstm with dropout":
        _lstm("cpu")  # building the layer draws on the CPU; build it outside the measured part
        layer = torch.nn.LSTM(4, 4, num_layers=2, dropout=0.5).to(D)
        x = torch.ones(8, 2, 4, device=D)
        draw: Callable[[], object] = lambda: layer(x)  # noqa: E731
    else:
        draw = lambda: DRAWS[name](D)  # noqa: E731
    cpu, device = torch.get_rng_state(), torch.flagos.get_rng_state()
    draw()
    assert torch.equal(torch.get_rng_state(), cpu), "the CPU generator moved"
    assert not torch.equal(torch.flagos.get_rng_state(), device), "the device's generator did not move"


@pytest.mark.parametrize("name", DRAWS)
def test_a_draw_on_the_cpu_leaves_the_device_generator_alone(name: str) -> None:
    cpu, device = torch.get_rng_state(), torch.flagos.get_rng_state()
    DRAWS[name]("cpu")
    assert torch.equal(torch.flagos.get_rng_state(), device)
    assert not torch.equal(torch.get_rng_state(), cpu)


@pytest.mark.parametrize("name", DRAWS)
def test_same_seed_same_draw_and_another_seed_another_draw(name: str) -> None:
    seed(7)
    first, second = DRAWS[name](D), DRAWS[name](D)
    seed(7)
    again = DRAWS[name](D)
    seed(8)
    other = DRAWS[name](D)
    assert first.device.type == D
    assert torch.equal(first, again)
    assert not torch.equal(first, second), "two draws in a row are the same"
    assert not torch.equal(first, other), "the seed is ignored"


def test_dropout_gradients_use_the_mask_of_the_forward_pass() -> None:
    x = torch.ones(512, device=D, requires_grad=True)
    y = F.dropout(x, 0.5)
    y.sum().backward()
    assert x.grad is not None and torch.equal(x.grad, y.detach())
    assert 0.3 < (y == 0).float().mean().item() < 0.7


def test_torch_manual_seed_seeds_every_device(two_devices: None) -> None:
    for device in ("flagos:0", "flagos:1"):
        torch.manual_seed(5)
        first = torch.rand(8, device=device)
        torch.manual_seed(5)
        assert torch.equal(first, torch.rand(8, device=device))
        assert torch.flagos.default_generators[torch.device(device).index].initial_seed() == 5


def test_devices_draw_independently(two_devices: None) -> None:
    torch.flagos.manual_seed_all(3)
    before = torch.flagos.get_rng_state(0)
    torch.rand(100, device="flagos:1")
    F.dropout(torch.ones(10, device="flagos:1"))
    assert torch.equal(torch.flagos.get_rng_state(0), before)
    with torch.flagos.device(1):
        before = torch.flagos.get_rng_state(1)
        torch.rand(100, device="flagos:0")
        assert torch.equal(torch.flagos.get_rng_state(1), before)


GENERATOR_DRAWS: dict[str, Callable[[str, torch.Generator], torch.Tensor]] = {
    "rand": lambda d, g: torch.rand(16, device=d, generator=g),
    "randn": lambda d, g: torch.randn(16, device=d, generator=g),
    "randint": lambda d, g: torch.randint(1000, (16,), device=d, generator=g),
    "randperm": lambda d, g: torch.randperm(64, device=d, generator=g),
    "normal_": lambda d, g: torch.empty(16, device=d).normal_(generator=g),
    "uniform_": lambda d, g: torch.empty(16, device=d).uniform_(generator=g),
    "random_": lambda d, g: torch.empty(16, device=d).random_(generator=g),
    "exponential_": lambda d, g: torch.empty(16, device=d).exponential_(generator=g),
    "bernoulli": lambda d, g: torch.bernoulli(torch.full((64,), 0.5, device=d), generator=g),
    "multinomial": lambda d, g: torch.multinomial(torch.ones(64, device=d), 32, generator=g),
    "poisson": lambda d, g: torch.poisson(torch.full((64,), 4.0, device=d), generator=g),
    "normal": lambda d, g: torch.normal(torch.zeros(16, device=d), 1.0, generator=g),
}


@pytest.mark.parametrize("name", GENERATOR_DRAWS)
def test_an_explicit_generator_is_used(name: str) -> None:
    draw = GENERATOR_DRAWS[name]
    generator = torch.Generator(D).manual_seed(11)
    assert generator.device.type == D
    default = torch.flagos.get_rng_state()
    first, second = draw(D, generator), draw(D, generator)
    assert torch.equal(torch.flagos.get_rng_state(), default), "the default generator moved"
    assert not torch.equal(first, second)
    assert torch.equal(first, draw(D, torch.Generator(D).manual_seed(11)))
    state = generator.get_state()
    third = draw(D, generator)
    generator.set_state(state)
    assert torch.equal(third, draw(D, generator))


@pytest.mark.parametrize("name", GENERATOR_DRAWS)
def test_a_cpu_generator_for_a_device_tensor_is_refused(name: str) -> None:
    generator = torch.Generator()
    state = generator.get_state()
    with pytest.raises(RuntimeError, match="(?i)generator"):
        GENERATOR_DRAWS[name](D, generator)
    assert torch.equal(generator.get_state(), state)


def test_a_device_generator_for_a_cpu_tensor_is_refused() -> None:
    with pytest.raises(RuntimeError, match="(?i)generator"):
        torch.rand(3, generator=torch.Generator(D))


def test_a_generator_of_another_index_is_refused(two_devices: None) -> None:
    with pytest.raises(RuntimeError, match="(?i)generator"):
        torch.rand(3, device="flagos:0", generator=torch.Generator("flagos:1"))


def test_generator_api() -> None:
    generator = torch.Generator("flagos:0")
    assert generator.device == torch.device("flagos:0")
    generator.manual_seed(123)
    assert generator.initial_seed() == 123
    clone = generator.clone_state()
    assert torch.equal(torch.rand(4, device=D, generator=generator), torch.rand(4, device=D, generator=clone))
    assert isinstance(generator.seed(), int)
    with pytest.raises((RuntimeError, TypeError)):
        generator.set_state(torch.zeros(3, dtype=torch.uint8))


def test_state_of_all_devices_is_saved_and_restored() -> None:
    states = torch.flagos.get_rng_state_all()
    assert len(states) == torch.flagos.device_count()
    assert all(s.dtype == torch.uint8 and s.device.type == "cpu" for s in states)
    buffer = io.BytesIO()
    torch.save(states, buffer)
    first = [torch.rand(8, device=f"flagos:{i}") for i in range(len(states))]
    buffer.seek(0)
    torch.flagos.set_rng_state_all(torch.load(buffer, weights_only=True))
    for i, expected in enumerate(first):
        assert torch.equal(torch.rand(8, device=f"flagos:{i}"), expected)


def test_the_state_remembers_an_odd_number_of_normal_draws() -> None:
    torch.randn(3, device=D)
    state = torch.flagos.get_rng_state()
    first = torch.randn(5, device=D)
    torch.flagos.set_rng_state(state)
    assert torch.equal(first, torch.randn(5, device=D))


def test_fork_rng_restores_the_device() -> None:
    state = torch.flagos.get_rng_state()
    draws = []
    for _ in range(2):
        with torch.random.fork_rng(devices=[0], device_type=D):
            draws.append(torch.rand(4, device=D))
    assert torch.equal(draws[0], draws[1])
    assert torch.equal(torch.flagos.get_rng_state(), state)


def test_seed_functions() -> None:
    torch.flagos.manual_seed(41)
    assert torch.flagos.initial_seed() == 41
    torch.flagos.seed()
    assert torch.flagos.initial_seed() != 41
    torch.flagos.seed_all()


def test_checkpoint_repeats_the_dropout_mask() -> None:
    from torch.utils.checkpoint import checkpoint

    x = torch.ones(256, device=D, requires_grad=True)
    y = checkpoint(lambda t: F.dropout(t, 0.5) * 3, x, use_reentrant=False)
    y.sum().backward()
    assert x.grad is not None and torch.equal(x.grad, y.detach())


def test_distributions_sample_on_the_device() -> None:
    cpu = torch.get_rng_state()
    samples = [
        torch.distributions.Normal(torch.zeros(4, device=D), 1.0).sample((3,)),
        torch.distributions.Categorical(torch.ones(4, device=D)).sample((3,)),
        torch.distributions.Gamma(torch.ones(4, device=D), torch.ones(4, device=D)).rsample(),
        torch.distributions.Beta(torch.ones(4, device=D), torch.ones(4, device=D)).sample(),
    ]
    assert all(s.device.type == D for s in samples)
    assert torch.equal(torch.get_rng_state(), cpu)
