/* --- convolution: kernels ------------------------------------------------------------------------
 *
 * Codes and weights of 8 bits with sums of 32, also one channel at a time (depthwise); of 8 or 16
 * bits with sums of 64; and any types at all, weights that are data among them. Each in plain C,
 * and by the vectors of conv_x86.c and conv_arm.c where the compiler may use them: integer sums are
 * equal in any order.
 *
 * Bounds: sums wrap, and the lowering has proved of each (from the weights and the range of the
 * codes, ir/integer/bounds.py) that it fits at its end in the width it is requantized from; all
 * else goes to samebits_run_conv_any. samebits_dot8 and _dot16 add `block` products in 32 bits, as
 * many as fit, before they widen. */

#include "samebits_vector.h"

#ifndef SAMEBITS_WIDTH
#define SAMEBITS_WIDTH 16
#define SAMEBITS_PIXELS 1

#define SAMEBITS_QUAD(v) (uint32_t)(a * (v)[0] + b * (v)[1] + c * (v)[2] + d * (v)[3])

/* One pixel by L channels, 1 or 4. */
SAMEBITS_INLINE void samebits_tile(const samebits_steps *s, const uint8_t *x, const int8_t *w,
                                   int32_t step, const int32_t *bias, int32_t *acc,
                                   const int32_t L) {
    uint32_t s0 = (uint32_t)bias[0], s1 = 0, s2 = 0, s3 = 0;
    int32_t row, run, q;
    if (L == 4) {
        s1 = (uint32_t)bias[1];
        s2 = (uint32_t)bias[2];
        s3 = (uint32_t)bias[3];
    }
    for (row = 0; row < s->conv->kernel_height; row++) {
        for (run = 0; run < s->conv->runs; run++) {
            const uint8_t *from = x + row * s->row + run * s->run;
            for (q = 0; q < s->quads; q++, from += 4, w += step) {
                const int32_t a = from[0], b = from[1], c = from[2], d = from[3];
                s0 += SAMEBITS_QUAD(w);
                if (L == 4) {
                    s1 += SAMEBITS_QUAD(w + 4);
                    s2 += SAMEBITS_QUAD(w + 8);
                    s3 += SAMEBITS_QUAD(w + 12);
                }
            }
        }
    }
    acc[0] = samebits_signed32(s0);
    if (L == 4) {
        acc[1] = samebits_signed32(s1);
        acc[2] = samebits_signed32(s2);
        acc[3] = samebits_signed32(s3);
    }
}

static void samebits_dots(const samebits_steps *s, const uint8_t *x, const int8_t *w, int32_t lanes,
                          const int32_t *bias, int32_t pixels, int32_t *acc) {
    int32_t lane;
    (void)pixels;
    for (lane = 0; lane + 4 <= lanes; lane += 4) {
        samebits_tile(s, x, w + 4 * lane, lanes * 4, bias + lane, acc + lane, 4);
    }
    for (; lane < lanes; lane++) {
        samebits_tile(s, x, w + 4 * lane, lanes * 4, bias + lane, acc + lane, 1);
    }
}
#endif

void samebits_run_conv8(const samebits_conv *c, const void *x, void *out, void *scratch) {
    const int32_t outputs = c->out_channels / c->groups, depth = c->channels / c->groups;
    const int32_t *bias = (const int32_t *)c->bias;
    int32_t acc[SAMEBITS_PIXELS * SAMEBITS_WIDTH];
    int32_t n, group, oy, ox, o, p, i;
    uint8_t *band = (uint8_t *)scratch;
    samebits_steps s;
#ifdef SAMEBITS_VNNI
    if (samebits_vector_linear(c, x, out)) return;
#endif
#ifdef SAMEBITS_PANEL
    if (samebits_panel_conv(c, x, out, band)) return;
#endif
    s.conv = c;
    s.quads = (c->length + 3) / 4;
    s.pixel = c->stride_x * depth;
    s.run = c->dilation_x * depth;
    s.block = c->kernel_height * c->runs * s.quads * 64;
    for (n = 0; n < c->batch; n++) {
        for (group = 0; group < c->groups; group++) {
            const int8_t *weights = (const int8_t *)c->weights + group * outputs * (s.block / 16);
            for (oy = 0; oy < c->out_height; oy++) {
                for (ox = 0; ox < c->out_width; ox += c->tile) {
                    const int32_t pixels = SAMEBITS_MIN(c->tile, c->out_width - ox);
                    const int32_t columns = samebits_columns(c, pixels);
                    s.row = columns * depth;
                    samebits_fill8(c, x, n, group, oy, ox, columns, band);
                    for (o = 0; o < outputs; o += SAMEBITS_WIDTH) {
                        const int32_t lanes = SAMEBITS_MIN(outputs - o, SAMEBITS_WIDTH);
                        const int32_t channel = group * outputs + o;
                        const int8_t *w = weights + o * (s.block / 16);
                        int32_t start = c->out_start + n * c->out_batch + oy * c->out_row +
                                        ox * c->out_pixel + channel;
#ifdef SAMEBITS_VNNI
                        if (c->rescale.form == SAMEBITS_STORE &&
                            c->rescale.type == SAMEBITS_INT32) {
                            samebits_sums(&s, band, w, lanes, bias + channel, pixels,
                                          (samebits_i32 *)out + start, c->out_pixel);
                            continue;
                        }
#endif
                        for (p = 0; p < pixels; p += SAMEBITS_PIXELS) {
                            const int32_t some = SAMEBITS_MIN(pixels - p, SAMEBITS_PIXELS);
                            samebits_dots(&s, band + p * s.pixel, w, lanes, bias + channel, some,
                                          acc);
                            for (i = 0; i < some; i++, start += c->out_pixel) {
                                samebits_finish32(&c->rescale, channel, lanes,
                                                  acc + i * SAMEBITS_WIDTH, out, start);
                            }
                        }
                    }
                }
            }
        }
    }
}

