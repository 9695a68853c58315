/* SGD of one parameter, element by element (2.1, 4): `sgd_start`, every element in order by
 * `sgd_element`, `sgd_end`.
 *
 * The definition reads W, A and V twice or more, since the exponent of W follows from the largest
 * of the new W. But u is a function of V and the counter, and J = W * 2**15 - A is known modulo
 * 2**23: where u fits, one pass writes the elements in the hope that W stays in its range;
 * `sgd_end` undoes it where it does not. */
#ifndef SAMEBITS_TRAIN_SGD_H
#define SAMEBITS_TRAIN_SGD_H

#include "train_scalars.h"

/* The random bits w_V (1.5) of elements in order; block: the eight elements that `words` has. */
typedef struct {
    uint32_t seed, parameter, step, block, words[4];
} Drawn;

SAMEBITS_INLINE void draw_start(Drawn *d, const samebits_parameter *p, const samebits_sgd *o) {
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

typedef struct {
    samebits_parameter *p;
    const samebits_sgd *o;
    int32_t e_d, e_v;             /* of D, and of the new V */
    int32_t by_g, by_j, by_v;     /* shifts to e_d; by_v that of a code with F = 0 */
    int32_t shift_u;              /* of a code with F = 0 */
    int32_t one_pass, old;        /* old: there is a V */
    int32_t top, largest, most;   /* max|V|; of one pass, max|W| and max|J| */
    Drawn draw;
} Sgd;

/* Of a gradient |G| <= top_g at e_g. */
int samebits_train_sgd_start(Sgd *d, samebits_parameter *p, const samebits_sgd *o, int64_t top_g,
                             int32_t e_g);
void samebits_train_sgd_end(Sgd *d);

/* rne(v * 2**-s) of |v| < 2**26: where it shifts to the right, in 32 bits. */
SAMEBITS_INLINE int64_t down26(int32_t v, int32_t s) {
    if (s <= 0) return (int64_t)((uint64_t)(int64_t)v << -s);
    return s > 26 ? 0 : samebits_round32(v, s);
}

/* `stochastic` of a < 2**26, in 32 bits where they hold it. */
SAMEBITS_INLINE int64_t stochastic26(uint32_t a, int32_t s, uint32_t bits) {
    if (s < 11) return stochastic((int64_t)a, s, bits);
    if (s > 41) return 0;
    return (int64_t)(((s <= 16 ? a << (16 - s) : a >> (s - 16)) + bits) >> 16);
}

/* u of 2.1, of a code of V. */
SAMEBITS_INLINE int64_t step_of(int32_t m, int32_t code, int32_t shift_u, uint32_t w_v) {
    const int32_t size = magnitude32(code);
    const int64_t u = stochastic26((uint32_t)m * (uint32_t)(512 + (size & 511)),
                                   shift_u - (size >> 9), w_v * 0x9E37u & 65535u);
    return size == 0 ? 0 : code < 0 ? -u : u;
}

/* W - r and J - u of an element; W - r is stored modulo 2**8, A exactly. */
SAMEBITS_INLINE int32_t carry(samebits_parameter *p, int32_t i, int32_t u, int32_t *j) {
    const int32_t t = p->a[i] + u, r = samebits_round32(t, 15), w = p->w[i] - r;
    *j = p->w[i] * 32768 - t;
    p->w[i] = (int8_t)(uint8_t)w;
    p->a[i] = (int16_t)(t - r * 32768);
    return w;
}

SAMEBITS_INLINE void sgd_element(Sgd *d, int32_t i, int32_t g) {
    samebits_parameter *p = d->p;
    const samebits_sgd *o = d->o;
    const uint32_t w = draw_bits(&d->draw, (uint32_t)i);
    int64_t sum = down64(g, d->by_g), size;
    int32_t code = 0, field, n;
    if (o->decay.m) sum += down64((int64_t)o->decay.m * joint_at(p, i), d->by_j);
    if (d->old && p->v[i]) {
        const int32_t v = p->v[i], magnitude = magnitude32(v);
        const int32_t q = o->momentum.m * (512 + (magnitude & 511));
        sum += down26(v < 0 ? -q : q, d->by_v - (magnitude >> 9));
    }
    size = samebits_magnitude64(sum);
    n = length_of(size);
    field = n - 10 + d->e_d - d->e_v + 63;
    if (size && field >= 1) code = 512 * (field - 1) + (int32_t)stochastic(size, n - 10, w);
    d->top = SAMEBITS_MAX(d->top, code);
    code = sum < 0 ? -code : code;
    p->v[i] = (int16_t)code;
    if (d->one_pass) {
        int32_t j, k = carry(p, i, (int32_t)step_of(o->rate.m, code, d->shift_u, w), &j);
        k = magnitude32(k), j = magnitude32(j);
        d->largest = SAMEBITS_MAX(d->largest, k);
        d->most = SAMEBITS_MAX(d->most, j);
    }
}

#endif
