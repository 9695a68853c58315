/* SGD (4): with momentum, whose V is the direction; without, and Nesterov's, whose directions are
 * not stored. */
#include "train_momentum.h"

/* The exponent of D and 50: of terms that exist (3, 4). */
static int32_t top_of(const samebits_parameter *p, const samebits_optimizer *o, int32_t e_g) {
    int32_t top = e_g + 31, t;
    if (o->decay.m) {
        t = p->s->e_w - 15 + o->decay.x + 39;
        top = SAMEBITS_MAX(top, t);
    }
    if (p->s->top_v > 0 && o->momentum.m) {
        t = p->s->e_v - 63 + (p->s->top_v >> 9) + o->momentum.x + 26;
        top = SAMEBITS_MAX(top, t);
    }
    return top;
}

/* With Nesterov mu * V, of the new V, has up to three bits more. */
static int is_sure(const samebits_parameter *p, const samebits_optimizer *o, int32_t reach) {
    return samebits_train_holds(p, o, top_of(p, o, reach - 31) + 3 * (o->nesterov != 0));
}

/* D = combine50 of the terms, at which shifts. */
static void terms_of(samebits_update *d) {
    const samebits_scale *s = d->p->s;
    d->old = s->top_v > 0 && d->o->momentum.m;
    d->e_d = top_of(d->p, d->o, d->e_g) - 50;
    d->by_g = d->e_d - d->e_g;
    d->by_j = d->e_d - (s->e_w - 15 + d->o->decay.x);
    d->by_v = d->e_d - (s->e_v - 63 + d->o->momentum.x);
    d->e_v = SAMEBITS_MAX(d->e_d + 43, EXPONENT_MIN);
    d->top = 0;
}

/* --- with momentum ----------------------------------------------------------------------------
 *
 * The definition reads W, A and V twice or more, since the exponent of W follows from the largest
 * of the new W. But u is a function of V and the counter, and J = W * 2**15 - A is known modulo
 * 2**23: where u fits, one pass writes the elements in the hope that W stays in its range; `again`
 * undoes it where it does not. */

static void momentum_start(samebits_update *d) {
    const samebits_optimizer *o = d->o;
    const samebits_scale *s = d->p->s;
    int64_t most;
    int32_t field;
    terms_of(d);
    d->shift_u = s->e_w - 15 - (d->e_v - 63 + o->rate.x);
    d->largest = 0;
    /* A bound on |D|, hence on F and on |u|, which one pass needs below 2**29. */
    most = down64(d->top_g, d->by_g) + 3;
    if (o->decay.m) most += (int64_t)1 << 49;
    if (d->old) most += down64((int64_t)o->momentum.m * 1024, d->by_v - (s->top_v >> 9));
    field = length_of(most) + 1 - 10 + d->e_d - d->e_v + 63;
    d->one_pass = o->rate.m && !o->nesterov && 26 + field - d->shift_u < 29;
}

static void momentum_elements(samebits_update *d, int32_t i, const int32_t *g, int32_t count) {
    const Fixed f = fixed_of(d);
    uint16_t bits[BLOCK];
    int32_t n;
    for (; count > 0; count -= n, i += n, g += n) {
        n = SAMEBITS_MIN(count, BLOCK);
        draw_some(&d->draw, (uint32_t)i, n, bits);
        d->top = new_codes(&f, i, g, bits, n, d->top);
        if (d->one_pass) d->largest = new_steps(&f, i, bits, n, d->largest);
    }
}

static void keep_momentum(samebits_update *d) {
    d->p->s->e_v = d->top ? d->e_v : EXPONENT_MIN;
    d->p->s->top_v = d->top;
}

/* J - u of an element after its pass, of whose J memory has 23 bits. */
static int32_t stepped_joint(samebits_update *d, int32_t i) {
    const uint32_t bits = draw_bits(&d->draw, (uint32_t)i);
    const int32_t u = (int32_t)step_of(d->o->rate.m, d->p->v[i], d->shift_u, bits);
    return samebits_signed32((uint32_t)(joint_at(d->p, i) + u) << 9) / 512 - u;
}

static int momentum_again(samebits_update *d) {
    samebits_parameter *p = d->p;
    int32_t i, by;
    keep_momentum(d);
    if (!d->o->rate.m || !d->top) return 0;
    if (!d->one_pass) {
        samebits_train_descent(d, d->top, d->e_v);
        for (i = 0; i < p->n; i++) samebits_train_foresee(d, i, p->v[i]);
        samebits_train_decide(d);
        for (i = 0; i < p->n; i++) samebits_train_descend(d, i, p->v[i]);
        return 0;
    }
    if (d->largest > Q8 || d->largest <= Q8 / 2) { /* seldom: W leaves its range */
        int32_t most = 0;
        draw_start(&d->draw, p, d->o);
        for (i = 0; i < p->n; i++) {
            const int32_t j = magnitude32(stepped_joint(d, i));
            most = SAMEBITS_MAX(most, j);
        }
        by = samebits_train_move(d->largest, most, p->s->e_w);
        p->s->e_w += by;
        draw_start(&d->draw, p, d->o);
        for (i = 0; by < 0 && i < p->n; i++)
            split(p, i, (int64_t)joint_at(p, i) * ((int64_t)1 << -by));
        for (i = 0; by > 0 && i < p->n; i++) split(p, i, down64(stepped_joint(d, i), by));
    }
    return 0;
}

const samebits_rule samebits_train_sgd = {is_sure, momentum_start, momentum_elements,
                                          momentum_again};

/* --- without momentum, and Nesterov's ---------------------------------------------------------
 *
 * The direction is computed again in every pass: after that of Nesterov's V the largest code, what
 * the step does to W, and the step. */

enum { MEMORY, LARGEST, FORESEE, DESCEND };

/* The code of an element of P, to nearest. */
SAMEBITS_INLINE int32_t plain_code(const Fixed *f, int32_t i, int32_t g) {
    const int64_t sum = sum_of(f, i, g), size = samebits_magnitude64(sum);
    const int32_t n = length_of(size), field = n + f->field;
    int32_t code = 0;
    if (size && field >= 1) code = 512 * (field - 1) + (int32_t)down64(size, n - 10);
    return sum < 0 ? -code : code;
}

static void plain_start(samebits_update *d) {
    if (d->o->nesterov)
        momentum_start(d);
    else
        terms_of(d), d->pass = LARGEST;
}

static void plain_elements(samebits_update *d, int32_t i, const int32_t *g, int32_t count) {
    const Fixed f = fixed_of(d);
    if (d->pass == MEMORY) {
        momentum_elements(d, i, g, count);
        return;
    }
    for (; count; count--, i++) {
        const int32_t code = plain_code(&f, i, *g++), size = magnitude32(code);
        if (d->pass == LARGEST)
            d->top = SAMEBITS_MAX(d->top, size);
        else if (d->pass == FORESEE)
            samebits_train_foresee(d, i, code);
        else
            samebits_train_descend(d, i, code);
    }
}

static int plain_again(samebits_update *d) {
    if (d->pass == MEMORY)
        keep_momentum(d), terms_of(d);
    else if (d->pass == LARGEST)
        samebits_train_descent(d, d->top, d->e_v);
    else if (d->pass == FORESEE)
        samebits_train_decide(d);
    return d->o->rate.m && (d->pass == MEMORY || d->top) && d->pass++ < DESCEND;
}

const samebits_rule samebits_train_plain = {is_sure, plain_start, plain_elements, plain_again};
