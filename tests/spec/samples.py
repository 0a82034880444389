"""One real call, at least, of every operator in the table."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from p2ptrain.spec.graph import Arg, Graph, Input, Meta, Node, Ref
from p2ptrain.spec.ops import OPS

Args = tuple[Any, ...]


def r(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Numbers in (0.1, 0.9): in the domain of every function."""
    return (torch.rand(shape) * 0.8 + 0.1).to(dtype)


def i(*shape: int, high: int = 2) -> Tensor:
    return torch.randint(0, high, shape)


def b(*shape: int) -> Tensor:
    return torch.rand(shape) > 0.5


F16, BF16, F64 = torch.float16, torch.bfloat16, torch.float64
INT, BOOL = torch.int64, torch.bool


def unary(rest: Args = ()) -> Iterable[Args]:
    yield (r(2, 3), *rest)
    yield (r(dtype=F64), *rest)
    yield (r(0, 2), *rest)


OPERANDS: tuple[Callable[[], Any], ...] = (
    lambda: r(2, 3),
    lambda: r(3, dtype=F64),
    lambda: r(2, 1, dtype=BF16),
    lambda: r(dtype=F64),
    lambda: i(2, 3) + 1,
    lambda: torch.tensor(2, dtype=torch.int32),
    lambda: torch.ones(1, 3, dtype=torch.int8),
)
NUMBERS = (2, 1.5, True)


def binary_calls(name: str) -> Iterable[Args]:
    for left in OPERANDS:
        if "Scalar" in name or name in {"clamp", "clamp_min", "clamp_max"}:
            for number in NUMBERS:
                yield (left(), number)
        else:
            for right in OPERANDS:
                yield (left(), right())


S: dict[str, list[Args]] = {}


def put(names: str, *calls: Args) -> None:
    for name in names.split():
        S.setdefault(name, []).extend(calls)


def kw(*args: Any, **kwargs: Any) -> Args:
    return (*args, kwargs)


g22, g23 = r(2, 2), r(2, 3)
img, big = r(2, 4, 6, 6), r(2, 4, 4, 4, 4)

put("round.decimals", kw(r(2), decimals=1))
put("polygamma", (1, r(2)))
put("nan_to_num", (r(2), 1.0), kw(r(2), posinf=2.0))
put("logit", (r(2), 1e-3), (r(2),))
put("gelu", kw(r(2), approximate="tanh"), (r(2),))
put("threshold", (r(2), 0.5, 1))
put("bitwise_not", (i(2),), (b(2),))
put("isnan isinf isposinf isneginf signbit logical_not", (r(2),), (i(2),))
put("pow.Scalar", (2, r(2)), (2, i(2)), (2.5, i(2)))
put("remainder.Scalar_Tensor", (5, i(2) + 1))
put("div.Tensor_mode", *(kw(r(2), r(2), rounding_mode=m) for m in ("floor", "trunc")))
put("div.Tensor_mode", kw(i(2), i(2) + 1, rounding_mode="floor"))
put("div.Scalar_mode", kw(r(2), 2, rounding_mode="floor"))
put("clamp", (r(2), 0.1, 0.2), (r(2), None, 0.2), (i(2), 0.5), (i(2), 0, 1))
put("clamp.Tensor", (r(2, 2), r(2)), (r(2), None, r(1)), (i(2), r(2)))
put("heaviside", (r(2), r(2)))
put("where.self", (b(2, 1), r(2), r(1)), (b(2), i(2), r()), (b(2), r(2), i(2)))
put("where.ScalarSelf", (b(2), 1.0, r(2)), (b(2), 1.0, i(2)))
put("where.ScalarOther", (b(2), r(2), 1.0))
put("where.Scalar", (b(2), 1, 2.0))
put("lerp.Scalar", (r(2), r(2), 0.5))
put("lerp.Tensor", (r(2), r(2), r(1)))
put("addcmul addcdiv", kw(r(2), r(2), r(1), value=2.0))
put("bitwise_and.Tensor bitwise_or.Tensor bitwise_xor.Tensor", (b(2), b(1)))
put("bitwise_and.Tensor", (i(2), b(2)))
put("bitwise_and.Scalar bitwise_or.Scalar bitwise_xor.Scalar", (i(2), 1))
put("logaddexp logaddexp2 hypot", (r(2), r(2, 1)))
put("xlogy.Scalar_Self", (2, r(2)), (2, i(2)))
put("xlogy.Scalar_Other", (r(2), 2), (i(2), 2))
put("logical_and logical_or logical_xor", (b(2), r(1)))
put(
    "sigmoid_backward tanh_backward silu_backward mish_backward hardswish_backward"
    " hardsigmoid_backward",
    (g22, r(2, 2)),
)
put("gelu_backward", kw(g22, r(2, 2), approximate="tanh"))
put("elu_backward", (g22, 1.0, 1, 1, False, r(2, 2)))
put("leaky_relu_backward", (g22, r(2, 2), 0.1, False))
put("hardtanh_backward", (g22, r(2, 2), -1, 1))
put("softplus_backward", (g22, r(2, 2), 1, 20))
put("softshrink_backward hardshrink_backward threshold_backward", (g22, r(2, 2), 0.5))
put("logit_backward", (g22, r(2, 2), None))
put("log_sigmoid_backward", (g22, r(2, 2), r(2, 2)))
put("log_sigmoid_forward", (r(2),))
put("_prelu_kernel", (r(2, 3), r(1, 3)))
put("_prelu_kernel_backward", (g23, r(2, 3), r(1, 3)))
put("glu", (r(2, 4), 1), (r(2, 4),))
put("glu_backward", (r(2, 2), r(2, 4), 1))
put("masked_fill.Scalar", (r(2, 2), b(2), 1.0), (i(2), b(2), 1))
put("masked_fill.Tensor", (r(2, 2), b(2), r()))
put("masked_scatter", (r(2, 2), b(2, 2), r(4)))

