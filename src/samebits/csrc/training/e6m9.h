/* e6m9, the 16-bit codes of moments and directions (docs/spec/training.md, section 1.4).
 *
 * The code of a number is cut out of its binary64: below the sign six bits of exponent count from
 * the tensor's own, nine of significand follow, and what rounding adds below carries into both. */
#ifndef SAMEBITS_E6M9_H
#define SAMEBITS_E6M9_H

#include "real.h"

#define MOMENT_DROPPED 43 /* bits of a binary64's significand below a code's nine */
#define MOMENT_BIAS 969   /* F = the biased exponent of |v| - (e + MOMENT_BIAS) */

/* J = W * 2**15 - A. */
SAMEBITS_INLINE int32_t joint(int8_t w, int16_t a) { return (int32_t)w * 32768 - a; }

/* The code of v at the exponent e = bias - MOMENT_BIAS; added: see `added_random`. Selections are
 * masks here and below, so that loops vectorise. */
SAMEBITS_INLINE int16_t moment_code(double v, int64_t bias, int64_t added) {
    int64_t sign = samebits_floor64(bits_of(v), 63), bits = magnitude_bits(v);
    int64_t code = ((bits + added) >> MOMENT_DROPPED) - bias * 512;
    code &= -(int64_t)((bits >> 52) > bias);
    return (int16_t)((code ^ sign) - sign);
}

/* What rounds the bits of v to nearest, or with 16 random bits. */
SAMEBITS_INLINE int64_t added_nearest(double v) {
    return ((int64_t)1 << (MOMENT_DROPPED - 1)) - 1 + ((bits_of(v) >> MOMENT_DROPPED) & 1);
}

SAMEBITS_INLINE int64_t added_random(uint32_t bits) {
    return (int64_t)bits << (MOMENT_DROPPED - 16);
}

/* -1 of a negative code, 0 of others; its magnitude; its significand (0 for the code 0); F. */
SAMEBITS_INLINE int32_t sign_of(int32_t code) { return samebits_floor32(code, 31); }

SAMEBITS_INLINE int32_t magnitude_of(int32_t code) {
    return (code ^ sign_of(code)) - sign_of(code);
}

SAMEBITS_INLINE int32_t significand_of(int32_t code) {
    return (512 + (magnitude_of(code) & 511)) & -(int32_t)(code != 0);
}

SAMEBITS_INLINE int32_t field_of(int32_t code) { return magnitude_of(code) >> 9; }

SAMEBITS_INLINE int32_t with_sign(int32_t v, int32_t sign) { return (v ^ sign) - sign; }

/* m * value of a code at the exponent e, exactly: base = e - 63 in [-900, 900], |m| < 2**16. */
SAMEBITS_INLINE double moment_value(int32_t m, int32_t code, int64_t base) {
    int32_t product = with_sign(m * significand_of(code), sign_of(code));
    return (double)product * power_of_two(base + field_of(code));
}

/* The exponent of codes whose largest magnitude is a binary64 of these bits. */
SAMEBITS_INLINE int64_t moment_exponent(int64_t bits) {
    const int64_t e = (bits >> 52) - 1031;
    return bits && e > -128 ? e : -128;
}

/* w_U and w_S from w_V: products with odd numbers, so that each is as uniform as it. */
SAMEBITS_INLINE uint32_t update_bits(uint32_t w) { return (w * 0x9E37u) & 65535u; }

SAMEBITS_INLINE uint32_t root_bits(uint32_t w) { return (w * 0x85EBu) & 65535u; }

#endif
