"""Functions of a user's own by name: module:callable and file.py:callable, by one parser."""

from __future__ import annotations

import sys

import pytest

from samebits.callables import is_callable_name, named_callable
from samebits.errors import InputError

SOURCE = "def make():\n    return 7\n\nnumber = 3\n"
FORM = "module:callable or path/to/file.py:callable"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current folder, with a module, a package and a broken file; forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    known = set(sys.modules)
    (tmp_path / "own_module.py").write_text(SOURCE)
    (tmp_path / "own_package").mkdir()
    (tmp_path / "own_package" / "part.py").write_text(SOURCE)
    (tmp_path / "broken.py").write_text("raise ValueError('no such luck')\n")
    yield tmp_path
    for name in set(sys.modules) - known:
        if name.startswith("own_"):
            del sys.modules[name]


@pytest.mark.parametrize(
    ("name", "holds"),
    [
        ("module:callable", True),
        ("package.module:make", True),
        ("path/to/file.py:make", True),
        ("c:\\nets\\file.py:make", True),
        ("cnn", False),
        (":make", False),
        ("module:", False),
        ("module:two words", False),
        ("module:1st", False),
        ("", False),
    ],
)
def test_the_form_of_a_name(name, holds):
    assert is_callable_name(name) == holds


def test_of_the_standard_library():
    assert named_callable("os.path:basename", "--arch")("a/b") == "b"


@pytest.mark.parametrize("place", ["own_module", "own_package.part"])
def test_modules_in_the_current_folder(folder, place):
    before = list(sys.path)
    assert named_callable(f"{place}:make", "--arch")() == 7
    assert sys.path == before


def test_files(folder):
    assert named_callable("own_module.py:make", "--arch")() == 7
    (folder / "below").mkdir()
    (folder / "below" / "net.v2.py").write_text("def make():\n    return 2\n")
    assert named_callable("below/net.v2.py:make", "--arch")() == 2
    assert named_callable(f"{folder}/below/net.v2.py:make", "--arch")() == 2
    assert "own_module" not in sys.modules  # a file is no module: another may have its name


def test_a_file_may_define_dataclasses(folder):
    (folder / "own_data.py").write_text(
        "from __future__ import annotations\n"
        "from dataclasses import dataclass\n\n"
        "@dataclass\nclass Net:\n    width: int = 3\n"
    )
    assert named_callable("own_data.py:Net", "--arch")().width == 3


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("cnn", f"--arch: expected {FORM}, found 'cnn'"),
        ("own_module:", f"--arch: expected {FORM}, found 'own_module:'"),
        (
            "own_absent:make",
            "--arch own_absent:make: cannot import 'own_absent' (ModuleNotFoundError: No module "
            f"named 'own_absent'); expected {FORM}",
        ),
        (
            "absent.py:make",
            "--arch absent.py:make: cannot import 'absent.py' (FileNotFoundError: no such file: "
            f"absent.py); expected {FORM}",
        ),
        (
            "broken.py:make",
            "--arch broken.py:make: cannot import 'broken.py' (ValueError: no such luck); expected "
            f"{FORM}",
        ),
        (
            "own_module:absent",
            "--arch own_module:absent: expected a callable in own_module, found nothing of that "
            "name",
        ),
        ("own_module.py:number", "--arch own_module.py:number: expected a callable in "
         "own_module.py, found int"),
    ],
)  # fmt: skip
def test_errors(folder, name, message):
    with pytest.raises(InputError) as caught:
        named_callable(name, "--arch")
    assert str(caught.value) == message


def test_a_folder_is_no_file(folder):
    (folder / "folder.py").mkdir()
    with pytest.raises(InputError, match=r"cannot import 'folder\.py' \("):
        named_callable("folder.py:make", "--arch")
