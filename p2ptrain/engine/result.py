"""What rank 0 leaves at the end: the weights under the model's own names, and a
manifest that says how they came about.
"""

import math
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from p2ptrain import __version__
from p2ptrain.engine import safefile
from p2ptrain.engine.state import TrainState
from p2ptrain.ids import Digest, SessionId
from p2ptrain.spec.train import TrainSpec

FORMAT: Final = "p2ptrain-result-1"
WEIGHTS: Final = "model.safetensors"
MANIFEST: Final = "manifest.json"


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a result comes from."""

    session: SessionId
    spec: TrainSpec
    samples: int
    data_digests: tuple[str, ...]


def exported(spec: TrainSpec, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the model's ``state_dict``.

    Args:
        spec: the job; without ``exports`` the parameters and buffers go out under
            their own names.
        tensors: the parameters, buffers and frozen weights by name.

    Returns:
        The tensors by key. Tied weights stand under each of their keys: a strict
        ``load_state_dict`` asks for all of them.
    """
    own = [*(ref.name for ref in spec.params), *(ref.name for ref in spec.buffers)]
    pairs = spec.exports or tuple((name, name) for name in own)
    return {key: tensors[name] for key, name in pairs}


def manifest(origin: Origin, state: TrainState, digest: Digest) -> dict[str, object]:
    """Return the manifest of a finished session as plain values."""
    spec = origin.spec
    return {
        "format": FORMAT,
        "session": origin.session,
        "name": spec.name,
        "spec": state.spec,
        "steps": state.step,
        "samples": origin.samples,
        "batch": spec.batch,
        "global_batch": spec.step_samples,
        "seed": spec.seed,
        "reduce": spec.reduce.value,
        "precision": spec.precision.value,
        "state_digest": digest,
        "data_digests": list(origin.data_digests),
        "epochs": [
            {
                "epoch": figures.epoch,
                "step": figures.step,
                "loss": _plain(figures.loss),
                "metrics": {k: _plain(v) for k, v in figures.metrics.items()},
            }
            for figures in state.figures
        ],
        "losses": [_plain(loss) for loss in state.losses],
        "views": [
            {
                "view": note.view,
                "first_step": note.first_step,
                "seats": [{"node": s.node, "share": s.share} for s in note.seats],
            }
            for note in state.views
        ],
        "versions": {
            "p2ptrain": __version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
    }


def _plain(figure: float) -> float | None:
    """JSON knows no number that is not finite."""
    return figure if math.isfinite(figure) else None


def write_result(
    workdir: Path, weights: Mapping[str, Tensor], about: Mapping[str, object]
) -> tuple[Path, Path]:
    """Write both files and return their paths; the manifest comes last.

    Raises:
        StorageError: the disk refused.
    """
    paths = workdir / WEIGHTS, workdir / MANIFEST
    safefile.write_tensors(paths[0], weights, {"format": "pt"})
    safefile.write_json(paths[1], about)
    return paths


def ends(losses: Sequence[float]) -> tuple[float, float]:
    """Return the first and the last loss, not a number where there is none."""
    return (losses[0], losses[-1]) if losses else (math.nan, math.nan)
