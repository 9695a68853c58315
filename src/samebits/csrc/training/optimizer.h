/* What the kernels of an optimizer's step take (docs/spec/training.md, sections 2 to 4), and those
 * that `samebits_optimize` calls. */
#ifndef SAMEBITS_OPTIMIZER_H
#define SAMEBITS_OPTIMIZER_H

#include <stddef.h>

#include "moment.h"
#include "parts.h"

/* combine50(): gradient, weight-decay and momentum terms at one exponent. The gradient may still
 * lie in two parts, each with the shift that aligns it (1.3); their sum fits in 32 bits. */
typedef struct {
    const int32_t *g, *second;
    const int8_t *w;
    const int16_t *a, *v;
    const int64_t *rows; /* shift_decay of every row; NULL: one for all */
    int64_t row_size;
    int64_t decay, momentum; /* 16-bit coefficients, 0 = term absent */
    /* Exponents, in [-900, 900]; of the momentum that of a code with F = 0. */
    int64_t shift_first, shift_second, shift_g, shift_decay, shift_momentum;
} Terms;

/* What is subtracted from J: m * P, where a code with F = 0 has the exponent `shift` against J; m
 * below 2**16, shift at most -43, so that every |u| is below 2**46. */
typedef struct {
    const int16_t *p;
    int64_t m, shift;
    Draw draw;
} Update;

/* The operands of one step of Adam. */
typedef struct {
    const int32_t *g;
    const int8_t *w;
    const int16_t *a;
    int16_t *first, *root;
    const int64_t *rows; /* e_A of every row; NULL: scale_a counts for all */
    int64_t row_size;
    double scale_g, scale_a; /* 2**e_G and 2**e_A */
    double beta1, beta2, rest1, rest2, coupled, decoupled, c1, c2, eps;
    int64_t base_first, base_root; /* e - 63 of the moments as they are stored */
    int64_t bias_first, bias_root; /* of those that are written */
} AdamTerms;

int64_t samebits_combine(const Terms *t, const Draw *draw, int64_t n, int64_t bias, int16_t *out,
                         int threads);
void samebits_sgd(const Terms *t, const Update *u, int8_t *w, int16_t *a, int16_t *v, int64_t n,
                  int64_t bias, int64_t *tops, int threads);
void samebits_lazy_update(int8_t *w, int16_t *a, const Update *u, int64_t n, int commit,
                          int64_t *tops, int threads);
void samebits_lazy_resplit(int8_t *w, int16_t *a, const Update *u, int64_t by, int64_t n,
                           int threads);
void samebits_lazy_rows(int8_t *w, int16_t *a, const Update *u, int64_t *exponents, int64_t limit,
                        int64_t rows, int64_t size, int threads);
int64_t samebits_lazy_move(int64_t largest, int64_t joint, int64_t exponent, int64_t limit);
void samebits_adam_tops(const AdamTerms *t, int64_t n, int64_t *tops, int threads);
void samebits_adam_store(const AdamTerms *t, const Draw *draw, int64_t n, int threads);
int64_t samebits_adam_direction(const AdamTerms *t, int64_t n, int64_t bias, int16_t *out,
                                int threads);

#endif
