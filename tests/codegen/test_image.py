"""Weights as an image beside the code: taken by the code of another training, and refused."""

from __future__ import annotations

import json
import shutil
import subprocess
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import samebits as sb
from c_files import write_files
from integer_graphs import inputs_of, operator_graphs, random_network
from samebits.codegen.image import (
    HASHED,
    HEAD,
    LARGEST,
    TRAINED,
    WeightImage,
    read_head,
    sealed,
)
from samebits.codegen.image import _members as members
from samebits.codegen.image import _size as size_of
from samebits.codegen.packaging.package import package, texts
from samebits.codegen.raw import raw_of
from samebits.codegen.run.execute import build, execute
from samebits.codegen.run.interface import Interface
from samebits.codegen.run.targets import TARGETS
from samebits.codegen.stream import initial_codes
from samebits.data.arrays import from_arrays
from samebits.errors import InputError, UnsupportedError
from samebits.excerpt import Excerpt
from samebits.ir import GraphBuilder, Quantization
from samebits.ir.graph import Graph
from samebits.ir.integer.layers import fnv1a
from samebits.ir.interpreter import run
from samebits.recipes.deployment import PROJECTS
from samebits.reports.summary import summary_record
from samebits.tflite import from_bytes
from samebits.tflite.file import Scaling
from shared_kernels import compile_c, shared_kernels
from step_graphs import GRAPHS
from tflite_files import Net

OK, MISALIGNED, FOREIGN, VERSION, TRUNCATED, STRUCTURE, CORRUPT = range(7)
SANITIZED = ("-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
# An image from standard input, `shift` bytes behind an address that is a multiple of 64, of which
# `bytes` are told; then inputs, to the end: outputs. What model_init gives goes first.
PROGRAM = """
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "model.h"
static int64_t arena[(MODEL_ARENA_BYTES + 7) / 8];
static model_input0_t x[MODEL_INPUT0_SIZE];
static model_output0_t y[MODEL_OUTPUT0_SIZE];

int main(int count, char **words) {
    const uint32_t shift = (uint32_t)atoi(words[1]), there = (uint32_t)atoi(words[2]);
    const uint32_t bytes = (uint32_t)atoi(words[3]);
    uint8_t *memory = malloc(there + shift + 64), *image;
    model_t net;
    int wrong;
    (void)count;
    image = memory + (64 - (uintptr_t)memory % 64) % 64 + shift;
    if (fread(image, 1, there, stdin) != there) return 9;
    wrong = model_init(&net, arena, image, bytes);
    printf("%d\\n", wrong);
    if (!wrong) {
        printf("%d %s %s\\n", model_selftest(&net, x, y), MODEL_MODEL_NAME(&net),
               MODEL_MODEL_VERSION(&net));
        fflush(stdout);
        while (fread(x, sizeof x[0], MODEL_INPUT0_SIZE, stdin) == MODEL_INPUT0_SIZE) {
            model_run(&net, x, y);
            fwrite(y, sizeof y[0], MODEL_OUTPUT0_SIZE, stdout);
        }
    }
    free(memory);
    return 0;
}
"""

# Structs of parameters without numbers that follow from weights and scales. How many branches trees
# have, and of what types, is their shape; sampling is of a program around the model.
UNTRAINED = {
    *("linear_sums", "rolled", "shape", "requantize", "table", "argmax", "top_k", "copy"),
    *("gather", "take", "scatter", "trees", "sampling"),
}


def trained(seed: int, width: int = 8, version: str = "") -> sb.Network:
    """A network with other weights, scales and zero points for every seed."""
    torch.manual_seed(seed)
    made = nn.Sequential(
        *(nn.Conv2d(1, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(width, width, 3, groups=width), nn.SiLU(), nn.Conv2d(width, 6, 1)),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 5)),
    ).eval()
    net = sb.quantize(made, torch.randn(32, 1, 8, 8) * (1 + seed) + seed)
    return net.with_contract({"name": "shapes", "version": version or f"1.{seed}"})


@pytest.fixture(scope="module")
def nets() -> list[sb.Network]:
    return [trained(0), trained(1)]


