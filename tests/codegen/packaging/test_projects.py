"""Projects of every kind: their rules, restated; built and run with a stand-in of the framework."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from string import Template

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from adder_package import adder
from samebits.codegen import write_package
from samebits.codegen.packaging import projects
from samebits.codegen.packaging.projects import PROJECTS, TARGETS, Manifest, arranged
from samebits.errors import InputError
from samebits.ir.graph import GraphBuilder

ABOUT = Manifest("kws", "0.2.0", "Adds two numbers.", "Apache-2.0", "0.2.0")
OTHERS = PROJECTS[1:]
WARNINGS = ("-Wall", "-Wextra", "-Wshadow", "-pedantic", "-Werror")
PASSED = "kws: self-test passed"
SEMVER = (  # semver.org, without groups
    r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)"
    r"(-(0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*)(\.(0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*))*)?"
    r"(\+[0-9a-zA-Z-]+(\.[0-9a-zA-Z-]+)*)?"
)
EVIL = (
    '"); message(FATAL_ERROR "',
    "${CMAKE_VERSION} $ENV{PATH} $(shell,id) $$ ${{",
    "\\",
    'a\\"b\\\\$',
    "VERSION",
    "]] [=[ # \\n \\; ; @model@ @VERSION@ @@",
    "a: b # c, - {d} 'e' & *f !g %h `i",
    "*/ // */ <%= %> {{ }} =",
    "null",
)


def about(prefix: str = "kws", **changes: str) -> Manifest:
    return Manifest(**{**vars(ABOUT), "prefix": prefix, **changes})


def write(folder: Path, files: Mapping[str, str | bytes]) -> Path:
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data.encode() if isinstance(data, str) else data)
    return folder


def package(folder: Path, project: str, prefix: str = "kws", **changes: str) -> Path:
    """A package on disk."""
    return write(folder, arranged(project, adder(prefix), about(prefix, **changes)))


def tool(*names: str) -> str:
    """The path of the first program that is there; skips the test without any."""
    found = next(filter(None, map(shutil.which, names)), None)
    if found is None:
        pytest.skip(f"needs {' or '.join(names)}")
    return found


def ran(*command: str | Path, cwd: Path | None = None, **environment: str) -> str:
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, env={**os.environ, **environment},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def refused(*command: str | Path, **environment: str) -> str:
    """The messages of a command that has to fail."""
    done = subprocess.run(
        list(map(str, command)), env={**os.environ, **environment},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode != 0, done.stdout
    return done.stdout + done.stderr


def compiled(source: Path, out: Path, includes: Sequence[Path]) -> list[str | Path]:
    """The command that makes an object of one source, C99 or C++11, every warning an error."""
    plus = source.suffix == ".cpp"
    compiler = [tool("c++", "g++"), "-std=c++11"] if plus else [tool("cc", "gcc"), "-std=c99"]
    return [*compiler, *WARNINGS, *(f"-I{path}" for path in includes), "-c", source, "-o", out]


def linked(folder: Path, sources: Sequence[Path], includes: Sequence[Path]) -> Path:
    """One program of all objects, in the way of build systems that link no archives."""
    folder.mkdir(exist_ok=True)
    objects = [folder / f"{i}.o" for i in range(len(sources))]
    for source, out in zip(sources, objects, strict=True):
        ran(*compiled(source, out, includes))
    ran(tool("c++", "g++"), *objects, "-o", folder / "program")
    return folder / "program"


def configured(source: Path, build: Path, *options: str, **environment: str) -> None:
    ran(tool("cmake"), "-S", source, "-B", build, *options, **environment)
    ran("cmake", "--build", build)


# --- all projects -----------------------------------------------------------------------------


def test_make_is_the_package_itself():
    assert PROJECTS == ("make", "cmake", "arduino", "zephyr", "espidf", "platformio")
    assert arranged("make", adder(), ABOUT) == adder()


@pytest.mark.parametrize("project", OTHERS)
def test_golden_texts(project: str, golden: Callable[[str, str], None]) -> None:
    """Every path, and the text of each file that the project adds or changes."""
    files, lines = adder(), []
    for path, data in sorted(arranged(project, files, ABOUT).items()):
        source = next((name for name, text in files.items() if text == data), None)
        lines.append(f"=== {path}" + (f" <- {source}" if source else "") + "\n")
        lines += [] if source else [str(data)]
    golden(f"tests/golden/projects/{project}.txt", "".join(lines))


def test_every_template_is_used_and_shipped(monkeypatch: pytest.MonkeyPatch) -> None:
    used = set()

    def template(name: str) -> str:
        used.add(name)
        return (projects.TEMPLATES / name).read_text(encoding="utf-8")

    monkeypatch.setattr(projects, "_template", template)
    for project in OTHERS:
        arranged(project, adder(), ABOUT)
    folder = projects.TEMPLATES
    there = {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}
    assert used == there
    text = (Path(__file__).parents[3] / "pyproject.toml").read_text(encoding="utf-8")
    data = tomllib.loads(text)["tool"]["setuptools"]["package-data"]
    (pattern,) = data["samebits.codegen.packaging"]
    assert {str(p.relative_to(folder)) for p in folder.parent.glob(pattern)} == there


@pytest.mark.parametrize("project", OTHERS)
def test_files_stay_inside_and_sources_stay_as_they_are(project: str) -> None:
    files = adder()
    found = arranged(project, files, ABOUT)
    for path in found:
        assert re.fullmatch(r"[\w.-]+(/[\w.-]+)*", path, re.ASCII)
        assert ".." not in path.split("/")
    gone = {name for name, data in files.items() if data not in found.values()}
    harness = {"test/kws_main.c", "test/kws_vectors.h"}
    assert gone == {"Makefile", "README.md"} | (set() if project == "cmake" else harness)
    assert found["report.json"] == files["report.json"]  # by which the folder is known again


@pytest.mark.parametrize("project", ["make", *OTHERS])
def test_a_readme_promises_what_its_folder_has(project: str, tmp_path: Path) -> None:
    """Commands and paths of the layout make are told of that layout alone."""
    graph = GraphBuilder("net")
    x = graph.input("x", "int8", (1, 4))
    total = graph.add("add", [x, x], {"factors": (1, 1), "offset": 0})
    write_package(graph.build([total]), tmp_path / "out", project=project)
    text = (tmp_path / "out/README.md").read_text()
    assert ("make test" in text) == (tmp_path / "out/Makefile").exists() == (project == "make")
    assert ("`samebits/samebits_kernels.c`" in text) == (project == "make")
    assert "@" not in text


@pytest.mark.parametrize("project", OTHERS)
def test_readme_gets_a_short_section(project: str) -> None:
    text = str(arranged(project, adder(), ABOUT)["README.md"])
    before, title, section = text.partition("\n## ")
    assert before == "# kws\n\nAdds two numbers.\n"
    assert len((title + section).strip("\n").splitlines()) <= 10
    assert max(map(len, section.splitlines())) <= 102
    assert "@" not in section
    files = {name: data for name, data in adder().items() if name != "README.md"}
    assert str(arranged(project, files, ABOUT)["README.md"]).startswith("# kws\n\n## ")
    files["README.md"] = b"# bytes\n"
    assert str(arranged(project, files, ABOUT)["README.md"]).startswith("# bytes\n\n## ")


@pytest.mark.parametrize("project", OTHERS)
def test_other_files_and_a_report_without_a_stack_are_taken(project: str) -> None:
    files = {**adder(), "report.json": "[]", "kws_audio.c": "typedef int kws_audio;\n"}
    found = arranged(project, files, ABOUT)
    assert sum(path.endswith("kws_audio.c") for path in found) == 1
    if project == "zephyr":
        assert "MAIN_STACK_SIZE=4096" in str(found["samples/kws_selftest/prj.conf"])
        assert "kws_audio.c" in str(found["zephyr/CMakeLists.txt"])
    assert arranged(project, {**files, "report.json": "{"}, ABOUT).keys() == found.keys()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prefix": "k w"}, "expected a C identifier"),
        ({"prefix": "ocr"}, "found no ocr.h, ocr.c"),
        ({"description": "two\nlines"}, "expected one line"),
        ({"description": "   "}, "expected one line"),
        ({"description": "x" * 256}, "expected one line"),
        ({"description": "caf\u00e9"}, "expected one line"),
        ({"licence": 'MIT"'}, "expected an SPDX expression"),
        ({"licence": ""}, "expected an SPDX expression"),
        ({"url": "https://a.org/$(id)"}, "expected an http address"),
        ({"url": "javascript:1"}, "expected an http address"),
        ({"version": "1"}, "version of the package"),
        ({"version": "1.0.0\n"}, "version of the package"),
        ({"kernels_version": '1.0.0"'}, "version of the kernels"),
    ],
)
@pytest.mark.parametrize("project", OTHERS)
def test_bad_texts_are_refused(project: str, changes: dict[str, str], message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        arranged(project, adder(), Manifest(**{**vars(ABOUT), **changes}))


def test_bad_projects_and_files_are_refused():
    with pytest.raises(InputError, match="make, cmake, arduino, zephyr, espidf, platformio"):
        arranged("bazel", adder(), ABOUT)
    for name in ("../x.c", "/x.c", "a b.c", "a//b.c", "x$.c", ".."):
        with pytest.raises(InputError, match="expected relative paths"):
            arranged("cmake", {**adder(), name: ""}, ABOUT)
    files = {name: data for name, data in adder().items() if not name.startswith("test/")}
    assert arranged("zephyr", files, ABOUT) == arranged("zephyr", adder(), ABOUT)
    with pytest.raises(InputError, match=r"found no test/kws_main\.c"):
        arranged("cmake", files, ABOUT)
    for name in sorted(TARGETS):
        with pytest.raises(InputError, match="CMake has a target"):
            arranged("cmake", adder(name), about(name))


@pytest.mark.parametrize(
    ("version", "wanted"),
    [
        ("1.2.3", "1.2.3"),
        ("1.2", "1.2.0"),
        ("0.1.0.dev0", "0.1.0-dev0"),
        ("1.0rc1", "1.0.0-rc1"),
        ("1.0.0-rc.1", "1.0.0-rc.1"),
        ("01.02.3a1.dev2", "1.2.3-a1.dev2"),
        ("1.0.0.post2", "1.0.0+post2"),
        ("1.0.0+gabc.1", "1.0.0+gabc.1"),
    ],
)
def test_versions_are_semantic(version: str, wanted: str) -> None:
    found = arranged("platformio", adder(), about(version=version, kernels_version=version))
    for folder in ("kws", "samebits_kernels"):
        assert json.loads(found[f"{folder}/library.json"])["version"] == wanted
    assert re.fullmatch(SEMVER, wanted)
    number = re.split("[-+]", wanted)[0]
    text = str(arranged("cmake", adder(), about(version=version))["CMakeLists.txt"])
    assert f"project(kws VERSION {number} LANGUAGES C)" in text


@given(st.from_regex(r"\d{1,2}\.\d{1,2}(\.\d{1,2})?[-.+a-z0-9]{0,12}", fullmatch=True))
@settings(max_examples=500)
def test_any_version_is_semantic_or_refused(version: str) -> None:
    try:
        found = arranged("espidf", adder(), about(version=version))
    except InputError:
        return
    manifest = yaml.safe_load(str(found["components/kws/idf_component.yml"]))
    assert re.fullmatch(SEMVER, manifest["version"])


# --- descriptions from anywhere -----------------------------------------------------------------

PRINTABLE = st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=1, max_size=60)


def in_every_format(text: str) -> None:
    """Each format's reader finds the description, and nothing else has changed."""
    changed = about(description=text)
    found = {project: arranged(project, adder(), changed) for project in OTHERS}
    text = text.strip(" ")
    library = json.loads(found["platformio"]["kws/library.json"])
    assert library.pop("description") == text
    manifest = yaml.safe_load(str(found["espidf"]["components/kws/idf_component.yml"]))
    assert Template(manifest.pop("description")).substitute({}) == text
    fields = properties(str(found["arduino"]["kws/library.properties"]))
    assert fields.pop("sentence") == text
    # Kconfig expands macros in prompts, a shell's too, and reads a help text as it is.
    before, _, after = str(found["zephyr"]["zephyr/Kconfig"]).partition("help\n")
    assert after == f"\t  {text}\n"
    assert "$" not in before
    plain = {project: arranged(project, adder(), ABOUT) for project in OTHERS}
    assert library.items() <= json.loads(plain["platformio"]["kws/library.json"]).items()
    assert manifest["version"] == "0.2.0"
    holders = {"CMakeLists.txt", "kws/library.json", "components/kws/idf_component.yml"}
    holders |= {"kws/library.properties", "zephyr/Kconfig"}
    for project in OTHERS:
        differ = {p for p, data in found[project].items() if data != plain[project][p]}
        assert differ <= holders


