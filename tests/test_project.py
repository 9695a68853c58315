import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def make_targets() -> set[str]:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    return set(re.findall(r"^([a-z][a-z-]*):", text, flags=re.MULTILINE))


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "docs/results.md"])
def test_make_commands_in_the_docs_exist(page):
    named = set(re.findall(r"\bmake ([a-z][a-z-]*)", (ROOT / page).read_text(encoding="utf-8")))
    assert named, f"{page} names no make command"
    assert named <= make_targets()


def test_readme_names_the_two_commands():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "make demo" in text
    assert "make test" in text


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_links_lead_to_files(page):
    links = re.findall(r"\]\(([^)]+)\)", (ROOT / page).read_text(encoding="utf-8"))
    missing = [link for link in links if "://" not in link and not (ROOT / link).exists()]
    assert missing == []


def test_continuous_integration_runs_make_test():
    script = ROOT / ".ci" / "run"
    lines = script.read_text(encoding="utf-8").splitlines()
    assert "set -euo pipefail" in lines
    assert [line for line in lines if line.startswith("make")] == ["make test"]
    assert os.access(script, os.X_OK)


def test_changelog_has_the_version():
    version = PROJECT["project"]["version"]
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"\n## [{version}] - " in changelog


def test_constraints_pin_every_dependency():
    project = PROJECT["project"]
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    wanted = {re.split(r"[\[<>=!~; ]", need, maxsplit=1)[0] for group in groups for need in group}
    pinned = re.findall(
        r"^([A-Za-z0-9_.-]+)==\S+$",
        (ROOT / "constraints.txt").read_text(encoding="utf-8"),
        flags=re.MULTILINE,
    )
    assert wanted - {"samebits"} <= set(pinned)


def test_import_rules_are_configured():
    kinds = [contract["type"] for contract in PROJECT["tool"]["importlinter"]["contracts"]]
    assert sorted(kinds) == ["forbidden", "forbidden", "forbidden", "layers"]


def test_package_data_names_the_c_sources():
    assert PROJECT["tool"]["setuptools"]["package-data"]["samebits.csrc"] == [
        "*.h",
        "*/*.c",
        "*/*.h",
        "*/*.ld",
    ]


def test_no_file_names_a_folder_of_one_machine():
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("not a git checkout: the list of files is unknown")
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    # Concatenated, so that this file does not hold what it looks for.
    needles = ["/" + folder + "/" for folder in ("work", "home", "root", "Users")]
    found = []
    for name in filter(None, listed.split("\0")):
        path = ROOT / name
        if not path.is_file() or path.is_symlink():
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # not text
        found += [f"{name}: {needle}" for needle in needles if needle in text]
    assert found == []
