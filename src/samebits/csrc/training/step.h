/* A step of a layer of recurrent cells: its operands, and what the steps of all cells are made of.
 * Section numbers: docs/spec/training.md.
 *
 * A step is rows (samples) of gates, each of as many units; `table` is sigmoid, then tanh. What a
 * step needs beside its states is computed again in the backward pass. Rows that share exponents
 * are a block: all of them, or one where rows have exponents of their own (12).
 *
 * Bounds: gates and states are codes of 16 bits, below 2**15, so that a product of two of them with
 * 2**30 - u * u stays below 2**60; shifts bring two such terms to an exponent at which their sum
 * fits (section 3, combine). Vectors come from the compiler: arguments are computed in loops
 * without branches, lookups follow in loops of their own. */
#ifndef SAMEBITS_STEP_H
#define SAMEBITS_STEP_H

#include "exponent.h"
#include "moment.h"
#include "parallel.h"
#include "parts.h"
#include "rows.h"

#define Q_GATE 32767
#define ONE ((int64_t)1 << 15)
#define ONE_SQUARED ((int64_t)1 << 30)
#define ARGUMENT_EXPONENT (-12)
#define GATE_EXPONENT (-15)
#define HIDDEN_EXPONENT (-7)
#define SUM_BITS 60 /* of the largest term of a sum (section 3, combine) */

/* What both passes are given.
 *
 * x: the products of x with its weight, int32 [steps][blocks][rows][gates * units]; w: the weight
 * of h, [gates * units][units]
 * codes, delayed: of the biases of x and of h, each of which may be NULL
 * h, state: before the first step, NULL where they are zero; cells but the LSTM have no own h
 * e_x, e_w, e_h, e_state: exponents. by_rows: whether there are those of rows: e_x [steps][blocks],
 * e_h and e_state [blocks]; by_columns: e_x and e_w have one for every column of gates, too
 * blocks, rows: their number, and the rows of each */
typedef struct {
    const int32_t *x;
    const int64_t *e_x;
    const int8_t *w;
    const int64_t *e_w;
    const int8_t *codes[2];
    const int16_t *delayed[2];
    int64_t e_bias[2];
    const int8_t *h;
    const int64_t *e_h;
    const void *state;
    const int64_t *e_state;
    int64_t steps, blocks, rows, units;
    int64_t reverse, by_rows, by_columns;
    const int16_t *table;
    int64_t cells; /* rows * units */
    int64_t width; /* gates * units */
    int threads, crews; /* in a block, and that share the blocks */
} Layer;

SAMEBITS_INLINE const void *place(int64_t word) { return (const void *)(intptr_t)word; }

SAMEBITS_INLINE int64_t number_at(int64_t word) { return word ? *(const int64_t *)place(word) : 0; }

/* words: the fields of a layer in their order, of an exponent where it is. */
SAMEBITS_INLINE Layer layer_of(const int64_t *words, int64_t gates, int threads) {
    int64_t rows = words[15], units = words[16], by_rows = words[19];
    Layer l = {.x = place(words[0]), .e_x = place(words[1]), .w = place(words[2]),
               .e_w = place(words[3]), .h = place(words[10]), .e_h = place(words[11]),
               .state = place(words[12]), .e_state = place(words[13]), .steps = words[14],
               .blocks = by_rows ? rows : 1, .rows = by_rows ? 1 : rows, .units = units,
               .reverse = words[17], .table = place(words[18]), .by_rows = by_rows,
               .by_columns = words[20], .width = gates * units, .threads = by_rows ? 1 : threads,
               .crews = by_rows ? TEAM(rows * gates * units) : 1};
    l.cells = l.rows * units;
    for (int k = 0; k < 2; k++) {
        l.codes[k] = place(words[4 + 3 * k]);
        l.delayed[k] = place(words[5 + 3 * k]);
        l.e_bias[k] = number_at(words[6 + 3 * k]);
    }
    return l;
}

