/* The cells of recurrent layers: what each computes in a step, forward and backward
 * (docs/spec/training.md, 5 and 7). */
#ifndef SAMEBITS_CELL_H
#define SAMEBITS_CELL_H

#include "step.h"

/* gates: their number; bits: of the state
 * open: the values of all gates, from the products of a step
 * next: the sums of the state after it; NULL: those of its gate
 * back: D of a step at the product of x, as `wide`; kept: what the step after it adds to the
 * gradient of the state of an LSTM
 * at_h: makes of it that at the product of h; NULL: it is the same */
typedef struct {
    int64_t gates;
    int bits;
    int (*open)(Step *);
    void (*next)(Step *);
    int (*back)(Step *, Term kept);
    void (*at_h)(Step *);
} Cell;

enum Kind { LSTM, GRU, TANH, RELU };

/* --- states that are kept in part ------------------------------------------------------------ */

/* f * c + i * g, or z * s + (1 - z) * n, each shifted: gates 1, 0 and 2. */
SAMEBITS_INLINE int64_t mix(const Step *s, int64_t first, int64_t count, int is_gru) {
    const int16_t *restrict part = s->gates + first, *restrict gate = part + s->l->cells;
    const int16_t *restrict v = gate + s->l->cells;
    const int16_t *restrict before = s->before ? (const int16_t *)s->before + first : NULL;
    int64_t *restrict out = s->sums + first, top = 0;
    Shift kept = s->shift[0], new = s->shift[1];
    for (int64_t i = 0; i < count; i++) {
        int64_t a = scale64((is_gru ? ONE - gate[i] : part[i]) * v[i], new);
        if (before) a += scale64((int64_t)gate[i] * before[i], kept);
        out[i] = a;
        a = samebits_magnitude64(a);
        top = SAMEBITS_MAX(top, a);
    }
    return top;
}

static int64_t lstm_mix(const Step *s, int64_t first, int64_t count) {
    return mix(s, first, count, 0);
}

static int64_t gru_mix(const Step *s, int64_t first, int64_t count) {
    return mix(s, first, count, 1);
}

static void mixed(Step *s, Pass *pass) {
    int64_t e_kept = s->e_before + GATE_EXPONENT, e_new = 2 * GATE_EXPONENT;
    s->e_sums = SAMEBITS_MAX(e_kept, e_new) + 30 - SUM_BITS;
    s->is_each = 0;
    s->shift[0] = shift_by(e_kept - s->e_sums);
    s->shift[1] = shift_by(e_new - s->e_sums);
    s->top = over_units(s, pass);
}

/* What of the gradient of the state goes through time: ds * f, or ds * z, as int32. */
static int64_t keep(const Step *s, int64_t first, int64_t count) {
    const int16_t *restrict gate = s->gates + s->l->cells + first, *restrict ds = s->ds + first;
    int32_t *restrict out = (int32_t *)s->out + first;
    for (int64_t i = 0; i < count; i++) out[i] = (int32_t)ds[i] * gate[i];
    return 0;
}

/* --- LSTM: gates i, f, g, o ------------------------------------------------------------------ */

static int open_all(Step *s) {
    open_gates(s, 0, s->l->width / s->l->units, BOTH, s->e_h);
    return FINE;
}

static void lstm_next(Step *s) { mixed(s, lstm_mix); }

/* The hidden state after a step, to `out`. */
static int64_t lstm_hidden(const Step *s, int64_t first, int64_t count) {
    const int16_t *restrict c = (const int16_t *)s->after + first, *tanh = entries(s->l, 1);
    const int16_t *restrict o = s->gates + 3 * s->l->cells + first;
    int8_t *restrict out = (int8_t *)s->out + first;
    Shift by = saturating(s->e_after - ARGUMENT_EXPONENT);
    Shift down = shift_by(2 * GATE_EXPONENT - HIDDEN_EXPONENT);
    for (int64_t i = 0; i < count; i++) {
        int64_t u = tanh[saturate(c[i], by, Q_GATE)];
        out[i] = (int8_t)clamp(scale64(o[i] * u, down), 127);
    }
    return 0;
}

/* The tanh of the state, and what goes through h in its gradient: dh * o * (1 - u * u). */
static int64_t through_hidden(const Step *s, int64_t first, int64_t count) {
    const int16_t *restrict c = (const int16_t *)s->after + first, *tanh = entries(s->l, 1);
    const int16_t *restrict o = s->gates + 3 * s->l->cells + first, *restrict dh = s->d + first;
    int16_t *restrict u = s->m + first;
    int64_t *restrict out = s->wide + first;
    Shift by = saturating(s->e_after - ARGUMENT_EXPONENT);
    for (int64_t i = 0; i < count; i++) u[i] = tanh[saturate(c[i], by, Q_GATE)];
    for (int64_t i = 0; i < count; i++)
        out[i] = (int64_t)dh[i] * o[i] * (ONE_SQUARED - (int64_t)u[i] * u[i]);
    return 0;
}

