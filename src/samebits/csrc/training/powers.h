/* Powers of two of distances, and the logarithm of their sum (docs/spec/training.md, 6.1). */
#ifndef SAMEBITS_POWERS_H
#define SAMEBITS_POWERS_H

#include "samebits_integer.h"

/* log2(s) - 24 in units of 2**-24 by 24 steps of squaring; s >= 2**24. */
SAMEBITS_INLINE int64_t log2_24(int64_t s) {
    int64_t length = 63 - __builtin_clzll((unsigned long long)s), bits = 0;
    int64_t v = length >= 30 ? s >> (length - 30) : s << (30 - length);
    for (int i = 0; i < 24; i++) {
        v = v * v >> 30;
        int64_t high = v >> 31;
        bits = 2 * bits + high;
        v >>= high;
    }
    return ((length - 24) << 24) + bits;
}

/* How an exponent shifts d * log2(e) * 2**30 into units of 2**-16. */
typedef struct {
    int left, right;
} Units;

SAMEBITS_INLINE Units units_of(int64_t exponent) {
    const int64_t shift = exponent - 14;
    return (Units){shift < 0 ? 0 : shift > 22 ? 22 : (int)shift,
                   shift > 0 ? 0 : shift < -63 ? 63 : (int)-shift};
}

/* u of a code at a distance d from the largest, at most 2**21. */
SAMEBITS_INLINE int64_t units(int64_t d, Units by) {
    const int64_t log2_e = 1549082005, cap = (int64_t)1 << 21;
    const int64_t u = d * log2_e >> by.right;
    return u > cap >> by.left ? cap : u << by.left;
}

/* p of u. Tables have 256 entries of at most 2**30: where u >> 16 is above 24 no bit is left. */
SAMEBITS_INLINE int64_t power(int64_t u, const int64_t *t1, const int64_t *t2) {
    return (t1[u >> 8 & 255] * t2[u & 255] >> 30) >> (6 + (u >> 16));
}

/* p of a row z[c] whose largest code is `top`; their sum. */
SAMEBITS_INLINE int64_t powers(const int32_t *z, int64_t c, int64_t top, int64_t exponent,
                               const int64_t *t1, const int64_t *t2, int64_t *p) {
    const Units by = units_of(exponent);
    int64_t total = 0;
    for (int64_t j = 0; j < c; j++) {
        p[j] = power(units(top - z[j], by), t1, t2);
        total += p[j];
    }
    return total;
}

#endif
