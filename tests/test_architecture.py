"""The house, checked: imports, sizes, names, docstrings and operators over all of src/samebits."""

from __future__ import annotations

import ast
import io
import re
import tokenize
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from samebits.recipes import RECIPES

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ROOT / "src" / "samebits"
CODE_MAX = 450  # lines of one module, docstrings, comments and blank lines not counted
UNDOCUMENTED_MAX = 15  # lines of a function that needs no docstring

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))

# Rooms from the ground up, as the import contract has them; those of one line do not know each
# other.
(LAYERS,) = (
    contract["layers"]
    for contract in PROJECT["tool"]["importlinter"]["contracts"]
    if contract["type"] == "layers"
)
ORDER = [re.findall(r"samebits\.(\w+)", line) for line in reversed(LAYERS)] + [["__main__"]]

# Their text is copied into generated modules, where these are the names that a reader meets.
COPIED = ("samebits.npu.concord.runtime_torch", "samebits.npu.concord.runtime_tensorflow")

# Methods whose meaning is that of the class of torch or of Python which they override.
INHERITED = {"forward", "backward", "setup_context", "extra_repr"}


@cache
def modules() -> dict[str, Path]:
    """Every module by its dotted name."""
    found = {}
    for path in sorted(SOURCES.rglob("*.py")):
        parts = path.relative_to(SOURCES.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def tree(name: str) -> ast.Module:
    return ast.parse(modules()[name].read_text(encoding="utf-8"))


@cache
def imports() -> dict[str, dict[str, int]]:
    """Of each module the modules of the project that it imports, anywhere in it, and the line."""
    graph: dict[str, dict[str, int]] = {}
    for name in modules():
        found: dict[str, int] = {}
        for node in ast.walk(tree(name)):
            if isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{name}:{node.lineno}: expected absolute imports"
                dotted = [f"{node.module}.{alias.name}" for alias in node.names]
                targets = [d if d in modules() else str(node.module) for d in dotted]
            elif isinstance(node, ast.Import):
                targets = [alias.name for alias in node.names]
            else:
                continue
            for target in targets:
                if target in modules() and target != name:
                    found.setdefault(target, node.lineno)
        graph[name] = found
    return graph


def circles(graph: dict[str, dict[str, int]]) -> Iterator[list[str]]:
    """Circles of imports: from every module, a shortest way back to it."""
    for start in graph:
        ways = {start: [start]}
        queue = [start]
        for module in queue:
            for target in graph[module]:
                if target == start:
                    yield [*ways[module], start]
                    return
                if target not in ways:
                    ways[target] = [*ways[module], target]
                    queue.append(target)


def test_no_import_circle():
    """Not in functions either, nor under TYPE_CHECKING: two modules that need each other are one
    idea, or lack a third below both."""
    assert [" -> ".join(circle) for circle in circles(imports())] == []


def level(name: str) -> int:
    room = name.split(".")[1]
    return next(i for i, rooms in enumerate(ORDER) if room in rooms)


def test_imports_point_down():
    upward = []
    for name, targets in imports().items():
        if name == "samebits":
            continue
        for target, line in targets.items():
            if target == "samebits" or name.split(".")[1] == target.split(".")[1]:
                continue
            if level(target) >= level(name):
                upward.append(f"{modules()[name]}:{line}: {name} imports {target}")
    assert upward == []


def lines_of_code(name: str) -> int:
    text = modules()[name].read_text(encoding="utf-8")
    if text.count("\n") <= CODE_MAX:
        return text.count("\n")  # that many at most
    lines: set[int] = set()
    layout = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in (*layout, tokenize.ENDMARKER):
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(tree(name)):
        documented = isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef))
        if documented and ast.get_docstring(node):
            lines.difference_update(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    return len(lines)


def test_no_module_holds_too_much():
    """Two ideas in one room, most often: split it by idea, not by length."""
    large = {name: n for name in modules() if (n := lines_of_code(name)) > CODE_MAX}
    for path in [*SOURCES.rglob("*.c"), *SOURCES.rglob("*.h")]:
        if (n := len(path.read_text(encoding="utf-8").splitlines())) > CODE_MAX:
            large[str(path.relative_to(SOURCES))] = n
    assert large == {}, f"expected at most {CODE_MAX} lines of code"


def test_every_exported_class_has_a_name_of_its_own():
    """A definition in `spec` may bear the name of what it defines."""
    homes = defaultdict(list)
    for name in modules():
        if name.startswith("samebits.spec.") or name in COPIED:
            continue
        for node in tree(name).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].append(name)
    assert {name: where for name, where in homes.items() if len(where) > 1} == {}


DOOR = (
    "adaptation",
    "planning",
    "api",
    "sources",
    "firmware",
    "comparison",
    "shipping",
    "checkup.examine",
    "recompute.capture.front",
)
ASIDE = (
    *("called", "refuse", "entries_of", "check_train", "quantized", "read_each", "source_of"),
)  # parts of these modules that no caller outside has


def test_every_function_of_the_front_door_is_settled():
    """Whatever the caller has set in torch and numpy (`samebits.settled`)."""
    open_to_all = []
    for name in DOOR:
        open_to_all += [(name, item) for item in tree(f"samebits.{name}").body]
    (network,) = (n for n in tree("samebits.network").body if isinstance(n, ast.ClassDef))
    open_to_all += [("network", item) for item in network.body]
    unsettled = [
        f"{name}.{item.name}"
        for name, item in open_to_all
        if isinstance(item, ast.FunctionDef)
        and not item.name.startswith("_")
        and item.name not in ASIDE
        and not {ast.unparse(d) for d in item.decorator_list}
        & {"settled", "property", "cached_property"}
    ]
    assert unsettled == []
    exported = {item.name for _, item in open_to_all if isinstance(item, ast.FunctionDef)}
    homes = next(n for n in tree("samebits").body if ast.unparse(n).startswith("__all__"))
    names = set(ast.literal_eval(homes.value)) - exported
    assert names - {kind.__name__ for kind in RECIPES.values()} == {  # none computes
        *("Network", "__version__", "explain", "memory_limit", "prepared", "read", "train"),
    }


