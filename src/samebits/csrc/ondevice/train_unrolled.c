/* Layers of recurrent cells, backward through time (7). */
#include "samebits_bytes.h"
#include "train_cells.h"

/* --- gradients that arrive -------------------------------------------------------------------- */

/* Sums of what arrives at the rows of h or at the state: the gradient of the output, products with
 * the weight of h, and what the state behind keeps, both of which the last step has not. */
static int arriving(Steps *v, const samebits_gradient *g, int is_last, int with_kept, int16_t *out,
                    int32_t *e_out) {
    const samebits_cells *s = v->s;
    int32_t e = g->e + 31, n, k, i = 0;
    if (!is_last) e = SAMEBITS_MAX(e, v->e_back + 38);
    if (!is_last && with_kept) e = SAMEBITS_MAX(e, v->e_kept + 30);
    e -= SUM_BITS;
    for (n = 0; n < s->n; n++)
        for (k = 0; k < s->units; k++, i++) {
            const int32_t at = (n * s->steps + v->t) * s->units + k;
            int64_t sum = down64(gradient_at(g, at), e - g->e);
            if (!is_last) sum += down64(v->back[i], e - v->e_back);
            if (!is_last && with_kept) sum += down64(v->kept[i], e - v->e_kept);
            v->sums[i] = sum;
        }
    return samebits_train_round_sums(v, e, out, e_out);
}

/* --- D ---------------------------------------------------------------------------------------- */

/* Shifts to the exponent e of D of a step: from products of each gate, of z from two, `lost`. */
typedef struct {
    int32_t e, gate[4], lost;
} Shifts;

static int32_t most_of(const int32_t *e, int32_t count) {
    int32_t top = e[0], i;
    for (i = 1; i < count; i++) top = SAMEBITS_MAX(top, e[i]);
    return top;
}

/* The gradient of c, from that of h. */
static int back_lstm(Steps *v, const int16_t *after, int32_t e_after, int is_last, Shifts *by) {
    const int32_t through = v->e_d + 3 * GATE_EXPONENT;
    const int16_t *o = v->gates + 3 * v->cells;
    int32_t e = through + 60, own[3], i, status;
    if (!is_last) e = SAMEBITS_MAX(e, v->e_kept + 30);
    e -= SUM_BITS;
    for (i = 0; i < v->cells; i++) {
        const int64_t u = samebits_train_looked_up(v->s->curves + 1, 1, after[i], e_after);
        v->m[i] = (int16_t)u;
        v->sums[i] = down64((int64_t)v->d[i] * o[i] * (ONE_SQUARED - u * u), e - through);
        if (!is_last) v->sums[i] += down64(v->kept[i], e - v->e_kept);
    }
    status = samebits_train_round_sums(v, e, v->ds, &v->e_ds);
    own[0] = v->e_ds + 3 * GATE_EXPONENT;
    own[1] = v->e_ds + v->e_before + 2 * GATE_EXPONENT, own[2] = through;
    by->e = most_of(own, 3);
    by->gate[0] = by->gate[2] = by->e - own[0];
    by->gate[1] = by->e - own[1], by->gate[3] = by->e - own[2];
    return status;
}

static int back_gru(Steps *v, Shifts *by) {
    const int16_t *z = v->gates + v->cells, *own_n = z + v->cells;
    int32_t e[4], i, status;
    for (i = 0; i < v->cells; i++) {
        const int64_t n = own_n[i];
        v->sums[i] = v->ds[i] * (ONE - z[i]) * (ONE_SQUARED - n * n);
    }
    status = samebits_train_round_sums(v, v->e_ds + 3 * GATE_EXPONENT, v->d, &v->e_d);
    e[0] = v->e_d + v->e_m + 2 * GATE_EXPONENT + 58;
    e[1] = v->e_ds + v->e_before + 2 * GATE_EXPONENT + 58;
    e[2] = v->e_ds + 3 * GATE_EXPONENT + 58;
    e[3] = v->e_d + 15;
    by->e = most_of(e, 4) - SUM_BITS;
    by->gate[0] = by->e - (e[0] - 58), by->gate[1] = by->e - (e[1] - 58);
    by->lost = by->e - (e[2] - 58), by->gate[2] = by->e - (e[3] - 15);
    return status;
}

