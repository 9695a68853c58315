"""Bytes of the pages of Parquet files, whatever their footers say."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from samebits.data.pages import unpacked_bytes
from samebits.errors import InputError

pyarrow = pytest.importorskip("pyarrow", reason="needs pyarrow, which writes the files")
parquet = pytest.importorskip("pyarrow.parquet", reason="needs pyarrow, which writes the files")

ROWS = 3000
RNG = np.random.default_rng(1)
TABLE = pyarrow.table(
    {
        "numbers": RNG.normal(size=ROWS),
        "classes": RNG.integers(0, 9, ROWS),
        "words": [f"word{i % 100}" * (i % 7) for i in range(ROWS)],
        "nothing": pyarrow.nulls(ROWS, pyarrow.int32()),
        "long": pyarrow.array([None, "y" * 6000] * (ROWS // 2)),  # headers longer than a window
    }
)


def sums(path: Path) -> tuple[int, int]:
    """Bytes of the pages, and as the footer has them, which counts headers, too."""
    about = parquet.read_metadata(path)
    groups = [about.row_group(index) for index in range(about.num_row_groups)]
    with open(path, "rb") as file:
        found = sum(unpacked_bytes(file, group, str(path)) for group in groups)
    return found, sum(group.total_byte_size for group in groups)


@pytest.mark.parametrize("packing", ["none", "snappy", "gzip", "zstd"])
def test_the_sizes_of_honest_footers(tmp_path: Path, packing: str) -> None:
    path = tmp_path / "x.parquet"
    for version, dictionary, size, statistics in itertools.product(
        ("1.0", "2.0"), (False, True), (1000, 1 << 20), (False, True)
    ):
        parquet.write_table(
            TABLE, path, compression=packing, data_page_version=version, data_page_size=size,
            use_dictionary=dictionary, write_statistics=statistics, write_page_checksum=statistics,
            row_group_size=ROWS // 2,
        )  # fmt: skip
        found, stated = sums(path)
        assert found <= stated
        if size > 1000 and not statistics:
            assert found > 0.95 * stated


def damaged(path: Path, at: int, new: bytes) -> None:
    """Overwrite bytes of a file."""
    content = bytearray(path.read_bytes())
    content[at : at + len(new)] = new
    path.write_bytes(content)


@pytest.mark.parametrize(
    "new",
    [b"\x00", b"\xff" * 12, b"\x15\x00\x15\x01\x15\x01\x00", b"\x19" * 4, b"\x1c" * 40],
    ids=["no field", "a long number", "a negative size", "a list", "deep"],
)
def test_a_damaged_header(tmp_path: Path, new: bytes) -> None:
    path = tmp_path / "x.parquet"
    parquet.write_table(TABLE, path)
    column: Any = parquet.read_metadata(path).row_group(0).column(0)
    place = column.dictionary_page_offset or column.data_page_offset
    damaged(path, place, new)
    with pytest.raises(InputError) as caught:
        sums(path)
    assert (
        str(caught.value)
        == f"{path}: expected a page at byte {place}, found none: damaged; save it again"
    )


def test_a_file_that_ends_within_a_page(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    parquet.write_table(TABLE, path)
    about = parquet.read_metadata(path).row_group(0)
    path.write_bytes(path.read_bytes()[:40])
    with (
        open(path, "rb") as file,
        pytest.raises(InputError, match="found none: damaged; save it again"),
    ):
        unpacked_bytes(file, about, str(path))
