import json
import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def make_targets() -> set[str]:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    return set(re.findall(r"^([a-z][a-z-]*):", text, flags=re.MULTILINE))


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "SECURITY.md", "docs/results.md"])
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
        r"^([A-Za-z0-9_.-]+)==\S+ \\$",
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


# --- how others meet the project ----------------------------------------------------------------

GITHUB = ROOT / ".github"
FORMS = sorted(path for path in (GITHUB / "ISSUE_TEMPLATE").glob("*.yml") if path.stem != "config")


def read_yaml(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def pythons() -> list[str]:
    """The versions of Python that the classifiers name, oldest first."""
    named = "Programming Language :: Python :: (3.[0-9]+)"
    found = [re.fullmatch(named, text) for text in PROJECT["project"]["classifiers"]]
    return [match[1] for match in found if match]


def test_the_oldest_python_is_the_one_that_is_required():
    assert PROJECT["project"]["requires-python"] == f">={pythons()[0]}"


@pytest.mark.parametrize("path", sorted((GITHUB / "workflows").iterdir()), ids=lambda p: p.name)
def test_a_workflow(path):
    workflow = read_yaml(path)
    assert workflow["name"] == path.stem
    assert workflow["permissions"] == {"contents": "read"}
    triggers = workflow[True]  # what YAML 1.1 reads "on" as
    assert "push" in triggers
    for job in workflow["jobs"].values():
        assert job["timeout-minutes"] > 0
        matrix = job.get("strategy", {}).get("matrix", {}).get("python-version")
        assert matrix in (None, pythons())
        for step in job["steps"]:
            assert ("uses" in step) != ("run" in step)
            if "uses" in step:
                assert re.fullmatch(r"actions/[a-z-]+@[0-9a-f]{40}", step["uses"])
                assert re.search(rf"{step['uses']} # v\d+\.\d+\.\d+\n", path.read_text())
            if step.get("uses", "").startswith("actions/setup-python"):
                asked = step["with"]["python-version"]
                assert asked == ("${{ matrix.python-version }}" if matrix else pythons()[0])
            for target in re.findall(r"^make ([a-z-]+)", step.get("run", "")):
                assert target in make_targets()


def test_workflows_run_the_tests_and_build_the_wheel():
    runs = {
        step["run"]
        for path in (GITHUB / "workflows").iterdir()
        for job in read_yaml(path)["jobs"].values()
        for step in job["steps"]
        if "run" in step
    }
    assert {"make test PYTHON=python", "make wheel PYTHON=python", "samebits doctor"} <= runs


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_a_form_of_an_issue(path):
    """GitHub's syntax of forms, and commands that exist."""
    from samebits.cli import app

    form = read_yaml(path)
    assert {"name", "description", "title", "body"} == form.keys()
    ids = [part["id"] for part in form["body"]]
    assert len(ids) == len(set(ids))
    for part in form["body"]:
        assert part["type"] in ("input", "textarea")
        assert part["attributes"]["label"]
        assert isinstance(part["validations"]["required"], bool)
    commands = {command.name for command in app.registered_commands}
    named = set(re.findall(r"\bsamebits ([a-z]+)", path.read_text(encoding="utf-8")))
    assert named - {"that", "does"} <= commands


def test_a_report_of_other_bits_asks_for_what_shows_them():
    form = read_yaml(GITHUB / "ISSUE_TEMPLATE" / "bits.yml")
    wanted = {part["attributes"]["label"]: part["validations"]["required"] for part in form["body"]}
    assert wanted["samebits doctor --json"]
    assert wanted["samebits audit"]
    assert {path.stem for path in FORMS} == {"bits", "question", "unsupported"}


def test_the_citation_is_that_of_the_project():
    """The keys that the schema of the Citation File Format 1.2.0 requires."""
    citation, project = read_yaml(ROOT / "CITATION.cff"), PROJECT["project"]
    assert {"authors", "cff-version", "message", "title"} <= citation.keys()
    assert citation["cff-version"] == "1.2.0"
    assert citation["type"] == "software"
    for key, value in (
        ("title", project["name"]),
        ("version", project["version"]),
        ("license", project["license"]),
        ("authors", project["authors"]),
    ):
        assert citation[key] == value
    assert set(citation["keywords"]) <= set(project["keywords"])


def test_the_container_of_editors():
    container = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text())
    assert f"/python:{pythons()[0]}-" in container["image"]
    make, target = container["postCreateCommand"].split()
    assert make == "make"
    assert target in make_targets()


def test_the_container_of_the_program():
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    assert f"\nFROM python:{pythons()[0]}-" in text
    copied = re.search(r"^COPY (.+) \./$", text, flags=re.MULTILINE)[1].split()
    copied += re.search(r"^COPY (.+) tools/$", text, flags=re.MULTILINE)[1].split()
    kept = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    for name in (*copied, "src"):
        assert (ROOT / name).exists()
        assert f"!{name}" in kept
    (extra,) = re.findall(r"'\.\[(\w+)\]'", text)
    assert extra in PROJECT["project"]["optional-dependencies"]


def test_hooks_run_what_lint_runs():
    (repository,) = read_yaml(ROOT / ".pre-commit-config.yaml")["repos"]
    assert repository["repo"] == "local"
    tools = {hook["entry"].split()[0] for hook in repository["hooks"]}
    recipe = (ROOT / "Makefile").read_text(encoding="utf-8").partition("\nlint:")[2]
    recipe = recipe.partition("\n\n")[0]
    assert tools == {f".venv/bin/{name}" for name in re.findall(r"\$\(BIN\)/([\w-]+)", recipe)}


def test_security_names_no_address():
    text = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    assert "private vulnerability reporting" in text
    assert "@" not in text
    assert "://" not in text


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
