/* --- packed convolution -------------------------------------------------------------------------
 *
 * The codes of every output pixel are gathered as one run, kernel row after kernel row, and its
 * outputs are products of that run with the packed weights: no kernel tests for an edge of the
 * image, and every layer is the product of two matrices. Runs are gathered for a few pixels at a
 * time. Where x is padded, or may be overwritten by the outputs, its rows are copied before that,
 * each once, to a band of as many rows as a window has (row v lies at v modulo their number).
 *
 * The functions below define the codes. packed_mve.c, packed_dsp.c and packed_thumb.c
 * compute the same by what their processors have, on the same packed data. */

#include "samebits_vector.h"

#if !defined(SAMEBITS_PACKED_MVE) && !defined(SAMEBITS_PACKED_WORDS)
SAMEBITS_INLINE void samebits_move_bytes(int8_t *to, const int8_t *from, int32_t n) {
    int32_t i;
    for (i = 0; i < n; i++) to[i] = from[i];
}

static void samebits_set(int8_t *to, int8_t code, int32_t n) {
    int32_t i;
    for (i = 0; i < n; i++) to[i] = code;
}
#endif

#ifndef SAMEBITS_PACKED_MVE
/* Every code `repeat` times. */
static void samebits_packed_repeat(int8_t *to, const int8_t *from, int32_t n, int32_t repeat) {
    int32_t i;
    if (repeat == 1) {
        samebits_move_bytes(to, from, n);
        return;
    }
    for (i = 0; i < n; i++, to += repeat) samebits_set(to, from[i], repeat);
}
#endif

/* Words that end the sums of a block. */
SAMEBITS_INLINE int32_t samebits_packed_ends(const samebits_packed *c) {
    return c->doubled ? 2 * c->lanes : c->lanes;
}

/* A sum's code by those words: codegen/lowering/high.py, codegen/lowering/doubled.py. */
SAMEBITS_INLINE int8_t samebits_packed_code(const samebits_packed *c, int32_t acc,
                                            const int32_t *ends, int32_t lane) {
    int32_t v;
    if (c->doubled) {
        const int32_t m = ends[c->shift ? 2 * lane : lane];
        const int32_t s = c->shift ? ends[2 * lane + 1] + c->shift : -ends[c->lanes + lane];
        v = samebits_doubled(acc, m, s);
    } else {
        v = (int32_t)samebits_floor64((int64_t)acc * ends[lane], c->upper);
        v = samebits_floor32(v + ((int32_t)1 << (c->shift - 1)), c->shift);
    }
    return (int8_t)samebits_clamp32(v + c->zero, c->low, c->high);
}

/* Weight `tap` of a channel of a block. Two lanes: halfwords 256 * a + b of both channels, those of
 * codes 0 and 2, then 1 and 3, of each four. */
SAMEBITS_INLINE int32_t samebits_packed_weight(const samebits_packed *c, const int32_t *words,
                                        int32_t lane, int32_t tap) {
    if (c->lanes == 2) {
        const uint32_t word = (uint32_t)words[tap / 4 * 2 + tap % 2];
        const int32_t both = (int16_t)(uint16_t)(tap % 4 < 2 ? word : word >> 16);
        const int32_t second = (int8_t)(uint8_t)both;
        return lane ? second : (both - second) / 256;
    }
    tap = (tap / c->step * c->lanes + lane) * c->step + tap % c->step;
    return ((const int8_t *)words)[samebits_byte_of(tap)];
}

/* Outputs of `pixels` runs that lie one after the other; pitch: bytes from those of a pixel to
 * those of the next. */
static void samebits_packed_dots(const samebits_packed *c, const int8_t *x, int32_t pixels,
                                 int8_t *out, int32_t pitch, void *wide) {
    const int32_t codes = c->steps * c->step, lanes = c->lanes;
    const int32_t words = c->lanes == 2 ? codes / 2 : lanes * codes / 4;
    const int32_t ends = samebits_packed_ends(c);
    const int32_t *stream = c->stream;
    int32_t o, lane, p, i;
#if defined(SAMEBITS_PACKED_MVE) || defined(SAMEBITS_PACKED_WORDS)
    if (samebits_vector_dots(c, x, pixels, out, pitch, wide)) return;
#endif
    (void)wide;
    for (o = 0; o < c->out_channels; o += lanes, stream += lanes + words + ends) {
        for (lane = 0; lane < SAMEBITS_MIN(lanes, c->out_channels - o); lane++) {
            /* 256 * a + b: a modulo 2**24 */
            const int32_t first = lanes == 2 && lane == 0 && !c->long_sums;
            for (p = 0; p < pixels; p++) {
                uint32_t sum = (uint32_t)stream[lane];
                if (first) sum = (sum - (uint32_t)stream[1]) >> 8;
                for (i = 0; i < codes; i++) {
                    const int32_t w = samebits_packed_weight(c, stream + lanes, lane, i);
                    sum += (uint32_t)(x[p * codes + i] * w);
                }
                i = samebits_signed32(first ? sum << 8 : sum);
                if (first) i = samebits_floor32(i, 8);
                out[p * pitch + o + lane] =
                    samebits_packed_code(c, i, stream + lanes + words, lane);
            }
        }
    }
}

