"""All that a spec refers to, resolved for a trainer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from p2ptrain.engine.resolve import SampleSource, Site, resolve_weight
from p2ptrain.errors import P2PTrainError, PeerError, StorageError
from p2ptrain.ids import Digest
from p2ptrain.messages.trainer import CheckParity, Load
from p2ptrain.spec.train import (
    BufferRef,
    DataRef,
    TrainSpec,
    WeightRef,
    load_spec,
)
from p2ptrain.spec.validate import validate


@dataclass(frozen=True, slots=True)
class Inputs:
    """A spec's values and samples.

    Args:
        held: parameters, buffers, frozen weights and the backward seed by name, on
            the host.
        sources: the training group by input.
        samples: in the training group.
        eval_sources: the validation group by input.
        eval_samples: in the validation group.
        digests: of all shards' bytes, in the order of the references.
    """

    held: dict[str, Tensor]
    sources: Mapping[str, SampleSource]
    samples: int
    eval_sources: Mapping[str, SampleSource]
    eval_samples: int
    digests: tuple[str, ...]


def read_spec(path: Path) -> TrainSpec:
    """Read a spec and check it.

    Raises:
        SpecError: it may not run.
        StorageError: the file cannot be read.
    """
    try:
        spec = load_spec(path.read_bytes())
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error.strerror}") from error
    except PeerError as error:
        raise P2PTrainError(f"{path} is no spec: {error}") from error
    validate(spec)
    return spec


def resolve_inputs(spec: TrainSpec, load: Load | CheckParity) -> Inputs:
    """Resolve every reference of a spec on this node.

    Raises:
        RefError: one of them cannot be; names node and URI.
    """
    site = Site(
        node=load.name,
        files={Digest(key): Path(path) for key, path in load.files.items()},
        roots=tuple(Path(root) for root in load.roots),
    )
    weights: tuple[WeightRef | BufferRef, ...] = (*spec.params, *spec.frozen)
    weights += spec.buffers
    held = {ref.name: resolve_weight(ref, site) for ref in weights}
    if spec.seed_input is not None:
        held[spec.seed_input] = _seed(spec, spec.seed_input)
    sources = _group(spec.data, site)
    eval_sources = _group(spec.eval.data if spec.eval else (), site)
    groups = (*sources.values(), *eval_sources.values())
    return Inputs(
        held=held,
        sources=sources,
        samples=_count(sources),
        eval_sources=eval_sources,
        eval_samples=_count(eval_sources),
        digests=tuple(digest for source in groups for digest in source.digests),
    )


def _seed(spec: TrainSpec, name: str) -> Tensor:
    """Return ones in the dtype and shape of the seed's input."""
    given = next(given for given in spec.graph.inputs if given.name == name)
    return torch.ones(given.shape, dtype=getattr(torch, given.dtype))


def _group(refs: Sequence[DataRef], site: Site) -> dict[str, SampleSource]:
    names = dict.fromkeys(ref.input for ref in refs)
    return {
        name: SampleSource([ref for ref in refs if ref.input == name], site)
        for name in names
    }


def _count(sources: Mapping[str, SampleSource]) -> int:
    return next((source.count for source in sources.values()), 0)
