/* The update of one parameter (2.1, 4), by passes over its gradient: what all optimizers share. */
#ifndef SAMEBITS_TRAIN_UPDATE_H
#define SAMEBITS_TRAIN_UPDATE_H

#include "train_scalars.h"

/* The random bits w_V (1.5) of elements in order; block: the eight elements that `words` has. */
typedef struct {
    uint32_t seed, parameter, step, block, words[4];
} Drawn;

SAMEBITS_INLINE void draw_start(Drawn *d, const samebits_parameter *p,
                                const samebits_optimizer *o) {
    d->seed = o->seed, d->parameter = p->index, d->step = o->step, d->block = 0xFFFFFFFFu;
}

SAMEBITS_INLINE uint32_t draw_bits(Drawn *d, uint32_t i) {
    if (i >> 3 != d->block) {
        uint32_t *w = d->words;
        d->block = i >> 3;
        w[0] = d->block, w[1] = d->step, w[2] = 0xFFFFFFFDu, w[3] = 0;
        samebits_train_words(w, d->seed, d->parameter);
    }
    return i & 1 ? d->words[i >> 1 & 3] >> 16 : d->words[i >> 1 & 3] & 65535u;
}

/* The bits of n elements from i on. */
SAMEBITS_INLINE void draw_some(Drawn *d, uint32_t i, int32_t n, uint16_t *to) {
    for (; n && i & 7; n--) *to++ = (uint16_t)draw_bits(d, i++);
    for (; n >= 8; n -= 8, i += 8, to += 8) {
        int32_t k;
        (void)draw_bits(d, i);
        for (k = 0; k < 4; k++)
            to[2 * k] = (uint16_t)d->words[k], to[2 * k + 1] = (uint16_t)(d->words[k] >> 16);
    }
    for (; n; n--) *to++ = (uint16_t)draw_bits(d, i++);
}

/* J - lr * P element by element, where P can be computed again. First what `reach_of` foresees of
 * all elements decides how the exponent moves, then `descend` writes them.
 *
 * shift:   of u, of a code with F = 0; after J moved up by `above` (step 2)
 * by:      how e_W moves then
 * largest: max|W - r|; most: max|J - u| */
typedef struct {
    int32_t shift, above, by;
    int64_t largest, most;
} Descent;

/* An update in the making.
 *
 * e_g, top_g:        of the gradient G; no |G| is larger
 * shift:             from its sums to G (1.2). clipped, most_g, factor, by: then clipping (4)
 * pass:              over the gradient, from 0
 * e_d, by_...:       of D, and shifts to it; by_v, shift_u: of a code with F = 0
 * one_pass, old:     of SGD with momentum; old: there is a V
 * top:               the largest code so far; largest: of one pass, max|W|
 * e_w, e_v, e_root:  before the update, of SGD's V after it; bits: of the largest reals */
struct samebits_update {
    const samebits_rule *rule;
    samebits_parameter *p;
    const samebits_optimizer *o;
    int32_t e_g, shift, clipped, most_g, factor, by, pass;
    int64_t top_g;
    int32_t e_w, e_d, e_v, e_root, by_g, by_j, by_v, shift_u;
    int32_t one_pass, old, top, largest;
    int64_t bits, root_bits;
    Drawn draw;
    Descent down;
};

/* Of sums up to `top` at e, some of which are not 0 if top is not: exactly the largest where
 * `needs_largest`. `*made`: whether passes follow. */
int samebits_train_start(samebits_update *d, samebits_parameter *p, const samebits_optimizer *o,
                         int64_t top, int32_t e, int32_t *made);

SAMEBITS_INLINE int needs_largest(const samebits_optimizer *o) {
    return o->clip && o->clip->factor.m;
}

/* An element of G, of its sum. */
SAMEBITS_INLINE int32_t gradient_of(const samebits_update *d, int64_t sum) {
    int32_t g = into32(sum, d->shift);
    if (d->clipped) {
        g = samebits_clamp32(g, -d->most_g, d->most_g);
        if (d->factor) g = into32((int64_t)g * d->factor, d->by);
    }
    return g;
}

/* rne(v * 2**-s) of |v| < 2**26: where it shifts to the right, in 32 bits, and to the left by a
 * product, which takes fewer instructions than a shift of 64 bits. */
SAMEBITS_INLINE int64_t down26(int32_t v, int32_t s) {
    if (s > 0) return s > 26 ? 0 : samebits_round32(v, s);
    return s > -31 ? (int64_t)v * (int32_t)(1u << -s) : (int64_t)((uint64_t)(int64_t)v << -s);
}

/* The same of any 32 bits. */
SAMEBITS_INLINE int64_t moved_by(int32_t v, int32_t s) {
    return s <= 0 && s > -31 ? (int64_t)v * (int32_t)(1u << -s) : down64(v, s);
}

/* round(a, n - 10) of 1.4, of n bits of a: the first ten, after 16 random bits were added to those
 * that follow. */
SAMEBITS_INLINE int32_t rounded10(int64_t a, int32_t n, uint32_t bits) {
    const uint32_t top = n >= 26 ? (uint32_t)(a >> (n - 26)) : (uint32_t)a << (26 - n);
    return (int32_t)((top + bits) >> 16);
}

/* `stochastic` of a < 2**26, in 32 bits where they hold it. */
SAMEBITS_INLINE int64_t stochastic26(uint32_t a, int32_t s, uint32_t bits) {
    if ((uint32_t)(s - 16) < 32u) return (int64_t)(((a >> (s - 16)) + bits) >> 16);
    if (s < 11) return stochastic((int64_t)a, s, bits);
    return s > 16 ? 0 : (int64_t)(((a << (16 - s)) + bits) >> 16);
}

/* u of 2.1, of a code of V. */
SAMEBITS_INLINE int64_t step_of(int32_t m, int32_t code, int32_t shift_u, uint32_t w_v) {
    const int32_t size = magnitude32(code);
    const int64_t u = stochastic26((uint32_t)m * (uint32_t)(512 + (size & 511)),
                                   shift_u - (size >> 9), w_v * 0x9E37u & 65535u);
    return size == 0 ? 0 : code < 0 ? -u : u;
}

SAMEBITS_INLINE void split(samebits_parameter *p, int32_t i, int64_t j) {
    const int64_t w = down64(j, 15);
    p->w[i] = (int8_t)w;
    p->a[i] = (int16_t)(w * 32768 - j);
}

/* A direction of codes up to `top` at e_p. */
void samebits_train_descent(samebits_update *d, int32_t top, int32_t e_p);
/* What `code` does to element i; how e_W moves by all of them; the element, written. */
void samebits_train_foresee(samebits_update *d, int32_t i, int32_t code);
void samebits_train_decide(samebits_update *d);
void samebits_train_descend(samebits_update *d, int32_t i, int32_t code);

/* By how much e_W moves (steps 4 and 5), from max|W - r| and max|J - u|. */
int32_t samebits_train_move(int64_t largest, int64_t most, int32_t e_w);

/* Whether e_P and W surely stay in their ranges: |P| < 2**(top + 3). */
int samebits_train_holds(const samebits_parameter *p, const samebits_optimizer *o, int32_t top);

#endif