/* n bytes of the code of the padding; width: bytes of a code. */
SAMEBITS_INLINE void samebits_packed_pad(const samebits_packed *c, int8_t *to, int32_t n,
                                         const int32_t width) {
    if (width == 1) {
        samebits_set(to, (int8_t)c->pad_code, n);
    } else {
        samebits_i16 *codes = (samebits_i16 *)(void *)to;
        int32_t i;
        for (i = 0; i < n / 2; i++) codes[i] = c->pad_code;
    }
}

/* Row v of the padded image to its place in the band; line: bytes of a row there. Columns beside
 * the image hold the code of the padding from the beginning. */
SAMEBITS_INLINE void samebits_packed_row(const samebits_packed *c, const int8_t *image, int32_t v,
                                         int32_t line, int8_t *band, const int32_t width) {
    const int32_t y = v - c->pad_top, row = c->width * c->channels;
    const int32_t before = c->pad_left * c->channels, n = SAMEBITS_MIN(row, line - before);
    int8_t *to = band + v % c->rows * line;
    if (y < 0 || y >= c->height) {
        samebits_packed_pad(c, to, line, width);
        return;
    }
    samebits_packed_repeat(to + before, image + y * (row / c->repeat), n / c->repeat, c->repeat);
}

/* Windows of one pixel of a row. x is used as it is, or one pixel of it padded to whole steps. */
void samebits_run_linear8_packed(const samebits_packed *c, const void *x, void *out,
                                 void *scratch) {
    const int8_t *runs = (const int8_t *)x;
    if (c->tile) {
        int8_t *run = (int8_t *)scratch + c->wide;
        samebits_move_bytes(run, runs, c->channels);
        samebits_set(run + c->channels, 0, c->steps * c->step - c->channels);
        runs = run;
    }
    samebits_packed_dots(c, runs, c->out_width, (int8_t *)out, c->out_channels, scratch);
}

/* The runs of `pixels` windows of a row of outputs, of one group. from: the first window's code in
 * row 0 of the image or the band; slot: of the window's first row. */
static void samebits_packed_gather(const samebits_packed *c, const int8_t *from, int32_t slot,
                                   int32_t line, int32_t pixels, int8_t *runs) {
    const int32_t depth = c->channels / c->groups, codes = c->steps * c->step;
    const int32_t pixel = c->stride_x * c->channels, next = c->dilation_x * c->channels;
    const int32_t whole = c->groups == 1 && c->dilation_x == 1;
    const int32_t pieces = whole ? 1 : c->kernel_width, length = c->kernel_width * depth / pieces;
    int32_t row, q, p;
    for (row = 0; row < c->kernel_height; row++) {
        const int8_t *tap = from + slot * line;
        for (q = 0; q < pieces; q++, tap += next, runs += length) {
            const int8_t *at = tap;
            int8_t *run = runs;
            for (p = 0; p < pixels; p++, at += pixel, run += codes) {
                samebits_move_bytes(run, at, length);
            }
        }
        slot += c->dilation_y;
        if (c->banded && slot >= c->rows) slot -= c->rows;
    }
}

