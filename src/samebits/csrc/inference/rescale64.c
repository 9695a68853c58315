/* --- requantization in 64 bits and more ----------------------------------------------------------
 *
 * The forms of samebits_kernels.h from SAMEBITS_WIDE on, and the search of thresholds. They are
 * proved when a graph is lowered, as those of rescale.c, which takes them from here. */

#include "samebits_vector.h"

/* How many of `count` ascending thresholds are <= acc. */
#define SAMEBITS_SEARCH(T)                                                                         \
    {                                                                                              \
        const T *row = (const T *)r->multipliers + (channel + i) * step * r->count;                \
        int32_t below = 0, above = r->count;                                                       \
        while (below < above) {                                                                    \
            int32_t middle = below + (above - below) / 2;                                          \
            if (row[middle] <= acc[i]) {                                                           \
                below = middle + 1;                                                                \
            } else {                                                                               \
                above = middle;                                                                    \
            }                                                                                      \
        }                                                                                          \
        acc[i] = SAMEBITS_MIN(r->low + below, r->high);                                            \
    }

/* acc * m / 2**s rounded half to even, by a product of 128 bits; |acc| and m below 2**62. */
static int64_t samebits_long(int64_t acc, int64_t m, int32_t s) {
    const uint64_t u = (uint64_t)samebits_magnitude64(acc), v = (uint64_t)m, mask = 0xffffffffu;
    const uint64_t a = (u & mask) * (v & mask), b = (u >> 32) * (v & mask);
    const uint64_t c = (u & mask) * (v >> 32), d = (u >> 32) * (v >> 32);
    const uint64_t middle = (a >> 32) + (b & mask) + (c & mask);
    const uint64_t low = (middle << 32) | (a & mask);
    const uint64_t high = d + (b >> 32) + (c >> 32) + (middle >> 32);
    uint64_t quotient, half, rest, below; /* what is shifted out: its first bit, the others */
    if (s > 64) {
        quotient = high >> (s - 64);
        half = high >> (s - 65) & 1u;
        rest = high & (((uint64_t)1 << (s - 65)) - 1u);
        below = low;
    } else {
        quotient = s == 64 ? high : (high << (64 - s)) | (low >> s);
        half = low >> (s - 1) & 1u;
        rest = low & (((uint64_t)1 << (s - 1)) - 1u);
        below = 0;
    }
    quotient += half && (rest != 0 || below != 0 || (quotient & 1u));
    return acc < 0 ? -(int64_t)quotient : (int64_t)quotient;
}

static void samebits_wide(const samebits_rescale *r, int32_t channel, int32_t n, int64_t *acc) {
    const int64_t *m = (const int64_t *)r->multipliers;
    const uint8_t *s = r->shifts;
    int32_t i, step = r->channels > 1;
    if (r->form == SAMEBITS_THRESHOLDS64) {
        for (i = 0; i < n; i++) SAMEBITS_SEARCH(int64_t)
    } else if (r->form == SAMEBITS_DIVIDE) {
        for (i = 0; i < n; i++) {
            const int64_t *ratio = m + 2 * (channel + i) * step;
            acc[i] = samebits_quotient(acc[i] * ratio[0], ratio[1]);
            acc[i] = samebits_clamp64(acc[i] + r->zero, r->low, r->high);
        }
    } else if (r->form == SAMEBITS_HALVES) {
        const int32_t *by = (const int32_t *)r->multipliers;
        for (i = 0; i < n; i++) {
            const int32_t c = (channel + i) * step, apart = by[2 * c + 1];
            const int64_t half = ((int64_t)1 << (s[c] - 1)) + (acc[i] < 0 ? -apart : apart);
            acc[i] = samebits_floor64(acc[i] * by[2 * c] + half, s[c]);
            acc[i] = samebits_clamp64(acc[i] + r->zero, r->low, r->high);
        }
    } else if (r->form == SAMEBITS_LONG) {
        for (i = 0; i < n; i++) {
            const int32_t c = (channel + i) * step;
            acc[i] = samebits_clamp64(samebits_long(acc[i], m[c], s[c]) + r->zero, r->low, r->high);
        }
    } else if (step || SAMEBITS_SMALL) {
        for (i = 0; i < n; i++) {
            const int32_t c = (channel + i) * step;
            acc[i] = samebits_round64(acc[i] * m[c], s[c]);
            acc[i] = samebits_clamp64(acc[i] + r->zero, r->low, r->high);
        }
    } else {
        const int64_t factor = m[0], low = r->low, high = r->high, zero = r->zero;
        const int32_t shift = s[0];
        for (i = 0; i < n; i++) {
            acc[i] = samebits_clamp64(samebits_round64(acc[i] * factor, shift) + zero, low, high);
        }
    }
}