static int64_t lstm_gates(const Step *s, int64_t first, int64_t rows) {
    int64_t n = s->l->units, all = s->l->cells, top = 0;
    Shift si = s->shift[0], sf = s->shift[1], so = s->shift[2];
    for (int64_t r = first; r < first + rows; r++) {
        const int16_t *restrict dc = s->ds + r * n, *restrict dh = s->d + r * n;
        const int16_t *restrict u = s->m + r * n, *restrict gates = s->gates + r * n;
        const int16_t *restrict before = s->before ? (const int16_t *)s->before + r * n : NULL;
        int64_t *restrict out = s->wide + r * s->l->width;
        for (int64_t k = 0; k < n; k++) {
            int64_t i = gates[k], f = gates[all + k], g = gates[2 * all + k];
            int64_t o = gates[3 * all + k];
            int64_t past = before ? before[k] : 0;
            int64_t di = scale64(dc[k] * g * (i * (ONE - i)), si);
            int64_t df = scale64(dc[k] * past * (f * (ONE - f)), sf);
            int64_t dg = scale64(dc[k] * i * (ONE_SQUARED - g * g), si);
            int64_t d_o = scale64((int64_t)dh[k] * u[k] * (o * (ONE - o)), so);
            out[k] = di;
            out[n + k] = df;
            out[2 * n + k] = dg;
            out[3 * n + k] = d_o;
            di = SAMEBITS_MAX(samebits_magnitude64(di), samebits_magnitude64(df));
            dg = SAMEBITS_MAX(samebits_magnitude64(dg), samebits_magnitude64(d_o));
            di = SAMEBITS_MAX(di, dg);
            top = SAMEBITS_MAX(top, di);
        }
    }
    return top;
}

/* Of `ds`, the gradient of h, first that of c; then those of the gates. */
static int lstm_back(Step *s, Term kept) {
    int16_t *dh = s->ds;
    s->ds = s->d;
    s->d = dh;
    s->e_d = s->e_ds;
    over_units(s, through_hidden);
    Term terms[2] = {{s->wide, 64, s->e_d + 3 * GATE_EXPONENT, 60}, kept};
    combine(s, terms, 2);
    int failed = rounded(s, 16, s->ds, &s->e_ds);
    if (failed) return failed;
    int64_t e_i = s->e_ds + 3 * GATE_EXPONENT, e_o = s->e_d + 3 * GATE_EXPONENT;
    int64_t e_f = s->e_ds + s->e_before + 2 * GATE_EXPONENT;
    s->e_wide = SAMEBITS_MAX(e_i, SAMEBITS_MAX(e_f, e_o));
    s->shift[0] = shift_by(e_i - s->e_wide);
    s->shift[1] = shift_by(e_f - s->e_wide);
    s->shift[2] = shift_by(e_o - s->e_wide);
    s->top = over_rows(s, lstm_gates);
    return FINE;
}

/* --- GRU: gates r, z, n ---------------------------------------------------------------------- */

/* r * m in the place of the products of h. */
static int64_t let_in(const Step *s, int64_t first, int64_t count) {
    const int16_t *restrict r = s->gates + first, *restrict m = s->m + first;
    int32_t *restrict out = s->products + first;
    for (int64_t i = 0; i < count; i++) out[i] = (int32_t)r[i] * m[i];
    return 0;
}

static int gru_open(Step *s) {
    open_gates(s, 0, 2, BOTH, s->e_h);
    sum_gate(s, 2, OF_H, s->e_h);
    int failed = rounded(s, 16, s->m, &s->e_m);
    if (failed) return failed;
    over_units(s, let_in);
    s->e_w = NULL;
    open_gates(s, 2, 1, OF_X, s->e_m + GATE_EXPONENT);
    return FINE;
}

static void gru_next(Step *s) { mixed(s, gru_mix); }

/* ds * (1 - z) * (1 - n * n). */
static int64_t through_n(const Step *s, int64_t first, int64_t count) {
    const int16_t *restrict gate_z = s->gates + s->l->cells + first;
    const int16_t *restrict gate_n = gate_z + s->l->cells, *restrict ds = s->ds + first;
    int64_t *restrict out = s->sums + first, top = 0;
    for (int64_t i = 0; i < count; i++) {
        int64_t z = gate_z[i], n = gate_n[i], a = ds[i] * (ONE - z) * (ONE_SQUARED - n * n);
        out[i] = a;
        a = samebits_magnitude64(a);
        top = SAMEBITS_MAX(top, a);
    }
    return top;
}

