/* Exponents in memory, which kernels read and leave there for each other: the choice of one by the
 * largest magnitude (docs/spec/training.md, 1), and how a kernel that makes this choice ends. */
#ifndef SAMEBITS_EXPONENT_H
#define SAMEBITS_EXPONENT_H

#include "shift.h"

/* As it should; with an exponent above 127, which stands where the exponent of the result is to be
 * found; without memory; with a real number that is not finite, whose bits stand there; or without
 * a table, which the caller has to make. */
enum Status { FINE, OUT_OF_RANGE, NO_MEMORY, NOT_FINITE, MISSING };

#define EXPONENT_MIN (-128)
#define EXPONENT_MAX 127
#define Q16 32639
#define Q32 2139062143

SAMEBITS_INLINE int64_t bit_length(int64_t v) {
    return v ? 64 - __builtin_clzll((unsigned long long)v) : 0;
}

/* The largest code of a width (1 and 13). */
SAMEBITS_INLINE int64_t code_max(int bits) {
    return bits == 32 ? Q32 : bits == 16 ? Q16 : ((int64_t)1 << (bits - 1)) - 1;
}

/* The smallest shift to the right, of either sign, at which integers up to `top` fit `bits`. */
SAMEBITS_INLINE int64_t fit_by(int64_t top, int bits) {
    int64_t by = bit_length(top) - bits + 1;
    while (scale64(top, shift_by(-by)) > code_max(bits)) by++;
    return by;
}

/* The shift to the right by which integers up to `top` > 0 at an exponent become codes of `bits`
 * (1.1). */
SAMEBITS_INLINE int64_t requantize_by(int64_t top, int64_t exponent, int bits) {
    int64_t by = fit_by(top, bits);
    return SAMEBITS_MAX(by, EXPONENT_MIN - exponent);
}

/* The shift to the right by which integers up to `top` become codes of 32 bits (1.2). */
SAMEBITS_INLINE int64_t shorten_by(int64_t top) {
    int64_t by = fit_by(top, 32);
    return SAMEBITS_MAX(0, by);
}

#endif
