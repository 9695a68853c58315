"""Sizes of the pages of a Parquet file, as their own headers state them.

A footer states sizes, too, but pages are unpacked as their headers state them: a footer that states
less does not make them smaller. Thrift's compact protocol, and `PageHeader` of parquet.thrift.
"""

from __future__ import annotations

from typing import Any, BinaryIO

from samebits.errors import InputError

WINDOW = 1 << 12  # bytes in which most headers end
LARGEST_HEADER = 1 << 24  # bytes of a header, which pyarrow bounds so as well
DEEPEST = 8  # structures inside each other
UNPACKED, PACKED = 2, 3  # fields of a header: the bytes of its page
TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = range(1, 13)


def unpacked_bytes(stored: BinaryIO, group: Any, where: str) -> int:
    """Bytes of all pages of a row group (of pyarrow's metadata) of a file, unpacked. Raises
    InputError for headers that are none."""
    total = 0
    for index in range(group.num_columns):
        column = group.column(index)
        place = column.data_page_offset
        if column.has_dictionary_page and 0 < column.dictionary_page_offset < place:
            place = column.dictionary_page_offset
        end = place + column.total_compressed_size
        while place < end:
            size, unpacked, packed = _header(stored, place, where)
            place += size + packed
            total += unpacked
    return total


def _header(stored: BinaryIO, place: int, where: str) -> tuple[int, int, int]:
    """Bytes of the header at a place of a file, and of its page: unpacked, and as stored."""
    window = WINDOW
    while True:
        stored.seek(max(place, 0))
        data = stored.read(window)
        try:
            reader = _Compact(data)
            found = reader.structure()
            if found[UNPACKED] >= 0 and found[PACKED] >= 0:
                return reader.at, found[UNPACKED], found[PACKED]
        except IndexError:
            if len(data) == window < LARGEST_HEADER:
                window = min(16 * window, LARGEST_HEADER)
                continue
        except (KeyError, ValueError):
            pass
        raise InputError(
            f"{where}: expected a page at byte {place}, found none: damaged; save it again"
        )


class _Compact:
    """A reader of Thrift's compact protocol: IndexError where the data end before a value does,
    ValueError for what is none."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def structure(self, depth: int = 0) -> dict[int, int]:
        """The integers of a structure, by field; all else is passed over."""
        found, field = dict[int, int](), 0
        while kind := self._byte():
            step, kind = kind >> 4, kind & 15
            field = field + step if step else self._integer()
            value = self._value(kind, depth)
            if kind in (I16, I32, I64):
                found[field] = value
        return found

    def _value(self, kind: int, depth: int) -> int:
        """Pass over a value; an integer is given."""
        if kind in (I16, I32, I64):
            return self._integer()
        if kind in (BYTE, DOUBLE):
            self._pass(1 if kind == BYTE else 8)
        elif kind == BINARY:
            self._pass(self._number())
        elif kind == STRUCT and depth < DEEPEST:
            self.structure(depth + 1)
        elif kind not in (TRUE, FALSE):
            # Of lists, sets and maps no field of a page's header is made.
            raise ValueError(f"a field of kind {kind}")
        return 0

    def _byte(self) -> int:
        self._pass(1)
        return self.data[self.at - 1]

    def _pass(self, count: int) -> None:
        self.at += count
        if self.at > len(self.data):
            raise IndexError

    def _number(self) -> int:
        """A number of 7 bits a byte, the lowest first."""
        found = 0
        for shift in range(0, 70, 7):
            byte = self._byte()
            found |= (byte & 127) << shift
            if byte < 128:
                return found
        raise ValueError("a number of more than 10 bytes")

    def _integer(self) -> int:
        """A signed one: 0, -1, 1, -2 ..."""
        found = self._number()
        return found >> 1 ^ -(found & 1)