/* Windows of codes of `width` bytes, as `channels` and `step` count; c16: of two, else unused. */
SAMEBITS_INLINE void samebits_packed_conv(const samebits_packed *c, const samebits_packed16 *c16,
                                          const void *x, void *out, void *scratch,
                                          const int32_t width) {
    const int32_t columns =
        (c->out_width - 1) * c->stride_x + (c->kernel_width - 1) * c->dilation_x + 1;
    const int32_t line = (c->banded ? columns : c->width) * c->channels;
    const int32_t pixel = c->stride_x * c->channels, codes = c->steps * c->step;
    const int32_t depth = c->channels / c->groups;
    const int32_t taps = c->kernel_height * c->kernel_width * depth;
    int8_t *runs = (int8_t *)scratch + c->wide, *band = runs + c->tile * codes;
    int32_t n, oy, ox, p, group, to = 0;
    samebits_packed part = *c; /* one group at a time */
    part.out_channels = (int16_t)(c->out_channels / c->groups);
    for (p = 0; p < c->tile; p++) { /* what no code is written to meets weights of 0 */
        samebits_set(runs + p * codes + taps, 0, codes - taps);
    }
    if (c->banded) samebits_packed_pad(c, band, c->rows * line, width);
    for (n = 0; n < c->batch; n++) {
        const int8_t *image = (const int8_t *)x + n * c->height * c->width * c->channels;
        int32_t next = 0;
        for (oy = 0; oy < c->out_height; oy++) {
            const int32_t top = oy * c->stride_y;
            for (next = SAMEBITS_MAX(next, top); c->banded && next < top + c->rows; next++) {
                samebits_packed_row(c, image, next, line, band, width);
            }
            for (ox = 0; ox < c->out_width; ox += c->tile, to += p * c->out_channels) {
                const int8_t *from = c->banded ? band : image + top * line;
                const int32_t slot = c->banded ? top % c->rows : 0;
                p = SAMEBITS_MIN(c->tile, c->out_width - ox);
                part.stream = c->stream;
                for (group = 0; group < c->groups; group++, part.stream += c->part) {
                    const int8_t *first = from + ox * pixel + group * depth;
                    const int32_t channel = group * part.out_channels;
                    samebits_packed_gather(c, first, slot, line, p, runs);
                    if (width == 1) {
                        samebits_packed_dots(&part, runs, p, (int8_t *)out + to + channel,
                                             c->out_channels, scratch);
                    } else {
                        samebits_packed_dots16(c16, &part, (const int16_t *)(void *)runs, p,
                                               channel, out, to + channel, (int32_t *)scratch);
                    }
                }
            }
        }
    }
}

void samebits_run_conv8_packed(const samebits_packed *c, const void *x, void *out, void *scratch) {
    samebits_packed_conv(c, 0, x, out, scratch, 1);
}

/* Codes of 16 bits, windows of one pixel of a row, x as it is or one pixel of it padded. */
void samebits_run_linear16_packed(const samebits_packed16 *c, const void *x, void *out,
                                  void *scratch) {
    const samebits_packed *w = &c->window;
    const int8_t *runs = (const int8_t *)x;
    if (w->tile) {
        int8_t *run = (int8_t *)scratch + w->wide;
        samebits_move_bytes(run, runs, w->channels);
        samebits_set(run + w->channels, 0, w->steps * w->step - w->channels);
        runs = run;
    }
    samebits_packed_dots16(c, w, (const int16_t *)(const void *)runs, w->out_width, 0, out, 0,
                           (int32_t *)scratch);
}

void samebits_run_conv16_packed(const samebits_packed16 *c, const void *x, void *out,
                                void *scratch) {
    samebits_packed_conv(&c->window, c, x, out, scratch, 2);
}

#ifdef SAMEBITS_PACKED_WORDS
/* A row of outputs, as below, four channels of a pixel at a time; 0 for other blocks. */
SAMEBITS_INLINE int32_t samebits_vector_depth(const samebits_packed *c, const int8_t *band,
                                              int32_t top, int32_t line, int8_t *out,
                                              int32_t *taps, const int32_t doubled) {
    const int32_t channels = c->channels, block = (doubled ? 12 : 8) + c->steps;
    const int32_t pixel = c->stride_x * channels;
    int32_t channel, ox, i;
    samebits_core_frame f;
    if (!SAMEBITS_OWN(c->lanes == 4)) return 0;
    samebits_core_start(c, &f);
    samebits_core_taps(c, top, line, taps);
    for (channel = 0; channel < channels; channel += 4) {
        const int32_t *stream = c->stream + channel / 4 * block;
        const int8_t *from = band + channel;
        const int32_t some = SAMEBITS_MIN(channels - channel, 4);
        int8_t *to = out + channel;
        for (ox = 0; ox < c->out_width; ox++, from += pixel, to += channels) {
            if (some == 4) {
                samebits_vector_depth4(c, &f, taps, from, stream, to, doubled);
            } else {
                int8_t codes[4];
                samebits_vector_depth4(c, &f, taps, from, stream, codes, doubled);
                for (i = 0; i < some; i++) to[i] = codes[i];
            }
        }
    }
    return 1;
}
#endif

/* A row of outputs from the band, whose first row of the window is `top`; weights [tap][lane] of
 * blocks of channels. taps: scratch memory of a word for each tap. */