@given(PRINTABLE.filter(str.strip))
def test_descriptions_are_escaped(text: str) -> None:
    in_every_format(text)


@pytest.mark.parametrize("text", EVIL)
def test_evil_descriptions_are_escaped(text: str) -> None:
    in_every_format(text)


@given(st.text(max_size=300))
def test_any_description_is_escaped_or_refused(text: str) -> None:
    try:
        arranged("cmake", adder(), about(description=text))
    except InputError:
        assert re.fullmatch(r" *|.{256,}|.*[^ -~].*", text, re.DOTALL)
    else:
        in_every_format(text)


STUBS = """\
foreach(command project add_library target_include_directories set_target_properties
        target_link_libraries target_compile_definitions enable_testing add_executable add_test
        install)
  cmake_language(EVAL CODE "function(${command})\\nendfunction()")
endforeach()
function(get_target_property name)
  set(${name} 0.2.0 PARENT_SCOPE)
endfunction()
"""


@given(st.lists(PRINTABLE.filter(str.strip), min_size=20, max_size=60))
@example(list(EVIL))
@settings(max_examples=8)
def test_cmake_reads_the_description(tmp_path_factory, texts: list[str]) -> None:
    cmake, folder = tool("cmake"), tmp_path_factory.mktemp("descriptions")
    script = STUBS
    for i, text in enumerate(texts):
        files = arranged("cmake", adder(), about(description=text))
        (folder / f"{i}.cmake").write_text(str(files["CMakeLists.txt"]))
        script += f"include({folder}/{i}.cmake)\n"
        script += f'file(APPEND {folder}/out "${{PROJECT_DESCRIPTION}}\\n")\n'
    (folder / "script.cmake").write_text(script)
    ran(cmake, "-P", folder / "script.cmake")
    assert (folder / "out").read_text() == "".join(text.strip(" ") + "\n" for text in texts)