@pytest.fixture(scope="module")
def made(nets: list[sb.Network], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folders 0 and 1 of both networks, and the program `check` on the code of the first."""
    folder = tmp_path_factory.mktemp("image")
    for seed, net in enumerate(nets):
        net.compile(folder / str(seed), sb.Packaging(weights_file=True))
    code = folder / "0"
    (code / "check.c").write_text(PROGRAM)
    sources = ["check.c", "model.c", "samebits/samebits_kernels.c"]  # without model_image.c
    compile_c("cc", code, sources, "check", "-I.", "-D_POSIX_C_SOURCE=1", *SANITIZED)
    return folder


def told(made: Path, image: bytes, shift: int = 0, bytes_: int | None = None, more: bytes = b""):
    """What `model_init` gives, and what the program writes after it."""
    size = len(image) if bytes_ is None else bytes_
    done = subprocess.run(
        [made / "0/check", str(shift), str(len(image)), str(size)],
        input=image + more,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()[:3000]
    status, _, rest = done.stdout.partition(b"\n")
    return int(status), rest


def test_two_trainings_have_one_code(nets: list[sb.Network], made: Path) -> None:
    for name in ("model.h", "model.c"):
        assert (made / "0" / name).read_bytes() == (made / "1" / name).read_bytes()
    graphs = [net.model.integer for net in nets]
    scales = [graph.values[graph.outputs[0]].quantization for graph in graphs]
    assert scales[0] != scales[1]
    assert not (made / "0/model_constants.c").exists()


@pytest.mark.parametrize("shift", [0, 8, 24])
@pytest.mark.parametrize("seed", [0, 1])
def test_code_runs_either_image_in_place(
    nets: list[sb.Network], made: Path, seed: int, shift: int
) -> None:
    """The code of network 0 with the image of another: its codes, its self-test, its version."""
    graph = nets[seed].model.integer
    inputs = [codes for n in range(20) for codes in inputs_of(graph, n)]
    wanted = [run(graph, [each])[0] for each in inputs]
    image = (made / str(seed) / "model.weights").read_bytes()
    status, rest = told(made, image, shift, more=b"".join(each.tobytes() for each in inputs))
    head, _, codes = rest.partition(b"\n")
    assert (status, head) == (OK, f"0 shapes 1.{seed}".encode())
    assert codes == b"".join(each.tobytes() for each in wanted)


def test_an_image_that_does_not_fit_is_refused(made: Path, tmp_path: Path) -> None:
    image = (made / "1/model.weights").read_bytes()
    assert told(made, image, 4)[0] == MISALIGNED
    assert told(made, image, 1)[0] == MISALIGNED
    assert told(made, b"SAMEBITS" + image[8:])[0] == FOREIGN
    assert told(made, bytes(len(image)))[0] == FOREIGN
    assert told(made, image[:16] + b"\2" + image[17:])[0] == VERSION
    for size in (0, 8, HEAD.size - 1, HEAD.size, len(image) - 1):
        assert told(made, image[:size])[0] == TRUNCATED
    assert told(made, image + bytes(64))[0] == OK  # the memory may be larger
    trained(0, width=9).compile(tmp_path / "wide", weights_file=True)
    assert told(made, (tmp_path / "wide/model.weights").read_bytes())[0] == STRUCTURE
    trained(0).compile(tmp_path / "cpu", weights_file=True, cpu="cortex-m4")
    assert told(made, (tmp_path / "cpu/model.weights").read_bytes())[0] == STRUCTURE


def test_every_changed_byte_is_seen(made: Path) -> None:
    image = (made / "1/model.weights").read_bytes()
    body = range(HEAD.size, len(image))
    for at in [*range(HEAD.size), *body[:: max(1, len(image) // 150)], len(image) - 1]:
        damaged = bytearray(image)
        damaged[at] ^= 1 << at % 8
        status = told(made, bytes(damaged))[0]
        assert status == CORRUPT if at >= HEAD.size else status != OK, at


def test_folders_are_verified(made: Path, nets: list[sb.Network], tmp_path: Path) -> None:
    """Every file is what this version writes again, the image too; a changed one is named."""
    nets[0].compile(tmp_path / "c", weights_file=True)
    assert sb.load(tmp_path / "c").verify("random:20", ["torch", "c"])
    sb.load(tmp_path / "c").compile(tmp_path / "d", weights_file=True)
    image = tmp_path / "c/model.weights"
    assert image.read_bytes() == (tmp_path / "d/model.weights").read_bytes()
    image.write_bytes((made / "1/model.weights").read_bytes())
    found = sb.load(tmp_path / "c").verify("random:20", ["c"])
    assert not found
    assert "model.weights" in found.refused


def test_a_board_takes_the_image_of_another_training(
    nets: list[sb.Network], tmp_path: Path
) -> None:
    """On an emulated Cortex-M3: code of the first network, linked with the image of the second."""
    board = TARGETS["cortex-m3"]
    if board.unavailable() is not None:
        pytest.skip(str(board.unavailable()))
    code, other = (package(net.model.integer, cpu=board.cpu, weights_file=True) for net in nets)
    files = {**code.sources, "model_image.c": other.sources["model_image.c"]}
    assert files["model_image.c"] != code.sources["model_image.c"]
    write_files(tmp_path / "package", files)
    graph = nets[1].model.integer
    program = build(tmp_path / "package", board, tmp_path / "build", Interface.of(graph))
    inputs = [codes for n in range(4) for codes in inputs_of(graph, n)]
    (found,) = execute(program, [np.concatenate(inputs)])
    wanted = np.concatenate([run(graph, [each])[0] for each in inputs])
    assert np.array_equal(found, wanted)
    needs = nets[0].compile(tmp_path / "c", weights_file=True, sizes=True)
    measured = {each.target: each for each in needs.targets}["cortex-m3"]
    assert measured.stack <= needs.memory.stack_cortex_m


def test_inspect_shows_the_head_of_an_image(made: Path, tmp_path: Path) -> None:
    image = made / "1/model.weights"
    record = summary_record(image)
    report = json.loads((made / "0/report.json").read_text())
    assert record["structure"] == report["structure"]
    assert (record["name"], record["version"]) == ("shapes", "1.1")
    assert record["bytes"] == image.stat().st_size == report["weights"] + report["tables"]
    assert f"structure {report['structure']}" in str(sb.inspect(image))
    for data, words in (
        (b"", "begins with samebits, found 0 bytes"),
        (image.read_bytes()[:-1], "it is damaged"),
        (image.read_bytes()[:-1] + b"x", "it is damaged"),
        (image.read_bytes()[:16] + b"\7" + image.read_bytes()[17:], "expected format 1"),
    ):
        (tmp_path / "x.weights").write_bytes(data)
        with pytest.raises(InputError, match=words):
            sb.inspect(tmp_path / "x.weights")


def test_two_names_of_one_kind_and_other_words() -> None:
    """The structure is that of the texts: any other word is another structure."""
    texts, first = sealed({"a": "x @structure@", "b": "y"})
    assert texts["a"] == f"x {first:016x}"
    assert sealed({"a": "x @structure@", "b": "z"})[1] != first


def test_equal_arrays_lie_in_an_image_once() -> None:
    image, array = WeightImage("m"), np.arange(100, dtype=np.int8)
    image.name(array)
    size = len(image.encoded(0, "", ""))
    again = WeightImage("m")
    for _ in range(3):
        again.name(array)
    assert len(again.encoded(0, "", "")) - size <= 16
    assert image.encoded(1, "a", "b")[HEAD.size :] != image.encoded(1, "a", "c")[HEAD.size :]


@pytest.mark.parametrize("project", PROJECTS)
def test_every_kind_of_package_carries_an_image(
    nets: list[sb.Network], project: str, tmp_path: Path
) -> None:
    nets[0].compile(tmp_path / "p", weights_file=True, package=project)
    names = {path.name for path in (tmp_path / "p").rglob("*")}
    assert {"model.weights", "model_image.c", "samebits_image.h"} <= names
    assert sb.load(tmp_path / "p").verify("random:3", ["c"])


def test_options_without_an_image_refuse_it(nets: list[sb.Network], tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = sb.load(nn.Sequential(nn.Linear(4, 3)), example=torch.rand(1, 4))
    with pytest.raises(InputError, match="--weights-file does not apply to --target npu"):
        net.compile(tmp_path / "n.nnp", target="npu", weights_file=True)


def test_machines_of_the_other_byte_order_are_refused(cc: str, made: Path) -> None:
    big = ("-U__BYTE_ORDER__", "-D__BYTE_ORDER__=__ORDER_BIG_ENDIAN__")
    command = [cc, "-std=c99", *big, "-I.", "-c", "model.c", "-o", "big.o"]
    done = subprocess.run(command, cwd=made / "0", capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "an image of weights is little-endian" in done.stderr


def test_a_debug_build_checks_what_it_is_given(cc: str, made: Path) -> None:
    code = made / "0"
    program = PROGRAM.replace("&net, arena, image", "&net, shift ? arena : 0, image")
    (code / "debug.c").write_text(program)
    sources = ["debug.c", "model.c", "samebits/samebits_kernels.c"]
    compile_c(cc, code, sources, "debug", "-I.", "-O1", "-DSAMEBITS_DEBUG")
    image = (code / "model.weights").read_bytes()
    done = subprocess.run(
        [code / "debug", "0", str(len(image)), str(len(image))],
        input=image,
        capture_output=True,
        check=False,
    )
    assert done.returncode == -6
    assert b"arena is null" in done.stderr


def cases() -> list[tuple[str, Graph]]:
    networks = [(f"random {seed}", random_network(seed)) for seed in range(6)]
    return [*operator_graphs(), *networks]


@pytest.mark.parametrize("cpu", ["portable", "cortex-m3", "cortex-m4", "cortex-m55"])
def test_every_kernel_takes_its_parameters_of_an_image(same_in_c: Any, cpu: str) -> None:
    """All operators, layer by layer, as the interpreter has them."""
    graphs = [graph for _, graph in cases()]
    same_in_c(graphs, cpu=cpu, samples=2, weights_file=True)


@pytest.mark.parametrize("name", GRAPHS)
def test_steps_take_their_parameters_of_an_image(
    cc: str, name: str, tmp_path: Path, objects: Path
) -> None:
    """model_step and model_steps, in blocks too, by the package's own test."""
    made = package(GRAPHS[name], weights_file=True)
    write_files(tmp_path, made.sources)
    kernels = shared_kernels(cc, tmp_path, objects, "portable", "-O1")
    sources = ["model.c", "model_image.c", "test/model_main.c", kernels]
    for blocks in (0, 1):
        flags = ("-I.", "-O1", "-DSAMEBITS_TEST", f"-DSAMEBITS_BLOCKS={blocks}")
        compile_c(cc, tmp_path, sources, "test_steps", *flags)
        done = subprocess.run([tmp_path / "test_steps"], capture_output=True, text=True)
        assert done.stdout.startswith("0 of "), done.stdout


# --- what is of the structure, and what is of the image -------------------------------------------


class Recurrent(nn.Module):
    """The last output of a recurrent layer, classified."""

    def __init__(self, kind: type[nn.Module]) -> None:
        super().__init__()
        self.layer = kind(4, 5, batch_first=True)
        self.head = nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layer(x)[0][:, -1])


