"""Operators: elementwise arithmetic, comparisons, activations and their gradients.

Data only; ``spec.ops`` says how a line is read.
"""

TABLE = """\
abs, neg, floor, ceil, round: self ; same
round.decimals: self *decimals:I ; same
trunc, frac, sign, sgn, square, relu: self ; same
nan_to_num: self nan:F?=none posinf:F?=none neginf:F?=none ; same
positive, bitwise_not, relu6: self ; same
exp, exp2, expm1, log, log2, log10, log1p, sqrt, rsqrt, sin, cos, tan, asin, acos,
  atan, sinh, cosh, tanh, asinh, acosh, atanh, sigmoid, erf, erfc, erfinv, lgamma,
  digamma, sinc: self ; float
logit: self eps:F?=none ; float
reciprocal: self ; float
polygamma: n:I self ; float
gelu: self *approximate:E(none|tanh)=none ; same
silu: self ; same
elu: self alpha:S=1 scale:S=1 input_scale:S=1 ; same
celu: self alpha:S=1.0 ; same
leaky_relu: self negative_slope:S=0.01 ; same
hardswish, hardsigmoid: self ; same
hardtanh: self min_val:S=-1 max_val:S=1 ; same
softplus: self beta:S=1 threshold:S=20 ; same
mish: self ; same
softshrink, hardshrink: self lambd:S=0.5 ; same
threshold: self threshold:S value:S ; same
isnan, isinf, isposinf, isneginf, signbit, logical_not: self ; test
add.Tensor: self other *alpha:S=1 ; binary
add.Scalar: self other:S alpha:S=1 ; binary
sub.Tensor: self other *alpha:S=1 ; binary
sub.Scalar: self other:S alpha:S=1 ; binary
mul.Tensor: self other ; binary
mul.Scalar: self other:S ; binary
rsub.Tensor: self other *alpha:S=1 ; binary
rsub.Scalar: self other:S alpha:S=1 ; binary
maximum, minimum, fmax, fmin, fmod.Tensor: self other ; binary
fmod.Scalar: self other:S ; binary
remainder.Tensor: self other ; binary
remainder.Scalar: self other:S ; binary
remainder.Scalar_Tensor: self:S other ; binary
pow.Tensor_Tensor: self exponent ; binary
pow.Tensor_Scalar: self exponent:S ; binary
pow.Scalar: self:S exponent ; binary
floor_divide: self other ; binary
div.Tensor_mode: self other *rounding_mode:E(floor|trunc)? ; binary
div.Scalar_mode: self other:S *rounding_mode:E(floor|trunc)? ; binary
clamp: self min:S?=none max:S?=none ; binary
clamp.Tensor: self min:T?=none max:T?=none ; binary
clamp_min: self min:S ; binary
clamp_min.Tensor: self min ; binary
clamp_max: self max:S ; binary
clamp_max.Tensor: self max ; binary
bitwise_and.Tensor: self other ; binary
bitwise_and.Scalar: self other:S ; binary
bitwise_or.Tensor: self other ; binary
bitwise_or.Scalar: self other:S ; binary
bitwise_xor.Tensor: self other ; binary
bitwise_xor.Scalar: self other:S ; binary
heaviside: self values ; binary
where.self: condition self other ; binary
where.ScalarSelf: condition self:S other ; binary
where.ScalarOther: condition self other:S ; binary
where.Scalar: condition self:S other:S ; binary
lerp.Scalar: self end weight:S ; binary
lerp.Tensor: self end weight ; binary
addcmul, addcdiv: self tensor1 tensor2 *value:S=1 ; binary
logaddexp, logaddexp2, hypot: self other ; binary
div.Tensor: self other ; binary_float
div.Scalar: self other:S ; binary_float
atan2, xlogy.Tensor: self other ; binary_float
xlogy.Scalar_Other: self other:S ; binary_float
xlogy.Scalar_Self: self:S other ; binary_float
copysign.Tensor: self other ; binary_float
copysign.Scalar: self other:S ; binary_float
eq.Tensor: self other ; compare
eq.Scalar: self other:S ; compare
ne.Tensor: self other ; compare
ne.Scalar: self other:S ; compare
lt.Tensor: self other ; compare
lt.Scalar: self other:S ; compare
le.Tensor: self other ; compare
le.Scalar: self other:S ; compare
gt.Tensor: self other ; compare
gt.Scalar: self other:S ; compare
ge.Tensor: self other ; compare
ge.Scalar: self other:S ; compare
logical_and, logical_or, logical_xor: self other ; compare
sigmoid_backward, tanh_backward: grad_output output ; like_first
gelu_backward: grad_output self *approximate:E(none|tanh)=none ; like_first
silu_backward, mish_backward: grad_output self ; like_first
elu_backward: grad_output alpha:S scale:S input_scale:S is_result:B self_or_result ;
  like_first
leaky_relu_backward: grad_output self negative_slope:S self_is_result:B ; like_first
hardswish_backward, hardsigmoid_backward: grad_output self ; like_first
hardtanh_backward: grad_output self min_val:S max_val:S ; like_first
softplus_backward: grad_output self beta:S threshold:S ; like_first
softshrink_backward: grad_output self lambd:S ; like_first
hardshrink_backward: grad_out self lambd:S ; like_first
threshold_backward: grad_output self threshold:S ; like_first
logit_backward: grad_output self eps:F?=none ; like_first
log_sigmoid_backward: grad_output self buffer ; like_first
log_sigmoid_forward: self -> 2 ; log_sigmoid
_prelu_kernel: self weight ; prelu
_prelu_kernel_backward: grad_output self weight -> 2 ; prelu_backward
glu: self dim:I=-1 ; glu
glu_backward: grad_output self dim:I ; glu_backward
masked_fill.Scalar: self mask value:S ; masked_fill
masked_fill.Tensor: self mask value ; masked_fill
masked_scatter: self mask source ; masked_scatter
"""
