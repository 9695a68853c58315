/* A layer of LSTM cells in one direction: its operands, and the gates of a step, which both passes
 * compute. Section numbers: docs/spec/training.md.
 *
 * A step is rows (samples) of 4H gates (i, f, g, o) or H states; `table` is sigmoid, then tanh.
 * What a step needs beside its states is computed again in the backward pass.
 *
 * Bounds: gates and states are codes of 16 bits, below 2**15, so that a product of two of them with
 * 2**30 - u * u stays below 2**60; shifts bring two such terms to an exponent at which their sum
 * fits (section 3, combine). Vectors come from the compiler: arguments are computed in loops
 * without branches, lookups follow in loops of their own. */
#ifndef SAMEBITS_LSTM_H
#define SAMEBITS_LSTM_H

#include "exponent.h"
#include "moment.h"
#include "parallel.h"
#include "parts.h"

#define Q_GATE 32767
#define ONE ((int64_t)1 << 15)
#define ONE_SQUARED ((int64_t)1 << 30)
#define ARGUMENT_EXPONENT (-12)
#define GATE_EXPONENT (-15)
#define HIDDEN_EXPONENT (-7)
#define SUM_BITS 60 /* of the largest term of a sum (section 3, combine) */

/* What both passes are given.
 *
 * x: the products of x with its weight, int32 [steps][rows][4H]; w: the weight of h, [4H][H]
 * codes, delayed: of two biases, each of which may be NULL
 * h, c: before the first step; h is NULL where it is zero, and c may be */
typedef struct {
    const int32_t *x;
    int64_t e_x;
    const int8_t *w;
    int64_t e_w;
    const int8_t *codes[2];
    const int16_t *delayed[2];
    int64_t e_bias[2];
    const int8_t *h;
    int64_t e_h;
    const int16_t *c;
    int64_t e_c;
    int64_t steps, rows, units;
    int64_t reverse;
    const int16_t *table;
    int64_t cells; /* rows * units */
    int has_first; /* whether h is given, zero or not */
    int threads;
} Layer;

SAMEBITS_INLINE const void *place(int64_t word) { return (const void *)(intptr_t)word; }

SAMEBITS_INLINE int64_t number_at(int64_t word) { return word ? *(const int64_t *)place(word) : 0; }

/* words: the fields of a layer in their order, of an exponent where it is. */
SAMEBITS_INLINE Layer layer_of(const int64_t *words, int threads) {
    Layer l = {.x = place(words[0]), .e_x = number_at(words[1]), .w = place(words[2]),
               .e_w = number_at(words[3]), .h = place(words[10]), .e_h = number_at(words[11]),
               .c = place(words[12]), .e_c = number_at(words[13]), .steps = words[14],
               .rows = words[15], .units = words[16], .reverse = words[17],
               .table = place(words[18]), .cells = words[15] * words[16],
               .has_first = words[10] != 0, .threads = threads};
    for (int k = 0; k < 2; k++) {
        l.codes[k] = place(words[4 + 3 * k]);
        l.delayed[k] = place(words[5 + 3 * k]);
        l.e_bias[k] = number_at(words[6 + 3 * k]);
    }
    /* Zeros have the exponent of all other steps. */
    if (l.h && samebits_max_i8(l.h, l.cells, threads) == 0) l.h = NULL;
    if (!l.h) l.e_h = HIDDEN_EXPONENT;
    if (!l.c) l.e_c = EXPONENT_MIN;
    return l;
}

/* The step that comes at a place, and that before it: -1 before the first. */
SAMEBITS_INLINE int64_t step_at(const Layer *l, int64_t at) {
    return at < 0 ? -1 : l->reverse ? l->steps - 1 - at : at;
}

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

/* The exponent at which pre-activations are summed, for products with h of an exponent: shifts to
 * it of both products, from it to the tables' argument, and the sum of the biases on it [4H]. */
typedef struct {
    Shift x, h, z;
    int64_t *bias;
} Grid;

SAMEBITS_INLINE Grid grid_of(const Layer *l, int64_t e_hidden, int64_t *bias) {
    int64_t e_h = e_hidden + l->e_w, top = SAMEBITS_MAX(l->e_x, e_h) + 30;
    for (int k = 0; k < 2; k++)
        if (l->codes[k]) top = SAMEBITS_MAX(top, l->e_bias[k] + 23);
    int64_t e = top - SUM_BITS;
    for (int64_t i = 0; i < 4 * l->units; i++) {
        bias[i] = 0;
        for (int k = 0; k < 2; k++)
            if (l->codes[k])
                bias[i] += scale64(joint(l->codes[k][i], l->delayed[k][i]),
                                   shift_by(l->e_bias[k] - e));
    }
    return (Grid){shift_by(l->e_x - e), shift_by(e_h - e), saturating(e - ARGUMENT_EXPONENT), bias};
}

/* One gate of one row: arguments first, so that this loop vectorises, then the lookups. */
#define BLOCK 256

SAMEBITS_INLINE void gate_row(const int32_t *restrict x, const int32_t *restrict h,
                              const int64_t *restrict bias, int64_t units, Shift sx, Shift sh,
                              Shift sz, const int16_t *restrict entry, int16_t *restrict out) {
    int32_t z[BLOCK];
    for (int64_t k = 0; k < units; k += BLOCK) {
        int64_t len = units - k < BLOCK ? units - k : BLOCK;
        for (int64_t i = 0; i < len; i++) {
            int64_t a = scale64(x[k + i], sx) + bias[k + i];
            if (h) a += scale64(h[k + i], sh);
            z[i] = (int32_t)saturate(a, sz, Q_GATE);
        }
        for (int64_t i = 0; i < len; i++) out[k + i] = entry[z[i]];
    }
}

SAMEBITS_INLINE void gates_range(const int32_t *restrict x, const int32_t *restrict h, Grid grid,
                        int64_t rows, int64_t units, const int16_t *restrict table,
                        int16_t *restrict out) {
    for (int64_t r = 0; r < 4 * rows; r++) {
        const int16_t *entry = table + (r % 4 == 2 ? 2 * Q_GATE + 1 : 0) + Q_GATE;
        int64_t at = r * units;
        gate_row(x + at, h ? h + at : h, grid.bias + r % 4 * units, units, grid.x, grid.h, grid.z,
                 entry, out + at);
    }
}

/* The product of rows with the weight of h, as a convolution of one image. */
SAMEBITS_INLINE Conv product_of(const Layer *l) {
    return (Conv){1, 1, l->rows, l->units, 1, l->rows, 4 * l->units, 1, 1, 1, 1, 0, 0, 1, 1, 1};
}

/* Steps 1 and 2: the gates of step t; hidden: h before it, NULL where it is zero. products: room
 * for those with it. */
SAMEBITS_INLINE int gates_of(const Layer *l, int64_t t, const int8_t *hidden, Grid grid,
                             int32_t *products,
                    int16_t *gates) {
    int64_t c = 4 * l->units, top;
    const int32_t *x = l->x + t * l->rows * c, *h = hidden ? products : NULL;
    if (hidden) {
        Conv s = product_of(l);
        int failed = samebits_products(&s, hidden, l->w, products, &top, l->threads);
        if (failed) return failed;
    }
    int threads = l->threads;
    PARALLEL(l->rows, l->rows * c,
             gates_range(x + lo * c, h ? h + lo * c : h, grid, len, l->units, l->table,
                         gates + lo * c))
    return FINE;
}

#endif
