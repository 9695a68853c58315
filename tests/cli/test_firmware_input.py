"""Bad programs, memory images and inputs: exit code 2, the line, and nothing written.

And what a translator of untrusted text must not do: run it, or let it into the code it writes.
"""

from __future__ import annotations

import ast
import io
import pickle
import re
import tokenize
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from safetensors.numpy import save_file

from compare import assert_same
from samebits.npu.concord import source
from samebits.npu.concord.dataflow import data_flow
from samebits.npu.concord.source import module_text
from samebits.npu.concord.translate import SUFFIXES, load_concordant, translate
from samebits.npu.machine.image import read_program
from samebits.npu.simulator.simulate import simulate

PROGRAM = """\
.native 8
.depth ivrf 4
.depth asvrf0 2
.depth mrf 2
;! input x 2x8
;! output y 2x8
;! tensor w mrf 0 8x8
;! tensor b asvrf0 0 8
loop 2
    v_rd netq
    mv_mul 0
    vv_add asvrf0, 0
    v_wr netq
    end_chain
end_loop
"""
W = np.random.default_rng(0).standard_normal((8, 8)).astype(np.float16)
B = np.arange(8, dtype=np.float16)
TENSORS = {"mrf/w": W, "asvrf0/b": B}
SECRET = "Zq7_secret"


@pytest.fixture
def firmware(tmp_path):
    """Writes net.nnp and net.safetensors."""

    def write(text=PROGRAM, tensors=TENSORS, name="net"):
        path = tmp_path / f"{name}.nnp"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        save_file(tensors, path.with_suffix(".safetensors"))
        return path

    return write


@pytest.fixture
def inputs(tmp_path):
    path = tmp_path / "x.npz"
    np.savez(path, x=np.linspace(-2, 2, 16).reshape(2, 8))
    return path


def refused(outcome, *parts):
    """Exit code 2 with one line of ASCII that holds these parts."""
    assert outcome.code == 2, outcome
    assert outcome.out == ""
    assert re.fullmatch(r"error: [ -~]+\n", outcome.err), outcome.err
    for part in parts:
        assert part in outcome.err


def both_refuse(samebits, path, inputs, *parts):
    """`simulate` and `concord` of every kind; the same message, and no file."""
    before = set(path.parent.iterdir())
    out = path.parent / "out"
    found = samebits("simulate", path, "--data", inputs, "--out", out / "y.npz")
    refused(found, *parts)
    for kind, suffix in SUFFIXES.items():
        again = samebits("concord", path, "--to", kind, "--out", out / f"model{suffix}")
        assert again == found
    assert set(path.parent.iterdir()) == before


# --- programs ---------------------------------------------------------------------------------

MALFORMED = [
    ("    mv_mul 0", "    mv_mul -1", "net.nnp:11:12: expected an address"),
    ("    mv_mul 0", "    mv_mull 0", "net.nnp:11:5: expected an instruction, found 'mv_mull'"),
    ("    v_wr netq", "    v_wr netq, 0", "net.nnp:13:14: expected the end of v_wr, found ','"),
    ("    v_wr netq", "    v_wr nowhere", "net.nnp:13:10: expected a memory"),
    (".native 8", ".native 7", "net.nnp:1:9: expected a native dimension from 8 to 512"),
    (".native 8", ".naïve 8", r"net.nnp:1:1: expected a directive (.native, .mantissa, .depth"),
    (".native 8", ".naïve 8", r"found '.na\xefve'"),
    (".native 8\n", "", "net.nnp:1: expected the directive .native, found none"),
    (".depth ivrf 4", ".depth ivrf 99999999", "net.nnp:2:13: expected a depth from 1 to 1048576"),
    ("loop 2", "loop 0", "net.nnp:9:6: expected a count from 1"),
    ("loop 2", "loop 99999999999999999999", "net.nnp:9:6: expected a count"),
    ("end_loop", "", "net.nnp:14: expected end_loop of the loop of line 9"),
    ("    end_chain", "", "net.nnp:15: expected the rest of the chain of line 10"),
    ("asvrf0, 0\n", "asvrf0, 1\n", "net.nnp:12: expected asvrf0 1 to be written before it is "),
    ("    mv_mul 0", "    mv_mul 2", "net.nnp:10: expected addresses of mrf from 0 to 1, found 2"),
    ("v_rd netq", "v_rd dram, 0", "net.nnp:10: expected the depth of dram, found none"),
    # hints that contradict the instructions
    ("x 2x8", "x 3x8", "net.nnp:5: expected 3 vectors of netq to be read, as the input hints say "
     "(3 of x), found 2"),
    ("x 2x8", "x 8", "net.nnp:10: expected 1 vectors of netq to be read"),
    ("y 2x8", "y 2x9", "net.nnp:6: expected 4 vectors of netq to be written"),
    (";! output y 2x8", ";", "net.nnp:13: expected 0 vectors of netq to be written"),
    ("w mrf 0 8x8", "w mrf 2 8x8", "net.nnp:7: memory image: expected addresses of mrf below its "
     "depth 2, found 2; raise .depth mrf"),
    ("w mrf 0 8x8", "w mrf 0 9x8", "tensor 'mrf/w': expected shape [9, 8] as in line 7 of net.nnp"),
    ("w mrf 0 8x8", "w mrf 0", "net.nnp:7:18: expected a shape OxI or OxIxHxW, found the end of"),
    ("w mrf 0 8x8", "w mrf 0 8x8x8", "net.nnp:7:19: expected a shape OxI or OxIxHxW, found '8x8x"),
    (";! input x", ";! inputs x", "net.nnp:5:4: expected a hint (input, output, tensor)"),
    # loops without end
    ("loop 2", "s_wr iterations, 4000000\nloop 4000000", "net.nnp:10: expected at most 100000000 "
     "executed iterations, found 16000000000000, most of them here"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "message"), MALFORMED)
