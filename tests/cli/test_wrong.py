"""Wrong invocations of every command: exit code 2, one sentence on stderr, nothing on stdout.

A missing file, a file of another kind, an option that is none, a wrong value, and an option of
another kind of model.
"""

from __future__ import annotations

import pytest

# A command of names of `shelf`, and below it what its message says; OUT is in an empty folder.
QUANTIZE = """
quantize none --data samples --out OUT.onnx
    no such file or folder; expected an .onnx, .pt2 or .tflite file, a training output folder
quantize broken --data samples --out OUT.onnx
    not a readable ONNX file
quantize text --data samples --out OUT.onnx
    expected an .onnx, .pt2 or .tflite file, a training output folder
quantize firmware --data samples --out OUT.onnx
    expected a float network, found
quantize quantized --data samples --out OUT.onnx
    expected a float network, found: quantized network
quantize run --data digits --out OUT.onnx
    expected a float network, found: quantized network
quantize none.py:net --data samples --out OUT.onnx
    no such file
quantize own:net --data samples --out OUT.onnx
    expected a callable in
quantize own:NUMBER --data samples --out OUT.onnx
    , found int
quantize float --data none.npz --out OUT.onnx
    No such file or directory
quantize float --data none --out OUT.onnx
    no such file or folder; expected 'digits', a folder of images or WAV audio
quantize float --data quantized --out OUT.onnx
    path/to/file.py:callable, found a file ending in .onnx
quantize float --data wrong --out OUT.onnx
    array x: expected shape [samples, 4], found [6, 5]
quantize float --data digits --out OUT.onnx
    digits: expected samples of shape [4] for the input 'x', found [1, 8, 8]
quantize float --data samples
    samebits quantize: expected --out, found none; see samebits quantize --help
quantize float --data samples --out OUT.txt
    --out: expected a name ending in .onnx, found
quantize float --data samples --out OUT.onnx --scheme int8
    --scheme: expected one of asymmetric-s8, asymmetric-u8, symmetric-s8
quantize float --data samples --out OUT.onnx --weights int8
    weights: expected one of symmetric-s8, asymmetric-s8, power-of-two-s8
quantize float --data samples --out OUT.onnx --calibrate kl
    expected one of minmax, percentile, mse, found 'kl'
quantize float --data samples --out OUT.onnx --calibrate percentile --percentile 10
    percentile: expected above 50 and up to 100, found 10.0
quantize float --data samples --out OUT.onnx --percentile most
    --percentile: expected a number, found 'most'; see samebits quantize --help
quantize float --data samples --out OUT.onnx --percentile 99
    needs --calibrate percentile
quantize float --data samples --out OUT.onnx --output-bits 4
    --output-bits: expected 8 or 16, found 4
quantize float --data samples --out OUT.onnx --gates nonsense
    --gates: expected one of q0.15, symmetric, asymmetric, found 'nonsense'
quantize float --data samples --out OUT.onnx --bits 16
    --bits does not apply to a feed-forward network, found 16; give --scheme asymmetric-s16
quantize float --data samples --out OUT.onnx --symmetry 0.5
    --symmetry does not apply to a feed-forward network, found 0.5; leave it out
quantize float --data samples --out OUT.onnx --float-bias
    --float-bias does not apply to a feed-forward network
quantize float --data samples --out OUT.onnx --arch own:net
    --arch applies to training folders and checkpoints, found
quantize float --data samples --out OUT.onnx --shape x
    --shape: expected NAME=SIZES such as x=1,3,96,96, found 'x'; samebits inspect MODEL lists
quantize float --data samples --out OUT.onnx --shape x=1,q
    --shape x: expected sizes such as 3,32,32, found '1,q'
quantize open --data samples --out OUT.onnx --shape z=1,4
    --shape z: expected the name of an input ('x')
quantize open --data samples --out OUT.onnx --shape x=1,5
    --shape x: expected 4 for dimension 1, which the model fixes, found 5
quantize open --data samples --out OUT.onnx --shape x=1,4 --shape x=1,4
    --shape: expected one shape for the input 'x', found two
quantize float --data samples --out OUT.onnx --set x
    --set: expected NAME=VALUE such as sr=16000, found 'x'
quantize float --data samples --out OUT.onnx --set x=1 --set x=2
    --set: expected one number for the input 'x', found two
quantize float --data samples --out OUT.onnx --set x=one
    --set x: expected a finite number of float32, the type of this input, found 'one'
inspect float --set z=1
    --set z: expected the name of an input ('x')
inspect float --end-at flatt
    --end-at: expected a tensor of the network, found no 'flatt'; did you mean 'flat'
compile float --out OUT --start-at ,
    --start-at: expected names of tensors
inspect run --end-at y
    --end-at applies to ONNX files, found one for another model; leave it out
quantize float --data samples --out OUT.onnx --schema int8
    expected an option of samebits quantize, found --schema; did you mean --scheme or --set
quantize speech --data sequences --out OUT.onnx --scheme asymmetric-s16
    --scheme does not apply to a recurrent network, found asymmetric-s16
quantize speech --data sequences --out OUT.onnx --weights symmetric-s8
    --weights does not apply to a recurrent network, found symmetric-s8
quantize speech --data sequences --out OUT.onnx --per-tensor
    --per-tensor does not apply to a recurrent network
quantize speech --data sequences --out OUT.onnx --output-bits 16
    --output-bits does not apply to a recurrent network, found 16
quantize speech --data sequences --out OUT.onnx --gates nonsense
    gates: expected one of q0.15, symmetric, asymmetric, found 'nonsense'
quantize speech --data sequences --out OUT.onnx --bits 12
    bits: expected 8 or 16, found 12
quantize speech --data samples --out OUT.onnx
    array x: expected shape [samples,
"""

