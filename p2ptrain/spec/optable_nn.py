"""Operators: layers, normalisation, pooling, padding, resampling, losses and gradients.

Data only; ``spec.ops`` says how a line is read.
"""

TABLE = """\
convolution: input weight bias:T? stride:I[] padding:I[] dilation:I[] transposed:B
  output_padding:I[] groups:I ; convolution
convolution_backward: grad_output input weight bias_sizes:I[]? stride:I[] padding:I[]
  dilation:I[] transposed:B output_padding:I[] groups:I output_mask:B[] -> 3 ;
  convolution_backward
_native_batch_norm_legit_functional: input weight:T? bias:T? running_mean running_var
  training:B momentum:F eps:F -> 5 ; batch_norm
_native_batch_norm_legit.no_stats: input weight:T? bias:T? training:B momentum:F eps:F
  -> 3 ; batch_norm
_native_batch_norm_legit_no_training: input weight:T? bias:T? running_mean running_var
  momentum:F eps:F -> 3 ; batch_norm
native_batch_norm_backward: grad_out input weight:T? running_mean:T? running_var:T?
  save_mean:T? save_invstd:T? train:B eps:F output_mask:B[] -> 3 ; batch_norm_backward
native_layer_norm: input normalized_shape:I[] weight:T? bias:T? eps:F -> 3 ;
  layer_norm
native_layer_norm_backward: grad_out input normalized_shape:I[] mean rstd weight:T?
  bias:T? output_mask:B[] -> 3 ; layer_norm_backward
native_group_norm: input weight:T? bias:T? N:I C:I HxW:I group:I eps:F -> 3 ;
  group_norm
native_group_norm_backward: grad_out input mean rstd weight:T? N:I C:I HxW:I group:I
  output_mask:B[] -> 3 ; group_norm_backward
_weight_norm_interface: v g dim:I=0 -> 2 ; weight_norm
_weight_norm_interface_backward: grad_w saved_v saved_g saved_norms dim:I -> 2 ;
  weight_norm_backward
_softmax, _log_softmax: self dim:I half_to_float:B ; softmax
_safe_softmax: self dim:I dtype:D?=none ; softmax
_softmax_backward_data, _log_softmax_backward_data: grad_output output dim:I
  input_dtype:D ; softmax_backward
embedding: weight indices padding_idx:I=-1 scale_grad_by_freq:B=false sparse:X=false ;
  embedding
embedding_dense_backward: grad_output indices num_weights:I padding_idx:I
  scale_grad_by_freq:B ; embedding_backward
_embedding_bag: weight indices offsets scale_grad_by_freq:B=false mode:I=0
  sparse:X=false per_sample_weights:T?=none include_last_offset:B=false
  padding_idx:I=-1 -> 4 ; embedding_bag
_embedding_bag_backward: grad indices offsets offset2bag bag_size maximum_indices
  num_weights:I scale_grad_by_freq:B mode:I sparse:X per_sample_weights:T?
  padding_idx:I=-1 ; embedding_bag_backward
max_pool2d_with_indices: self kernel_size:I[] stride:I[]=[] padding:I[]=[0,0]
  dilation:I[]=[1,1] ceil_mode:B=false -> 2 ; max_pool
max_pool3d_with_indices: self kernel_size:I[] stride:I[]=[] padding:I[]=[0,0,0]
  dilation:I[]=[1,1,1] ceil_mode:B=false -> 2 ; max_pool
avg_pool2d: self kernel_size:I[] stride:I[]=[] padding:I[]=[0,0] ceil_mode:B=false
  count_include_pad:B=true divisor_override:I?=none ; avg_pool
avg_pool3d: self kernel_size:I[] stride:I[]=[] padding:I[]=[0,0,0] ceil_mode:B=false
  count_include_pad:B=true divisor_override:I?=none ; avg_pool
max_pool2d_with_indices_backward, max_pool3d_with_indices_backward: grad_output self
  kernel_size:I[] stride:I[] padding:I[] dilation:I[] ceil_mode:B indices ;
  max_pool_backward
avg_pool2d_backward, avg_pool3d_backward: grad_output self kernel_size:I[] stride:I[]
  padding:I[] ceil_mode:B count_include_pad:B divisor_override:I? ; avg_pool_backward
_adaptive_avg_pool2d_backward, _adaptive_avg_pool3d_backward: grad_output self ;
  adaptive_pool_backward
adaptive_max_pool2d_backward, adaptive_max_pool3d_backward: grad_output self indices ;
  adaptive_pool_backward
_adaptive_avg_pool2d, _adaptive_avg_pool3d: self output_size:I[] ; adaptive_pool
adaptive_max_pool2d, adaptive_max_pool3d: self output_size:I[] -> 2 ;
  adaptive_max_pool
max_unpool2d: self indices output_size:I[] ; unpool
max_unpool3d: self indices output_size:I[] stride:I[] padding:I[] ; unpool
reflection_pad1d, reflection_pad2d, reflection_pad3d, replication_pad1d,
  replication_pad2d, replication_pad3d: self padding:I[] ; edge_pad
reflection_pad1d_backward, reflection_pad2d_backward, reflection_pad3d_backward,
  replication_pad1d_backward, replication_pad2d_backward, replication_pad3d_backward:
  grad_output self padding:I[] ; edge_pad_backward
upsample_nearest1d: self output_size:I[] scales:F?=none ; upsample
upsample_nearest2d: self output_size:I[] scales_h:F?=none scales_w:F?=none ; upsample
upsample_nearest3d: self output_size:I[] scales_d:F?=none scales_h:F?=none
  scales_w:F?=none ; upsample
_upsample_nearest_exact1d: self output_size:I[] scales:F?=none ; upsample
_upsample_nearest_exact2d: self output_size:I[] scales_h:F?=none scales_w:F?=none ;
  upsample
_upsample_nearest_exact3d: self output_size:I[] scales_d:F?=none scales_h:F?=none
  scales_w:F?=none ; upsample
upsample_linear1d: self output_size:I[] align_corners:B scales:F?=none ; upsample
upsample_bilinear2d: self output_size:I[] align_corners:B scales_h:F?=none
  scales_w:F?=none ; upsample
upsample_trilinear3d: self output_size:I[] align_corners:B scales_d:F?=none
  scales_h:F?=none scales_w:F?=none ; upsample
upsample_bicubic2d, _upsample_bilinear2d_aa, _upsample_bicubic2d_aa: self
  output_size:I[] align_corners:B scales_h:F?=none scales_w:F?=none ; upsample
upsample_nearest1d_backward: grad_output output_size:I[] input_size:I[] scales:F?=none
  ; upsample_backward
upsample_nearest2d_backward: grad_output output_size:I[] input_size:I[]
  scales_h:F?=none scales_w:F?=none ; upsample_backward
upsample_nearest3d_backward: grad_output output_size:I[] input_size:I[]
  scales_d:F?=none scales_h:F?=none scales_w:F?=none ; upsample_backward
_upsample_nearest_exact1d_backward: grad_output output_size:I[] input_size:I[]
  scales:F?=none ; upsample_backward
_upsample_nearest_exact2d_backward: grad_output output_size:I[] input_size:I[]
  scales_h:F?=none scales_w:F?=none ; upsample_backward
_upsample_nearest_exact3d_backward: grad_output output_size:I[] input_size:I[]
  scales_d:F?=none scales_h:F?=none scales_w:F?=none ; upsample_backward
upsample_linear1d_backward: grad_output output_size:I[] input_size:I[] align_corners:B
  scales:F?=none ; upsample_backward
upsample_bilinear2d_backward: grad_output output_size:I[] input_size:I[]
  align_corners:B scales_h:F?=none scales_w:F?=none ; upsample_backward
upsample_trilinear3d_backward: grad_output output_size:I[] input_size:I[]
  align_corners:B scales_d:F?=none scales_h:F?=none scales_w:F?=none ;
  upsample_backward
upsample_bicubic2d_backward, _upsample_bilinear2d_aa_backward,
  _upsample_bicubic2d_aa_backward: grad_output output_size:I[] input_size:I[]
  align_corners:B scales_h:F?=none scales_w:F?=none ; upsample_backward
pixel_shuffle: self upscale_factor:I ; pixel_shuffle
pixel_unshuffle: self downscale_factor:I ; pixel_unshuffle
channel_shuffle: self groups:I ; same
im2col: self kernel_size:I[] dilation:I[] padding:I[] stride:I[] ; im2col
col2im: self output_size:I[] kernel_size:I[] dilation:I[] padding:I[] stride:I[] ;
  col2im
grid_sampler_2d, grid_sampler_3d: input grid interpolation_mode:I padding_mode:I
  align_corners:B ; grid_sampler
grid_sampler_2d_backward, grid_sampler_3d_backward: grad_output input grid
  interpolation_mode:I padding_mode:I align_corners:B output_mask:B[] -> 2 ;
  grid_sampler_backward
affine_grid_generator: theta size:I[] align_corners:B ; affine_grid
mse_loss: self target reduction:I=1 ; loss
smooth_l1_loss: self target reduction:I=1 beta:F=1.0 ; loss
huber_loss: self target reduction:I=1 delta:F=1.0 ; loss
binary_cross_entropy: self target weight:T?=none reduction:I=1 ; loss
binary_cross_entropy_with_logits: self target weight:T?=none pos_weight:T?=none
  reduction:I=1 ; loss
soft_margin_loss: self target reduction:I=1 ; loss
mse_loss_backward: grad_output self target reduction:I ; loss_backward
smooth_l1_loss_backward: grad_output self target reduction:I beta:F ; loss_backward
huber_loss_backward: grad_output self target reduction:I delta:F ; loss_backward
binary_cross_entropy_backward: grad_output self target weight:T?=none reduction:I=1 ;
  loss_backward
soft_margin_loss_backward: grad_output self target reduction:I ; loss_backward
nll_loss_forward, nll_loss2d_forward: self target weight:T? reduction:I ignore_index:I
  -> 2 ; nll
nll_loss_backward, nll_loss2d_backward: grad_output self target weight:T? reduction:I
  ignore_index:I total_weight ; nll_backward
multi_margin_loss: self target p:S=1 margin:S=1 weight:T?=none reduction:I=1 ;
  multi_margin
multi_margin_loss_backward: grad_output self target p:S margin:S weight:T?=none
  reduction:I=1 ; multi_margin_backward
"""