def sequences(kind: type[nn.Module], seed: int) -> Graph:
    torch.manual_seed(seed)
    net = sb.quantize(Recurrent(kind), torch.randn(16, 6, 4) * (1 + seed) + seed)
    return net.model.integer


OTHER_STATE = """
#include <stdio.h>
#include "model.h"
extern const uint64_t second[];
static model_state_t state;
static int64_t arena[(MODEL_ARENA_BYTES + 7) / 8];
static model_input0_t x[MODEL_INPUT0_SIZE];
static model_output0_t y[MODEL_OUTPUT0_SIZE];
MODEL_INSTANCE(net);

int main(void) {
    model_t other;
    if (model_init(&other, arena, second, 1u << 30)) return 3;
    model_reset(&other, &state);
    model_step(&other, &state, x, y);
    model_step(&net, &state, x, y);
    return 0;
}
"""


@pytest.mark.parametrize("kind", [nn.RNN, nn.GRU])
def test_two_trainings_with_states_have_one_code(
    cc: str, kind: type[nn.Module], tmp_path: Path
) -> None:
    """Initial codes are the image's, and so is the mark of a state in a debug build."""
    graphs = [sequences(kind, seed) for seed in (0, 1)]
    first, second = (package(graph, weights_file=True).sources for graph in graphs)
    assert first["model.c"] == second["model.c"]
    assert first["model.h"] == second["model.h"]
    zeros = [[int(codes[0]) for codes in initial_codes(graph)] for graph in graphs]
    assert kind is nn.RNN or zeros[0] != zeros[1]
    files = {**second, "model.c": first["model.c"], "model.h": first["model.h"]}
    image = second["model_image.c"].decode()
    name = image.partition("const uint64_t MODEL_WEIGHTS ")[2].partition("[")[0]
    files["second.c"] = image.replace(name, "second").encode()
    files["first.c"], files["other.c"] = first["model_image.c"], OTHER_STATE.encode()
    write_files(tmp_path, files)
    common = ["model.c", "samebits/samebits_kernels.c"]
    flags = ("-I.", "-O1", "-DSAMEBITS_DEBUG")
    tested = [*common, "model_image.c", "test/model_main.c"]
    compile_c(cc, tmp_path, tested, "run", "-DSAMEBITS_TEST", *flags)
    done = subprocess.run([tmp_path / "run"], capture_output=True, text=True, check=False)
    assert done.stdout.startswith("0 of "), done
    compile_c(cc, tmp_path, [*common, "first.c", "second.c", "other.c"], "other", *flags)
    done = subprocess.run([tmp_path / "other"], capture_output=True, text=True, check=False)
    assert done.returncode == -6
    assert "state was not written by model_reset" in done.stderr


