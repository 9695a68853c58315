"""Writes the audio features of docs/spec/audio.md as a folder of C, with a streaming interface."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np

from samebits.codegen import sound
from samebits.codegen.names import checked_prefix
from samebits.codegen.packaging.harness import filled, makefile
from samebits.codegen.packaging.package import GENERATOR, LIBRARY, replace_folder
from samebits.codegen.run.interface import REPORT
from samebits.csrc import flat
from samebits.data.audio import Codes, LogMel, log_mel
from samebits.spec.philox import philox4x32

FILES = (
    *("audio/samebits_audio.c", *sound.HEADERS),
    *("samebits_integer.h", "samebits_io.h"),
)
TEST_FRAMES = 4

HEADER = """\
/* Log-mel features of samples at @rate@ Hz, @frame@ a frame. Memory is the caller's. */
#ifndef @MODEL@_H
#define @MODEL@_H

#include "samebits/samebits_audio.h"

#ifdef __cplusplus
extern "C" {
#endif

#define @MODEL@_RATE @rate@
#define @MODEL@_FRAME @frame@
#define @MODEL@_HOP @hop@
#define @MODEL@_FFT @fft@
#define @MODEL@_MELS @mels@
#define @MODEL@_SILENCE (-SAMEBITS_AUDIO_MAX) /* the code of a frame of zeros */

/* Frames that `count` samples complete at most. */
#define @MODEL@_FRAMES(count) (((count) + @MODEL@_HOP - 1) / @MODEL@_HOP)

typedef struct {
    int32_t work[@MODEL@_FFT];
    int16_t ring[@MODEL@_FRAME];
    samebits_audio_position position;
} @model@_state;

/* Before the first sample of a stream. */
void @model@_reset(@model@_state *state);

/* The next `count` samples of the stream, in pieces of any size. The features of each frame that
 * they complete, codes of q0.15, go to features[@MODEL@_FRAMES(count)][@MODEL@_MELS]; the number of
 * frames is returned. */
uint32_t @model@_push(@model@_state *state, const int16_t *samples, uint32_t count,
         @pad@      int16_t *features);

#ifdef __cplusplus
}
#endif

#endif
"""

SOURCE = """\
#include "@model@.h"

@tables@
static const samebits_audio @model@_parameters = {
    .frame = @MODEL@_FRAME,
    .hop = @MODEL@_HOP,
    .fft = @MODEL@_FFT,
    .mels = @MODEL@_MELS,
@fields@
};

void @model@_reset(@model@_state *state) {
    state->position.at = 0;
    state->position.missing = @MODEL@_FRAME;
}

uint32_t @model@_push(@model@_state *state, const int16_t *samples, uint32_t count,
         @pad@      int16_t *features) {
    return samebits_audio_push(&@model@_parameters, &state->position, state->ring, state->work,
                               samples, count, features);
}
"""

MAIN = """\
/* Harness: samples from standard input to features on standard output, raw little-endian codes of
 * 16 bits, CHUNK samples at a time. -DSAMEBITS_SHORT: codes of 8 bits. -DSAMEBITS_TEST: runs
 * @model@_vectors.h in pieces of several sizes and prints how many features differ. */
#include <stdio.h>

#include "../@model@.h"
#include "../samebits/samebits_io.h"

static @model@_state state;

#ifdef SAMEBITS_TEST
#include "@model@_vectors.h"

static int16_t features[sizeof @model@_test_features / sizeof(int16_t)];

int main(void) {
    static const uint32_t chunks[] = {1, 7, @MODEL@_HOP, @MODEL@_TEST_SAMPLES};
    const uint32_t size = sizeof features / sizeof(int16_t);
    unsigned long differ = 0, total = 0;
    uint32_t c, i;
    for (c = 0; c < sizeof chunks / sizeof chunks[0]; c++) {
        uint32_t frames = 0;
        @model@_reset(&state);
        for (i = 0; i < @MODEL@_TEST_SAMPLES; i += chunks[c]) {
            const uint32_t left = @MODEL@_TEST_SAMPLES - i;
            const uint32_t count = left < chunks[c] ? left : chunks[c];
            frames += @model@_push(&state, @model@_test_samples + i, count,
                      @pad@      features + frames * @MODEL@_MELS);
        }
        differ += frames * @MODEL@_MELS != size;
        for (i = 0; i < size; i++, total++) differ += features[i] != @model@_test_features[i];
    }
    printf("%lu of %lu features differ\\n", differ, total);
    return differ != 0;
}
#else
#ifndef CHUNK
#define CHUNK 256
#endif
#ifdef SAMEBITS_SHORT
typedef int8_t code;
#else
typedef int16_t code;
#endif

