"""Neural networks: modules, and the functions that they are made of."""

from ..ops.activation import elu, erf, gelu, leaky_relu, relu, sigmoid, silu, softplus
from ..ops.attention import attention_scores, rotary_embedding, scaled_dot_product_attention
from ..ops.choosing import one_hot
from ..ops.conv import conv1d, conv2d, conv3d, conv_transpose1d, conv_transpose2d, conv_transpose3d
from ..ops.gates import glu, hardsigmoid, hardswish, log_sigmoid, mish, relu6, selu
from ..ops.linear import (
    dropout,
    dropout_linear,
    gelu_linear,
    layer_norm_linear,
    linear,
    linear_batch_norm_relu,
    linear_residual_relu,
)
from ..ops.loss import cross_entropy, mse_loss, nll_loss
from ..ops.losses import (
    binary_cross_entropy,
    binary_cross_entropy_with_logits,
    huber_loss,
    kl_div,
    l1_loss,
    triplet_margin_loss,
)
from ..ops.normal import batch_norm, batch_norm_train, group_norm, layer_norm, log_softmax, logsumexp, rms_norm, softmax
from ..ops.pool import avg_pool1d, avg_pool2d, avg_pool3d, max_pool1d, max_pool2d, max_pool3d
from ..ops.resize import (
    adaptive_avg_pool1d,
    adaptive_avg_pool2d,
    adaptive_avg_pool3d,
    adaptive_max_pool1d,
    adaptive_max_pool2d,
    adaptive_max_pool3d,
    interpolate,
)
from . import init
from .ctc import ctc_loss
from .layers.activation import (
    ELU,
    GELU,
    GLU,
    SELU,
    Hardsigmoid,
    Hardswish,
    LeakyReLU,
    LogSigmoid,
    LogSoftmax,
    Mish,
    PReLU,
    ReLU,
    ReLU6,
    Sigmoid,
    SiLU,
    Softmax,
    Softplus,
    Tanh,
)
from .layers.attention import KVCache, MultiHeadAttention
from .layers.conv import Conv1d, Conv2d, Conv3d, ConvTranspose1d, ConvTranspose2d, ConvTranspose3d
from .layers.dropout import Dropout
from .layers.linear import Embedding, Flatten, Identity, Linear, Sequential
from .layers.norm import BatchNorm1d, BatchNorm2d, BatchNorm3d, GroupNorm, InstanceNorm, LayerNorm, RMSNorm
from .layers.pool import (
    AdaptiveAvgPool1d,
    AdaptiveAvgPool2d,
    AdaptiveAvgPool3d,
    AdaptiveMaxPool1d,
    AdaptiveMaxPool2d,
    AdaptiveMaxPool3d,
    AvgPool1d,
    AvgPool2d,
    AvgPool3d,
    MaxPool1d,
    MaxPool2d,
    MaxPool3d,
    Upsample,
)
from .layers.recurrent import GRU, LSTM, RNN
from .layers.transformer import TransformerDecoderLayer, TransformerEncoderLayer
from .module import Module
from .summaries import summary
from .training import combine, partition, stateful, value_and_grad
