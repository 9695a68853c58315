"""Weights as an image beside the code, which another training of the network replaces.

Everything that training decides goes into the image: constant arrays, and of the kernels'
parameters the numbers of `TRAINED`. The code refers to both by index and fills the structs of
parameters before each call; what is left in its text is the structure, whose hash an image states.
A number that is missing in `TRAINED` stays in the text, so that images which differ in it are of
another structure: they are refused, never misread.
"""

from __future__ import annotations

import functools
import hashlib
import re
import struct
from collections.abc import Mapping

import numpy as np

from samebits import csrc
from samebits.codegen.call_text import CallWriter, Constants
from samebits.codegen.lowering.calls import Array, Data, Field, KernelCall, Struct, Structs
from samebits.errors import InputError, UnsupportedError
from samebits.ir.integer.layers import fnv1a

HEADER = "inference/samebits_image.h"
MAGIC, FORMAT = b"samebits", 1
HEAD = struct.Struct("<8sQIIQIIII")  # samebits_image
HASHED = 16  # bytes before those that the hash of the content covers
ALIGNMENT, LONG, WIDE = 8, 64, 16  # arrays of LONG bytes or more lie at multiples of WIDE
SUFFIX = ".weights"
SAVED = 128  # bytes of stack of a function that fills parameters, beside copies of them
POINTER = 4  # bytes, on Cortex-M
LARGEST = 1 << 28  # bytes of an image: their hash takes half a minute here at most
STRUCTURE = "@structure@"  # in texts whose structure is not known yet: 16 digits

_ENDS = ("zero", "low", "high")
_SHARES = ("numerator", "denominator", *_ENDS)
TRAINED: Mapping[str, tuple[str, ...]] = {
    "rescale": ("channels", "count", "form", *_ENDS),
    "conv": ("pad_code", "block"),
    "conv_any": ("pad_code",),
    "packed": ("pad_code", "upper", "shift", "doubled", *_ENDS),
    "packed16": ("fast",),
    "source": ("factor",),
    "broadcast": ("offset", "wide"),
    "add8": ("factor_a", "factor_b", "offset", "shift", "low", "high"),
    "affine": ("wide",),
    "clip": ("low", "high"),
    "cubic": (
        *("segments", "low", "high", "mirror", "mirrored", "bits", "narrow"),
        *("shift0", "shift1", "shift2", "shift3"),
    ),
    "lines": (
        *("last", "factor", "offset", "top", "mirror"),
        *("mirrored", "left", "bits", "shift"),
    ),
    "matmul": ("a_zero", "b_zero", "wide"),
    "pool": ("zero", "balance"),
    "reduce": ("zero",),
    "softmax": _SHARES,
    "divide": _SHARES,
    "roots": ("factor", "divisor", *_ENDS),
    "normalize": ("epsilon", "x_zero", "shift", *_ENDS),
    "log_softmax": ("step", "unit", "shift", *_ENDS),
    "resample": ("zero", "wide"),
    "fill": ("code",),
}
"""The numbers of each struct of parameters that follow from weights and scales."""
OPTIONAL = {"rescale": ("multipliers", "shifts")}  # arrays that not every form has
NONE: Array = np.zeros(0, np.int8)