static int16_t samples[CHUNK], features[@MODEL@_FRAMES(CHUNK) * @MODEL@_MELS];
static uint8_t input[sizeof samples], output[sizeof features];

int main(void) {
    @model@_reset(&state);
    for (;;) {
        const uint32_t count = (uint32_t)(fread(input, 1, sizeof input, stdin) / sizeof(int16_t));
        uint32_t size;
        if (count == 0) return ferror(stdin) ? 2 : 0;
        samebits_decode(input, sizeof(int16_t), count, samples);
        size = @model@_push(&state, samples, count, features) * @MODEL@_MELS;
#ifdef SAMEBITS_SHORT
        {
            static int8_t codes[sizeof features / sizeof(int16_t)];
            samebits_audio_short(features, size, codes);
            samebits_encode(codes, sizeof(code), size, output);
        }
#else
        samebits_encode(features, sizeof(code), size, output);
#endif
        if (fwrite(output, sizeof(code), size, stdout) != size) return 2;
    }
}
#endif
"""


def write_audio(settings: LogMel, folder: Path, *, prefix: str = "audio") -> None:
    """Write the C of a feature extractor to `folder`, replacing an earlier package there.

    C99 without floating point or malloc; the state, `4 * fft + 2 * frame + 8` bytes, is the
    caller's. Raises InputError for a bad prefix or a folder that holds other files.
    """
    replace_folder(Path(folder), texts(settings, prefix=prefix))


def texts(settings: LogMel, *, prefix: str = "audio") -> dict[str, str]:
    """The files of a package by name."""
    prefix = checked_prefix(prefix)
    tables = sound.tables(settings)
    arrays = [sound.table(f"{prefix}_{name}", array) for name, array in tables.items()]
    names = {
        "model": prefix,
        "MODEL": prefix.upper(),
        "pad": " " * len(prefix),
        **{name: str(value) for name, value in asdict(settings).items()},
        "tables": "\n".join(arrays),
        "fields": "\n".join(f"    .{name} = {prefix}_{name}," for name in tables),
    }
    report = {
        "generator": GENERATOR,
        "prefix": prefix,
        "target": "c",
        "features": asdict(settings),
        "constants": sum(array.nbytes for array in tables.values()),
        "state": 4 * settings.fft + 2 * settings.frame + 8,
    }
    return {
        f"{prefix}.h": filled(HEADER, names),
        f"{prefix}.c": filled(SOURCE, names),
        f"test/{prefix}_main.c": filled(MAIN, names),
        f"test/{prefix}_vectors.h": _vectors(settings, prefix),
        "Makefile": makefile(prefix, results="features", optimize="-O2"),
        **{f"{LIBRARY}/{name}": text for name, text in flat(FILES).items()},
        REPORT: json.dumps(report, indent=2) + "\n",
    }


def _vectors(settings: LogMel, prefix: str) -> str:
    """test/<prefix>_vectors.h: samples that grow louder, and their features."""
    samples = _noise(settings.frame + (TEST_FRAMES - 1) * settings.hop)
    features = log_mel(samples, settings).reshape(-1)
    guard = f"{prefix.upper()}_VECTORS_H"
    return (
        f"#ifndef {guard}\n#define {guard}\n\n"
        f"#define {prefix.upper()}_TEST_SAMPLES {samples.size}\n\n"
        + sound.table(f"{prefix}_test_samples", samples)
        + "\n"
        + sound.table(f"{prefix}_test_features", features)
        + "\n#endif\n"
    )


def _noise(count: int) -> Codes:
    """The same on every machine; sample i is below about 2**(15 i / count)."""
    blocks = (philox4x32((block, 0, 0, 0), (0, 0)) for block in range(-(-count // 4)))
    words = [word for block in blocks for word in block][:count]
    codes = [(word & 0xFFFF) - 0x8000 >> 15 - 16 * i // count for i, word in enumerate(words)]
    return np.array(codes, np.int16)
