"""What an operation does to a signal, by its name: the names of torch's functions and of aten's operators.

`record` asks `kind_of` once for each operation that it sees; the rest of the analysis knows kinds only.
"""

from collections.abc import Iterable
from typing import Literal

Kind = Literal[
    "input", "weight", "norm", "act", "gate", "scale", "dropout", "pool", "shape", "add", "attention", "loss", "other"
]


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Linear maps: a weight where one operand is a parameter of two or more dimensions.
LINEAR = _words(
    """
    linear bilinear matmul __matmul__ __rmatmul__ mm bmm mv addmm addbmm baddbmm einsum tensordot inner embedding
    embedding_bag convolution _convolution multi_head_attention_forward lstm gru rnn_tanh rnn_relu deform_conv2d
    chain_matmul
    """
)
NORM = _words(
    """
    batch_norm native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_no_training cudnn_batch_norm
    _batch_norm_impl_index sync_batch_norm layer_norm native_layer_norm group_norm native_group_norm instance_norm
    rms_norm _fused_rms_norm local_response_norm batch_norm_elemt normalize
    """
)
NONNEGATIVE = _words("relu relu_ relu6 threshold clamp_min clamp_min_")  # zero, with zero slope, below zero
SATURATING = _words("sigmoid sigmoid_ tanh tanh_ hardsigmoid hardtanh softsign")
SOFTMAX = _words("softmax _softmax log_softmax _log_softmax")
SMOOTH = _words(
    """
    gelu silu mish elu elu_ selu celu leaky_relu leaky_relu_ prelu rrelu softplus hardswish hardswish_ glu
    logsigmoid hardshrink softshrink tanhshrink _prelu_kernel
    """
)
ACT = NONNEGATIVE | SATURATING | SMOOTH
ADD = _words("add add_ __add__ __radd__ __iadd__")
PRODUCT = _words("mul mul_ multiply multiply_ __mul__ __rmul__ __imul__")
QUOTIENT = _words("div div_ divide __truediv__ __itruediv__ true_divide")
LOSS = _words(
    """
    cross_entropy nll_loss nll_loss_forward nll_loss_nd mse_loss l1_loss smooth_l1_loss huber_loss
    binary_cross_entropy binary_cross_entropy_with_logits kl_div gaussian_nll_loss poisson_nll_loss
    """
)
RANDOM = _words(
    """
    bernoulli bernoulli_ rand rand_like randn randn_like uniform_ normal_ normal randint randperm exponential_
    """
)
DROPOUT = _words(
    """
    dropout dropout_ dropout1d dropout2d dropout3d feature_dropout alpha_dropout feature_alpha_dropout
    native_dropout
    """
)
SHAPE = _words(
    """
    view reshape flatten unflatten permute transpose transpose_ t movedim swapaxes squeeze squeeze_ unsqueeze
    unsqueeze_ expand expand_as contiguous clone narrow select __getitem__ chunk split split_with_sizes unbind slice
    roll flip pad constant_pad_nd cat concat concatenate stack hstack to _to_copy type type_as float half double
    bfloat16 view_as reshape_as __get__ repeat repeat_interleave tile pixel_shuffle pixel_unshuffle channel_shuffle
    unfold fold index index_select gather take as_strided alias _unsafe_view detach detach_ rot90 identity
    unsafe_chunk lift_fresh masked_fill masked_fill_ where copy_ requires_grad_ cuda cpu
    """
)
POOLS = ("max_pool", "avg_pool", "adaptive_", "lp_pool", "interpolate", "upsample", "fractional_max_pool")
REDUCED = _words("mean sum amax amin max min logsumexp")
DETACHED = _words(
    """
    detach detach_ argmax argmin topk_indices sign round floor ceil bool long int __gt__ __lt__
    """
)


def is_linear(name: str) -> bool:
    """Whether the operation is linear in two operands.

    >>> is_linear("conv2d"), is_linear("linear"), is_linear("relu")
    (True, True, False)
    """
    return name in LINEAR or name.startswith(("conv1d", "conv2d", "conv3d", "conv_transpose", "conv_tbc", "_conv"))


def kind_of(name: str, *, has_matrix: bool, num_signals: int, has_vector: bool, is_random: bool, active: bool) -> Kind:
    """The kind of an operation on signals, which are tensors that depend on the input.

    Args:    has_matrix: a parameter with two or more long dimensions is an operand
             num_signals: operands that are signals
             has_vector: a parameter with at most one long dimension is an operand
             is_random: a tensor of random numbers is an operand
             active: a dropout drops: it is in training mode with a rate above 0
    """
    if is_linear(name):
        return "weight" if has_matrix else "attention" if num_signals > 1 else "other"
    if name == "scaled_dot_product_attention" or "scaled_dot_product" in name:
        return "attention"
    if name in DROPOUT:
        return "dropout" if active else "shape"
    if name in ADD or name == "addcmul":
        return "add" if num_signals > 1 else "shape" if name in ADD else "scale"
    if name in PRODUCT or name in QUOTIENT:
        return "dropout" if is_random else "gate" if num_signals > 1 else "scale"
    for kind, names in _TABLE:
        if name in names:
            return kind
    return "pool" if name.startswith(POOLS) or name in REDUCED else "other"


_TABLE: Iterable[tuple[Kind, frozenset[str]]] = (
    ("norm", NORM),
    ("act", ACT),
    ("act", SOFTMAX),
    ("loss", LOSS),
    ("shape", SHAPE),
)