@cache
def documented_elsewhere() -> set[str]:
    """Names of methods that some class of the project documents: an override inherits it."""
    return {
        item.name
        for name in modules()
        for node in ast.walk(tree(name))
        if isinstance(node, ast.ClassDef)
        for item in node.body
        if isinstance(item, ast.FunctionDef) and ast.get_docstring(item)
    }


def undocumented(name: str) -> Iterator[str]:
    """Public names, and functions of more than UNDOCUMENTED_MAX lines, without a docstring."""
    module = tree(name)
    if not ast.get_docstring(module):
        yield f"{name}"
    known = INHERITED | documented_elsewhere()
    for node in module.body:
        if not isinstance(node, (ast.ClassDef, ast.FunctionDef)) or node.name.startswith("_"):
            continue
        if not ast.get_docstring(node):
            yield f"{name}:{node.lineno} {node.name}"
        for item in node.body if isinstance(node, ast.ClassDef) else []:
            if not isinstance(item, ast.FunctionDef) or item.name.startswith("_"):
                continue
            if not ast.get_docstring(item) and not (node.bases and item.name in known):
                yield f"{name}:{item.lineno} {node.name}.{item.name}"
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef) and not ast.get_docstring(node):
            long = node.end_lineno - node.lineno >= UNDOCUMENTED_MAX
            if long and node.name not in INHERITED and node.name != "__init__":
                yield f"{name}:{node.lineno} {node.name}: {node.end_lineno - node.lineno + 1} lines"


def test_every_public_name_and_long_function_has_a_docstring():
    found = [line for name in modules() for line in undocumented(name)]
    assert found == []


ODD = ("Of ", "How many", "What ", "That ", "nobody vouches")


def test_docstrings_are_sentences():
    odd = []
    for name in modules():
        for node in ast.walk(tree(name)):
            if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.Module)):
                text = ast.get_docstring(node) or ""
                if text.startswith(ODD[:-1]) or ODD[-1] in text:
                    odd.append(f"{name}:{getattr(node, 'lineno', 1)}: {text.splitlines()[0]}")
    assert odd == [], "expected a sentence that names the thing, as docs/glossary.md has it"


@pytest.mark.parametrize("page", sorted((ROOT / "docs").rglob("*.md")), ids=lambda p: p.name)
def test_pages_fit_a_hundred_columns(page):
    """Tables, code blocks and links excepted; comments, which name figures, do not count."""
    wide, code = [], False
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        code ^= line.startswith("```")
        line = re.sub(r"<!--.*?-->", "", line)
        if len(line) > 100 and not code and "](" not in line and not line.startswith(("|", "    ")):
            wide.append(number)
    assert wide == []


# Calls that open a path. What a user gives is opened by `samebits.entrance` alone.
OPENING = re.compile(
    r"(.*\.)?open|.*\.(read_text|read_bytes|ZipFile|ParquetFile|open_stream|open_file|memory_map|"
    r"OSFile)|np\.(load|loadtxt|genfromtxt|fromfile|memmap)|(torch|torch\.jit|torch\.export)\.load|"
    r"load_file|safe_open|parquet\.read_\w+|pandas\.read_\w+"
)
# Arguments that are open already, or bytes in memory.
OPEN_ALREADY = re.compile(r"io\.BytesIO\(.*\)|file|stream|stored|descriptor|data")
# Modules, or functions of them, that open files themselves, and why.
OPENERS = {
    "samebits.entrance": "the entrance",
    "samebits.files": "writes files of its own names, and waits for folders",
    "samebits.ledger": "asks the system how much memory there is",
    "samebits.csrc": "the C of this package",
    "samebits.explanations": "a page of this package",
    "samebits.cli": "the place where nothing is kept",
    "samebits.codegen.packaging.projects": "templates of this package",
    "samebits.codegen.run.execute": "what a program wrote into a folder made for it",
    "samebits.codegen.run.footprint": "what a compiler wrote into a folder made for it",
    "samebits.codegen.run.toolchain": "what the system says of its processor",
    "samebits.kernels.build": "what the system says, and what a compiler wrote",
    "samebits.npu.concord.runtime_tensorflow": "generated code, a user's own",
    "samebits.npu.concord.runtime_torch": "generated code, a user's own",
    "samebits.npu.concord.source": "templates of this package",
    "samebits.recompute.plan.cost": "devices of this package; others by the entrance",
    "samebits.shipping": "a package that it has made itself",
    "samebits.tflite.peers.child": "a script of its own process, in a folder made for it",
}


def opens(name: str) -> list[str]:
    """The calls of a module that open a path themselves."""
    found = []
    for node in ast.walk(tree(name)):
        if isinstance(node, ast.Call) and OPENING.fullmatch(ast.unparse(node.func)):
            first = ast.unparse(node.args[0]) if node.args else ""
            if not OPEN_ALREADY.fullmatch(first):
                found.append(f"{modules()[name]}:{node.lineno}: {ast.unparse(node)}")
    return found


def test_what_a_user_gives_comes_in_by_one_entrance():
    """A pipe would wait, a link lead elsewhere, a device never end."""
    assert [call for name in modules() if name not in OPENERS for call in opens(name)] == []
    assert [name for name in OPENERS if name not in modules() or not opens(name)] == []
