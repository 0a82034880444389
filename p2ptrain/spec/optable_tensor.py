"""Operators: making, viewing, indexing, reducing, multiplying and drawing tensors.

Data only; ``spec.ops`` says how a line is read.
"""

TABLE = """\
detach, alias: self ; same
clone: self *memory_format:M?=none ; like
zeros_like, ones_like: self *dtype:D?=none *memory_format:M?=none ; like
full_like: self fill_value:S *dtype:D?=none *memory_format:M?=none ; like
_to_copy: self *dtype:D?=none *non_blocking:B=false *memory_format:M?=none ; like
fill.Scalar: self value:S ; like
fill.Tensor: self value ; like
copy: self src non_blocking:B=false ; copy
zeros, ones: size:I[] *dtype:D?=none ; create
full: size:I[] fill_value:S *dtype:D?=none ; fill
scalar_tensor: s:S *dtype:D?=none ; scalar
new_zeros, new_ones: self size:I[] *dtype:D?=none ; create_new
new_full: self size:I[] fill_value:S *dtype:D?=none ; create_new
arange: end:S *dtype:D?=none ; arange
arange.start: start:S end:S *dtype:D?=none ; arange
arange.start_step: start:S end:S step:S=1 *dtype:D?=none ; arange
linspace: start:S end:S steps:I *dtype:D?=none ; linspace
eye: n:I *dtype:D?=none ; eye
eye.m: n:I m:I *dtype:D?=none ; eye
view, _unsafe_view: self size:I[] ; view
expand: self size:I[] *implicit:B=false ; expand
permute: self dims:I[] ; permute
transpose.int: self dim0:I dim1:I ; transpose
t: self ; t
select.int: self dim:I index:I ; select
slice.Tensor: self dim:I=0 start:I?=none end:I?=none step:I=1 ; slice
split.Tensor, unsafe_split.Tensor: self split_size:I dim:I=0 -> list ; split
split_with_sizes, unsafe_split_with_sizes: self split_sizes:I[] dim:I=0 -> list ;
  split_sizes
unbind.int: self dim:I=0 -> list ; unbind
squeeze: self ; squeeze
squeeze.dim: self dim:I ; squeeze
squeeze.dims: self dim:I[] ; squeeze
unsqueeze: self dim:I ; unsqueeze
diagonal: self offset:I=0 dim1:I=0 dim2:I=1 ; diagonal
unfold: self dimension:I size:I step:I ; unfold
flip: self dims:I[] ; same
roll: self shifts:I[] dims:I[]=[] ; same
tril, triu: self diagonal:I=0 ; same
repeat: self repeats:I[] ; repeat
cat: tensors:T[] dim:I=0 ; cat
stack: tensors:T[] dim:I=0 ; stack
constant_pad_nd: self pad:I[] value:S=0 ; pad
diag_embed: self offset:I=0 dim1:I=-2 dim2:I=-1 ; diag_embed
select_backward: grad_output input_sizes:I[] dim:I index:I ; select_backward
slice_backward: grad_output input_sizes:I[] dim:I start:I end:I step:I ;
  slice_backward
diagonal_backward: grad_output input_sizes:I[] offset:I dim1:I dim2:I ;
  diagonal_backward
unfold_backward: grad_in input_sizes:I[] dim:I size:I step:I ; unfold_backward
slice_scatter: self src dim:I=0 start:I?=none end:I?=none step:I=1 ; into_first
select_scatter: self src dim:I index:I ; into_first
diagonal_scatter: self src offset:I=0 dim1:I=0 dim2:I=1 ; into_first
index.Tensor, _unsafe_index.Tensor: self indices:T?[] ; index
index_put, _unsafe_index_put: self indices:T?[] values accumulate:B=false ; into_first
index_add: self dim:I index source *alpha:S=1 ; into_first
index_copy: self dim:I index source ; into_first
index_fill.int_Scalar: self dim:I index value:S ; into_first
index_fill.int_Tensor: self dim:I index value ; into_first
scatter.src: self dim:I index src ; into_first
scatter.value: self dim:I index value:S ; into_first
scatter_add: self dim:I index src ; into_first
scatter_reduce.two: self dim:I index src reduce:E(sum|prod|mean|amax|amin)
  *include_self:B=true ; into_first
gather: self dim:I index *sparse_grad:X=false ; gather
index_select: self dim:I index ; index_select
take: self index ; take
cumsum, cumprod: self dim:I *dtype:D?=none ; cumulative
logcumsumexp: self dim:I ; same
cummax, cummin: self dim:I -> 2 ; with_indices
sort: self dim:I=-1 descending:B=false -> 2 ; with_indices
sort.stable: self *stable:B? *dim:I=-1 *descending:B=false -> 2 ; with_indices
topk: self k:I dim:I=-1 largest:B=true sorted:B=true -> 2 ; topk
max.dim, min.dim, median.dim: self dim:I keepdim:B=false -> 2 ; reduce_pair
kthvalue: self k:I dim:I=-1 keepdim:B=false -> 2 ; reduce_pair
mode: self dim:I=-1 keepdim:B=false -> 2 ; reduce_pair
max, min, median: self ; reduce_all
sum: self *dtype:D?=none ; reduce_sum
sum.dim_IntList: self dim:I[]? keepdim:B=false *dtype:D?=none ; reduce_sum
nansum: self dim:I[]?=none keepdim:B=false *dtype:D?=none ; reduce_sum
prod: self *dtype:D?=none ; reduce_sum
prod.dim_int: self dim:I keepdim:B=false *dtype:D?=none ; reduce_sum
amax, amin: self dim:I[]=[] keepdim:B=false ; reduce_same
mean: self *dtype:D?=none ; reduce_float
mean.dim: self dim:I[]? keepdim:B=false *dtype:D?=none ; reduce_float
logsumexp: self dim:I[] keepdim:B=false ; reduce_float
linalg_vector_norm: self ord:S=2 dim:I[]?=none keepdim:B=false *dtype:D?=none ;
  reduce_float
var.correction, std.correction: self dim:I[]?=none *correction:S?=none
  *keepdim:B=false ; reduce_float
norm.Scalar: self p:S=2 ; reduce_float
norm.ScalarOpt_dim: self p:S? dim:I[] keepdim:B=false ; reduce_float
norm.ScalarOpt_dim_dtype: self p:S? dim:I[] keepdim:B *dtype:D ; reduce_float
var_mean.correction, std_mean.correction: self dim:I[]?=none *correction:S?=none
  *keepdim:B=false -> 2 ; reduce_two
any: self ; reduce_bool
any.dim: self dim:I keepdim:B=false ; reduce_bool
any.dims: self dim:I[]?=none keepdim:B=false ; reduce_bool
all: self ; reduce_bool
all.dim: self dim:I keepdim:B=false ; reduce_bool
all.dims: self dim:I[]?=none keepdim:B=false ; reduce_bool
argmax, argmin: self dim:I?=none keepdim:B=false ; reduce_int
count_nonzero: self dim:I?=none ; reduce_int
count_nonzero.dim_IntList: self dim:I[] ; reduce_int
mm: self mat2 ; mm
bmm: self mat2 ; bmm
addmm: self mat1 mat2 *beta:S=1 *alpha:S=1 ; addmm
baddbmm: self batch1 batch2 *beta:S=1 *alpha:S=1 ; baddbmm
mv: self vec ; mv
dot: self tensor ; dot
vdot: self other ; dot
addmv: self mat vec *beta:S=1 *alpha:S=1 ; addmv
addr: self vec1 vec2 *beta:S=1 *alpha:S=1 ; addr
trace: self ; trace
linalg_cross: self other *dim:I=-1 ; cross
bucketize.Tensor: self boundaries *out_int32:B=false *right:B=false ; bucketize
searchsorted.Tensor: sorted_sequence self *out_int32:B=false *right:B=false
  *side:E(left|right)?=none *sorter:T?=none ; searchsorted
_cdist_forward: x1 x2 p:F compute_mode:I? ; cdist
_cdist_backward: grad x1 x2 p:F cdist ; cdist_backward
_pdist_forward: self p:F=2.0 ; pdist
_pdist_backward: grad self p:F pdist ; pdist_backward
_trilinear: i1 i2 i3 expand1:I[] expand2:I[] expand3:I[] sumdim:I[] unroll_dim:I=1 ;
  trilinear
rand_like, randn_like: self *dtype:D?=none *memory_format:M?=none ; random_like
bernoulli: self ; random_like
bernoulli.p: self p:F ; random_like
exponential: self lambd:F=1.0 ; random_like
uniform: self from:F=0.0 to:F=1.0 ; random_like
normal_functional: self mean:F=0.0 std:F=1.0 ; random_like
log_normal: self mean:F=1.0 std:F=2.0 ; random_like
geometric: self p:F ; random_like
cauchy: self median:F=0.0 sigma:F=1.0 ; random_like
randint_like: self high:I *dtype:D?=none *memory_format:M?=none ; random_like
randint_like.low_dtype: self low:I high:I *dtype:D?=none *memory_format:M?=none ;
  random_like
poisson: self ; random_like
rand, randn: size:I[] *dtype:D?=none ; random
randint: high:I size:I[] *dtype:D?=int64 ; randint
randint.low: low:I high:I size:I[] *dtype:D?=int64 ; randint
normal.float_float: mean:F std:F size:I[] *dtype:D?=none ; normal
normal.Tensor_float: mean std:F=1.0 ; normal_like
normal.float_Tensor: mean:F std ; normal_like
normal.Tensor_Tensor: mean std ; normal_like
randperm: n:I *dtype:D?=int64 ; randperm
multinomial: self num_samples:I replacement:B=false ; multinomial
native_dropout: input p:F train:B? -> 2 ; dropout
native_dropout_backward: grad_output mask scale:F ; dropout_backward
rrelu_with_noise_functional: self noise lower:S=0.125 upper:S=0.3333333333333333
  training:B=false -> 2 ; rrelu
rrelu_with_noise_backward: grad_output self noise lower:S upper:S training:B
  self_is_result:B ; like_first
"""
