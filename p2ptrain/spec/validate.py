"""Decides whether a spec may run, before anything of it is allocated.

Total: any spec passes or gives one ``SpecError`` that names field and value. The cost
is linear in the spec's own size, and what is longer than the bounds is refused before
it is looked into.
"""

from p2ptrain.errors import SpecError
from p2ptrain.spec.check_data import check_data
from p2ptrain.spec.check_graph import check_graph
from p2ptrain.spec.check_refs import (
    check_exports,
    check_inputs,
    check_outputs,
    check_weights,
)
from p2ptrain.spec.check_train import check_settings
from p2ptrain.spec.checks import (
    Range,
    check_count,
    check_name,
    check_number,
    check_unique,
    require,
)
from p2ptrain.spec.dtypes import DTYPES
from p2ptrain.spec.graph import Meta
from p2ptrain.spec.limits import Limits
from p2ptrain.spec.text import show, spell
from p2ptrain.spec.train import Eval, TrainSpec

DEFAULT = Limits()


def validate(spec: TrainSpec, limits: Limits = DEFAULT) -> None:
    """Check a spec.

    Args:
        spec: the spec.
        limits: the bounds.

    Raises:
        SpecError: it may not run; one sentence that names field and value.
    """
    check_settings(spec, limits)
    outputs = check_graph("graph", spec.graph, limits)
    check_weights(spec, limits)
    check_data("data", spec.data, spec.graph, spec.batch, limits)
    check_inputs(spec)
    check_outputs(spec, outputs)
    check_exports(spec, limits)
    if spec.eval is not None:
        _check_eval(spec, spec.eval, limits)


def _check_eval(spec: TrainSpec, ev: Eval, limits: Limits) -> None:
    check_number("eval.batch", ev.batch, Range(1, limits.samples))
    outputs = check_graph("eval.graph", ev.graph, limits)
    check_data("eval.data", ev.data, ev.graph, ev.batch, limits)
    _check_eval_inputs(spec, ev)
    check_count("eval.metrics", ev.metrics, limits.metrics)
    require("eval.metrics", "is empty", unless=ev.metrics != ())
    for index, metric in enumerate(ev.metrics):
        check_name(f"eval.metrics[{index}]", metric, limits)
    check_unique("eval.metrics", ev.metrics)
    if len(outputs) != len(ev.metrics):
        raise SpecError(
            "eval.metrics",
            f"has {len(ev.metrics)} names, but the graph has {len(outputs)} outputs",
        )
    for index, meta in enumerate(outputs):
        if meta.shape != (ev.batch,) or not DTYPES[meta.dtype].floating:
            raise SpecError(
                f"eval.graph.outputs[{index}]",
                f"is {spell(meta.dtype, meta.shape)}, not floating-point "
                f"[{ev.batch}]: a metric has one value per sample",
            )


def _check_eval_inputs(spec: TrainSpec, ev: Eval) -> None:
    held = {
        ref.name: Meta(ref.dtype, ref.shape)
        for refs in (spec.params, spec.buffers, spec.frozen)
        for ref in refs
    }
    fed = {ref.input for ref in ev.data}
    for index, given in enumerate(ev.graph.inputs):
        field = f"eval.graph.inputs[{index}]"
        weight = held.get(given.name)
        if (weight is None) == (given.name not in fed):
            what = "both a weight and data" if weight else "no weight, buffer or data"
            raise SpecError(field, f"{show(given.name)} is {what}")
        got = Meta(given.dtype, given.shape)
        if weight is not None and weight != got:
            raise SpecError(
                field,
                f"is {spell(got.dtype, got.shape)}, but {show(given.name)} is "
                f"{spell(weight.dtype, weight.shape)}",
            )