@pytest.mark.parametrize("op", ["TANH", "LOGISTIC"])
def test_straight_lines_of_two_scales_have_one_structure(op: str) -> None:
    found = set()
    for scale in (0.0003, 0.0004, 0.0005):
        net = Net(1, "int16")
        x = net.tensor((1, 8), quantization=Scaling((float(np.float32(scale)),), (0,)))
        y = net.tensor((1, 8), quantization=Scaling((1 / 32768,), (0,)))
        net.inputs.append(x)
        net.add(op, [x], y)
        graph = from_bytes(net.bytes(y), "f", Excerpt(meaning="tflite")).graph
        files, report = texts(graph, weights_file=True)
        assert "samebits_run_lines" in str(files["model.c"])
        found.add(report.structure)
    assert len(found) == 1


def test_every_struct_of_parameters_is_classed() -> None:
    """Each has trained numbers, all of them members of it, or is stated to have none."""
    assert set(members()) == set(TRAINED) | UNTRAINED
    assert not set(TRAINED) & UNTRAINED
    for struct, names in TRAINED.items():
        assert set(names) <= set(members()[struct]), struct


def test_targets_of_another_spread_have_one_structure() -> None:
    """The places of a regression's values are the image's."""
    places, structures = [], set()
    for seed, spread in enumerate((1.0, 5000.0)):
        torch.manual_seed(seed)
        rows = torch.randn(40, 2) * (1 + seed)
        data = from_arrays([rows.numpy()], [rows.sum(1).numpy()])
        net = sb.quantize(nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1)), data)
        meaning = {"name": net.outputs[0].name, "rule": "regression"}
        meaning |= {"scales": [{"centre": 0.5, "spread": spread}]}
        net = net.with_contract({"outputs": [meaning]})
        graph, contract = net.model.integer, net.contract
        files, report = texts(graph, contract=contract, weights_file=True)
        assert "#define MODEL_VALUE_BITS(net)" in str(files["model.h"])
        places.append(raw_of(graph, contract).known_scales[0][2])
        structures.add(report.structure)
    assert places[0] != places[1]
    assert len(structures) == 1


