from pathlib import Path

import pytest

from p2ptrain.errors import ConfigError, UserError
from p2ptrain.jobfile import load_jobfile, run_function
from p2ptrain.spec.train import OptimizerKind, Precision, Reduce

ROOT = Path(__file__).parent.parent

JOB = """
name = "small"
[model]
file = "model.py"
args = { width = 3 }
[data]
x = "x.npy"
y = "blob:abc"
[train]
lr = 0.5
epochs = 2
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "job.toml"
    path.write_text(text)
    return path


def test_a_job_file_says_all(tmp_path: Path) -> None:
    text = JOB + 'optimizer = "adamw"\nbeta1 = 0.8\nreduce = "exact"\nclip_norm = 1\n'
    job = load_jobfile(write(tmp_path, text))
    assert job.source == tmp_path / "model.py"
    assert job.function == "job"
    assert job.args == {"width": 3}
    assert job.data == {"x": str(tmp_path / "x.npy"), "y": "blob:abc"}
    settings = job.settings
    assert settings.name == "small"
    assert settings.lr_per_epoch == (0.5, 0.5)
    assert settings.optimizer.kind is OptimizerKind.ADAMW
    assert settings.optimizer.beta1 == 0.8
    assert settings.reduce is Reduce.EXACT
    assert settings.clip_norm == 1
    assert job.precision is Precision.FP32


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("[train]", "[trian]", "unknown key 'trian'; did you mean 'train'?"),
        ("epochs = 2", "epoch = 2", "did you mean 'epochs'?"),
        ("epochs = 2", "epochs = 0", "epochs must be a positive whole number"),
        ("lr = 0.5", 'lr = "a"', "lr must be a number"),
        ("lr = 0.5", "lr_per_epoch = [1.0]", "not both"),
        ("lr = 0.5\nepochs = 2", "lr_per_epoch = 1", "must be a list of numbers"),
        ("epochs = 2", "epochs = 2\noptimizer = 'lion'", "one of sgd, adamw"),
        ("epochs = 2", "epochs = 2\nmomentum = 'a'", "momentum must be a number"),
        ("epochs = 2", "epochs = 2\npush_data = 1", "must be true or false, not 1"),
        ("epochs = 2", "epochs = 2\nseed = 1.5", "seed must be a whole number"),
        ("file = ", "flie = ", "unknown key 'flie'; did you mean 'file'?"),
        ('file = "model.py"', "", "[model] needs file"),
        ('x = "x.npy"', "x = 3", "[data] x must be a path or a URI"),
    ],
)
def test_what_is_wrong_is_one_sentence(
    tmp_path: Path, old: str, new: str, sentence: str
) -> None:
    assert old in JOB
    with pytest.raises(ConfigError) as caught:
        load_jobfile(write(tmp_path, JOB.replace(old, new)))
    assert sentence in str(caught.value)
    assert str(tmp_path / "job.toml") in str(caught.value)


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        (None, "is no Python file"),
        ("x = 1\n", "has no function 'job'"),
        ("def job():\n    pass\n", "unexpected keyword argument 'width'"),
        ("x = 1\ndef job(:\n", "line 2: SyntaxError"),
        ("import nowhere_at_all\n", "line 1: ModuleNotFoundError"),
        ("def job(width):\n\n    return 1 / 0\n", "job: line 3: ZeroDivisionError"),
        ("def job(width):\n    return width\n", "must return a Job, not int"),
    ],
)
def test_a_function_that_is_no_job_is_refused(
    tmp_path: Path, source: str | None, sentence: str
) -> None:
    if source is not None:
        (tmp_path / "model.py").write_text(source)
    with pytest.raises(UserError) as caught:
        run_function(load_jobfile(write(tmp_path, JOB)))
    assert sentence in str(caught.value)


@pytest.mark.parametrize("name", ["digits", "charlm"])
def test_the_examples_are_valid(name: str) -> None:
    job = load_jobfile(ROOT / "configs" / f"{name}.toml")
    assert job.source.is_file()