class WeightImage(Constants):
    """Numbers and arrays of an image, each by its own index; C reads them of `net`."""

    def __init__(self, prefix: str) -> None:
        super().__init__(prefix)
        self.numbers: list[int] = []
        self.arrays: list[Array] = []
        self.largest = 0  # bytes of the parameters of a call, those it has most

    @property
    def stack(self) -> int:
        """Bytes of stack on Cortex-M, at most, for parameters: of one call at a time, as copies of
        them where compilers fill these first, and for the function that fills them."""
        return 2 * self.largest + SAVED if self.largest else 0

    def number(self, value: int, kind: str = "int64_t", net: str = "net") -> str:
        """The C expression of a number. net: that of the instance."""
        self.numbers.append(int(value))
        return f"({kind})samebits_image_number({net}->image, {len(self.numbers) - 1}u)"

    def name(self, array: Array, *, table: bool = False) -> str:
        """The C expression of an array."""
        array = np.ascontiguousarray(array).reshape(-1)
        self.arrays.append(array)
        text = f"samebits_image_array(net->image, {len(self.arrays) - 1}u)"
        (self.tables if table else self.weights).append((text, array))
        return text

    def encoded(self, structure: int, name: str, version: str) -> bytes:
        """The image; equal arrays lie there once. Raises UnsupportedError where it is too large."""
        texts = [text.encode() + b"\0" for text in (name, version)]
        numbers = np.array([(n + 2**63) % 2**64 - 2**63 for n in self.numbers], "<i8").tobytes()
        arrays_at = HEAD.size + len(numbers)
        at = arrays_at + 4 * len(self.arrays)
        name_at, version_at = at, at + len(texts[0])
        body, places, known = bytearray(b"".join(texts)), [], dict[bytes, int]()
        for array in self.arrays:
            data = array.astype(array.dtype.newbyteorder("<")).tobytes()
            if not data:
                known[data] = 0
            elif data not in known:
                body += b"\0" * (-(at + len(body)) % (WIDE if len(data) >= LONG else ALIGNMENT))
                known[data] = at + len(body)
                body += data
            places.append(known[data])
        body += b"\0" * (-(at + len(body)) % ALIGNMENT)
        rest = numbers + np.array(places, "<u4").tobytes() + bytes(body)
        fields = (structure, HEAD.size, arrays_at, name_at, version_at)
        size = HEAD.size + len(rest)
        if size > LARGEST:
            raise UnsupportedError(
                f"--weights-file: expected an image of at most {LARGEST} bytes, found {size}; "
                "compile without it"
            )
        head = HEAD.pack(MAGIC, 0, FORMAT, size, *fields)
        content = fnv1a(np.frombuffer(head[HASHED:] + rest, np.uint8))
        return HEAD.pack(MAGIC, content, FORMAT, size, *fields) + rest


def read_head(data: bytes, where: str) -> dict[str, int | str]:
    """Read what the head of an image states. Raises InputError unless the image is whole."""
    if len(data) < HEAD.size or data[: len(MAGIC)] != MAGIC:
        raise InputError(
            f"{where}: expected an image of weights, which begins with {MAGIC.decode()}, found "
            f"{len(data)} bytes of something else; compile the network with --weights-file"
        )
    _, content, form, size, structure, _, _, name, version = HEAD.unpack_from(data)
    if form != FORMAT:
        raise InputError(f"{where}: expected format {FORMAT} of images, found {form}")
    if not HEAD.size <= size <= len(data):
        raise InputError(
            f"{where}: expected the {size} bytes that its head states, at least {HEAD.size}, found "
            f"{len(data)}: it is damaged; compile again"
        )
    found = fnv1a(np.frombuffer(data[HASHED:size], np.uint8))
    if found != content:
        raise InputError(
            f"{where}: expected {size} bytes of the hash that its head states, {content:016x}, "
            f"found {found:016x}: it is damaged; compile again"
        )
    texts = (data[at:size].split(b"\0")[0].decode(errors="replace") for at in (name, version))
    numbers = {"format": form, "bytes": size, "structure": f"{structure:016x}"}
    return {
        **numbers,
        "hash": f"{content:016x}",
        **dict(zip(("name", "version"), texts, strict=True)),
    }


def answer_text(answer: int, image: WeightImage | None) -> str:
    """The C expression of a hash that a self-test expects."""
    if image is not None:
        return image.number(answer, "uint64_t")
    return f"((uint64_t)0x{answer >> 32:08x}u << 32) | 0x{answer & 0xFFFFFFFF:08x}u"


def sealed(texts: Mapping[str, str]) -> tuple[dict[str, str], int]:
    """Texts with their structure in the place of STRUCTURE, and the structure: what tells code that
    one image fits from other code."""
    named = "\0".join(f"{name}\0{texts[name]}" for name in sorted(texts))
    digits = hashlib.sha256(named.encode()).hexdigest()[:16]
    return {name: text.replace(STRUCTURE, digits) for name, text in texts.items()}, int(digits, 16)


