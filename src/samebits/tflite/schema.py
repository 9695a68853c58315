"""The format of TensorFlow Lite files (schema version 3), as data: tables, options and numbers.

A table is a mapping from the names of its fields to `Field`. What the reader and the writer know of
the format stands here; fields that no meaning of a file depends on are left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

IDENTIFIER = b"TFL3"
VERSION = 3
OWN = "samebits."  # begins the names of metadata that this project writes and reads


class Field(NamedTuple):
    """A field of a table.

    number: its place in the table's layout. kind: a letter of `struct` (a number), "s" (text),
    "[" and a letter (a vector of numbers), "T:NAME" (a table), "[T:NAME" (a vector of tables) or
    "U" (a table whose kind another field says). default: of a number, where it is not stored
    """

    number: int
    kind: str
    default: int = 0


Fields = Mapping[str, Field]

TABLES: Mapping[str, Fields] = {
    "Model": {
        "version": Field(0, "I"),
        "operator_codes": Field(1, "[T:OperatorCode"),
        "subgraphs": Field(2, "[T:SubGraph"),
        "description": Field(3, "s"),
        "buffers": Field(4, "[T:Buffer"),
        "metadata": Field(6, "[T:Metadata"),
    },
    "Metadata": {"name": Field(0, "s"), "buffer": Field(1, "I")},
    "OperatorCode": {
        "short_code": Field(0, "b"),  # of operators below 127, and before there were others
        "custom_code": Field(1, "s"),
        "version": Field(2, "i", 1),
        "code": Field(3, "i"),
    },
    "SubGraph": {
        "tensors": Field(0, "[T:Tensor"),
        "inputs": Field(1, "[i"),
        "outputs": Field(2, "[i"),
        "operators": Field(3, "[T:Operator"),
        "name": Field(4, "s"),
    },
    "Tensor": {
        "shape": Field(0, "[i"),
        "type": Field(1, "b"),
        "buffer": Field(2, "I"),
        "name": Field(3, "s"),
        "quantization": Field(4, "T:Quantization"),
        "is_variable": Field(5, "?"),
        "sparsity": Field(6, "T:Sparsity"),
    },
    "Quantization": {
        "scale": Field(2, "[f"),
        "zero_point": Field(3, "[q"),
        "details_type": Field(4, "B"),
        "axis": Field(6, "i"),
    },
    "Sparsity": {},
    "Operator": {
        "opcode": Field(0, "I"),
        "inputs": Field(1, "[i"),
        "outputs": Field(2, "[i"),
        "options_type": Field(3, "B"),
        "options": Field(4, "U"),
    },
    "Buffer": {"data": Field(0, "[B"), "offset": Field(1, "Q"), "size": Field(2, "Q")},
}

_WINDOW = {"padding": Field(0, "b"), "stride_w": Field(1, "i"), "stride_h": Field(2, "i")}
_AXES = {"align_corners": Field(0, "?"), "half_pixel_centers": Field(1, "?")}
_ACTIVATION = {"activation": Field(0, "b")}

OPTIONS: Mapping[str, tuple[int, Fields]] = {
    "Conv2D": (
        1,
        {
            **_WINDOW,
            "activation": Field(3, "b"),
            "dilation_w": Field(4, "i", 1),
            "dilation_h": Field(5, "i", 1),
            "bias_type": Field(6, "b"),
        },
    ),
    "DepthwiseConv2D": (
        2,
        {
            **_WINDOW,
            "multiplier": Field(3, "i"),
            "activation": Field(4, "b"),
            "dilation_w": Field(5, "i", 1),
            "dilation_h": Field(6, "i", 1),
        },
    ),
    "Pool2D": (
        5,
        {
            **_WINDOW,
            "filter_w": Field(3, "i"),
            "filter_h": Field(4, "i"),
            "activation": Field(5, "b"),
        },
    ),
    "Svdf": (6, {"rank": Field(0, "i"), "activation": Field(1, "b")}),
    "FullyConnected": (
        8,
        {
            **_ACTIVATION,
            "weights_format": Field(1, "b"),
            "keep_num_dims": Field(2, "?"),
            "bias_type": Field(4, "b"),
        },
    ),
    "Softmax": (9, {"beta": Field(0, "f")}),
    "Concatenation": (10, {"axis": Field(0, "i"), "activation": Field(1, "b")}),
    "Add": (11, _ACTIVATION),
    "ResizeBilinear": (
        15,
        {"align_corners": Field(2, "?"), "half_pixel_centers": Field(3, "?")},
    ),
    "SpaceToDepth": (19, {"block_size": Field(0, "i")}),
    "Mul": (21, _ACTIVATION),
    "Gather": (23, {"axis": Field(0, "i"), "batch_dims": Field(1, "i")}),
    "Reducer": (27, {"keep_dims": Field(0, "?")}),
    "Sub": (28, _ACTIVATION),
    "Div": (29, _ACTIVATION),
    "StridedSlice": (
        32,
        {
            "begin_mask": Field(0, "i"),
            "end_mask": Field(1, "i"),
            "ellipsis_mask": Field(2, "i"),
            "new_axis_mask": Field(3, "i"),
            "shrink_axis_mask": Field(4, "i"),
            "offset": Field(5, "?"),
        },
    ),
    "Split": (35, {"num_splits": Field(0, "i")}),
    "TransposeConv": (49, {**_WINDOW, "activation": Field(3, "b")}),
    "Pack": (59, {"values_count": Field(0, "i"), "axis": Field(1, "i")}),
    "Unpack": (64, {"num": Field(0, "i"), "axis": Field(1, "i")}),
    "SequenceLstm": (
        71,
        {
            **_ACTIVATION,
            "cell_clip": Field(1, "f"),
            "projection_clip": Field(2, "f"),
            "time_major": Field(3, "?"),
        },
    ),
    "ResizeNearestNeighbor": (74, _AXES),
    "LeakyRelu": (75, {"alpha": Field(0, "f")}),
    "MirrorPad": (77, {"mode": Field(0, "b")}),
    "SplitV": (79, {"num_splits": Field(0, "i")}),
    "While": (93, {"cond_subgraph_index": Field(0, "i"), "body_subgraph_index": Field(1, "i")}),
    "DepthToSpace": (94, {"block_size": Field(0, "i")}),
    "BatchMatMul": (101, {"adj_x": Field(0, "?"), "adj_y": Field(1, "?")}),
    "CallOnce": (103, {"init_subgraph_index": Field(0, "i")}),
    "VarHandle": (111, {"container": Field(0, "s"), "shared_name": Field(1, "s")}),
    "Gelu": (116, {"approximate": Field(0, "?")}),
}
"""Options by name: their number among all kinds of options, and their fields."""

OPTIONS_OF: Mapping[str, str] = {
    "ADD": "Add",
    "AVERAGE_POOL_2D": "Pool2D",
    "BATCH_MATMUL": "BatchMatMul",
    "CALL_ONCE": "CallOnce",
    "CONCATENATION": "Concatenation",
    "CONV_2D": "Conv2D",
    "DEPTHWISE_CONV_2D": "DepthwiseConv2D",
    "DEPTH_TO_SPACE": "DepthToSpace",
    "DIV": "Div",
    "FULLY_CONNECTED": "FullyConnected",
    "GATHER": "Gather",
    "GELU": "Gelu",
    "LEAKY_RELU": "LeakyRelu",
    "MAX_POOL_2D": "Pool2D",
    "MEAN": "Reducer",
    "MIRROR_PAD": "MirrorPad",
    "MUL": "Mul",
    "PACK": "Pack",
    "REDUCE_MAX": "Reducer",
    "REDUCE_MIN": "Reducer",
    "RESIZE_BILINEAR": "ResizeBilinear",
    "RESIZE_NEAREST_NEIGHBOR": "ResizeNearestNeighbor",
    "SOFTMAX": "Softmax",
    "SPACE_TO_DEPTH": "SpaceToDepth",
    "SPLIT": "Split",
    "SPLIT_V": "SplitV",
    "STRIDED_SLICE": "StridedSlice",
    "SUB": "Sub",
    "SUM": "Reducer",
    "SVDF": "Svdf",
    "TRANSPOSE_CONV": "TransposeConv",
    "UNIDIRECTIONAL_SEQUENCE_LSTM": "SequenceLstm",
    "UNPACK": "Unpack",
    "VAR_HANDLE": "VarHandle",
    "WHILE": "While",
}
"""The options of operators whose meaning depends on some."""

CUSTOM = "CUSTOM"
UNKNOWN = "operator"  # and its number, of one that stands in no table here
_CODES = """ADD AVERAGE_POOL_2D CONCATENATION CONV_2D DEPTHWISE_CONV_2D DEPTH_TO_SPACE DEQUANTIZE
EMBEDDING_LOOKUP FLOOR FULLY_CONNECTED HASHTABLE_LOOKUP L2_NORMALIZATION L2_POOL_2D
LOCAL_RESPONSE_NORMALIZATION LOGISTIC LSH_PROJECTION LSTM MAX_POOL_2D MUL RELU RELU_N1_TO_1 RELU6
RESHAPE RESIZE_BILINEAR RNN SOFTMAX SPACE_TO_DEPTH SVDF TANH CONCAT_EMBEDDINGS SKIP_GRAM CALL CUSTOM
EMBEDDING_LOOKUP_SPARSE PAD UNIDIRECTIONAL_SEQUENCE_RNN GATHER BATCH_TO_SPACE_ND SPACE_TO_BATCH_ND
TRANSPOSE MEAN SUB DIV SQUEEZE UNIDIRECTIONAL_SEQUENCE_LSTM STRIDED_SLICE BIDIRECTIONAL_SEQUENCE_RNN
EXP TOPK_V2 SPLIT LOG_SOFTMAX DELEGATE BIDIRECTIONAL_SEQUENCE_LSTM CAST PRELU MAXIMUM ARG_MAX
MINIMUM LESS NEG PADV2 GREATER GREATER_EQUAL LESS_EQUAL SELECT SLICE SIN TRANSPOSE_CONV
SPARSE_TO_DENSE TILE EXPAND_DIMS EQUAL NOT_EQUAL LOG SUM SQRT RSQRT SHAPE POW ARG_MIN FAKE_QUANT
REDUCE_PROD REDUCE_MAX PACK LOGICAL_OR ONE_HOT LOGICAL_AND LOGICAL_NOT UNPACK REDUCE_MIN FLOOR_DIV
REDUCE_ANY SQUARE ZEROS_LIKE FILL FLOOR_MOD RANGE RESIZE_NEAREST_NEIGHBOR LEAKY_RELU
SQUARED_DIFFERENCE MIRROR_PAD ABS SPLIT_V UNIQUE CEIL REVERSE_V2 ADD_N GATHER_ND COS WHERE RANK ELU
REVERSE_SEQUENCE MATRIX_DIAG QUANTIZE MATRIX_SET_DIAG ROUND HARD_SWISH IF WHILE
NON_MAX_SUPPRESSION_V4 NON_MAX_SUPPRESSION_V5 SCATTER_ND SELECT_V2 DENSIFY SEGMENT_SUM BATCH_MATMUL
PLACEHOLDER CUMSUM CALL_ONCE BROADCAST_TO RFFT2D CONV_3D IMAG REAL COMPLEX_ABS HASHTABLE
HASHTABLE_FIND HASHTABLE_IMPORT HASHTABLE_SIZE REDUCE_ALL CONV_3D_TRANSPOSE VAR_HANDLE READ_VARIABLE
ASSIGN_VARIABLE BROADCAST_ARGS RANDOM_STANDARD_NORMAL BUCKETIZE RANDOM_UNIFORM MULTINOMIAL GELU
DYNAMIC_UPDATE_SLICE RELU_0_TO_1 UNSORTED_SEGMENT_PROD UNSORTED_SEGMENT_MAX UNSORTED_SEGMENT_SUM
ATAN2 UNSORTED_SEGMENT_MIN SIGN BITCAST BITWISE_XOR RIGHT_SHIFT"""
OPERATORS: Mapping[int, str] = dict(enumerate(_CODES.split()))
"""Operators by their numbers; none of those beyond has a kernel in every runtime."""
SHORT_MOST = 127  # an operator's number in `short_code`; larger ones stand in `code` alone

TYPES: Mapping[int, str] = {
    0: "float32",
    1: "float16",
    2: "int32",
    3: "uint8",
    4: "int64",
    5: "string",
    6: "bool",
    7: "int16",
    8: "complex64",
    9: "int8",
    10: "float64",
    11: "complex128",
    12: "uint64",
    13: "resource",
    14: "variant",
    15: "uint32",
    16: "uint16",
    17: "int4",
}
OPAQUE = ("string", "complex64", "complex128", "resource", "variant")
"""Types whose elements are not numbers; tensors of them have no array here."""

SAME, VALID = 0, 1  # of `padding`
ACTIVATIONS: Mapping[int, str] = {
    0: "NONE",
    1: "RELU",
    2: "RELU_N1_TO_1",
    3: "RELU6",
    4: "TANH",
    5: "SIGN_BIT",
}
