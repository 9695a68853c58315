/* The clamp of ReLU and its kin (docs/spec/training.md, 5 and 7): v becomes min(max(v, 0), limit),
 * and a gradient passes where 0 < v < limit. That is one bit an element, bit i % 8 of byte i / 8;
 * elements count in the order of memory, channels last. */
#ifndef SAMEBITS_MASK_H
#define SAMEBITS_MASK_H

#include <string.h>

#include "exponent.h"

#define MASK_BLOCK 1024 /* elements whose flags stay in the first-level cache */

/* A clip value, 0 for none, at an exponent. Sums are below 2**48, so that a larger one is none. */
SAMEBITS_INLINE int64_t limit_at(int64_t clip, int64_t exponent) {
    return clip && exponent > -48 ? scale64(clip, shift_by(-exponent)) : INT64_MAX;
}

/* Write n flags, 0 or 1, as the bits from `at` on of a mask that is 0 there. */
SAMEBITS_INLINE void write_mask(const uint8_t *flags, int64_t n, int64_t at, uint8_t *mask) {
    for (; n && at & 7; n--, at++) mask[at >> 3] |= (uint8_t)(*flags++ << (at & 7));
    for (mask += at >> 3; n >= 8; n -= 8, flags += 8) {
        int byte = 0;
        for (int k = 0; k < 8; k++) byte |= flags[k] << k;
        *mask++ = (uint8_t)byte;
    }
    for (int64_t k = 0; k < n; k++) *mask |= (uint8_t)(flags[k] << k);
}

SAMEBITS_INLINE void clear_mask(uint8_t *mask, int64_t n) {
    memset(mask, 0, (size_t)((n + 7) / 8));
}

/* Runs the statement, parallel where no two threads share a byte of a mask, for elements [lo, lo +
 * len) of [0, n) whose first has the place `at` in the mask. */
#define PARALLEL_MASK(n, at, size, call)                                                       \
    {                                                                                          \
        int64_t all = (n), octets = (at) & 7 ? 1 : (all + 7) / 8;                              \
        int crew = TEAM(size);                                                                 \
        _Pragma("omp parallel num_threads(crew)")                                              \
        {                                                                                      \
            SHARE(octets)                                                                      \
            int64_t last = lo + len == octets ? all : 8 * (lo + len);                          \
            lo *= 8;                                                                           \
            len = last - lo;                                                                   \
            if (len > 0) call;                                                                 \
        }                                                                                      \
    }

#endif