static int64_t gru_gates(const Step *s, int64_t first, int64_t rows) {
    int64_t u = s->l->units, all = s->l->cells;
    Shift sr = s->shift[0], kept = s->shift[1], lost = s->shift[2], sn = s->shift[3];
    for (int64_t row = first; row < first + rows; row++) {
        const int16_t *restrict ds = s->ds + row * u, *restrict dn = s->d + row * u;
        const int16_t *restrict m = s->m + row * u, *restrict gates = s->gates + row * u;
        const int16_t *restrict before = s->before ? (const int16_t *)s->before + row * u : NULL;
        int64_t *restrict out = s->wide + row * s->l->width;
        for (int64_t k = 0; k < u; k++) {
            int64_t r = gates[k], z = gates[all + k], n = gates[2 * all + k];
            int64_t past = before ? before[k] : 0, dz = ds[k] * (z * (ONE - z));
            out[k] = scale64((int64_t)dn[k] * m[k] * (r * (ONE - r)), sr);
            out[u + k] = scale64(dz * past, kept) + scale64(-dz * n, lost);
            out[2 * u + k] = scale64(dn[k], sn);
        }
    }
    return samebits_max_i64(s->wide + first * s->l->width, rows * s->l->width, 1);
}

static int gru_back(Step *s, Term kept) {
    (void)kept; /* is in ds */
    s->e_sums = s->e_ds + 3 * GATE_EXPONENT;
    s->is_each = 0;
    s->top = over_units(s, through_n);
    int failed = rounded(s, 16, s->d, &s->e_d);
    if (failed) return failed;
    int64_t e_r = s->e_d + s->e_m + 2 * GATE_EXPONENT, e_lost = s->e_ds + 3 * GATE_EXPONENT;
    int64_t e_kept = s->e_ds + s->e_before + 2 * GATE_EXPONENT;
    int64_t top = SAMEBITS_MAX(e_r, SAMEBITS_MAX(e_kept, e_lost)) + 58;
    s->e_wide = SAMEBITS_MAX(top, s->e_d + 15) - SUM_BITS;
    s->shift[0] = shift_by(e_r - s->e_wide);
    s->shift[1] = shift_by(e_kept - s->e_wide);
    s->shift[2] = shift_by(e_lost - s->e_wide);
    s->shift[3] = shift_by(s->e_d - s->e_wide);
    s->top = over_rows(s, gru_gates);
    return FINE;
}

/* dn * r in the place of dn. */
static int64_t through_r(const Step *s, int64_t first, int64_t rows) {
    int64_t u = s->l->units;
    for (int64_t r = first; r < first + rows; r++) {
        const int16_t *restrict gate = s->gates + r * u, *restrict dn = s->d + r * u;
        int64_t *restrict out = s->wide + r * s->l->width + 2 * u;
        for (int64_t k = 0; k < u; k++) out[k] = scale64((int64_t)dn[k] * gate[k], s->shift[3]);
    }
    return samebits_max_i64(s->wide + first * s->l->width, rows * s->l->width, 1);
}

static void gru_at_h(Step *s) {
    s->shift[3] = shift_by(s->e_d + GATE_EXPONENT - s->e_wide);
    s->top = over_rows(s, through_r);
}

/* --- RNN: tanh or relu of one sum ------------------------------------------------------------ */

static void tanh_next(Step *s) {
    Term u = {s->gates, 16, GATE_EXPONENT, 15};
    combine(s, &u, 1);
}

static int64_t tanh_slope(const Step *s, int64_t first, int64_t count) {
    int64_t top = 0;
    for (int64_t i = first; i < first + count; i++) {
        int64_t a = s->ds[i] * (ONE_SQUARED - (int64_t)s->gates[i] * s->gates[i]);
        s->wide[i] = a;
        a = samebits_magnitude64(a);
        top = SAMEBITS_MAX(top, a);
    }
    return top;
}

static int tanh_back(Step *s, Term kept) {
    (void)kept;
    s->e_wide = s->e_ds + 2 * GATE_EXPONENT;
    s->top = over_units(s, tanh_slope);
    return FINE;
}

/* Sums that are not negative, and as gates which are not zero. */
static int64_t relu_rows(const Step *s, int64_t first, int64_t count) {
    int64_t top = 0;
    for (int64_t i = first; i < first + count; i++) {
        int64_t a = SAMEBITS_MAX(s->sums[i], 0);
        s->sums[i] = a;
        s->gates[i] = a > 0;
        top = SAMEBITS_MAX(top, a);
    }
    return top;
}

static int relu_open(Step *s) {
    sum_gate(s, 0, BOTH, s->e_h);
    s->top = over_units(s, relu_rows);
    return FINE;
}

static int64_t relu_slope(const Step *s, int64_t first, int64_t count) {
    for (int64_t i = first; i < first + count; i++)
        s->wide[i] = (int64_t)s->ds[i] * s->gates[i];
    return samebits_max_i64(s->wide + first, count, 1);
}

static int relu_back(Step *s, Term kept) {
    (void)kept;
    s->e_wide = s->e_ds;
    s->top = over_units(s, relu_slope);
    return FINE;
}

static const Cell CELLS[] = {
    [LSTM] = {4, 16, open_all, lstm_next, lstm_back, NULL},
    [GRU] = {3, 16, gru_open, gru_next, gru_back, gru_at_h},
    [TANH] = {1, 8, open_all, tanh_next, tanh_back, NULL},
    [RELU] = {1, 8, relu_open, NULL, relu_back, NULL},
};

#endif
