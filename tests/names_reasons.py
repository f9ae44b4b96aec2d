"""Why functions of other libraries are not here: patterns of names, by reason. The first reason that fits is taken."""

from __future__ import annotations

Reasons = dict[str, str]

NOT_COUNTED: Reasons = {
    "files (`ys.save` and `ys.load` are for trees of tensors)": "fromfile fromregex fromstring genfromtxt load "
    "loadtxt save savetxt savez savez_compressed",
    "text": "array2string array_repr array_str base_repr binary_repr format_float_positional format_float_scientific "
    "get_printoptions info printoptions set_printoptions typename",
    "dates": "busday_count busday_offset datetime_as_string datetime_data is_busday isnat",
    "NumPy's settings": "get_include getbufsize geterr geterrcall setbufsize seterr seterrcall show_config "
    "show_runtime test",
    "deprecated or for the matrix class": "asmatrix bmat mintypecode row_stack",
}
"""Names of NumPy's that do not count, by reason."""

NUMPY: Reasons = {
    "calls a Python function for each element": "frompyfunc nested_iters",
    "the dtype would depend on values": "min_scalar_type real_if_close",
    "would wait for the values; `ys.all(ys.isfinite(x))`": "asarray_chkfinite",
    "there is no order to choose in `ys.einsum`": "einsum_path",
    "tensors have no memory order, and no write shows through another": "isfortran may_share_memory shares_memory",
}

TORCH: Reasons = {
    "writes in place; tensors are values": "*_",
    "quantisation": "*quantize* *quantized* q_* choose_qparams_optimized int_repr dequantize fbgemm_* *fake_quant",
    "sparse tensors": "sparse_* dsmm hsmm hspmm saddmm smm spmm sspaddmm *col_indices_copy *row_indices_copy "
    "indices_copy values_copy",
    "copies of views, and functions that skip checks of views: tensors are values": "*_copy unsafe_* slice_inverse "
    "resolve_conj resolve_neg is_conj is_neg",
    "kernels of one backend and parts of gradients; placement and `ys.grad` choose them here": "cudnn_* miopen_* "
    "mkldnn_* native_* batch_norm_* norm_except_dim nonzero_static",
    "memory layout and storage": "as_strided* empty_permuted empty_strided is_storage is_same_size is_distributed "
    "from_file hash_tensor",
    "reduced precision; `ys.options(precision=)`": "*autocast*",
    "PyTorch's compiler, scripts, processes and overloading": "sym_* fork wait import_ir_module* parse_* *_type_* "
    "thread_safe_generator *_torch_function* boolean_dispatch assert_int_or_pair Optional init_num_threads",
    "settings of PyTorch": "get_* set_* is_anomaly* is_deterministic* is_inference* is_vulkan* is_warn*",
    "recurrent layers; write the cell and `ys.scan` it": "gru* lstm* rnn_*",
    "the factors of a decomposition in LAPACK's form": "orgqr ormqr lu_*",
    "iterative decompositions": "lobpcg",
    "deprecated in PyTorch": "upsample*",
    "special functions; not here yet": "digamma polygamma *lgamma igamma igammac erfinv matrix_exp",
    "running extremes, modes and combinations; not here yet": "cummax cummin mode combinations unique_consecutive "
    "renorm",
    "short-time Fourier transforms; not here yet": "stft istft",
    "losses; not here yet": "*_loss *cross_entropy*",
    "pooling with computed, random or inverted windows; not here yet": "adaptive_* fractional_* lp_pool* max_unpool* "
    "*_with_indices",
    "images and grids; not here yet": "affine_grid* grid_* pixel_* *channel_shuffle fold unfold",
    "activations; not here yet": "celu gumbel_softmax hard* logsigmoid prelu rrelu soft* tanhshrink threshold",
    "norms and distances; not here yet": "instance_norm local_response_norm normalize pdist pairwise_distance "
    "cosine_similarity",
    "further forms of dropout; `ys.nn.dropout`": "*dropout*",
    "products in one call, and layers of several products": "bilinear conv_tbc embedding_bag *grouped_mm scaled_mm "
    "multi_head_attention_forward",
}

REASONS = {"numpy": NUMPY, "jax.numpy": NUMPY, "torch": TORCH, "torch.nn.functional": TORCH}
"""By library."""
