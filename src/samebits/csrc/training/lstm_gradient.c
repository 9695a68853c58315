/* Backpropagation through a layer of LSTM cells, all steps over time (docs/spec/training.md, 7). */
#include "lstm.h"

/* Integers of a type (16, 32 or 64 bits) and their exponent; NULL: none. */
typedef struct {
    const void *v;
    int64_t type, exponent;
} Side;

#define SCALED(name, type)                                                                     \
    static void name(const type *restrict v, int64_t n, Shift s, int add, int64_t *restrict out) { \
        for (int64_t i = 0; i < n; i++) out[i] = scale64(v[i], s) + (add ? out[i] : 0);        \
    }
SCALED(scaled8, int8_t)
SCALED(scaled16, int16_t)
SCALED(scaled32, int32_t)
SCALED(scaled64, int64_t)

/* out = v * 2**(exponent - e), rounded; or what is added to it. */
static void scaled(Side side, int64_t n, int64_t e, int add, int64_t *out) {
    Shift s = shift_by(side.exponent - e);
    if (side.type == 8) scaled8(side.v, n, s, add, out);
    if (side.type == 16) scaled16(side.v, n, s, add, out);
    if (side.type == 32) scaled32(side.v, n, s, add, out);
    if (side.type == 64) scaled64(side.v, n, s, add, out);
}

/* Step 1: dh of a step, from outside and from the next; each may be missing. */
static int hidden_gradient(Side g, Side back, int64_t n, int64_t *sums, int16_t *dh, int64_t *own,
                           int threads) {
    int64_t e = EXPONENT_MIN;
    if (g.v) e = g.exponent + 31 - SUM_BITS;
    if (back.v)
        e = g.v ? SAMEBITS_MAX(e, back.exponent + 38 - SUM_BITS) : back.exponent + 38 - SUM_BITS;
    if (g.v) scaled(g, n, e, 0, sums);
    if (back.v) scaled(back, n, e, g.v != NULL, sums);
    int64_t top = g.v || back.v ? samebits_max_i64(sums, n, threads) : 0;
    return samebits_requantize(sums, 64, n, &top, &e, 16, dh, 16, own, threads);
}

/* What goes through h in dc: dh * o * (1 - u * u), shifted. */
static void through_hidden(const int16_t *restrict dh, const int16_t *restrict gates,
                           const int16_t *restrict c, int64_t rows, int64_t units, int64_t e_c,
                           const int16_t *restrict table, Shift s, int64_t *restrict out) {
    const int16_t *tanh = table + 2 * Q_GATE + 1 + Q_GATE;
    Shift su = saturating(e_c - ARGUMENT_EXPONENT);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t k = 0; k < units; k++) {
            int64_t at = r * units + k, u = tanh[saturate(c[at], su, Q_GATE)];
            int64_t o = gates[4 * r * units + 3 * units + k];
            out[at] = scale64(dh[at] * o * (ONE_SQUARED - u * u), s);
        }
}

/* What goes through time: dc * f, shifted, which is added. */
static void through_time(const int16_t *restrict dc, const int16_t *restrict gates, int64_t rows,
                         int64_t units, Shift s, int add, int64_t *restrict out) {
    for (int64_t r = 0; r < rows; r++)
        for (int64_t k = 0; k < units; k++) {
            int64_t at = r * units + k, f = gates[4 * r * units + units + k];
            out[at] = scale64(dc[at] * f, s) + (add ? out[at] : 0);
        }
}

/* Step 3 before its rounding; `before` (c of the step before) may be NULL. */
static int64_t gate_gradients(const int16_t *restrict dh, const int16_t *restrict dc,
                              const int16_t *restrict gates, const int16_t *restrict c,
                              int64_t rows, int64_t units, int64_t e_c,
                              const int16_t *restrict table, const int16_t *restrict before,
                              Shift si, Shift sf, Shift so, int64_t *restrict out) {
    const int16_t *tanh = table + 2 * Q_GATE + 1 + Q_GATE;
    Shift su = saturating(e_c - ARGUMENT_EXPONENT);
    int64_t top = 0;
    for (int64_t r = 0; r < rows; r++, gates += 4 * units, out += 4 * units)
        for (int64_t k = 0; k < units; k++) {
            int64_t at = r * units + k, u = tanh[saturate(c[at], su, Q_GATE)];
            int64_t i = gates[k], f = gates[units + k], g = gates[2 * units + k];
            int64_t o = gates[3 * units + k], past = before ? before[at] : 0;
            int64_t di = scale64(dc[at] * g * (i * (ONE - i)), si);
            int64_t df = scale64(dc[at] * past * (f * (ONE - f)), sf);
            int64_t dg = scale64(dc[at] * i * (ONE_SQUARED - g * g), si);
            int64_t d_o = scale64(dh[at] * u * (o * (ONE - o)), so);
            out[k] = di;
            out[units + k] = df;
            out[2 * units + k] = dg;
            out[3 * units + k] = d_o;
            di = SAMEBITS_MAX(samebits_magnitude64(di), samebits_magnitude64(df));
            dg = SAMEBITS_MAX(samebits_magnitude64(dg), samebits_magnitude64(d_o));
            di = SAMEBITS_MAX(di, dg);
            top = SAMEBITS_MAX(top, di);
        }
    return top;
}

