"""A session's training state: what a view begins with and what a checkpoint holds.

The state is the tensors (parameters, buffers, optimizer slots, agreed exponents), the
count of applied steps, and the history that no rank could compute again (losses,
epochs' figures, views). Between steps it is whole; nothing changes it but ``applied``,
``restore`` and the apply of a step. Tensors are named ``param/NAME``, ``buffer/NAME``
and so on; their order in a digest is that of their names.
"""

import json
import math
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Final

import torch
from blake3 import blake3
from torch import Tensor

from p2ptrain import codec
from p2ptrain.engine import safefile
from p2ptrain.errors import PeerError, StorageError
from p2ptrain.ids import Digest
from p2ptrain.messages.record import Seat
from p2ptrain.messages.session import EpochFigures

FORMAT: Final = "p2ptrain-state-1"
LOSSES: Final = "history/losses"
EXPONENTS: Final = "reduce/exponents"  # int64, one a reduced tensor; exact mode only


@dataclass(frozen=True, slots=True)
class ViewNote:
    """A view that this state went through; with the next one's first step it says who
    computed which samples.
    """

    view: int
    first_step: int
    seats: tuple[Seat, ...]


@dataclass(frozen=True, slots=True)
class History:
    """The part of the history that is stored as text."""

    figures: tuple[EpochFigures, ...] = ()
    views: tuple[ViewNote, ...] = ()


@dataclass(frozen=True, slots=True)
class Copy:
    """A copy of a state at a step boundary, on the host, for a thread to write."""

    step: int
    spec: Digest
    tensors: dict[str, Tensor]
    losses: "array[float]"
    history: History

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors."""
        return sum(tensor.nbytes for tensor in self.tensors.values())

    def write(self, path: Path) -> Digest:
        """Write the state file and return the state's digest.

        Raises:
            StorageError: the disk refused; nothing is under the name.
        """
        digest = digest_of(self.tensors, self.step)
        losses = torch.tensor(self.losses, dtype=torch.float64)
        metadata = {
            "format": FORMAT,
            "step": str(self.step),
            "digest": digest,
            "spec": self.spec,
            "history": json.dumps(codec.to_plain(self.history)),
        }
        safefile.write_tensors(path, self.tensors | {LOSSES: losses}, metadata)
        return digest


@dataclass(slots=True)
class TrainState:
    """The state in memory.

    Args:
        spec: the job's id.
        tensors: the live tensors by name; they are changed in place, never replaced.
    """

    spec: Digest
    tensors: dict[str, Tensor]
    step: int = 0
    losses: "array[float]" = field(default_factory=lambda: array("d"))
    figures: list[EpochFigures] = field(default_factory=list)
    views: list[ViewNote] = field(default_factory=list)

    def digest(self) -> Digest:
        """Return the digest of the tensors and the step."""
        return digest_of(self.tensors, self.step)

    def applied(self, loss: float, exponents: Sequence[int] = ()) -> None:
        """Count a step whose new tensors are in place.

        Args:
            loss: of the step; not a number when it was skipped.
            exponents: what the reducer needs to know in the next one.
        """
        if exponents:
            self.tensors[EXPONENTS].copy_(torch.tensor(exponents))
        self.losses.append(loss)
        self.step += 1

    @property
    def skipped(self) -> int:
        """How many of the last steps in a row were skipped; their loss is no number."""
        newest = reversed(self.losses)
        return sum(1 for _ in takewhile(math.isnan, newest))

    @property
    def exponents(self) -> list[int]:
        """What the reducer needs to know in the next step."""
        held = self.tensors.get(EXPONENTS)
        reduced = self.step > self.skipped
        return held.tolist() if held is not None and reduced else []

    def copy(self) -> Copy:
        """Return a copy that later steps do not change."""
        return Copy(
            step=self.step,
            spec=self.spec,
            tensors={
                name: tensor.detach().to("cpu", copy=True)
                for name, tensor in self.tensors.items()
            },
            losses=self.losses[:],
            history=History(tuple(self.figures), tuple(self.views)),
        )

    def restore(self, path: Path) -> None:
        """Take over the state of a file; on an error nothing is changed.

        Raises:
            StorageError: the file is damaged, of another job, or does not hold the
                state that its digest names.
        """
        tensors, metadata = safefile.read_tensors(path)
        try:
            step, losses, history = self._checked(tensors, metadata)
        except (PeerError, KeyError, ValueError, RecursionError) as error:
            raise StorageError(f"{path} is no state of this job: {error}") from error
        for name, tensor in self.tensors.items():
            tensor.detach().copy_(tensors[name])
        self.step = step
        self.losses = array("d", losses.tolist())
        self.figures = list(history.figures)
        self.views = list(history.views)

    def _checked(
        self, tensors: dict[str, Tensor], metadata: Mapping[str, str]
    ) -> tuple[int, Tensor, History]:
        if metadata["format"] != FORMAT:
            raise ValueError(f"its format is {metadata['format']!r}, not {FORMAT}")
        if metadata["spec"] != self.spec:
            raise ValueError(f"it is of the job {metadata['spec']}, not {self.spec}")
        losses = tensors.pop(LOSSES)
        step = int(metadata["step"])
        if losses.dtype != torch.float64 or losses.shape != (step,):
            raise ValueError(f"step {step} needs as many losses")
        for name in self.tensors.keys() ^ tensors.keys():
            raise ValueError(f"tensor {name!r} is missing or too many")
        for name, ours in self.tensors.items():
            if (tensors[name].dtype, tensors[name].shape) != (ours.dtype, ours.shape):
                raise ValueError(f"tensor {name!r} has another dtype or shape")
        if digest_of(tensors, step) != metadata["digest"]:
            raise ValueError("its tensors do not hash to its digest")
        history = codec.from_plain(History, json.loads(metadata["history"]))
        return step, losses, history


def digest_of(tensors: Mapping[str, Tensor], step: int) -> Digest:
    """Return the BLAKE3 of a state: step, then each tensor's name, dtype, shape and
    bytes, by name.
    """
    hasher = blake3(max_threads=blake3.AUTO)
    hasher.update(f"{FORMAT} {step}".encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        head = [name, safefile.NAMES[tensor.dtype], list(tensor.shape)]
        hasher.update(json.dumps(head).encode())
        hasher.update(safefile.bytes_of(tensor))
    return Digest(hasher.hexdigest())
