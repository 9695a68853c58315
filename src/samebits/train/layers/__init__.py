"""Layers as ordinary `nn.Module`s over BFP tensors. `convert` builds them from torch.nn layers."""

from samebits.train.layers.affine import (
    Conv1d,
    Conv2d,
    ConvTranspose1d,
    ConvTranspose2d,
    Embedding,
    EmbeddingBag,
    Linear,
)
from samebits.train.layers.base import Holder, Layer, joined, load_state
from samebits.train.layers.elementwise import (
    Activation,
    Dropout,
    Flatten,
    LogSoftmaxLayer,
    Rearranged,
    ReLU,
    ReLU6,
    SoftmaxLayer,
    StochasticDepth,
    dropouts,
    set_step,
)
from samebits.train.layers.normalization import BatchNorm, GroupNorm, LayerNorm, wide_buffers
from samebits.train.layers.pooling import (
    AdaptiveAvgPool2d,
    AvgPool2d,
    MaxPool2d,
    OverLines,
    Upsample,
)
from samebits.train.layers.recurrent import (
    GRU,
    LSTM,
    RNN,
    GRUCell,
    LSTMCell,
    OfRNN,
    RecurrentBase,
    RecurrentCell,
    RecurrentStack,
    RNNCell,
)
from samebits.train.layers.sequence import MultiheadAttention
from samebits.train.operations import (
    looking,  # noqa: F401 - torch.argmax and what else only reads
    selection,  # noqa: F401 - torch.where
)

__all__ = [
    "GRU",
    "LSTM",
    "RNN",
    "Activation",
    "AdaptiveAvgPool2d",
    "AvgPool2d",
    "BatchNorm",
    "Conv1d",
    "Conv2d",
    "ConvTranspose1d",
    "ConvTranspose2d",
    "Dropout",
    "Embedding",
    "EmbeddingBag",
    "Flatten",
    "GRUCell",
    "GroupNorm",
    "Holder",
    "LSTMCell",
    "Layer",
    "LayerNorm",
    "Linear",
    "LogSoftmaxLayer",
    "MaxPool2d",
    "MultiheadAttention",
    "OfRNN",
    "OverLines",
    "RNNCell",
    "ReLU",
    "ReLU6",
    "Rearranged",
    "RecurrentBase",
    "RecurrentCell",
    "RecurrentStack",
    "SoftmaxLayer",
    "StochasticDepth",
    "Upsample",
    "dropouts",
    "joined",
    "load_state",
    "set_step",
    "wide_buffers",
]
