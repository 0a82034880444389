"""Initial values by rule: the same numbers on every node, whatever its device.

The rules are those of ``torch.nn.init``; the generator's seed follows from the rule's
seed and the weight's name, so that two weights under one rule differ.
"""

from collections.abc import Callable

import torch
from blake3 import blake3
from torch import Tensor, nn

from p2ptrain.spec.graph import Shape
from p2ptrain.spec.uri import InitUri

FANLESS = 2  # dimensions that kaiming and xavier need at least


def initial(uri: InitUri, name: str, dtype: torch.dtype, shape: Shape) -> Tensor:
    """Return the values that a rule makes for a weight.

    Args:
        uri: the rule.
        name: the weight's.
        dtype: of the result; numbers are drawn in fp32 (fp64 for fp64) and rounded.
        shape: of the result.

    Raises:
        ValueError: the rule needs a matrix at least.
    """
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    made = torch.empty(shape, dtype=wide)
    generator = torch.Generator().manual_seed(seed_of(uri.seed, name))
    options = uri.options
    match uri.rule:
        case "zeros":
            made.zero_()
        case "ones":
            made.fill_(1)
        case "uniform":
            low, high = float(options["low"]), float(options["high"])
            made.uniform_(low, high, generator=generator)
        case "normal":
            mean, std = float(options["mean"]), float(options["std"])
            made.normal_(mean, std, generator=generator)
        case _:
            if made.dim() < FANLESS:
                raise ValueError(f"init:{uri.rule} needs two dimensions at least")
            _by_fan(uri, made, generator)
    return made.to(dtype)


def seed_of(seed: int, name: str) -> int:
    """Return the generator's seed for a weight."""
    mixed = blake3(f"init:{seed}:{name}".encode()).digest(8)
    return int.from_bytes(mixed, "little") >> 1


def _by_fan(uri: InitUri, made: Tensor, generator: torch.Generator) -> None:
    options, normal = uri.options, uri.options["dist"] == "normal"
    if uri.rule == "xavier":
        fill = nn.init.xavier_normal_ if normal else nn.init.xavier_uniform_
        fill(made, float(options["gain"]), generator)
        return
    fill_fan: Callable[..., Tensor] = nn.init.kaiming_uniform_
    if normal:
        fill_fan = nn.init.kaiming_normal_
    slope, mode = float(options["a"]), str(options["mode"])
    fill_fan(made, slope, mode, str(options["nonlinearity"]), generator)