# --- CMake --------------------------------------------------------------------------------------

PARENT = """\
cmake_minimum_required(VERSION 3.14)
project(parent C CXX)
enable_testing()
add_subdirectory(kws)
include(FetchContent)
FetchContent_Declare(ocr SOURCE_DIR "${CMAKE_CURRENT_SOURCE_DIR}/ocr")
FetchContent_MakeAvailable(ocr)
add_executable(app app.cpp)
target_link_libraries(app PRIVATE kws::kws ocr)
add_test(NAME app COMMAND app)
"""

APP = """\
#include "kws.h"
#include "ocr.h"
int main() {
    KWS_INSTANCE(one);
    OCR_INSTANCE(two);
    return kws_selftest(&one) + ocr_selftest(&two);
}
"""


def test_cmake_builds_tests_and_installs(tmp_path: Path) -> None:
    folder = package(tmp_path / "kws", "cmake", description=EVIL[0])
    flags = "-DCMAKE_C_FLAGS=" + " ".join(WARNINGS)
    configured(folder, tmp_path / "build", flags, f"-DCMAKE_INSTALL_PREFIX={tmp_path / 'there'}")
    tests = ran("ctest", "--output-on-failure", cwd=tmp_path / "build")
    assert "100% tests passed, 0 tests failed out of 1" in tests
    ran("cmake", "--install", tmp_path / "build")
    there = tmp_path / "there"
    (tmp_path / "app.cpp").write_text(APP.replace("ocr", "kws").replace("OCR", "KWS"))
    ran(
        tool("c++", "g++"), tmp_path / "app.cpp", f"-I{there}/include", f"-L{there}/lib",
        "-lkws", "-lsamebits_kernels", "-o", tmp_path / "app",
    )  # fmt: skip
    ran(tmp_path / "app")


