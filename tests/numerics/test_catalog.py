"""The catalogue: its golden file, the table in the documentation, and what names mean."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from samebits.errors import InputError
from samebits.numerics import FORMATS, Format, ScaleRule, catalog, format_named

ROOT = Path(__file__).resolve().parents[2]
MARK, END = "<!-- catalogue -->", "<!-- /catalogue -->"


def facts(fmt: Format) -> list[str]:
    block = "tensor" if fmt.block is None else str(fmt.block)
    if fmt.rule is ScaleRule.FIXED:
        scale = f"2**{-fmt.fraction_bits}"
    elif fmt.power_of_two:
        scale = f"2**{fmt.exponent_min} .. 2**{fmt.exponent_max}"
    else:
        scale = "binary32"
    codes = f"{fmt.code_min} .. {fmt.code_max}"
    return [fmt.name, str(fmt.bits), codes, fmt.rule.value, block, scale, fmt.rounding.value]


def test_golden(golden):
    labels = ("", "bits ", "codes ", "rule ", "block ", "scale ", "rounding ")
    lines = [
        "; ".join(label + fact for label, fact in zip(labels, facts(fmt), strict=True))
        for fmt in FORMATS.values()
    ]
    golden("tests/golden/formats.txt", "\n".join(lines) + "\n")


def test_documented_table(golden):
    path = "docs/spec/formats.md"
    text = (ROOT / path).read_text(encoding="utf-8")
    before, rest = text.split(MARK)
    _, after = rest.split(END)
    head = ["name", "bits", "codes", "rule", "block", "scale", "rounding"]
    entries = [[f"`{fact}`" for fact in facts(fmt)] for fmt in FORMATS.values()]
    rows = [head, ["---"] * len(head), *entries]
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    golden(path, f"{before}{MARK}\n{table}\n{END}{after}")


def test_every_entry_is_found_by_its_name():
    for name, fmt in FORMATS.items():
        assert fmt.name == name
        assert format_named(name) is fmt


def test_constructors_agree_with_the_catalogue():
    assert catalog.bfp(16) == FORMATS["bfp16"]
    assert catalog.asymmetric(8, signed=True) == FORMATS["asymmetric-s8"]
    assert catalog.symmetric(16) == FORMATS["symmetric-s16"]
    assert catalog.symmetric(8, full=True).code_min == -128
    npu = catalog.bfp(5, block=128, exponent_bits=5)
    assert npu.name == "bfp5-block128-exponent5"
    assert (npu.code_min, npu.code_max, npu.exponent_min, npu.exponent_max) == (-15, 15, -16, 15)


@pytest.mark.parametrize("fmt", [catalog.bfp(b) for b in range(2, 33)], ids=lambda f: f.name)
def test_bfp_codes_are_symmetric_and_fit(fmt):
    assert fmt.code_min == -fmt.code_max
    assert fmt.code_max < 1 << (fmt.bits - 1)
    if fmt.bits in (8, 16, 32):
        assert fmt.code_max == sum(127 * 256**i for i in range(fmt.bits // 8))


def test_qmn():
    fmt = format_named("q3.12")
    assert (fmt.bits, fmt.code_min, fmt.code_max, fmt.fraction_bits) == (16, -32768, 32767, 12)
    assert format_named("q15.16") == catalog.qmn(15, 16)
    with pytest.raises(InputError) as error:
        format_named("q16.16")
    assert str(error.value) == (
        "format 'q16.16': expected qM.N of 2 to 32 bits, found 33 (1 + M + N)"
    )
    with pytest.raises(ValueError, match="expected m >= 0 and n >= 0, found m=-1, n=8"):
        catalog.qmn(-1, 8)


def test_unknown_name():
    with pytest.raises(InputError) as error:
        format_named("int8")
    assert str(error.value) == (
        "expected the name of a number format, found 'int8'; known names: "
        f"{', '.join(FORMATS)}, and qM.N for any fixed-point format of 2 to 32 bits"
    )


@pytest.mark.parametrize(
    "module", ["spec.formats", "spec.philox", "numerics", "numerics.catalog", "numerics.multiplier"]
)
def test_the_definition_does_not_import_torch(module):
    code = f"import sys, samebits.{module}; sys.exit('torch' in sys.modules)"
    found = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": str(ROOT / "src")},
    )
    assert found.returncode == 0, found.stderr


def test_lazy_names():
    import samebits.numerics as numerics

    for name in numerics.__all__:
        assert getattr(numerics, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'missing'"):
        _ = numerics.missing


def test_the_narrowest_and_the_widest_fixed_point_formats():
    for name in ("q0.1", "q1.0"):
        assert format_named(name).bits == 2, name
    for name in ("q0.31", "q31.0", "q15.16"):
        assert format_named(name).bits == 32, name
    for name, bits in (("q0.0", 1), ("q0.32", 33), ("q32.0", 33), ("q16.16", 33)):
        with pytest.raises(InputError) as caught:
            format_named(name)
        assert str(caught.value) == (
            f"format {name!r}: expected qM.N of 2 to 32 bits, found {bits} (1 + M + N)"
        )
