/* Philox4x32-10 (Salmon et al., SC 2011), round by round over many counters. */
#ifndef SAMEBITS_PHILOX_H
#define SAMEBITS_PHILOX_H

#include "samebits_integer.h"

SAMEBITS_INLINE void philox_round(uint32_t *restrict a, uint32_t *restrict b, uint32_t *restrict c,
                                uint32_t *restrict d, uint32_t k0, uint32_t k1, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        uint64_t p = (uint64_t)a[i] * 0xD2511F53u, q = (uint64_t)c[i] * 0xCD9E8D57u;
        uint32_t high = (uint32_t)(q >> 32) ^ b[i] ^ k0;
        c[i] = (uint32_t)(p >> 32) ^ d[i] ^ k1;
        a[i] = high;
        b[i] = (uint32_t)q;
        d[i] = (uint32_t)p;
    }
}

/* The words of counters (a, b, c, d), in their place. */
static void philox(uint32_t *restrict a, uint32_t *restrict b, uint32_t *restrict c,
                   uint32_t *restrict d, uint32_t k0, uint32_t k1, int64_t count) {
    for (int r = 0; r < 10; r++) {
        philox_round(a, b, c, d, k0, k1, count);
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
}

#endif
