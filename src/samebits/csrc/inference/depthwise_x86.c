/* --- depthwise convolution: VNNI --------------------------------------------------------------
 *
 * 64 channels at a time, or several pixels of 8, 16 or 32 channels beside each other. Four taps of
 * 64 codes are interleaved, so that the four products that VNNI adds belong to one channel; the
 * same instructions have interleaved the weights before. x is read in place: each tap has a
 * pointer, to padding where it is out of the image; for pixels whose windows are inside, one
 * number moves them all. */

#include "samebits_vector.h"

#ifdef SAMEBITS_VNNI
#define SAMEBITS_TAPS 64
#define SAMEBITS_QUADS (SAMEBITS_TAPS / 4)

/* What is the same for all pixels of up to 64 lanes: vector j of four has channels 4 * j to
 * 4 * j + 3 of every 16. */
typedef struct {
    __m512i flip, bias[4], weights[SAMEBITS_QUADS][4];
    samebits_scale scale[4];
    samebits_range range;
    int32_t quads;
} samebits_lanes;

/* Four vectors of bytes as vectors of four bytes a lane. */
SAMEBITS_INLINE void samebits_interleaved(__m512i a, __m512i b, __m512i c, __m512i d, __m512i *v) {
    const __m512i low = _mm512_unpacklo_epi8(a, b), high = _mm512_unpackhi_epi8(a, b);
    const __m512i low2 = _mm512_unpacklo_epi8(c, d), high2 = _mm512_unpackhi_epi8(c, d);
    v[0] = _mm512_unpacklo_epi16(low, low2);
    v[1] = _mm512_unpackhi_epi16(low, low2);
    v[2] = _mm512_unpacklo_epi16(high, high2);
    v[3] = _mm512_unpackhi_epi16(high, high2);
}

/* The 16 of 64 numbers that vector j has. */
SAMEBITS_INLINE __m512i samebits_quarter(const int32_t *v, int32_t j) {
    const __m128i *from = (const __m128i *)(const void *)(v + 4 * j);
    __m512i all = _mm512_castsi128_si512(_mm_loadu_si128(from));
    all = _mm512_inserti32x4(all, _mm_loadu_si128(from + 4), 1);
    all = _mm512_inserti32x4(all, _mm_loadu_si128(from + 8), 2);
    return _mm512_inserti32x4(all, _mm_loadu_si128(from + 12), 3);
}

/* The lanes of `count` channels from `channel` on, repeated in `lanes` lanes. */
static void samebits_lanes_of(samebits_lanes *k, const samebits_conv *c, int32_t channel,
                              int32_t count, int32_t lanes) {
    const int32_t taps = c->kernel_height * c->kernel_width;
    const int8_t *w = (const int8_t *)c->weights + channel;
    const __mmask64 first = samebits_bytes(count);
    int32_t bias[80], m[80], s[80], i, j, q; /* whole vectors may follow the last of 64 */
    for (j = 0; j < 64; j += 16) {
        _mm512_storeu_si512(bias + j, _mm512_setzero_si512());
        _mm512_storeu_si512(m + j, _mm512_setzero_si512());
        _mm512_storeu_si512(s + j, _mm512_set1_epi32(33));
    }
    for (i = 0; i < lanes; i += count) {
        for (j = 0; j < count; j += 16) {
            const __mmask16 mask = samebits_first(count - j);
            const int32_t at = channel + j;
            _mm512_storeu_si512(bias + i + j,
                                _mm512_maskz_loadu_epi32(mask, (const int32_t *)c->bias + at));
            _mm512_storeu_si512(m + i + j, samebits_factors(&c->rescale, at, mask));
            _mm512_storeu_si512(s + i + j, samebits_shifts(&c->rescale, at, mask));
        }
    }
    for (j = 0; j < 4; j++) {
        k->bias[j] = samebits_quarter(bias, j);
        k->scale[j] = samebits_scale_of(samebits_quarter(m, j), samebits_quarter(s, j),
                                        samebits_reach(k->bias[j], taps));
    }
    k->quads = (taps + 3) / 4;
    for (q = 0; q < k->quads; q++) {
        __m512i v[4];
        for (j = 0; j < 4; j++) {
            v[j] = _mm512_setzero_si512();
            if (4 * q + j >= taps) continue;
            v[j] = _mm512_maskz_loadu_epi8(first, w + (4 * q + j) * c->channels);
            if (lanes > count) { /* 8, 16 or 32 channels, again and again */
                v[j] = count == 8    ? _mm512_broadcastq_epi64(_mm512_castsi512_si128(v[j]))
                       : count == 16 ? _mm512_broadcast_i32x4(_mm512_castsi512_si128(v[j]))
                                     : _mm512_broadcast_i64x4(_mm512_castsi512_si256(v[j]));
            }
        }
        samebits_interleaved(v[0], v[1], v[2], v[3], k->weights[q]);
    }
}

