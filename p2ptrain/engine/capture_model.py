"""A model's tensors by name, and the model as a function of them.

Nothing of the caller's model is changed: capture works on a copy of its structure that
shares its tensors.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn.utils import stateless

from p2ptrain.errors import CaptureError

Batch = Mapping[str, Tensor]
Run = Callable[[nn.Module, Batch], list[Tensor]]


@dataclass(frozen=True, slots=True)
class Weights:
    """A model's parameters and buffers, each tensor once.

    Args:
        trained: parameters that receive gradients, by their first name.
        fixed: parameters that receive none.
        buffers: buffers, saved with the model or not.
        aliases: every name of every tensor, with its first name.
        exports: the keys of the model's ``state_dict``, with first names.
    """

    trained: dict[str, Tensor]
    fixed: dict[str, Tensor]
    buffers: dict[str, Tensor]
    aliases: dict[str, str]
    exports: dict[str, str]

    @property
    def all(self) -> dict[str, Tensor]:
        """All tensors: trained, fixed, buffers."""
        return self.trained | self.fixed | self.buffers


def copy_of(model: nn.Module) -> nn.Module:
    """Return a copy of a model that shares its parameters and buffers.

    Raises:
        CaptureError: it holds what cannot be copied.
    """
    shared = [*model.parameters(), *model.buffers()]
    memo = {id(tensor): tensor for tensor in shared}
    try:
        return copy.deepcopy(model, memo)
    except (RuntimeError, TypeError) as error:
        raise CaptureError(
            f"{type(model).__name__} cannot be copied for capture ({error}): "
            "keep computed tensors out of its attributes"
        ) from error


def weights_of(model: nn.Module, frozen: Sequence[str]) -> Weights:
    """Return a model's tensors.

    Args:
        model: the model.
        frozen: names of parameters, or of modules, that are not trained.

    Raises:
        CaptureError: ``frozen`` names nothing, or the state holds what is no tensor.
    """
    first: dict[int, str] = {}
    aliases: dict[str, str] = {}
    found: tuple[dict[str, Tensor], ...] = ({}, {}, {})
    named = [
        *((n, p, True) for n, p in model.named_parameters(remove_duplicate=False)),
        *((n, b, False) for n, b in model.named_buffers(remove_duplicate=False)),
    ]
    for name, tensor, is_param in named:
        canonical = first.setdefault(id(tensor), name)
        aliases[name] = canonical
        if canonical == name:
            is_fixed = not tensor.requires_grad or _covers(frozen, name)
            found[int(is_fixed) if is_param else 2][name] = tensor
    for item in frozen:
        if not any(_covers([item], name) for name, _, is_param in named if is_param):
            raise CaptureError(f"frozen: the model has no parameter or module {item!r}")
    trained, fixed, buffers = found
    return Weights(trained, fixed, buffers, aliases, _exports(model, first, aliases))


def _covers(frozen: Sequence[str], name: str) -> bool:
    return any(name == item or name.startswith(item + ".") for item in frozen)


def _exports(
    model: nn.Module, first: Mapping[int, str], aliases: Mapping[str, str]
) -> dict[str, str]:
    exports: dict[str, str] = {}
    for key, value in model.state_dict(keep_vars=True).items():
        name = first.get(id(value), aliases.get(key))
        if name is None:
            raise CaptureError(
                f"the state of {type(model).__name__} holds {key!r}, which is neither "
                "a parameter nor a buffer"
            )
        exports[key] = name
    return exports


class Stateless(nn.Module):
    """A model whose every tensor is an input, for the tracer.

    Calling it with the data gives what ``run`` gives, then the buffers as they are
    afterwards: work on clones makes buffers that change plain outputs, whether the
    model writes into them or puts others in their place.

    Args:
        model: the model; its own tensors are out of use meanwhile.
        run: what is computed.
        weights: the names of the model's tensors.
        tensors: what stands for them, in the order of ``weights.all``; trained ones
            are parameters.
        inputs: the names of the data.
    """

    def __init__(
        self,
        model: nn.Module,
        run: Run,
        weights: Weights,
        tensors: Sequence[Tensor],
        inputs: Sequence[str],
    ) -> None:
        super().__init__()
        self._hidden = (model,)  # a tuple, so that it is no submodule
        self._run = run
        self._weights = weights
        self._inputs = tuple(inputs)
        self._tensors = dict(zip(weights.all, tensors, strict=True))
        for index, tensor in enumerate(tensors):
            if isinstance(tensor, nn.Parameter):
                self.register_parameter(f"w{index}", tensor)
            else:
                self.register_buffer(f"w{index}", tensor)

    def forward(self, *values: Tensor) -> tuple[Tensor, ...]:
        """Return the outputs of ``run``, then the buffers."""
        own = [getattr(self, f"w{index}") for index in range(len(self._tensors))]
        given = dict(zip(self._tensors, own, strict=True))
        given |= {name: given[name].clone() for name in self._weights.buffers}
        state = {alias: given[name] for alias, name in self._weights.aliases.items()}
        batch = dict(zip(self._inputs, values, strict=True))
        with stateless._reparametrize_module(self._hidden[0], state):  # noqa: SLF001  # the only call that swaps tensors around an arbitrary function
            results = self._run(self._hidden[0], batch)
        after = [state[name].detach() for name in self._weights.buffers]
        return (*results, *after)
