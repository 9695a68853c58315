/* SGD: what is decided before and after the elements of a parameter (2.1, 4). */
#include "train_sgd.h"

#include "philox.h"
#include "real.h"

void samebits_train_words(uint32_t *counter, uint32_t k0, uint32_t k1) {
    philox(counter, counter + 1, counter + 2, counter + 3, k0, k1, 1);
}

int samebits_train_rate(double rate, samebits_coefficient *out) {
    out->m = out->x = 0;
    if (rate == 0) return SAMEBITS_TRAIN_OK;
    if (!is_finite(rate) || rate < 0) return SAMEBITS_TRAIN_RATE;
    {
        const Scaled s = scaled_of(rate);
        out->m = (int32_t)samebits_round64(s.mantissa, 37);
        out->x = (int32_t)s.exponent + 37;
        if (out->m == 65536) out->m = 32768, out->x++;
    }
    return SAMEBITS_TRAIN_OK;
}

/* Whether no |J - u| can take W above its range of exponents: twice the larger of both. `top_d`:
 * e_D + 50, so that |P| < 2**(top_d + 3). */
static int holds(const samebits_parameter *p, const samebits_sgd *o, int32_t top_d) {
    const int32_t weight = p->s->e_w + 8, step = top_d + 3 + 16 + o->rate.x;
    return (o->rate.m ? SAMEBITS_MAX(weight, step) : weight) - 6 <= EXPONENT_MAX;
}

