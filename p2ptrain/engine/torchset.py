"""Process-wide settings of torch, made once before a graph runs.

Replicas hold the same bits because they apply the same sum, whatever computed it; what
is set here makes runs repeatable, and fp32 mean fp32.
"""

import os

import torch
from torch.utils import deterministic

from p2ptrain.engine.memory import keep_freed_memory


def prepare(threads: int) -> None:
    """Make torch deterministic and give it its threads."""
    # cuBLAS is deterministic with a fixed workspace only; read when it first starts
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    keep_freed_memory()
    torch.set_num_threads(threads)
    # Where a device has no deterministic kernel, a repeatable run is not worth refusing
    # to train: replicas agree all the same.
    # The other way to say so imports the compiler: a second of a session's start.
    torch.set_deterministic_debug_mode("warn")
    # It would cost a pass over all memory; no graph reads what was never written.
    deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_tf32 = False
