/* What all optimizers share: how an update starts, W - lr * P, and bounds. */
#include "train_update.h"

#include "philox.h"
#include "real.h"
#include "samebits_train_sequences.h"

void samebits_train_words(uint32_t *counter, uint32_t k0, uint32_t k1) {
    uint32_t a = counter[0], b = counter[1], c = counter[2], d = counter[3];
    philox(&a, &b, &c, &d, k0, k1, 1);
    counter[0] = a, counter[1] = b, counter[2] = c, counter[3] = d;
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

samebits_coefficient samebits_train_scheduled(const samebits_rate *schedule, int32_t count,
                                              uint32_t step) {
    int32_t low = 0, high = count; /* the entry of a step is in [low, high) */
    while (high - low > 1) {
        const int32_t middle = low + (high - low) / 2;
        if (schedule[middle].step <= step)
            low = middle;
        else
            high = middle;
    }
    return schedule[low].rate;
}

int samebits_train_start(samebits_update *d, samebits_parameter *p, const samebits_optimizer *o,
                         int64_t top, int32_t e, int32_t *made) {
    d->rule = o->rule, d->p = p, d->o = o;
    d->shift = shortened(top, &e), top = down64(top, d->shift);
    d->clipped = d->factor = d->pass = 0;
    if (o->clip) o->clip->clip(d, &top, &e);
    d->top_g = top, d->e_g = e;
    *made = 1;
    if (o->mode == SAMEBITS_TRAIN_MEASURE) return SAMEBITS_TRAIN_OK;
    if (!o->rule->sure(p, o, e + 31)) return SAMEBITS_TRAIN_RANGE;
    *made = o->mode == SAMEBITS_TRAIN_COMMIT;
    if (*made) {
        draw_start(&d->draw, p, o);
        d->rule->start(d);
    }
    return SAMEBITS_TRAIN_OK;
}

int samebits_train_vector_step(samebits_parameter *p, const samebits_optimizer *o,
                               const int32_t *g, int32_t e_g) {
    int32_t top = 0, i, made, status;
    samebits_update d;
    for (i = 0; i < p->n; i++) {
        const int32_t size = magnitude32(g[i]);
        top = SAMEBITS_MAX(top, size);
    }
    status = samebits_train_start(&d, p, o, top, e_g, &made);
    if (status || !made) return status;
    do
        for (i = 0; i < p->n; i++) {
            const int32_t own = gradient_of(&d, g[i]);
            d.rule->elements(&d, i, &own, 1);
        }
    while (d.rule->again(&d));
    return SAMEBITS_TRAIN_OK;
}

/* --- W - lr * P ------------------------------------------------------------------------------- */

int samebits_train_holds(const samebits_parameter *p, const samebits_optimizer *o, int32_t top) {
    const int32_t weight = p->s->e_w + 8, step = top + 3 + 16 + o->rate.x;
    if (top - 7 > EXPONENT_MAX) return 0;
    /* No |J - u| takes W above its range: it is at most twice the larger of both. */
    return (o->rate.m ? SAMEBITS_MAX(weight, step) : weight) - 6 <= EXPONENT_MAX;
}

int32_t samebits_train_move(int64_t largest, int64_t most, int32_t e_w) {
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

void samebits_train_descent(samebits_update *d, int32_t top, int32_t e_p) {
    Descent *s = &d->down;
    s->shift = d->p->s->e_w - 15 - (e_p - 63 + d->o->rate.x);
    s->above = 26 + (top >> 9) - s->shift - 46;
    s->above = SAMEBITS_MAX(s->above, 0);
    s->shift += s->above;
    s->largest = s->most = 0, s->by = 0;
    draw_start(&d->draw, d->p, d->o);
}

/* An element after it: W - r, and what is left of A; their J. */
typedef struct {
    int64_t w, a;
} Stepped;

static Stepped stepped(samebits_update *d, int32_t i, int32_t code) {
    const uint32_t bits = draw_bits(&d->draw, (uint32_t)i);
    const int64_t u = step_of(d->o->rate.m, code, d->down.shift, bits);
    int64_t w = d->p->w[i], a = d->p->a[i], r;
    if (d->down.above) {
        const int64_t j = down64(w * 32768 - a, d->down.above);
        w = down64(j, 15), a = w * 32768 - j;
    }
    r = samebits_round64(a + u, 15);
    return (Stepped){w - r, a + u - r * 32768};
}

static int64_t joint_of(Stepped s) { return s.w * 32768 - s.a; }

void samebits_train_foresee(samebits_update *d, int32_t i, int32_t code) {
    const Stepped s = stepped(d, i, code);
    const int64_t size = samebits_magnitude64(s.w), most = samebits_magnitude64(joint_of(s));
    d->down.largest = SAMEBITS_MAX(d->down.largest, size);
    d->down.most = SAMEBITS_MAX(d->down.most, most);
}

void samebits_train_decide(samebits_update *d) {
    int32_t *e_w = &d->p->s->e_w;
    d->down.by = samebits_train_move(d->down.largest, d->down.most, *e_w + d->down.above);
    *e_w += d->down.above + d->down.by;
    draw_start(&d->draw, d->p, d->o);
}

void samebits_train_descend(samebits_update *d, int32_t i, int32_t code) {
    const Stepped s = stepped(d, i, code);
    if (d->down.by) {
        split(d->p, i, down64(joint_of(s), d->down.by));
    } else { /* not `split`: ties of W - r are its own */
        d->p->w[i] = (int8_t)s.w;
        d->p->a[i] = (int16_t)s.a;
    }
}

/* --- bounds ----------------------------------------------------------------------------------- */

/* The smallest k with v <= 2**k; v >= 1. */
static int32_t above(int64_t v) { return length_of(v - 1); }

/* A gradient of magnitudes up to 2**reach has an exponent of at most reach - 14: its codes have 16
 * bits at least, or an exponent that is smaller by more. */
static void bound_update(samebits_bounds *b, const samebits_parameter *p,
                         const samebits_optimizer *o, int32_t reach) {
    if (p && !o->rule->sure(p, o, reach - 14 + 31)) b->sure = 0;
}

static void bound_reach(samebits_bounds *b, int32_t by) {
    b->reach += by;
    if (b->reach > EXPONENT_MAX + 13) b->sure = 0;
    b->reach = SAMEBITS_MIN(b->reach, 4 * EXPONENT_MAX);
}

static int32_t positions(const samebits_conv *s) { return above((int64_t)s->n * s->oh * s->ow); }

void samebits_train_bound_weight(samebits_bounds *b, const samebits_conv *s, int32_t e_x,
                                 const samebits_parameter *w, const samebits_optimizer *o) {
    bound_update(b, w, o, b->reach + positions(s) + e_x + 7);
}

void samebits_train_bound_bias(samebits_bounds *b, const samebits_conv *s,
                               const samebits_parameter *bias, const samebits_optimizer *o) {
    bound_update(b, bias, o, b->reach + positions(s));
}

void samebits_train_bound_input(samebits_bounds *b, const samebits_conv *s,
                                const samebits_parameter *w) {
    bound_reach(b, w->s->e_w + 7 + above((int64_t)s->kh * s->kw * outputs_of(s)));
}

/* |dz| <= |a| * |g| * (2 + sqrt(n)): the mean of g, and that of g * xhat times xhat <= sqrt(n). */
void samebits_train_bound_norm(samebits_bounds *b, const samebits_norm *s,
                               const samebits_parameter *gamma, const samebits_parameter *beta,
                               const samebits_channel *saved, const samebits_optimizer *o) {
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

void samebits_train_bound_sum(samebits_bounds *b, int32_t *held) {
    const int32_t own = b->reach;
    b->reach = SAMEBITS_MAX(own, *held);
    bound_reach(b, 1);
    *held = b->reach;
    b->reach = own;
}

void samebits_train_bound_dropout(samebits_bounds *b, const samebits_dropout *s) {
    bound_reach(b, s->scale.x + 16);
}

/* The largest sum of magnitudes of a column of the weight of h. */
static double column_sum(const samebits_parameter *w, int32_t rows, int32_t columns) {
    int32_t most = 0, k, o;
    for (k = 0; k < columns; k++) {
        int32_t own = 0;
        for (o = 0; o < rows; o++) own += magnitude32(w->w[o * columns + k]);
        most = SAMEBITS_MAX(most, own);
    }
    return times_power((double)most, w->s->e_w);
}

/* What r of a GRU lets in, at most: |h| is below 2. */
static double let_in(const samebits_cells *s) {
    const samebits_parameter *w = s->w_hh, *b = s->b_hh;
    double most = 0;
    int32_t k, o;
    for (o = 2 * s->units; o < 3 * s->units; o++) {
        double own;
        int32_t sum = 0;
        for (k = 0; k < s->units; k++) sum += magnitude32(w->w[o * s->units + k]);
        own = times_power(2.0 * sum, w->s->e_w);
        if (b) own += times_power(magnitude32(joint_at(b, o)), b->s->e_w - 15);
        most = own > most ? own : most;
    }
    return most;
}

/* Step by step, from the last one. Magnitudes of gates are below 1, those of c below the number of
 * steps; ds of an LSTM gathers what came so far. A factor of 1.01 is for all that is rounded. */
void samebits_train_bound_cells(samebits_bounds *b, const samebits_cells *s) {
    const double back = column_sum(s->w_hh, s->w_hh->n / s->units, s->units);
    const double g = times_power(1, b->reach);
    const double limit = times_power(1, 4 * EXPONENT_MAX);
    double factor = s->kind == SAMEBITS_TRAIN_LSTM ? (double)s->steps : 1, ds = 0, d = 0;
    int32_t t;
    if (s->kind == SAMEBITS_TRAIN_GRU) factor = 1 + let_in(s);
    for (t = 0; t < s->steps; t++) {
        ds = (g + back * d + (s->kind < SAMEBITS_TRAIN_TANH ? ds : 0)) * 1.01;
        d = ds * factor;
        if (!(d < limit)) {
            d = limit;
            break;
        }
    }
    b->reach = 0;
    bound_reach(b, (int32_t)fits_of(d > ds ? d : ds, 0));
}

/* |h| <= |g| * |gamma|; |d * h - sum h - sum(h * xhat) * xhat| <= d * |h| * (2 + xhat**2). */
void samebits_train_bound_vectors(samebits_bounds *b, const samebits_vectors *s,
                                  const samebits_parameter *gamma, const samebits_parameter *beta,
                                  const samebits_parameter *scale, int32_t e_xhat, int32_t e_m,
                                  const samebits_optimizer *o) {
    const int32_t rows = above(s->rows), x = e_xhat + 7;
    int32_t most = 1, k;
    bound_update(b, gamma, o, b->reach + rows + x);
    bound_update(b, beta, o, b->reach + rows);
    for (k = 0; scale && k < scale->n; k++) {
        const int32_t size = magnitude32(joint_at(scale, k));
        most = SAMEBITS_MAX(most, size);
    }
    if (scale) bound_reach(b, above(most) + scale->s->e_w - 15);
    bound_reach(b, above(s->d) + SAMEBITS_MAX(2, 2 * x) + 1);
    bound_reach(b, 24 + e_m);
}

void samebits_train_bound_matrices(samebits_bounds *b, const samebits_matrices *s, int32_t of_a,
                                   int32_t of_b) {
    const int32_t by_b = of_b + above(s->columns), by_a = of_a + above(s->rows);
    bound_reach(b, SAMEBITS_MAX(by_a, by_b));
}

/* Shares are at most 1, their codes at most 127. */
void samebits_train_bound_softmax(samebits_bounds *b, int32_t c) {
    bound_reach(b, above(c) + 8);
    bound_reach(b, -6);
}

void samebits_train_bound_times(samebits_bounds *b, int32_t by) { bound_reach(b, by); }
