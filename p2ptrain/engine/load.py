"""Loads a session: reads and checks the spec, resolves what it refers to, picks the
device, and puts the job together.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from p2ptrain.core.stream import Schedule, part_seed
from p2ptrain.engine import devices, torchset
from p2ptrain.engine.data import Feed, SampleOrder
from p2ptrain.engine.devices import Choice
from p2ptrain.engine.evaluate import EvalPlan
from p2ptrain.engine.exact import make_reducer
from p2ptrain.engine.inputs import Inputs, read_spec, resolve_inputs
from p2ptrain.engine.job import EvalJob, Job
from p2ptrain.engine.lanes import Lanes
from p2ptrain.engine.optim import make_optimizer
from p2ptrain.engine.parts import (
    GraphRunner,
    PartResult,
    PartRunner,
    split_buffers,
)
from p2ptrain.engine.rendezvous import RingListener
from p2ptrain.engine.report import Identity
from p2ptrain.engine.result import Origin
from p2ptrain.engine.state import EXPONENTS, TrainState
from p2ptrain.engine.step import Stepper, Update
from p2ptrain.engine.trace import Trace
from p2ptrain.engine.writer import StateWriter
from p2ptrain.messages.trainer import Load, Loaded, StateWritten
from p2ptrain.spec.train import Reduce, TrainSpec, spec_id
from p2ptrain.tls import TlsMaterial


def load_job(load: Load, send: Callable[[StateWritten], None]) -> Job:
    """Load a session.

    Raises:
        SpecError: the spec may not run.
        RefError: a reference cannot be resolved here.
        DeviceError: the device it asks for is not here.
        ConfigError: no port is free for the ring.
    """
    spec = read_spec(Path(load.spec_path))
    exact = spec.reduce is Reduce.EXACT
    torchset.prepare(load.threads or (1 if exact else devices.cores()))
    inputs = resolve_inputs(spec, load)
    build = Builder(spec, inputs)
    choice = devices.choose(spec.device, devices.inventory(), build.seconds)
    lanes = build.lanes(choice)
    runners = Lanes([lane.runner.run for lane in lanes], choice.weights)
    state, stepper = build.trained(lanes, runners)
    return Job(
        load=load,
        origin=Origin(load.session, spec, inputs.samples, inputs.digests),
        schedule=build.schedule,
        state=state,
        stepper=stepper,
        lanes=runners,
        eval=build.evaluation(lanes[0]),
        writer=StateWriter(Path(load.workdir), send),
        weights=lanes[0].held,
        choice=choice,
        identity=Identity(
            node=load.node,
            device=choice.device,
            lanes=choice.lanes,
            inventory=tuple(map(devices.describe, devices.inventory())),
        ),
        listener=RingListener(load.host, load.ports, tls_of(load)),
        trace=Trace.to(load.trace_dir, load.session, load.name),
    )


def loaded(job: Job, seconds: float) -> Loaded:
    """Return the answer to ``Load``."""
    return Loaded(
        device=job.identity.device,
        why=job.choice.why,
        lanes=job.identity.lanes,
        inventory=job.identity.inventory,
        ring_port=job.listener.port,
        step=job.state.step,
        steps=job.schedule.steps,
        epochs=job.schedule.epochs,
        digest=job.state.digest(),
        data_digests=job.origin.data_digests,
        seconds=seconds,
    )


def tls_of(load: Load) -> TlsMaterial | None:
    """Return the files for TLS links, None where links are plain."""
    if load.tls is None:
        return None
    return TlsMaterial(Path(load.tls.ca), Path(load.tls.cert), Path(load.tls.key))


@dataclass(frozen=True, slots=True)
class Lane:
    """A device with its own copy of what stays (the first lane's is the state's)."""

    device: torch.device
    held: Mapping[str, Tensor]
    runner: PartRunner

    def follow(self, first: "Lane", names: tuple[str, ...]) -> None:
        """Take over the first lane's parameters and buffers."""
        if self.held is not first.held:
            for name in names:
                self.held[name].copy_(first.held[name])