/* Codes of steps (8 or 32 bits), n of each, at the largest exponent of those that are not all zero.
 * Returns that. */
static int64_t aligned(void *codes, int type, int64_t steps, int64_t n, const int64_t *exponents) {
    int64_t top = INT64_MIN;
    int8_t *v8 = codes;
    int32_t *v32 = codes;
    for (int64_t t = 0; t < steps; t++)
        if (exponents[t] > top &&
            (type == 8 ? samebits_max_i8(v8 + t * n, n, 1) : samebits_max_i32(v32 + t * n, n, 1)))
            top = exponents[t];
    if (top == INT64_MIN) return EXPONENT_MIN;
    for (int64_t t = 0; t < steps; t++) {
        Shift s = shift_by(SAMEBITS_MIN(exponents[t] - top, 0));
        for (int64_t i = t * n; s.right && i < (t + 1) * n; i++) {
            if (type == 8)
                v8[i] = (int8_t)scale64(v8[i], s);
            else
                v32[i] = (int32_t)scale64(v32[i], s);
        }
    }
    return top;
}

/* The hidden states before all steps, and their exponent. exponents: room for one a step. */
static int64_t past_of(const Layer *l, const int8_t *h, int8_t *past, int64_t *exponents) {
    for (int64_t place = 0; place < l->steps; place++) {
        int64_t t = step_at(l, place), before = step_at(l, place - 1);
        const int8_t *from = place ? h + before * l->cells : l->h;
        exponents[t] = place ? HIDDEN_EXPONENT : l->e_h;
        if (from)
            memcpy(past + t * l->cells, from, (size_t)l->cells);
        else
            memset(past + t * l->cells, 0, (size_t)l->cells);
    }
    return l->has_first ? aligned(past, 8, l->steps, l->cells, exponents) : HIDDEN_EXPONENT;
}

/* What the passes through time know of a step. */
typedef struct {
    int16_t *gates, *dh, *dc;
    int64_t e_dh, e_dc;
} Step;

/* Step 2: dc of step t, from dh and from the step after it, or from outside after the last. */
static int state_gradient(const Layer *l, const int16_t *c, int64_t e_c, Step *own,
                          const Step *after, Side at_last, int64_t *sums) {
    int64_t e_through = own->e_dh + 3 * GATE_EXPONENT, top = e_through + 60, e_kept = 0;
    if (after) {
        e_kept = after->e_dc + GATE_EXPONENT;
        top = SAMEBITS_MAX(top, e_kept + 30);
    } else if (at_last.v) {
        top = SAMEBITS_MAX(top, at_last.exponent + 31);
    }
    int64_t e = top - SUM_BITS, u = l->units;
    int threads = l->threads;
    Shift s = shift_by(e_through - e), sc = shift_by(e_kept - e);
    PARALLEL(l->rows, l->cells,
             through_hidden(own->dh + lo * u, own->gates + lo * 4 * u, c + lo * u, len, u, e_c,
                            l->table, s, sums + lo * u))
    if (after) {
        PARALLEL(l->rows, l->cells,
                 through_time(after->dc + lo * u, after->gates + lo * 4 * u, len, u, sc, 1,
                              sums + lo * u))
    } else if (at_last.v) {
        scaled(at_last, l->cells, e, 1, sums);
    }
    top = samebits_max_i64(sums, l->cells, threads);
    return samebits_requantize(sums, 64, l->cells, &top, &e, 16, own->dc, 16, &own->e_dc, threads);
}

/* The gradient of h before a step from its D, in `bits` bits: sums of W * D, of 32 bits or of 64.
 * reach: of W; g16: room for D. */
static int back_product(const Layer *l, const int32_t *d, int64_t e_d, int bits, int64_t reach,
                        int16_t *g16, void *sums, Side *back) {
    int64_t n = 4 * l->cells, top = samebits_max_i32(d, n, l->threads), e;
    int failed = samebits_requantize(d, 32, n, &top, &e_d, bits, g16, 16, &e, l->threads);
    if (failed) {
        back->exponent = e;
        return failed;
    }
    int wide = samebits_max_i16(g16, n, l->threads) * reach > Q32;
    Conv s = product_of(l);
    top = samebits_conv_input_grad(&s, g16, l->w, sums, wide, l->threads);
    *back = (Side){sums, wide ? 64 : 32, e + l->e_w};
    return top < 0 ? NO_MEMORY : FINE;
}

