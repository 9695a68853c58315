"""A generated package in the layout that a build system or an IDE publishes.

The files of the layout "make" move to where the build system looks for them, and its own files,
from `templates`, join them. The kernels become a library of their own everywhere: every model of a
program links the same ones, of the version it was generated for.

Documents of the layouts:

- CMake: cmake-buildsystem(7), https://cmake.org/cmake/help/v3.13/manual/cmake-buildsystem.7.html
- Arduino: "Library specification" (1.5 format, rev. 2.2),
  https://docs.arduino.cc/arduino-cli/library-specification; "Sketch specification",
  https://docs.arduino.cc/arduino-cli/sketch-specification; only headers in the root of src make
  the builder find a library: https://github.com/arduino/arduino-cli/issues/1275
- Zephyr: "Modules (External projects)", https://docs.zephyrproject.org/latest/develop/modules.html
- ESP-IDF: "Build System", https://docs.espressif.com/projects/esp-idf/en/stable/esp32/api-guides/
  build-system.html; "idf_component.yml Manifest File", https://docs.espressif.com/projects/
  idf-component-manager/en/latest/reference/manifest_file.html
- PlatformIO: "library.json", https://docs.platformio.org/en/latest/manifests/library-json/
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from samebits.codegen.names import checked_prefix
from samebits.errors import InputError
from samebits.recipes.deployment import PROJECTS

TEMPLATES = Path(__file__).parent / "templates"
SHARED, HARNESS = "samebits/", "test/"  # folders of the layout "make"
README, MAKEFILE, REPORT = "README.md", "Makefile", "report.json"
LONGEST = 255  # characters of a description: PlatformIO's limit is the smallest
STACK, SPARE = 2048, 2048  # bytes: of a model whose report names none; of the example around it
NO_HOME = "https://example.com/"  # Arduino needs an address; this one is nobody's (RFC 2606)
TARGETS = frozenset(  # names that CMake keeps for its own targets (policy CMP0037)
    (
        *("all", "clean", "edit_cache", "help", "install", "list_install_components", "package"),
        *("package_source", "preinstall", "rebuild_cache", "test"),
    )
)


@dataclass(frozen=True)
class Manifest:
    """The model and the library as a build system's own files name them.

    prefix: of all names in C, which is the name of the library
    version, kernels_version: as Python (PEP 440) or semver.org writes them
    description: one line of printable ASCII, from anywhere
    licence: an SPDX expression; url: a page for people, where there is one
    buffers: C declarations of the inputs and outputs of an example; ports: their names
    """

    prefix: str
    version: str
    description: str
    licence: str
    kernels_version: str
    url: str = ""
    buffers: tuple[str, ...] = ()
    ports: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Layout:
    """Folders of a project, each "" or with a slash at its end, and its files by template.

    model: of the sources and headers; header: of prefix.h; kernels: of samebits/
    harness: whether test/ stays; stamped: whether the compiler compares the kernels' version, which
    the build system does not
    """

    texts: Mapping[str, str]
    model: str = ""
    header: str = ""
    kernels: str = ""
    harness: bool = False
    stamped: bool = False


_LAYOUTS = {
    "cmake": _Layout({"CMakeLists.txt": "CMakeLists.txt"}, harness=True),
    "arduino": _Layout(
        {
            "library.properties": "@model@/library.properties",
            "keywords.txt": "@model@/keywords.txt",
            "model.h": "@model@/src/@model@.h",
            "selftest.ino": "@model@/examples/@Model@SelfTest/@Model@SelfTest.ino",
            "kernels.properties": "samebits_kernels/library.properties",
            "samebits_library.h": "samebits_kernels/src/samebits_library.h",
        },
        # src/prefix.h is the library's: it includes the model's below, which it first makes work.
        model="@model@/src/@model@/",
        header="@model@/src/@model@/",
        kernels="samebits_kernels/src/",
        stamped=True,
    ),
    "zephyr": _Layout(
        {
            "module.yml": "zephyr/module.yml",
            "CMakeLists.txt": "zephyr/CMakeLists.txt",
            "Kconfig": "zephyr/Kconfig",
            "sample.cmake": "samples/@model@_selftest/CMakeLists.txt",
            "prj.conf": "samples/@model@_selftest/prj.conf",
            "sample.yaml": "samples/@model@_selftest/sample.yaml",
            "main.c": "samples/@model@_selftest/src/main.c",
        },
    ),
    "espidf": _Layout(
        {
            "model.cmake": "components/@model@/CMakeLists.txt",
            "model.yml": "components/@model@/idf_component.yml",
            "kernels.cmake": "components/samebits_kernels/CMakeLists.txt",
            "kernels.yml": "components/samebits_kernels/idf_component.yml",
            "project.cmake": "examples/selftest/CMakeLists.txt",
            "sdkconfig.defaults": "examples/selftest/sdkconfig.defaults",
            "main.cmake": "examples/selftest/main/CMakeLists.txt",
            "selftest.c": "examples/selftest/main/selftest.c",
        },
        model="components/@model@/",
        header="components/@model@/",
        kernels="components/samebits_kernels/",
        stamped=True,
    ),
    "platformio": _Layout(
        {
            "library.json": "@model@/library.json",
            "platformio.ini": "@model@/examples/selftest/platformio.ini",
            "main.cpp": "@model@/examples/selftest/src/main.cpp",
            "kernels.json": "samebits_kernels/library.json",
        },
        model="@model@/src/",
        header="@model@/include/",
        kernels="samebits_kernels/src/",
        stamped=True,
    ),
}


def check_name(project: str, prefix: str) -> None:
    """Raise InputError for another project than those, and for a prefix that it cannot have."""
    if project not in PROJECTS:
        raise InputError(
            f"--package: expected one of {', '.join(PROJECTS)}, found {project[:60]!r}"
        )
    if checked_prefix(prefix) in TARGETS and project == "cmake":
        raise InputError(
            f"prefix of the generated C: CMake has a target {prefix!r} of its own; choose another "
            "prefix, such as 'model'"
        )


def arranged(
    project: str, files: Mapping[str, str | bytes], manifest: Manifest
) -> dict[str, str | bytes]:
    """The files of a package of the layout "make", by path, as `project` publishes them.

    The Makefile is left out, and the harness in test/ wherever the project has no program of this
    machine; README.md gets a section on the project. What is no source stays where it is.

    Raises InputError for another project, for files that are no such package, and for a text of
    `manifest` that the project's files cannot hold.
    """
    check_name(project, manifest.prefix)
    if project == "make":
        return dict(files)
    layout = _LAYOUTS[project]
    _check(files, manifest, project)
    parts = {
        **_names(manifest),
        **_texts(manifest),
        "stack": str(_stack(files)),
        "buffers": "".join(f"\n    {line}" for line in manifest.buffers),
        "buffers_ino": "".join(f"\n  {line}" for line in manifest.buffers),
        "arguments": ", ".join(("&net", *manifest.ports)),
    }
    found: dict[str, str | bytes] = {}
    places: dict[str, list[str]] = {SHARED: [], HARNESS: [], "": []}
    for name, data in files.items():
        path = _place(name, layout, manifest.prefix)
        if path is None:
            continue
        found[path] = data
        places[_kind(name)].append(name)
    if layout.stamped:
        stamp, use = "samebits_kernels_version.h", f"{manifest.prefix}_kernels_version.c"
        found[layout.kernels + SHARED + stamp] = _filled(_template(f"kernels/{stamp}"), parts)
        found[layout.model + use] = _filled(_template("kernels/version.c"), parts)
        places[""].append(use)
    parts |= _lists(places, f"${{{manifest.prefix}_folder}}/" if project == "zephyr" else "")
    for template, path in layout.texts.items():
        found[path] = _filled(_template(f"{project}/{template}"), parts)
    section = _filled(_template(f"{project}/README.md"), parts)
    found[README] = _appended(files.get(README, f"# {manifest.prefix}\n"), section)
    return {_filled(path, parts): data for path, data in found.items()}


def _check(files: Mapping[str, str | bytes], manifest: Manifest, project: str) -> None:
    """InputError unless the files are a package of the prefix, by paths that any tool reads."""
    prefix = manifest.prefix
    for name in files:
        if not re.fullmatch(r"[\w.-]+(/[\w.-]+)*", name, re.ASCII) or ".." in name.split("/"):
            raise InputError(
                f"files of the package: expected relative paths of letters, digits, '_', '-' and "
                f"'.', found {name[:60]!r}"
            )
    wanted = [f"{prefix}.h", f"{prefix}.c"]
    wanted += [f"{SHARED}samebits.h", f"{SHARED}samebits_kernels.c"]
    if _LAYOUTS[project].harness:
        wanted.append(f"{HARNESS}{prefix}_main.c")
    missing = [name for name in wanted if name not in files]
    if missing:
        raise InputError(
            f"files of the package: expected a package of prefix {prefix!r}, found no "
            f"{', '.join(missing)}"
        )


# --- places ---------------------------------------------------------------------------------


def _kind(name: str) -> str:
    """The folder of the layout "make" that has the file: SHARED, HARNESS or "" for all else."""
    return next((folder for folder in (SHARED, HARNESS) if name.startswith(folder)), "")


def _is_source(name: str) -> bool:
    return PurePosixPath(name).suffix in (".c", ".h")


def _place(name: str, layout: _Layout, prefix: str) -> str | None:
    """Where the layout has the file; None where it has no use for it."""
    kind = _kind(name)
    if name == MAKEFILE or (kind == HARNESS and not layout.harness):
        return None
    if kind == SHARED:
        return layout.kernels + name
    if kind == HARNESS or not _is_source(name):
        return name
    return (layout.header if name == f"{prefix}.h" else layout.model) + name


def _lists(places: Mapping[str, list[str]], folder: str) -> dict[str, str]:
    """Lists of files in `folder` for a CMakeLists.txt, a line for each."""

    def lines(kind: str, suffix: str) -> str:
        names = [name for name in sorted(places[kind]) if name.endswith(suffix)]
        return "\n".join(f'"{folder}{name}"' for name in names)

    return {
        "kernel_sources": lines(SHARED, ".c"),
        "kernel_headers": lines(SHARED, ".h"),
        "model_sources": lines("", ".c"),
        "test_sources": lines(HARNESS, ".c"),
    }


def _stack(files: Mapping[str, str | bytes]) -> int:
    """Bytes for an example that runs the model, by the stack that its report states."""
    try:
        report = json.loads(files.get(REPORT, "{}"))
    except ValueError:
        report = None
    found = report.get("stack_cortex_m") if isinstance(report, dict) else None
    stack = max(found, STACK) if isinstance(found, int) else STACK
    return -(-(stack + SPARE) // 512) * 512


# --- texts ----------------------------------------------------------------------------------


def _names(manifest: Manifest) -> dict[str, str]:
    """The prefix and both versions in the forms that the templates use."""
    prefix, kernels = manifest.prefix, _semver(manifest.kernels_version, "kernels")
    version = _semver(manifest.version, "package")
    return {
        "model": prefix,
        "MODEL": prefix.upper(),
        "Model": "".join(word.capitalize() for word in prefix.split("_")),
        # PlatformIO: letters, digits and single dashes inside.
        "slug": re.sub(r"_+", "-", prefix).strip("-").lower(),
        "version": version,
        "number": re.split(r"[-+]", version, maxsplit=1)[0],
        "kernels": kernels,
        "kernels_macro": "SAMEBITS_KERNELS_" + re.sub(r"\W", "_", kernels),
    }


def _texts(manifest: Manifest) -> dict[str, str]:
    """Licence, address and description, escaped for every format that holds them."""
    description = manifest.description.strip(" ")
    if not re.fullmatch(rf"[ -~]{{1,{LONGEST}}}", description):
        raise InputError(
            f"description of the package: expected one line of 1 to {LONGEST} printable ASCII "
            f"characters, found {len(description)} characters: {description[:60]!r}"
        )
    if not re.fullmatch(r"[A-Za-z0-9.+-]+( (AND|OR|WITH) [A-Za-z0-9.+-]+)*", manifest.licence):
        raise InputError(
            f"licence of the package: expected an SPDX expression such as 'Apache-2.0', found "
            f"{manifest.licence[:60]!r}"
        )
    if manifest.url and not re.fullmatch(
        r"https?://[\w.~:/?#@!&()*+,;=%-]{1,200}", manifest.url, re.A
    ):
        raise InputError(
            f"url of the package: expected an http address, found {manifest.url[:60]!r}"
        )
    quoted = json.dumps(description)[1:-1]  # also a double-quoted scalar of YAML
    return {
        "description": description,
        "description_cmake": re.sub(r'([\\"$])', r"\\\1", description),
        "description_json": quoted,
        # Older component managers replace variables of the environment in every text, and
        # fail where one is not set; $$ is the documented escape.
        "description_idf": quoted.replace("$", "$$"),
        "licence": manifest.licence,
        "url": manifest.url or NO_HOME,
        "url_idf": f'url: "{manifest.url}"\n' if manifest.url else "",
        "homepage": f'  "homepage": "{manifest.url}",\n' if manifest.url else "",
    }


def _semver(version: str, what: str) -> str:
    """A version as semver.org has it: 1.0.0-rc1 of Python's 1.0rc1, 0.1.0-dev0 of 0.1.0.dev0."""
    count = r"(?:0|[1-9]\d{0,8})"
    number = r"(\d{1,9})\.(\d{1,9})(?:\.(\d{1,9}))?"
    word = rf"(?:a|b|rc|alpha|beta|dev|post)(?:\.?{count})?"
    before = rf"(?:[-.]?({word}(?:\.{word})*))?"
    after = r"(?:\+([A-Za-z0-9]{1,20}(?:\.[A-Za-z0-9]{1,20}){0,3}))?"
    match = re.fullmatch(number + before + after, version, re.ASCII)
    if match is None:
        raise InputError(
            f"version of the {what}: expected one such as 1.2.3, 1.2.3rc1 or 1.2.3.dev0, found "
            f"{version[:60]!r}"
        )
    *numbers, tag, build = match.groups()
    found = ".".join(str(int(n or 0)) for n in numbers)
    if tag and tag.startswith("post"):  # comes after, where all that follows a dash comes before
        tag, build = None, ".".join(filter(None, (tag, build)))
    return found + (f"-{tag}" if tag else "") + (f"+{build}" if build else "")


def _template(name: str) -> str:
    return (TEMPLATES / name).read_text(encoding="utf-8")


def _filled(template: str, parts: Mapping[str, str]) -> str:
    """The template with every @key@ replaced by its part; further lines go on at its column.

    In one pass: a part that holds @key@ stays as it is.
    """

    def part(match: re.Match[str]) -> str:
        blank, key = match.groups()
        text = parts[key]
        return text if blank is None else blank + text.replace("\n", "\n" + blank)

    return re.sub(r"(?:^([ ]+))?@(\w+)@", part, template, flags=re.MULTILINE)


def _appended(readme: str | bytes, section: str) -> str:
    text = readme if isinstance(readme, str) else readme.decode()
    return text.rstrip("\n") + "\n\n" + section