def test_cmake_models_share_the_kernels(tmp_path: Path) -> None:
    write(tmp_path, {"CMakeLists.txt": PARENT, "app.cpp": APP})
    package(tmp_path / "kws", "cmake")
    package(tmp_path / "ocr", "cmake", "ocr", version="0.3.0")
    configured(tmp_path, tmp_path / "build")
    tests = ran("ctest", "--output-on-failure", cwd=tmp_path / "build")
    assert "out of 1" in tests  # those of the models are off inside another project
    made = sorted(path.name for path in (tmp_path / "build").rglob("*.a"))
    assert made == ["libkws.a", "libocr.a", "libsamebits_kernels.a"]
    configured(tmp_path, tmp_path / "tested", "-DKWS_TEST=ON", "-DOCR_TEST=ON")
    assert "out of 3" in ran("ctest", cwd=tmp_path / "tested")


def test_cmake_kernels_of_two_versions_are_an_error(tmp_path: Path) -> None:
    cmake = tool("cmake")
    write(tmp_path, {"CMakeLists.txt": PARENT, "app.cpp": APP})
    package(tmp_path / "kws", "cmake")
    package(tmp_path / "ocr", "cmake", "ocr", kernels_version="0.3.0")
    said = " ".join(refused(cmake, "-S", tmp_path, "-B", tmp_path / "build").split())
    assert "ocr: expected samebits_kernels of version 0.3.0, found 0.2.0 from another" in said


def test_cmake_builds_no_test_for_another_machine(tmp_path: Path) -> None:
    compiler = tool("arm-none-eabi-gcc")
    folder = package(tmp_path / "kws", "cmake")
    options = ("-DCMAKE_SYSTEM_NAME=Generic", "-DCMAKE_TRY_COMPILE_TARGET_TYPE=STATIC_LIBRARY")
    configured(folder, tmp_path / "build", *options, f"-DCMAKE_C_COMPILER={compiler}")
    made = {path.name for path in (tmp_path / "build").iterdir()}
    assert {"libkws.a", "libsamebits_kernels.a"} <= made
    assert "kws_test" not in made


# --- Arduino ------------------------------------------------------------------------------------

CATEGORIES = (
    *("Display", "Communication", "Signal Input/Output", "Sensors", "Device Control", "Timing"),
    *("Data Storage", "Data Processing", "Other"),
)
REQUIRED = (
    *("name", "version", "author", "maintainer", "sentence", "paragraph", "category", "url"),
    "architectures",
)
ARDUINO = """\
#include <stdio.h>
struct Port {
    void begin(long) {}
    void println(const char *text) { puts(text); }
};
extern Port Serial;
static inline void delay(unsigned long) {}
void setup();
void loop();
"""


def properties(text: str) -> dict[str, str]:
    """A file of key=value lines; spaces around a value do not count."""
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    pairs = [line.partition("=")[::2] for line in lines]
    assert len(dict(pairs)) == len(pairs)
    return {key: value.strip() for key, value in pairs}


def check_library(library: Path) -> dict[str, str]:
    """The rules of Arduino's library specification, and of arduino-lint, restated."""
    fields = properties((library / "library.properties").read_text())
    assert [key for key in REQUIRED if not fields.get(key)] == []
    assert re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}", library.name)
    assert fields["name"] == library.name
    assert re.search("[A-Za-z]", fields["name"])
    assert not re.match("arduino", fields["name"] + fields["maintainer"], re.IGNORECASE)
    assert re.fullmatch(SEMVER, fields["version"])
    assert fields["category"] in CATEGORIES
    assert re.fullmatch(r"https?://\S+", fields["url"])
    for header in fields["includes"].split(","):
        assert (library / "src" / header).is_file()
    # Nothing in the root of src but what sketches include, nothing flat beside src.
    assert {path.name for path in (library / "src").glob("*.*")} == {fields["includes"]}
    assert [path for path in library.glob("*") if path.suffix in (".c", ".cpp", ".h")] == []
    assert not any(re.search(r"\bmain *\(", p.read_text()) for p in (library / "src").rglob("*.c"))
    assert all(" " not in str(path.relative_to(library)) for path in library.rglob("*"))
    for sketch in (library / "examples").glob("*"):
        assert (sketch / f"{sketch.name}.ino").is_file()
        assert re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,62}", sketch.name)
    return fields


