"""What a realisation is: the operations of `Eager`, all of them and nothing else."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

import pytest
import torch

import samebits.train
from samebits import kernels
from samebits.kernels import build, declarations, library
from samebits.kernels.compiled import Compiled
from samebits.kernels.eager import Eager
from samebits.kernels.moments import Update
from samebits.kernels.native import Native
from samebits.spec import formats


def public(kind: type) -> dict[str, object]:
    """The operations of a realisation."""
    members = inspect.getmembers(kind, inspect.isfunction)
    return {name: method for name, method in members if not name.startswith("_")}


OPERATIONS = public(Eager)


@pytest.mark.parametrize("kind", [Compiled, Native])
def test_a_realisation_has_the_operations_of_eager(kind):
    assert set(public(kind)) == set(OPERATIONS)


@pytest.mark.parametrize("kind", [Compiled, Native])
@pytest.mark.parametrize("name", OPERATIONS)
def test_parameters_and_results_are_those_of_eager(kind, name):
    """mypy sees names, types and defaults; here is what it must not be told to ignore."""
    assert inspect.signature(getattr(kind, name)) == inspect.signature(OPERATIONS[name])


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_operation_is_documented(name):
    assert inspect.getdoc(getattr(Eager, name))


def test_nothing_is_looked_up_by_name():
    """A misspelt operation is an error for mypy, not one for whoever runs it."""
    for kind in (Eager, Compiled, Native):
        assert not hasattr(kind, "__getattr__")


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def test_training_asks_for_kernels_and_names_none():
    """No module of `train` imports a realisation: which one serves is the user's choice."""
    folder = Path(samebits.train.__file__).parent
    modules = list(folder.rglob("*.py"))
    assert len(modules) > 30
    realisations = {f"samebits.kernels.{name}" for name in ("eager", "compiled", "native")}
    for path in modules:
        assert not imports(path) & realisations, path


@pytest.mark.parametrize(
    ("name", "kind"),
    [("eager", Eager), pytest.param("compiled", Compiled, marks=pytest.mark.slow)],
)
def test_of_gives_the_realisation_in_use(name, kind):
    with kernels.use(name):
        assert type(kernels.of(torch.zeros(1))) is kind
        assert kernels.of(torch.zeros(1)) is kernels.of(torch.zeros(2))
    if kernels.realisation() == "native":
        assert type(kernels.of(torch.zeros(1))) is Native


def test_an_unknown_realisation_is_refused():
    with pytest.raises(ValueError, match="expected one of"), kernels.use("fast"):
        pass


def test_c_functions_refuse_a_wrong_call():
    try:
        functions = library.load(None)
    except build.BuildError as error:
        pytest.skip(str(error))
    v = torch.tensor([5, -7], dtype=torch.int32)
    assert functions.samebits_max_i32(v.data_ptr(), 2, 1) == 7
    with pytest.raises(TypeError, match="at least 3 arguments"):
        functions.samebits_max_i32(v.data_ptr(), 2)
    with pytest.raises(Exception, match="argument 2"):
        functions.samebits_max_i32(v.data_ptr(), 2.5, 1)


def test_signatures_are_read_from_c():
    functions = library.functions()
    texts = [
        path.read_text(encoding="utf-8") for path in Path(library.__file__).parent.glob("*.py")
    ]
    called = set(re.findall(r"\bc\.(samebits_\w+)", "".join(texts).replace("self._c", "c")))
    assert len(called) > 40
    assert called <= set(functions)
    # One that is defined whole, and one by a macro.
    sizes = [("groups", "int64_t"), ("outer", "int64_t"), ("c", "int64_t")]
    assert functions["samebits_reach"] == ("int64_t", (("w", "int8_t*"), *sizes))
    scale = (("v", "int32_t*"), ("n", "int64_t"), ("exponent", "int64_t"))
    more = (("out", "int8_t*"), ("threads", "int"))
    assert functions["samebits_scale_i32_i8"] == ("void", (*scale, *more))
    addend = [("codes", "void*"), ("width", "int64_t"), ("by", "int64_t")]
    assert library.fields("Addend") == addend


@pytest.mark.parametrize("text", ["int64_t sizes[2]", "unsigned int n", "int32_t **rows", ""])
def test_other_declarations_are_refused(text):
    with pytest.raises(ValueError, match="expected one type and plain names, found"):
        declarations.declared(text)


def test_the_example_of_a_lazy_update():
    """The numbers in the documentation of `lazy_carry`."""
    codes, delayed = torch.tensor([3], dtype=torch.int8), torch.tensor([16000], dtype=torch.int16)
    k = kernels.of(codes)
    assert int(k.joint(codes, delayed)) == 82304
    # The code of q = 1000, F = 63: u = 32768 * 1000 * 2**(F - 78)
    p = torch.tensor([63 * 512 + 1000 - 512], dtype=torch.int16)
    assert k.lazy_carry(codes, delayed, Update(p, 32768, -78, None), True)
    assert (int(codes), int(delayed)) == (2, -15768)
    assert int(k.joint(codes, delayed)) == 82304 - 1000


def test_codes_are_balanced_bytes():
    """Every code of 16 or 32 bits is digits in [-128, 127]; one more than the largest is not."""
    for digits, limit in ((2, formats.Q16), (4, formats.Q32)):
        largest = sum(127 << (8 * i) for i in range(digits))
        assert limit == largest
        for code in (limit, -limit, limit - 12345, 256 * 77 + 128, 0):
            rest, total = code, 0
            for i in range(digits):
                digit = (rest + 128) % 256 - 128
                rest, total = (rest - digit) >> 8, total + (digit << (8 * i))
            assert (rest, total) == (0, code)
