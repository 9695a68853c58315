"""The examples, executed as their users execute them: what they print is what their tops say.

A script runs in this process, in an empty folder. Its numbers may differ between machines where it
trains in float32; all words and the layout may not.
"""

from __future__ import annotations

import ast
import os
import re
import runpy
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from samebits.verification.registry import backend_named

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "examples"
SCRIPTS = sorted(path.stem for path in FOLDER.glob("*.py"))
NOTEBOOKS = sorted(path.stem for path in FOLDER.glob("*.ipynb"))
PUBLIC = {"samebits", "samebits.data", "samebits.errors", "samebits.numerics", "samebits.train"}
LONGEST = 66  # lines of code
HASH = r"\b[0-9a-f]{16}\b"


def top(name: str) -> str:
    """What a script says of itself."""
    return ast.get_docstring(ast.parse((FOLDER / f"{name}.py").read_text("utf-8"))) or ""


def promised(name: str) -> str:
    """What it says that it prints: the indented lines at the end of its docstring."""
    lines = top(name).partition("\nPrints:")[2].split("\n\n", 1)[1].splitlines()
    return "".join(f"{line.removeprefix('    ')}\n" for line in lines)


def words(text: str) -> str:
    """A text without its numbers and hashes, and without the spaces that align them."""
    masked = re.sub(rf"{HASH}|[-+]?\d+(,\d{{3}})*(\.\d+)?", "#", text)
    return re.sub(r" +", " ", masked)


def numbers(pattern: str, text: str) -> list[float]:
    """The groups of a pattern that must be found, as numbers."""
    found = re.search(pattern, text)
    assert found is not None, text
    return [float(group.replace(",", "")) for group in found.groups()]


@pytest.fixture
def printed(tmp_path, monkeypatch, capsys) -> Callable[..., str]:
    """Runs a script without arguments and gives what it prints, of the form that it promises."""
    monkeypatch.chdir(tmp_path)

    def run(name: str, *backends: str) -> str:
        for backend in backends:
            reason = backend_named(backend).unavailable()
            if reason is not None:
                pytest.skip(reason)
        monkeypatch.setattr(sys, "argv", [f"{name}.py"])
        runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")
        text = capsys.readouterr().out
        assert words(text) == words(promised(name))
        assert [path.name for path in tmp_path.iterdir()] == ["build"]
        return text

    return run


# --- what holds for all of them ------------------------------------------------------------------


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_top_of_a_script(name):
    text = top(name)
    labels = re.findall(r"^(\w+): ", text, flags=re.MULTILINE)
    assert labels == ["Shows", "Needs", "Run", "Prints"]
    assert f"Run:    python examples/{name}.py" in text


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_is_short_and_uses_public_names(name):
    source = (FOLDER / f"{name}.py").read_text("utf-8")
    tree = ast.parse(source)
    texts: set[int] = set()
    imported = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            texts |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        elif isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add(node.module or "")
    assert {name for name in imported if name.split(".")[0] == "samebits"} <= PUBLIC
    lines = [line for number, line in enumerate(source.split("\n"), 1) if number not in texts]
    assert sum(bool(line.strip()) for line in lines) <= LONGEST


def test_the_list_of_examples():
    text = (FOLDER / "README.md").read_text("utf-8")
    listed = re.findall(r"^\| \[(\w+)\.(py|ipynb)\]\(\1\.\2\) \|", text, flags=re.MULTILINE)
    assert sorted(name for name, kind in listed if kind == "py") == SCRIPTS
    assert sorted(name for name, kind in listed if kind == "ipynb") == NOTEBOOKS
    missing = [link for link in re.findall(r"\]\(([^)]+)\)", text) if not (FOLDER / link).exists()]
    assert missing == []


# --- what each of them tells ---------------------------------------------------------------------


@pytest.mark.slow
def test_digits_to_cortex_m(printed):
    """All of it is the same on every machine."""
    text = printed("digits_to_cortex_m", "c", "cortex-m3")
    assert text == promised("digits_to_cortex_m")


@pytest.mark.slow
def test_own_torch_model(printed):
    text = printed("own_torch_model", "c")
    (accuracy,) = numbers(r"float32: (\S+) %", text)
    (deployed, same) = numbers(r"integers: (\S+) %, .* for (\d+) of 359", text)
    assert min(accuracy, deployed) > 90
    assert same > 340