def sketch(folder: Path, libraries: Sequence[Path], text: str) -> tuple[list[Path], list[Path]]:
    """Sources and include folders that the Arduino builder takes for a sketch.

    It compiles until a header is missing, looks for it among the headers in the roots of all src
    folders, and adds that library: "Sketch build process", dependency resolution.
    """
    main = "Port Serial;\nint main() {\n    setup();\n    loop();\n    return 0;\n}\n"
    write(folder, {"Arduino.h": ARDUINO, "sketch.cpp": f"#include <Arduino.h>\n{text}{main}"})
    sources, includes = [folder / "sketch.cpp"], [folder]
    scanned = 0
    while scanned < len(sources):
        command = [*compiled(sources[scanned], folder / "out", includes), "-E"]
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
        if done.returncode == 0:
            scanned += 1
            continue
        missing = re.search(r"fatal error: ([^:\n]+): No such file", done.stderr)
        assert missing, done.stderr
        found = [path for path in libraries if (path / "src" / missing[1]).is_file()]
        assert "/" not in missing[1], f"no header in the root of a src: {missing[1]}"
        assert len(found) == 1, missing[1]
        includes.append(found[0] / "src")
        sources += sorted((found[0] / "src").rglob("*.c"))
    return sources, includes


@pytest.mark.parametrize("prefix", ["kws", "key_word_2", "M"])
def test_arduino_libraries_keep_the_rules(prefix: str, tmp_path: Path) -> None:
    changes = {"version": "0.2.0.dev1", "kernels_version": "0.2.0rc1"}
    package(tmp_path, "arduino", prefix, description=EVIL[1], **changes)
    fields = check_library(tmp_path / prefix)
    assert fields["architectures"] == "*"
    kernels = check_library(tmp_path / "samebits_kernels")
    assert fields["depends"] == f"{kernels['name']} (={kernels['version']})"
    for line in (tmp_path / prefix / "keywords.txt").read_text().splitlines():
        assert re.fullmatch(r"(#.*|\w+\t(KEYWORD[123]|LITERAL[12]))?", line)
    assert {path.name for path in tmp_path.iterdir()} == {
        prefix, "samebits_kernels", "README.md", "report.json", "model.onnx",
    }  # fmt: skip
    url = about(prefix, url="https://a.org/b")
    named = arranged("arduino", adder(prefix), url)
    assert "\nurl=https://a.org/b\n" in str(named[f"{prefix}/library.properties"])


def test_arduino_sketch_says_that_it_passed(tmp_path: Path) -> None:
    package(tmp_path, "arduino")
    text = (tmp_path / "kws/examples/KwsSelfTest/KwsSelfTest.ino").read_text()
    libraries = [tmp_path / "kws", tmp_path / "samebits_kernels"]
    program = linked(tmp_path / "out", *sketch(tmp_path / "sketch", libraries, text))
    assert ran(program) == PASSED + "\n"


def test_arduino_models_share_the_kernels(tmp_path: Path) -> None:
    package(tmp_path, "arduino", "ocr")
    package(tmp_path, "arduino")  # into the same folder of libraries
    libraries = [tmp_path / name for name in ("kws", "ocr", "samebits_kernels")]
    text = "#include <ocr.h>\n#include <kws.h>\nvoid setup() {}\nvoid loop() {}\n"
    text += "int both(const kws_t *a, const ocr_t *b);\n"
    text += "int both(const kws_t *a, const ocr_t *b) { return kws_selftest(a)+ocr_selftest(b); }\n"
    sources, includes = sketch(tmp_path / "sketch", libraries, text)
    assert [path.name for path in sources].count("samebits_kernels.c") == 1
    ran(linked(tmp_path / "out", sources, includes))


STAMPED = {
    "arduino": ("samebits_kernels/src", "kws/src/kws"),
    "espidf": ("components/samebits_kernels", "components/kws"),
    "platformio": ("samebits_kernels/src", "kws/src"),
}


@pytest.mark.parametrize("project", STAMPED)
def test_kernels_of_another_version_are_an_error(project: str, tmp_path: Path) -> None:
    package(tmp_path, project)
    kernels, model = (tmp_path / path for path in STAMPED[project])
    stamp, use = kernels / "samebits/samebits_kernels_version.h", model / "kws_kernels_version.c"
    command = compiled(use, tmp_path / "out.o", [kernels])
    ran(*command)
    stamp.write_text(stamp.read_text().replace("0_2_0", "0_3_0"))
    assert "kws needs samebits_kernels 0.2.0" in refused(*command)


# --- Zephyr -------------------------------------------------------------------------------------

# Of Zephyr's CMake package what a module and a sample need: configuration from prj.conf, libraries
# that are linked whole, one interface of include folders.
ZEPHYR = """\
project(zephyr_stand_in C)
file(STRINGS ${CMAKE_SOURCE_DIR}/prj.conf lines)
foreach(line ${lines})
  string(REGEX MATCH "^(CONFIG_[A-Z0-9_]+)=(.*)$" line ${line})
  set(${CMAKE_MATCH_1} ${CMAKE_MATCH_2})
endforeach()
add_library(zephyr_interface INTERFACE)
target_include_directories(zephyr_interface INTERFACE ${CMAKE_CURRENT_LIST_DIR})
target_compile_options(zephyr_interface INTERFACE -Wall -Wextra -Werror)
macro(zephyr_library_named name)
  set(ZEPHYR_CURRENT_LIBRARY ${name})
  add_library(${name} STATIC "")
  target_link_libraries(${name} PUBLIC zephyr_interface)
  set_property(GLOBAL APPEND PROPERTY ZEPHYR_LIBS ${name})
endmacro()
macro(zephyr_library)
  string(MAKE_C_IDENTIFIER ${CMAKE_CURRENT_SOURCE_DIR} zephyr_library_path)
  zephyr_library_named(${zephyr_library_path})
endmacro()
function(zephyr_library_sources)
  target_sources(${ZEPHYR_CURRENT_LIBRARY} PRIVATE ${ARGN})
endfunction()
function(zephyr_include_directories)
  target_include_directories(zephyr_interface INTERFACE ${ARGN})
endfunction()
foreach(module ${EXTRA_ZEPHYR_MODULES})
  get_filename_component(name ${module} NAME)
  add_subdirectory(${module}/zephyr modules/${name})
endforeach()
add_executable(app)
get_property(libraries GLOBAL PROPERTY ZEPHYR_LIBS)
target_link_libraries(app PRIVATE zephyr_interface
  -Wl,--whole-archive ${libraries} -Wl,--no-whole-archive)
set_target_properties(app PROPERTIES OUTPUT_NAME zephyr)
"""


