"""The C library keeps freed memory, where it is one that can."""

import platform
import subprocess
import sys

import pytest

PROBE = """
import resource, torch
from p2ptrain.engine.memory import keep_freed_memory
keep_freed_memory() if {keep} else None
def faults():
    # as a step does: many tensors at once, then none
    tensors = [torch.zeros(250_000).add_(1) for _ in range(60)]
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    before = faults()
for _ in range(10):
    after = faults()
print(after - before)
"""


def faults(*, keep: bool) -> int:
    command = [sys.executable, "-c", PROBE.format(keep=keep)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="for glibc only")
def test_memory_is_not_cleared_anew():
    assert faults(keep=True) < faults(keep=False) / 10
