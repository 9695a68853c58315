/* --- convolution: panels, VNNI -------------------------------------------------------------------
 *
 * Up to 8 pixels by 16 channels, or 4 by 64, stay in registers from their first product to their
 * codes. Four codes of a pixel are one broadcast load, and the four weights of 16 channels beside
 * each other as the lowering packs them. */

#include "samebits_vector.h"

#ifdef SAMEBITS_VNNI
#define SAMEBITS_PANEL 64
#define samebits_has_panel samebits_has_codes

/* What is the same for all pixels of up to 64 channels. */
typedef struct {
    samebits_window window;
    __m512i bias[4];
    samebits_scale scale[4];
    samebits_range range;
    const int8_t *weights;
    int32_t lanes, last; /* last: bytes of a quad of the last block */
} samebits_panel;

/* Codes of P pixels by B blocks of 16 channels. */
SAMEBITS_INLINE void samebits_panel_codes(const samebits_panel *k, __m512i (*sum)[4], uint8_t *out,
                                          const int32_t P, const int32_t B) {
    const int32_t lanes = k->lanes, pitch = k->window.pitch;
    int32_t p, b;
    for (p = 0; p < P; p++) {
        for (b = 0; b < B; b++) sum[p][b] = samebits_quotients(&k->scale[b], sum[p][b]);
    }
    if (B > 2) {
        for (p = 0; p < P; p++) {
            const __m512i v =
                samebits_codes(&k->range, sum[p][0], sum[p][1], sum[p][2], sum[p][B - 1]);
            samebits_put64(out + p * pitch, v, lanes);
        }
    } else if (B == 2) {
        for (p = 0; p < P; p += 2) {
            const int32_t o = P > 1 ? p + 1 : p;
            const __m512i v =
                samebits_codes(&k->range, sum[p][0], sum[p][1], sum[o][0], sum[o][1]);
            samebits_put32(out + p * pitch, _mm512_castsi512_si256(v), lanes);
            if (P > 1) samebits_put32(out + o * pitch, _mm512_extracti64x4_epi64(v, 1), lanes);
        }
    } else {
        for (p = 0; p < P; p += 4) {
            const int32_t i = P > 1 ? 1 : 0;
            const __m512i v = samebits_codes(&k->range, sum[p][0], sum[p + i][0], sum[p + 2 * i][0],
                                             sum[p + 3 * i][0]);
            uint8_t *to = out + p * pitch;
            if (P > 1 && pitch == 16 && lanes == 16) { /* of pixels side by side */
                _mm512_storeu_si512(to, v);
                continue;
            }
            samebits_put16(to, _mm512_castsi512_si128(v), lanes);
            if (P == 1) continue;
            samebits_put16(to + pitch, _mm512_extracti32x4_epi32(v, 1), lanes);
            samebits_put16(to + 2 * pitch, _mm512_extracti32x4_epi32(v, 2), lanes);
            samebits_put16(to + 3 * pitch, _mm512_extracti32x4_epi32(v, 3), lanes);
        }
    }
}

/* P pixels by B blocks. */
SAMEBITS_INLINE void samebits_panel_tile(const samebits_panel *k, const uint8_t *x, uint8_t *out,
                                         const int32_t P, const int32_t B, const int32_t flips) {
    const samebits_steps *s = &k->window.steps;
    const int32_t pixel = s->pixel, quads = s->quads, last = k->last, block = s->block;
    const __m512i flip = _mm512_set1_epi8((char)k->window.flip);
    const int8_t *w = k->weights, *end = w + (B - 1) * block;
    __m512i sum[8][4];
    int32_t row, run, q, p, b, slot = k->window.slot;
    for (p = 0; p < P; p++) {
        for (b = 0; b < B; b++) sum[p][b] = k->bias[b];
    }
    for (row = 0; row < s->conv->kernel_height; row++, slot++) {
        if (slot == s->conv->kernel_height) slot = 0;
        for (run = 0; run < s->conv->runs; run++) {
            const uint8_t *from = x + slot * s->row + run * s->run;
            for (q = 0; q < quads; q++, from += 4, w += 64, end += last) {
                __m512i v[4];
                for (b = 0; b < B - 1; b++) v[b] = _mm512_loadu_si512(w + b * block);
                v[B - 1] = _mm512_loadu_si512(end);
                for (b = 0; b < B; b++) SAMEBITS_KEEP(v[b]);
                for (p = 0; p < P; p++) {
                    int32_t four;
                    __m512i codes;
                    __builtin_memcpy(&four, from + p * pixel, 4);
                    codes = _mm512_set1_epi32(four);
                    if (flips) codes = _mm512_xor_si512(codes, flip);
                    for (b = 0; b < B; b++) sum[p][b] = _mm512_dpbusd_epi32(sum[p][b], codes, v[b]);
                }
            }
        }
    }
    samebits_panel_codes(k, sum, out, P, B);
}

