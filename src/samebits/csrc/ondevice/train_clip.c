/* Clipping of gradients (4): by value tensor by tensor, by the norm of all. That needs them all
 * before the first update, so that a step is walked twice: once for the squares. */
#include "train_exact.h"

#include "train_root.h"
#include "train_update.h"

#define LOWEST (-640) /* the exponent of a gradient is above; the largest is below 590 */

/* Add v to the sum, its lowest bit at a place, 32 bits at a time. */
static void add_at(uint32_t *sum, uint64_t v, int32_t at) {
    const int32_t by = at & 31;
    uint64_t low = v << by, carry = by ? v >> (64 - by) : 0;
    uint32_t words[3], i, over = 0;
    words[0] = (uint32_t)low, words[1] = (uint32_t)(low >> 32), words[2] = (uint32_t)carry;
    sum += at >> 5;
    for (i = 0; i < 3 || over; i++) {
        const uint64_t own = (uint64_t)sum[i] + (i < 3 ? words[i] : 0) + over;
        sum[i] = (uint32_t)own, over = (uint32_t)(own >> 32);
    }
}

static void measure_elements(samebits_update *d, int32_t i, const int32_t *g, int32_t count) {
    (void)i;
    for (; count; count--, g++)
        if (*g)
            add_at(d->o->clip->squares, (uint64_t)((int64_t)*g * *g),
                   2 * (samebits_clamp32(d->e_g, LOWEST, 590) - LOWEST));
}

static int measure_again(samebits_update *d) {
    (void)d;
    return 0;
}

static const samebits_rule MEASURE = {NULL, NULL, measure_elements, measure_again};

/* The limit of codes at e, if that has 31 bits at most; -1: there is none. */
static int32_t limit_at(double limit, int32_t e) {
    const double codes = times_power(limit, -e);
    return limit > 0 && codes < 2147483648.0 ? (int32_t)codes : -1;
}

static void clip(samebits_update *d, int64_t *top, int32_t *e) {
    const samebits_clip *c = d->o->clip;
    const int32_t most = limit_at(c->value, *e);
    d->most_g = Q32;
    if (most >= 0 && *top > most) {
        d->clipped = 1, d->most_g = most;
        *top = most;
        if (!most) *e = EXPONENT_MIN;
    }
    if (d->o->mode == SAMEBITS_TRAIN_MEASURE) {
        d->rule = &MEASURE;
    } else if (c->factor.m) {
        d->clipped = 1, d->factor = c->factor.m;
        *top *= c->factor.m, *e += c->factor.x;
        d->by = shortened(*top, e);
        *top = down64(*top, d->by);
    }
}

void samebits_train_clip_start(samebits_clip *c, double value, double norm) {
    c->clip = clip;
    c->value = value, c->norm = norm;
    c->factor.m = c->factor.x = 0;
    memset(c->squares, 0, sizeof c->squares);
}

/* The sum to 53 bits, which are shifted to an even power of two, its root, and the factor. */
void samebits_train_clip_end(samebits_clip *c) {
    int32_t at = 32 * SAMEBITS_TRAIN_SQUARES - 1, low, i;
    uint64_t m = 0;
    double norm;
    while (at >= 0 && !(c->squares[at >> 5] >> (at & 31) & 1)) at--;
    if (at < 0) return;
    low = at - 54; /* two bits below those that are kept: the second for all the others */
    low -= low & 1;
    for (i = at; i > low; i--) m = m << 1 | (i >= 0 ? c->squares[i >> 5] >> (i & 31) & 1 : 0);
    m <<= 1;
    for (i = low; i >= 0 && !(m & 1); i--) m |= c->squares[i >> 5] >> (i & 31) & 1;
    norm = times_power(square_root((double)(int64_t)m), low / 2 + LOWEST);
    if (norm > c->norm) (void)samebits_train_rate(c->norm / norm, &c->factor);
}