COMPILE = """
ship float
    samebits ship: expected --out, found none; see samebits ship --help
ship float --out OUT
    expected --data SAMPLES for a float network, found none; give samples of its inputs
ship float --data samples --out OUT --package bazel
    --package: expected one of make, cmake, arduino, zephyr, espidf, platformio, found 'bazel'
ship float --data samples --out OUT --board cortex-m99
    --board: expected one of cortex-m0, cortex-m0-large, cortex-m3
ship float --data samples --out OUT --backends gpu
    unknown backend 'gpu'; expected one of
ship none --data samples --out OUT
    no such file or folder
ship quantized --data samples --out OUT
    --data does not apply to
ship quantized --out OUT --effort high
    --effort does not apply to
ship firmware --out OUT
    expected a float or quantized network to ship, found
compile none --out OUT
    no such file or folder; expected an .onnx, .pt2 or .tflite file
compile text --out OUT
    found a file ending in nothing
compile broken --out OUT
    not a readable ONNX file
compile float --out OUT
    expected a quantized model (QuantizeLinear and DequantizeLinear nodes), found a float one
compile floatrun --out OUT
    found a float one; quantize it first: samebits quantize
compile firmware --out OUT
    expected a network, found firmware; give the model it was compiled from
compile quantized --out OUT --target fpga
    --target: expected one of c, npu, found 'fpga'
compile quantized --out OUT --native-dim 32
    --native-dim does not apply to --target c, found 32; leave it out, or give --target npu
compile quantized --out OUT --requantize
    --requantize does not apply to --target c
compile quantized --out OUT --steps 3
    --steps does not apply to --target c, found 3; leave it out, or give --target npu
compile float --out OUT --target npu --prefix net
    --prefix does not apply to --target npu, found net; leave it out, or give --target c
compile float --out OUT --target npu --no-sizes
    --sizes does not apply to --target npu
compile float --out OUT --target npu --native-dim 4
    --native-dim: expected a whole number from 8 to 512, found '4'; see samebits compile --help
compile float --out OUT --target npu --steps 3
    expected recurrent layers for 3 steps, found none; leave the number of steps out
compile quantized --out OUT --prefix a-b --no-sizes
    expected a C identifier
compile quantized --out text --no-sizes
    expected a new or empty folder or an earlier package, found other files
compile quantized
    samebits compile: expected --out, found none; see samebits compile --help
"""

