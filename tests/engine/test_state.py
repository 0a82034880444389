"""States: digests that see every bit, files that restore all or change nothing."""

import itertools
from array import array

import pytest
import torch
from safetensors import safe_open

from p2ptrain.engine import safefile, state
from p2ptrain.engine.state import TrainState, ViewNote, digest_of
from p2ptrain.errors import StorageError
from p2ptrain.messages.record import Seat
from p2ptrain.messages.session import EpochFigures


def tensors(seed=0):
    gen = torch.Generator().manual_seed(seed)
    return {
        "param/w": torch.randn(3, 4, generator=gen),
        "param/b": torch.randn((), generator=gen),
        "buffer/count": torch.tensor(seed),
        "slot/w": torch.randn(3, 4, generator=gen).double(),
        "param/empty": torch.zeros(0),
    }


def trained(seed=0):
    made = TrainState("s" * 64, tensors(seed))
    made.applied(1.5)
    made.applied(0.1)
    made.figures.append(EpochFigures(0, 2, 0.8, {"accuracy": 0.5}))
    made.views.append(ViewNote(1, 0, (Seat("n" * 32, 3), Seat("m" * 32, 0))))
    return made


def variants():
    base = tensors()
    yield "same", base, 2
    yield "step", base, 3
    for name in base:
        if base[name].numel():
            changed = dict(base)
            flat = base[name].clone().reshape(-1)
            flat.view(torch.uint8)[0] ^= 1
            changed[name] = flat.reshape(base[name].shape)
            yield f"bit of {name}", changed, 2
    yield "name", {("param/v" if n == "param/w" else n): t for n, t in base.items()}, 2
    yield "shape", base | {"param/w": base["param/w"].reshape(4, 3)}, 2
    yield "dtype", base | {"param/w": base["param/w"].view(torch.int32)}, 2
    yield "missing", {n: t for n, t in base.items() if n != "param/empty"}, 2
    yield "swapped", base | {"param/w": base["param/w"].flip(0)}, 2


def test_a_digest_sees_every_change():
    digests = {what: digest_of(made, step) for what, made, step in variants()}
    for (a, da), (b, db) in itertools.combinations(digests.items(), 2):
        assert da != db, (a, b)


def test_a_digest_does_not_see_order_or_layout():
    base = tensors()
    turned = dict(reversed(base.items()))
    turned["param/w"] = base["param/w"].t().contiguous().t()
    assert digest_of(turned, 2) == digest_of(base, 2)


def test_the_digest_is_frozen():
    """Nodes of all versions must agree on it."""
    made = {"param/w": torch.arange(3, dtype=torch.float32)}
    assert digest_of(made, 7) == FROZEN


FROZEN = "cb087eb74fd3a454661a68f449c282b1018d762da6bb48f6428d14cb34c91fbf"


def test_a_file_restores_every_bit(tmp_path):
    old, path = trained(), tmp_path / "state"
    digest = old.copy().write(path)
    new = TrainState(old.spec, tensors(9))
    kept = dict(new.tensors)
    new.restore(path)
    assert digest == old.digest() == new.digest()
    assert (new.step, new.losses) == (2, array("d", [1.5, 0.1]))
    assert (new.figures, new.views) == (old.figures, old.views)
    # In place: the graph, the optimizer and the lanes hold the same tensors.
    assert all(kept[name] is new.tensors[name] for name in kept)


def test_a_copy_does_not_follow_the_state(tmp_path):
    made = trained()
    digest = made.digest()
    copy = made.copy()
    made.tensors["param/w"].add_(1)
    made.applied(9.0)
    assert copy.write(tmp_path / "state") == digest
    with safe_open(tmp_path / "state", framework="pt") as file:
        assert file.metadata()["step"] == "2"
        assert file.get_tensor("history/losses").tolist() == [1.5, 0.1]


def damage_tensor(tensors, metadata):
    tensors["param/w"][0, 0] += 1


def rename(tensors, metadata):
    tensors["param/v"] = tensors.pop("param/w")


def reshape(tensors, metadata):
    tensors["param/w"] = tensors["param/w"].reshape(4, 3)


def forget_losses(tensors, metadata):
    del tensors[state.LOSSES]


def cut_losses(tensors, metadata):
    tensors[state.LOSSES] = tensors[state.LOSSES][:1].clone()


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (damage_tensor, "do not hash to its digest"),
        (rename, "is missing or too many"),
        (reshape, "'param/w' has another dtype or shape"),
        (forget_losses, "history/losses"),
        (cut_losses, "step 2 needs as many losses"),
        (lambda _, m: m.update(step="3"), "step 3 needs"),
        (lambda _, m: m.update(step="x"), "invalid literal"),
        (lambda _, m: m.update(spec="t"), "of the job t, not s"),
        (lambda _, m: m.update(format="2"), "format is '2'"),
        (lambda _, m: m.pop("digest"), "digest"),
        (lambda _, m: m.update(history="{"), "Expecting property name"),
        (lambda _, m: m.update(history='{"figures": 3}'), "not a History"),
        (lambda _, m: m.update(history="[" * 100_000), "recursion depth"),
    ],
)
def test_a_wrong_file_changes_nothing(tmp_path, damage, sentence):
    path = tmp_path / "state"
    trained().copy().write(path)
    read, metadata = safefile.read_tensors(path)
    damage(read, metadata)
    safefile.write_tensors(path, read, metadata)
    mine = trained(4)
    before = mine.digest()
    with pytest.raises(StorageError, match=sentence):
        mine.restore(path)
    assert (mine.digest(), mine.step, len(mine.losses)) == (before, 2, 2)
    assert len(mine.figures) == len(mine.views) == 1
