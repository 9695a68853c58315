"""Random models of every operator and type, against codes that tflite-micro 0.dev20260930204519 and
0.dev20261023182759 (from PyPI) computed, both the same; states are carried from input to input."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from lite_models import OPERATORS, make
from samebits.ir.interpreter import run_steps
from samebits.tflite import parse
from samebits.tflite.same.importer import import_same
from samebits.tflite.same.node import RULES
from samebits.tflite.same.versions import RUNTIMES

SEEDS, STEPS = 2, 3
ELSEWHERE = ("EXPAND_DIMS", "PACK", "PADV2", "RESHAPE", "SQUEEZE")  # test_runtime.py, test_same.py

RECORDED = {
    ("CONV_2D", "int8"): "64e01034650d68fc",
    ("CONV_2D", "int4"): "15a47463d5c65b12",
    ("CONV_2D", "int16"): "7b99716d894d5446",
    ("DEPTHWISE_CONV_2D", "int8"): "4ebbbce7a5bc4d9a",
    ("DEPTHWISE_CONV_2D", "int4"): "575fd46cb3dd2468",
    ("DEPTHWISE_CONV_2D", "int16"): "987c92d803f99d61",
    ("TRANSPOSE_CONV", "int8"): "934e37d24e51667d",
    ("TRANSPOSE_CONV", "int16"): "783641b362be5ec0",
    ("AVERAGE_POOL_2D", "int8"): "9f2cd54c374d7059",
    ("AVERAGE_POOL_2D", "int16"): "cb2b4aa318a1fc5d",
    ("MAX_POOL_2D", "int8"): "2e9771510f5a9121",
    ("MAX_POOL_2D", "int16"): "5111a74a20255cc2",
    ("FULLY_CONNECTED", "int8"): "585b1fb81df50ec1",
    ("FULLY_CONNECTED", "int4"): "2b175aa12cf6dc28",
    ("FULLY_CONNECTED", "int16"): "b1d713c855a1e5df",
    ("BATCH_MATMUL", "int8"): "d187c09380c82603",
    ("BATCH_MATMUL", "int16"): "5ae1344ce86c7f94",
    ("ADD", "int8"): "8e6787c24a45d3f3",
    ("ADD", "int16"): "6c2d9159db8ec44b",
    ("SUB", "int8"): "e06b297907fb3142",
    ("SUB", "int16"): "0ce8fcb9b7d8e0ce",
    ("MUL", "int8"): "d6c21347debdb4c4",
    ("MUL", "int16"): "98a69346c8d5f208",
    ("ADD_N", "int8"): "b13bc2beff2ee596",
    ("MAXIMUM", "int8"): "1e2330c6e2ba3f9e",
    ("MAXIMUM", "int16"): "d5076d9b6d147cf9",
    ("MINIMUM", "int8"): "6e02b3670da74862",
    ("MINIMUM", "int16"): "0ebfc1b4a2c5955e",
    ("SQUARED_DIFFERENCE", "int8"): "cc6b6b2eb2c2177e",
    ("SQUARED_DIFFERENCE", "int16"): "cb6b8fa07eebfb76",
    ("DIV", "int8"): "800d8f40bba124ea",
    ("MEAN", "int8"): "a537745602416f19",
    ("MEAN", "int16"): "f5bf08cdf227ca73",
    ("SUM", "int8"): "3315e87db56d3795",
    ("SUM", "int16"): "1e489831b2a24875",
    ("REDUCE_MAX", "int8"): "b4aff1b007f09c83",
    ("REDUCE_MIN", "int8"): "bdabc33bfd1f83e4",
    ("ARG_MAX", "int8"): "1c98ca22c6b5a146",
    ("ARG_MIN", "int8"): "757934faa138e774",
    ("SOFTMAX", "int8"): "ddb5d8c21837e3f7",
    ("SOFTMAX", "int16"): "ae8e1ee1633df68b",
    ("LOGISTIC", "int8"): "38c77be363933421",
    ("LOGISTIC", "int16"): "e5cdd44a9080847c",
    ("TANH", "int8"): "3ec39906718207ce",
    ("TANH", "int16"): "ad685d876bc9ffaf",
    ("HARD_SWISH", "int8"): "f186fe794c4fe113",
    ("RELU", "int8"): "d964ed77fb6b4d83",
    ("RELU", "int16"): "a17711ca472c3e8a",
    ("RELU6", "int8"): "89d3c3190f7c8c5d",
    ("RELU6", "int16"): "eeb65d5c7a964503",
    ("LEAKY_RELU", "int8"): "39ebb8a56edfc46c",
    ("LEAKY_RELU", "int16"): "17d03cb75526be02",
    ("PRELU", "int8"): "04609e76d8f27e7c",
    ("PRELU", "int16"): "402c337efb7581d2",
    ("ELU", "int8"): "e875ae9e7a3ceda7",
    ("ABS", "int8"): "37438ad5ecbac372",
    ("ABS", "int16"): "f2ec6047d379d9d2",
    ("QUANTIZE", "int8"): "ba8dab711c1add8c",
    ("QUANTIZE", "int16"): "e0ce51f4f5ce57ea",
    ("RESIZE_BILINEAR", "int8"): "387a1cb77e22c7f3",
    ("RESIZE_NEAREST_NEIGHBOR", "int8"): "f245d810e0e30398",
    ("RESIZE_NEAREST_NEIGHBOR", "int16"): "c05840e5f704921e",
    ("SVDF", "int8"): "6928511688a2b149",
    ("SVDF", "int16"): "53c836bb822fcf97",
    ("UNIDIRECTIONAL_SEQUENCE_LSTM", "int8"): "785adc7b2493856a",
    ("UNIDIRECTIONAL_SEQUENCE_LSTM", "int16"): "f9d2504e501b975b",
    ("CONCATENATION", "int8"): "e067dc32850db68b",
    ("CONCATENATION", "int16"): "0fdac0bdbe61400e",
    ("PAD", "int8"): "f1584ee4b27f34e0",
    ("PAD", "int16"): "a50662efd2afab6c",
    ("MIRROR_PAD", "int8"): "efac7d60bfb4347f",
    ("TRANSPOSE", "int8"): "1495c2a925b96657",
    ("TRANSPOSE", "int16"): "0ffa12e776c13c75",
    ("SPACE_TO_DEPTH", "int8"): "7bcc652175dd1432",
    ("DEPTH_TO_SPACE", "int8"): "ca8328043dd47276",
    ("STRIDED_SLICE", "int8"): "695a963130a5ae17",
    ("STRIDED_SLICE", "int16"): "3f4210e483dacfab",
    ("SLICE", "int8"): "6e9fbccf97e8c821",
    ("SLICE", "int16"): "d2ad50f095e3085b",
    ("SPLIT", "int8"): "e844a94d1b062338",
    ("SPLIT", "int16"): "44356ed873f14daa",
    ("SPLIT_V", "int8"): "5efe9f5a7df6e4f9",
    ("SPLIT_V", "int16"): "884eb823b3f7d00e",
    ("UNPACK", "int8"): "a7ed2e65a4d4545b",
    ("UNPACK", "int16"): "341fb0a3a3298d49",
    ("GATHER", "int8"): "3dfae35c51c2ab37",
    ("REVERSE_V2", "int8"): "19bfbd445579f76f",
    ("REVERSE_V2", "int16"): "93756ccc7a4e7c15",
    ("BROADCAST_TO", "int8"): "e153314fc5adf1ee",
    ("SPACE_TO_BATCH_ND", "int8"): "3e891f52afee7793",
    ("BATCH_TO_SPACE_ND", "int8"): "65862e348c272158",
}


def inputs(graph, seed):
    """Random codes of every input, the least and the greatest everywhere first."""
    rng, found = np.random.default_rng(seed), []
    for name in graph.own_inputs:
        value = graph.values[name]
        low, high = np.iinfo(value.dtype).min, np.iinfo(value.dtype).max
        codes = rng.integers(low, high + 1, (STEPS, *value.shape)).astype(value.dtype)
        codes[0], codes[1] = low, high
        found.append(codes)
    return found


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize(("op", "kind"), RECORDED)
def test_an_operator_is_that_of_the_runtime(op, kind, runtime):
    digest = hashlib.sha256()
    for seed in range(SEEDS):
        made = make(op, kind, np.random.default_rng(seed))
        if made is None:
            continue
        net, outputs = made
        graph = import_same(parse(net.bytes(*outputs), "f"), "f", RUNTIMES[runtime])
        for found in run_steps(graph, inputs(graph, seed))[: len(outputs)]:
            digest.update(found.astype(np.int64).tobytes())
    assert digest.hexdigest()[:16] == RECORDED[op, kind]


def test_every_operator_is_recorded():
    assert {op for op, _ in RECORDED} == set(OPERATORS)
    assert set(RULES) - set(OPERATORS) == set(ELSEWHERE)
