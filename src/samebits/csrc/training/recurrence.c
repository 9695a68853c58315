/* Layers of recurrent cells in one direction: all steps over time, forward and backward
 * (docs/spec/training.md, 5 and 7). */
#include "cell.h"

/* Room of a size in bytes, of what is left. */
static void *taken(int64_t **room, int64_t bytes) {
    void *own = *room;
    *room += (bytes + 7) / 8;
    return own;
}

/* The first step of a layer; the room that both passes need: (3 * gates + 6) / 4 numbers a unit of
 * a step, 2 a unit of a gate, 1 a step and 8. exponents: room for those of steps. */
static Step first_step(const Layer *l, int64_t **room, int8_t **h, int64_t **exponents) {
    int64_t n = l->cells, of_gates = l->rows * l->width;
    Step s = {.l = l, .h = l->h, .e_h = l->e_h, .before = l->state, .e_before = l->e_state,
              .bias_at = {INT64_MIN, INT64_MIN, INT64_MIN, INT64_MIN}};
    s.sums = taken(room, 8 * n);
    s.products = taken(room, 4 * of_gates);
    s.gates = taken(room, 2 * of_gates);
    s.m = taken(room, 2 * n);
    s.bias = taken(room, 16 * l->width);
    *h = taken(room, n);
    *exponents = taken(room, 8 * l->steps);
    return s;
}

/* h of a state, for cells that have none of their own. */
static int hidden_of(Step *s, const Cell *cell, const void *state, int64_t e, int8_t *h,
                     int64_t *e_h) {
    *e_h = e;
    if (cell->bits == 8) {
        memcpy(h, state, (size_t)s->l->cells);
        return FINE;
    }
    Term whole = {state, 16, e, 15};
    combine(s, &whole, 1);
    return rounded(s, 8, h, e_h);
}

