/* The states of a layer of LSTM cells, all steps over time (docs/spec/training.md, 5). */
#include "lstm.h"

/* Step 3 before its rounding: f * c + i * g, each shifted; `c` may be NULL. Returns the largest
 * magnitude. */
static int64_t state_sum(const int16_t *restrict gates, const int16_t *restrict c, int64_t rows,
                         int64_t units, Shift sc, Shift sg, int64_t *restrict out) {
    int64_t top = 0;
    for (int64_t r = 0; r < rows; r++, gates += 4 * units)
        for (int64_t k = 0; k < units; k++) {
            int64_t at = r * units + k;
            int64_t a = scale64((int64_t)gates[k] * gates[2 * units + k], sg);
            if (c) a += scale64((int64_t)gates[units + k] * c[at], sc);
            out[at] = a;
            a = samebits_magnitude64(a);
            top = SAMEBITS_MAX(top, a);
        }
    return top;
}

/* Step 4. */
static void hidden_of(const int16_t *restrict gates, const int16_t *restrict c, int64_t rows,
                      int64_t units, int64_t e_c, const int16_t *restrict table,
                      int8_t *restrict out) {
    const int16_t *tanh = table + 2 * Q_GATE + 1 + Q_GATE;
    Shift su = saturating(e_c - ARGUMENT_EXPONENT);
    Shift down = shift_by(2 * GATE_EXPONENT - HIDDEN_EXPONENT);
    for (int64_t r = 0; r < rows; r++, gates += 4 * units)
        for (int64_t k = 0; k < units; k++) {
            int64_t u = tanh[saturate(c[r * units + k], su, Q_GATE)];
            out[r * units + k] = (int8_t)clamp(scale64(gates[3 * units + k] * u, down), 127);
        }
}

/* h and c of all steps, and of each the exponent of c. layer: see `layer_of`; room: of 4
 * numbers a cell of a step and 4 a unit; last: the exponent of c after the last step, or the
 * one that is above 127. */
int samebits_lstm(const int64_t *layer, int64_t *room, int8_t *h, int16_t *c, int64_t *e_c,
                  int64_t *last, int threads) {
    Layer l = layer_of(layer, threads);
    int64_t *sums = room, *bias = room + 4 * l.cells;
    int32_t *products = (int32_t *)(room + l.cells);
    int16_t *gates = (int16_t *)(room + 3 * l.cells);
    const int8_t *hidden = l.h;
    const int16_t *before = l.c;
    Grid grid = grid_of(&l, l.e_h, bias);
    *last = l.e_c;
    for (int64_t place = 0; place < l.steps; place++) {
        int64_t t = step_at(&l, place), at = t * l.cells;
        if (place == 1 && l.h) grid = grid_of(&l, HIDDEN_EXPONENT, bias);
        int failed = gates_of(&l, t, hidden, grid, products, gates);
        if (failed) return failed;
        int64_t e_kept = *last + GATE_EXPONENT, e_new = 2 * GATE_EXPONENT, top;
        int64_t e = SAMEBITS_MAX(e_kept, e_new) + 30 - SUM_BITS, u = l.units;
        Shift sc = shift_by(e_kept - e), sg = shift_by(e_new - e);
        PARALLEL_MAX(l.rows, l.cells, top,
                     state_sum(gates + lo * 4 * u, before ? before + lo * u : before, len, u, sc,
                               sg, sums + lo * u))
        failed = samebits_requantize(sums, 64, l.cells, &top, &e, 16, c + at, 16, last, threads);
        if (failed) return failed;
        e_c[t] = *last;
        PARALLEL(l.rows, l.cells,
                 hidden_of(gates + lo * 4 * u, c + at + lo * u, len, u, *last, l.table,
                           h + at + lo * u))
        hidden = h + at;
        before = c + at;
    }
    return FINE;
}