def test_pictures_to_firmware(printed):
    """The command that it shows writes what it wrote."""
    text = printed("pictures_to_firmware", "c")
    assert numbers(r"right: (\S+) %", text)[0] > 85
    place = Path("build/examples/pictures_to_firmware")
    command = next(line for line in text.splitlines() if line.startswith("samebits ship"))
    words = command.replace("--out firmware", "--out again").split()[1:]
    done = subprocess.run(
        [sys.executable, "-m", "samebits", *words],
        cwd=place,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "same bits: yes" in done.stdout
    made = [
        {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*.[ch]")}
        for folder in (place / "firmware", place / "again")
    ]
    assert made[0] == made[1] != {}
    assert (place / "again/model.weights").read_bytes() == (
        place / "firmware/model.weights"
    ).read_bytes()


@pytest.mark.slow
def test_onnx_from_elsewhere(printed):
    pytest.importorskip("skl2onnx")
    text = printed("onnx_from_elsewhere", "c", "onnxruntime-integer")
    (same,) = numbers(r"agree on (\d+) of 143", text)
    (largest,) = numbers(r"largest difference (\S+)", text)
    assert same >= 140
    assert largest < 0.2
    assert Path("build/examples/onnx_from_elsewhere/model.q.onnx").is_file()


@pytest.mark.slow
def test_keyword_spotting(printed):
    text = printed("keyword_spotting", "c", "cortex-m3")
    expected = promised("keyword_spotting")
    *same, instructions = text.splitlines()
    assert same == expected.splitlines()[:-1]
    assert numbers(r"^(\S+) instructions", instructions)[0] > 100_000


@pytest.mark.slow
def test_anomaly_detection(printed):
    text = printed("anomaly_detection", "c")
    assert min(numbers(r"broken: (\S+) in float32, (\S+) in integers", text)) > 0.95
    (healthy, broken) = numbers(r"alarms: (\S+) % of the healthy, (\S+) % of the broken", text)
    assert healthy < 10
    assert broken > 80


@pytest.mark.slow
def test_finetune_in_bfp(printed):
    text = printed("finetune_in_bfp")
    (before, shifted) = numbers(r"deployed in integers: (\S+) %, and on .*: (\S+) %", text)
    (after,) = numbers(r"on 1 thread: (\S+) %", text)
    assert before > 90
    assert after > 85 > shifted
    first, second = re.findall(HASH, text)
    assert first == second


@pytest.mark.slow
def test_recompute_budget(printed):
    text = printed("recompute_budget")
    memory = [float(size) for size in re.findall(r"(\S+) MiB", text)]
    unplanned, *planned = memory
    assert planned == sorted(planned, reverse=True)
    assert planned[0] <= unplanned
    assert planned[2] <= 0.6 * unplanned + 0.05  # the budget of 60 %, as it is printed
    assert planned[3] < 0.55 * unplanned
    assert len(set(re.findall(HASH, text))) == 1
    assert b"<svg" in Path("build/examples/recompute_budget/least.svg").read_bytes()


def test_firmware_by_hand(printed):
    """The hash of the outputs is the same on every machine."""
    text = printed("firmware_by_hand")
    assert re.findall(HASH, text) == re.findall(HASH, promised("firmware_by_hand"))


def missing(name: str, monkeypatch, *arguments: str) -> str:
    """The sentence with which a script ends."""
    monkeypatch.setattr(sys, "argv", [f"{name}.py", *arguments])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")
    assert isinstance(ended.value.code, str)  # which Python prints, without a traceback
    return ended.value.code


def test_a_package_that_is_missing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for package in ("sklearn", "sklearn.datasets"):
        monkeypatch.setitem(sys.modules, package, None)
    for name in ("digits_to_cortex_m", "finetune_in_bfp", "own_torch_model"):
        assert "run: pip install scikit-learn" in missing(name, monkeypatch)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    found = missing("onnx_from_elsewhere", monkeypatch)
    assert found.startswith("onnxruntime is not installed; install it: pip install onnxruntime")


def test_files_that_are_missing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "none: no such file or folder" in missing("keyword_spotting", monkeypatch, "none")
    assert "none: no such file or folder" in missing("firmware_by_hand", monkeypatch, "none")
    found = missing("onnx_from_elsewhere", monkeypatch, "none")
    assert found == "expected model.onnx and samples.npz, found none"


@pytest.mark.slow
def test_a_compiler_that_is_missing(tmp_path, monkeypatch, capsys):
    """What needs none is done before."""
    monkeypatch.chdir(tmp_path)
    find = shutil.which
    monkeypatch.setattr(
        shutil, "which", lambda name, *rest: None if name.startswith("arm-") else find(name, *rest)
    )
    found = missing("digits_to_cortex_m", monkeypatch)
    assert "cortex-m3 cannot run here" in found
    assert "arm-none-eabi-gcc is not installed (install it" in found
    assert "10 digits on training, torch, c; same bits: True\n" in capsys.readouterr().out


# --- notebooks -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_is_committed_without_outputs(name):
    nbformat = pytest.importorskip("nbformat")
    notebook = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
    nbformat.validate(notebook)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            assert (cell.outputs, cell.execution_count) == ([], None)


def executed(name: str, folder: Path) -> str:
    """Everything that a notebook shows, in a kernel of its own; drawings by their type."""
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    notebook = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
    place = {"metadata": {"path": str(folder)}}
    nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3", resources=place).execute()
    shown = []
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            shown += [output.get("text", ""), *output.get("data", {})]
            shown.append(output.get("data", {}).get("text/plain", ""))
    return "\n".join(shown)


@pytest.mark.slow
def test_comparing_formats(tmp_path):
    shown = executed("comparing_formats", tmp_path)
    assert re.search(r"^msfp12 +\d\d\.\d\d %", shown, flags=re.MULTILINE)
    assert shown.count("image/png") == 2
    first, second = re.findall(r"^[0-9a-f]{64}$", shown, flags=re.MULTILINE)
    assert first == second


@pytest.mark.slow
def test_audit_of_two_machines(tmp_path):
    """In float32 two machines may agree; in integers they must."""
    shown = executed("audit_of_two_machines", tmp_path)
    assert shown.count("image/png") == 2
    verdicts = re.findall(r"same bits: (yes|NO)", shown)
    assert len(verdicts) == 3
    assert verdicts[1:] == ["yes", "yes"]
    assert "24 steps agree" in shown
