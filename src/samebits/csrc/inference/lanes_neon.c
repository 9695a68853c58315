/* --- depthwise convolution: lanes, NEON ----------------------------------------------------------
 *
 * A lane is a channel, or a channel of one of two pixels beside each other. Codes and weights are
 * widened to 16 bits, and SMLAL adds their products to sums of 32. */

#include "samebits_vector.h"

#ifdef SAMEBITS_NEON
#define SAMEBITS_TAPS 64 /* of the largest kernel, 8x8 */
#define SAMEBITS_LANES 16
#define SAMEBITS_GROUP 1 /* taps */

typedef struct {
    samebits_scale16 scale;
    int16x8_t weights[SAMEBITS_TAPS][2];
    uint8x16_t flip;
} samebits_lanes;

/* n of 16 bytes. */
SAMEBITS_INLINE uint8x16_t samebits_part16(const uint8_t *from, int32_t n) {
    uint8_t bytes[16] = {0};
    int32_t i;
    if (n == 16) return vld1q_u8(from);
    if (n == 8) return vcombine_u8(vld1_u8(from), vdup_n_u8(0));
    for (i = 0; i < n; i++) bytes[i] = from[i];
    return vld1q_u8(bytes);
}

/* The lanes of `count` channels from `channel` on, repeated in `lanes` lanes. */
static void samebits_lanes_of(samebits_lanes *k, const samebits_conv *c, int32_t channel,
                              int32_t count, int32_t lanes) {
    const int32_t taps = c->kernel_height * c->kernel_width;
    const uint8_t *w = (const uint8_t *)c->weights + channel;
    int32_t i;
    samebits_scale16_of(&k->scale, &c->rescale, (const int32_t *)c->bias, channel, count, taps);
    if (lanes > count) { /* 8 channels, twice */
        samebits_scale16 *s = &k->scale;
        for (i = 0; i < 2; i++) {
            s->factor[2 + i] = s->factor[i];
            s->back[2 + i] = s->back[i];
            s->below[2 + i] = s->below[i];
            s->tie[2 + i] = s->tie[i];
            s->bias[2 + i] = s->bias[i];
        }
    }
    for (i = 0; i < taps; i++) {
        int8x16_t v = vreinterpretq_s8_u8(samebits_part16(w + i * c->channels, count));
        if (lanes > count) v = vcombine_s8(vget_low_s8(v), vget_low_s8(v));
        k->weights[i][0] = vmovl_s8(vget_low_s8(v));
        k->weights[i][1] = vmovl_high_s8(v);
    }
    k->flip = vdupq_n_u8(c->type == SAMEBITS_INT8 ? 0x80 : 0);
}

/* Codes of P times `lanes` lanes whose taps begin at from[tap] + at, and `step` further on; Q
 * taps. */
SAMEBITS_INLINE void samebits_lanes_at(const samebits_lanes *k, const uint8_t *const *from,
                                       int32_t at, int32_t step, const int32_t lanes, uint8_t *out,
                                       int32_t pitch, const int32_t Q, const int32_t P) {
    int32x4_t sum[2][4];
    int32_t q, j, p;
    for (p = 0; p < P; p++) {
        for (j = 0; j < 4; j++) sum[p][j] = k->scale.bias[j];
    }
    for (q = 0; q < Q; q++) {
        const int16x8_t low = k->weights[q][0], high = k->weights[q][1];
        for (p = 0; p < P; p++) {
            const uint8x16_t u = veorq_u8(samebits_part16(from[q] + at + p * step, lanes), k->flip);
            const int16x8_t a = vreinterpretq_s16_u16(vmovl_u8(vget_low_u8(u)));
            const int16x8_t b = vreinterpretq_s16_u16(vmovl_high_u8(u));
            sum[p][0] = vmlal_s16(sum[p][0], vget_low_s16(a), vget_low_s16(low));
            sum[p][1] = vmlal_high_s16(sum[p][1], a, low);
            sum[p][2] = vmlal_s16(sum[p][2], vget_low_s16(b), vget_low_s16(high));
            sum[p][3] = vmlal_high_s16(sum[p][3], b, high);
        }
    }
    for (p = 0; p < P; p++) {
        samebits_some16(out + p * pitch, samebits_codes16(&k->scale, sum[p]), lanes);
    }
}
#endif
