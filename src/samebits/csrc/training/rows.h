/* Integers of several exponents (docs/spec/training.md, 12.1). */
#ifndef SAMEBITS_ROWS_H
#define SAMEBITS_ROWS_H

#include <stdint.h>

/* A dense tensor as [a][b][c], where the exponent of [i][j][k] is at i * step_a + j * step_b +
 * k * step_c, and the row of the result that it belongs to at i * row_a + j * row_b + k * row_c. A
 * step is 0 along an axis that shares them. */
typedef struct {
    int64_t a, b, c, step_a, step_b, step_c, row_a, row_b, row_c;
} Rows;

/* How the exponent of a row is chosen: in [-128, 127], in no bounds, none below those of its
 * elements (1.2), or the largest of these (align, 12.1); or so where a row has elements of several
 * exponents, and else it stays. */
enum { LIMITED, UNLIMITED, SHORTENED, ALIGNED, MOVED };

int samebits_requantize_rows(const Rows *s, const void *v, int type, const int64_t *exponents,
                             const int64_t *beside, int bits, int kind, void *codes, int to,
                             int64_t *own, int64_t *highest, int threads);
void samebits_gather(const int64_t *sums, int64_t count, int64_t c, const int64_t *exponents,
                     int64_t bits, int64_t *out, int64_t *own);

#endif
