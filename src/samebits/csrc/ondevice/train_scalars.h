/* Shifts and exponents of single numbers, and the random bits of updates. */
#ifndef SAMEBITS_TRAIN_SCALARS_H
#define SAMEBITS_TRAIN_SCALARS_H

#include "exponent.h"
#include "samebits_train.h"

#define Q8 127

/* Philox4x32-10 of a counter, in its place (1.5). */
void samebits_train_words(uint32_t *counter, uint32_t k0, uint32_t k1);

/* rne(v * 2**-s) for any s; where s < 0 the result fits. */
SAMEBITS_INLINE int64_t down64(int64_t v, int32_t s) {
    if (s <= 0) return (int64_t)((uint64_t)v << -s);
    return s > 62 ? 0 : samebits_round64(v, s);
}

/* The same of a result of 32 bits: most often without shifts of 64. */
SAMEBITS_INLINE int32_t into32(int64_t v, int32_t s) {
    if ((uint32_t)(s - 1) < 31u) {
        const uint32_t below = ((uint32_t)1 << (s - 1)) - 1u;
        const uint64_t t = (uint64_t)v + (below + ((uint32_t)v >> s & 1u));
        return samebits_signed32((uint32_t)t >> s | (uint32_t)(t >> 32) << (32 - s));
    }
    return (int32_t)down64(v, s);
}

/* The same where |v| < 2**30 before and after, or s >= 0. */
SAMEBITS_INLINE int32_t down32(int32_t v, int32_t s) {
    if (s <= 0) return (int32_t)((uint32_t)v << -s);
    return s > 30 ? 0 : samebits_round32(v, s);
}

SAMEBITS_INLINE int32_t magnitude32(int32_t v) { return v < 0 ? -v : v; }

SAMEBITS_INLINE int32_t length_of(int64_t v) { return (int32_t)bit_length(v); }

/* How sums up to `top` become codes of 8 or 16 bits (1.1): the shift, and the exponent. */
SAMEBITS_INLINE int32_t narrowed(int64_t top, int bits, int32_t *e) {
    const int32_t by = top ? (int32_t)requantize_by(top, *e, bits) : 0;
    *e = top ? *e + by : EXPONENT_MIN;
    return by;
}

/* The same of 32 bits (1.2). */
SAMEBITS_INLINE int32_t shortened(int64_t top, int32_t *e) {
    const int32_t by = top ? (int32_t)shorten_by(top) : 0;
    *e = top ? *e + by : EXPONENT_MIN;
    return by;
}

SAMEBITS_INLINE int in_range(int32_t e) {
    return e > EXPONENT_MAX ? SAMEBITS_TRAIN_RANGE : SAMEBITS_TRAIN_OK;
}

/* The largest value that a clamp leaves, at an exponent (5): a ReLU has no limit, and no sum is as
 * large as that of a ReLU6 where 6 has more than 30 bits. */
SAMEBITS_INLINE int32_t limit_of(int32_t clamp, int32_t e) {
    return clamp == SAMEBITS_TRAIN_RELU6 && e > -28 ? (int32_t)down64(6, e) : INT32_MAX;
}

SAMEBITS_INLINE int32_t clamped(int32_t v, int32_t clamp, int32_t limit) {
    return clamp ? samebits_clamp32(v, 0, limit) : v;
}

/* Whether the gradient passes a clamp. */
SAMEBITS_INLINE int32_t passes(int32_t v, int32_t limit) { return v > 0 && v < limit; }

SAMEBITS_INLINE int32_t joint_at(const samebits_parameter *p, int32_t i) {
    return (int32_t)p->w[i] * 32768 - p->a[i];
}

SAMEBITS_INLINE int32_t gradient_at(const samebits_gradient *g, int32_t i) {
    return g->width == 16 ? ((const int16_t *)g->codes)[i] : ((const int32_t *)g->codes)[i];
}

/* Of a convolution: inputs and outputs of a group, and the weights of an output. */
SAMEBITS_INLINE int32_t inputs_of(const samebits_conv *s) { return s->c / s->groups; }
SAMEBITS_INLINE int32_t outputs_of(const samebits_conv *s) { return s->o / s->groups; }
SAMEBITS_INLINE int32_t weights_of(const samebits_conv *s) {
    return s->kh * s->kw * inputs_of(s);
}

/* Element i of a mask, of elements in order: the first of a byte clears it. */
SAMEBITS_INLINE void mask_put(uint8_t *mask, int32_t i, int32_t passes) {
    const uint8_t bit = (uint8_t)(passes << (i & 7));
    mask[i >> 3] = (uint8_t)(i & 7 ? mask[i >> 3] | bit : bit);
}

SAMEBITS_INLINE int32_t mask_at(const uint8_t *mask, int32_t i) {
    return mask[i >> 3] >> (i & 7) & 1;
}

/* round(a, s) of 1.4 with 16 random bits; a >= 0. */
SAMEBITS_INLINE int64_t stochastic(int64_t a, int32_t s, uint32_t bits) {
    if (s <= 0) return a << -s;
    if (s > 62) return 0;
    return ((s <= 16 ? a << (16 - s) : a >> (s - 16)) + (int64_t)bits) >> 16;
}

#endif