# --- the stack ------------------------------------------------------------------------------------


def sum_of_many() -> Graph:
    """An addition of 16 inputs, whose parameters are the longest that there are."""
    g = GraphBuilder("sums")
    inputs = [g.input(f"x{i}", "int8", (2, 3), Quantization(Fraction(1, 8), i)) for i in range(16)]
    total = g.add("add", inputs, {"factors": tuple(range(1, 17)), "offset": 3})
    stored = {"ratios": (Fraction(1, 37),), "zero": 0, "low": -128, "high": 127, "dtype": "int8"}
    return g.build([g.add("requantize", [total], stored)])


def test_the_stack_of_parameters_has_a_bound(tmp_path: Path) -> None:
    """Measured by the compiler at every level, of the functions that an image adds to."""
    compiler = shutil.which("arm-none-eabi-gcc")
    if compiler is None:
        pytest.skip("expected arm-none-eabi-gcc, found none")
    made = {}
    for image in (False, True):
        made[image] = package(sum_of_many(), weights_file=image)
        write_files(tmp_path / str(image), made[image].sources)
    added = made[True].report.stack_cortex_m - made[False].report.stack_cortex_m
    assert added > 960
    for level in ("-O0", "-O1", "-O2", "-O3", "-Os"):
        used = []
        for image in (False, True):
            command = [compiler, "-mcpu=cortex-m3", "-mthumb", level, "-std=c99", "-I."]
            command += ["-fstack-usage", "-c", "model.c", "-o", "model.o"]
            subprocess.run(command, cwd=tmp_path / str(image), check=True)
            lines = (tmp_path / str(image) / "model.su").read_text().splitlines()
            sizes = {line.split("\t")[0].split(":")[-1]: int(line.split("\t")[1]) for line in lines}
            filling = sizes.get("model_p0", 0) if image else 0
            filling += max(sizes.get(f"samebits_image_{of}", 0) for of in ("number", "array"))
            used.append(sizes["model_run"] + filling)
        assert used[1] - used[0] <= added, level


