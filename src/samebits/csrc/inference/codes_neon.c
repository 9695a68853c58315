/* --- aarch64: sums of 32 bits to codes of 8, NEON -----------------------------------------------
 *
 * The arithmetic of codes_x86.c with vectors of 4 sums: why it is exact is said there. SRSHL adds
 * half of the divisor before it shifts. SQRDMULH is the first rounding of SAMEBITS_DOUBLED, SSRA
 * takes 1 from what is negative, and SRSHL is the second. */

#include "samebits_vector.h"

#ifdef SAMEBITS_NEON
/* Of 16 channels: four vectors of each. */
typedef struct {
    int32x4_t factor[4], back[4], below[4], tie[4], bias[4]; /* back: the shift, negative */
    int16x8_t zero, low, high;
    int32_t ties, sign, doubled;
} samebits_scale16;

/* Of `count` channels from `channel` on, whose sums add `products` products of 8 bits. */
static void samebits_scale16_of(samebits_scale16 *k, const samebits_rescale *r,
                                const int32_t *biases, int32_t channel, int32_t count,
                                int64_t products) {
    const int64_t most = products * 255 * 128;
    int32_t bias[16] = {0}, m[16] = {0}, back[16], below[16], tie[16] = {0}, i;
    k->ties = 0;
    k->doubled = r->form == SAMEBITS_DOUBLED;
    for (i = 0; i < 16; i++) {
        const int32_t at = r->channels > 1 ? channel + i : 0;
        int32_t factor, s, more;
        back[i] = below[i] = -1;
        if (i >= count) continue;
        bias[i] = biases[channel + i];
        factor = r->form == SAMEBITS_SHIFT ? 1 : ((const int32_t *)r->multipliers)[at];
        if (factor == 0) continue; /* all quotients are 0 */
        s = r->shifts[at];
        if (k->doubled) {
            m[i] = factor;
            back[i] = -s;
            continue;
        }
        more = s < 33 ? 33 - s : 0;
        m[i] = factor << more;
        back[i] = 32 - s - more;
        if (s > 32) continue; /* no sum is a tie but 0, whose quotient is 0 */
        tie[i] = samebits_signed32((uint32_t)1 << (s - 1));
        below[i] = samebits_signed32((uint32_t)(((uint64_t)1 << s) - 1));
        k->ties |= most + (bias[i] < 0 ? -(int64_t)bias[i] : bias[i]) >= (int64_t)1 << (s - 1);
    }
    for (i = 0; i < 4; i++) {
        k->bias[i] = vld1q_s32(bias + 4 * i);
        k->factor[i] = vld1q_s32(m + 4 * i);
        k->back[i] = vld1q_s32(back + 4 * i);
        k->below[i] = vld1q_s32(below + 4 * i);
        k->tie[i] = vld1q_s32(tie + 4 * i);
    }
    k->zero = vdupq_n_s16((int16_t)r->zero);
    k->low = vdupq_n_s16((int16_t)r->low);
    k->high = vdupq_n_s16((int16_t)r->high);
    k->sign = r->type == SAMEBITS_INT8;
}

SAMEBITS_INLINE int32x4_t samebits_rounded4(const samebits_scale16 *k, int32_t i, int32x4_t acc) {
    const int64x2_t low = vmull_s32(vget_low_s32(acc), vget_low_s32(k->factor[i]));
    const int64x2_t high = vmull_high_s32(acc, k->factor[i]);
    int32x4_t v = vuzp2q_s32(vreinterpretq_s32_s64(low), vreinterpretq_s32_s64(high));
    v = vrshlq_s32(v, k->back[i]);
    if (k->ties) {
        const uint32x4_t tie = vceqq_s32(vandq_s32(acc, k->below[i]), k->tie[i]);
        const int32x4_t odd = vandq_s32(v, vdupq_n_s32(1));
        v = vsubq_s32(v, vandq_s32(vreinterpretq_s32_u32(tie), odd));
    }
    return v;
}

SAMEBITS_INLINE int32x4_t samebits_quotients4(const samebits_scale16 *k, int32_t i,
                                              int32x4_t acc) {
    if (k->doubled) {
        const int32x4_t x = vqrdmulhq_s32(acc, k->factor[i]);
        return vrshlq_s32(vsraq_n_s32(x, x, 31), k->back[i]);
    }
    return samebits_rounded4(k, i, acc);
}

/* Codes of 16 sums with their biases. */
SAMEBITS_INLINE uint8x16_t samebits_codes16(const samebits_scale16 *k, const int32x4_t *acc) {
    int16x8_t v[2];
    int32_t i;
    for (i = 0; i < 2; i++) {
        v[i] = vqmovn_high_s32(vqmovn_s32(samebits_quotients4(k, 2 * i, acc[2 * i])),
                               samebits_quotients4(k, 2 * i + 1, acc[2 * i + 1]));
        v[i] = vqaddq_s16(v[i], k->zero);
        v[i] = vminq_s16(vmaxq_s16(v[i], k->low), k->high);
    }
    if (k->sign) return vreinterpretq_u8_s8(vqmovn_high_s16(vqmovn_s16(v[0]), v[1]));
    return vqmovun_high_s16(vqmovun_s16(v[0]), v[1]);
}

/* The first n of 16 codes. */
SAMEBITS_INLINE void samebits_some16(uint8_t *to, uint8x16_t v, int32_t n) {
    if (n >= 16) {
        vst1q_u8(to, v);
    } else {
        uint8_t codes[16];
        int32_t i;
        vst1q_u8(codes, v);
        for (i = 0; i < n; i++) to[i] = codes[i];
    }
}
#endif
