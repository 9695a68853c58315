/* Sequences on a device: products of activations, norms of vectors, recurrent layers.
 * What samebits_train.h says holds here. */
#ifndef SAMEBITS_TRAIN_SEQUENCES_H
#define SAMEBITS_TRAIN_SEQUENCES_H

#include "samebits_train.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Products of matrices: y[i][j] is the sum over k of a[i][k] * b[j][k]. heads: matrices of a
 * sample; columns: of y; vectors: whether the rows of a have an exponent each. */
typedef struct {
    int32_t sample, head, row, column;
} samebits_strides;
typedef struct {
    int32_t n, heads, rows, columns, terms, vectors;
    samebits_strides a, b, y;
} samebits_matrices;

/* Vectors of d numbers, which are normalized one by one; centred: their mean is subtracted. */
typedef struct {
    int32_t rows, d;
    double eps;
    int32_t centred;
} samebits_vectors;

/* What a norm knows of a vector; and what its gradient sums up. */
typedef struct {
    double factor;
    int32_t sum;
    int16_t low, high;
} samebits_vector;
typedef struct {
    int64_t sum, product;
} samebits_dots;

/* sigmoid or tanh of the arguments j * 2**-12, j >= 0, in units of 2**-15: lines between the ends
 * of each SAMEBITS_TRAIN_LINE arguments; and by how much values are off, and 1, four in a byte. */
#define SAMEBITS_TRAIN_LINE 32
typedef struct {
    const int16_t *ends;
    const uint8_t *off;
} samebits_curve;

/* A layer of recurrent cells in one direction, which takes the last step first if it is a reverse
 * one. biases: or NULL. curves: sigmoid, tanh */
enum {
    SAMEBITS_TRAIN_LSTM,
    SAMEBITS_TRAIN_GRU,
    SAMEBITS_TRAIN_TANH,
    SAMEBITS_TRAIN_RECTIFIED
};
typedef struct {
    int32_t n, steps, inputs, units, kind, reverse;
    const samebits_parameter *w_ih, *w_hh, *b_ih, *b_hh;
    const samebits_curve *curves;
} samebits_cells;

/* --- forward ---------------------------------------------------------------------------------- */

/* y in 32 bits; times a number, of gradients too; 8 bits of what has 32. */
int samebits_train_matrices(const samebits_matrices *s, const int8_t *a, const int32_t *e_a,
                            const int8_t *b, int32_t e_b, int32_t *y, int32_t *e_y);
void samebits_train_times(samebits_gradient x, int32_t n, samebits_coefficient m, int32_t *y,
                          int32_t *e_y);
int samebits_train_codes(const int32_t *x, int32_t n, int32_t e, int8_t *y, int32_t *e_y);

/* Vectors of c shares in 8 bits, each with an exponent, as products take them. row: c numbers */
void samebits_train_softmax(const int32_t *z, int32_t vectors, int32_t c, int32_t e,
                            const int64_t *tables, int64_t *row, int8_t *y, int32_t *e_y);

/* Vectors, times gamma plus beta, each of which may be NULL. For the gradient: xhat, 8 bits of the
 * normalized vectors, or NULL, and m, their factors. */
int samebits_train_vector_norm(const samebits_vectors *s, const int8_t *z, int32_t e_z,
                               const samebits_parameter *gamma, const samebits_parameter *beta,
                               samebits_vector *room, int8_t *xhat, int32_t *e_xhat, int32_t *m,
                               int32_t *e_m, int8_t *y, int32_t *e_y);

/* Rows of h, [n][steps][units], of rows of x. states: [steps][n][units]; e_steps: their exponents,
 * and those of h, of each step. of_steps, to_steps: whether every step of x or of h has an exponent
 * of its own (12). room: of 8, 2 * gates and 2 bytes a unit of a sample, each up to a multiple of
 * 8. */
int samebits_train_recurrence(const samebits_cells *s, const int8_t *x, const int32_t *e_x,
                              int32_t of_steps, void *room, int16_t *states, int32_t *e_steps,
                              int8_t *h, int32_t *e_h, int32_t to_steps);

/* --- backward --------------------------------------------------------------------------------- */

/* Of a, from 16 bits; of b; of the input of a softmax. */
int samebits_train_matrices_a(const samebits_matrices *s, const int16_t *g, int32_t e_g,
                              const int8_t *b, int32_t e_b, int16_t *da, int32_t *e_da);
int samebits_train_matrices_b(const samebits_matrices *s, samebits_gradient g, const int8_t *a,
                              const int32_t *e_a, int16_t *db, int32_t *e_db);
int samebits_train_softmax_gradient(const int16_t *g, int32_t e_g, const int8_t *y,
                                    const int32_t *e_y, int32_t vectors, int32_t c, int32_t *dz,
                                    int32_t *e_dz);
int samebits_train_vector_norm_gradient(const samebits_vectors *s, samebits_gradient g,
                                        const samebits_parameter *gamma, const int8_t *xhat,
                                        int32_t e_xhat, const int32_t *m, int32_t e_m,
                                        samebits_dots *room, int32_t *dx, int32_t *e_dx);

/* D of all steps at the products of x, and of h if they are a GRU's (else it is the same, and d_h
 * NULL): rows [n][steps][gates * units] of 32 bits; and h before each step, as rows. e_steps: room
 * for two more of each step. room: as above, with 8, 4, 2 and 2 bytes more. */
int samebits_train_recurrence_gradient(const samebits_cells *s, const int8_t *x, int32_t e_x,
                                       void *room, const int16_t *states, int32_t *e_steps,
                                       const int8_t *h, samebits_gradient g, int8_t *past,
                                       int32_t *e_past, int32_t *d_x, int32_t *e_dx, int32_t *d_h,
                                       int32_t *e_dh);

/* --- bounds ----------------------------------------------------------------------------------- */

/* Of gamma, beta (NULL: none of it is trained), and of the gradient of vectors; scale: of its
 * products, or NULL. */
void samebits_train_bound_vectors(samebits_bounds *b, const samebits_vectors *s,
                                  const samebits_parameter *gamma, const samebits_parameter *beta,
                                  const samebits_parameter *scale, int32_t e_xhat, int32_t e_m,
                                  const samebits_optimizer *o);
/* Of the larger of both gradients of a product of matrices, a below 2**a and b below 2**b; of a
 * softmax; of what is multiplied by up to 2**by. */
void samebits_train_bound_matrices(samebits_bounds *b, const samebits_matrices *s, int32_t of_a,
                                   int32_t of_b);
void samebits_train_bound_softmax(samebits_bounds *b, int32_t c);
void samebits_train_bound_times(samebits_bounds *b, int32_t by);
/* Of D of a layer of cells. */
void samebits_train_bound_cells(samebits_bounds *b, const samebits_cells *s);

#ifdef __cplusplus
}
#endif

#endif
