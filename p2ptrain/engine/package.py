"""Packages a captured model with data and settings into a job: a spec and its files.

The job function of a job file
------------------------------
A job file names a Python file and a function in it. The submitting machine, and no
other, imports the file and calls the function with the job file's arguments as
keywords; the function returns a ``Job``::

    def job(*, width: int = 16) -> Job:
        model = ...
        return Job(model, loss, example_batch, data, eval_data, metrics)

Then ``capture(job.model, job.loss, job.example_batch, metrics=job.metrics,
frozen=job.frozen)`` and ``package(...)`` with the settings of the job file make the
``TrainSpec``. ``captured`` does the former.

Arrays become files named by their digests and travel with the job. Paths and URIs
travel too with ``push_data``; without it, they stay as they are and every node resolves
them itself.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from torch import nn

from p2ptrain.engine import safefile
from p2ptrain.engine.capture import Capture, capture
from p2ptrain.engine.capture_eval import Metric
from p2ptrain.engine.capture_model import Batch
from p2ptrain.engine.capture_train import Loss
from p2ptrain.engine.package_data import Array, Store, file_digest
from p2ptrain.engine.settings import Settings
from p2ptrain.errors import LocalError, UserError
from p2ptrain.ids import Digest
from p2ptrain.spec.graph import Graph, Input
from p2ptrain.spec.train import DataRef, Eval, Precision, TrainSpec
from p2ptrain.spec.validate import validate


@dataclass(frozen=True, slots=True)
class Job:
    """What a job function returns.

    Args:
        model: the model, with its initial weights.
        loss: ``loss(model, batch)`` gives the scalar loss, a mean over the batch.
        example_batch: as many samples as a micro-batch has, by input name.
        data: the training group by input name: arrays whose first axis is the samples,
            paths of ``.npy`` files, or URIs.
        eval_data: the validation group, or None.
        metrics: by name, each gives one value per sample.
        frozen: parameters or modules that are not trained.
    """

    model: nn.Module
    loss: Loss
    example_batch: Batch
    data: Mapping[str, Array]
    eval_data: Mapping[str, Array] | None = None
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    frozen: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Package:
    """A job that is ready to be submitted.

    Args:
        spec: the job.
        files: the files that its ``blob:`` URIs name.
    """

    spec: TrainSpec
    files: dict[Digest, Path]


def captured(job: Job, precision: Precision = Precision.FP32) -> Capture:
    """Capture what a job function returned.

    Raises:
        CaptureError: the model cannot be captured.
    """
    return capture(
        job.model,
        job.loss,
        job.example_batch,
        metrics=job.metrics if job.eval_data is not None else None,
        frozen=job.frozen,
        precision=precision,
    )


def package(
    capture: Capture,
    *,
    data: Mapping[str, Array],
    eval_data: Mapping[str, Array] | None = None,
    folder: Path,
    settings: Settings,
) -> Package:
    """Make a job of a captured model.

    Args:
        capture: the model.
        data: the training group, by input of the graph.
        eval_data: the validation group, by input of the evaluation graph.
        folder: where files are written; it exists.
        settings: what the model does not say.

    Raises:
        UserError: data that does not fit the graph, or a name that it lacks.
        SpecError: the job may not run.
        StorageError: the disk refused.
    """
    store = Store(folder, is_pushed=settings.push_data)
    spec = _spec(capture, settings)
    spec = replace(
        spec,
        data=_group(store, capture.graph, capture.data_inputs, data),
        eval=_eval(store, capture, eval_data),
    )
    spec = _with_weights(spec, capture, settings, store)
    validate(spec)
    return Package(spec, store.files)


def _spec(capture: Capture, settings: Settings) -> TrainSpec:
    return TrainSpec(
        graph=capture.graph,
        params=capture.params,
        grad_start=capture.grad_start,
        loss_index=capture.loss_index,
        data=(),
        seed_input=capture.seed_input,
        momentum=settings.momentum,
        lr_per_epoch=tuple(settings.lr_per_epoch),
        batch=capture.batch,
        device=settings.device,
        grad_group=settings.grad_group,
        push_data=settings.push_data,
        name=settings.name,
        buffers=capture.buffers,
        frozen=capture.frozen,
        exports=capture.exports,
        optimizer=settings.optimizer,
        clip_norm=settings.clip_norm,
        seed=settings.seed,
        precision=capture.precision,
        reduce=settings.reduce,
        global_batch=settings.global_batch,
        checkpoint_every=settings.checkpoint_every,
        digest_every=settings.digest_every,
        skip_max=settings.skip_max,
    )


def _group(
    store: Store, graph: Graph, names: tuple[str, ...], data: Mapping[str, Array]
) -> tuple[DataRef, ...]:
    """Return references to a group, one for each input that is fed."""
    inputs = {given.name: given for given in graph.inputs}
    refs = tuple(_data(store, inputs[name], data) for name in names)
    counts = {ref.input: ref.shard_len for ref in refs}
    if len(set(counts.values())) > 1:
        raise UserError(f"data: inputs have different numbers of samples: {counts}")
    return refs


def _data(store: Store, given: Input, data: Mapping[str, Array]) -> DataRef:
    if given.name not in data:
        raise UserError(
            f"data: the graph's input {given.name!r} is missing among {sorted(data)}"
        )
    return store.data(given, data[given.name])


def _eval(
    store: Store, capture: Capture, data: Mapping[str, Array] | None
) -> Eval | None:
    graph = capture.eval_graph
    if data is None:
        return None
    if graph is None:
        raise UserError("eval_data: the model was captured without metrics")
    refs = _group(store, graph, capture.eval_inputs, data)
    return Eval(graph, refs, capture.metrics, capture.batch)


def _with_weights(
    spec: TrainSpec, capture: Capture, settings: Settings, store: Store
) -> TrainSpec:
    """Say where each initial value is; write those that no setting locates."""
    uris = dict(settings.weights)
    for name in uris.keys() - capture.tensors.keys():
        raise UserError(f"weights: the model has no weight {name!r}")
    written = {n: t for n, t in capture.tensors.items() if n not in uris}
    if written:
        path = store.folder / f"{spec.name}.weights.safetensors"
        try:
            safefile.write_tensors(path, written, {"format": "pt"})
        except LocalError as error:  # a dtype that the format lacks
            raise UserError(f"initial weights: {error}") from error
        digest = file_digest(path)
        store.files[digest] = path
        uris |= {name: f"blob:{digest}#{name}" for name in written}
    packed = settings.packed
    return replace(
        spec,
        params=tuple(replace(ref, uri=uris[ref.name]) for ref in spec.params),
        buffers=tuple(replace(ref, uri=uris[ref.name]) for ref in spec.buffers),
        frozen=tuple(
            replace(ref, uri=uris[ref.name], packed=ref.name in packed)
            for ref in spec.frozen
        ),
    )