/* All rows, and all columns of gates. */
SAMEBITS_INLINE int64_t all_rows(const Layer *l) { return l->blocks * l->rows; }

SAMEBITS_INLINE int64_t all_columns(const Layer *l) { return all_rows(l) * l->width; }

/* The step that comes at a place. */
SAMEBITS_INLINE int64_t step_at(const Layer *l, int64_t at) {
    return l->reverse ? l->steps - 1 - at : at;
}

/* Integers of 8 to 64 bits below 2**bits, and their exponent; NULL: none. */
typedef struct {
    const void *v;
    int64_t type, exponent, bits;
} Term;

/* The columns of gates that are summed at an exponent, and the shifts of both products to it.
 * in_line: whether in the place of products of h are those of one gate, [rows][units] */
typedef struct {
    int64_t first, count, e;
    int with_x, in_line;
    Shift x, h;
    const int64_t *bias; /* on that exponent */
} Columns;

/* A step of a block, and room for what is computed in it.
 *
 * block: its number
 * h, before, after: h before it, the states before it and after it; NULL: zero
 * e_x, e_w: the exponents of products, or of their columns (e_w of NULL: 0)
 * products: those of h, [rows][gates * units]; gates: the values of all, [gates][rows][units]
 * m: of a GRU, the product that r lets in; in the backward pass of an LSTM, the tanh of its state
 * sums: of a unit each, at the exponent e_sums; wide: of a gate each, at e_wide; top: the largest
 * magnitude of what was written last
 * ds: the gradient of the state; d: that of the gate n of a GRU, or of h of an LSTM
 * bias: room for sums of biases, for gates with that of x and without; bias_at: their exponents
 * each: the exponents of the sums by column, where they are those of a gate by columns
 * found: the exponent that was found last; status: how the step ended */
typedef struct {
    const Layer *l;
    const int8_t *h;
    const void *before, *after;
    const int64_t *e_x, *e_w;
    int64_t block, e_h, e_before, e_after, t;
    int32_t *products;
    int16_t *gates, *m, *ds, *d;
    int64_t e_m, e_ds, e_d;
    int64_t *sums, *wide, e_sums, e_wide, top;
    int64_t *bias, bias_at[4], *each, found;
    Columns columns;
    Shift shift[4];
    void *out;
    int is_each, status;
} Step;

/* The place of a step of a block among all of them. */
SAMEBITS_INLINE int64_t at_step(const Step *s) { return s->t * s->l->blocks + s->block; }

/* Begin the step t. */
SAMEBITS_INLINE void begin(Step *s, int64_t t) {
    const Layer *l = s->l;
    s->t = t;
    s->e_x = l->e_x + (l->by_rows ? at_step(s) * (l->by_columns ? l->width : 1) : 0);
    s->e_w = l->e_w;
}

/* --- passes ---------------------------------------------------------------------------------- */

typedef int64_t Pass(const Step *s, int64_t first, int64_t count);

/* The largest magnitude that a pass over rows finds; over units of rows, which lie in a line. */
#define OVER(name, size)                                                                       \
    static int64_t name(const Step *s, Pass *pass) {                                           \
        int64_t top;                                                                           \
        int threads = s->l->threads;                                                           \
        PARALLEL_MAX(s->l->size, s->l->rows * s->l->width, top, pass(s, lo, len))              \
        return top;                                                                            \
    }
OVER(over_rows, rows)
OVER(over_units, cells)

/* sat(v, limit) of the specification: codes are symmetric. */
SAMEBITS_INLINE int64_t clamp(int64_t v, int64_t limit) {
    return samebits_clamp64(v, -limit, limit);
}

/* sat(rne(v * 2**exponent), limit); `s` is of an exponent of at most 15: more saturates as much. */
SAMEBITS_INLINE int64_t saturate(int64_t v, Shift s, int64_t limit) {
    if (s.left) v = clamp(v, limit);
    return clamp(scale64(v, s), limit);
}