CHECKS = """
verify none
    no such file or folder; expected an .onnx, .pt2 or .tflite file
verify float
    expected a quantized model (QuantizeLinear and DequantizeLinear nodes), found a float one
verify quantized --backends gpu
    unknown backend 'gpu'; expected one of aarch64, c, concordant-c
verify quantized --backends torch,npu
    backend npu runs firmware, not this
verify quantized --backends training
    backend training cannot run this model
verify firmware --backends torch
    backend torch runs quantized models, not this
verify quantized --data random:0
    expected random:N with 1 <= N <= 1000000, found 'random:0'
verify quantized --data none.npz
    No such file or directory
verify quantized --data wrong
    input 'x': expected shape [N, 4] with N a multiple of 1, found [6, 5]
verify quantized --seed -1
    --seed: expected a whole number from 0 to 4294967295, found '-1'; see samebits verify --help
verify run --arch own:net
    expected the architecture
trace none --data random:1 --out OUT
    no such file or folder; expected an .onnx, .pt2 or .tflite file
trace float --data random:1 --out OUT
    expected a quantized model (QuantizeLinear and DequantizeLinear nodes), found a float one
trace quantized --data random:1 --out OUT --backends gpu
    unknown backend 'gpu'; expected one of aarch64, c, concordant-c
trace quantized --data random:1 --out OUT --backends npu
    backend npu runs firmware, not this
trace quantized --data nothing --out OUT
    nothing: no such file or folder; expected 'digits'
trace quantized --data random:1
    samebits trace: expected --out, found none; see samebits trace --help
audit none none
    No such file or directory
audit text text
    expected a trace in JSON, found: Expecting value
audit text
    samebits audit: expected B, found none; see samebits audit --help
audit text text text
    , found: Got unexpected extra argument(s)
inspect none
    no such file or folder; expected
inspect text
    expected
inspect broken
    not a readable ONNX file
inspect open --shape x
    --shape: expected NAME=SIZES such as x=1,3,96,96, found 'x'
inspect open --shape x=1,5
    --shape x: expected 4 for dimension 1, which the model fixes, found 5
inspect quantized --node
    expected an option of samebits inspect, found --node; did you mean --nodes?
"""

FIRMWARE = """
simulate none.nnp --data samples --out OUT
    expected a file, found no such file; give the path of a .nnp file
simulate quantized --data samples --out OUT
    expected a .nnp file, found '.onnx'
simulate firmware --data none.npz --out OUT
    No such file or directory
simulate firmware --data text --out OUT
    not a readable .npz archive
simulate firmware --data wrong --out OUT
    input 'x': expected shape [10, 16], or a batch [B, 10, 16], found [6, 5]
simulate firmware --data samples
    samebits simulate: expected --out, found none; see samebits simulate --help
concord none.nnp --to torch --out OUT.py
    expected a file, found no such file; give the path of a .nnp file
concord quantized --to torch --out OUT.py
    expected a .nnp file, found '.onnx'
concord firmware --to java --out OUT.py
    expected one of torch, onnx, tensorflow, c to translate to, found 'java'
concord firmware --to torch --out OUT.onnx
    expected a file name that ends in .py for torch, found .onnx
concord firmware --out OUT.py
    samebits concord: expected --to, found none; see samebits concord --help
"""

TRAIN = """
train --data none --arch mlp --out OUT
    no such file or folder; expected 'digits', a folder of images or WAV audio
train --data text --arch mlp --out OUT
    found a file ending in nothing
train --data data --arch resnet9 --out OUT
    unknown architecture 'resnet9'; expected one of mlp, cnn,
train --data data --arch none.py:net --out OUT
    no such file
train --data data --arch own:NUMBER --out OUT
    , found int
train --data data --arch mlp
    samebits train: expected --out, found none; see samebits train --help
train --data data --arch mlp --out OUT --epochs 0
    --epochs: expected a whole number from 1, found '0'; see samebits train --help
train --data data --arch mlp --out OUT --epochs
    --epochs: expected a value, found none; see samebits COMMAND --help
train --data data --arch mlp --out OUT --resume=yes
    --resume: expected no value, found one; see samebits COMMAND --help
train --data data --arch mlp --out OUT --lr fast
    --lr: expected a number in [0, inf), found 'fast'; see samebits train --help
train --data data --arch mlp --out OUT --lr nan
    --lr: expected a number in [0, inf), found 'nan'; see samebits train --help
train --data data --arch mlp --out OUT --batch 128
    expected at least one batch of 128 training images, found 96
train --data data --arch mlp --out OUT --batch 4 --shards 8
    found a batch of 4 for 8 shards; raise --batch or lower --shards
train --data data --arch mlp --out OUT --numerics int4
    --numerics: expected one of bfp, float32, found 'int4'
train --data data --arch mlp --out OUT --augment blur
    expected none, or a list of flip, crop:PIXELS and zoom:PERCENT
train --data data --arch mlp --out OUT --gradient-bits 8
    expected gradient bits 32, or 16 for numerics bfp, found 8
train --data data --arch mlp --out OUT --label-smoothing 2
    --label-smoothing: expected a number in [0, 1], found '2'
train --data data --arch mlp --out OUT --clip-norm 0
    --clip-norm: expected a number in (0, inf), found '0'
train --data data --arch mlp --out OUT --clip-value nan
    --clip-value: expected a number in (0, inf), found 'nan'
train --data data --arch mlp --out OUT --ema 1
    --ema: expected a number in (0, 1), found '1'
train --data data --arch mlp --out OUT --init none.safetensors
    none.safetensors: no such file or folder
train --data data --arch mlp --out OUT --init text
    text: expected a training folder or a .safetensors file of weights
train --data data --arch mlp --out OUT --device tpu
    expected --device among cpu, cuda, found 'tpu'
train --data data --arch mlp --out OUT --plan none.json
    expected none, auto or a file written by samebits plan
train --data data --arch mlp --out OUT --plan text
    write one with samebits plan
train --data data --arch mlp --out OUT --plan none --memory-budget 3M
    --memory-budget needs --plan auto
train --data data --arch mlp --out OUT --memory-budget lots
    --memory-budget: expected a number of bytes such as 3000000, 3M or 1.5G, or a share
train --data data --arch mlp --out OUT --plan-device server-gpu
    --plan-device needs --plan auto, found
train --data data --arch mlp --out OUT --plan auto --plan-device abacus
    abacus: no such device
train --data data --arch mlp --out OUT --backward paired
    --backward paired needs a plan, found --plan none
train --data data --arch mlp --out text
    cannot be created
train --data data --arch mlp --out run
    already holds a training run (config.json); give --resume to continue it, or another --out
"""

