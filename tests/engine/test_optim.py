"""Optimizers and clipping equal torch.optim's bit for bit, step after step."""

import pytest
import torch
from torch import Tensor

from p2ptrain.engine.optim import CHUNK_BYTES, chunks, clip_by_norm, make_optimizer
from p2ptrain.errors import LocalError
from p2ptrain.spec.train import Optimizer, OptimizerKind

STEPS = 60
SHAPES = [(17, 5), (3,), (), (2, 3, 4), (1031,), (0, 4)]


def bits(tensor: Tensor) -> bytes:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def made(dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    torch.manual_seed(3)
    return {f"w{i}": torch.randn(s).to(dtype) for i, s in enumerate(SHAPES)}


def gradients(step: int, params: dict[str, Tensor]) -> list[Tensor]:
    torch.manual_seed(100 + step)
    grads = [torch.randn(p.shape).to(p.dtype) for p in params.values()]
    grads[0][0] = -0.0 if step < 3 else 0.0
    return grads


def rate(step: int) -> float:
    return 0.1 / (1 + step // 7)


def theirs(kind: str, params: list[torch.nn.Parameter], settings, momentum):
    common = {"foreach": False, "fused": False, "weight_decay": settings.weight_decay}
    if kind == "sgd":
        return torch.optim.SGD(
            params, lr=1.0, momentum=momentum, nesterov=settings.nesterov, **common
        )
    betas = (settings.beta1, settings.beta2)
    return torch.optim.AdamW(params, lr=1.0, betas=betas, eps=settings.eps, **common)


CASES = [
    ("sgd", 0.0, Optimizer()),
    ("sgd", 0.0, Optimizer(weight_decay=0.01)),
    ("sgd", 0.9, Optimizer()),
    ("sgd", 0.9, Optimizer(nesterov=True)),
    ("sgd", 0.85, Optimizer(nesterov=True, weight_decay=0.003)),
    ("adamw", 0.0, Optimizer(OptimizerKind.ADAMW)),
    ("adamw", 0.0, Optimizer(OptimizerKind.ADAMW, weight_decay=0.1)),
    ("adamw", 0.0, Optimizer(OptimizerKind.ADAMW, beta1=0.8, beta2=0.95, eps=1e-5)),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize(("kind", "momentum", "settings"), CASES)
def test_equals_torch(kind, momentum, settings, dtype):
    mine = made(dtype)
    reference = [torch.nn.Parameter(p.clone()) for p in mine.values()]
    ours = make_optimizer(settings, momentum, mine)
    other = theirs(kind, reference, settings, momentum)
    for step in range(STEPS):
        grads = gradients(step, mine)
        for param, grad in zip(reference, grads, strict=True):
            param.grad = grad.clone()
        other.param_groups[0]["lr"] = rate(step)
        other.step()
        before = [bits(g) for g in grads]
        ours.step(grads, rate(step))
        assert [bits(g) for g in grads] == before, "gradients are the caller's"
        for name, param in zip(mine, reference, strict=True):
            assert bits(mine[name]) == bits(param), (step, name)
            compare_slots(ours.slots(), name, other.state[param])


def compare_slots(slots, name, theirs) -> None:
    for key, slot in theirs.items():
        if key == "step":
            assert int(slots["optimizer/step"]) == int(slot)
        elif slot is not None:
            short = "momentum" if key == "momentum_buffer" else key
            assert bits(slots[f"{short}/{name}"]) == bits(slot)


@pytest.mark.parametrize(("kind", "momentum", "settings"), CASES)
def test_goes_on_from_its_slots(kind, momentum, settings):
    straight, broken = made(), made()
    one = make_optimizer(settings, momentum, straight)
    for step in range(8):
        one.step(gradients(step, straight), rate(step))
    first = make_optimizer(settings, momentum, broken)
    for step in range(4):
        first.step(gradients(step, broken), rate(step))
    kept = {name: slot.clone() for name, slot in first.slots().items()}
    second = make_optimizer(settings, momentum, broken)
    second.load(kept)
    for step in range(4, 8):
        second.step(gradients(step, broken), rate(step))
    for name in straight:
        assert bits(straight[name]) == bits(broken[name])


def test_slots_are_live():
    params = made()
    ours = make_optimizer(Optimizer(OptimizerKind.ADAMW), 0.0, params)
    slots = ours.slots()
    ours.step(gradients(0, params), 0.1)
    assert int(slots["optimizer/step"]) == 1
    assert float(slots["exp_avg/w0"].abs().sum()) > 0
    slots["optimizer/step"].fill_(7)
    ours.step(gradients(1, params), 0.1)
    assert int(ours.slots()["optimizer/step"]) == 8


def test_without_momentum_nothing_is_kept():
    assert make_optimizer(Optimizer(), 0.0, made()).slots() == {}


def test_slots_of_another_job_are_refused():
    ours = make_optimizer(Optimizer(), 0.9, made())
    slots = {name: slot.clone() for name, slot in ours.slots().items()}
    with pytest.raises(LocalError, match="'momentum/w1' is missing"):
        ours.load({k: v for k, v in slots.items() if k != "momentum/w1"})
    with pytest.raises(LocalError, match="another shape"):
        ours.load(slots | {"momentum/w1": torch.zeros(9)})
    with pytest.raises(LocalError, match="too many"):
        ours.load(slots | {"momentum/w9": torch.zeros(9)})


@pytest.mark.parametrize("max_norm", [1e-3, 1.0, 1e9])
def test_clipping_equals_torch(max_norm):
    mine = [*gradients(5, made()), *gradients(6, made(torch.float64))]
    params = [torch.nn.Parameter(torch.zeros_like(g)) for g in mine]
    for param, grad in zip(params, mine, strict=True):
        param.grad = grad.clone()
    norm = torch.nn.utils.clip_grad_norm_(params, max_norm, foreach=False)
    assert clip_by_norm(mine, max_norm) == float(norm)
    for param, grad in zip(params, mine, strict=True):
        assert param.grad is not None
        assert bits(param.grad) == bits(grad)


def test_chunks_cover_all_and_are_small():
    big = torch.zeros(CHUNK_BYTES // 4 + 1)
    params = [torch.zeros(10), big, torch.zeros(10), torch.zeros(10), big]
    runs = chunks(params)
    assert [i for run in runs for i in range(*run.indices(5))] == [0, 1, 2, 3, 4]
    for run in runs:
        part = params[run]
        assert len(part) == 1 or sum(p.nbytes for p in part) <= CHUNK_BYTES
    assert chunks([]) == []


def test_large_tensors_in_several_chunks_equal_torch():
    mine = {f"w{i}": torch.randn(700_000) for i in range(4)}
    reference = [torch.nn.Parameter(p.clone()) for p in mine.values()]
    settings = Optimizer(OptimizerKind.ADAMW, weight_decay=0.1)
    ours = make_optimizer(settings, 0.0, mine)
    other = theirs("adamw", reference, settings, 0.0)
    other.param_groups[0]["lr"] = 0.01
    for _ in range(3):
        grads = [torch.randn(700_000) for _ in mine]
        for param, grad in zip(reference, grads, strict=True):
            param.grad = grad.clone()
        other.step()
        ours.step(grads, 0.01)
    for name, param in zip(mine, reference, strict=True):
        assert bits(mine[name]) == bits(param)