/* The exponent of D and 50: of terms that exist (3, 4). */
static int32_t top_of(const samebits_parameter *p, const samebits_sgd *o, int32_t e_g) {
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

/* Whether an update can be made whose gradient has an exponent of at most e_g. */
static int is_sure(const samebits_parameter *p, const samebits_sgd *o, int32_t e_g) {
    const int32_t top = top_of(p, o, e_g);
    return top - 7 <= EXPONENT_MAX && holds(p, o, top);
}

int samebits_train_sgd_start(Sgd *d, samebits_parameter *p, const samebits_sgd *o, int64_t top_g,
                             int32_t e_g) {
    const samebits_scale *s = p->s;
    const int32_t e_a = s->e_w - 15, top = top_of(p, o, e_g);
    int64_t most;
    int32_t field;
    d->p = p, d->o = o, d->old = s->top_v > 0 && o->momentum.m;
    d->e_d = top - 50;
    d->e_v = SAMEBITS_MAX(d->e_d + 43, EXPONENT_MIN);
    d->by_g = d->e_d - e_g;
    d->by_j = d->e_d - (e_a + o->decay.x);
    d->by_v = d->e_d - (s->e_v - 63 + o->momentum.x);
    d->shift_u = e_a - (d->e_v - 63 + o->rate.x);
    d->top = 0, d->largest = 0, d->most = 0;
    draw_start(&d->draw, p, o);
    /* A bound on |D|, hence on F and on |u|, which one pass needs below 2**29. */
    most = down64(top_g, d->by_g) + 3;
    if (o->decay.m) most += (int64_t)1 << 49;
    if (d->old) most += down64((int64_t)o->momentum.m * 1024, d->by_v - (s->top_v >> 9));
    field = length_of(most) + 1 - 10 + d->e_d - d->e_v + 63;
    d->one_pass = o->rate.m && 26 + field - d->shift_u < 29;
    return is_sure(p, o, e_g) ? SAMEBITS_TRAIN_OK : SAMEBITS_TRAIN_RANGE;
}

static void split(samebits_parameter *p, int32_t i, int64_t j) {
    const int64_t w = down64(j, 15);
    p->w[i] = (int8_t)w;
    p->a[i] = (int16_t)(w * 32768 - j);
}

/* By how much e_W moves (steps 4 and 5), from max|W - r| and max|J - u|. */
static int32_t move_of(int64_t largest, int64_t most, int32_t e_w) {
    int32_t by = 0;
    if (largest > Q8) {
        do by++;
        while (down64(down64(most, by), 15) > Q8);
        return by;
    }
    while (most && largest <= Q8 / 2 && e_w + by > EXPONENT_MIN)
        by--, largest = down64(down64(most, by), 15);
    return by;
}

/* max|W - r| and max|J - u| of elements that are not written yet. */
static void foresee(Sgd *d, int32_t shift, int64_t *largest, int64_t *most) {
    samebits_parameter *p = d->p;
    int32_t i;
    for (i = 0; i < p->n; i++) {
        const int64_t u = step_of(d->o->rate.m, p->v[i], shift, draw_bits(&d->draw, (uint32_t)i));
        const int64_t w = samebits_magnitude64(p->w[i] - samebits_round64(p->a[i] + u, 15));
        const int64_t j = samebits_magnitude64(joint_at(p, i) - u);
        *largest = SAMEBITS_MAX(*largest, w);
        *most = SAMEBITS_MAX(*most, j);
    }
    draw_start(&d->draw, p, d->o);
}

void samebits_train_sgd_end(Sgd *d) {
    samebits_parameter *p = d->p;
    samebits_scale *s = p->s;
    int64_t most = d->most, largest = d->largest;
    int32_t i, by, above, shift = d->shift_u;
    s->e_v = d->top ? d->e_v : EXPONENT_MIN;
    s->top_v = d->top;
    if (!d->o->rate.m || !d->top) return;
    draw_start(&d->draw, p, d->o);
    if (!d->one_pass) {
        above = 26 + (d->top >> 9) - shift - 46;
        if (above > 0) {
            for (i = 0; i < p->n; i++) split(p, i, down64(joint_at(p, i), above));
            s->e_w += above, shift += above;
        }
        foresee(d, shift, &largest, &most);
    }
    by = move_of(largest, most, s->e_w);
    s->e_w += by;
    if (d->one_pass && by < 0) {
        for (i = 0; i < p->n; i++) split(p, i, (int64_t)joint_at(p, i) * ((int64_t)1 << -by));
    } else if (!d->one_pass || by) {
        for (i = 0; i < p->n; i++) {
            const uint32_t bits = draw_bits(&d->draw, (uint32_t)i);
            const int64_t u = step_of(d->o->rate.m, p->v[i], shift, bits);
            int32_t j = joint_at(p, i);
            if (d->one_pass) /* what was there: 23 bits of J + u */
                j = samebits_signed32((uint32_t)(j + (int32_t)u) << 9) / 512;
            if (by)
                split(p, i, down64(j - u, by));
            else
                (void)carry(p, i, (int32_t)u, &j); /* not `split`: ties of W - r are its own */
        }
    }
}

int samebits_train_vector_step(samebits_parameter *p, const samebits_sgd *o, const int32_t *g,
                               int32_t e_g) {
    int32_t top = 0, i, status;
    Sgd d;
    for (i = 0; i < p->n; i++) {
        const int32_t size = magnitude32(g[i]);
        top = SAMEBITS_MAX(top, size);
    }
    status = samebits_train_sgd_start(&d, p, o, top, e_g);
    if (status || o->mode != SAMEBITS_TRAIN_COMMIT) return status;
    for (i = 0; i < p->n; i++) sgd_element(&d, i, g[i]);
    samebits_train_sgd_end(&d);
    return SAMEBITS_TRAIN_OK;
}

/* --- bounds ----------------------------------------------------------------------------------- */

/* The smallest k with v <= 2**k; v >= 1. */
static int32_t above(int64_t v) { return length_of(v - 1); }

/* A gradient of magnitudes up to 2**reach has an exponent of at most reach - 14: its codes have 16
 * bits at least, or an exponent that is smaller by more. */
static void bound_update(samebits_bounds *b, const samebits_parameter *p, const samebits_sgd *o,
                         int32_t reach) {
    if (p && !is_sure(p, o, reach - 14)) b->sure = 0;
}

static void bound_reach(samebits_bounds *b, int32_t by) {
    b->reach += by;
    if (b->reach > EXPONENT_MAX + 13) b->sure = 0;
    b->reach = SAMEBITS_MIN(b->reach, 4 * EXPONENT_MAX);
}

void samebits_train_bound_products(samebits_bounds *b, const samebits_conv *s, int32_t e_x,
                                   const samebits_parameter *w, const samebits_parameter *bias,
                                   const samebits_sgd *o) {
    const int32_t positions = above((int64_t)s->n * s->oh * s->ow);
    bound_update(b, w, o, b->reach + positions + e_x + 7);
    bound_update(b, bias, o, b->reach + positions);
    bound_reach(b, w->s->e_w + 7 + above((int64_t)s->kh * s->kw * s->o));
}

/* |dz| <= |a| * |g| * (2 + sqrt(n)): the mean of g, and that of g * xhat times xhat <= sqrt(n). */
void samebits_train_bound_norm(samebits_bounds *b, const samebits_norm *s,
                               const samebits_parameter *gamma, const samebits_parameter *beta,
                               const samebits_channel *saved, const samebits_sgd *o) {
    const int32_t rows = above(s->rows);
    double most = 0;
    int32_t k;
    for (k = 0; k < s->c; k++) {
        const double size = magnitude_of_real(saved[k].a);
        most = size > most ? size : most;
    }
    bound_update(b, gamma, o, b->reach + rows + 1);
    bound_update(b, beta, o, b->reach + rows);
    bound_reach(b, (int32_t)fits_of(most, 0) + (rows + 1) / 2 + 3);
}

void samebits_train_bound_dropout(samebits_bounds *b, const samebits_dropout *s) {
    bound_reach(b, s->scale.x + 16);
}
