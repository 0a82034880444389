"""The settings hold, and do not cost what they need not."""

import os

import torch

from p2ptrain.engine import torchset


def test_torch_is_repeatable_and_fp32_is_fp32():
    torchset.prepare(1)
    assert torch.get_num_threads() == 1
    assert torch.are_deterministic_algorithms_enabled()
    assert torch.is_deterministic_algorithms_warn_only_enabled()
    assert not torch.utils.deterministic.fill_uninitialized_memory
    assert not torch.backends.cudnn.allow_tf32
    assert not torch.backends.cuda.matmul.allow_tf32
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"]
    torchset.prepare(2)
    assert torch.get_num_threads() == 2