/* D of all steps, int32 [steps][rows][4H], and its exponent; the hidden states before all
 * steps, and theirs; the gradients of h and c before the first step, where there is a place for
 * them.
 *
 * layer: see `layer_of`; h, c: of all steps; g: the gradient of h, in integers of g_type, and
 * at_last: that of the last c: each may be NULL. bits: of D where it meets W. room: of 11
 * numbers a cell of a step, 4 a unit and 1 a step. OUT_OF_RANGE: `e_d` is the exponent. */
int samebits_lstm_gradient(const int64_t *layer, int64_t *room, const int8_t *h, const int16_t *c,
                           const int64_t *e_c, const void *g, int g_type, const int64_t *e_g,
                           const void *at_last, int last_type, const int64_t *e_last, int bits,
                           int8_t *past, int64_t *e_past, int32_t *first_h, int64_t *e_first_h,
                           int32_t *first_c, int64_t *e_first_c, int32_t *d, int64_t *e_d,
                           int threads) {
    Layer l = layer_of(layer, threads);
    int64_t n = l.cells, u = l.units, *sums = room, *back_sums = room + 4 * n;
    int32_t *products = (int32_t *)(room + 5 * n);
    int16_t *codes = (int16_t *)(room + 7 * n), *g16 = codes + 8 * n;
    int64_t *bias = room + 11 * n, *exponents = bias + 4 * u;
    Step steps[2] = {{codes, codes + 12 * n, codes + 13 * n, 0, 0},
                     {codes + 4 * n, codes + 14 * n, codes + 15 * n, 0, 0}};
    Side back = {NULL, 64, 0}, last = {at_last, last_type, at_last ? *e_last : 0};
    int64_t reach = samebits_reach(l.w, 1, 4 * u, u), top;
    if (reach < 0) return NO_MEMORY;
    *e_past = past_of(&l, h, past, exponents);
    Grid grid = grid_of(&l, HIDDEN_EXPONENT, bias);
    for (int64_t place = l.steps - 1; place >= 0; place--) {
        int64_t t = step_at(&l, place), before = step_at(&l, place - 1);
        Step *own = steps + place % 2;
        Step *after = place == l.steps - 1 ? NULL : steps + (place + 1) % 2;
        const int8_t *hidden = place ? h + before * n : l.h;
        const int16_t *past_c = place ? c + before * n : l.c, *own_c = c + t * n;
        Side from = {g ? (const char *)g + t * n * (g_type / 8) : NULL, g_type, g ? *e_g : 0};
        if (!place) grid = grid_of(&l, l.e_h, bias);
        int failed = gates_of(&l, t, hidden, grid, products, own->gates);
        if (!failed) failed = hidden_gradient(from, back, n, sums, own->dh, &own->e_dh, threads);
        *e_d = own->e_dh;
        if (failed) return failed;
        failed = state_gradient(&l, own_c, e_c[t], own, after, last, sums);
        *e_d = own->e_dc;
        if (failed) return failed;
        int64_t e_before = place ? e_c[before] : l.e_c, e_i = own->e_dc + 3 * GATE_EXPONENT;
        int64_t e_f = own->e_dc + e_before + 2 * GATE_EXPONENT;
        int64_t e_o = own->e_dh + 3 * GATE_EXPONENT, e = SAMEBITS_MAX(e_i, SAMEBITS_MAX(e_f, e_o));
        Shift si = shift_by(e_i - e), sf = shift_by(e_f - e), so = shift_by(e_o - e);
        PARALLEL_MAX(l.rows, n, top,
                     gate_gradients(own->dh + lo * u, own->dc + lo * u, own->gates + lo * 4 * u,
                                    own_c + lo * u, len, u, e_c[t], l.table,
                                    past_c ? past_c + lo * u : past_c, si, sf, so,
                                    sums + lo * 4 * u))
        int32_t *own_d = d + 4 * t * n;
        samebits_shorten(sums, 64, 4 * n, &top, &e, own_d, exponents + t, threads);
        failed = back_product(&l, own_d, exponents[t], bits, reach, g16, back_sums, &back);
        *e_d = back.exponent;
        if (failed) return failed;
    }
    if (first_h) {
        top = back.type == 64 ? samebits_max_i64(back.v, n, threads)
                              : samebits_max_i32(back.v, n, threads);
        samebits_shorten(back.v, (int)back.type, n, &top, &back.exponent, first_h, e_first_h,
                         threads);
    }
    if (first_c) {
        int64_t e = steps[0].e_dc + GATE_EXPONENT;
        through_time(steps[0].dc, steps[0].gates, l.rows, u, shift_by(0), 0, sums);
        top = samebits_max_i64(sums, n, threads);
        samebits_shorten(sums, 64, n, &top, &e, first_c, e_first_c, threads);
    }
    *e_d = aligned(d, 32, l.steps, 4 * n, exponents);
    return FINE;
}
