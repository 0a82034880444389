"""The check of training settings: schedule, optimizer, seeds, names."""

import re

from p2ptrain.errors import SpecError
from p2ptrain.spec.checks import Range, check_count, check_name, check_number, require
from p2ptrain.spec.limits import Limits
from p2ptrain.spec.text import show
from p2ptrain.spec.train import Optimizer, OptimizerKind, TrainSpec
from p2ptrain.spec.uri import SEED_MAX

_DEVICES = re.compile(r"[a-z]{1,16}(:[0-9]{1,3})?(,[a-z]{1,16}(:[0-9]{1,3})?){0,63}")
_GROUP = re.compile(r"[A-Za-z0-9._-]{1,64}")

NOT_NEGATIVE = Range(0)
WHOLE = Range(0, SEED_MAX)


def check_settings(spec: TrainSpec, limits: Limits) -> None:
    """Check all that does not concern the graph.

    Raises:
        SpecError: a setting is out of range.
    """
    check_name("name", spec.name, limits)
    _check_pattern(
        "device", spec.device, _DEVICES, "auto, all, or names such as cuda:0"
    )
    _check_pattern("grad_group", spec.grad_group, _GROUP, "letters, digits, . _ and -")
    _check_schedule(spec, limits)
    _check_batch(spec, limits)
    check_number("momentum", spec.momentum, Range(0, 1))
    _check_optimizer(spec.optimizer, spec.momentum)
    if spec.clip_norm is not None:
        check_number("clip_norm", spec.clip_norm, Range(0, above=True))
    for name in ("seed", "checkpoint_every", "digest_every", "skip_max"):
        check_number(name, getattr(spec, name), WHOLE)


def _check_pattern(field: str, text: str, pattern: re.Pattern[str], what: str) -> None:
    if not pattern.fullmatch(text):
        raise SpecError(field, f"is {show(text)}, must be {what}")


def _check_schedule(spec: TrainSpec, limits: Limits) -> None:
    rates = spec.lr_per_epoch
    require("lr_per_epoch", "is empty: it needs a rate per epoch", unless=rates != ())
    check_count("lr_per_epoch", rates, limits.epochs)
    for index, rate in enumerate(rates):
        check_number(f"lr_per_epoch[{index}]", rate, NOT_NEGATIVE)


def _check_batch(spec: TrainSpec, limits: Limits) -> None:
    check_number("batch", spec.batch, Range(1, limits.samples))
    check_number("global_batch", spec.global_batch, Range(0, limits.samples))
    if spec.step_samples % spec.batch:
        raise SpecError(
            "global_batch",
            f"is {spec.global_batch}, no multiple of batch {spec.batch}",
        )
    if spec.step_parts > limits.parts:
        raise SpecError(
            "global_batch",
            f"makes {spec.step_parts} micro-batches a step, at most {limits.parts} "
            "are allowed",
        )


def _check_optimizer(optimizer: Optimizer, momentum: float) -> None:
    check_number("optimizer.weight_decay", optimizer.weight_decay, NOT_NEGATIVE)
    check_number("optimizer.beta1", optimizer.beta1, Range(0, 1, below=True))
    check_number("optimizer.beta2", optimizer.beta2, Range(0, 1, below=True))
    check_number("optimizer.eps", optimizer.eps, NOT_NEGATIVE)
    adamw = optimizer.kind is OptimizerKind.ADAMW
    if adamw and momentum:
        raise SpecError(
            "momentum", f"is {momentum}, but adamw has betas instead: set 0"
        )
    if optimizer.nesterov and (adamw or not momentum):
        raise SpecError("optimizer.nesterov", "is true, but needs sgd with momentum")
