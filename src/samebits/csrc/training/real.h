/* binary64 numbers as bits, powers of two, and integers: every operation is rounded once. */
#ifndef SAMEBITS_REAL_H
#define SAMEBITS_REAL_H

#include "samebits_bytes.h"
#include "samebits_integer.h"

SAMEBITS_INLINE int64_t bits_of(double v) {
    int64_t bits;
    memcpy(&bits, &v, sizeof bits);
    return bits;
}

SAMEBITS_INLINE double real_of(int64_t bits) {
    double v;
    memcpy(&v, &bits, sizeof v);
    return v;
}

SAMEBITS_INLINE int64_t magnitude_bits(double v) { return bits_of(v) & INT64_MAX; }

SAMEBITS_INLINE double magnitude_of_real(double v) { return real_of(magnitude_bits(v)); }

/* 2**k; -1022 <= k <= 1023. */
SAMEBITS_INLINE double power_of_two(int64_t k) { return real_of((k + 1023) << 52); }

/* v * 2**k, rounded once, for any k: where a step before the last rounds, among the subnormal
 * numbers, the last one leaves nothing (it goes down by at least 2**-54). */
SAMEBITS_INLINE double times_power(double v, int64_t k) {
    k = samebits_clamp64(k, -3000, 3000);
    for (; k > 1023; k -= 1023) v *= power_of_two(1023);
    for (; k < -1022; k += 969) v *= power_of_two(-969);
    return v * power_of_two(k);
}

#define NEAREST 6755399441055744.0 /* 1.5 * 2**52: the last bit of a sum with it is worth 1 */

/* v to the nearest integer, ties to even; |v| <= 2**51. */
SAMEBITS_INLINE double nearest(double v) { return (v + NEAREST) - NEAREST; }

/* The same as an integer, by the bits of the sum, as loops over that vectorise. */
SAMEBITS_INLINE int64_t nearest_of(double v) { return bits_of(v + NEAREST) - bits_of(NEAREST); }

/* The same for |v| < 2**63, of which those from 2**52 on are integers already. */
SAMEBITS_INLINE int64_t nearest_integer(double v) {
    const double unit = 4503599627370496.0; /* 2**52 */
    double size = magnitude_of_real(v), whole = size < unit ? (size + unit) - unit : size;
    return v < 0 ? -(int64_t)whole : (int64_t)whole;
}

/* rne(v / divisor), |v| <= 2**51, and the divisor an integer that binary64 holds. Its quotient is
 * half an integer only where v / divisor is: from any other half this is 1 / (2 * divisor) away at
 * least, which is more than the rounding of the quotient, 2**-53 of it. Integers become binary64,
 * and go back, by bits (`nearest_of`). */
SAMEBITS_INLINE int64_t real_quotient(int64_t v, double divisor) {
    return nearest_of((real_of(v + bits_of(NEAREST)) - NEAREST) / divisor);
}

/* |v| = mantissa * 2**exponent with 2**52 <= mantissa < 2**53; v is finite and not 0. */
typedef struct {
    int64_t mantissa, exponent;
} Scaled;

SAMEBITS_INLINE Scaled scaled_of(double v) {
    const int64_t one = (int64_t)1 << 52;
    int64_t bits = magnitude_bits(v), up = 0;
    if (bits < one) { /* subnormal */
        up = 54;
        bits = magnitude_bits(v * power_of_two(up));
    }
    return (Scaled){(bits & (one - 1)) | one, (bits >> 52) - 1075 - up};
}

/* The smallest e with |v| <= 2**(bits + e); 0 for 0 (docs/spec/training.md, 1.1, `fits`). */
SAMEBITS_INLINE int64_t fits_of(double v, int64_t bits) {
    if (v == 0) return 0;
    Scaled s = scaled_of(v);
    return s.exponent + 53 - (s.mantissa == (int64_t)1 << 52) - bits;
}

/* The largest of |v[i]|; a NaN if there is one. */
SAMEBITS_INLINE double largest_real(const double *v, int64_t n) {
    double top = 0;
    for (int64_t i = 0; i < n; i++) {
        double size = magnitude_of_real(v[i]);
        if (size > top || size != size) top = size;
    }
    return top;
}

SAMEBITS_INLINE int is_finite(double v) { return magnitude_bits(v) < (int64_t)2047 << 52; }

#endif
