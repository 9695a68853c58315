/* --- convolution: panels, NEON -------------------------------------------------------------------
 *
 * Up to 4 pixels by 16 channels where SDOT adds four products to a sum of 32 bits, else up to 2:
 * SMULL gives eight products of 16 bits, at most 2**14 in magnitude, and SADALP adds them in pairs.
 * Both want codes with a sign, c = u - 128 of the codes u of the band: the sum of w * u is that of
 * w * c and 128 times the sum of the weights, which is added to the bias once for every panel. Four
 * codes of a pixel meet the four weights of four channels. */

#include "samebits_vector.h"

#ifdef SAMEBITS_NEON
#ifdef __ARM_FEATURE_DOTPROD
#define SAMEBITS_TILE 4   /* pixels */
#define SAMEBITS_HALVES 1 /* sums of a channel */
#else
#define SAMEBITS_TILE 2
#define SAMEBITS_HALVES 2
#endif
#define SAMEBITS_SUMS (4 * SAMEBITS_HALVES)

/* sum + the products of four codes, again and again, and the weights of four channels. */
SAMEBITS_INLINE void samebits_four(int32x4_t *sum, int8x16_t codes, int8x16_t w) {
#ifdef __ARM_FEATURE_DOTPROD
    sum[0] = vdotq_s32(sum[0], w, codes);
#else
    sum[0] = vpadalq_s16(sum[0], vmull_s8(vget_low_s8(w), vget_low_s8(codes)));
    sum[1] = vpadalq_s16(sum[1], vmull_high_s8(w, codes));
#endif
}

/* The four sums of channels 4 * j and on. */
SAMEBITS_INLINE int32x4_t samebits_whole(const int32x4_t *sum, int32_t j) {
#ifdef __ARM_FEATURE_DOTPROD
    return sum[j];
#else
    return vpaddq_s32(sum[2 * j], sum[2 * j + 1]);
#endif
}

/* P pixels. Reads 64 bytes of weights for fewer lanes too; what follows the last block is slack. */
SAMEBITS_INLINE void samebits_panel_tile(const samebits_panel *k, const uint8_t *x, uint8_t *out,
                                         const int32_t P) {
    const samebits_steps *s = &k->window.steps;
    const int32_t pixel = s->pixel, quads = s->quads, step = 4 * k->lanes;
    const int8x16_t flip = vdupq_n_s8((int8_t)(k->window.flip ^ 0x80));
    const int8_t *w = k->weights;
    int32x4_t sum[SAMEBITS_TILE][SAMEBITS_SUMS];
    int32_t row, run, q, p, j, slot = k->window.slot;
    for (p = 0; p < P; p++) {
        for (j = 0; j < SAMEBITS_SUMS; j++) sum[p][j] = vdupq_n_s32(0);
    }
    for (row = 0; row < s->conv->kernel_height; row++, slot++) {
        if (slot == s->conv->kernel_height) slot = 0;
        for (run = 0; run < s->conv->runs; run++) {
            const uint8_t *from = x + slot * s->row + run * s->run;
            for (q = 0; q < quads; q++, from += 4, w += step) {
                int8x16_t codes[SAMEBITS_TILE];
                for (p = 0; p < P; p++) {
                    int32_t four;
                    __builtin_memcpy(&four, from + p * pixel, 4);
                    codes[p] = veorq_s8(vreinterpretq_s8_s32(vdupq_n_s32(four)), flip);
                }
                for (j = 0; j < 4; j++) {
                    const int8x16_t v = vld1q_s8(w + 16 * j);
                    for (p = 0; p < P; p++) {
                        samebits_four(sum[p] + SAMEBITS_HALVES * j, codes[p], v);
                    }
                }
            }
        }
    }
    for (p = 0; p < P; p++) {
        int32x4_t v[4];
        for (j = 0; j < 4; j++) v[j] = vaddq_s32(samebits_whole(sum[p], j), k->scale.bias[j]);
        samebits_some16(out + p * k->window.pitch, samebits_codes16(&k->scale, v), k->lanes);
    }
}

static void samebits_panel_run(const samebits_panel *k, const uint8_t *x, int32_t pixels,
                               uint8_t *out) {
    const int32_t many = SAMEBITS_TILE * k->window.steps.pixel;
    for (; pixels >= SAMEBITS_TILE; pixels -= SAMEBITS_TILE) {
        samebits_panel_tile(k, x, out, SAMEBITS_TILE);
        x += many;
        out += SAMEBITS_TILE * k->window.pitch;
    }
    for (; pixels > 0; pixels--, x += k->window.steps.pixel, out += k->window.pitch) {
        samebits_panel_tile(k, x, out, 1);
    }
}

/* The panel of `lanes` channels from `channel` on, the o-th of their group. */
SAMEBITS_INLINE void samebits_panel_of(samebits_panel *k, int32_t channel, int32_t o,
                                       int32_t lanes) {
    const samebits_conv *c = k->window.steps.conv;
    const int32_t step = k->window.steps.block / 16;
    const int32_t count = c->kernel_height * c->runs * k->window.steps.quads;
    const int8_t *w = (const int8_t *)c->weights + (channel - o) * step + o * step;
    int32x4_t sum[SAMEBITS_SUMS];
    int32_t i, j;
    k->lanes = lanes;
    k->weights = w;
    samebits_scale16_of(&k->scale, &c->rescale, (const int32_t *)c->bias, channel, lanes,
                        k->window.products);
    for (j = 0; j < SAMEBITS_SUMS; j++) sum[j] = vdupq_n_s32(0);
    for (i = 0; i < count; i++, w += 4 * lanes) {
        for (j = 0; j < 4; j++) {
            samebits_four(sum + SAMEBITS_HALVES * j, vdupq_n_s8(-128), vld1q_s8(w + 16 * j));
        }
    }
    for (j = 0; j < 4; j++) {
        k->scale.bias[j] = vsubq_s32(k->scale.bias[j], samebits_whole(sum, j));
    }
}
#endif
