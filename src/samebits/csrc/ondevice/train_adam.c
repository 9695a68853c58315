/* Adam and AdamW (4): moments and directions in binary64, in the order that the definition writes,
 * computed again in every pass instead of stored. */
#include "train_exact.h"

#include "adam.h"
#include "e6m9.h"
#include "train_root.h"
#include "train_update.h"

enum { LARGEST, STORE };

/* The smallest k with decay * |J| <= 2**k. */
static int32_t decayed(const samebits_parameter *p, double decay) {
    return decay > 0 ? p->s->e_w + 8 + (int32_t)fits_of(decay, 0) : EXPONENT_MIN;
}

/* The moments are below 2**top, the quotient below that divided by 1 - beta1 and eps, since the
 * second root's divisor is at most 1. */
static int is_sure(const samebits_parameter *p, const samebits_optimizer *o, int32_t reach) {
    const samebits_adam *a = o->adam;
    const int32_t by = 2 - (int32_t)fits_of(a->rest1, 0) - (int32_t)fits_of(a->eps, 0);
    const int32_t coupled = decayed(p, a->coupled), decoupled = decayed(p, a->decoupled);
    int32_t top = SAMEBITS_MAX(p->s->e_v, p->s->e_root) + 10;
    reach = SAMEBITS_MAX(reach, coupled) + 1;
    top = SAMEBITS_MAX(top, reach) + 2;
    reach = SAMEBITS_MAX(top, top + by);
    return samebits_train_holds(p, o, SAMEBITS_MAX(reach, decoupled) + 1);
}

static void adam_start(samebits_update *d) {
    d->bits = d->root_bits = 0;
    d->e_w = d->p->s->e_w;
    d->e_v = d->p->s->e_v, d->e_root = d->p->s->e_root;
}

static double joint_real(const samebits_update *d, int32_t i) {
    return times_power((double)joint_at(d->p, i), d->e_w - 15);
}

/* m and v of an element. */
typedef struct {
    double first, second;
} Moments;

static Moments moments_of(const samebits_update *d, int32_t i, int32_t code) {
    const samebits_adam *a = d->o->adam;
    const double m = moment_value(1, d->p->v[i], d->e_v - 63);
    const double s = moment_value(1, d->p->root[i], d->e_root - 63);
    double g = times_power((double)code, d->e_g);
    if (a->coupled > 0) g = g + a->coupled * joint_real(d, i);
    return (Moments){adam_first(a->beta1, a->rest1, m, g), adam_second(a->beta2, a->rest2, s, g)};
}

static void adam_elements(samebits_update *d, int32_t i, const int32_t *g, int32_t count) {
    samebits_parameter *p = d->p;
    for (; count; count--, i++) {
        const Moments now = moments_of(d, i, *g++);
        if (d->pass == LARGEST) {
            const int64_t m = magnitude_bits(now.first), v = magnitude_bits(now.second);
            d->bits = SAMEBITS_MAX(d->bits, m);
            d->root_bits = SAMEBITS_MAX(d->root_bits, v);
        } else {
            const uint32_t w = draw_bits(&d->draw, (uint32_t)i);
            p->v[i] = moment_code(now.first, p->s->e_v + MOMENT_BIAS, added_random(w));
            p->root[i] = moment_code(square_root(now.second), p->s->e_root + MOMENT_BIAS,
                                     added_random(root_bits(w)));
        }
    }
}

static double direction(const samebits_update *d, int32_t i) {
    const samebits_optimizer *o = d->o;
    const double m = moment_value(1, d->p->v[i], d->p->s->e_v - 63);
    const double s = moment_value(1, d->p->root[i], d->p->s->e_root - 63);
    double p = adam_quotient(m, s, o->c1, o->c2, o->adam->eps);
    if (o->adam->decoupled > 0) p = p + o->adam->decoupled * joint_real(d, i);
    return p;
}

static int32_t code_at(const samebits_update *d, int32_t i, int32_t e_p) {
    const double p = direction(d, i);
    return moment_code(p, e_p + MOMENT_BIAS, added_nearest(p));
}

static void descend(samebits_update *d) {
    const int32_t n = d->p->n;
    int64_t most = 0;
    int32_t i, e_p, top = 0;
    for (i = 0; i < n; i++) {
        const int64_t bits = magnitude_bits(direction(d, i));
        most = SAMEBITS_MAX(most, bits);
    }
    if (!most) return;
    e_p = (int32_t)moment_exponent(most);
    top = moment_code(real_of(most), e_p + MOMENT_BIAS, added_nearest(real_of(most)));
    if (!top) return;
    samebits_train_descent(d, top, e_p);
    for (i = 0; i < n; i++) samebits_train_foresee(d, i, code_at(d, i, e_p));
    samebits_train_decide(d);
    for (i = 0; i < n; i++) samebits_train_descend(d, i, code_at(d, i, e_p));
}

/* The exponents of the moments by the largest; the root grows with its square. */
static int adam_again(samebits_update *d) {
    samebits_scale *s = d->p->s;
    if (d->pass++ == LARGEST) {
        s->e_v = (int32_t)moment_exponent(d->bits);
        s->e_root = (int32_t)moment_exponent(magnitude_bits(square_root(real_of(d->root_bits))));
        return 1;
    }
    if (d->o->rate.m) descend(d);
    return 0;
}

const samebits_rule samebits_train_adam = {is_sure, adam_start, adam_elements, adam_again};

void samebits_train_adam_start(samebits_optimizer *o, const double *powers) {
    o->c1 = 1.0 - powers[0] * o->adam->beta1;
    o->c2 = square_root(1.0 - powers[1] * o->adam->beta2);
}

void samebits_train_adam_end(const samebits_adam *adam, double *powers) {
    powers[0] *= adam->beta1;
    powers[1] *= adam->beta2;
}