/* P pixels of one block by kernels of three columns that lie side by side: each broadcast meets the
 * weights of all three, for the three windows that it is in. Each column has sums of its own, since
 * an instruction that adds to a sum waits for the one before it. */
SAMEBITS_INLINE void samebits_panel_three(const samebits_panel *k, const uint8_t *x, uint8_t *out,
                                          const int32_t P) {
    const samebits_steps *s = &k->window.steps;
    const int32_t pixel = s->pixel, quads = pixel / 4, last = k->last, column = quads * last;
    const int8_t *w = k->weights;
    __m512i sum[8][4], of[3][8];
    int32_t row, q, p, z, t, slot = k->window.slot;
    for (p = 0; p < P; p++) {
        of[0][p] = k->bias[0];
        of[1][p] = of[2][p] = _mm512_setzero_si512();
    }
    for (row = 0; row < s->conv->kernel_height; row++, slot++, w += 2 * column) {
        const uint8_t *from;
        if (slot == s->conv->kernel_height) slot = 0;
        from = x + slot * s->row;
        for (q = 0; q < quads; q++, from += 4, w += last) {
            __m512i v[3];
            for (t = 0; t < 3; t++) {
                v[t] = _mm512_loadu_si512(w + t * column);
                SAMEBITS_KEEP(v[t]);
            }
            for (z = 0; z < P + 2; z++) {
                int32_t four;
                __m512i codes;
                __builtin_memcpy(&four, from + z * pixel, 4);
                codes = _mm512_set1_epi32(four);
                for (t = 0; t < 3; t++) {
                    p = z - t;
                    if (p < 0 || p >= P) continue;
                    of[t][p] = _mm512_dpbusd_epi32(of[t][p], codes, v[t]);
                }
            }
        }
    }
    for (p = 0; p < P; p++) {
        sum[p][0] = _mm512_add_epi32(_mm512_add_epi32(of[0][p], of[1][p]), of[2][p]);
    }
    samebits_panel_codes(k, sum, out, P, 1);
}

#define SAMEBITS_TILES(P, B)                                                                       \
    for (; pixels >= P; pixels -= P, x += P * pixel, out += P * pitch) {                           \
        samebits_panel_tile(k, x, out, P, B, flips);                                               \
    }

SAMEBITS_INLINE void samebits_panel_pixels(const samebits_panel *k, const uint8_t *x,
                                           int32_t pixels, uint8_t *out, const int32_t flips) {
    const int32_t pixel = k->window.steps.pixel, pitch = k->window.pitch;
    if (k->lanes > 48) {
        SAMEBITS_TILES(4, 4)
        SAMEBITS_TILES(1, 4)
    } else if (k->lanes > 32) {
        SAMEBITS_TILES(4, 3)
        SAMEBITS_TILES(1, 3)
    } else if (k->lanes > 16) {
        SAMEBITS_TILES(8, 2)
        SAMEBITS_TILES(4, 2)
        SAMEBITS_TILES(1, 2)
    } else {
        const samebits_conv *c = k->window.steps.conv;
        if (!flips && c->kernel_width == 3 && c->stride_x == 1 && c->dilation_x == 1 &&
            c->channels / c->groups % 4 == 0) {
            for (; pixels >= 8; pixels -= 8, x += 8 * pixel, out += 8 * pitch) {
                samebits_panel_three(k, x, out, 8);
            }
        }
        SAMEBITS_TILES(8, 1)
        SAMEBITS_TILES(4, 1)
        SAMEBITS_TILES(1, 1)
    }
}

static void samebits_panel_run(const samebits_panel *k, const uint8_t *x, int32_t pixels,
                               uint8_t *out) {
    if (k->window.flip) {
        samebits_panel_pixels(k, x, pixels, out, 1);
    } else {
        samebits_panel_pixels(k, x, pixels, out, 0);
    }
}

/* The panel of `lanes` channels from `channel` on, the o-th of their group. */
SAMEBITS_INLINE void samebits_panel_of(samebits_panel *k, int32_t channel, int32_t o,
                                       int32_t lanes) {
    const samebits_conv *c = k->window.steps.conv;
    const int32_t step = k->window.steps.block / 16;
    int32_t b;
    k->range = samebits_range_of(&c->rescale);
    k->lanes = lanes;
    k->last = 4 * ((lanes - 1) % 16 + 1);
    k->weights = (const int8_t *)c->weights + (channel - o) * step + o * step;
    for (b = 0; 16 * b < lanes; b++) {
        const __mmask16 mask = samebits_first(lanes - 16 * b);
        const int32_t at = channel + 16 * b;
        k->bias[b] = _mm512_maskz_loadu_epi32(mask, (const int32_t *)c->bias + at);
        k->scale[b] = samebits_scale_of(&c->rescale, samebits_factors(&c->rescale, at, mask),
                                        samebits_shifts(&c->rescale, at, mask),
                                        samebits_reach(k->bias[b], k->window.products));
    }
}
#endif
