"""Draws docs/site/matrix.svg: outputs that differ from the reference's, by where they are computed.

    python tools/draw_matrix.py

from docs/records/targets.json. Letters are grey, so that they are read on a light and a dark page.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

ROOT = Path(__file__).resolve().parents[1]
RECORD = ROOT / "docs" / "records" / "targets.json"
PICTURE = ROOT / "docs" / "site" / "matrix.svg"
ROWS = {  # of the record, and what the picture calls them
    "torch": "PyTorch",
    "onnxruntime": "ONNX, onnxruntime",
    "x86-64-v4": "C, x86-64 (AVX-512)",
    "aarch64": "C, AArch64 (NEON)",
    "riscv64": "C, RISC-V",
    "s390x": "C, s390x (big-endian)",
    "cortex-m0-large": "C, Cortex-M0",
    "cortex-m4": "C, Cortex-M4",
    "cortex-m55": "C, Cortex-M55",
}
COLUMNS = ("digits, CNN", "CIFAR-10, ResNet", "digits, tanh and GELU")
LEFT, TOP, WIDE, HIGH, GAP = 176, 36, 160, 32, 4
SAME, OTHER, GREY = "#1f8a5b", "#b3261e", "#808080"  # white letters are read on the first two


def svg(table: Mapping[str, Any]) -> str:
    """The picture of the record's table."""
    found = {row[0]: row[1:] for row in table["rows"]}
    width, height = LEFT + len(COLUMNS) * WIDE, TOP + len(ROWS) * HIGH
    words = "; ".join(f"{title}: {', '.join(found[name])}" for name, title in ROWS.items())
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" role="img" font-family="system-ui, sans-serif" '
        'font-size="14">',
        f"<title>{escape('Outputs that differ from the reference. ' + words)}</title>",
        *(
            _text(LEFT + (place + 0.5) * WIDE, TOP - 14, name, GREY, "middle")
            for place, name in enumerate(COLUMNS)
        ),
    ]
    for line, (name, title) in enumerate(ROWS.items()):
        middle = TOP + line * HIGH + HIGH / 2 + 5
        parts.append(_text(LEFT - 12, middle, title, GREY, "end"))
        for place, cell in enumerate(found[name]):
            fill = SAME if cell.startswith("0 of") else OTHER
            parts.append(
                f'<rect x="{LEFT + place * WIDE + GAP // 2}" y="{TOP + line * HIGH + GAP // 2}" '
                f'width="{WIDE - GAP}" height="{HIGH - GAP}" rx="4" fill="{fill}"/>'
            )
            text = cell.replace(" of ", " differ of ")
            parts.append(_text(LEFT + (place + 0.5) * WIDE, middle, text, "#fff", "middle"))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _text(x: float, y: float, text: str, fill: str, anchor: str) -> str:
    return f'<text x="{x:g}" y="{y:g}" fill="{fill}" text-anchor="{anchor}">{escape(text)}</text>'


if __name__ == "__main__":
    record = json.loads(RECORD.read_text(encoding="utf-8"))
    PICTURE.write_text(svg(record["tables"]["backends"]), encoding="utf-8")
