/* --- normalisation -----------------------------------------------------------------------------
 *
 * Vectors of codes without their mean, over their root mean square, times a factor and plus a term
 * for each channel (docs/spec/graph.md, 3.1). Bounds: n <= 2**22 and n * |d| <= 2**30, so that
 * sums are below 2**31, V below 2**62, and D * R and N * m + b below 2**62. */

#include "samebits_vector.h"

/* floor(sqrt(v)) digit by digit, v < 2**62. Before the step of a bit 4**k, `root` is the floor so
 * far times 2 * 2**k, and v what its square leaves. */
static int64_t samebits_root(int64_t v) {
    int64_t root = 0, bit;
    for (bit = (int64_t)1 << 60; bit; bit >>= 2) {
        const int64_t tried = root + bit;
        root >>= 1;
        if (v >= tried) {
            v -= tried;
            root += bit;
        }
    }
    return root;
}

/* The vector of `places` runs of `run` channels from x[start], runs a pixel apart. */
static void samebits_normalize_vector(const samebits_normalize *c, const void *x, int32_t start,
                                      int32_t channel, void *out) {
    const int32_t run = c->channels / c->groups;
    const int64_t n = (int64_t)c->places * run;
    int32_t term[SAMEBITS_CHUNK], place, i, j, count, s = 0;
    int64_t total = 0, spread = 0, inverse;
    for (place = 0; place < c->places; place++) {
        for (i = 0; i < run; i += count) {
            count = SAMEBITS_MIN(run - i, SAMEBITS_CHUNK);
            samebits_load32(x, c->type, start + place * c->channels + i, 1, count, term);
            for (j = 0; j < count; j++) {
                const int64_t d = term[j] - c->x_zero;
                total += d;
                spread += d * d;
            }
        }
    }
    if (!c->centered) total = 0;
    spread = SAMEBITS_MAX(n * spread - total * total + c->epsilon, 1);
    while (spread < (int64_t)1 << 60) {
        spread *= 4;
        s++;
    }
    inverse = ((int64_t)1 << 61) / samebits_root(spread);
    for (place = 0; place < c->places; place++) {
        for (i = 0; i < run; i += count) {
            const int32_t at = start + place * c->channels + i;
            count = SAMEBITS_MIN(run - i, SAMEBITS_CHUNK);
            samebits_load32(x, c->type, at, 1, count, term);
            for (j = 0; j < count; j++) {
                const int64_t d = n * (term[j] - c->x_zero) - total;
                const int64_t normal = samebits_floor64(d * inverse, 37 - s);
                const int64_t y = normal * c->factors[channel + i + j] + c->terms[channel + i + j];
                samebits_put(out, c->out_type, at + j,
                             samebits_clamp64(samebits_round64(y, c->shift) + c->zero, c->low,
                                              c->high));
            }
        }
    }
}

void samebits_run_normalize(const samebits_normalize *c, const void *x, void *out) {
    const int32_t run = c->channels / c->groups;
    int32_t sample, channel, start = 0;
    for (sample = 0; sample < c->samples; sample++, start += c->places * c->channels) {
        for (channel = 0; channel < c->channels; channel += run) {
            samebits_normalize_vector(c, x, start + channel, channel, out);
        }
    }
}

/* --- square roots ------------------------------------------------------------------------------
 *
 * rne(sqrt(v / (4 * q))), digit by digit and without a division (docs/spec/graph.md, 3.3). Before
 * the step of a bit q * 4**k, `root` is q * s * 2 * 2**k for the floor s * 2**k of sqrt(v / q) so
 * far, and v what its square, times q, leaves. No branch depends on v but for the number of steps.
 * With v below 2**31 (2**63), what is tried is at most 5 / 4 of it. */

#define SAMEBITS_NEAREST_ROOT(NAME, T)                                                             \
    static int32_t NAME(T v, T q) {                                                                \
        T bit = q, root = 0, s = 0, nearest;                                                       \
        while (bit <= v >> 2) bit <<= 2;                                                           \
        for (;; bit >>= 2) {                                                                       \
            const T tried = root + bit, taken = (T)0 - (T)(v >= tried);                            \
            v -= tried & taken;                                                                    \
            root = (root >> 1) + (bit & taken);                                                    \
            s = (s << 1) - taken;                                                                  \
            if (bit == q) break;                                                                   \
        }                                                                                          \
        nearest = (s + 1u) >> 1;                                                                   \
        return (int32_t)(nearest - (v == 0 ? s & nearest & 1u : 0u));                              \
    }

SAMEBITS_NEAREST_ROOT(samebits_root_32, uint32_t)
SAMEBITS_NEAREST_ROOT(samebits_root_64, uint64_t)

void samebits_run_root(const samebits_roots *c, const void *x, void *out) {
    int32_t i;
    for (i = 0; i < c->size; i++) {
        const int64_t v = SAMEBITS_MAX(samebits_get(x, c->type, i), 0) * c->factor;
        const int64_t k = v <= INT32_MAX
                              ? samebits_root_32((uint32_t)v, (uint32_t)c->divisor)
                              : samebits_root_64((uint64_t)v, (uint64_t)c->divisor);
        samebits_put(out, c->out_type, i, samebits_clamp64(k + c->zero, c->low, c->high));
    }
}