class ImageWriter(CallWriter):
    """Writes calls whose parameters a function fills from the image, in memory of the caller's."""

    def __init__(self, prefix: str, image: WeightImage) -> None:
        super().__init__(prefix, image)
        self.image = image
        self._used: dict[str, None] = {}  # structs that the function being written fills
        self._lists: list[tuple[str, Structs]] | None = None  # of the struct being written

    def locals(self) -> list[str]:
        """Declare the memory for the parameters of the calls since the last such declaration."""
        used = [f"        {self.prefix}_{name}_t {name};" for name in self._used]
        self._used = {}
        return ["    union {", *used, "    } made;"] if used else []

    def parameters(self, call: KernelCall) -> str:
        """The struct of a call: a constant, or one that a function fills."""
        if not _varies(call.parameters):
            return super().parameters(call)
        if id(call) not in self.known:
            self.known[id(call)] = call, self._filling(call.parameters)
        name = self.known[id(call)][1]
        short = name.removeprefix(f"{self.prefix}_")
        self._used[short] = None
        return f"*{name}(net, &made.{short})"

    def _filling(self, parameters: Struct) -> str:
        """Declare the function that fills parameters, and its memory; its name."""
        lists: list[tuple[str, Structs]] = []
        self._lists = lists
        kind, text = f"samebits_{parameters.type}", self._initialiser(parameters, "        ")
        self._lists = None
        name = self._fresh()
        filled = [
            f"    made->{each}[{index}] = (samebits_{item.type}){self._initialiser(item, ' ' * 8)};"
            for each, items in lists
            for index, item in enumerate(items.items)
        ]
        size = _size(parameters.type)[0]
        size += sum(len(items.items) * _size(items.items[0].type)[0] for _, items in lists)
        self.image.largest = max(self.image.largest, size + -size % ALIGNMENT)
        members = [
            f"    samebits_{items.items[0].type} {each}[{len(items.items)}];"
            for each, items in lists
        ]
        self.declared += [
            "\n".join(["typedef struct {", f"    {kind} all;", *members, f"}} {name}_t;"]),
            f"static const {kind} *{name}(const {self.prefix}_t *net, {name}_t *made) {{",
            *filled,
            f"    made->all = ({kind}){text};",
            "    return &made->all;",
            "}\n",
        ]
        return name

    def _field(self, struct: str, key: str, field: Field, indent: str) -> str:
        if isinstance(field, int) and key in TRAINED.get(struct, ()):
            return self.image.number(field, _members()[struct][key][0])
        if field is None and key in OPTIONAL.get(struct, ()):
            return self.image.name(NONE)
        if isinstance(field, Structs) and self._lists is not None:
            name = f"list{len(self._lists)}"
            self._lists.append((name, field))
            return f"made->{name}"
        return super()._field(struct, key, field, indent)


@functools.cache
def _members() -> dict[str, dict[str, tuple[str, int]]]:
    """The members of every struct of parameters: type, * of a pointer, and number of elements."""
    text = re.sub(r"/\*.*?\*/", "", csrc.source("inference/samebits_kernels.h"), flags=re.S)
    lengths = dict(re.findall(r"#define (\w+) (\d+)\n", text))
    found: dict[str, dict[str, tuple[str, int]]] = {}
    for body, name in re.findall(r"typedef struct \{(.*?)\} samebits_(\w+);", text, re.S):
        members = found[name] = {}
        for line in body.split(";"):
            kind, _, names = line.strip().removeprefix("const ").partition(" ")
            for star, member, length in re.findall(r"(\**)(\w+)(?:\[(\w+)\])?", names):
                members[member] = (star or kind, int(lengths.get(length, length or 1)))
    return found


@functools.cache
def _size(struct: str) -> tuple[int, int]:
    """Bytes of a struct of parameters on Cortex-M, and of what it is aligned to."""
    at, widest = 0, 1
    for kind, count in _members()[struct].values():
        if kind.startswith("samebits_"):
            size, align = _size(kind.removeprefix("samebits_"))
        else:
            size = align = POINTER if kind == "*" else int(re.sub(r"\D", "", kind)) // 8
        at += -at % align + size * count
        widest = max(widest, align)
    return at + -at % widest, widest


def _varies(struct: Struct) -> bool:
    """Whether training decides a number or an array of the parameters."""
    trained = TRAINED.get(struct.type, ())
    for key, field in struct.fields.items():
        inner = field.items if isinstance(field, Structs) else (field,)
        if isinstance(field, Data) or (key in trained and isinstance(field, int)):
            return True
        if any(isinstance(each, Struct) and _varies(each) for each in inner):
            return True
    return False