class Builder:
    """Puts the parts of a job together.

    Args:
        spec: the job.
        inputs: what its references resolved to.
    """

    def __init__(self, spec: TrainSpec, inputs: Inputs) -> None:
        self._spec = spec
        self._inputs = inputs
        self.schedule = Schedule(
            samples=inputs.samples,
            epochs=len(spec.lr_per_epoch),
            step_samples=spec.step_samples,
            batch=spec.batch,
        )
        self._order = SampleOrder(spec.seed, inputs.samples)

    def seconds(self, device: str) -> float:
        """Return the seconds that one part takes on a device."""
        lane = self._lane(torch.device(device), [])
        part = lane.runner
        return devices.step_seconds(lambda: part.run(0, 0), lane.device)

    def lanes(self, choice: Choice) -> list[Lane]:
        """Return the lanes; those on one device share its copy of what stays."""
        lanes: list[Lane] = []
        for name in choice.lanes:
            lanes.append(self._lane(torch.device(name), lanes))
        return lanes

    def trained(
        self, lanes: list[Lane], runners: Lanes[PartResult]
    ) -> tuple[TrainState, Stepper]:
        """Return the state, which lives on the first lane, and what steps it."""
        spec, held = self._spec, lanes[0].held
        params = {ref.name: held[ref.name] for ref in spec.params}
        optimizer = make_optimizer(spec.optimizer, spec.momentum, params)
        floats, _ = split_buffers(spec)
        summed = [*(ref.name for ref in spec.params), *(ref.name for ref in floats)]
        likes = [self._inputs.held[name] for name in summed]
        exact = spec.reduce is Reduce.EXACT
        tensors = {f"param/{ref.name}": held[ref.name] for ref in spec.params}
        tensors |= {f"buffer/{ref.name}": held[ref.name] for ref in spec.buffers}
        tensors |= optimizer.slots()
        if exact:
            tensors[EXPONENTS] = torch.zeros(len(likes), dtype=torch.int64)
        state = TrainState(spec_id(spec), tensors)
        reducer = make_reducer(likes, exact=exact)
        update = self._update(lanes)
        return state, Stepper(state, update, runners, reducer, optimizer)

    def _update(self, lanes: list[Lane]) -> Update:
        spec, held = self._spec, lanes[0].held
        floats, ints = split_buffers(spec)
        names = (
            *(ref.name for ref in spec.params),
            *(ref.name for ref in spec.buffers),
        )

        def spread() -> None:
            for lane in lanes[1:]:
                lane.follow(lanes[0], names)

        return Update(
            parts=self.schedule.parts,
            batch=spec.batch,
            names=(
                *(f"the gradient of {ref.name!r}" for ref in spec.params),
                *(f"the buffer {ref.name!r}" for ref in floats),
            ),
            params=tuple(held[ref.name] for ref in spec.params),
            floats=tuple(held[ref.name] for ref in floats),
            ints=tuple(held[ref.name] for ref in ints),
            clip_norm=spec.clip_norm,
            skip_max=spec.skip_max,
            rate=lambda step: spec.lr_per_epoch[self.schedule.epoch_of(step)],
            spread=spread,
        )

    def evaluation(self, lane: Lane) -> EvalJob | None:
        """Return the evaluation, which runs on the first lane."""
        ev, sources = self._spec.eval, self._inputs.eval_sources
        if ev is None:
            return None
        feed = Feed(sources, lane.device)
        runner = GraphRunner(ev.graph, lane.device, lane.held, feed)
        plan = EvalPlan(ev.metrics, self._inputs.eval_samples, ev.batch)
        seed = self._spec.seed
        return EvalJob(
            plan, lambda samples, n: runner.run(samples, part_seed(seed, -1, n))
        )

    def _lane(self, device: torch.device, others: list[Lane]) -> Lane:
        for other in others:
            if other.device == device:
                return Lane(device, other.held, self._runner(device, other.held))
        held = {
            name: tensor.to(device, copy=True)
            for name, tensor in self._inputs.held.items()
        }
        return Lane(device, held, self._runner(device, held))

    def _runner(self, device: torch.device, held: Mapping[str, Tensor]) -> PartRunner:
        feed = Feed(self._inputs.sources, device)
        runner = GraphRunner(self._spec.graph, device, held, feed)
        return PartRunner(self._spec, self.schedule, self._order, runner)
