/* --- packed convolution: codes of 16 bits --------------------------------------------------------
 *
 * As packed.c, which gathers the runs, for int16 codes, int8 weights and sums that the lowering has
 * proved to fit in 32 bits. What is defined here packed16_mve.c and packed16_dsp.c compute too. Any
 * form ends a sum (rescale.c); SAMEBITS_WORDS, that of nearly every layer, they have as well. */

#include "samebits_vector.h"

/* Where weight i of a stream lies: words hold the first of their four bytes lowest. */
SAMEBITS_INLINE int32_t samebits_byte_of(int32_t i) {
    const uint16_t one = 1;
    return *(const uint8_t *)&one ? i : i ^ 3;
}

/* Weight `tap` of a lane of a block. */
SAMEBITS_INLINE int32_t samebits_weight16(const samebits_packed *c, const int32_t *words,
                                          int32_t lane, int32_t tap) {
    const int32_t step = c->lanes == 2 ? 1 : 8;
    tap = (tap / step * c->lanes + lane) * step + tap % step;
    return ((const int8_t *)words)[samebits_byte_of(tap)];
}

/* Outputs of `pixels` runs, one after the other, of a group, whose first channel is `channel`; its
 * window is `c`. start: the first output's element. */
static void samebits_packed_dots16(const samebits_packed16 *c16, const samebits_packed *c,
                                   const int16_t *x, int32_t pixels, int32_t channel, void *out,
                                   int32_t start, int32_t *sums) {
    const int32_t codes = c->steps * c->step / 2, lanes = c->lanes;
    const int32_t block = lanes * codes / 4, pitch = c16->window.out_channels;
    int32_t p, o, i, k, n, acc[SAMEBITS_CHUNK];
#ifdef SAMEBITS_PACKED16
    if (samebits_vector_dots16(c16, c, x, pixels, channel, out, start, sums)) return;
#endif
    (void)sums;
    for (p = 0; p < pixels; p++, x += codes, start += pitch) {
        for (o = 0; o < c->out_channels; o += n) {
            n = SAMEBITS_MIN(c->out_channels - o, SAMEBITS_CHUNK);
            for (i = 0; i < n; i++) {
                const int32_t *words = c->stream + (o + i) / lanes * block;
                uint32_t sum = (uint32_t)c16->bias[channel + o + i];
                for (k = 0; k < codes; k++) {
                    sum += (uint32_t)(x[k] * samebits_weight16(c, words, (o + i) % lanes, k));
                }
                acc[i] = samebits_signed32(sum);
            }
            samebits_finish32(&c16->rescale, channel + o, n, acc, out, start + o);
        }
    }
}

/* A row of outputs; taps: bytes from a pixel's first code in the band to that of each tap. */
static void samebits_depth16(const samebits_packed16 *c16, const int8_t *band, const int32_t *taps,
                             void *out, int32_t start) {
    const samebits_packed *c = &c16->window;
    const int8_t *weights = (const int8_t *)c->stream;
    const int32_t channels = c->out_channels, pixel = c->stride_x * c->channels;
    int32_t ox, o, i, k, n, acc[SAMEBITS_CHUNK];
#ifdef SAMEBITS_PACKED16
    if (samebits_vector_depth16(c16, band, taps, out, start)) return;
#endif
    for (ox = 0; ox < c->out_width; ox++, band += pixel, start += channels) {
        for (o = 0; o < channels; o += n) {
            n = SAMEBITS_MIN(channels - o, SAMEBITS_CHUNK);
            for (i = 0; i < n; i++) {
                const int32_t at = (o + i) / 8 * 8 * c->steps + (o + i) % 8;
                uint32_t sum = (uint32_t)c16->bias[o + i];
                for (k = 0; k < c->steps; k++) {
                    const samebits_i16 *from = (const samebits_i16 *)(const void *)(band + taps[k]);
                    sum += (uint32_t)(from[o + i] * weights[samebits_byte_of(at + 8 * k)]);
                }
                acc[i] = samebits_signed32(sum);
            }
            samebits_finish32(&c16->rescale, o, n, acc, out, start + o);
        }
    }
}