def zephyr(folder: Path) -> str:
    """The option by which CMake finds the stand-in, which it writes."""
    files = {
        "ZephyrConfig.cmake": ZEPHYR,
        "zephyr/kernel.h": "",
        "zephyr/sys/printk.h": "#include <stdio.h>\n#define printk printf\n",
    }
    return f"-DZephyr_DIR={write(folder, files)}"


MODULE_KEYS = {"name", "build", "samples", "tests", "boards", "blobs", "security", "package"}
BUILD_KEYS = {"cmake", "kconfig", "depends", "settings"}


@pytest.mark.parametrize("prefix", ["kws", "no", "null"])
def test_zephyr_module_keeps_the_schema(prefix: str, tmp_path: Path) -> None:
    """scripts/zephyr_module.py of Zephyr, METADATA_SCHEMA, restated."""
    package(tmp_path, "zephyr", prefix)
    module = yaml.safe_load((tmp_path / "zephyr/module.yml").read_text())
    assert module["name"] == prefix
    assert module.keys() <= MODULE_KEYS
    assert module["build"].keys() <= BUILD_KEYS
    assert (tmp_path / module["build"]["cmake"] / "CMakeLists.txt").is_file()
    kconfig = (tmp_path / module["build"]["kconfig"]).read_text()
    symbols = re.findall(r"^config (\w+)$", kconfig, re.MULTILINE)
    assert symbols == ["SAMEBITS_KERNELS", prefix.upper()]
    assert re.findall(r"^\tselect (\w+)$", kconfig, re.MULTILINE) == ["SAMEBITS_KERNELS"]
    (folder,) = (tmp_path / module["samples"][0]).iterdir()
    settings_ = properties((folder / "prj.conf").read_text())
    assert settings_ == {f"CONFIG_{prefix.upper()}": "y", "CONFIG_MAIN_STACK_SIZE": "5120"}
    sample = yaml.safe_load((folder / "sample.yaml").read_text())
    (scenario,) = sample["tests"].values()
    assert scenario["harness_config"]["type"] == "one_line"
    (pattern,) = scenario["harness_config"]["regex"]
    assert re.search(pattern, f"{prefix}: self-test passed")


def test_zephyr_sample_says_that_it_passed(tmp_path: Path) -> None:
    folder = package(tmp_path / "a module", "zephyr")
    configured(folder / "samples/kws_selftest", tmp_path / "build", zephyr(tmp_path / "zephyr"))
    assert ran(tmp_path / "build" / "zephyr") == PASSED + "\n"


def test_zephyr_models_share_the_kernels(tmp_path: Path) -> None:
    folder, other = package(tmp_path / "kws", "zephyr"), tmp_path / "ocr"
    package(other, "zephyr", "ocr")
    main = folder / "samples/kws_selftest/src/main.c"
    text = main.read_text().replace("#include <kws.h>", "#include <kws.h>\n#include <ocr.h>")
    main.write_text(
        text.replace("    return 0;", "    OCR_INSTANCE(b);\n    return ocr_selftest(&b);")
    )
    sample, build = folder / "samples/kws_selftest", tmp_path / "build"
    options = [zephyr(tmp_path / "zephyr"), f"-DEXTRA_ZEPHYR_MODULES={other}", "-DCONFIG_OCR=y"]
    configured(sample, build, *options)
    assert ran(build / "zephyr") == PASSED + "\n"
    package(other, "zephyr", "ocr", kernels_version="0.3.0")
    said = " ".join(refused("cmake", "-S", sample, "-B", build, *options).split())
    assert "kws: expected samebits_kernels of version 0.2.0, found 0.3.0 from another" in said


def test_zephyr_model_that_is_off_is_not_compiled(tmp_path: Path) -> None:
    folder = package(tmp_path / "kws", "zephyr")
    sample, build = folder / "samples/kws_selftest", tmp_path / "build"
    write(sample, {"prj.conf": "CONFIG_OTHER=y\n", "src/main.c": "int main(void) { return 0; }\n"})
    configured(sample, build, zephyr(tmp_path / "zephyr"))
    assert list(build.rglob("*.a")) == []


# --- ESP-IDF ------------------------------------------------------------------------------------