put("clone", kw(img, memory_format=torch.channels_last), (r(2),))
put("zeros_like ones_like rand_like randn_like", (r(2),), kw(r(2), dtype=F64))
put("zeros_like ones_like", kw(i(2), dtype=BOOL))
put("full_like", (r(2), 1), kw(i(2), 1, dtype=F64))
put("_to_copy", kw(r(2), dtype=BF16), (i(2),), kw(r(2), dtype=BOOL, non_blocking=True))
put("fill.Scalar", (r(2), 1))
put("fill.Tensor", (r(2), r()))
put("copy", (r(2, 2), r(2)), (r(2), i(2)))
put("zeros ones rand randn", ([2, 3],), kw([], dtype=F64))
put("full", ([2], 1), ([2], 1.5), ([2], True), kw([], 1, dtype=F16))
put("scalar_tensor", (1,), (1.5,), kw(True, dtype=INT))
put("new_zeros new_ones", (i(1), [2]), kw(r(1), [2, 2], dtype=INT))
put("new_full", (r(1), [2], 1))
put("arange", (5,), (2.5,), kw(5, dtype=torch.float32))
put("arange.start", (1, 5), (0.5, 2))
put("arange.start_step", (1, 6, 2), (5, 0, -2), (0.0, 1.0, 0.3))
put("linspace", (0, 1, 5))
put("eye", (3,), kw(2, dtype=INT))
put("eye.m", (2, 3))
put("view _unsafe_view", (r(2, 3), [6]), (r(2, 3), [3, -1]), (r(), []), (r(0, 2), [0]))
put("expand", (r(2, 1), [4, -1, 3]), (r(1), [2, 5]), (r(), [3]))
put("permute", (r(2, 3, 4), [2, 0, -2]))
put("transpose.int", (r(2, 3), 0, -1), (r(), 0, -1))
put("t", (r(2, 3),), (r(2),), (r(),))
put("select.int", (r(2, 3), 1, -1))
put("slice.Tensor", (r(5, 2),), (r(5), 0, 1, 2**63 - 1, 2), (r(5), 0, -3, -1))
put("slice.Tensor", (r(5), 0, 4, 2), (r(5), 0, 9, None))
put("split.Tensor unsafe_split.Tensor", (r(5, 2), 2), (r(5, 4), 2, 1), (r(0), 2))
put("split_with_sizes unsafe_split_with_sizes", (r(5), [2, 3]), (r(2, 3), [0, 3], -1))
put("unbind.int", (r(3, 2),), (r(3, 2), -1))
put("squeeze", (r(1, 2, 1),))
put("squeeze.dim", (r(1, 2), 0), (r(1, 2), -1), (r(), 0))
put("squeeze.dims", (r(1, 2, 1), [0, 1]))
put("unsqueeze", (r(2), -1), (r(2), 0), (r(), 0))
put("diagonal", (r(3, 4),), (r(3, 4, 2), 1, 0, -1), (r(3, 4), -2))
put("unfold", (r(7, 2), 0, 3, 2))
put("flip", (r(2, 3), [0]))
put("roll", (r(2, 3), [1]), (r(2, 3), [1], [0]))
put("tril triu", (r(3, 3),), (r(3, 3), 1))
put("repeat", (r(2), [3, 2]))
put("cat", ([r(2, 1), r(2, 3)], 1), ([r(0), r(2, 2)],), ([r(2), i(2)],))
put("stack", ([r(2), r(2)],), ([r(2), r(2, dtype=F64)], -1))
put("constant_pad_nd", (r(2, 3), [1, 2]), (r(2, 3), [1, -1, 0, 1], 2.0))
put("diag_embed", (r(2, 3),), (r(2, 3), 1, 0, 2), (r(3), -1))
put("select_backward", (r(2), [2, 3], 1, 0))
put("slice_backward", (r(2, 3), [4, 3], 0, 1, 9, 2))
put("diagonal_backward", (r(3), [3, 4], 1, 0, 1))
put("unfold_backward", (r(3, 2, 3), [7, 2], 0, 3, 2))
put("slice_scatter", (r(4, 2), r(2, 2), 0, 1, 3))
put("select_scatter", (r(4, 2), r(2), 0, 1))
put("diagonal_scatter", (r(2, 2), r(2)))
put("index.Tensor _unsafe_index.Tensor", (r(3, 4), [i(2, 2)]))
put("index.Tensor", (r(3, 4, 5), [None, i(2), i(1)]), (r(3, 4, 5), [i(2), None, i(2)]))
put("index.Tensor", (r(3, 4, 5), [None, i(2, 1).int()]))
put("index_put", (r(3, 4), [b(3, 4)], r()))
put("index_put _unsafe_index_put", (r(3, 4), [i(2)], r(4), True))
put("index_add index_copy", (r(3, 2), 0, torch.tensor([0, 2]), r(2, 2)))
put("index_fill.int_Scalar", (r(3, 2), 0, i(2), 1.0))
put("index_fill.int_Tensor", (r(3, 2), 0, i(2), r()))
put("scatter.src scatter_add", (r(3, 2), 0, i(2, 2), r(2, 2)))
put("scatter.value", (r(3, 2), 0, i(2, 2), 1.0))
put("scatter_reduce.two", (r(3, 2), 0, i(2, 2), r(2, 2), "amax"))
put("gather", (r(3, 2), 0, i(1, 2)))
put("index_select", (r(3, 2), 0, i(4)), (r(3, 2), 1, i().reshape(())))
put("take", (r(3, 2), i(2, 2)))
put("cumsum cumprod", (r(3, 2), 0), (i(3), -1), kw(i(3), 0, dtype=F64), (b(3), 0))
put("logcumsumexp cummax cummin", (r(3, 2), 1))
put("sort", (r(3, 2),), (r(3, 2), 0, True), (r(),))
put("sort.stable", kw(r(3, 2), stable=True, dim=0))
put("topk", (r(3, 4), 2), (r(3, 4), 3, 0, False), (r(), 1))
put("max.dim min.dim median.dim", (r(3, 4), 1), (i(3, 4), 0, True))
put("kthvalue", (r(3, 4), 2), (r(3, 4), 1, 0, True))
put("mode", (r(3, 4),), (r(3, 4), 0, True))
put("max min median", (r(3, 4),), (i(2),))
put("sum prod", (r(2, 3),), (i(2),), (b(2),), kw(r(2), dtype=F64))
put("sum.dim_IntList", (r(2, 3), [0]), (r(2, 3), None, True), (i(2, 3), [0, -1]))
put("sum.dim_IntList", (r(2, 3), []), kw(r(2, 3), [1], True, dtype=F64))
put("mean", (r(2, 3),), kw(i(2), dtype=F64))
put("mean.dim", (r(2, 3), [0]), (r(2, 3), None, True), kw(i(2, 3), [1], dtype=F64))
put("nansum", (r(2, 3),), (r(2, 3), [1], True))
put("prod.dim_int", (r(2, 3), 1), (b(2, 3), 0, True))
put("amax amin", (r(2, 3),), (r(2, 3), [0], True), (i(2, 3), [1]))
put("logsumexp", (r(2, 3), [1]), (r(2, 3), [0, 1], True))
put("linalg_vector_norm", (r(2, 3),), (r(2, 3), 1, [1], True), kw(r(2), dtype=F64))
put("var.correction std.correction", (r(2, 3), [0]), kw(r(2, 3), correction=0))
put(
    "var_mean.correction std_mean.correction", (r(2, 3), [0]), kw(r(2, 3), keepdim=True)
)
put("norm.Scalar", (r(2, 3),))
put("norm.ScalarOpt_dim", (r(2, 3), 1, [1]), (r(2, 3), None, [0], True))
put("norm.ScalarOpt_dim_dtype", kw(r(2, 3), 1, [1], False, dtype=F64))
put("any all", (b(2, 3),), (torch.ones(2, dtype=torch.uint8),))
put("any.dim all.dim", (b(2, 3), 1), (b(2, 3), 0, True))
put("any.dims all.dims", (b(2, 3), [0, 1]), (b(2, 3), None, True))
put("argmax argmin", (r(2, 3),), (r(2, 3), 1), (r(2, 3), 0, True))
put("count_nonzero", (r(2, 3),), (r(2, 3), 1))
put("count_nonzero.dim_IntList", (r(2, 3), [0]))
put("mm", (r(2, 3), r(3, 4)), (r(0, 3), r(3, 4)))
put("bmm", (r(5, 2, 3), r(5, 3, 4)))
put("addmm", (r(4), r(2, 3), r(3, 4)), kw(r(2, 4), r(2, 3), r(3, 4), beta=2))
put("baddbmm", (r(5, 2, 4), r(5, 2, 3), r(5, 3, 4)))
put("mv", (r(2, 3), r(3)))
put("dot vdot", (r(3), r(3)))
put("addmv", (r(2), r(2, 3), r(3)))
put("addr", (r(2, 3), r(2), r(3)))
put("trace", (r(3, 4),), (i(3, 3),))
put("linalg_cross", kw(r(2, 3), r(1, 3), dim=1))
put("bucketize.Tensor", (r(2, 3), r(4)), kw(r(2), r(4), out_int32=True))
put("searchsorted.Tensor", kw(r(4).sort()[0], r(2, 3), side="right"))
put("_cdist_forward", (r(2, 3), r(4, 3), 2.0, None), (r(5, 2, 3), r(1, 4, 3), 1.0, 1))
put("_cdist_backward", (r(2, 4), r(2, 3), r(4, 3), 2.0, r(2, 4)))
put("_pdist_forward", (r(4, 3),))
put("_pdist_backward", (r(6), r(4, 3), 2.0, r(6)))
put("_trilinear", (r(2, 3), r(5, 3, 4), r(2, 4), [1, 3], [0], [1, 2], [2, 3]))
put("bernoulli poisson", (r(2),))
put("bernoulli.p geometric", (r(2), 0.5))
put("exponential uniform normal_functional log_normal cauchy", (r(2),))
put("randint_like", (i(2), 5), kw(r(2), 5, dtype=INT))
put("randint_like.low_dtype", (i(2), 1, 5))
put("randint", (5, [2]), kw(5, [2], dtype=torch.int32))
put("randint.low", (1, 5, [2]))
put("normal.float_float", (0.0, 1.0, [2]))
put("normal.Tensor_float", (r(2), 1.0))
put("normal.float_Tensor", (0.0, r(2)))
put("normal.Tensor_Tensor", (r(2, 1), r(2)))
put("randperm", (4,), kw(4, dtype=torch.int32))
put("multinomial", (r(4), 2), (r(2, 4), 5, True))
put("native_dropout", (r(2, 3), 0.5, True), (r(2, 3), 0.5, False))
put("native_dropout_backward", (r(2, 3), b(2, 3), 2.0))
put("rrelu_with_noise_functional", (r(2) - 0.5, torch.zeros(2), 0.1, 0.3, True))
put("rrelu_with_noise_backward", (r(2), r(2), r(2), 0.1, 0.3, True, False))