/* D of a gate of cell i; at_h: as it meets the weight of h, which is another for n of a GRU. */
SAMEBITS_INLINE int64_t d_of(const Steps *v, const Shifts *by, int32_t gate, int at_h, int32_t i) {
    const int16_t *gates = v->gates + i;
    const int32_t cells = v->cells;
    const int64_t ds = v->ds[i], past = v->before ? v->before[i] : 0, a = gates[0];
    int64_t b, c;
    if (v->s->kind == SAMEBITS_TRAIN_TANH) return ds * (ONE_SQUARED - a * a);
    if (v->s->kind == SAMEBITS_TRAIN_RECTIFIED) return ds * a;
    b = gates[cells], c = gates[2 * cells];
    if (v->s->kind == SAMEBITS_TRAIN_GRU) {
        if (gate == 0) return down64((int64_t)v->d[i] * v->m[i] * (a * (ONE - a)), by->gate[0]);
        if (gate == 1)
            return down64(ds * (b * (ONE - b)) * past, by->gate[1]) +
                   down64(-ds * (b * (ONE - b)) * c, by->lost);
        if (at_h) return down64((int64_t)v->d[i] * a, by->gate[2] - GATE_EXPONENT);
        return down64(v->d[i], by->gate[2]);
    }
    if (gate == 0) return down64(ds * c * (a * (ONE - a)), by->gate[0]);
    if (gate == 1) return down64(ds * past * (b * (ONE - b)), by->gate[1]);
    if (gate == 2) return down64(ds * a * (ONE_SQUARED - c * c), by->gate[2]);
    {
        const int64_t o = gates[3 * cells];
        return down64((int64_t)v->d[i] * v->m[i] * (o * (ONE - o)), by->gate[3]);
    }
}

/* D of the step in 32 bits, as rows of all steps. */
static void put_d(const Steps *v, const Shifts *by, int at_h, int32_t *to, int32_t *e_to) {
    const samebits_cells *s = v->s;
    const int32_t gates = gates_of(s), width = gates * s->units;
    int32_t shift = 0, pass, gate, n, k;
    int64_t top = 0;
    *e_to = by->e;
    for (pass = 0; pass < 2; pass++) {
        for (n = 0; n < s->n; n++)
            for (gate = 0; gate < gates; gate++) {
                int32_t *row = to + (n * s->steps + v->t) * width + gate * s->units;
                for (k = 0; k < s->units; k++) {
                    const int64_t d = d_of(v, by, gate, at_h, n * s->units + k);
                    const int64_t size = samebits_magnitude64(d);
                    if (pass)
                        row[k] = (int32_t)down64(d, shift);
                    else
                        top = SAMEBITS_MAX(top, size);
                }
            }
        if (!pass) shift = shortened(top, e_to);
    }
}

/* --- to the step before ----------------------------------------------------------------------- */

/* The products of D of the step, in 16 bits, with the weight of h. */
static int back_products(Steps *v, const int32_t *d, int32_t e) {
    const samebits_cells *s = v->s;
    const int32_t width = gates_of(s) * s->units;
    int32_t top = 0, shift, n, o, k;
    for (n = 0; n < s->n; n++)
        for (o = 0; o < width; o++) {
            const int32_t size = magnitude32(d[(n * s->steps + v->t) * width + o]);
            top = SAMEBITS_MAX(top, size);
        }
    shift = narrowed(top, 16, &e);
    v->e_back = e + s->w_hh->s->e_w;
    memset(v->back, 0, (size_t)v->cells * sizeof *v->back);
    for (n = 0; n < s->n; n++) {
        int64_t *sum = v->back + n * s->units;
        for (o = 0; o < width; o++) {
            const int32_t own = into32(d[(n * s->steps + v->t) * width + o], shift);
            const int8_t *w = s->w_hh->w + o * s->units;
            for (k = 0; own && k < s->units; k++) sum[k] += (int64_t)own * w[k];
        }
    }
    return in_range(e);
}