# Of ESP-IDF's build system what components and a project need; it replaces project() likewise.
IDF = """\
macro(idf_component_register)
  cmake_parse_arguments(C "" "" "SRCS;INCLUDE_DIRS;REQUIRES;PRIV_REQUIRES" ${ARGN})
  if(C_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "not understood: ${C_UNPARSED_ARGUMENTS}")
  endif()
  get_filename_component(name ${CMAKE_CURRENT_LIST_DIR} NAME)
  add_library(idf_${name} STATIC ${C_SRCS})
  target_include_directories(idf_${name} PUBLIC ${C_INCLUDE_DIRS})
  target_compile_options(idf_${name} PRIVATE -Wall -Wextra -Werror)
  foreach(required ${C_REQUIRES})
    target_link_libraries(idf_${name} PUBLIC idf_${required})
  endforeach()
  foreach(required ${C_PRIV_REQUIRES})
    target_link_libraries(idf_${name} PRIVATE idf_${required})
  endforeach()
endmacro()
macro(project name)
  _project(${name} C)
  file(GLOB components ${EXTRA_COMPONENT_DIRS}/*)
  foreach(component ${components} ${CMAKE_CURRENT_LIST_DIR}/main)
    get_filename_component(component_name ${component} NAME)
    add_subdirectory(${component} components/${component_name})
  endforeach()
  file(WRITE ${CMAKE_BINARY_DIR}/main.c
    "void app_main(void); int main(void) { app_main(); return 0; }")
  add_executable(${name} ${CMAKE_BINARY_DIR}/main.c)
  target_link_libraries(${name} PRIVATE idf_main)
endmacro()
"""

MANIFEST_KEYS = {"version", "description", "license", "url", "dependencies"}


def idf(folder: Path) -> Path:
    return write(folder, {"tools/cmake/project.cmake": IDF})


def test_espidf_manifests_keep_the_schema(tmp_path: Path) -> None:
    """The component manager's manifest, restated: dependencies by name, SPDX, a version."""
    package(tmp_path, "espidf", version="0.2.0.dev1", url="https://a.org/b?c=d")
    for name, version in (("kws", "0.2.0-dev1"), ("samebits_kernels", "0.2.0")):
        text = (tmp_path / "components" / name / "idf_component.yml").read_text()
        manifest = yaml.safe_load(text)
        assert manifest.keys() == MANIFEST_KEYS
        assert manifest["version"] == version
        assert manifest["license"] == "Apache-2.0"
        assert manifest["url"] == "https://a.org/b?c=d"
        assert manifest["dependencies"] == {"idf": {"version": ">=4.4"}}
        assert isinstance(manifest["description"], str)
    files = arranged("espidf", adder(), ABOUT)
    manifest = yaml.safe_load(str(files["components/kws/idf_component.yml"]))
    assert manifest.keys() == MANIFEST_KEYS - {"url"}
    assert "SIZE=5120\n" in str(files["examples/selftest/sdkconfig.defaults"])


@pytest.mark.parametrize("models", [1, 2])
def test_espidf_example_says_that_it_passed(models: int, tmp_path: Path) -> None:
    folder = package(tmp_path / "a project", "espidf")
    example_ = folder / "examples/selftest"
    if models == 2:  # copied beside, as README.md says
        package(folder, "espidf", "ocr")
        package(folder, "espidf")
        main = example_ / "main"
        text = (main / "selftest.c").read_text()
        text = text.replace("\nvoid", '#include "ocr.h"\n\nvoid').replace(
            "\n}", '\n    OCR_INSTANCE(b);\n    if (ocr_selftest(&b)) puts("ocr FAILED");\n}'
        )
        (main / "selftest.c").write_text(text)
        register = (main / "CMakeLists.txt").read_text()
        (main / "CMakeLists.txt").write_text(register.replace("kws)", "kws ocr)"))
    configured(example_, tmp_path / "build", IDF_PATH=str(idf(tmp_path / "idf")))
    assert ran(tmp_path / "build/kws_selftest") == PASSED + "\n"
    assert len(list((tmp_path / "build").rglob("libidf_samebits_kernels.a"))) == 1


# --- PlatformIO ---------------------------------------------------------------------------------


def check_manifest(library: Path) -> dict[str, object]:
    """Fields of library.json that PlatformIO requires, and their limits, restated."""
    found = json.loads((library / "library.json").read_text())
    assert len(found["name"]) <= 50
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", found["name"])
    assert re.fullmatch(SEMVER, found["version"])
    assert 1 <= len(found["description"]) <= 255
    assert all(re.fullmatch(r"[a-z\d\-+. ]{1,50}", word) for word in found["keywords"])
    assert found["license"] == "Apache-2.0"
    assert found["frameworks"] == found["platforms"] == "*"
    assert (library / found["build"]["srcDir"]).is_dir()
    assert found["build"]["flags"] == ["-std=c99"]
    for one in found.get("examples", []):
        assert re.fullmatch(r"[a-zA-Z\d\-_/]{1,100}", one["name"])
        assert all((library / one["base"] / file).is_file() for file in one["files"])
    return found


@pytest.mark.parametrize("prefix", ["kws", "key__word_2_", "M"])
def test_platformio_manifests_keep_the_schema(prefix: str, tmp_path: Path) -> None:
    package(tmp_path, "platformio", prefix, version="0.2.0.dev1", url="https://a.org")
    found, kernels = (check_manifest(tmp_path / name) for name in (prefix, "samebits_kernels"))
    wanted = [{"name": kernels["name"], "version": kernels["version"]}]
    assert found["dependencies"] == wanted
    assert found["homepage"] == kernels["homepage"] == "https://a.org"
    assert (tmp_path / prefix / "include" / str(found["headers"])).is_file()
    assert (tmp_path / "samebits_kernels/src" / str(kernels["headers"])).is_file()
    plain = arranged("platformio", adder(prefix), about(prefix))
    assert "homepage" not in json.loads(plain[f"{prefix}/library.json"])


