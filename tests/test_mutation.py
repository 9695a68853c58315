"""The operators of `benchmarks/mutants.py`, and its choice and count of mutants."""

import importlib
import json
import sys
from collections import Counter
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"


@pytest.fixture
def load(monkeypatch):
    """A module of the benchmarks by name; their folder is on the path for as long as a test."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    before = set(sys.modules)
    yield importlib.import_module
    for name in ("machine", "mutants", "mutation"):
        if name not in before:
            sys.modules.pop(name, None)


def changes(load, source):
    """(operator, line after) of every mutant that differs."""
    text = source.encode()
    found = load("mutation").mutants("made.py", text)
    return [(m.operator, m.after) for m in found if m.differs(text)]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("y = a < b", [("comparison", "y = a <= b")]),
        ("y = a >= b", [("comparison", "y = a > b")]),
        ("y = a not in b", [("comparison", "y = a in b")]),
        ("y = a is not b", [("comparison", "y = a is b")]),
        ("y = (a == b) != c", [
            ("comparison", "y = (a == b) == c"), ("comparison", "y = (a != b) != c"),
        ]),
        ("y = 3", [("constant", "y = 4"), ("constant", "y = 2")]),
        ("y = 0", [("constant", "y = 1"), ("constant", "y = (-1)")]),
        ("y = 0.5", [("constant", "y = 1.5")]),
        ("y = a << b", [("arithmetic", "y = a >> b")]),
        ("y = (a) * (b)", [("arithmetic", "y = (a) // (b)")]),
        ("y = a ** b", [("arithmetic", "y = a * b")]),
        ("y += x", [("removal", "pass"), ("arithmetic", "y -= x")]),
        ("y //= x", [("removal", "pass"), ("arithmetic", "y *= x")]),
        ("y = 'a' + b", []),
        ("y = a or b", [("logic", "y = a and b")]),
        ("y = not (a or b)", [("negation", "y = (a or b)"), ("logic", "y = not (a and b)")]),
        ("y = -a", [("negation", "y = (a)")]),
        ("y = min(a)", [("extremum", "y = max(a)")]),
        ("y = a.amax()", [("extremum", "y = a.amin()")]),
        ("y = True", [("truth", "y = False")]),
        ("y = a[b:c]", [("slice", "y = a[:c]"), ("slice", "y = a[b:]")]),
        ("a.b = c", [("removal", "pass")]),
        ("f(a)", [("removal", "pass")]),
        ("for a in b:\n    break", [("removal", "pass")]),
        ("def f() -> int:\n    return g", [("return", "return 0")]),
        ("def f() -> bool:\n    return g", [("return", "return False")]),
        ("def f():\n    return g", [("return", "return None")]),
        ("def f(a=True):\n    g", [("truth", "def f(a=False):")]),
        ("raise E(f'{1 + 2} at {a < b}', 3 + a)", [("removal", "pass")]),
    ],
)  # fmt: skip
def test_operators(load, source, expected):
    assert changes(load, source) == expected


@pytest.mark.parametrize(
    "source",
    [
        '"""At most 3 < 4."""',
        "def f():\n    '''1 < 2'''",
        "import a",
        "a: Literal[1] = b",
        "def f(a: Literal[1]) -> Literal[2]: a",
        "@f(1)\ndef g(): a",
        "@f(1)\nclass A: a",
        "assert a < 1, 2",
        "y = zip(a, b, strict=True)",
        "y = f'{1 + 2}'",
        "def __repr__(self):\n    return 1",
        "if TYPE_CHECKING:\n    a = 1",
        "if __name__ == '__main__':\n    f()",
        "y = isinstance(a, B | C)",
        "Number = A | B",
        "y = cast(a, 1)",
    ],
)
def test_what_no_test_should_tell_is_left_out(load, source):
    assert changes(load, source) == []


SOURCE = """
class A:
    LIMIT = 5

    def f(self, x, y=1):
        if x < y:
            return [
                x,
                2,
            ]
        z = x + y; z = x + y
        return z