/* Codes of P times `lanes` lanes whose taps begin at from[tap] + at, and `step` further on; Q quads
 * of taps. */
SAMEBITS_INLINE void samebits_lanes_at(const samebits_lanes *k, const uint8_t *const *from,
                                       int32_t at, int32_t step, const int32_t lanes, uint8_t *out,
                                       int32_t pitch, const int32_t Q, const int32_t P) {
    const __mmask64 mask = samebits_bytes(lanes);
    __m512i sum[2][4];
    int32_t q, j, p;
    for (j = 0; j < 4; j++) sum[0][j] = sum[P - 1][j] = k->bias[j];
    for (q = 0; q < Q; q++) {
        __m512i w[4];
        for (j = 0; j < 4; j++) {
            w[j] = k->weights[q][j];
            if (P > 1) SAMEBITS_KEEP(w[j]);
        }
        for (p = 0; p < P; p++) {
            __m512i v[4], codes[4];
            for (j = 0; j < 4; j++) {
                const uint8_t *tap = from[4 * q + j] + at + p * step;
                v[j] = lanes == 64 ? _mm512_loadu_si512(tap) : _mm512_maskz_loadu_epi8(mask, tap);
                v[j] = _mm512_xor_si512(v[j], k->flip);
            }
            samebits_interleaved(v[0], v[1], v[2], v[3], codes);
            for (j = 0; j < 4; j++) sum[p][j] = _mm512_dpbusd_epi32(sum[p][j], codes[j], w[j]);
        }
    }
    for (p = 0; p < P; p++) {
        for (j = 0; j < 4; j++) sum[p][j] = samebits_quotients(&k->scale[j], sum[p][j]);
        samebits_put64(out + p * pitch,
                       samebits_mixed(&k->range, sum[p][0], sum[p][1], sum[p][2], sum[p][3]),
                       lanes);
    }
}

/* What a row of outputs reads: rows of x from `channel` on, or of padding. */
typedef struct {
    const samebits_conv *conv;
    const uint8_t *x, *padding;
    int32_t oy, channel, count, span;
} samebits_depth;

/* Pointers to the taps of the window whose first column is `left`. */
SAMEBITS_INLINE void samebits_taps(const samebits_depth *d, int32_t left, const int32_t taps,
                                   const int32_t height, const int32_t width,
                                   const uint8_t **from) {
    const samebits_conv *c = d->conv;
    const int32_t channels = c->channels, dilation = c->dilation_x, columns = c->width;
    int32_t y = d->oy * c->stride_y - c->pad_top, row, column, t = 0;
    for (row = 0; row < height; row++, y += c->dilation_y) {
        const int32_t there = y >= 0 && y < c->height;
        const int32_t at = (y * columns + left) * channels + d->channel;
        for (column = 0; column < width; column++, t++) {
            const int32_t z = left + column * dilation;
            from[t] = d->padding;
            if (there && z >= 0 && z < columns) from[t] = d->x + at + column * dilation * channels;
        }
    }
    for (; t < taps; t++) from[t] = from[0]; /* times weights that are 0 */
}

