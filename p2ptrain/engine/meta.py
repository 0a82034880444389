"""What ranks tell one another beside gradients, and the checks that all of them make.

Each rank's small meta travels around the ring with a reduce or in an exchange of its
own, so that every rank holds the same metas in rank order and reaches the same verdict
about them: either all go on or all stop, with the same sentence.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from p2ptrain import codec
from p2ptrain.errors import LinkLostError, P2PTrainError, PeerError

MetaT = TypeVar("MetaT")

META_BYTES_MAX = 1024 * 1024
SUM_MAX = 1e300  # no sum of smaller values overflows


class TrainingFaultError(P2PTrainError):
    """Training cannot go on; ``str`` is the sentence for the submitter."""


@dataclass(frozen=True, slots=True)
class HelloMeta:
    """The first word in a view: who this is, and the state it brings.

    ``figures`` counts the epochs whose figures it has.
    """

    view: int
    step: int
    digest: str
    figures: int
    name: str
    spec: str


@dataclass(frozen=True, slots=True)
class StepMeta:
    """One rank's share of one step.

    Args:
        step: applied steps before this one.
        losses: one a part, in the parts' order.
        bad: what is not finite, or empty.
        ints: the bytes of the integer buffers after the parts; empty without parts.
        uneven: the parts of this rank left different integers.
        drain: this rank was told to end the view after the step.
        save: a checkpoint is wanted after the step.
    """

    step: int
    losses: tuple[float, ...]
    bad: str
    ints: bytes
    uneven: bool
    drain: bool
    save: bool = False


@dataclass(frozen=True, slots=True)
class DigestMeta:
    """A rank's state digest after so many applied steps."""

    step: int
    digest: str


@dataclass(frozen=True, slots=True)
class EvalMeta:
    """A rank's exact sums of each metric (``exact_parts``) over its samples."""

    epoch: int
    sums: tuple[tuple[float, ...], ...]


def pack(meta: object) -> bytes:
    """Return a meta's bytes."""
    return codec.encode(codec.to_plain(meta))


def unpack(kind: type[MetaT], metas: Sequence[bytes]) -> list[MetaT]:
    """Return the metas of all ranks.

    Raises:
        LinkLostError: a rank sent something else; it is named as a lost link, for no
            view can go on with it.
    """
    read: list[MetaT] = []
    for rank, data in enumerate(metas):
        try:
            read.append(codec.from_plain(kind, codec.decode(data, META_BYTES_MAX)))
        except PeerError as error:
            raise LinkLostError(rank, f"sent no {kind.__name__}: {error}") from error
    return read


def check_hellos(hellos: Sequence[HelloMeta]) -> None:
    """Check that all ranks begin the same view with the same job and state.

    Raises:
        LinkLostError: a rank is in another view, job or step; the view cannot begin.
        TrainingFaultError: states of one step differ.
    """
    mine = hellos[0]
    for rank, hello in enumerate(hellos):
        for field in ("view", "spec", "step"):
            ours, theirs = getattr(mine, field), getattr(hello, field)
            if ours != theirs:
                raise LinkLostError(
                    rank,
                    f"node {hello.name!r} brings {field} {theirs}, "
                    f"node {mine.name!r} {field} {ours}",
                )
    check_digests([h.digest for h in hellos], [h.name for h in hellos], mine.step)


def check_digests(digests: Sequence[str], names: Sequence[str], step: int) -> None:
    """Check that all ranks hold the same state.

    Raises:
        TrainingFaultError: they do not; names those that the majority is against, or
            all where there is no majority.
    """
    common, count = Counter(digests).most_common(1)[0]
    if count == len(digests):
        return
    if count * 2 > len(digests):
        odd = [n for n, d in zip(names, digests, strict=True) if d != common]
        who = f"the state of {_nodes(odd)} differs from that of {count} other nodes"
    else:
        who = f"the states of {_nodes(names)} differ"
    raise TrainingFaultError(
        f"{who} after step {step}: check memory and hardware there, "
        "then submit again without it"
    )


def _nodes(names: Sequence[str]) -> str:
    word = "node" if len(names) == 1 else "nodes"
    return f"{word} {', '.join(repr(name) for name in names)}"


def check_steps(
    metas: Sequence[StepMeta], names: Sequence[str], shares: Sequence[int]
) -> str:
    """Check that a step is whole: each part was counted once, by the rank whose it is.

    Returns:
        Why the step must be skipped by all ranks (a loss, gradient or buffer is not
        finite), or nothing.

    Raises:
        LinkLostError: a rank reduced another step, or other parts than its share.
        TrainingFaultError: the integer buffers of two ranks differ.
    """
    step = metas[0].step
    for rank, (meta, share) in enumerate(zip(metas, shares, strict=True)):
        if meta.step != step:
            raise LinkLostError(rank, f"is at step {meta.step}, not {step}")
        if len(meta.losses) != share:
            raise LinkLostError(rank, f"counts {len(meta.losses)} parts, not {share}")
    for meta, name in zip(metas, names, strict=True):
        if meta.bad:
            return f"node {name!r}: {meta.bad} is not finite at step {step}"
    _check_ints(metas, names)
    return ""


def _check_ints(metas: Sequence[StepMeta], names: Sequence[str]) -> None:
    at_work = [(m, n) for m, n in zip(metas, names, strict=True) if m.losses]
    if not at_work:
        raise LinkLostError(0, "no rank has computed anything of the step")
    first = at_work[0][0].ints
    for meta, name in at_work:
        if meta.uneven or meta.ints != first:
            who = sorted({at_work[0][1], name})
            raise TrainingFaultError(
                f"the integer buffers of {_nodes(who)} differ between parts of step "
                f"{meta.step}: a buffer that counts must not depend on the samples"
            )


def step_loss(metas: Sequence[StepMeta]) -> float:
    """Return the mean loss of a step's parts, exactly rounded whoever computed them."""
    losses = [loss for meta in metas for loss in meta.losses]
    return math.fsum(losses) / len(losses)


def int_bytes(metas: Sequence[StepMeta]) -> bytes:
    """Return the integer buffers that the ranks with parts agreed on."""
    return next(meta.ints for meta in metas if meta.losses)


def exact_parts(values: Sequence[float]) -> tuple[float, ...]:
    """Return a few doubles whose exact sum is that of the values.

    Each is the rounded sum of what the ones before leave over (``math.fsum`` rounds
    once), so ``fsum`` over the parts of several groups is the rounded sum of all their
    values, however they were grouped. Not a number where a value is not finite (or
    beyond ``SUM_MAX``).
    """
    if not all(abs(value) < SUM_MAX for value in values):
        return (math.nan,)
    left = list(values)
    parts: list[float] = []
    while (part := math.fsum(left)) != 0.0:
        parts.append(part)
        left.append(-part)
    return tuple(parts)


def total(metas: Sequence[EvalMeta], index: int) -> float:
    """Return the sum of one metric over all ranks' samples."""
    return math.fsum(part for meta in metas for part in meta.sums[index])
