"""From a recording to the codes of a network's input: constants and C. docs/spec/audio.md."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from samebits.codegen.call_text import numbers
from samebits.codegen.names import CTYPES
from samebits.data.audio import SILENCE, Codes, LogMel, log_mel
from samebits.data.recordings import fit
from samebits.ir.graph import Array
from samebits.tables.audio import log2_table

HEADERS = ("audio/samebits_audio.h", "audio/samebits_audio_frame.h")
BITS = 15  # features are codes of q0.15
COUNT = 2  # int16 numbers before a recording, in which a program is told its length
MORE = 2  # frames of the first recording of a self-test, less one; the second has one


def tables(settings: LogMel) -> dict[str, Array]:
    """The constants by the names of samebits_audio's fields."""
    first, weights = zip(*settings.weights, strict=True)
    return {
        "window": np.array(settings.window[: settings.frame // 2 + 1], np.uint16),
        "cosine": np.array(settings.cosine, np.int16),
        "first": np.array(first, np.uint16),
        "count": np.array([len(w) for w in weights], np.uint16),
        "weights": np.array([code for w in weights for code in w], np.uint16),
        "logarithm": np.array(log2_table(), np.uint16),
    }


def table(name: str, array: Array) -> str:
    """A constant array in C."""
    ctype = CTYPES[array.dtype.name]
    return f"static const {ctype} {name}[{array.size}] = {{\n{numbers(array)}}};\n"


def parameters(settings: LogMel, prefix: str) -> list[str]:
    """The constants in C, and <prefix>_parameters, which names them."""
    found = tables(settings)
    sizes = {name: getattr(settings, name) for name in ("frame", "hop", "fft", "mels")}
    return [
        *(table(f"{prefix}_{name}", array) for name, array in found.items()),
        f"static const samebits_audio {prefix}_parameters = {{",
        *(f"    .{name} = {size}," for name, size in sizes.items()),
        *(f"    .{name} = {prefix}_{name}," for name in found),
        "};",
    ]


def packed(recordings: Sequence[Codes], room: int) -> Codes:
    """Recordings int16 [n] of at most `room` samples as rows [N, COUNT + room]: the low and the
    high half of the length, the samples, zeros."""
    rows = np.zeros((len(recordings), COUNT + room), np.int16)
    for row, samples in zip(rows, recordings, strict=True):
        row[:COUNT] = np.array([len(samples) & 0xFFFF, len(samples) >> 16], np.uint16).view(
            np.int16
        )
        row[COUNT : COUNT + len(samples)] = samples
    return rows


def features(rows: Codes, settings: LogMel, steps: int) -> Codes:
    """Features [N, steps, mels] of recordings that `packed` made."""
    low, high = rows[:, :COUNT].view(np.uint16).T.astype(np.int64)
    counts = (low | high << 16).tolist()
    found = [
        fit(log_mel(row[COUNT : COUNT + count], settings), steps)
        for row, count in zip(rows, counts, strict=True)
    ]
    return np.stack(found)


def noise(settings: LogMel) -> Codes:
    """Samples of a self-test: MORE + 1 frames that grow louder."""
    count = settings.frame + MORE * settings.hop
    at = np.arange(count, dtype=np.int64)
    return ((at * at * 37 + at * 11) % 4096 * (at + 64) // count - 1024).astype(np.int16)


def front(
    settings: LogMel, steps: int, ends: tuple[int, int], prefix: str, net: str = ""
) -> list[str]:
    """C of <prefix>_hear: a recording to the codes of the input, which lie between `ends`. net:
    what the macros of its scale take."""
    first, passed = (f"const {prefix}_t *net, ", "net, ") if net else ("", "")
    upper = prefix.upper()
    head = f"static void {prefix}_hear("
    pad = " " * len(head)
    scale = f"{upper}_INPUT0_SCALE"
    return [
        f"static void {prefix}_put({first}{prefix}_answer_t *answer, int32_t step) {{",
        "    int32_t i;",
        f"    for (i = 0; i < {settings.mels}; i++) {{",
        f"        answer->input[step * {settings.mels} + i] = ({prefix}_input0_t)samebits_code(",
        f"            (float)answer->features[i], {scale}_M{net}, {scale}_E{net} + {BITS},",
        f"            {upper}_INPUT0_ZERO{net}, {ends[0]}, {ends[1]});",
        "    }",
        "}",
        "",
        "/* Silence before a short recording, the middle of a long one. */",
        f"{head}{first}const {prefix}_raw_t *samples, uint32_t count,",
        f"{pad}{prefix}_answer_t *answer) {{",
        f"    const int32_t frames = 1 + (int32_t)((count - {settings.frame}u) / {settings.hop}u);",
        f"    const int32_t kept = SAMEBITS_MIN(frames, {steps}), first = (frames - kept) / 2;",
        "    int32_t i;",
        f"    for (i = 0; i < {settings.mels}; i++) answer->features[i] = {SILENCE};",
        f"    for (i = 0; i < {steps} - kept; i++) {prefix}_put({passed}answer, i);",
        "    for (i = 0; i < kept; i++) {",
        f"        const {prefix}_raw_t *frame = samples + (first + i) * {settings.hop};",
        f"        samebits_audio_frame(&{prefix}_parameters, frame, 0, answer->work,",
        "                             answer->features);",
        f"        {prefix}_put({passed}answer, {steps} - kept + i);",
        "    }",
        "}",
    ]
