"""TrainSpec: a whole training job as data, and the references to its weights and
samples.

Plain frozen dataclasses; the canonical CBOR of a spec (``codec``) is its stored form
and the BLAKE3 of those bytes its id. ``spec.validate`` decides whether a spec may run;
nothing here checks anything.
"""

from dataclasses import dataclass, field
from enum import StrEnum

from p2ptrain import codec
from p2ptrain.ids import Digest, digest_of
from p2ptrain.spec.graph import Graph, Shape

SPEC_BYTES_MAX = 32 * 1024 * 1024


class Reduce(StrEnum):
    """How gradients are summed over ranks."""

    FAST = "fast"  # fp32, in a fixed order: all replicas hold the same bits
    # integers under an agreed exponent: the same bits for every world size and history
    EXACT = "exact"


class Precision(StrEnum):
    """Compute precision the graph was captured with."""

    FP32 = "fp32"
    BF16 = "bf16"


@dataclass(frozen=True, slots=True)
class WeightRef:
    """Where the initial value of the graph input ``name`` is.

    ``packed`` keeps a GGUF tensor as bytes (only for a frozen input).
    """

    name: str
    uri: str
    dtype: str
    shape: Shape
    packed: bool = False


@dataclass(frozen=True, slots=True)
class BufferRef:
    """A buffer such as batch-norm statistics: graph input ``name``, replaced by
    ``outputs[output]`` after a step.
    """

    name: str
    uri: str
    dtype: str
    shape: Shape
    output: int


@dataclass(frozen=True, slots=True)
class DataRef:
    """Samples for one graph input: a range of an array whose first axis is samples.

    Several refs with the same ``input`` are concatenated in order. ``shape`` is one
    sample's shape (the graph input's shape less its batch axis) and ``elem`` its number
    of elements; the shard is the samples ``[shard_start, shard_start + shard_len)`` of
    the file. ``digest`` is the BLAKE3 of the shard's bytes, or empty when the submitter
    has not seen them (then all nodes must agree with one another).
    """

    input: str
    uri: str
    elem: int
    shard_start: int
    shard_len: int
    dtype: str
    shape: Shape
    digest: str = ""


class OptimizerKind(StrEnum):
    """Optimizers, by PyTorch's formulas."""

    SGD = "sgd"
    ADAMW = "adamw"


@dataclass(frozen=True, slots=True)
class Optimizer:
    """Optimizer settings; SGD's momentum stands in ``TrainSpec.momentum``."""

    kind: OptimizerKind = OptimizerKind.SGD
    nesterov: bool = False
    weight_decay: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8


@dataclass(frozen=True, slots=True)
class Eval:
    """An evaluation graph over the validation group.

    Inputs are parameters, buffers, frozen weights (by name) and the data inputs.
    ``outputs[i]`` is the metric ``metrics[i]`` as one value per sample, shape
    ``[batch]``, floating point; a metric's figure is its mean over all samples of the
    group, the last partial batch counted exactly.
    """

    graph: Graph
    data: tuple[DataRef, ...]
    metrics: tuple[str, ...]
    batch: int


@dataclass(frozen=True, slots=True)
class TrainSpec:
    """A self-describing training job.

    Graph inputs are exactly: ``params``, ``frozen``, ``buffers``, the data inputs and
    ``seed_input``. Outputs: ``outputs[loss_index]`` is the scalar loss (a mean over the
    batch), ``outputs[grad_start + i]`` the gradient of ``params[i]``,
    ``outputs[b.output]`` the new value of buffer ``b``.

    ``batch`` is the graph's batch dimension (samples in a micro-batch),
    ``global_batch`` the samples in a step, a multiple of it. ``lr_per_epoch`` has one
    rate per epoch; its length is the number of epochs. ``exports`` maps the model's
    ``state_dict`` keys to names of params, buffers or frozen weights (tied weights
    share one). A step with a loss, gradient or buffer that is not finite is skipped on
    all ranks; more than ``skip_max`` of them in a row end the session.
    """

    graph: Graph
    params: tuple[WeightRef, ...]
    grad_start: int
    loss_index: int
    data: tuple[DataRef, ...]
    seed_input: str | None
    momentum: float
    lr_per_epoch: tuple[float, ...]
    batch: int
    device: str = "auto"
    grad_group: str = "default"
    push_data: bool = True
    name: str = "job"
    buffers: tuple[BufferRef, ...] = ()
    frozen: tuple[WeightRef, ...] = ()
    exports: tuple[tuple[str, str], ...] = ()
    eval: Eval | None = None
    optimizer: Optimizer = field(default_factory=Optimizer)
    clip_norm: float | None = None
    seed: int = 0
    precision: Precision = Precision.FP32
    reduce: Reduce = Reduce.FAST
    global_batch: int = 0  # 0: equal to batch
    checkpoint_every: int = 0  # steps; 0: at each epoch's end only
    digest_every: int = 50
    skip_max: int = 5

    @property
    def step_samples(self) -> int:
        """Samples in one step."""
        return self.global_batch or self.batch

    @property
    def step_parts(self) -> int:
        """Micro-batches in one step."""
        return self.step_samples // self.batch


def spec_bytes(spec: TrainSpec) -> bytes:
    """Return the canonical stored form of a spec."""
    return codec.encode(codec.to_plain(spec))


def spec_id(spec: TrainSpec) -> Digest:
    """Return a spec's id: the BLAKE3 of its canonical bytes."""
    return digest_of(spec_bytes(spec))


def load_spec(data: bytes) -> TrainSpec:
    """Return the spec that bytes hold; not yet validated.

    Raises:
        PeerError: not a spec.
    """
    return codec.from_plain(TrainSpec, codec.decode(data, SPEC_BYTES_MAX))
