"""Changes to files, drawn from a generator: bytes, text, JSON, archives, headers, messages.

A mutation takes bytes and a generator and gives bytes. One of a format parses what it is given, and
falls back on `flip` where that is no longer of the format; lengths and checksums are made right
again, so that a reader comes further than to the first of them.
"""

from __future__ import annotations

import io
import json
import random
import re
import struct
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Mutation = Callable[[bytes, random.Random], bytes]

NUMBERS = (
    *(-(2**63), -(2**31), -129, -2, -1, 0, 1, 2, 3, 4, 5, 7, 8, 9, 10, 15, 16, 22, 31, 64, 255),
    *(256, 512, 1000, 4095, 65535, 65536, 2**20, 2**24, 2**28, 2**28 + 1, 2**31 - 1, 2**31, 2**32),
    *(2**62, 2**63 - 1, 2**64, 10**30),
)
REALS = (0.0, -0.0, -1.0, 1e-45, 1e-38, 0.5, 2.0, 3.4e38, float("inf"), float("-inf"), float("nan"))
TEXTS = (
    *("", "x", "y", "w", "shape", 'a"b', "*/", "\n", "%s%n", "{0}", "../x", "é", "N" * 5000, "\0"),
    *("nan", "1e999", "\u2028", "\x1b[31m", "__import__('os')", "\ud800", "int8", "float16"),
)
NESTED = 1200  # deeper than Python's parser of JSON goes
LARGEST = 1 << 16  # bytes of a mutated file: the next mutation must not take for ever


def flip(data: bytes, rng: random.Random) -> bytes:
    """Some bytes changed, cut, inserted or repeated, whatever they mean."""
    found = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 8))):
        place, kind = rng.randrange(len(found) + 1), rng.randrange(6)
        if kind == 0 and place < len(found):
            found[place] ^= 1 << rng.randrange(8)
        elif kind == 1 and place < len(found):
            found[place] = rng.randrange(256)
        elif kind == 2:
            del found[place : place + rng.choice((1, 4, 1000000))]
        elif kind == 3:
            found[place:place] = rng.randbytes(rng.choice((1, 2, 16)))
        elif kind == 4:
            found[place:place] = found[place : place + rng.randrange(1, 64)]
        else:
            size = rng.choice((1, 2, 4, 8))
            number = rng.choice(NUMBERS) % (1 << 8 * size)
            found[place : place + size] = number.to_bytes(size, rng.choice(("little", "big")))
    return bytes(found[:LARGEST])


def mostly(mutation: Mutation, other: Mutation = flip, part: float = 0.9) -> Mutation:
    """One mutation in `part` of the cases, another in the rest, and where the first cannot parse
    what it is given."""

    def either(data: bytes, rng: random.Random) -> bytes:
        if rng.random() < part:
            try:
                return mutation(data, rng)[:LARGEST]
            except Exception:  # of a parser: what is given is no longer of the format
                pass
        return other(data, rng)

    return either


# --- text -----------------------------------------------------------------------------------------


def lines_of(words: Sequence[str], numbers: Sequence[str], block: Sequence[str] = ()) -> Mutation:
    """Lines moved, repeated, dropped and put between the two lines of `block`; numbers and words
    replaced."""

    def change(data: bytes, rng: random.Random) -> bytes:
        lines = data.decode("utf-8", "surrogateescape").split("\n")
        for _ in range(rng.choice((1, 1, 1, 2, 4))):
            at, other = rng.randrange(len(lines)), rng.randrange(len(lines))
            kind = rng.randrange(8)
            if kind == 0:
                lines[at : at + rng.choice((1, 1, 5))] = []
            elif kind == 1:
                lines.insert(at, lines[other])
            elif kind == 2:
                lines[at], lines[other] = lines[other], lines[at]
            elif kind == 3 and block:
                low, high = sorted((at, other))
                begin = block[0].format(rng.choice(("1", "2", "3", *numbers)))
                lines[low:high] = [begin, *lines[low:high]]
                lines.insert(high + 1, block[1])
            elif kind < 6:
                lines[at] = _number_changed(lines[at], numbers, rng)
            else:
                parts = lines[at].split(" ")
                parts[rng.randrange(len(parts))] = rng.choice(words)
                lines[at] = " ".join(parts)
            lines = lines or [""]
        return "\n".join(lines).encode("utf-8", "surrogateescape")

    return change