def test_malformed_programs(old, new, message, samebits, firmware, inputs):
    assert PROGRAM.count(old) == 1
    both_refuse(samebits, firmware(PROGRAM.replace(old, new)), inputs, message)


@pytest.mark.parametrize("data", [b"", b"\xff\xfe.\x00", b"PK\x03\x04", PROGRAM.encode()[:-12]])
def test_bytes_that_are_no_program(data, samebits, firmware, inputs):
    both_refuse(samebits, firmware(data), inputs, "net.nnp:")


def test_text_in_another_encoding_names_its_line(samebits, firmware, inputs):
    path = firmware(PROGRAM.encode() + b"; caf\xe9\n")
    both_refuse(samebits, path, inputs, "net.nnp:16: expected text in UTF-8, found byte 0xE9")


def test_no_program(samebits, tmp_path, inputs):
    for path in (tmp_path / "none.nnp", tmp_path / "x.npz"):
        outcome = samebits("concord", path, "--to", "torch", "--out", tmp_path / "m.py")
        refused(outcome, f"error: {path}: expected a")


# --- memory images and inputs -----------------------------------------------------------------

IMAGES = [
    ({"mrf/w": W[:7], "asvrf0/b": B}, "tensor 'mrf/w': expected shape [8, 8] as in line 7 of "
     "net.nnp, found [7, 8]"),
    ({"mrf/w": W, "asvrf0/b": B[None]}, "tensor 'asvrf0/b': expected shape [8] as in line 8 of "),
    ({"mrf/w": W.astype(np.float32), "asvrf0/b": B}, "expected float16, found float32"),
    ({"asvrf0/b": B}, "net.nnp:7: expected tensor w in the memory image, found no mrf 0 there"),
    ({"mrf/w": W}, "net.nnp:8: expected tensor b in the memory image, found no asvrf0 0 there"),
    (TENSORS | {"ivrf/c": B}, "expected tensors named MEMORY/NAME, as the tensor hints of net.nnp "
     "say, or MEMORY@ADDRESS, found 'ivrf/c'"),
    (TENSORS | {"ivrf@0": B}, "tensor 'ivrf@0': expected shape [count, 8], found [8]"),
    (TENSORS | {"ivrf@4": B[None]}, "net.nnp: memory image: expected addresses of ivrf below its "
     "depth 4, found 4"),
    (TENSORS | {"asvrf0@0": B[None]}, "expected every entry once, found asvrf0 0 again"),
    (TENSORS | {"\n\x1b[2J": B}, r"found '\n\x1b[2J'"),
]  # fmt: skip


@pytest.mark.parametrize(("tensors", "message"), IMAGES)
def test_memory_images_that_do_not_fit(tensors, message, samebits, firmware, inputs):
    tensors = {name: np.ascontiguousarray(array) for name, array in tensors.items()}
    both_refuse(samebits, firmware(tensors=tensors), inputs, message)


