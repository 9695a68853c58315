/* Layers of recurrent cells in one direction: all steps over time, forward and backward
 * (docs/spec/training.md, 5, 7 and 12). */
#include <stdlib.h>

#include "cell.h"

/* Room of a size in bytes, of what is left. */
static void *taken(int64_t **room, int64_t bytes) {
    void *own = *room;
    *room += (bytes + 7) / 8;
    return own;
}

/* The first step of every block of a layer, or NULL without memory; the room that both passes need:
 * (3 * gates + 6) / 4 numbers a unit of a step, 2 a unit of a gate of a block, 1 a step of a block
 * and 8. exponents: room for those of steps; h: for codes of h. */
static Step *first_steps(const Layer *l, int64_t **room, int8_t **h, int64_t **exponents) {
    int64_t n = l->blocks * l->cells, of_gates = all_columns(l), block = l->rows * l->width;
    Step *steps = malloc((size_t)l->blocks * sizeof *steps);
    if (!steps) return NULL;
    int64_t *sums = taken(room, 8 * n);
    int32_t *products = taken(room, 4 * of_gates);
    int16_t *gates = taken(room, 2 * of_gates), *m = taken(room, 2 * n);
    int64_t *bias = taken(room, 16 * l->blocks * l->width);
    *h = taken(room, n);
    *exponents = taken(room, 8 * l->steps * l->blocks);
    for (int64_t b = 0; b < l->blocks; b++) {
        int64_t at = b * l->cells, *own = bias + 2 * b * l->width;
        steps[b] = (Step){.l = l, .block = b, .sums = sums + at, .products = products + b * block,
                          .gates = gates + b * block, .m = m + at, .bias = own, .each = own,
                          .e_before = EXPONENT_MIN,
                          .bias_at = {INT64_MIN, INT64_MIN, INT64_MIN, INT64_MIN}};
    }
    return steps;
}

/* Computes `call` of the step `s` of every block; how that ends, with the largest exponent that
 * does not fit in the first step. */
#define EACH_BLOCK(l, all, failed, call)                                                       \
    {                                                                                          \
        int crews = (l).crews;                                                                 \
        _Pragma("omp parallel for num_threads(crews)")                                         \
        for (int64_t b = 0; b < (l).blocks; b++) {                                             \
            Step *s = (all) + b;                                                               \
            s->status = (call);                                                                \
        }                                                                                      \
        failed = worst_of(&(l), all);                                                          \
    }