def test_sizes_of_parameters_are_those_of_the_compiler(tmp_path: Path) -> None:
    compiler = shutil.which("arm-none-eabi-gcc")
    if compiler is None:
        pytest.skip("expected arm-none-eabi-gcc, found none")
    write_files(tmp_path, package(sum_of_many()).sources)
    lines = ['#include "samebits/samebits_kernels.h"']
    for struct in members():
        size = size_of(struct)[0]
        lines.append(f"typedef char of_{struct}[sizeof(samebits_{struct}) == {size} ? 1 : -1];")
    (tmp_path / "sizes.c").write_text("\n".join(lines) + "\n")
    command = [compiler, "-mcpu=cortex-m3", "-mthumb", "-std=c99", "-I.", "-fsyntax-only"]
    done = subprocess.run([*command, "sizes.c"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


# --- images that were not made here ---------------------------------------------------------------


def hashed(image: bytes, **changed: int) -> bytes:
    """An image with other fields in its head, and the hash that it then has."""
    keys = ("magic", "content", "format", "size", "structure", "numbers", "arrays", "name")
    fields = dict(zip((*keys, "version"), HEAD.unpack_from(image), strict=True)) | changed
    data = HEAD.pack(*fields.values()) + image[HEAD.size :]
    content = fnv1a(np.frombuffer(data[HASHED : fields["size"]], np.uint8))
    return HEAD.pack(*(fields | {"content": content}).values()) + image[HEAD.size :]


def test_an_image_that_leads_out_of_itself_is_refused(made: Path) -> None:
    """With the right hash: offsets of its parts, of arrays, and texts without an end."""
    image = (made / "1/model.weights").read_bytes()
    size = len(image)
    *_, numbers, arrays, name, version = HEAD.unpack_from(image)
    assert hashed(image) == image
    for key, wrong in (
        ("numbers", (0, numbers + 8, size, 2**32 - 8)),
        ("arrays", (0, numbers - 8, arrays + 4, size, 2**32 - 8)),
        ("name", (0, arrays - 4, version, size, 2**32 - 8)),
        ("version", (0, name, version + 1, size, 2**32 - 1)),
    ):
        for at in wrong:
            assert told(made, hashed(image, **{key: at}))[0] == CORRUPT, (key, at)
    for at in (size, 2**31, 2**32 - 8, 4):
        evil = image[:arrays] + at.to_bytes(4, "little") + image[arrays + 4 :]
        assert told(made, hashed(evil))[0] == CORRUPT, at
    endless = image[:version] + b"x" * (size - version)
    assert told(made, hashed(endless))[0] == CORRUPT
    joined = image[: version - 1] + b"x" + image[version:]
    assert told(made, hashed(joined))[0] == CORRUPT


def test_sizes_that_no_image_has_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    array = np.arange(100, dtype=np.int8)
    image = WeightImage("m")
    image.name(array)
    data = image.encoded(1, "a", "b")
    assert read_head(data, "x")["bytes"] == len(data) < LARGEST
    for size in (0, 10, HEAD.size - 1, len(data) + 1, 2**32 - 1):
        with pytest.raises(InputError, match=f"expected the {size} bytes that its head states"):
            read_head(hashed(data, size=size), "x")
    monkeypatch.setattr("samebits.codegen.image.LARGEST", len(data) - 1)
    with pytest.raises(UnsupportedError, match="expected an image of at most"):
        image.encoded(1, "a", "b")


def test_inspect_of_a_folder_shows_the_structure(made: Path) -> None:
    report = json.loads((made / "0/report.json").read_text())
    assert f"structure {report['structure']}" in str(sb.inspect(made / "0"))