#ifndef SAMEBITS_VNNI
/* The sums of one pixel for `count` channels from `channel` on; u: its first code in the band. A
 * product of a code (0 to 255) and a weight fits in 16 bits. */
static void samebits_depth_sums(const samebits_conv *c, const uint8_t *u, int32_t columns,
                                int32_t channel, int32_t count, int32_t *acc) {
    const int32_t *bias = (const int32_t *)c->bias + channel;
    const int8_t *w = (const int8_t *)c->weights + channel;
    uint32_t sum[SAMEBITS_CHUNK];
    int32_t row, column, i;
    for (i = 0; i < count; i++) sum[i] = (uint32_t)bias[i];
    for (row = 0; row < c->kernel_height; row++) {
        for (column = 0; column < c->kernel_width; column++, w += c->channels) {
            const uint8_t *from = u + (row * columns + column * c->dilation_x) * c->channels;
            for (i = 0; i < count; i++) {
                const int16_t product = (int16_t)((int16_t)from[i] * w[i]);
                const int32_t wide = product;
                sum[i] += (uint32_t)wide;
            }
        }
    }
    for (i = 0; i < count; i++) acc[i] = samebits_signed32(sum[i]);
}
#endif

/* One input and one output channel per group; weights [KH][KW][C]. */
void samebits_run_depthwise8(const samebits_conv *c, const void *x, void *out, void *scratch) {
    const int32_t channels = c->channels;
    uint8_t *band = (uint8_t *)scratch;
    int32_t n, oy, ox, p, channel, acc[SAMEBITS_CHUNK];
    samebits_conv whole = *c;
#ifdef SAMEBITS_LANES
    if (samebits_lanes_conv(c, x, out)) return;
#endif
    whole.groups = 1; /* the band holds all channels */
    for (n = 0; n < c->batch; n++) {
        for (oy = 0; oy < c->out_height; oy++) {
            for (ox = 0; ox < c->out_width; ox += c->tile) {
                const int32_t pixels = SAMEBITS_MIN(c->tile, c->out_width - ox);
                const int32_t columns = samebits_columns(c, pixels);
                samebits_fill8(&whole, x, n, 0, oy, ox, columns, band);
                for (p = 0; p < pixels; p++) {
                    const int32_t start =
                        c->out_start + n * c->out_batch + oy * c->out_row + (ox + p) * c->out_pixel;
                    for (channel = 0; channel < channels; channel += SAMEBITS_CHUNK) {
                        const int32_t count = SAMEBITS_MIN(channels - channel, SAMEBITS_CHUNK);
                        samebits_depth_sums(c, band + channel + p * c->stride_x * channels, columns,
                                            channel, count, acc);
                        samebits_finish32(&c->rescale, channel, count, acc, out, start + channel);
                    }
                }
            }
        }
    }
}

/* Sum of n products; 32-bit sums of `block` of them are exact (0: not even one of two). */
#define SAMEBITS_DOT(NAME, W)                                                                      \
    static int64_t NAME(const int16_t *x, const W *w, int32_t n, int32_t block) {                  \
        int64_t total = 0;                                                                         \
        int32_t i, start;                                                                          \
        if (block == 0) {                                                                          \
            for (i = 0; i < n; i++) total += (int32_t)x[i] * (int32_t)w[i];                        \
            return total;                                                                          \
        }                                                                                          \
        for (start = 0; start < n; start += block) {                                               \
            const int32_t end = SAMEBITS_MIN(n - start, block);                                    \
            int32_t sum = 0;                                                                       \
            for (i = 0; i < end; i++) sum += (int32_t)x[start + i] * (int32_t)w[start + i];        \
            total += sum;                                                                          \
        }                                                                                          \
        return total;                                                                              \
    }

SAMEBITS_DOT(samebits_dot8, int8_t)
SAMEBITS_DOT(samebits_dot16, int16_t)

