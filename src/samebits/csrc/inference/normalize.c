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