/* A row of outputs, `span` pixels at a time where all their taps are inside. */
SAMEBITS_INLINE void samebits_depth_row(const samebits_lanes *k, const samebits_depth *d,
                                        uint8_t *out, const int32_t Q, const int32_t height,
                                        const int32_t width) {
    const samebits_conv *c = d->conv;
    const uint8_t *from[SAMEBITS_TAPS];
    const int32_t reach = (width - 1) * c->dilation_x, count = d->count, span = d->span;
    const int32_t top = d->oy * c->stride_y - c->pad_top, pitch = c->out_pixel, many = span * pitch;
    const int32_t step = c->stride_x * c->channels * span;
    const int32_t whole = top >= 0 && top + (height - 1) * c->dilation_y < c->height;
    int32_t ox = 0, at = 0;
    while (ox < c->out_width) {
        const int32_t left = ox * c->stride_x - c->pad_left;
        uint8_t *to = out + ox * pitch;
        int32_t pixels = 0; /* from here on whose columns are inside */
        if (left >= 0 && left + reach < c->width) {
            pixels = (c->width - 1 - reach - left) / c->stride_x + 1;
            pixels = SAMEBITS_MIN(pixels, c->out_width - ox);
        }
        samebits_taps(d, left, 4 * Q, height, width, from);
        if (whole && pixels >= span && span * count == 64) {
            for (at = 0; pixels >= 2 * span; pixels -= 2 * span, at += 2 * step, to += 2 * many) {
                samebits_lanes_at(k, from, at, step, 64, to, many, Q, 2);
            }
            for (; pixels >= span; pixels -= span, at += step, to += many) {
                samebits_lanes_at(k, from, at, step, 64, to, many, Q, 1);
            }
            ox = (int32_t)(to - out) / pitch;
        } else if (whole && pixels && span == 1) {
            for (at = 0; pixels > 0; pixels--, at += step, ox++, to += pitch) {
                samebits_lanes_at(k, from, at, step, count, to, pitch, Q, 1);
            }
        } else {
            pixels = SAMEBITS_MIN(SAMEBITS_MAX(pixels, 1), span);
            samebits_lanes_at(k, from, 0, step, pixels * count, to, pitch, Q, 1);
            ox += pixels;
        }
    }
}

/* 0 for what is not here: other types of codes, forms of requantization, very large kernels. */
static int samebits_vnni_depth(const samebits_conv *given, const void *x, void *out) {
    const samebits_conv turned = samebits_turned(given), *c = &turned;
    const int32_t taps = c->kernel_height * c->kernel_width, channels = c->channels;
    const int32_t many = c->stride_x == 1 && c->out_pixel == channels &&
                         (channels == 8 || channels == 16 || channels == 32);
    const __m512i padding = _mm512_set1_epi8((int8_t)c->pad_code);
    samebits_lanes k;
    samebits_depth d;
    int32_t n;
    if (taps > SAMEBITS_TAPS || !samebits_has_codes(&c->rescale)) return 0;
    k.flip = _mm512_set1_epi8(c->type == SAMEBITS_INT8 ? -128 : 0);
    k.range = samebits_range_of(&c->rescale);
    d.conv = c;
    d.padding = (const uint8_t *)&padding;
    d.span = many ? 64 / channels : 1;
    for (d.channel = 0; d.channel < channels; d.channel += 64) {
        d.count = SAMEBITS_MIN(channels - d.channel, 64);
        samebits_lanes_of(&k, c, d.channel, d.count, d.span * d.count);
        for (n = 0; n < c->batch; n++) {
            d.x = (const uint8_t *)x + n * c->height * c->width * channels;
            for (d.oy = 0; d.oy < c->out_height; d.oy++) {
                uint8_t *to = (uint8_t *)out + c->out_start + n * c->out_batch +
                              d.oy * c->out_row + d.channel;
                if (c->kernel_height == 3 && c->kernel_width == 3) {
                    samebits_depth_row(&k, &d, to, 3, 3, 3);
                } else if (c->kernel_height == 1 && c->kernel_width == 3) {
                    samebits_depth_row(&k, &d, to, 1, 1, 3);
                } else {
                    samebits_depth_row(&k, &d, to, k.quads, c->kernel_height, c->kernel_width);
                }
            }
        }
    }
    return 1;
}
#endif
