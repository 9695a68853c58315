/* --- convolution: panels, AVX2 -------------------------------------------------------------------
 *
 * Up to 3 pixels by 16 channels. Codes and weights are widened to 16 bits, and VPMADDWD adds two
 * products: at most 2 * 255 * 128. Four codes of a pixel meet the four weights of four channels, so
 * that every sum lies in two halves until the end. */

#include "samebits_vector.h"

#ifdef SAMEBITS_AVX2
/* P pixels. Reads 16 bytes of weights for fewer lanes too; what follows the last block is slack. */
SAMEBITS_INLINE void samebits_panel_tile(const samebits_panel *k, const uint8_t *x, uint8_t *out,
                                         const int32_t P) {
    const samebits_steps *s = &k->window.steps;
    const int32_t pixel = s->pixel, quads = s->quads, step = 4 * k->lanes;
    const __m128i flip = _mm_set1_epi8((char)k->window.flip);
    const int8_t *w = k->weights;
    __m256i sum[3][4];
    int32_t row, run, q, p, j, slot = k->window.slot;
    for (p = 0; p < P; p++) {
        for (j = 0; j < 4; j++) sum[p][j] = _mm256_setzero_si256();
    }
    for (row = 0; row < s->conv->kernel_height; row++, slot++) {
        if (slot == s->conv->kernel_height) slot = 0;
        for (run = 0; run < s->conv->runs; run++) {
            const uint8_t *from = x + slot * s->row + run * s->run;
            for (q = 0; q < quads; q++, from += 4, w += step) {
                __m256i codes[3];
                for (p = 0; p < P; p++) {
                    int32_t four;
                    __builtin_memcpy(&four, from + p * pixel, 4);
                    codes[p] = _mm256_cvtepu8_epi16(_mm_xor_si128(_mm_set1_epi32(four), flip));
                }
                for (j = 0; j < 4; j++) {
                    const __m256i v = _mm256_cvtepi8_epi16(
                        _mm_loadu_si128((const __m128i *)(const void *)(w + 16 * j)));
                    for (p = 0; p < P; p++) {
                        sum[p][j] = _mm256_add_epi32(sum[p][j], _mm256_madd_epi16(codes[p], v));
                    }
                }
            }
        }
    }
    for (p = 0; p < P; p++) {
        __m256i v[2];
        for (j = 0; j < 2; j++) { /* the halves, then the order of lanes */
            v[j] = _mm256_hadd_epi32(sum[p][2 * j], sum[p][2 * j + 1]);
            v[j] = _mm256_add_epi32(_mm256_permute4x64_epi64(v[j], 0xd8), k->scale.bias[j]);
        }
        samebits_some16(out + p * k->window.pitch, samebits_codes16(&k->scale, v[0], v[1]),
                        k->lanes);
    }
}

static void samebits_panel_run(const samebits_panel *k, const uint8_t *x, int32_t pixels,
                               uint8_t *out) {
    const int32_t pixel = k->window.steps.pixel, pitch = k->window.pitch;
    for (; pixels >= 3; pixels -= 3, x += 3 * pixel, out += 3 * pitch) {
        samebits_panel_tile(k, x, out, 3);
    }
    if (pixels == 2) samebits_panel_tile(k, x, out, 2);
    if (pixels == 1) samebits_panel_tile(k, x, out, 1);
}

/* The panel of `lanes` channels from `channel` on, the o-th of their group. */
SAMEBITS_INLINE void samebits_panel_of(samebits_panel *k, int32_t channel, int32_t o,
                                       int32_t lanes) {
    const samebits_conv *c = k->window.steps.conv;
    const int32_t step = k->window.steps.block / 16;
    k->lanes = lanes;
    k->weights = (const int8_t *)c->weights + (channel - o) * step + o * step;
    samebits_scale16_of(&k->scale, &c->rescale, (const int32_t *)c->bias, channel, lanes,
                        k->window.products);
}
#endif