SAMEBITS_INLINE Shift saturating(int64_t exponent) {
    return shift_by(exponent > 15 ? 15 : exponent);
}

/* The entry of the argument 0 of sigmoid or tanh. */
SAMEBITS_INLINE const int16_t *entries(const Layer *l, int tanh) {
    return l->table + (tanh ? 2 * Q_GATE + 1 : 0) + Q_GATE;
}

/* --- sums (section 3, combine) --------------------------------------------------------------- */

#define SCALED(name, type)                                                                     \
    static void name(const type *restrict v, int64_t n, Shift s, int add, int64_t *restrict out) { \
        for (int64_t i = 0; i < n; i++) out[i] = scale64(v[i], s) + (add ? out[i] : 0);        \
    }
SCALED(scaled8, int8_t)
SCALED(scaled16, int16_t)
SCALED(scaled32, int32_t)
SCALED(scaled64, int64_t)

#define SCALE(bits)                                                                            \
    if (term.type == bits)                                                                     \
    PARALLEL(n, n, scaled##bits((const int##bits##_t *)term.v + lo, len, by, add, out + lo))

/* out = the term at the exponent e, rounded; or what is added to it. */
static void scaled(Term term, int64_t n, int64_t e, int add, int64_t *out, int threads) {
    Shift by = shift_by(term.exponent - e);
    SCALE(8)
    SCALE(16)
    SCALE(32)
    SCALE(64)
}

/* The sum of terms of a unit each, as `sums`; 0 where there is none. */
static void combine(Step *s, const Term *terms, int count) {
    int64_t top = EXPONENT_MIN + SUM_BITS, n = s->l->cells;
    int some = 0;
    for (int i = 0; i < count; i++) {
        if (!terms[i].v) continue;
        int64_t own = terms[i].exponent + terms[i].bits;
        top = some ? SAMEBITS_MAX(top, own) : own;
        some = 1;
    }
    s->e_sums = top - SUM_BITS;
    s->is_each = 0;
    if (!some) memset(s->sums, 0, (size_t)n * sizeof *s->sums);
    some = 0;
    for (int i = 0; i < count; i++) {
        if (!terms[i].v) continue;
        scaled(terms[i], n, s->e_sums, some, s->sums, s->l->threads);
        some = 1;
    }
    s->top = samebits_max_i64(s->sums, n, s->l->threads);
}

/* The sums as codes of 8 or 16 bits. */
static int rounded(Step *s, int bits, void *codes, int64_t *exponent) {
    int64_t n = s->l->cells;
    int failed;
    if (s->is_each) {
        const Rows row = {.a = 1, .b = 1, .c = n, .step_c = 1};
        const int64_t none = 0;
        failed = samebits_requantize_rows(&row, s->sums, 64, s->each, &none, bits, LIMITED, codes,
                                          bits, exponent, &s->found, s->l->threads);
    } else {
        failed = samebits_requantize(s->sums, 64, n, &s->top, &s->e_sums, bits, codes, bits,
                                     exponent, s->l->threads);
    }
    s->found = *exponent;
    return failed;
}

/* --- gates ----------------------------------------------------------------------------------- */

enum Sides { OF_X = 1, OF_H = 2, BOTH = 3 }; /* the product of x and its bias; the bias of h */

/* Choose `count` gates from `first` on, which add the products of h, of an exponent, and what
 * `sides` says. */
static void choose(Step *s, int64_t first, int64_t count, int sides, int64_t e_h) {
    const Layer *l = s->l;
    int64_t e_x = *s->e_x, *bias = s->bias + (sides == OF_X ? l->width : 0);
    if (s->e_w) e_h += *s->e_w;
    int64_t top = e_h + 30;
    if (sides & OF_X) top = SAMEBITS_MAX(top, e_x + 30);
    for (int k = 0; k < 2; k++)
        if (sides >> k & 1 && l->codes[k]) top = SAMEBITS_MAX(top, l->e_bias[k] + 23);
    int64_t e = top - SUM_BITS, from = first * l->units;
    s->columns = (Columns){first, count, e, (sides & OF_X) != 0, sides == OF_X,
                           shift_by(e_x - e), shift_by(e_h - e), bias};
    if (s->bias_at[sides] == e) return;
    s->bias_at[sides] = e;
    memset(bias + from, 0, (size_t)(count * l->units) * sizeof *bias);
    for (int k = 0; k < 2; k++) {
        if (!(sides >> k & 1) || !l->codes[k]) continue;
        Shift by = shift_by(l->e_bias[k] - e);
        for (int64_t i = from; i < from + count * l->units; i++)
            bias[i] += scale64(joint(l->codes[k][i], l->delayed[k][i]), by);
    }
}

/* x * 2**sx + h * 2**sh + bias, of a column; x may be NULL. */
SAMEBITS_INLINE int64_t added(const int32_t *restrict x, const int32_t *restrict h,
                              const int64_t *restrict bias, int64_t k, Columns c) {
    int64_t a = scale64(h[k], c.h) + bias[k];
    return x ? a + scale64(x[k], c.x) : a;
}

/* The products of x of a row, from a column on; NULL where they are not added. */
SAMEBITS_INLINE const int32_t *row_of_x(const Step *s, int64_t at) {
    return s->columns.with_x ? s->l->x + at_step(s) * s->l->rows * s->l->width + at : NULL;
}

/* The sums of one gate, as they are. */
static int64_t sum_rows(const Step *s, int64_t first, int64_t rows) {
    int64_t u = s->l->units, from = s->columns.first * u;
    for (int64_t r = first; r < first + rows; r++) {
        int64_t at = r * s->l->width + from, *restrict out = s->sums + r * u;
        const int32_t *x = row_of_x(s, at), *h = s->products + at;
        for (int64_t k = 0; k < u; k++) out[k] = added(x, h, s->columns.bias + from, k, s->columns);
    }
    return samebits_max_i64(s->sums + first * u, rows * u, 1);
}

/* The same of a gate whose columns have exponents, `each`; there is one row. */
static void sum_columns(Step *s, int64_t gate, int sides, int64_t e_h) {
    const Layer *l = s->l;
    int64_t u = l->units, from = gate * u, *restrict e = s->each, *restrict out = s->sums;
    const int64_t *restrict e_x = s->e_x + from, *restrict e_w = s->e_w ? s->e_w + from : NULL;
    const int32_t *restrict x = l->x + at_step(s) * l->width + from;
    const int32_t *restrict h = s->products + (sides == OF_X ? 0 : from);
    int64_t least = INT64_MIN;
    for (int k = 0; k < 2; k++)
        if (sides >> k & 1 && l->codes[k]) least = SAMEBITS_MAX(least, l->e_bias[k] + 23);
    for (int64_t k = 0; k < u; k++) {
        int64_t top = e_h + (e_w ? e_w[k] : 0) + 30;
        if (sides & OF_X) top = SAMEBITS_MAX(top, e_x[k] + 30);
        e[k] = SAMEBITS_MAX(top, least) - SUM_BITS;
    }
    for (int64_t k = 0; k < u; k++) out[k] = scale_each64(h[k], e_h + (e_w ? e_w[k] : 0) - e[k]);
    if (sides & OF_X)
        for (int64_t k = 0; k < u; k++) out[k] += scale_each64(x[k], e_x[k] - e[k]);
    for (int side = 0; side < 2; side++) {
        if (!(sides >> side & 1) || !l->codes[side]) continue;
        const int8_t *restrict w = l->codes[side] + from;
        const int16_t *restrict a = l->delayed[side] + from;
        int64_t e_b = l->e_bias[side];
        for (int64_t k = 0; k < u; k++) out[k] += scale_each64(joint(w[k], a[k]), e_b - e[k]);
    }
    s->is_each = 1;
}

/* The sums of a gate; e_h: the exponent of what meets the weight of h. */
static void sum_gate(Step *s, int64_t gate, int sides, int64_t e_h) {
    if (s->l->by_columns) {
        sum_columns(s, gate, sides, e_h);
        return;
    }
    choose(s, gate, 1, sides, e_h);
    s->e_sums = s->columns.e;
    s->is_each = 0;
    s->top = over_rows(s, sum_rows);
}

#define BLOCK 256 /* arguments first, so that their loops vectorise, then the lookups */

SAMEBITS_INLINE void open_row(const int32_t *restrict x, const int32_t *restrict h,
                              const int64_t *restrict bias, int64_t units, Columns c,
                              const int16_t *restrict entry, int16_t *restrict out) {
    int32_t z[BLOCK];
    Shift by = saturating(c.e - ARGUMENT_EXPONENT);
    for (int64_t k = 0; k < units; k += BLOCK) {
        int64_t len = units - k < BLOCK ? units - k : BLOCK;
        for (int64_t i = 0; i < len; i++)
            z[i] = (int32_t)saturate(added(x, h, bias, k + i, c), by, Q_GATE);
        for (int64_t i = 0; i < len; i++) out[k + i] = entry[z[i]];
    }
}

/* Opens the chosen gates, of which that at the place 2, or a single one, is a tanh. */
static int64_t open_rows(const Step *s, int64_t first, int64_t rows) {
    const Layer *l = s->l;
    Columns c = s->columns;
    for (int64_t r = first; r < first + rows; r++)
        for (int64_t gate = c.first; gate < c.first + c.count; gate++) {
            int64_t own = gate * l->units, at = r * l->width + own, to = r * l->units;
            open_row(row_of_x(s, at), s->products + (c.in_line ? to : at), c.bias + own, l->units,
                     c, entries(l, gate == 2 || l->width == l->units),
                     s->gates + gate * l->cells + to);
        }
    return 0;
}

/* A gate from sums by column. */
static void open_columns(const Step *s, int64_t gate) {
    const Layer *l = s->l;
    const int16_t *restrict entry = entries(l, gate == 2 || l->width == l->units);
    int16_t *restrict out = s->gates + gate * l->cells;
    int32_t z[BLOCK];
    for (int64_t k = 0; k < l->units; k += BLOCK) {
        int64_t len = SAMEBITS_MIN(l->units - k, BLOCK);
        for (int64_t i = 0; i < len; i++) {
            int64_t by = s->each[k + i] - ARGUMENT_EXPONENT, v = s->sums[k + i];
            if (by > 0) v = clamp(v, Q_GATE);
            z[i] = (int32_t)clamp(scale_each64(v, SAMEBITS_MIN(by, 15)), Q_GATE);
        }
        for (int64_t i = 0; i < len; i++) out[k + i] = entry[z[i]];
    }
}

static void open_gates(Step *s, int64_t first, int64_t count, int sides, int64_t e_h) {
    if (!s->l->by_columns) {
        choose(s, first, count, sides, e_h);
        over_rows(s, open_rows);
    } else {
        for (int64_t gate = first; gate < first + count; gate++) {
            sum_columns(s, gate, sides, e_h);
            open_columns(s, gate);
        }
    }
}

/* The product of all rows with the weight of h, as a convolution of one image. */
SAMEBITS_INLINE Conv product_of(const Layer *l) {
    int64_t n = all_rows(l);
    return (Conv){1, 1, n, l->units, 1, n, l->width, 1, 1, 1, 1, 0, 0, 1, 1, 1};
}

/* The products of all rows of h, NULL: zero, before a step. */
static int products_of(const Layer *l, const int8_t *h, int32_t *out, int threads) {
    int64_t top;
    Conv product = product_of(l);
    if (h) return samebits_products(&product, h, l->w, out, &top, threads);
    memset(out, 0, (size_t)all_columns(l) * sizeof *out);
    return FINE;
}

#endif