def platformio(folder: Path, names: Sequence[str]) -> tuple[list[Path], list[Path]]:
    """Sources and include folders of libraries: all of src, and src and include."""
    sources, includes = [], []
    for name in names:
        sources += sorted((folder / name / "src").rglob("*.c"))
        includes += [folder / name / part for part in ("include", "src")]
    return sources, [path for path in includes if path.is_dir()]


@pytest.mark.parametrize("framework", ["native", "arduino"])
def test_platformio_example_says_that_it_passed(framework: str, tmp_path: Path) -> None:
    package(tmp_path, "platformio")
    example_ = tmp_path / "kws/examples/selftest"
    (extra,) = re.findall(r"^lib_extra_dirs = (.*)$", (example_ / "platformio.ini").read_text(),
                          re.MULTILINE)  # fmt: skip
    assert (example_ / extra).resolve() == tmp_path.resolve()
    sources, includes = platformio(example_ / extra, ["kws", "samebits_kernels"])
    main = (example_ / "src/main.cpp").read_text()
    if framework == "arduino":
        main = (
            f"#define ARDUINO 1\n{main}Port Serial;\nint main() {{\n    setup();\n    loop();\n}}\n"
        )
    folder = write(tmp_path / "out", {"main.cpp": main, "Arduino.h": ARDUINO})
    program = linked(folder, [folder / "main.cpp", *sources], [folder, *includes])
    assert ran(program) == PASSED + "\n"


def test_platformio_models_share_the_kernels(tmp_path: Path) -> None:
    package(tmp_path, "platformio", "ocr")
    package(tmp_path, "platformio")
    sources, includes = platformio(tmp_path, ["kws", "ocr", "samebits_kernels"])
    write(tmp_path, {"app.cpp": APP})
    ran(linked(tmp_path / "out", [tmp_path / "app.cpp", *sources], includes))


# --- generated packages -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """generated(project): a model of two tensors in, written by `write_package`."""
    folder = tmp_path_factory.mktemp("generated")
    g = GraphBuilder("sum, of $two")
    x, y = g.input("x", "int8", (1, 9)), g.input("y", "int8", (1, 9))
    acc = g.add("add", [x, y], {"factors": (1, -2)})
    graph = g.build([acc])

    def write_one(project: str) -> Path:
        beside = {"model.onnx": b"model", "audio/test/audio_main.c": "int main(void);\n"}
        write_package(graph, folder / project, prefix="kws", project=project, beside=beside)
        return folder / project

    return write_one


def test_a_generated_package_passes_ctest(generated: Callable[[str], Path]) -> None:
    folder = generated("cmake")
    configured(folder, folder / "build")
    assert "100% tests passed, 0 tests failed out of 1" in ran("ctest", "--test-dir", "build",
                                                              cwd=folder)  # fmt: skip


@pytest.mark.parametrize("project", ["arduino", "platformio", "espidf", "zephyr"])
def test_a_generated_package_passes_its_self_test(
    project: str, generated: Callable[[str], Path], tmp_path: Path
) -> None:
    """All sources that the project compiles, and its example, as one program of this machine."""
    folder = generated(project)
    assert (folder / "report.json").exists()
    assert not list(folder.rglob("audio_main.c"))
    (example_,) = [
        path for path in folder.rglob("*")
        if path.suffix == ".ino" or path.name in ("main.cpp", "selftest.c", "main.c")
    ]  # fmt: skip
    main = example_.read_text()
    sources = [path for path in folder.rglob("*.c") if path != example_]
    includes = sorted({path.parent for path in folder.rglob("kws.h")})
    includes = [path for path in includes if path.name != "kws" or project != "arduino"]
    includes += [path.parent.parent for path in folder.rglob("samebits_kernels.h")]
    run = {
        "arduino": "int main() { setup(); return wrong; }",
        "platformio": "",
        "espidf": "int main(void) { app_main(); return 0; }",
        "zephyr": "",
    }[project]
    stand_in = tmp_path / "include"
    write(stand_in, {
        "zephyr/kernel.h": "", "zephyr/sys/printk.h": "#include <stdio.h>\n#define printk printf\n",
    })  # fmt: skip
    if project == "arduino":
        main = "static struct { void begin(long) {} void println(const char *) {} } Serial;\n" + (
            f"static void delay(int) {{}}\n{main}"
        )
    program = tmp_path / ("main.cpp" if project in ("arduino", "platformio") else "main.c")
    program.write_text(main.replace("void app_main(void)", "static void app_main(void)") + run)
    path = linked(tmp_path / "objects", [program, *sources], [stand_in, *includes])
    assert "FAILED" not in ran(path)


def test_another_project_than_those_known(tmp_path: Path) -> None:
    graph = GraphBuilder("g")
    x = graph.input("x", "int8", (2,))
    net = graph.build([graph.add("clip", [x], {"low": 0, "high": 1})])
    with pytest.raises(InputError, match=r"expected one of make, cmake, arduino, .*found 'bazel'"):
        write_package(net, tmp_path / "out", project="bazel")
    assert not (tmp_path / "out").exists()
