"""Declarations of the training kernels, read from the text of their C, and the C function that is
generated from them: it runs a routine, a list of kernel calls (`routine`).

A signature stands in C alone. It has types of integers, and structs and pointers to any of them.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from typing import NamedTuple

FUNCTION = re.compile(r"\n(void|int|int64_t) (samebits_\w+)\(([^()]*)\) \{")
IN_A_MACRO = re.compile(r"#define (\w+)\((name, .*?)\).* (\w+ samebits_##name\(.*?\) \{)")
DECLARATION = re.compile(r"(?:const )?(\w+)\s((?:(?:,\s+)?\*?(?:restrict )?\w+)+)")
OF_SOME = "samebits_amx"  # names of functions that only some processors have
THREADS = "threads"  # the parameter that is the number of threads


class Function(NamedTuple):
    """A function of C: the type of its result, and its parameters (name, type: "int8_t*")."""

    result: str
    parameters: tuple[tuple[str, str], ...]

    @property
    def is_routine(self) -> bool:
        """Whether a routine can call it: it leaves what it finds in memory, and its result, if it
        has one, says whether it failed."""
        return self.result != "int64_t"


def plain(texts: Iterable[str]) -> str:
    """C without comments, and what macros make of functions' heads."""
    text = re.sub(r"/\*.*?\*/|\\\n", " ", "\n".join(texts), flags=re.DOTALL)
    made = [text]
    for line in (line for line in text.splitlines() if "samebits_##name" in line):
        [(macro, parameters, head)] = IN_A_MACRO.findall(line)
        for use in re.findall(rf"\n{macro}\((.*)\)", text):
            given: dict[str, str] = dict(zip(parameters.split(", "), use.split(", "), strict=True))
            words = [given.get(word, word) for word in re.split(r"(\W+)", head)]
            made.append("\n" + "".join(words).replace("##", ""))
    return "".join(made)


def declared(text: str) -> list[tuple[str, str]]:
    """Names and types of one declaration: of "const int8_t *a, *b" both have the type "int8_t*".

    Raises ValueError for more than a type and names, which may be pointers.
    """
    if (whole := DECLARATION.fullmatch(text.strip())) is None:
        raise ValueError(f"csrc/training: expected one type and plain names, found {text!r}")
    kind, names = whole[1], whole[2].split(",")
    return [(one.split()[-1].lstrip("*"), kind + "*" * one.count("*")) for one in names]


@functools.cache
def functions(text: str) -> dict[str, Function]:
    """All functions of a text that is `plain`, by name."""
    return {
        name: Function(result, tuple(one for part in taken.split(",") for one in declared(part)))
        for result, name, taken in FUNCTION.findall(text)
    }


def fields(text: str, name: str) -> list[tuple[str, str]]:
    """Fields of a struct of C and their types there."""
    [body] = re.findall(rf"typedef struct \{{([^{{}}]*)\}} {name};", text)
    return [field for one in body.split(";")[:-1] for field in declared(one)]


def routine_names(text: str) -> list[str]:
    """The functions that a routine can call; their places are its instructions' numbers."""
    return sorted(
        name
        for name, function in functions(text).items()
        if function.is_routine and not name.startswith(OF_SOME)
    )


FORMS = {"double": "real({})"}  # how a word is given to a parameter, but for integers
RUNNER = """\
/* Generated: runs a routine, a list of kernel calls.
 *
 * A call is the number of its kernel, the number of its words, and a word for each argument but the
 * number of threads: an integer, an address, or the bits of a binary64. */
#include <stdint.h>
#include <string.h>

%s

#define AT(word) ((void *)(intptr_t)(word))

static double real(int64_t word) {
    double value;
    memcpy(&value, &word, sizeof value);
    return value;
}

/* Run all calls of `size` words: -1, or the place of the call that failed. */
int64_t samebits_run(const int64_t *words, int64_t size, int threads) {
    for (int64_t at = 0; at < size; at += 2 + words[at + 1]) {
        const int64_t *a = words + at + 2;
        int failed = 0;
        switch (words[at]) {
%s
        default: failed = 1;
        }
        if (failed) return at;
    }
    return -1;
}
"""


def runner(texts: Iterable[str]) -> str:
    """The text of a C file whose one function runs routines over the kernels of these texts.

    Pointers to all types are passed as pointers to nothing: this file knows no struct of theirs.
    """
    text = plain(texts)
    heads, cases = [], []
    for number, name in enumerate(routine_names(text)):
        result, parameters = functions(text)[name]
        kinds = ("void *" if "*" in kind else kind for _, kind in parameters)
        heads.append(f"{result} {name}({', '.join(kinds)});")
        given, word = [], 0
        for parameter, kind in parameters:
            if parameter == THREADS:
                given.append(THREADS)
                continue
            form = "AT({})" if "*" in kind else FORMS.get(kind, f"({kind}){{}}")
            given.append(form.format(f"a[{word}]"))
            word += 1
        call = f"{name}({', '.join(given)})"
        cases.append(f"        case {number}: {'failed = ' * (result == 'int')}{call}; break;")
    return RUNNER % ("\n".join(heads), "\n".join(cases))
