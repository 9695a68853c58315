/* Exact sums become codes (1.1, 5). */
#ifndef SAMEBITS_TRAIN_ROUNDING_H
#define SAMEBITS_TRAIN_ROUNDING_H

#include "samebits_bytes.h"
#include "train_scalars.h"

/* How sums become codes, and where they go. */
typedef struct {
    samebits_rounding by;
    int32_t bits;
    void *y;
    uint8_t *mask;
} Rounding;

SAMEBITS_INLINE void put_code(const Rounding *r, int32_t i, int32_t sum, int32_t code) {
    if (r->bits == 8)
        ((int8_t *)r->y)[i] = (int8_t)code;
    else
        ((int16_t *)r->y)[i] = (int16_t)code;
    if (r->mask) mask_put(r->mask, i, passes(sum, r->by.limit));
}

/* A sum below 2**30. */
SAMEBITS_INLINE void round_sum(const Rounding *r, int32_t i, int32_t sum) {
    put_code(r, i, sum, down32(clamped(sum, r->by.clamp, r->by.limit), r->by.shift));
}

/* Any sums of 32 bits, in whose place the codes may lie: from the front. */
SAMEBITS_INLINE void round_kept(const Rounding *r, const int32_t *sums, int32_t n) {
    int32_t i, own;
    for (i = 0; i < n; i++) {
        SAMEBITS_COPY(&own, sums + i, sizeof own);
        put_code(r, i, own, into32(clamped(own, r->by.clamp, r->by.limit), r->by.shift));
    }
}

#endif