OTHERS = """
doctor --fast
    expected an option of samebits doctor, found --fast; see samebits doctor --help
eval none --data digits
    no such file or folder; expected an .onnx, .pt2 or .tflite file
eval samples --data digits
    a checkpoint or a compiled folder, found arrays without a network
eval images --data none
    no such file or folder; expected 'digits'
eval images --data data
    images [1, 6, 6] do not fit the model
eval images --data digits --device cuda
    expected --device cpu for an exported model, found cuda
eval run --data digits --arch cnn
    expected the architecture 'cnn', found 'mlp'
eval run --data digits --device tpu
    expected --device among cpu, cuda, found 'tpu'
eval run
    samebits eval: expected --data, found none; see samebits eval --help
plan --arch resnet9 --batch 8
    unknown architecture 'resnet9'; expected one of mlp, cnn,
plan --arch mlp --batch 8 --input 1,x
    --input: expected sizes such as 3,32,32, found '1,x'
plan --arch mlp --batch 8 --memory-budget lots
    --memory-budget: expected a number of bytes such as 3000000, 3M or 1.5G, or a share
plan --arch mlp --batch 8 --input 1,6,6 --memory-budget 1
    --memory-budget: expected at least
plan --arch mlp --batch 8 --plan-device abacus
    abacus: no such device
plan --arch mlp --batch 8 --plan-device text
    not a TOML file
plan --arch mlp --batch 8 --backward sideways
    --backward: expected one of sequential, paired, found 'sideways'
plan --arch mlp --batch 8 --numerics int4
    --numerics: expected one of bfp, float32, found 'int4'
device --threads 0
    --threads: expected a whole number from 1, found '0'; see samebits device --help
demo --fast
    expected an option of samebits demo, found --fast; see samebits demo --help
quantise
    found: No such command 'quantise'
--fast
    expected an option of samebits, found --fast; see samebits --help
"""


def cases():
    """Commands with their messages."""
    lines = "".join((QUANTIZE, COMPILE, CHECKS, FIRMWARE, TRAIN, OTHERS)).splitlines()
    found = [line for line in lines if line]
    return list(zip(found[::2], (message.strip() for message in found[1::2]), strict=True))


def meant(word, shelf, out):
    """A word of a case: the path of something on the shelf, perhaps with more, or OUT."""
    name = word.partition(".")[0].partition(":")[0]
    path = str(out) if name == "OUT" else str(shelf.get(name, name))
    return path + word[len(name) :]


def test_there_are_enough():
    assert len(cases()) >= 60
    assert {command.split()[0] for command, _ in cases()} >= {
        *("audit", "compile", "concord", "demo", "device", "doctor", "eval", "inspect", "plan"),
        *("quantize", "ship", "simulate", "trace", "train", "verify"),
    }


@pytest.mark.parametrize(("command", "message"), cases(), ids=[command for command, _ in cases()])
def test_a_wrong_invocation_is_one_sentence(samebits, shelf, tmp_path, command, message):
    done = samebits(*(meant(word, shelf, tmp_path / "out") for word in command.split()))
    assert (done.code, done.out) == (2, ""), done
    lines = [line for line in done.err.splitlines() if not line.startswith("note: ")]
    assert len(lines) == 1, done.err
    assert lines[0].startswith("error: ")
    assert message in lines[0]
    assert "Traceback" not in done.err
    assert not list(tmp_path.iterdir())
