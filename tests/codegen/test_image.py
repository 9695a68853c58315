"""Weights as an image beside the code: taken by the code of another training, and refused."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import samebits as sb
from c_files import write_files
from integer_graphs import inputs_of, operator_graphs, random_network
from samebits.codegen.image import HEAD, WeightImage, sealed
from samebits.codegen.packaging.package import package
from samebits.codegen.run.execute import build, execute
from samebits.codegen.run.interface import Interface
from samebits.codegen.run.targets import TARGETS
from samebits.errors import InputError
from samebits.ir.graph import Graph
from samebits.ir.interpreter import run
from samebits.recipes.deployment import PROJECTS
from samebits.reports.summary import summary_record
from shared_kernels import compile_c, shared_kernels
from step_graphs import GRAPHS

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