CONV = ([2, 1], [1, 0], [1, 2], False, [0, 0], 2)
put("convolution", (img, r(6, 2, 3, 3), r(6), *CONV))
put("convolution", (img, r(4, 3, 3, 3), None, [2], [1], [2], True, [1], 2))
put("convolution", (r(2, 4, 9), r(6, 4, 3), None, [2], [0], [1], False, [0], 1))
put("convolution", (big, r(6, 4, 3, 3, 3), r(6), [1], [1], [1], False, [0], 1))
put("convolution_backward", (r(2, 6, 3, 2), img, r(6, 2, 3, 3), [6], *CONV, [True] * 3))
put(
    "convolution_backward",
    (r(2, 6, 3, 2), img, r(6, 2, 3, 3), None, *CONV, [False, True, False]),
)
BN = (r(2, 3, 4), r(3), r(3))
put("_native_batch_norm_legit_functional", (*BN, r(3), r(3), True, 0.1, 1e-5))
put("_native_batch_norm_legit_functional", (*BN, r(3), r(3), False, 0.1, 1e-5))
put(
    "_native_batch_norm_legit_functional",
    (r(2, 3, 4, dtype=BF16), r(3), r(3), r(3), r(3), True, 0.1, 1e-5),
)
put("_native_batch_norm_legit.no_stats", (r(2, 3, 4), None, None, True, 0.1, 1e-5))
put("_native_batch_norm_legit_no_training", (*BN, r(3), r(3), 0.1, 1e-5))
BNB = (r(2, 3, 4), r(2, 3, 4), r(3), r(3), r(3), r(3), r(3))
put("native_batch_norm_backward", (*BNB, True, 1e-5, [True, True, True]))
put("native_batch_norm_backward", (*BNB[:5], r(0), r(0), False, 1e-5, [True] * 3))
put("native_batch_norm_backward", (*BNB, True, 1e-5, [True, False, False]))
put("native_layer_norm", (r(2, 3, 4), [3, 4], r(3, 4), r(3, 4), 1e-5))
put("native_layer_norm", (r(2, 4, dtype=BF16), [4], None, None, 1e-5))
LNB = (r(2, 4), r(2, 4), [4], r(2, 1), r(2, 1), r(4), r(4))
put("native_layer_norm_backward", (*LNB, [True] * 3), (*LNB, [True, False, True]))
put("native_group_norm", (r(2, 4, 3, 3), r(4), r(4), 2, 4, 9, 2, 1e-5))
GNB = (r(2, 4, 3, 3), r(2, 4, 3, 3), r(2, 2), r(2, 2), r(4), 2, 4, 9, 2)
put("native_group_norm_backward", (*GNB, [True] * 3), (*GNB, [True, True, False]))
put("_weight_norm_interface", (r(3, 4), r(3, 1)), (r(3, 4), r(1, 4), 1))
put("_weight_norm_interface_backward", (r(3, 4), r(3, 4), r(3, 1), r(3, 1), 0))
put("_softmax _log_softmax", (r(2, 3), -1, False), (r(2, dtype=F64), 0, False))
put("_safe_softmax", (r(2, 3), -1), (r(2, dtype=BF16), 0, torch.float32))
put(
    "_softmax_backward_data _log_softmax_backward_data",
    (g23, r(2, 3), 1, torch.float32),
)
put("embedding", (r(5, 3), i(2, 4)), (r(5, 3), i(), 1))
put("embedding_dense_backward", (r(2, 4, 3), i(2, 4), 5, -1, False))
for mode in range(3):
    put("_embedding_bag", (r(5, 3), i(6), torch.tensor([0, 2]), False, mode))