/* h before the first step; zeros of an LSTM have the exponent of all other steps. */
static int first_hidden(Step *s, const Cell *cell, int64_t kind, int8_t *h) {
    const Layer *l = s->l;
    if (kind == LSTM) {
        if (s->h && samebits_max_i8(s->h, l->cells, l->threads) == 0) s->h = NULL;
        if (!s->h) s->e_h = HIDDEN_EXPONENT;
        return FINE;
    }
    s->e_h = EXPONENT_MIN;
    if (!l->state) return FINE;
    s->h = h;
    return hidden_of(s, cell, l->state, l->e_state, h, &s->e_h);
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

/* h of all steps at one exponent, and the states of all steps, of each of which the exponent stands
 * in `exponents`.
 *
 * kind: of the cells, `Kind`; layer: see `layer_of`; room: see `first_step`; last: the exponent of
 * the last state, or one that is above 127. */
int samebits_recurrence(int64_t kind, const int64_t *layer, int64_t *room, int8_t *h, int64_t *e_h,
                        void *states, int64_t *exponents, int64_t *last, int threads) {
    const Cell *cell = &CELLS[kind];
    Layer l = layer_of(layer, cell->gates, threads);
    int8_t *first;
    int64_t *own;
    Step s = first_step(&l, &room, &first, &own);
    int failed = first_hidden(&s, cell, kind, first);
    for (int64_t place = 0; place < l.steps && !failed; place++) {
        int64_t t = s.t = step_at(&l, place);
        char *state = (char *)states + t * l.cells * (cell->bits / 8);
        failed = products_of(&s);
        if (!failed) failed = cell->open(&s);
        if (failed) break;
        if (cell->next) cell->next(&s);
        failed = rounded(&s, cell->bits, state, &exponents[t]);
        s.before = s.after = state;
        s.e_before = s.e_after = exponents[t];
        s.h = s.out = h + t * l.cells;
        s.e_h = HIDDEN_EXPONENT;
        if (failed) break;
        if (kind == LSTM)
            over_units(&s, lstm_hidden);
        else
            failed = hidden_of(&s, cell, state, exponents[t], s.out, &s.e_h);
        own[t] = s.e_h;
    }
    *last = failed ? s.found : s.e_after;
    if (failed) return failed;
    *e_h = kind == LSTM ? HIDDEN_EXPONENT : aligned(h, 8, l.steps, l.cells, own);
    return FINE;
}

/* h before the step at a place, to `past`; what else it has of its states. */
static int step_before(Step *s, const Cell *cell, int64_t place, const int8_t *h,
                       const void *states, const int64_t *exponents, int8_t *past,
                       int64_t *e_past) {
    const Layer *l = s->l;
    int64_t t = step_at(l, place), before = step_at(l, place - 1), n = l->cells;
    const char *all = states;
    s->t = t;
    s->after = all + t * n * (cell->bits / 8);
    s->e_after = exponents[t];
    if (!place) {
        s->before = l->state;
        s->e_before = l->e_state;
        return FINE;
    }
    s->before = all + before * n * (cell->bits / 8);
    s->e_before = exponents[before];
    s->h = past;
    s->e_h = *e_past = HIDDEN_EXPONENT;
    if (!h) {
        int failed = hidden_of(s, cell, s->before, s->e_before, past, e_past);
        s->e_h = *e_past;
        return failed;
    }
    memcpy(past, h + before * n, (size_t)n);
    return FINE;
}

/* `wide` as 32 bits, D of a step. */
static void shorten_wide(const Step *s, int32_t *d, int64_t *exponent) {
    int64_t n = s->l->rows * s->l->width;
    samebits_shorten(s->wide, 64, n, &s->top, &s->e_wide, d, exponent, s->l->threads);
}

/* The gradient of h before a step from its D, in `bits` bits: sums of W * D, of 32 bits or of 64.
 * reach: of W; g16: room for D. */
static int back_product(Step *s, const int32_t *d, int64_t e_d, int bits, int64_t reach,
                        int16_t *g16, void *sums, Term *back) {
    const Layer *l = s->l;
    int64_t n = l->rows * l->width, top = samebits_max_i32(d, n, l->threads);
    int failed = samebits_requantize(d, 32, n, &top, &e_d, bits, g16, 16, &s->found, l->threads);
    if (failed) return failed;
    int wide = samebits_max_i16(g16, n, l->threads) * reach > Q32;
    Conv product = product_of(l);
    top = samebits_conv_input_grad(&product, g16, l->w, sums, wide, l->threads);
    *back = (Term){sums, wide ? 64 : 32, s->found + l->e_w, 38};
    return top < 0 ? NO_MEMORY : FINE;
}

/* The sum of two terms, of which one may be missing, as 32 bits. */
static void shorten_terms(Step *s, Term a, Term b, int32_t *out, int64_t *exponent) {
    if (!out) return;
    Term both[2] = {a, b};
    if (a.v && b.v) {
        combine(s, both, 2);
        a = (Term){s->sums, 64, s->e_sums, 0};
    } else if (b.v) {
        a = b;
    }
    samebits_largest(a.v, (int)a.type, s->l->cells, &s->top, s->l->threads);
    samebits_shorten(a.v, (int)a.type, s->l->cells, &s->top, &a.exponent, out, exponent,
                     s->l->threads);
}

/* D of all steps at the products of x and of h, int32 [steps][rows][gates * units], and their
 * exponents; the hidden states before all steps, and theirs; the gradients of h and of the state
 * before the first step, where there is a place for them.
 *
 * kind, layer: as above; h: of all steps, of an LSTM alone; states and exponents: of all steps; g:
 * the gradient of h, in integers of g_type, and at_last: that of the last state: each may be NULL.
 * bits: of D where it meets W. d_h: NULL where it is d_x. room: as above, and (5 * gates + 9) / 4
 * numbers a unit of a step, 2 a step and 8. OUT_OF_RANGE: `e_x` is the exponent. */
int samebits_recurrence_gradient(int64_t kind, const int64_t *layer, int64_t *room, const int8_t *h,
                                 const void *states, const int64_t *exponents, const void *g,
                                 int g_type, const int64_t *e_g, const void *at_last,
                                 int last_type, const int64_t *e_last, int bits, int8_t *past,
                                 int64_t *e_past, int32_t *first_h, int64_t *e_first_h,
                                 int32_t *first_state, int64_t *e_first_state, int32_t *d_h,
                                 int64_t *e_dh, int32_t *d_x, int64_t *e_dx, int threads) {
    const Cell *cell = &CELLS[kind];
    Layer l = layer_of(layer, cell->gates, threads);
    int64_t n = l.cells, size = l.rows * l.width, *own;
    int8_t *first;
    Step s = first_step(&l, &room, &first, &own);
    s.wide = taken(&room, 8 * size);
    s.ds = taken(&room, 2 * n);
    s.d = taken(&room, 2 * n);
    int64_t *back_sums = taken(&room, 8 * n);
    int64_t *of_x = taken(&room, 8 * l.steps), *of_h = taken(&room, 8 * l.steps);
    int32_t *through = taken(&room, 4 * n);
    int16_t *g16 = taken(&room, 2 * size);
    int64_t reach = samebits_reach(l.w, 1, l.width, l.units);
    Term none = {NULL, 64, 0, 0}, back = none, kept = none;
    if (at_last) kept = (Term){at_last, last_type, *e_last, 31};
    if (reach < 0) return NO_MEMORY;
    Step start = s;
    int failed = first_hidden(&start, cell, kind, first);
    s.found = start.found;
    for (int64_t place = l.steps - 1; place >= 0 && !failed; place--) {
        int64_t t = step_at(&l, place);
        s.h = start.h;
        s.e_h = own[t] = start.e_h;
        failed = step_before(&s, cell, place, h, states, exponents, past + t * n, &own[t]);
        if (!place && s.h) memcpy(past + t * n, s.h, (size_t)n);
        if (!place && !s.h) memset(past + t * n, 0, (size_t)n);
        if (!failed) failed = products_of(&s);
        if (!failed) failed = cell->open(&s);
        if (failed) break;
        Term arriving = none;
        if (g) arriving = (Term){(const char *)g + t * n * (g_type / 8), g_type, *e_g, 31};
        Term terms[3] = {arriving, back, kind == LSTM ? none : kept};
        combine(&s, terms, 3);
        failed = rounded(&s, 16, s.ds, &s.e_ds);
        if (!failed) failed = cell->back(&s, kept);
        if (failed) break;
        int32_t *d = d_x + t * size;
        int64_t *e_d = of_x + t;
        shorten_wide(&s, d, e_d);
        if (cell->at_h) {
            d = d_h + t * size;
            e_d = of_h + t;
            cell->at_h(&s);
            shorten_wide(&s, d, e_d);
        }
        failed = back_product(&s, d, *e_d, bits, reach, g16, back_sums, &back);
        s.out = through;
        kept = none;
        if (cell->gates == 1) continue;
        over_units(&s, keep);
        kept = (Term){through, 32, s.e_ds + GATE_EXPONENT, 30};
    }
    *e_dx = s.found;
    if (failed) return failed;
    shorten_terms(&s, back, none, first_h, e_first_h);
    shorten_terms(&s, kind == LSTM ? none : back, kept, first_state, e_first_state);
    *e_past = aligned(past, 8, l.steps, n, own);
    *e_dx = aligned(d_x, 32, l.steps, size, of_x);
    if (cell->at_h) *e_dh = aligned(d_h, 32, l.steps, size, of_h);
    return FINE;
}
