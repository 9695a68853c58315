/* The square root of a binary64. */
#ifndef SAMEBITS_TRAIN_ROOT_H
#define SAMEBITS_TRAIN_ROOT_H

#include "real.h"

/* sqrt(v) rounded once, v >= 0, without libm: the root of the significand, shifted to an even power
 * of two, digit by digit: two bits of it a digit, then zeros. */
static double square_root(double v) {
    uint64_t m, r = 0, rest = 0;
    int32_t x, i;
    Scaled s;
    if (v == 0) return 0;
    s = scaled_of(v), m = (uint64_t)s.mantissa, x = (int32_t)s.exponent;
    if (x & 1) m <<= 1, x--;
    for (i = 54; i >= 0; i--) {
        const int32_t at = 2 * i - 56;
        const uint64_t two = at >= 0 ? m >> at & 3 : 0;
        rest = rest << 2 | two;
        r <<= 1;
        if (rest >= (r << 1 | 1)) rest -= r << 1 | 1, r |= 1;
    }
    r = r << 1 | (rest != 0); /* a bit below for all the others: the conversion rounds once */
    return times_power((double)(int64_t)r, (x - 56) / 2 - 1);
}

#endif