class Harmful:
    def __reduce__(self):
        return Path.touch, (Path("executed"),)


@pytest.mark.parametrize("data", [b"", b"\x00" * 9, pickle.dumps(Harmful()), b"\xff" * 64])
def test_damaged_memory_images(data, samebits, firmware, inputs, monkeypatch):
    path = firmware()
    monkeypatch.chdir(path.parent)
    path.with_suffix(".safetensors").write_bytes(data)
    both_refuse(samebits, path, inputs, "expected a safetensors file, found one that cannot be")


def simulate_inputs(samebits, path, **arrays):
    given = path.with_name("given.npz")
    np.savez(given, **arrays)
    out = path.with_name("y.npz")
    outcome = samebits("simulate", path, "--data", given, "--out", out)
    assert not out.exists()
    return outcome


def test_inputs_that_do_not_fit(samebits, firmware):
    path, x = firmware(), np.zeros((3, 2, 8))
    x[1, 0, 5] = np.nan
    message = (
        "net.nnp:5: input 'x': expected finite numbers of magnitude below 65520 (binary16), found "
        "nan at index [1, 0, 5]"
    )
    refused(simulate_inputs(samebits, path, x=x), message)
    for dtype in (np.float16, np.float32, ">f8"):
        refused(simulate_inputs(samebits, path, x=x.astype(dtype)), message)
    x = np.zeros((2, 8))
    refused(simulate_inputs(samebits, path, x=x.T), "net.nnp:5: input 'x': expected shape [2, 8]")
    refused(simulate_inputs(samebits, path, x=x.astype(int)), "net.nnp:5: input 'x': expected fl")
    refused(simulate_inputs(samebits, path, z=x), "net.nnp: expected inputs 'x', found 'z'")
    objects = np.array([Harmful()] * 16, object).reshape(2, 8)
    refused(
        simulate_inputs(samebits, path, x=objects), "array x: expected plain numbers, found object"
    )
    assert not Path("executed").exists()


# --- models to compile ------------------------------------------------------------------------


def test_models_that_are_none(samebits, tmp_path):
    path, out = tmp_path / "model.onnx", tmp_path / "out"
    for data in (b"", b"\x00" * 64, pickle.dumps(Harmful()), PROGRAM.encode()):
        path.write_bytes(data)
        refused(samebits("compile", path, "--target", "npu", "--out", out), f"error: {path}")
    refused(samebits("compile", tmp_path / "no.onnx", "--target", "npu", "--out", out), "no.onnx")
    assert not out.exists()