static void samebits_packed_depth(const samebits_packed *c, const int8_t *band, int32_t top,
                                  int32_t line, int8_t *out, int32_t *taps) {
    const int32_t lanes = c->lanes, block = lanes + lanes * c->steps / 4 + samebits_packed_ends(c);
    const int32_t next = c->dilation_x * c->channels;
    int32_t ox, channel, p, q;
#ifdef SAMEBITS_PACKED_WORDS
    if (c->doubled ? samebits_vector_depth(c, band, top, line, out, taps, 1)
                   : samebits_vector_depth(c, band, top, line, out, taps, 0)) {
        return;
    }
#endif
    (void)taps;
    for (ox = 0; ox < c->out_width; ox++) {
        for (channel = 0; channel < c->channels; channel++) {
            const int32_t lane = channel % lanes;
            const int32_t *stream = c->stream + channel / lanes * block;
            const int8_t *weights = (const int8_t *)(stream + lanes);
            uint32_t sum = (uint32_t)stream[lane];
            int32_t at = lane;
            for (p = 0; p < c->kernel_height; p++) {
                const int8_t *from = band + (top + p * c->dilation_y) % c->rows * line +
                                     ox * c->stride_x * c->channels + channel;
                for (q = 0; q < c->kernel_width; q++, at += lanes, from += next) {
                    sum += (uint32_t)(*from * weights[samebits_byte_of(at)]);
                }
            }
            *out++ = samebits_packed_code(c, samebits_signed32(sum),
                                          stream + lanes + lanes * c->steps / 4, lane);
        }
    }
}

/* One input channel a group, and `repeat` output channels. */
void samebits_run_depthwise8_packed(const samebits_packed *c, const void *x, void *out,
                                    void *scratch) {
    const int32_t columns =
        (c->out_width - 1) * c->stride_x + (c->kernel_width - 1) * c->dilation_x + 1;
    const int32_t line = columns * c->channels;
    const int8_t *image = (const int8_t *)x;
    int32_t *taps = (int32_t *)scratch;
    int8_t *band = (int8_t *)(taps + c->steps), *to = (int8_t *)out;
    int32_t n, oy;
#ifdef SAMEBITS_PACKED_MVE
    if (SAMEBITS_OWN(c->lanes == 16)) {
        samebits_mve_depthwise(c, image, to, scratch);
        return;
    }
#endif
    samebits_set(band, (int8_t)c->pad_code, c->rows * line);
    for (n = 0; n < c->batch; n++, image += c->height * c->width * (c->channels / c->repeat)) {
        int32_t next = 0;
        for (oy = 0; oy < c->out_height; oy++, to += c->out_width * c->channels) {
            const int32_t top = oy * c->stride_y;
            for (next = SAMEBITS_MAX(next, top); next < top + c->rows; next++) {
                samebits_packed_row(c, image, next, line, band, 1);
            }
            samebits_packed_depth(c, band, top, line, to, taps);
        }
    }
}

/* Codes of 16 bits: one input and one output channel a group; weights [block of 8][tap][8]. */
void samebits_run_depthwise16_packed(const samebits_packed16 *c, const void *x, void *out,
                                     void *scratch) {
    const samebits_packed *w = &c->window;
    const int32_t columns =
        (w->out_width - 1) * w->stride_x + (w->kernel_width - 1) * w->dilation_x + 1;
    const int32_t line = columns * w->channels;
    const int8_t *image = (const int8_t *)x;
    int32_t *taps = (int32_t *)scratch;
    int8_t *band = (int8_t *)(taps + w->steps);
    int32_t n, oy, p, q, to = 0;
    samebits_packed_pad(w, band, w->rows * line, 2);
    for (n = 0; n < w->batch; n++, image += w->height * w->width * w->channels) {
        int32_t next = 0;
        for (oy = 0; oy < w->out_height; oy++, to += w->out_width * w->out_channels) {
            const int32_t top = oy * w->stride_y;
            int32_t *tap = taps;
            for (next = SAMEBITS_MAX(next, top); next < top + w->rows; next++) {
                samebits_packed_row(w, image, next, line, band, 2);
            }
            for (p = 0; p < w->kernel_height; p++) {
                const int32_t row = (top + p * w->dilation_y) % w->rows * line;
                for (q = 0; q < w->kernel_width; q++) {
                    *tap++ = row + q * w->dilation_x * w->channels;
                }
            }
            samebits_depth16(c, band, taps, out, to);
        }
    }
}
