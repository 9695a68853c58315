"""Codes of errors: derived from class and room, and one section of the page for each."""

from __future__ import annotations

import ast
import builtins
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import samebits as sb
from samebits import errors
from samebits.errors import InputError, NonFiniteError, SamebitsError, UnsupportedError
from samebits.explanations import FILE, MEMORY, TOPICS, USAGE, explanations, room_of, topic_of

SOURCES = Path(sb.__file__).parent
# Ends of commands, and errors that are caught inside samebits or are faults of it.
OTHERS = {
    *("BadParameter", "Exit", "Interrupted"),
    *("BuildError", "Misfit", "_Inexact"),
    *("GraphError", "_error"),
}
CLASSES = {
    name: kind
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, SamebitsError)
}


Caught = dict[str, set[str]]  # names of errors in a handler, and the classes they may have


@cache
def trees() -> dict[Path, list[ast.AST]]:
    """The nodes that matter here of every module, outer ones first."""
    kinds = (ast.Raise, ast.ExceptHandler, ast.FunctionDef, ast.ClassDef)
    return {
        path: [
            node
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, kinds)
        ]
        for path in sorted(SOURCES.rglob("*.py"))
    }


def classes_in(node: ast.AST) -> set[str]:
    return set(re.findall(r"\w+", ast.unparse(node))) & set(CLASSES)


@cache
def made() -> Caught:
    """The errors that the functions of a name give, by their annotations, and bases of classes."""
    found: Caught = {}
    for nodes in trees().values():
        for node in nodes:
            if isinstance(node, ast.FunctionDef) and node.returns is not None:
                found.setdefault(node.name, set()).update(classes_in(node.returns))
            elif isinstance(node, ast.ClassDef):
                for base in node.bases:
                    found.setdefault(node.name, set()).update(classes_in(base))
    return found


def raised(node: ast.expr, caught: Caught) -> set[str]:
    """The classes that an expression after `raise` may have."""
    if isinstance(node, ast.IfExp):
        return raised(node.body, caught) | raised(node.orelse, caught)
    if isinstance(node, ast.Call):
        if ast.unparse(node.func) == "type":  # type(error)(...), in a handler of that error
            return caught.get(ast.unparse(node.args[0]), set())
        return raised(node.func, caught)
    name = ast.unparse(node).rpartition(".")[2]
    if name in CLASSES:
        return {name}
    return caught.get(name) or made().get(name, set())


def sites(nodes: list[ast.AST]) -> Iterator[str]:
    """The classes of every `raise` among the nodes of a module."""
    caught: dict[ast.AST, Caught] = {}
    for node in nodes:  # inner handlers come after outer ones
        if isinstance(node, ast.ExceptHandler) and node.name and node.type:
            for inner in ast.walk(node):
                if isinstance(inner, ast.Raise):
                    caught.setdefault(inner, {})[node.name] = classes_in(node.type)
    for node in nodes:
        if isinstance(node, ast.Raise) and node.exc is not None:
            yield from raised(node.exc, caught.get(node, {}))


@cache
def pairs() -> frozenset[tuple[str, str]]:
    """Every class that is raised in a room."""
    found = set()
    for path, nodes in trees().items():
        room = path.relative_to(SOURCES).with_suffix("").parts[0]
        found |= {(name, room) for name in sites(nodes)}
    return frozenset(found)


def topic(name: str, room: str) -> str:
    rooms = next(TOPICS[kind] for kind in CLASSES[name].__mro__ if kind in TOPICS)
    return rooms.get(room, rooms[None])


def test_there_are_raise_sites():
    assert {("UnsupportedError", "onnx"), ("CheckpointError", "train")} <= pairs()
    assert ("NonFiniteError", "ir") in pairs()  # raised again with another text
    assert ("UnsupportedError", "pytorch") in pairs()  # made by methods
    assert len(pairs()) > 50