"""


def test_places(load):
    found = load("mutation").mutants("made.py", SOURCE.encode())
    facts = {(m.after, m.occurrence): m for m in found}
    assert len({m.key for m in found}) == len(found)
    limit = facts["LIMIT = 6", 0]
    assert (limit.function, limit.line, limit.lines, limit.at_import) == ("A", 3, (3, 3), True)
    default = facts["def f(self, x, y=2):", 0]
    assert (default.function, default.lines, default.at_import) == ("A.f", (5, 5), True)
    compared = facts["if x <= y:", 0]
    assert (compared.lines, compared.at_import) == ((6, 6), False)
    three = facts["3,", 0]  # any line of the statement counts
    assert (three.line, three.lines) == (9, (7, 10))
    assert SOURCE.replace("2,", "3,") == three.applied(SOURCE.encode()).decode()


def test_changes_elsewhere_move_no_mutant(load):
    mutation = load("mutation")
    before = mutation.mutants("made.py", SOURCE.encode())
    after = mutation.mutants("made.py", b"x = f(7)\n\n" + SOURCE.encode())
    orders = {m.key: m.order(16) for m in after}
    assert all(orders[m.key] == m.order(16) for m in before)
    assert [m.order(17) for m in before] != [m.order(16) for m in before]


def test_mutants_that_compute_the_same_do_not_differ(load):
    mutation = load("mutation")
    text = b"y = 2 * 3 // 1"
    assert {m.after for m in mutation.mutants("made.py", text) if not m.differs(text)} == {
        "y = 2 * 3 * 1",
    }


ROOMS = ("numerics", "specification", "training", "checkpoints", "simulator", "graph lowering")


def test_every_room_has_sources_and_tests(load):
    benchmark = load("mutants")
    checkout = benchmark.Tree(benchmark.ROOT, "", "")
    for room in benchmark.ROOMS:
        for source in room.sources:
            assert (benchmark.ROOT / "src" / "samebits" / source).exists(), source
        assert checkout.files(room.tests, "test_*.py"), room.name
    assert {room.name for room in benchmark.ROOMS} > set(ROOMS)


def test_a_sample_is_part_of_a_larger_one(load):
    benchmark = load("mutants")
    checkout = benchmark.Tree(benchmark.ROOT, "", "")
    rooms = [room for room in benchmark.ROOMS if room.name in ("numerics", "simulator")]
    few = benchmark.sample(checkout, rooms, 7, 16, "")
    many = benchmark.sample(checkout, rooms, 20, 16, "")
    assert {name: len(found) for name, found in few.items()} == {"numerics": 4, "simulator": 3}
    for name, found in few.items():
        assert many[name][: len(found)] == found


def test_known_survivors_have_reasons_and_are_still_there(load):
    benchmark = load("mutants")
    known, here = benchmark.known(), {}
    for file in {place[0] for place in known}:
        for m in load("mutation").mutants(file, (benchmark.ROOT / file).read_bytes()):
            here[m.file, m.function, m.before, m.after] = m
    assert [place for place in known if place not in here] == [], "take them off the list"
    assert len(known) == len(json.loads(benchmark.KNOWN.read_text()))


def line_map(benchmark):
    lines = benchmark.Lines()
    lines.add(
        "tests/a/test_a.py",
        {
            "tests": {
                "tests/a/test_a.py::slow": {"seconds": 50.0, "passed": True, "shares": []},
                "tests/a/test_a.py::quick": {"seconds": 0.1, "passed": True, "shares": ["run"]},
                "tests/a/test_a.py::other": {"seconds": 0.2, "passed": True, "shares": ["run"]},
                "tests/a/test_a.py::wrong": {"seconds": 0.1, "passed": False, "shares": []},
            },
            "lines": {"made.py": {"6": [0, 1, 3], "11": [0]}},
        },
    )
    lines.add(
        "tests/b/test_b.py",
        {
            "tests": {"tests/b/test_b.py::far": {"seconds": 1.0, "passed": True, "shares": []}},
            "lines": {"made.py": {"6": [0]}},
        },
    )
    return lines


def test_choice_of_tests(load):
    benchmark = load("mutants")
    lines, room = line_map(benchmark), {"tests/a/test_a.py"}
    found = {m.after: m for m in load("mutation").mutants("made.py", SOURCE.encode())}
    names = {"tests/a/test_a.py::" + name: name for name in ("quick", "other", "slow")}

    def chosen(after, budget=60.0):
        tests, left = lines.tests(found[after], room, budget)
        return [names[test] for test in tests], left

    assert chosen("if x <= y:") == (["quick", "other", "slow"], 0)  # other: it shares a fixture
    assert chosen("if x <= y:", 10.0) == (["quick", "other"], 1)
    assert chosen("z = x - y; z = x + y") == (["slow"], 0)
    assert chosen("z = x - y; z = x + y", 1.0) == (["slow"], 0)  # at least one
    assert chosen("3,") == ([], 0)
    assert chosen("LIMIT = 6") == (["quick", "other", "slow"], 0)  # all that use the module


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (None, {"verdict": "unknown", "why": "the server ended"}),
        ({"timeout": True, "signal": 9}, {"verdict": "timeout"}),
        ({"timeout": False, "signal": 11}, {"verdict": "killed", "by": "a crash (signal 11)"}),
        ({"timeout": False, "signal": 9}, {"verdict": "unknown", "why": "killed from outside"}),
        ({"failed": ["a", "b"], "code": 1, "ran": 3}, {"verdict": "killed", "by": "a", "ran": 3}),
        ({"failed": [], "code": 0, "ran": 3}, {"verdict": "survived", "ran": 3}),
        (
            {"failed": [], "code": 5, "ran": 0},
            {"verdict": "unknown", "why": "pytest ended with 5", "ran": 0},
        ),
    ],
)
def test_verdicts(load, answer, expected):
    if answer is not None:
        answer, expected = {**answer, "seconds": 1.0}, {**expected, "seconds": 1.0}
    assert load("mutants").verdict(answer) == expected


def test_results_are_taken_up_again(load, tmp_path):
    benchmark = load("mutants")
    text = SOURCE.encode()
    first, second, third = load("mutation").mutants("made.py", text)[:3]
    path = tmp_path / "results.jsonl"
    results = benchmark.Results(path, "old")
    results.write(key=first.key, verdict="killed", by="test")
    results.write(key=second.key, verdict="survived")
    results.write(key=third.key, verdict="unknown", why="the server ended")
    with path.open("a") as file:
        file.write('{"key": "cut')  # as a kill leaves it
    again = benchmark.Results(path, "old")
    assert [again.verdict(m) is None for m in (first, second, third)] == [False, False, True]
    updated = benchmark.Results(path, "new")  # of other sources or tests
    assert [updated.verdict(m) is None for m in (first, second, third)] == [False, True, True]
    again.write(test="test", sound=False)
    assert again.verdict(first) is None  # its killer fails unchanged


def test_known_equivalents_leave_the_fraction(load):
    part = load("mutants").fraction(Counter(killed=7, timeout=2, survived=1, equivalent=5))
    assert part == {"killed part": 0.9}
    assert load("mutants").fraction(Counter()) == {"killed part": None}


MADE = "def double(x):\n    return 2 * x\n"
TESTS = """
from made import double