def _number_changed(line: str, numbers: Sequence[str], rng: random.Random) -> str:
    places = list(re.finditer(r"[0-9]+", line))
    if not places:
        return line
    found = rng.choice(places)
    near = str(max(int(found[0]) + rng.choice((-2, -1, 1, 2)), 0))
    new = rng.choice((near, near, rng.choice(numbers)))
    return line[: found.start()] + new + line[found.end() :]


# --- JSON -----------------------------------------------------------------------------------------


def scalar(rng: random.Random) -> Any:
    """Any number, text or other value of JSON."""
    kind = rng.randrange(8)
    if kind < 3:
        return rng.choice(NUMBERS)
    if kind < 5:
        return rng.choice(TEXTS)
    return rng.choice((None, True, False, [], {}, [[]], rng.choice(REALS)))


def _near(value: Any, rng: random.Random) -> Any:
    """A value of the same type, close by."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + rng.choice((-2, -1, 1, 2, value))
    if isinstance(value, float):
        return value * rng.choice((-1.0, 0.5, 2.0, 1e30))
    if isinstance(value, str) and value:
        at = rng.randrange(len(value))
        return value[:at] + rng.choice(("", "0", "a", value[at] * 2)) + value[at + 1 :]
    return scalar(rng)


def changed_value(value: Any, rng: random.Random) -> Any:
    """JSON data with a few places changed, in place where it can be."""
    box = [value]
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        places: list[tuple[Any, Any]] = [(box, 0)]
        for holder, key in places:
            item = holder[key]
            keys = item if isinstance(item, dict) else range(len(item)) if _listed(item) else ()
            places += [(item, k) for k in list(keys)[:200]]
        holder, key = rng.choice(places)
        other, its = rng.choice(places)
        kind = rng.randrange(7)
        if kind < 3:
            holder[key] = _near(holder[key], rng)
        elif kind == 3:
            holder[key] = scalar(rng)
        elif kind == 4:
            holder[key] = json.loads(json.dumps(other[its]))
        elif holder is box:
            holder[key] = [holder[key]] if rng.random() < 0.2 else holder[key]
        elif kind == 5:
            del holder[key]
        elif isinstance(holder, dict):
            holder[rng.choice((f"{key}_", rng.choice(TEXTS), key.upper()))] = holder.pop(key)
        else:
            holder.insert(key, json.loads(json.dumps(holder[key])))
    return box[0]


def _listed(item: Any) -> bool:
    return isinstance(item, list)


def document(data: bytes, rng: random.Random) -> bytes:
    """A file of JSON; some nest deeply, repeat a key, or begin with a byte-order mark."""
    kind = rng.random()
    if kind < 0.02:
        return b"[" * NESTED
    if kind < 0.04:
        return data.replace(b":", b":" + b'{"a":' * NESTED + b"1" + b"}" * NESTED, 1)
    if kind < 0.06:
        return b"\xef\xbb\xbf" + data
    if kind < 0.1:
        at = data.find(b"{") + 1
        return data[:at] + b'"format": 3, ' + data[at:]
    return json.dumps(changed_value(json.loads(data), rng)).encode()


def records(data: bytes, rng: random.Random) -> bytes:
    """A file with a JSON object on each line."""
    lines = data.split(b"\n")
    for _ in range(rng.choice((1, 1, 2))):
        at, kind = rng.randrange(len(lines)), rng.randrange(6)
        if kind == 0:
            lines.insert(at, rng.choice(lines))
        elif kind == 1 and len(lines) > 1:
            del lines[at]
        elif lines[at]:
            lines[at] = document(lines[at], rng)
    return b"\n".join(lines)


# --- archives and headers -------------------------------------------------------------------------


def members_of(changes: Mapping[str, Mutation], other: Mutation = flip) -> Mutation:
    """A zip archive whose members are changed by the mutation of how their names end, and made
    anew with right checksums; some are dropped, repeated or renamed, or lie about their sizes."""

    def change(data: bytes, rng: random.Random) -> bytes:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = [(m.filename, archive.read(m)) for m in archive.infolist()]
        for _ in range(rng.choice((1, 1, 2))):
            at, kind = rng.randrange(len(members)), rng.random()
            name, held = members[at]
            if kind < 0.05 and len(members) > 1:
                del members[at]
            elif kind < 0.08:
                members.insert(at, (name, rng.choice(members)[1]))
            elif kind < 0.13:
                members[at] = rng.choice((f"{name}_", rng.choice(members)[0], "../x", "")), held
            else:
                ways = [way for end, way in changes.items() if name.endswith(end)]
                members[at] = name, mostly(ways[0] if ways else other)(held, rng)
        return archive_of(members, rng.random() < 0.03)

    return change


def archive_of(members: Sequence[tuple[str, bytes]], lying: bool = False) -> bytes:
    """A zip archive, compressed. lying: the directory says that the first member is huge."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members:
            info = zipfile.ZipInfo(name)
            info.compress_type = zipfile.ZIP_DEFLATED
            _append(archive, info, data)
    found = bytearray(stream.getvalue())
    at = found.find(b"PK\x01\x02")
    if lying and at >= 0:
        struct.pack_into("<I", found, at + 24, 0x7FFFFFFF)
    return bytes(found)


