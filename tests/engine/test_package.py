"""Jobs as files: what is written, what is referred to, what is refused."""

from pathlib import Path

import numpy as np
import pytest
import torch
from blake3 import blake3
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional

from p2ptrain.engine.package import Job, Package, captured, package
from p2ptrain.engine.package_data import CHUNK_BYTES, file_digest, write_array
from p2ptrain.engine.settings import Settings
from p2ptrain.errors import SpecError, StorageError, UserError
from p2ptrain.ids import Digest
from p2ptrain.spec.train import Optimizer, OptimizerKind, Reduce, load_spec, spec_bytes
from p2ptrain.spec.validate import validate

SETTINGS = Settings(lr_per_epoch=(0.1, 0.01))


def classify(model: nn.Module, given) -> Tensor:
    return functional.cross_entropy(model(given["x"]), given["y"])


def group(samples: int = 10) -> dict[str, np.ndarray]:
    random = np.random.default_rng(1)
    return {
        "x": random.normal(size=(samples, 6)).astype(np.float32),
        "y": random.integers(0, 3, size=samples),
    }


def job(**changes) -> Job:
    torch.manual_seed(4)
    model = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))
    example = {"x": torch.zeros(4, 6), "y": torch.zeros(4, dtype=torch.int64)}
    parts = {
        "model": model,
        "loss": classify,
        "example_batch": example,
        "data": group(),
        "eval_data": group(3),
        "metrics": {"hit": lambda m, b: m(b["x"]).argmax(1) == b["y"]},
    }
    return Job(**parts | changes)


def packed(folder: Path, made: Job | None = None, **changes) -> Package:
    made = made or job()
    return package(
        captured(made),
        data=changes.pop("data", made.data),
        eval_data=changes.pop("eval_data", made.eval_data),
        folder=folder,
        settings=changes.pop("settings", SETTINGS),
    )


def blob(made: Package, uri: str) -> Path:
    digest = uri.removeprefix("blob:").partition("#")[0]
    return made.files[Digest(digest)]


def test_every_file_bears_its_digest(tmp_path):
    made = packed(tmp_path)
    assert len(made.files) == 5
    for digest, path in made.files.items():
        assert blake3(path.read_bytes()).hexdigest() == digest
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]
    validate(load_spec(spec_bytes(made.spec)))


def test_weights_are_in_one_file_under_their_names(tmp_path):
    mine = job()
    made = packed(tmp_path, mine)
    refs = (*made.spec.params, *made.spec.buffers, *made.spec.frozen)
    (path,) = {blob(made, ref.uri) for ref in refs}
    stored = load_file(path)
    assert {ref.uri.partition("#")[2] for ref in refs} == stored.keys()
    for key, value in mine.model.state_dict().items():
        name = dict(made.spec.exports)[key]
        assert torch.equal(stored[name], value)
        assert stored[name].dtype == value.dtype


def test_arrays_are_npy_files(tmp_path):
    made = packed(tmp_path)
    for ref in made.spec.data:
        stored = np.load(blob(made, ref.uri), allow_pickle=False)
        original = group()[ref.input]
        assert np.array_equal(stored, original)
        assert stored.dtype == original.dtype
        assert ref.digest == blake3(original.tobytes()).hexdigest()
        assert (ref.shard_start, ref.shard_len) == (0, 10)
    by_name = {ref.input: ref for ref in made.spec.data}
    assert (by_name["x"].shape, by_name["x"].elem) == ((6,), 6)
    assert (by_name["y"].shape, by_name["y"].elem) == ((), 1)
    assert made.spec.eval is not None
    assert {ref.shard_len for ref in made.spec.eval.data} == {3}
    assert made.spec.eval.batch == 4


def test_settings_reach_the_spec(tmp_path):
    settings = Settings(
        name="mine", lr_per_epoch=(0.5,), clip_norm=2.0, seed=7, global_batch=8,
        optimizer=Optimizer(OptimizerKind.ADAMW, weight_decay=0.1), momentum=0.0,
        reduce=Reduce.EXACT, checkpoint_every=3, digest_every=4, device="cpu",
        grad_group="g", push_data=False,
    )  # fmt: skip
    spec = packed(tmp_path, settings=settings).spec
    for name in (
        *("name", "lr_per_epoch", "clip_norm", "seed", "global_batch", "optimizer"),
        *("momentum", "reduce", "checkpoint_every", "digest_every", "device"),
        *("grad_group", "push_data"),
    ):
        assert getattr(spec, name) == getattr(settings, name), name
    assert spec.batch == 4


def test_the_same_job_is_the_same_spec(tmp_path):
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        folder.mkdir()
    first, second = (packed(folder) for folder in folders)
    assert spec_bytes(first.spec) == spec_bytes(second.spec)
    assert first.files.keys() == second.files.keys()


def test_tensors_of_any_dtype(tmp_path):
    def loss(model: nn.Module, given) -> Tensor:
        return classify(model, {"x": given["x"].float(), "y": given["y"]})

    data = {"x": torch.randn(10, 6).bfloat16(), "y": torch.arange(10) % 3}
    example = {name: value[:4] for name, value in data.items()}
    mine = job(loss=loss, data=data, example_batch=example, eval_data=None, metrics={})
    made = packed(tmp_path, mine)
    assert made.spec.eval is None
    ref = next(ref for ref in made.spec.data if ref.input == "x")
    raw = data["x"].view(torch.uint8).numpy().tobytes()
    assert blob(made, ref.uri).read_bytes() == raw
    assert (ref.dtype, ref.digest) == ("bfloat16", blake3(raw).hexdigest())


