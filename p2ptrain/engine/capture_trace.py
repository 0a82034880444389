"""Traces a model's loss and gradients, or its metrics, into an operator graph.

The tracer is AOTAutograd's joint trace of forward and backward, on tensors without
memory: nothing is computed. Two settings keep the operators portable: attention by the
math backend (others trace to operators of one device), and oneDNN off (its LSTM is an
operator of its own that cannot be traced). Neither says how the graph runs later:
convolutions and products are chosen by the device at that time, oneDNN's among them.
Gradients that have kernels of their own are kept whole, for the formulas that the
tracer would put in their place round differently.
"""

import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import torch
from torch import Tensor, fx, nn
from torch._functorch.aot_autograd import aot_export_module
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention import SDPBackend, sdpa_kernel

from p2ptrain.engine.capture_model import Batch, Run, Stateless, Weights
from p2ptrain.errors import CaptureError
from p2ptrain.spec.train import Precision

FAILURES = (
    *(RuntimeError, TypeError, ValueError, AssertionError),
    *(AttributeError, LookupError, NotImplementedError),
)


WHOLE: Final = (
    torch.ops.aten.silu_backward.default,
    torch.ops.aten.mish_backward.default,
)


@dataclass(frozen=True, slots=True)
class Traced:
    """A traced graph.

    Args:
        module: its placeholders are the weights in the order of ``Weights.all``, then
            the data; its outputs those of the run, the buffers, the gradients.
        weights: of these, the trained ones all have gradients.
        results: how many outputs the run has.
    """

    module: fx.GraphModule
    weights: Weights
    results: int


@dataclass(frozen=True, slots=True)
class Mode:
    """How to trace.

    Args:
        precision: the arithmetic.
        with_gradients: trace the gradients of the trained weights too.
    """

    precision: Precision
    with_gradients: bool


def trace(
    model: nn.Module,
    run: Run,
    weights: Weights,
    batch: Batch,
    mode: Mode,
) -> Traced:
    """Trace what ``run`` computes.

    Args:
        model: a copy whose structure may be written to.
        run: gives the outputs; with gradients, the scalar loss first.
        weights: the model's tensors.
        batch: example data; only its dtypes and shapes are used.
        mode: how.

    Raises:
        CaptureError: it cannot be traced; names the operator or the line.
    """
    counts: list[int] = []

    def counted(module: nn.Module, values: Batch) -> list[Tensor]:
        results = run(module, values)
        counts.append(len(results))
        return results

    def made(weights: Weights) -> Stateless:
        tensors = _tensors(weights, mode)
        return Stateless(model, counted, weights, tensors, tuple(batch))

    with _portable(mode.precision), torch.set_grad_enabled(mode.with_gradients):
        with FakeTensorMode(allow_non_fake_inputs=True):
            values = [_like(value) for value in batch.values()]
            if mode.with_gradients:
                weights = _reached(made(weights), weights, values)
            flat = made(weights)
        module = _export(flat, values, tuple(batch), mode)
    return Traced(module, weights, counts[-1])


def _tensors(weights: Weights, mode: Mode) -> list[Tensor]:
    trained = set(weights.trained) if mode.with_gradients else set[str]()
    return [
        nn.Parameter(_like(tensor)) if name in trained else _like(tensor)
        for name, tensor in weights.all.items()
    ]


def _reached(flat: Stateless, weights: Weights, values: Sequence[Tensor]) -> Weights:
    """Return the weights with those fixed that the loss does not depend on."""
    with _explained():
        loss = flat(*values)[0]
        grads: Sequence[Tensor | None] = torch.autograd.grad(
            loss, list(flat.parameters()), allow_unused=True
        )
    pairs = list(zip(weights.trained.items(), grads, strict=True))
    return replace(
        weights,
        trained=dict(item for item, grad in pairs if grad is not None),
        fixed=dict(item for item, grad in pairs if grad is None) | weights.fixed,
    )


def _like(tensor: Tensor) -> Tensor:
    """Return a tensor of the same kind in row-major order, as all inputs of graphs."""
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")


def _export(
    flat: Stateless, values: Sequence[Tensor], names: Sequence[str], mode: Mode
) -> fx.GraphModule:
    with _explained():
        module, signature = aot_export_module(
            flat,
            tuple(values),
            trace_joint=mode.with_gradients,
            output_loss_index=0 if mode.with_gradients else None,
        )
    changed = set(signature.user_inputs_to_mutate.values())
    for name, user_input in zip(names, signature.user_inputs, strict=True):
        if user_input in changed:
            raise CaptureError(
                f"the model or its loss changes the input {name!r} in place: "
                "work on a copy of it"
            )
    assert isinstance(module, fx.GraphModule)
    return module


@contextmanager
def _explained() -> Iterator[None]:
    """Turn what goes wrong while tracing into a sentence."""
    try:
        yield
    except CaptureError:
        raise
    except FAILURES as error:
        raise CaptureError(_sentence(error)) from error


@contextmanager
def _portable(precision: Precision) -> Iterator[None]:
    """Make the tracer choose operators that every device has."""
    fast_path = torch.backends.mha.get_fastpath_enabled()
    with ExitStack() as stack:
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of oneDNN on GPUs
            stack.enter_context(torch.backends.mkldnn.flags(enabled=False))
        if precision is Precision.BF16:
            stack.enter_context(
                torch.autocast("cpu", torch.bfloat16, cache_enabled=False)
            )
        torch.backends.mha.set_fastpath_enabled(False)
        stack.callback(torch.backends.mha.set_fastpath_enabled, fast_path)
        stack.enter_context(_kept_whole())
        yield


@contextmanager
def _kept_whole() -> Iterator[None]:
    """Tell the tracer that it cannot decompose certain operators."""
    key = torch._C.DispatchKey.CompositeImplicitAutograd  # noqa: SLF001  # no public name
    for op in WHOLE:
        op.py_kernels[key] = lambda *_, **__: NotImplemented
    try:
        yield
    finally:
        for op in WHOLE:
            del op.py_kernels[key]


def _sentence(error: BaseException) -> str:
    where = _line(error)
    operator = getattr(error, "func", None)
    if operator is not None:
        return (
            f"{operator} {where} gives what depends on the values of tensors, or is "
            "not traceable: use operators whose results have fixed shapes"
        )
    problem = str(error).strip() or type(error).__name__
    if "mutat" in problem:
        return f"an input is changed in place {where}: work on a copy of it ({problem})"
    return f"the model or its loss cannot be traced {where}: {problem}"


def _line(error: BaseException) -> str:
    """Say where in the user's own code an error came from."""
    inner = (Path(torch.__file__).parent, Path(__file__).parent)
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename)
        if path.is_absolute() and not any(path.is_relative_to(p) for p in inner):
            return f"at {frame.filename}:{frame.lineno} ({frame.line})"
    return "in the model"