def test_every_class_and_room_has_a_section():
    lacking = {pair: topic(*pair) for pair in pairs() if topic(*pair) not in explanations()}
    assert lacking == {}


def test_every_section_can_occur():
    possible = {topic(*pair) for pair in pairs()} | {FILE, MEMORY, USAGE}
    assert set(explanations()) - possible == set()


def test_every_room_of_the_table_raises_that_class():
    raising = {
        (kind, room)
        for name, room in pairs()
        for kind in CLASSES[name].__mro__
        if kind in TOPICS and kind is next(k for k in CLASSES[name].__mro__ if k in TOPICS)
    }
    listed = {(kind, room) for kind, rooms in TOPICS.items() for room in rooms if room is not None}
    assert listed - raising == set()


def test_rooms_are_rooms():
    rooms = {path.relative_to(SOURCES).with_suffix("").parts[0] for path in trees()}
    assert {room for each in TOPICS.values() for room in each} - rooms == {None}


def test_every_call_after_raise_is_understood():
    """So that a new way to make an error is seen here; the others are faults or ways out."""
    names = set()
    for nodes in trees().values():
        for node in nodes:
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
                called = ast.unparse(node.exc.func).rpartition(".")[2]
                if called.isidentifier() and not raised(node.exc, {}) and called != "type":
                    names.add(called)
    others = {name for name in names if not hasattr(builtins, name)}
    assert others == OTHERS


def test_the_page_says_what_to_do():
    for each in explanations().values():
        assert "Commonest causes:\n\n* " in each.text, each.topic
        assert re.search(r"^    \S", each.text, flags=re.MULTILINE), each.topic
        assert each.title.endswith("."), each.topic
        assert len(each.title) <= 100, each.topic


# --- topics of errors -----------------------------------------------------------------------------


def caught(action):
    with pytest.raises(SamebitsError) as found:
        action()
    return found.value


def test_the_room_is_the_innermost_of_samebits(tmp_path):
    (tmp_path / "m.onnx").write_bytes(b"")
    error = caught(lambda: sb.load(tmp_path / "m.onnx"))
    assert room_of(error.__traceback__) == "onnx"
    assert topic_of(error) == "input-onnx"


def test_an_error_without_a_traceback_has_the_topic_of_its_class():
    assert topic_of(UnsupportedError("x")) == "unsupported-network"
    assert topic_of(InputError("x")) == "input-options"
    assert topic_of(NonFiniteError("x")) == "non-finite"
    assert topic_of(SamebitsError("x")) == "failed-write"


def test_other_errors():
    assert topic_of(FileNotFoundError("x")) == "file"
    assert topic_of(MemoryError()) == "memory"
    assert topic_of(ValueError("x")) is None


def test_explain_a_topic_and_an_error():
    by_topic = sb.explain("unsupported-onnx")
    assert (by_topic.topic, str(by_topic).splitlines()[0]) == (
        "unsupported-onnx",
        "unsupported-onnx",
    )
    assert sb.explain(caught(lambda: sb.load("nowhere.onnx"))).topic == "input-onnx"
    assert by_topic.to_dict()["title"] == by_topic.title


@pytest.mark.parametrize(
    ("about", "found"), [("unsupported", "'unsupported'"), (ValueError("x"), "ValueError")]
)
def test_explain_refuses_others(about, found):
    message = f"expected the topic of an error, found {found}; samebits explain lists them"
    with pytest.raises(InputError, match=re.escape(message)):
        sb.explain(about)


def test_explain_loads_nothing_large():
    program = (
        "import sys\n"
        "from samebits.cli import main\n"
        "try:\n    main(['explain', 'usage', '--quiet'])\n"
        "except SystemExit:\n"
        "    print(*({'torch', 'numpy', 'rich', 'onnx', 'samebits.api'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.startswith("usage\n\n")
    assert (done.stdout.splitlines()[-1], done.stderr) == ("", "")
