/* Multiplication by 2**exponent, rounded: the shift of samebits_integer.h with what depends on the
 * exponent alone computed once, before the loop. Exponents are those of docs/spec/training.md, 1.1:
 * any integer; the sums they meet are bounded at each use. */
#ifndef SAMEBITS_SHIFT_H
#define SAMEBITS_SHIFT_H

#include "samebits_integer.h"

/* v * 2**exponent as a left or a right shift, never both. Right amounts saturate where every value
 * rounds to 0. */
typedef struct {
    int left, right;
    int64_t below, odd; /* of SAMEBITS_NEAREST; 0 where nothing is shifted right */
} Shift;

SAMEBITS_INLINE Shift shift_by(int64_t exponent) {
    Shift s;
    s.left = exponent > 0 ? (int)exponent : 0;
    s.right = exponent < 0 ? (int)(exponent < -63 ? 63 : -exponent) : 0;
    s.below = s.right ? ((int64_t)1 << (s.right - 1)) - 1 : 0;
    s.odd = s.right != 0;
    return s;
}

/* rne(v * 2**exponent); |v| <= 2**62 and v << left fits. */
SAMEBITS_INLINE int64_t scale64(int64_t v, Shift s) {
    int64_t u = (int64_t)((uint64_t)v << s.left);
    return SAMEBITS_NEAREST(samebits_floor64, u, s.right, s.below, s.odd);
}

/* The same in 32 bits: |v << left| < 2**30, or at most Q32 and right <= 24. */
typedef struct {
    int left, right;
    int32_t below, odd;
} Shift32;

SAMEBITS_INLINE Shift32 shift32_by(int64_t exponent) {
    Shift32 s;
    s.left = exponent > 0 ? (int)exponent : 0;
    s.right = exponent < 0 ? (int)(exponent < -31 ? 31 : -exponent) : 0;
    s.below = s.right ? (int32_t)(((uint32_t)1 << (s.right - 1)) - 1) : 0;
    s.odd = s.right != 0;
    return s;
}

SAMEBITS_INLINE int32_t scale32(int32_t v, Shift32 s) {
    int32_t u = (int32_t)((uint32_t)v << s.left);
    return SAMEBITS_NEAREST(samebits_floor32, u, s.right, s.below, s.odd);
}

/* rne(v * 2**by) without a branch, so that loops over exponents by element vectorise; left shifts
 * fit, or v is 0. In 32 bits: |v| < 2**30, or right shifts are by 24 bits at most. */
#define SCALE_EACH(bits, most, least)                                                          \
    SAMEBITS_INLINE int##bits##_t scale_each##bits(int##bits##_t v, int##bits##_t by) {        \
        int##bits##_t left = SAMEBITS_MIN(SAMEBITS_MAX(by, 0), most);                          \
        int##bits##_t right = SAMEBITS_MIN(SAMEBITS_MAX(-by, 0), least), odd = right > 0;      \
        int##bits##_t below = (int##bits##_t)(((uint##bits##_t)1 << right) >> 1) - odd;        \
        int##bits##_t u = (int##bits##_t)((uint##bits##_t)v << left);                          \
        return SAMEBITS_NEAREST(samebits_floor##bits, u, (int32_t)right, below, odd);          \
    }
SCALE_EACH(32, 31, 31)
SCALE_EACH(64, 62, 63)

#endif