def test_zero():
    assert double(0) == 0


def test_three():
    assert double(3) == 6
"""
CHANGED = {
    "survived": "def double(x):\n    return 2 * x + 0\n",
    "killed": "def double(x):\n    return 3 * x\n",
    "crash": "import os\n\ndef double(x):\n    os.kill(os.getpid(), 11)\n",
    "import": "def double(x)\n    return 2 * x\n",
    "timeout": "def double(x):\n    while True: pass\n",
    "memory": "def double(x):\n    held = []\n    while True: held.append(b'x' * (1 << 24))\n",
}


@pytest.mark.slow
def test_a_server_runs_mutants_and_leaves_the_copy_as_it_was(load, tmp_path):
    benchmark = load("mutants")
    tree = tmp_path / "tree"
    (tree / "src").mkdir(parents=True)
    (tree / "src" / "made.py").write_text(MADE)
    (tree / "test_made.py").write_text(TESTS)
    tests = ["test_made.py::test_zero", "test_made.py::test_three"]
    server = benchmark.Server(benchmark.Tree(tree, "", ""), tmp_path / "worker", tmp_path / "cache")
    try:
        job = {"files": ["test_made.py"], "tests": tests, "cpu": 30, "wall": 90}
        job["memory"] = 1 << 30
        answers = {"unchanged": server.ask(job)}
        for name, source in CHANGED.items():
            limits = {"cpu": 3} if name == "timeout" else {}
            answers[name] = server.ask({**job, "path": "src/made.py", "source": source, **limits})
        found = {name: benchmark.verdict(answer) for name, answer in answers.items()}
    finally:
        server.stop()
    assert {name: (v["verdict"], v.get("by")) for name, v in found.items()} == {
        "unchanged": ("survived", None),
        "survived": ("survived", None),
        "killed": ("killed", tests[1]),
        "crash": ("killed", "a crash (signal 11)"),
        "import": ("killed", "the import of test_made.py"),
        "timeout": ("timeout", None),
        "memory": ("timeout", None),
    }
    assert found["killed"]["ran"] == 2
    assert (tmp_path / "worker" / "src" / "made.py").read_text() == MADE
    assert (tree / "src" / "made.py").read_text() == MADE


@pytest.mark.slow
def test_a_server_learns_which_test_runs_which_line(load, tmp_path):
    pytest.importorskip("coverage", reason="needs coverage.py: pip install 'samebits[mutants]'")
    benchmark = load("mutants")
    tree = tmp_path / "tree"
    (tree / "src").mkdir(parents=True)
    source = "def f(x):\n    if x:\n        return 1\n    return 2\n"
    (tree / "src" / "made.py").write_text(source)
    (tree / "test_made.py").write_text(
        "from made import f\n\ndef test_a():\n    assert f(1) == 1\n\n"
        "def test_b():\n    assert f(0) == 2\n\ndef test_c():\n    assert f(0) == 3\n"
    )
    server = benchmark.Server(benchmark.Tree(tree, "", ""), tmp_path / "worker", tmp_path / "cache")
    try:
        job = {"files": ["test_made.py"], "coverage": ["src"], "cpu": 30, "wall": 60}
        answer = server.ask(job)
    finally:
        server.stop()
    lines = benchmark.Lines()
    lines.add("test_made.py", answer)
    a, b = "test_made.py::test_a", "test_made.py::test_b"
    assert lines.seconds.keys() == {a, b}  # c fails, and says nothing about mutants
    of_line = {line: tests for (_, line), tests in lines.of_line.items() if tests}
    assert of_line == {2: {a, b}, 3: {a}, 4: {b}}