def test_arrays_in_any_order_of_memory(tmp_path):
    plain = group()["x"]
    ways = [plain, np.asfortranarray(plain), plain[::-1][::-1], torch.from_numpy(plain)]
    ways += [plain.astype(">f4"), torch.from_numpy(plain.T.copy()).T]
    digests = {write_array(tmp_path / f"{i}", way) for i, way in enumerate(ways)}
    assert digests == {blake3(plain.tobytes()).hexdigest()}
    assert len({file_digest(tmp_path / f"{i}") for i in range(len(ways))}) == 1


def test_large_arrays_go_piece_by_piece(tmp_path):
    large = np.arange(5 * CHUNK_BYTES // 2 // 4, dtype=np.int32).reshape(-1, 5)
    digest = write_array(tmp_path / "large", large)
    assert digest == blake3(large.tobytes()).hexdigest()
    assert np.array_equal(np.load(tmp_path / "large", "r"), large)


@pytest.fixture
def files(tmp_path) -> dict[str, str]:
    """Return the training group as files of several formats."""
    data = group()
    np.save(tmp_path / "x.npy", data["x"])
    (tmp_path / "x.raw").write_bytes(data["x"].tobytes())
    np.savez(tmp_path / "all.npz", x=data["x"], y=data["y"])
    save_file(
        {k: torch.from_numpy(v) for k, v in data.items()}, tmp_path / "all.safetensors"
    )
    return {
        "npy": str(tmp_path / "x.npy"),
        "raw": f"file://{tmp_path}/x.raw",
        "npz": f"npz://{tmp_path}/all.npz#x",
        "safetensors": f"safetensors://{tmp_path}/all.safetensors#x",
    }


@pytest.mark.parametrize("kind", ["npy", "raw", "npz", "safetensors"])
@pytest.mark.parametrize("push", [True, False])
def test_files_are_pushed_or_stay(tmp_path, files, kind, push):
    settings = Settings(lr_per_epoch=(0.1,), push_data=push)
    data = group()
    made = packed(tmp_path, data={**data, "x": files[kind]}, settings=settings)
    ref = next(ref for ref in made.spec.data if ref.input == "x")
    assert ref.digest == blake3(data["x"].tobytes()).hexdigest()
    assert ref.shard_len == 10
    if push:
        path = blob(made, ref.uri)
        assert path.read_bytes().endswith(data["x"].tobytes())
        assert kind in {"npz", "safetensors"} or path.suffix in files[kind]
    else:
        expected = f"file://{files['npy']}" if kind == "npy" else files[kind]
        assert ref.uri == expected


def test_weights_may_be_elsewhere(tmp_path):
    rule = "init:kaiming?seed=3"
    base = "gguf:///models/base.gguf#blk.0"
    mine = job(frozen=("2.weight",))
    settings = Settings(
        lr_per_epoch=(0.1,),
        weights={"0.weight": rule, "2.weight": base},
        packed=frozenset(),
    )
    made = packed(tmp_path, mine, settings=settings)
    uris = {ref.name: ref.uri for ref in (*made.spec.params, *made.spec.frozen)}
    assert (uris["0.weight"], uris["2.weight"]) == (rule, base)
    assert "0.weight" not in load_file(blob(made, uris["0.bias"]))
    settings = Settings(lr_per_epoch=(0.1,), weights={"9.weight": rule})
    with pytest.raises(UserError, match=r"no weight '9\.weight'"):
        packed(tmp_path, settings=settings)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        ({"x": group()["x"]}, r"input 'y' is missing among \['x'\]"),
        (group() | {"x": group()["x"].astype(np.float64)}, r"'x' is float64\[10, 6\]"),
        (
            group() | {"x": group()["x"][:, :5]},
            r"'x' is float32\[10, 5\], but the graph",
        ),
        (group() | {"x": group()["x"][:9]}, "different numbers of samples"),
        (group() | {"x": group()["x"][:0]}, "'x' has no samples"),
        (
            group() | {"x": "/no/such.npy"},
            r"cannot read file:///no/such.npy: .*No such",
        ),
        (group() | {"x": "npz:///no.npz#x"}, r"cannot read npz:///no.npz#x"),
        (group() | {"x": "gguf:///no.gguf#x"}, "holds weights, not samples"),
        (group() | {"x": "http://host/x.npy"}, "scheme 'http' is none of"),
        (group() | {"x": "init:zeros"}, "names no file of this machine"),
    ],
)
def test_data_that_does_not_fit_is_refused(tmp_path, data, problem):
    with pytest.raises(UserError, match=problem):
        packed(tmp_path, data=data)


def test_pickled_arrays_are_refused(tmp_path):
    np.save(tmp_path / "x.npy", np.array([{}, {}], dtype=object))
    with pytest.raises(UserError, match="cannot read"):
        packed(tmp_path, data=group() | {"x": str(tmp_path / "x.npy")})


def test_evaluation_needs_metrics(tmp_path):
    with pytest.raises(UserError, match="captured without metrics"):
        packed(tmp_path, job(eval_data=None), eval_data=group(3))


def test_settings_that_no_job_may_have_are_refused(tmp_path):
    with pytest.raises(SpecError, match="global_batch: is 6, no multiple of batch 4"):
        packed(tmp_path, settings=Settings(lr_per_epoch=(0.1,), global_batch=6))
    with pytest.raises(SpecError, match="lr_per_epoch: is empty"):
        packed(tmp_path, settings=Settings(lr_per_epoch=()))


def test_a_disk_that_refuses_is_named(tmp_path):
    with pytest.raises(StorageError, match=r"cannot write .*No such file"):
        packed(tmp_path / "gone")