put(
    "_embedding_bag_backward",
    (
        *(r(2, 3), i(6), torch.tensor([0, 2]), torch.tensor([0, 0, 1, 1, 1, 1])),
        *(torch.tensor([2, 4]), i(0), 5, False, 1, False, None),
    ),
)
put("max_pool2d_with_indices", (img, [3, 2], [2], [1, 0], [1], True), (img, [2]))
put("max_pool2d_with_indices", (r(1, 1, 5, 5), [2], [3], [1], [1], True))
put("max_pool3d_with_indices", (big, [2]))
put("avg_pool2d", (img, [3], [2], [1], True, False), (r(4, 6, 6), [2], []))
put("avg_pool3d", (big, [2], [2], [0], False, True, 3))
MP = img, [2, 2], [2, 2], [0, 0]
put(
    "max_pool2d_with_indices_backward",
    (r(2, 4, 3, 3), *MP, [1, 1], False, i(2, 4, 3, 3)),
)
MP3 = big, [2] * 3, [2] * 3, [0] * 3
I3 = i(2, 4, 2, 2, 2)
put("max_pool3d_with_indices_backward", (r(2, 4, 2, 2, 2), *MP3, [1] * 3, False, I3))
put("avg_pool2d_backward", (r(2, 4, 3, 3), *MP, False, True, None))
put("avg_pool3d_backward", (r(2, 4, 2, 2, 2), *MP3, False, True, None))
put("_adaptive_avg_pool2d adaptive_max_pool2d", (img, [3, 2]), (r(4, 6, 6), [1, 1]))
put("_adaptive_avg_pool3d adaptive_max_pool3d", (big, [3, 2, 1]))
put("_adaptive_avg_pool2d_backward", (r(2, 4, 3, 2), img))
put("_adaptive_avg_pool3d_backward", (r(2, 4, 3, 2, 1), big))
put("adaptive_max_pool2d_backward", (r(2, 4, 3, 2), img, i(2, 4, 3, 2)))
put("adaptive_max_pool3d_backward", (r(2, 4, 3, 2, 1), big, i(2, 4, 3, 2, 1)))
I2 = torch.arange(4).reshape(1, 1, 2, 2)
put("max_unpool2d", (r(1, 1, 2, 2), I2, [4, 4]))
I3 = torch.arange(8).reshape(1, 1, 2, 2, 2)
put("max_unpool3d", (r(1, 1, 2, 2, 2), I3, [4] * 3, [2] * 3, [0] * 3))
put("reflection_pad1d replication_pad1d", (r(2, 3, 5), [1, 2]))
put("reflection_pad2d replication_pad2d", (img, [1, 2, 3, 0]))
put("reflection_pad3d replication_pad3d", (big, [1, 2, 3, 0, 1, 1]))
put(
    "reflection_pad1d_backward replication_pad1d_backward",
    (r(2, 3, 8), r(2, 3, 5), [1, 2]),
)
put(
    "reflection_pad2d_backward replication_pad2d_backward",
    (r(2, 4, 9, 9), img, [1, 2, 3, 0]),
)
put(
    "reflection_pad3d_backward replication_pad3d_backward",
    (r(2, 4, 6, 7, 7), big, [1, 2, 3, 0, 1, 1]),
)
put("upsample_nearest1d _upsample_nearest_exact1d", (r(2, 3, 4), [7]))
put("upsample_nearest2d _upsample_nearest_exact2d", (img, [7, 8], 1.25, None))
put("upsample_nearest3d _upsample_nearest_exact3d", (big, [7, 8, 9]))
put("upsample_linear1d", (r(2, 3, 4), [7], False))
put("upsample_bilinear2d upsample_bicubic2d", (img, [7, 8], True, 1.25, 1.4))
put("_upsample_bilinear2d_aa _upsample_bicubic2d_aa", (img, [7, 8], False))
put("upsample_trilinear3d", (big, [7, 8, 9], False))
UP1, UP2 = (r(2, 3, 7), [7], [2, 3, 4]), (r(2, 4, 7, 8), [7, 8], [2, 4, 6, 6])
UP3 = (r(2, 4, 7, 8, 9), [7, 8, 9], [2, 4, 4, 4, 4])
put("upsample_nearest1d_backward _upsample_nearest_exact1d_backward", UP1)
put("upsample_nearest2d_backward _upsample_nearest_exact2d_backward", UP2)
put("upsample_nearest3d_backward _upsample_nearest_exact3d_backward", UP3)
put("upsample_linear1d_backward", (*UP1, False))
put("upsample_bilinear2d_backward upsample_bicubic2d_backward", (*UP2, True))
put("_upsample_bilinear2d_aa_backward _upsample_bicubic2d_aa_backward", (*UP2, False))
put("upsample_trilinear3d_backward", (*UP3, False))
put("pixel_shuffle", (img, 2))
put("pixel_unshuffle", (img, 3))
put("channel_shuffle", (img, 2))
put(
    "im2col",
    (img, [3, 2], [1, 1], [1, 0], [2, 1]),
    (r(3, 6, 6), [2, 2], [1, 1], [0, 0], [1, 1]),
)
put("col2im", (r(2, 12, 25), [6, 6], [2, 2], [1, 1], [0, 0], [1, 1]))
put("grid_sampler_2d", (img, r(2, 3, 5, 2), 0, 0, False))
put("grid_sampler_3d", (big, r(2, 3, 5, 2, 3), 0, 0, False))
put(
    "grid_sampler_2d_backward",
    (r(2, 4, 3, 5), img, r(2, 3, 5, 2), 0, 0, False, [True] * 2),
)
put(
    "grid_sampler_2d_backward",
    (r(2, 4, 3, 5), img, r(2, 3, 5, 2), 0, 0, False, [False, True]),
)
G3 = r(2, 3, 5, 2, 3)
put("grid_sampler_3d_backward", (r(2, 4, 3, 5, 2), big, G3, 0, 0, False, [True] * 2))
put("affine_grid_generator", (r(2, 2, 3), [2, 3, 4, 5], False))
put("affine_grid_generator", (r(2, 3, 4), [2, 3, 4, 5, 6], True))
for reduction in range(3):
    put("mse_loss smooth_l1_loss huber_loss", (r(2, 3), r(2, 3), reduction))
    put("soft_margin_loss", (r(2, 3), r(2, 3), reduction))
    put("binary_cross_entropy", (r(2, 3), r(2, 3), None, reduction))
    put("binary_cross_entropy_with_logits", (r(2, 3), r(2, 3), r(3), r(3), reduction))
    grad = r(2, 3) if reduction == 0 else r()
    put(
        "mse_loss_backward soft_margin_loss_backward",
        (grad, r(2, 3), r(2, 3), reduction),
    )
    put(
        "smooth_l1_loss_backward huber_loss_backward",
        (grad, r(2, 3), r(2, 3), reduction, 1.0),
    )
    put("binary_cross_entropy_backward", (grad, r(2, 3), r(2, 3), r(3), reduction))
    put("nll_loss_forward", (r(4, 3), i(4), r(3), reduction, -100))
    put("nll_loss2d_forward", (r(4, 3, 2, 2), i(4, 2, 2), None, reduction, -100))
    put("multi_margin_loss", (r(4, 3), i(4), 1, 1, None, reduction))
    grad = r(4) if reduction == 0 else r()
    put("nll_loss_backward", (grad, r(4, 3), i(4), None, reduction, -100, r()))
    put("multi_margin_loss_backward", (grad, r(4, 3), i(4), 1, 1, None, reduction))
    grad = r(4, 2, 2) if reduction == 0 else r()
    put(
        "nll_loss2d_backward",
        (grad, r(4, 3, 2, 2), i(4, 2, 2), None, reduction, -100, r()),
    )