/* What of the gradient of the state goes through time. */
static void keep(Steps *v) {
    const int16_t *gate = v->gates + v->cells;
    int32_t i;
    for (i = 0; i < v->cells; i++) v->kept[i] = v->ds[i] * gate[i];
    v->e_kept = v->e_ds + GATE_EXPONENT;
}

/* h before a step, as rows of `past`; of an LSTM from the rows `h` of its output. */
static int step_back(Steps *v, int32_t place, const int8_t *h, const int16_t *states,
                     const int32_t *e_steps, int8_t *past, int32_t *e_past) {
    const samebits_cells *s = v->s;
    const int32_t row = s->steps * s->units, is_lstm = s->kind == SAMEBITS_TRAIN_LSTM;
    const int32_t from = place ? step_at(s, place - 1) : 0, t = step_at(s, place);
    int8_t *to = past + t * s->units;
    int32_t n, status = SAMEBITS_TRAIN_OK;
    e_past[t] = is_lstm ? HIDDEN_EXPONENT : EXPONENT_MIN;
    for (n = 0; n < s->n; n++) {
        if (!place)
            memset(to + n * row, 0, (size_t)s->units);
        else if (is_lstm)
            memcpy(to + n * row, h + n * row + from * s->units, (size_t)s->units);
    }
    if (place && !is_lstm)
        status = samebits_train_hidden(v, states + from * v->cells, e_steps[from], to, e_past + t);
    samebits_train_step_to(v, place, to, e_past[t], states, e_steps);
    return status;
}

int samebits_train_recurrence_gradient(const samebits_cells *s, const int8_t *x, int32_t e_x,
                                       void *room, const int16_t *states, int32_t *e_steps,
                                       const int8_t *h, samebits_gradient g, int8_t *past,
                                       int32_t *e_past, int32_t *d_x, int32_t *e_dx, int32_t *d_h,
                                       int32_t *e_dh) {
    Steps v = samebits_train_steps(s, x, room, 1);
    const int32_t kind = s->kind, width = gates_of(s) * s->units;
    int32_t *own_past = e_steps + s->steps, *own_x = own_past + s->steps, *own_h = own_x + s->steps;
    int32_t place, status;
    v.e_x = e_x;
    for (place = s->steps - 1; place >= 0; place--) {
        const int is_last = place == s->steps - 1, is_lstm = kind == SAMEBITS_TRAIN_LSTM;
        int32_t *to = d_x, *e_to = own_x + step_at(s, place);
        Shifts by = {0, {0, 0, 0, 0}, 0};
        if ((status = step_back(&v, place, h, states, e_steps, past, own_past))) return status;
        if ((status = samebits_train_open(&v))) return status;
        status = arriving(&v, &g, is_last, kind == SAMEBITS_TRAIN_GRU, is_lstm ? v.d : v.ds,
                          is_lstm ? &v.e_d : &v.e_ds);
        if (status) return status;
        by.e = v.e_ds + (kind == SAMEBITS_TRAIN_TANH ? 2 * GATE_EXPONENT : 0);
        if (is_lstm)
            status = back_lstm(&v, states + v.t * v.cells, e_steps[v.t], is_last, &by);
        if (kind == SAMEBITS_TRAIN_GRU) status = back_gru(&v, &by);
        if (status) return status;
        put_d(&v, &by, 0, d_x, own_x + v.t);
        if (kind == SAMEBITS_TRAIN_GRU) {
            to = d_h, e_to = own_h + v.t;
            put_d(&v, &by, 1, d_h, e_to);
        }
        if ((status = back_products(&v, to, *e_to))) return status;
        if (kind < SAMEBITS_TRAIN_TANH) keep(&v);
    }
    *e_past = samebits_train_joined(s, s->units, past, 8, own_past);
    *e_dx = samebits_train_joined(s, width, d_x, 32, own_x);
    if (kind == SAMEBITS_TRAIN_GRU) *e_dh = samebits_train_joined(s, width, d_h, 32, own_h);
    return SAMEBITS_TRAIN_OK;
}
