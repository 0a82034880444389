"""Training settings of a job file; no torch, so that a job file is checked quickly."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from p2ptrain.spec.train import Optimizer, Reduce


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a job adds to a captured model; meanings are those of ``TrainSpec``.

    ``weights`` maps weights to URIs that take the place of the captured values, for
    example a frozen base model that every node has; ``packed`` lists those of them
    whose GGUF tensor stays bytes.
    """

    lr_per_epoch: tuple[float, ...]
    name: str = "job"
    momentum: float = 0.0
    optimizer: Optimizer = field(default_factory=Optimizer)
    clip_norm: float | None = None
    seed: int = 0
    global_batch: int = 0
    reduce: Reduce = Reduce.FAST
    checkpoint_every: int = 0
    digest_every: int = 50
    skip_max: int = 5
    device: str = "auto"
    grad_group: str = "default"
    push_data: bool = True
    weights: Mapping[str, str] = field(default_factory=dict)
    packed: frozenset[str] = frozenset()