put("nll_loss_forward", (r(3), i(), None, 1, -100))


def calls(name: str) -> list[Args]:
    """The calls of an operator: its own, or those of its kind."""
    if name in S:
        return S[name]
    rule = OPS[name].rule
    if rule in {"binary", "binary_float", "compare"}:
        return list(binary_calls(name))
    if rule in {"same", "float"}:
        more = [(i(2, 2),)] if rule == "float" else []
        return [*unary(), *more]
    return []


def meta(value: Tensor | None) -> Meta | None:
    if value is None:
        return None
    return Meta(str(value.dtype).removeprefix("torch."), tuple(value.shape))


class Recorder:
    """Turns a call with tensors into a node and inputs."""

    def __init__(self) -> None:
        self.metas: list[Meta | None] = []

    def arg(self, value: Any) -> Arg:
        if isinstance(value, Tensor):
            self.metas.append(meta(value))
            return Ref(len(self.metas) - 1)
        if isinstance(value, torch.dtype | torch.memory_format):
            text = str(value).removeprefix("torch.")
            return text.removesuffix("_format") if "format" in text else text
        if isinstance(value, list | tuple):
            return tuple(self.arg(item) for item in value)
        return value

    def node(self, name: str, args: Args, results: Any) -> Node:
        kwargs = args[-1] if args and isinstance(args[-1], dict) else {}
        plain = args[:-1] if kwargs else args
        if not isinstance(results, list | tuple):
            results = (results,)
        return Node(
            op=name,
            args=tuple(map(self.arg, plain)),
            kwargs={key: self.arg(value) for key, value in kwargs.items()},
            results=tuple(map(meta, results)),
        )


def run(name: str, args: Args) -> Any:
    """Run an operator for real."""
    base, overload = OPS[name].aten
    kwargs = args[-1] if args and isinstance(args[-1], dict) else {}
    plain = args[:-1] if kwargs else args
    return getattr(getattr(torch.ops.aten, base), overload)(*plain, **kwargs)


def graph_of(recorder: Recorder, node: Node) -> Graph:
    """A graph of one node."""
    inputs = [
        Input(f"x{n}", m.dtype, m.shape)
        for n, m in enumerate(recorder.metas)
        if m is not None
    ]
    return Graph(tuple(inputs), (node,), (len(inputs),))
