"""When a job writes checkpoints and compares digests."""

from dataclasses import dataclass

import pytest

from p2ptrain.core.stream import Schedule
from p2ptrain.engine.job import Job


@dataclass
class Spec:
    checkpoint_every: int
    digest_every: int


def job_of(samples, step_samples, checkpoint_every=0, digest_every=50, epochs=2):
    """A job with nothing in it but what the questions need."""
    job = object.__new__(Job)
    job.schedule = Schedule(samples, epochs, step_samples, step_samples)
    job.origin = type("Origin", (), {"spec": Spec(checkpoint_every, digest_every)})
    return job


def due(job, question):
    return [step for step in range(job.schedule.steps + 1) if question(step)]


@pytest.mark.parametrize(
    ("samples", "step_samples", "every", "expected"),
    [
        (10, 2, 0, [5, 10]),
        (10, 2, 4, [4, 5, 8, 10]),
        (11, 2, 0, [6, 11]),  # the step that completes the epoch
        (3, 8, 0, [1]),  # two epochs in one step
        (1, 1, 0, [1, 2]),
    ],
)
def test_checkpoints_come_at_epochs_ends(samples, step_samples, every, expected):
    job = job_of(samples, step_samples, every)
    assert due(job, job.checkpoint_due) == expected


@pytest.mark.parametrize(("every", "expected"), [(3, [3, 6, 9]), (50, []), (0, [])])
def test_digests_are_compared_every_so_many_steps(every, expected):
    job = job_of(10, 2, digest_every=every)
    assert due(job, job.digest_due) == expected
