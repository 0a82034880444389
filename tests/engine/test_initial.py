import pytest
import torch
from torch import nn

from p2ptrain.engine.initial import initial, seed_of
from p2ptrain.spec.uri import InitUri, parse_uri


def made(text: str, name: str = "w", shape: tuple[int, ...] = (8, 6)) -> torch.Tensor:
    uri = parse_uri(text)
    assert isinstance(uri, InitUri)
    return initial(uri, name, torch.float32, shape)


def expected(
    fill: str, *args: object, shape: tuple[int, ...] = (8, 6), seed: int = 7
) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed_of(seed, "w"))
    return getattr(nn.init, fill)(torch.empty(shape), *args, generator=generator)


@pytest.mark.parametrize(
    ("text", "fill", "args"),
    [
        ("init:uniform?seed=7&low=-1&high=2", "uniform_", (-1.0, 2.0)),
        ("init:normal?seed=7&std=0.5", "normal_", (0.0, 0.5)),
        ("init:kaiming?seed=7", "kaiming_uniform_", (0.0, "fan_in", "leaky_relu")),
        (
            "init:kaiming?seed=7&dist=normal&mode=fan_out&nonlinearity=relu",
            "kaiming_normal_",
            (0.0, "fan_out", "relu"),
        ),
        ("init:xavier?seed=7&gain=2", "xavier_uniform_", (2.0,)),
        ("init:xavier?seed=7&dist=normal", "xavier_normal_", (1.0,)),
    ],
)
def test_rules_are_pytorchs(text: str, fill: str, args: tuple[object, ...]) -> None:
    assert torch.equal(made(text), expected(fill, *args))


def test_constants() -> None:
    assert torch.equal(made("init:zeros", shape=(3,)), torch.zeros(3))
    assert torch.equal(made("init:ones", shape=()), torch.ones(()))


def test_names_and_seeds_differ_and_runs_do_not() -> None:
    base = made("init:normal?seed=1")
    assert torch.equal(base, made("init:normal?seed=1"))
    assert not torch.equal(base, made("init:normal?seed=2"))
    assert not torch.equal(base, made("init:normal?seed=1", name="v"))


def test_fans_need_a_matrix() -> None:
    with pytest.raises(ValueError, match="two dimensions"):
        made("init:kaiming", shape=(8,))