static int worst_of(const Layer *l, Step *all) {
    int status = FINE;
    for (int64_t b = l->blocks - 1; b >= 0; b--) {
        if (all[b].status == FINE) continue;
        int64_t found = all[b].found;
        all->found = status == FINE ? found : SAMEBITS_MAX(found, all->found);
        status = all[b].status;
    }
    return status;
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

/* The state and h before the first step, h where it is not given to `room`; zeros of an LSTM have
 * the exponent of all other steps. */
static int before_first(Step *s, const Cell *cell, int8_t *room) {
    const Layer *l = s->l;
    int64_t at = s->block * l->cells;
    if (l->state) {
        s->before = (const char *)l->state + at * (cell->bits / 8);
        s->e_before = l->e_state[s->block];
    }
    if (cell == &CELLS[LSTM]) {
        s->h = l->h ? l->h + at : NULL;
        s->e_h = HIDDEN_EXPONENT;
        if (s->h && samebits_max_i8(s->h, l->cells, l->threads)) s->e_h = l->e_h[s->block];
        return FINE;
    }
    s->e_h = EXPONENT_MIN;
    if (!l->state) return FINE;
    s->h = room + at;
    return hidden_of(s, cell, s->before, s->e_before, room + at, &s->e_h);
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

/* The exponents of all steps, to `found`: those of rows, or the one of all. */
static void join(const Layer *l, void *codes, int type, int64_t n, const int64_t *exponents,
                 int64_t *found) {
    if (l->by_rows)
        memcpy(found, exponents, (size_t)(l->steps * l->blocks) * sizeof *found);
    else
        *found = aligned(codes, type, l->steps, n, exponents);
}

/* A step from the products of h: the state after it, h, and their exponents. */
static int step_on(Step *s, const Cell *cell, void *states, int64_t *exponents, int8_t *h,
                   int64_t *e_h) {
    const Layer *l = s->l;
    int64_t at = at_step(s);
    char *state = (char *)states + at * l->cells * (cell->bits / 8);
    int failed = cell->open(s);
    if (failed) return failed;
    if (cell->next) cell->next(s);
    failed = rounded(s, cell->bits, state, exponents + at);
    s->before = s->after = state;
    s->e_before = s->e_after = exponents[at];
    s->out = h + at * l->cells;
    s->e_h = HIDDEN_EXPONENT;
    if (failed) return failed;
    if (cell == &CELLS[LSTM])
        over_units(s, lstm_hidden);
    else
        failed = hidden_of(s, cell, state, exponents[at], s->out, &s->e_h);
    e_h[at] = s->e_h;
    return failed;
}

/* h of all steps, and the states of all steps, of each of which the exponent stands in `exponents`.
 * By rows there is an exponent of every step and row, [steps][rows]; else h has one.
 *
 * kind: of the cells, `Kind`; layer: see `layer_of`; room: see `first_steps`; last: the exponents
 * of the last state; found: one that is above 127. */
int samebits_recurrence(int64_t kind, const int64_t *layer, int64_t *room, int8_t *h, int64_t *e_h,
                        void *states, int64_t *exponents, int64_t *last, int64_t *found,
                        int threads) {
    const Cell *cell = &CELLS[kind];
    Layer l = layer_of(layer, cell->gates, threads);
    int8_t *first;
    int64_t *own, n = l.blocks * l.cells;
    Step *all = first_steps(&l, &room, &first, &own);
    int failed = all ? FINE : NO_MEMORY;
    if (!failed) EACH_BLOCK(l, all, failed, before_first(s, cell, first))
    const int8_t *past = failed ? NULL : all->h;
    for (int64_t place = 0; place < l.steps && !failed; place++) {
        int64_t t = step_at(&l, place);
        failed = products_of(&l, past, all->products, threads);
        for (int64_t b = 0; b < l.blocks; b++) begin(all + b, t);
        if (!failed) EACH_BLOCK(l, all, failed, step_on(s, cell, states, exponents, h, own))
        past = h + t * n;
    }
    if (!failed) {
        for (int64_t b = 0; b < l.blocks; b++) last[b] = all[b].e_after;
        if (kind == LSTM && !l.by_rows)
            *e_h = HIDDEN_EXPONENT;
        else
            join(&l, h, 8, n, own, e_h);
    } else if (all) {
        *found = all->found;
    }
    free(all);
    return failed;
}

/* Go back to the step at a place: its states and h before it, which go to `past`. The first step's
 * are in `s` before. */
static int step_before(Step *s, const Cell *cell, int64_t place, const int8_t *h,
                       const void *states, const int64_t *exponents, int8_t *past,
                       int64_t *e_past) {
    const Layer *l = s->l;
    int64_t n = l->cells, size = cell->bits / 8;
    const char *all = states;
    begin(s, step_at(l, place));
    int64_t at = at_step(s), to = at * n;
    s->after = all + to * size;
    s->e_after = exponents[at];
    if (!place) {
        s->before = NULL;
        s->e_before = EXPONENT_MIN;
        s->h = NULL;
        int failed = before_first(s, cell, past + s->t * l->blocks * n);
        if (s->h && s->h != past + to) memcpy(past + to, s->h, (size_t)n);
        if (!s->h) memset(past + to, 0, (size_t)n);
        e_past[at] = s->e_h;
        return failed;
    }
    int64_t before = step_at(l, place - 1) * l->blocks + s->block;
    s->before = all + before * n * size;
    s->e_before = exponents[before];
    s->h = past + to;
    s->e_h = e_past[at] = HIDDEN_EXPONENT;
    if (!h) {
        int failed = hidden_of(s, cell, s->before, s->e_before, past + to, e_past + at);
        s->e_h = e_past[at];
        return failed;
    }
    memcpy(past + to, h + before * n, (size_t)n);
    return FINE;
}

/* `wide` as 32 bits, D of a step. */
static void shorten_wide(const Step *s, int32_t *d, int64_t *exponent) {
    int64_t n = s->l->rows * s->l->width;
    samebits_shorten(s->wide, 64, n, &s->top, &s->e_wide, d, exponent, s->l->threads);
}

/* D of a step in `bits` bits, as it meets W, and the exponent of their product. */
static int narrow(Step *s, const int32_t *d, int64_t e_d, int bits, int16_t *g16, int64_t *e_sums) {
    const Layer *l = s->l;
    int64_t n = l->rows * l->width;
    int failed;
    if (l->by_columns) {
        const Rows row = {.a = 1, .b = 1, .c = n, .step_c = 1};
        failed = samebits_requantize_rows(&row, d, 32, l->e_w, &e_d, bits, LIMITED, g16, 16,
                                          e_sums, &s->found, l->threads);
    } else {
        int64_t top = samebits_max_i32(d, n, l->threads), e = e_d + (l->by_rows ? *l->e_w : 0);
        failed = samebits_requantize(d, 32, n, &top, &e, bits, g16, 16, e_sums, l->threads);
    }
    s->found = *e_sums;
    if (!l->by_rows) *e_sums += *l->e_w;
    return failed;
}

/* The sum of two terms, of which one may be missing, as 32 bits; out: of all blocks. */
static int shorten_terms(Step *s, Term a, Term b, int32_t *out, int64_t *exponent) {
    const Layer *l = s->l;
    if (!out) return FINE;
    Term both[2] = {a, b};
    if (a.v && b.v) {
        combine(s, both, 2);
        a = (Term){s->sums, 64, s->e_sums, 0};
    } else if (b.v) {
        a = b;
    }
    out += s->block * l->cells;
    samebits_largest(a.v, (int)a.type, l->cells, &s->top, l->threads);
    samebits_shorten(a.v, (int)a.type, l->cells, &s->top, &a.exponent, out, exponent + s->block,
                     l->threads);
    return FINE;
}

/* Integers of a step or of all of them, in blocks, which are a term of the gradient. */
typedef struct {
    const char *v;
    int64_t type, bits;
    const int64_t *exponents;
} Arriving;

/* The term of a block at a place among those of one; by rows of a place among those of all. */
SAMEBITS_INLINE Term term_of(const Layer *l, Arriving a, int64_t at) {
    const void *v = a.v ? a.v + at * l->cells * (a.type / 8) : NULL;
    return (Term){v, a.type, v ? a.exponents[l->by_rows ? at : 0] : 0, a.bits};
}

/* What of gradients a step takes from the step after it, and leaves to that before it.
 *
 * sums, e_sums: those of D and W, int32 or int64 (`type`, 0: none) [blocks][cells], and their
 * exponents; g16: D, as it meets W
 * kept: of the states, int32 [blocks][cells]; e_kept: its exponents; last: what stands in its place
 * after the last step; is_last: whether there was no step yet */
typedef struct {
    void *sums;
    int64_t type, *e_sums;
    int16_t *g16;
    int32_t *kept;
    int64_t *e_kept;
    Arriving last;
    int is_last;
} Through;

/* What of the gradient of the state before it a step leaves, in two terms; sums: of D and W. */
static Term back_term(const Layer *l, const Through *by, int64_t block) {
    if (!by->type) return (Term){NULL, 64, 0, 0};
    const char *sums = (const char *)by->sums + block * l->cells * (by->type / 8);
    return (Term){sums, by->type, by->e_sums[block], 38};
}

static Term kept_term(const Layer *l, const Through *by, const Cell *cell, int64_t block) {
    if (by->is_last) return term_of(l, by->last, block);
    if (cell->gates == 1) return (Term){NULL, 64, 0, 0};
    return (Term){by->kept + block * l->cells, 32, by->e_kept[block], 30};
}

/* D of a step at the products of x and of h, of all steps, and their exponents. */
typedef struct {
    int32_t *x, *h;
    int64_t *e_x, *e_h;
} Outer;

/* A step back, from the gradients that arrive at it. */
static int step_back(Step *s, const Cell *cell, Arriving g, Through *by, int bits, Outer d) {
    const Layer *l = s->l;
    int64_t at = at_step(s), size = l->rows * l->width, b = s->block;
    Term none = {NULL, 64, 0, 0}, kept = kept_term(l, by, cell, b);
    int is_lstm = cell == &CELLS[LSTM], failed = cell->open(s);
    if (failed) return failed;
    Term terms[3] = {term_of(l, g, at), back_term(l, by, b), is_lstm ? none : kept};
    combine(s, terms, 3);
    failed = rounded(s, 16, s->ds, &s->e_ds);
    if (!failed) failed = cell->back(s, kept);
    if (failed) return failed;
    int32_t *to_h = d.x + at * size;
    int64_t *e_to_h = d.e_x + at;
    shorten_wide(s, to_h, e_to_h);
    if (cell->at_h) {
        to_h = d.h + at * size;
        e_to_h = d.e_h + at;
        cell->at_h(s);
        shorten_wide(s, to_h, e_to_h);
    }
    failed = narrow(s, to_h, *e_to_h, bits, by->g16 + b * size, by->e_sums + b);
    if (failed || cell->gates == 1) return failed;
    s->out = by->kept + b * l->cells;
    over_units(s, keep);
    by->e_kept[b] = s->e_ds + GATE_EXPONENT;
    return FINE;
}

/* The gradient of h before a step, of all rows: sums of W * D, of 32 bits or of 64. reach: of W. */
static int back_products(const Layer *l, Through *by, int64_t reach, int threads) {
    int wide = samebits_max_i16(by->g16, all_columns(l), threads) * reach > Q32;
    Conv product = product_of(l);
    by->type = wide ? 64 : 32;
    by->is_last = 0;
    int64_t top = samebits_conv_input_grad(&product, by->g16, l->w, by->sums, wide, threads);
    return top < 0 ? NO_MEMORY : FINE;
}

/* D of all steps at the products of x and of h, int32 [steps][rows][gates * units], and their
 * exponents; the hidden states before all steps, and theirs; the gradients of h and of the state
 * before the first step, where there is a place for them. By rows there are exponents as above, and
 * so there are of g; of the first and last states one of every row.
 *
 * kind, layer: as above; h: of all steps, of an LSTM alone; states and exponents: of all steps; g:
 * the gradient of h, in integers of g_type, and at_last: that of the last state: each may be NULL.
 * bits: of D where it meets W. d_h: NULL where it is d_x. room: as above, and (5 * gates + 9) / 4
 * numbers a unit of a step, 2 a step of a block, 2 a block and 8. OUT_OF_RANGE: `found` is the
 * exponent. */
int samebits_recurrence_gradient(int64_t kind, const int64_t *layer, int64_t *room, const int8_t *h,
                                 const void *states, const int64_t *exponents, const void *g,
                                 int g_type, const int64_t *e_g, const void *at_last,
                                 int last_type, const int64_t *e_last, int bits, int8_t *past,
                                 int64_t *e_past, int32_t *first_h, int64_t *e_first_h,
                                 int32_t *first_state, int64_t *e_first_state, int32_t *d_h,
                                 int64_t *e_dh, int32_t *d_x, int64_t *e_dx, int64_t *found,
                                 int threads) {
    const Cell *cell = &CELLS[kind];
    Layer l = layer_of(layer, cell->gates, threads);
    int64_t n = l.blocks * l.cells, size = all_columns(&l), *own;
    int8_t *first;
    Step *all = first_steps(&l, &room, &first, &own);
    int64_t reach = samebits_reach(l.w, 1, l.width, l.units);
    int failed = all && reach >= 0 ? FINE : NO_MEMORY;
    int64_t *wide = taken(&room, 8 * size);
    int16_t *ds = taken(&room, 2 * n), *of_h = taken(&room, 2 * n);
    int64_t counts = 8 * l.steps * l.blocks;
    Outer d = {d_x, d_h, taken(&room, counts), taken(&room, counts)};
    Through by = {.sums = taken(&room, 8 * n), .e_sums = taken(&room, 8 * l.blocks),
                  .g16 = taken(&room, 2 * size), .kept = taken(&room, 4 * n),
                  .e_kept = taken(&room, 8 * l.blocks),
                  .last = {at_last, last_type, 31, e_last}, .is_last = 1};
    Arriving arriving = {g, g_type, 31, e_g};
    for (int64_t b = 0; b < l.blocks && !failed; b++) {
        all[b].wide = wide + b * l.rows * l.width;
        all[b].ds = ds + b * l.cells;
        all[b].d = of_h + b * l.cells;
    }
    for (int64_t place = l.steps - 1; place >= 0 && !failed; place--) {
        int64_t t = step_at(&l, place);
        EACH_BLOCK(l, all, failed,
                   step_before(s, cell, place, h, states, exponents, past, own))
        if (!failed) failed = products_of(&l, past + t * n, all->products, threads);
        if (!failed) EACH_BLOCK(l, all, failed, step_back(s, cell, arriving, &by, bits, d))
        if (!failed) failed = back_products(&l, &by, reach, threads);
    }
    if (failed) {
        if (all) *found = all->found;
        free(all);
        return failed;
    }
    Term none = {NULL, 64, 0, 0};
    int is_lstm = kind == LSTM;
    EACH_BLOCK(l, all, failed, shorten_terms(s, back_term(&l, &by, b), none, first_h, e_first_h))
    EACH_BLOCK(l, all, failed,
               shorten_terms(s, is_lstm ? none : back_term(&l, &by, b),
                             kept_term(&l, &by, cell, b), first_state, e_first_state))
    join(&l, past, 8, n, own, e_past);
    join(&l, d_x, 32, size, d.e_x, e_dx);
    if (cell->at_h) join(&l, d_h, 32, size, d.e_h, e_dh);
    free(all);
    return FINE;
}