def test_models_that_do_not_fit_the_machine(samebits, tmp_path):
    path, out = tmp_path / "model.onnx", tmp_path / "out"
    info = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 4]) for n in ("x\n", "y")]
    node = helper.make_node("Sin", ["x\n"], ["y"], name="'); import os")
    graph = helper.make_graph([node], "g", info[:1], info[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    outcome = samebits("compile", path, "--target", "npu", "--out", out)
    assert outcome.code == 2
    assert "Sin" in outcome.err
    assert "Traceback" not in outcome.err
    assert not out.exists()
    refused(samebits("compile", path, "--target", "fpga", "--out", out), "expected one of c, npu")
    assert samebits("compile", path, "--target", "npu", "--native-dim", 4, "--out", out).code == 2


# --- hostile text -----------------------------------------------------------------------------

REFUSED = (
    *('"', "'", "\\", "a'b", 'a"""b', "a.b", "a-b", "a b", "1a", "%s", "{x}", "$(x)", "<x>", "*"),
    *("__import__('os')", "os.system('x')", "é", "\uff58", "ⅷ", "a\u0301", "\u202ex", "a\u2028b"),
    *("a\x00b", "a\rb", "a\x85b", "a\x0cb", "\ufeffx", "x" * 65, "\U0001d4cd", "x\n;! input y 2x8"),
)


@pytest.mark.parametrize("name", REFUSED, ids=ascii)
def test_names_that_are_refused(name, samebits, firmware, inputs):
    path = firmware(PROGRAM.replace("input x", f"input {name}"))
    both_refuse(samebits, path, inputs, "error: net.nnp:5:")


KEYWORDS = ("class", "import", "None", "True", "lambda", "return", "def", "global", "match", "_")
BUILTINS = ("__import__", "exec", "eval", "open", "print", "dict", "range", "float", "__class__")
OWN = (
    *("torch", "tf", "np", "nn", "Tensor", "self", "forward", "run", "Tiles", "Program", "Model"),
    *("load", "inputs", "outputs", "batch", "samples", "turn0", "quantize", "add", "join", "send"),
    *("NATIVE", "MANTISSA", "Path", "read_data", "v10", "x_v10", "w_w", "c_b", "t_tanh", "joined"),
    *("training", "register_buffer", "__init__", "__call__", "__dict__", "values", "x" * 64),
)


STRANGE = (*KEYWORDS, *BUILTINS, *OWN)


@pytest.mark.parametrize(
    "at",
    [
        pytest.param(at, id=name, marks=[] if at % 4 == 0 else pytest.mark.slow)
        for at, name in enumerate(STRANGE)
    ],
)
def test_names_that_are_strange(at, samebits, firmware, inputs):
    """Of an input, a matrix and a bias in turn: the same bits, and code of the usual shape."""
    given, matrix, bias = (STRANGE[(at + n) % len(STRANGE)] for n in range(3))
    text = PROGRAM.replace("input x ", f"input {given} ")
    text = text.replace("tensor w ", f"tensor {matrix} ").replace("tensor b ", f"tensor {bias} ")
    path = firmware(text, {f"mrf/{matrix}": W, f"asvrf0/{bias}": B})
    program, image = read_program(path)
    x = np.load(inputs)["x"]
    expected = simulate(program, image, {given: x[np.newaxis]}).outputs["y"]
    for kind in ("torch", "onnx", "c"):
        out = path.parent / kind / f"model{SUFFIXES[kind]}"
        assert samebits("concord", path, "--to", kind, "--out", out).code == 0
        found = load_concordant(out)({given: x[np.newaxis]})["y"]
        assert_same(found.view(np.uint16), expected.view(np.uint16), x)
    for kind in ("torch", "tensorflow"):
        check_shape(module_text(data_flow(program, image), kind, "model.dat"), kind)


FUNCTIONS = {"receive", "send", "join", "widen", "split", "pick", "quantize", "multiply_tiles"}
FUNCTIONS |= {"add", "subtract", "multiply", "larger", "relu", "look_up", "range", "float"}
LOCAL = re.compile(r"(x_|y_|c_|v[0-9]|s_|joined|turn[0-9])[A-Za-z0-9_]*")
ATTRIBUTE = re.compile(r"[cwit]_[A-Za-z0-9_]+")
EXPRESSION = (ast.Call, ast.Name, ast.Attribute, ast.Constant, ast.Subscript, ast.Slice, ast.Tuple)
EXPRESSION += (ast.List, ast.Starred, ast.keyword, ast.BinOp, ast.UnaryOp)
EXPRESSION += (ast.Add, ast.Mult, ast.USub, ast.Load, ast.Store)


@cache
def prelude_of(kind):
    """The statements of a runtime, without its docstring."""
    runtime = Path(source.__file__).with_name(f"runtime_{kind}.py").read_text("utf-8")
    return [ast.dump(node) for node in ast.parse(runtime).body[1:]]


def check_shape(text, kind):
    """A docstring, the runtime as it is, two numbers, the class Model and a function."""
    body = ast.parse(text).body
    prelude = prelude_of(kind)
    assert isinstance(ast.literal_eval(body[0].value), str)
    assert [ast.dump(node) for node in body[1 : 1 + len(prelude)]] == prelude
    native, mantissa, model, load = body[1 + len(prelude) :]
    for node, name in ((native, "NATIVE"), (mantissa, "MANTISSA")):
        assert node.targets[0].id == name
        assert isinstance(ast.literal_eval(node.value), int)
    assert (model.name, [base.id for base in model.bases]) == ("Model", ["Program"])
    assert (load.name, len(load.body)) == ("load", 2)
    doc, shapes, samples, run = model.body
    assert isinstance(ast.literal_eval(doc.value), str)
    assert all(name.isidentifier() for name in ast.literal_eval(shapes.value))
    assert isinstance(ast.literal_eval(samples.value), int)
    assert (run.name, [a.arg for a in run.args.args]) == ("run", ["self", "inputs", "batch"])
    doc, outputs, *statements, last = run.body
    assert isinstance(ast.literal_eval(doc.value), str)
    assert outputs.target.id == "outputs"
    assert ast.unparse(last) == "return outputs"
    for statement in statements:
        check_statement(statement)
    model_text = "\n".join(text.splitlines()[model.lineno - 1 : load.lineno - 1])
    tokens = tokenize.generate_tokens(io.StringIO(model_text).readline)
    comments = [token.string for token in tokens if token.type == tokenize.COMMENT]
    assert comments
    assert all(re.fullmatch(r"# line [0-9]+", comment) for comment in comments), comments


def check_statement(statement):
    """An assignment, `name_parts.append(name)`, or a loop over a range of them."""
    if isinstance(statement, ast.For):
        assert re.fullmatch(r"for turn[0-9] in range\([0-9]+\):", first_line(statement))
        assert not statement.orelse
        for inner in statement.body:
            check_statement(inner)
        return
    if isinstance(statement, ast.Expr):
        assert re.fullmatch(r"(\w+)_parts\.append\([\w.]+\)", ast.unparse(statement))
        assert LOCAL.fullmatch(statement.value.func.value.id)
        return
    assert isinstance(statement, ast.Assign), ast.unparse(statement)
    for node in ast.walk(statement):
        if node is not statement:
            check_expression(node, ast.unparse(statement))


def first_line(statement):
    return ast.unparse(statement).splitlines()[0]


def check_expression(node, line):
    assert isinstance(node, EXPRESSION), (node, line)
    if isinstance(node, ast.Call):
        own = isinstance(node.func, ast.Attribute)
        assert own or node.func.id in FUNCTIONS, line
    elif isinstance(node, ast.Name):
        known = node.id in FUNCTIONS | {"self", "inputs", "outputs", "batch", "NATIVE", "MANTISSA"}
        assert known or LOCAL.fullmatch(node.id), line
    elif isinstance(node, ast.Attribute):
        assert node.value.id == "self", line
        assert ATTRIBUTE.fullmatch(node.attr), line
    elif isinstance(node, ast.Constant):
        text = isinstance(node.value, str)
        assert node.value.isidentifier() if text else isinstance(node.value, int | float), line


COMMENTS = (
    f"; {SECRET} ''' \"\"\" \\",
    f'; """{SECRET}\n;"""',
    f"; import {SECRET}",
    f";;! input {SECRET} 8",
    f";! {SECRET}",
    f"; \u2028import {SECRET}\u2028",
    f"; \x0c\x0b\x85import {SECRET}",
    f"; \rimport {SECRET}\r",
)


@pytest.mark.parametrize("comment", COMMENTS, ids=ascii)
def test_comments_stay_where_they_are(comment, samebits, firmware, inputs):
    """At the start, after hints and instructions, at the end: nothing of them is written."""

    def commented(comment):
        text = PROGRAM.replace("x 2x8", f"x 2x8 {comment}").replace("loop 2", f"loop 2 {comment}")
        return f"{comment}\n{text}{comment}"

    path = firmware(commented(comment), name=f"{SECRET}'")
    if comment.startswith(";! "):
        both_refuse(samebits, path, inputs, f"{SECRET}'.nnp:1:4: expected a hint")
        return
    plain = read_program(firmware(commented(";" + "\n;" * comment.count("\n"))))
    for kind, suffix in SUFFIXES.items():
        out, other = (path.parent / f"{kind}{n}" / f"model{suffix}" for n in (1, 2))
        assert samebits("concord", path, "--to", kind, "--out", out).code == 0
        for file in out.parent.iterdir():
            assert SECRET.encode() not in file.read_bytes()
        translate(*plain, kind, other)
        assert out.read_bytes() == other.read_bytes()
        if suffix == ".py":
            check_shape(out.read_text("utf-8"), kind)


@pytest.mark.parametrize("stem", ["a'b", 'a"b', "a\\", "a\nimport os", "é", "{x}", "\u2028"])
def test_names_of_files_are_only_data(stem, firmware, tmp_path):
    program, image = read_program(firmware())
    for kind in ("torch", "tensorflow"):
        out = tmp_path / kind / f"{stem}.py"
        translate(program, image, kind, out)
        check_shape(out.read_text("utf-8"), kind)
    x = np.ones((1, 2, 8), np.float16)
    found = load_concordant(tmp_path / "torch" / f"{stem}.py")({"x": x})["y"]
    expected = simulate(program, image, {"x": x}).outputs["y"]
    assert_same(found.view(np.uint16), expected.view(np.uint16), x)
