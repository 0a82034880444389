"""Training settings of a job file; no torch, so that a job file is checked quickly."""

from dataclasses import dataclass, field

from p2ptrain.spec.train import Optimizer, Precision, Reduce


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a job adds to a captured model; meanings are those of ``TrainSpec``.

    ``precision`` is the one that the model is captured with; ``packed`` lists frozen
    inputs whose GGUF tensor stays bytes.
    """

    name: str = "job"
    lr_per_epoch: tuple[float, ...]
    momentum: float = 0.0
    optimizer: Optimizer = field(default_factory=Optimizer)
    clip_norm: float | None = None
    seed: int = 0
    global_batch: int = 0
    reduce: Reduce = Reduce.FAST
    precision: Precision = Precision.FP32
    checkpoint_every: int = 0
    digest_every: int = 50
    device: str = "auto"
    grad_group: str = "default"
    push_data: bool = True
    packed: frozenset[str] = frozenset()
