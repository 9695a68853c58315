/* A step of a layer of recurrent cells: what both passes over time share. */
#ifndef SAMEBITS_TRAIN_CELLS_H
#define SAMEBITS_TRAIN_CELLS_H

#include "samebits_train_sequences.h"
#include "train_scalars.h"

#define SUM_BITS 60 /* of the largest term of a sum (3, combine) */
#define ONE ((int64_t)1 << 15)
#define ONE_SQUARED ((int64_t)1 << 30)
#define GATE_EXPONENT (-15)
#define HIDDEN_EXPONENT (-7)

/* t:       the step
 * x, h:    rows of all steps; rows of h before the step, or NULL: zero. before: the state, likewise
 * cells:   n * units. sums: of each, at e_sums; gates: [gates][cells]; m: what r of a GRU lets in,
 *          or tanh of the state of an LSTM in the backward pass
 * back:    products of D and the weight of h, of the step behind; kept: what its state keeps
 * ds, d:   the gradient of the state; of h of an LSTM, or of n of a GRU */
typedef struct {
    const samebits_cells *s;
    const int8_t *x, *h;
    const int16_t *before;
    int32_t t, cells, e_x, e_h, e_before, e_sums, e_m, e_back, e_kept, e_ds, e_d;
    int64_t *sums, *back;
    int32_t *kept;
    int16_t *gates, *m, *ds, *d;
} Steps;

SAMEBITS_INLINE int32_t gates_of(const samebits_cells *s) {
    return s->kind == SAMEBITS_TRAIN_LSTM ? 4 : s->kind == SAMEBITS_TRAIN_GRU ? 3 : 1;
}

/* The step at a place of the order in which they are taken. */
SAMEBITS_INLINE int32_t step_at(const samebits_cells *s, int32_t place) {
    return s->reverse ? s->steps - 1 - place : place;
}

Steps samebits_train_steps(const samebits_cells *s, const int8_t *x, void *room, int back);

/* To the step at a place, with h and the states of all steps before it. */
void samebits_train_step_to(Steps *v, int32_t place, const int8_t *h, int32_t e_h,
                            const int16_t *states, const int32_t *e_states);

/* The values of all gates; of a RELU whether they are positive, and its sums. */
int samebits_train_open(Steps *v);

/* The value of sigmoid or tanh at v * 2**e, of exponent -15. */
int32_t samebits_train_looked_up(const samebits_curve *c, int is_tanh, int64_t v, int32_t e);

/* The sums in 16 bits; a state as rows of h. */
int samebits_train_round_sums(const Steps *v, int32_t e, int16_t *out, int32_t *e_out);
int samebits_train_hidden(Steps *v, const int16_t *state, int32_t e, int8_t *h, int32_t *e_h);

/* Rows of all steps, of 8 or 32 bits, at the largest exponent of steps that are not all zero. */
int32_t samebits_train_joined(const samebits_cells *s, int32_t width, void *codes, int bits,
                              const int32_t *e);

#endif