def _append(archive: zipfile.ZipFile, info: zipfile.ZipInfo, data: bytes) -> None:
    """A member, also of a name that is there already, of which zipfile warns."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        archive.writestr(info, data)


def array_file(data: bytes, rng: random.Random) -> bytes:
    """An .npy file whose header is changed as text, padded, and given its length again."""
    (length,) = struct.unpack_from("<H", data, 8)
    header, body = data[10 : 10 + length].decode("latin-1").strip(), data[10 + length :]
    kind = rng.randrange(6)
    if kind == 0:
        header = _number_changed(header, [str(n) for n in NUMBERS], rng)
    elif kind == 1:
        kinds = ("|u1", "<f4", ">f4", "<i8", "|b1", "<f2", "|O", "<U3", "<c8", "<M8[s]", "|V0")
        header = re.sub(r"'descr': '[^']*'", f"'descr': '{rng.choice(kinds)}'", header)
    elif kind == 2:
        header = re.sub(
            r"\([^)]*\)", rng.choice(("()", "(-1,)", "(2,2)", "(0,)", "(1,1,1,4)")), header
        )
    elif kind == 3:
        header = header.replace("False", rng.choice(("True", "None")))
    elif kind == 4:
        header = flip(header.encode("latin-1"), rng).decode("latin-1")
    else:
        body = flip(body, rng)
    text = header.encode("latin-1") + b" " * (-(len(header) + 11) % 64) + b"\n"
    return data[:8] + struct.pack("<H", len(text) & 0xFFFF) + text + body


def split_tensors(data: bytes) -> tuple[dict[str, Any], bytes]:
    """The header and the data of a safetensors file."""
    (length,) = struct.unpack_from("<Q", data)
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def join_tensors(header: Any, body: bytes) -> bytes:
    """A safetensors file."""
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


def tensors(data: bytes, rng: random.Random) -> bytes:
    """A safetensors file whose header is changed as JSON, or its data as bytes."""
    header, body = split_tensors(data)
    if rng.random() < 0.5:
        header = changed_value(header, rng)
    else:
        body = flip(body, rng)[: len(body)].ljust(len(body), b"\0")
    return join_tensors(header, body)


def chunks(data: bytes, rng: random.Random) -> bytes:
    """A PNG file: chunks changed, dropped, repeated and moved, each with its checksum."""
    found, at = [], 8
    while at + 12 <= len(data):
        (length,) = struct.unpack_from(">I", data, at)
        found.append((data[at + 4 : at + 8], data[at + 8 : at + 8 + length]))
        at += 12 + length
    at, kind = rng.randrange(len(found)), rng.randrange(8)
    name, held = found[at]
    if kind == 0:
        del found[at]
    elif kind == 1:
        found.insert(at, rng.choice(found))
    elif kind == 2:
        other = rng.randrange(len(found))
        found[at], found[other] = found[other], found[at]
    elif kind == 3:
        found.insert(
            1, (rng.choice((b"tRNS", b"PLTE", b"iCCP", b"zTXt", b"gAMA")), rng.randbytes(9))
        )
    elif name == b"IDAT" and kind < 6:
        found[at] = name, zlib.compress(flip(zlib.decompress(held), rng))
    else:
        found[at] = name, flip(held, rng)
    parts = [data[:8]]
    for name, held in found:
        check = zlib.crc32(name + held)
        parts.append(struct.pack(">I", len(held)) + name + held + struct.pack(">I", check))
    return b"".join(parts)


def sound(data: bytes, rng: random.Random) -> bytes:
    """A WAV file: its chunks and the fields of its format."""
    found, at = bytearray(data), 12
    places = []
    while at + 8 <= len(found):
        (length,) = struct.unpack_from("<I", found, at + 4)
        places.append((at, length))
        at += 8 + length + length % 2
    kind, (at, length) = rng.randrange(6), rng.choice(places)
    if kind < 2 and found[at : at + 4] == b"fmt ":
        place = at + 8 + 2 * rng.randrange(length // 2)
        values = (0, 1, 2, 3, 8, 16, 24, 0xFFFE, 8000, 16000, 44100, rng.randrange(65536))
        struct.pack_into("<H", found, place, rng.choice(values))
    elif kind == 2:
        struct.pack_into("<I", found, at + 4, max(length + rng.choice((-2, -1, 1, 2, 2**31)), 0))
    elif kind == 3:
        extra = b"LIST" + struct.pack("<I", 5) + b"abcde\0"
        found[at:at] = extra
    elif kind == 4:
        found[at : at + 4] = rng.choice((b"data", b"fmt ", b"junk"))
    else:
        place = at + 8
        found[place : place + length] = flip(bytes(found[place : place + length]), rng)
    struct.pack_into("<I", found, 4, len(found) - 8)
    return bytes(found)


def words(data: bytes, rng: random.Random) -> bytes:
    """32-bit words: fields of one changed, words dropped, repeated and moved."""
    found = list(struct.unpack(f"<{len(data) // 4}I", data[: len(data) // 4 * 4]))
    for _ in range(rng.choice((1, 1, 2, 4))):
        at, kind = rng.randrange(len(found)), rng.randrange(6)
        if kind == 0:
            found[at] = found[at] & 0x3FFFFFF | rng.randrange(64) << 26
        elif kind == 1:
            found[at] = found[at] & ~(15 << 22) | rng.randrange(16) << 22
        elif kind == 2:
            found[at] = found[at] & ~0x3FFFFF | rng.choice((0, 1, 2, rng.randrange(1 << 22)))
        elif kind == 3:
            found[at] ^= 1 << rng.randrange(32)
        elif kind == 4:
            found.insert(at, rng.choice(found))
        elif len(found) > 1:
            del found[at]
    return struct.pack(f"<{len(found)}I", *found)


# --- several files in one case --------------------------------------------------------------------


def split_files(data: bytes, count: int) -> list[bytes]:
    """The files of a case: all but the last behind their lengths, 4 bytes little-endian each."""
    found, at = [], 0
    for _ in range(count - 1):
        length = int.from_bytes(data[at : at + 4], "little")
        found.append(data[at + 4 : at + 4 + length])
        at += 4 + length
    return [*found, data[at:]]


def join_files(files: Sequence[bytes]) -> bytes:
    """The inverse of `split_files`."""
    return b"".join(len(f).to_bytes(4, "little") + f for f in files[:-1]) + files[-1]


def one_of(*mutations: Mutation) -> Mutation:
    """A case of several files, of which one is changed, or rarely two."""

    def change(data: bytes, rng: random.Random) -> bytes:
        files = split_files(data, len(mutations))
        for at in rng.sample(range(len(files)), rng.choice((1, 1, 1, min(2, len(files))))):
            files[at] = mutations[at](files[at], rng)
        return join_files(files)

    return change