/* Weights [O][kernel row][run][length] of 8 or 16 bits; sums of 64 bits. */
void samebits_run_conv16(const samebits_conv *c, const void *x, void *out, void *scratch) {
    const int32_t outputs = c->out_channels / c->groups, depth = c->channels / c->groups;
    const int64_t *bias = (const int64_t *)c->bias;
    const int32_t taps = c->kernel_height * c->runs * c->length;
    int32_t n, group, oy, ox, p, o, i, row, run;
    int16_t *band = (int16_t *)scratch;
    int64_t acc[SAMEBITS_CHUNK];
#ifdef SAMEBITS_VNNI
    if (samebits_vector_linear16(c, x, out)) return;
#endif
    for (n = 0; n < c->batch; n++) {
        for (group = 0; group < c->groups; group++) {
            for (oy = 0; oy < c->out_height; oy++) {
                for (ox = 0; ox < c->out_width; ox += c->tile) {
                    const int32_t pixels = SAMEBITS_MIN(c->tile, c->out_width - ox);
                    const int32_t columns = samebits_columns(c, pixels);
                    samebits_fill16(c, x, n, group, oy, ox, columns, band);
                    for (p = 0; p < pixels; p++) {
                        const int16_t *from = band + p * c->stride_x * depth;
                        const int32_t start = c->out_start + n * c->out_batch + oy * c->out_row +
                                              (ox + p) * c->out_pixel + group * outputs;
                        for (o = 0; o < outputs; o += SAMEBITS_CHUNK) {
                            const int32_t count = SAMEBITS_MIN(outputs - o, SAMEBITS_CHUNK);
                            const int32_t channel = group * outputs + o;
                            for (i = 0; i < count; i++) {
                                int32_t at = (channel + i) * taps;
                                int64_t sum = bias[channel + i];
                                for (row = 0; row < c->kernel_height; row++) {
                                    for (run = 0; run < c->runs; run++, at += c->length) {
                                        const int16_t *u =
                                            from + (row * columns + run * c->dilation_x) * depth;
                                        sum += c->w_type == SAMEBITS_INT8
                                                   ? samebits_dot8(
                                                         u, (const int8_t *)c->weights + at,
                                                         c->length, c->block)
                                                   : samebits_dot16(
                                                         u, (const int16_t *)c->weights + at,
                                                         c->length, c->block);
                                    }
                                }
                                acc[i] = sum;
                            }
                            samebits_finish64(&c->rescale, channel, count, acc, out, start + o);
                        }
                    }
                }
            }
        }
    }
}

/* Every other combination of types, and weights that are data: one output at a time. */
static uint64_t samebits_one(const samebits_conv_any *c, const void *x, const void *w, int32_t n,
                             int32_t o, int32_t oy, int32_t ox) {
    const int32_t depth = c->channels / c->groups;
    const int32_t group = o / (c->out_channels / c->groups);
    uint64_t sum = 0;
    int32_t p, q, k;
    for (p = 0; p < c->kernel_height; p++) {
        for (q = 0; q < c->kernel_width; q++) {
            const int32_t tap = ((o * c->kernel_height + p) * c->kernel_width + q) * depth;
            int32_t y, z, inside;
            if (c->transposed) {
                const int32_t top = oy + c->pad_top - p * c->dilation_y;
                const int32_t left = ox + c->pad_left - q * c->dilation_x;
                y = top / c->stride_y;
                z = left / c->stride_x;
                inside = top >= 0 && left >= 0 && y * c->stride_y == top && z * c->stride_x == left;
            } else {
                y = oy * c->stride_y - c->pad_top + p * c->dilation_y;
                z = ox * c->stride_x - c->pad_left + q * c->dilation_x;
                inside = y >= 0 && z >= 0;
            }
            inside = inside && y < c->height && z < c->width;
            if (!inside && c->transposed) continue;
            for (k = 0; k < depth; k++) {
                const int32_t from =
                    ((n * c->height + y) * c->width + z) * c->channels + group * depth + k;
                const int64_t code = inside ? samebits_get(x, c->x_type, from) : c->pad_code;
                const int64_t zero = c->transposed ? c->pad_code : 0;
                sum += (uint64_t)((code - zero) * samebits_get(w, c->w_type, tap + k));
            }
        }
    }
    return sum;
}

void samebits_run_conv_any(const samebits_conv_any *c, const void *x, const void *w, const void *b,
                           void *out) {
    int32_t n, oy, ox, o, start = 0;
    for (n = 0; n < c->batch; n++) {
        for (oy = 0; oy < c->out_height; oy++) {
            for (ox = 0; ox < c->out_width; ox++) {
                for (o = 0; o < c->out_channels; o++, start++) {
                    const uint64_t bias = (uint64_t)samebits_get(b, c->b_type, o);
                    int64_t acc = samebits_signed64(bias + samebits_one(c, x, w, n, o, oy, ox));
                    samebits_finish64(&c->rescale, o, 1, &acc, out, start);
                }
            }
        }
    }
}
