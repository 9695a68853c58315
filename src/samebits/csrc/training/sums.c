/* What is added to sums of several exponents, and the sums over rows of such integers
 * (docs/spec/training.md, 5, 7 and 12). */
#include <stdlib.h>
#include <string.h>

#include "exponent.h"
#include "parallel.h"
#include "parts.h"
#include "rows.h"

/* --- biases ---------------------------------------------------------------------------------- */

/* The bias at the common exponents of a row of sums, and the shifts of these. */
static void bias_at(const int32_t *value, int64_t e_b, const int64_t *e, const int64_t *own,
                    int64_t c, int32_t *by, int32_t *bias) {
    for (int64_t k = 0; k < c; k++) {
        by[k] = (int32_t)SAMEBITS_MAX(e[k] - own[k], -31);
        bias[k] = (int32_t)scale_each64(value[k], e_b - own[k]);
    }
}

static void add_biases(int32_t *restrict acc, int64_t rows, int64_t c, const int32_t *restrict by,
                       const int32_t *restrict bias) {
    for (int64_t r = 0; r < rows; r++, acc += c)
        for (int64_t k = 0; k < c; k++) acc[k] = scale_each32(acc[k], by[k]) + bias[k];
}

/* The same of rows of one exponent. */
static void add_bias(int32_t *restrict acc, int64_t rows, int64_t c, const int32_t *restrict value,
                     int64_t e_b, int64_t e, int64_t own, int32_t *restrict bias) {
    Shift of_bias = shift_by(e_b - own);
    Shift32 s = shift32_by(e - own);
    for (int64_t k = 0; k < c; k++) bias[k] = (int32_t)scale64(value[k], of_bias);
    for (int64_t r = 0; r < rows; r++, acc += c)
        for (int64_t k = 0; k < c; k++) acc[k] = scale32(acc[k], s) + bias[k];
}

/* Adds the bias J = W * 2**15 - A (exponent *e_b) to sums [rows][c] below 2**30, in place, each at
 * the exponent that leaves the bias 30 bits (5): own. exponents [count][columns]: of as many rows
 * each; one or c columns. A bias that is all zeros changes nothing. value: room for c numbers. */
int samebits_with_bias_rows(int32_t *acc, int64_t rows, int64_t c, const int64_t *exponents,
                            int64_t count, int64_t columns, const int64_t *e_b, const int8_t *w,
                            const int16_t *a, int32_t *value, int64_t *own, int threads) {
    int64_t most = 0, each = rows / count;
    int failed = 0;
    for (int64_t k = 0; k < c; k++) {
        value[k] = w[k] * 32768 - a[k];
        int64_t size = samebits_magnitude64(value[k]);
        most = SAMEBITS_MAX(most, size);
    }
    int64_t least = most ? *e_b + bit_length(most) - 30 : INT64_MIN;
    for (int64_t i = 0; i < count * columns; i++) own[i] = SAMEBITS_MAX(exponents[i], least);
    if (!most) return FINE;
#pragma omp parallel num_threads(TEAM(rows *c)) reduction(| : failed)
    {
        int32_t *by = malloc((size_t)(2 * c) * sizeof *by), *bias = by + c;
        SHARE(count)
        failed = !by;
        for (int64_t i = lo; by && i < lo + len; i++) {
            int32_t *of_row = acc + i * each * c;
            if (columns == 1) {
                add_bias(of_row, each, c, value, *e_b, exponents[i], own[i], bias);
                continue;
            }
            bias_at(value, *e_b, exponents + i * c, own + i * c, c, by, bias);
            add_biases(of_row, each, c, by, bias);
        }
        free(by);
    }
    return failed ? NO_MEMORY : FINE;
}

/* --- sums over rows (12.1) ------------------------------------------------------------------- */

#define ADD_ROWS(type)                                                                         \
    static void add_rows##type(const int##type##_t *restrict g, int64_t rows, int64_t c,       \
                               int64_t *restrict sum) {                                        \
        for (int64_t r = 0; r < rows; r++, g += c)                                             \
            for (int64_t k = 0; k < c; k++) sum[k] += g[k];                                    \
    }
ADD_ROWS(16)
ADD_ROWS(32)

#define ADD_PRODUCTS(type)                                                                     \
    static void add_products##type(const int##type##_t *restrict g, const int8_t *restrict x,  \
                                   int64_t rows, int64_t c, int64_t *restrict sum) {           \
        for (int64_t r = 0; r < rows; r++, g += c, x += c)                                     \
            for (int64_t k = 0; k < c; k++) sum[k] += (int64_t)g[k] * x[k];                    \
    }
ADD_PRODUCTS(16)
ADD_PRODUCTS(32)

/* Sums over samples [count][c], each with the exponent of its sample, at one exponent: the largest
 * of those that are not all zero leaves 62 bits where sums have `bits`. */
void samebits_gather(const int64_t *sums, int64_t count, int64_t c, const int64_t *exponents,
                     int64_t bits, int64_t *out, int64_t *own) {
    int64_t top = INT64_MIN;
    for (int64_t i = 0; i < count; i++)
        if (exponents[i] > top && samebits_max_i64(sums + i * c, c, 1)) top = exponents[i];
    memset(out, 0, (size_t)c * sizeof *out);
    *own = top == INT64_MIN ? EXPONENT_MIN : top + bits - 62;
    for (int64_t i = 0; top != INT64_MIN && i < count; i++) {
        int64_t by = exponents[i] - *own;
        Shift s = shift_by(SAMEBITS_MIN(by, 62 - bits));
        for (int64_t k = 0; k < c; k++) out[k] += scale64(sums[i * c + k], s);
    }
}

#define AT_ONE(type)                                                                           \
    static void at_one##type(const void *from, int64_t n, Shift s, int64_t *restrict out) {    \
        const int##type##_t *restrict v = from;                                                \
        for (int64_t k = 0; k < n; k++) out[k] = scale64(v[k], s);                             \
    }
AT_ONE(16)
AT_ONE(32)
AT_ONE(64)

/* Rows of n integers of 16 to 64 bits, each with an exponent, at one: the largest of those that are
 * not all zero leaves 62 bits where sums of them have `bits`. */
void samebits_at_one(const void *v, int type, int64_t rows, int64_t n, const int64_t *exponents,
                     int64_t bits, int64_t *out, int64_t *own, int threads) {
    int64_t top = INT64_MIN, most, step = n * (type / 8);
    const char *of_rows = v;
    for (int64_t r = 0; r < rows; r++) {
        if (exponents[r] <= top) continue;
        samebits_largest(of_rows + r * step, type, n, &most, threads);
        if (most) top = exponents[r];
    }
    *own = top == INT64_MIN ? EXPONENT_MIN : top + bits - 62;
    if (top == INT64_MIN) memset(out, 0, (size_t)(rows * n) * sizeof *out);
    for (int64_t r = 0; top != INT64_MIN && r < rows; r++) {
        int64_t by = exponents[r] - *own;
        Shift s = shift_by(SAMEBITS_MIN(by, 62 - bits));
        const char *from = of_rows + r * step;
        (type == 16 ? at_one16 : type == 32 ? at_one32 : at_one64)(from, n, s, out + r * n);
    }
}

/* The sum of every channel of g [rows][c] (the gradient of a bias, 7), or of g * x, its exponent,
 * and the largest magnitude. exponents [count]: of as many rows each; where `bits` is 0, one for
 * all. x: NULL, or codes [rows][c]. */
int samebits_channel_sum(const void *g, int width, const int8_t *x, int64_t rows, int64_t c,
                         const int64_t *exponents, int64_t count, int64_t bits, int64_t *out,
                         int64_t *own, int64_t *largest) {
    int64_t *sums = calloc((size_t)(count * c), sizeof *sums), each = rows / count;
    if (!sums) return NO_MEMORY;
    for (int64_t i = 0; i < count; i++) {
        int64_t at = i * each * c;
        if (x && width == 16)
            add_products16((const int16_t *)g + at, x + at, each, c, sums + i * c);
        else if (x)
            add_products32((const int32_t *)g + at, x + at, each, c, sums + i * c);
        else if (width == 16)
            add_rows16((const int16_t *)g + at, each, c, sums + i * c);
        else
            add_rows32((const int32_t *)g + at, each, c, sums + i * c);
    }
    if (bits) {
        samebits_gather(sums, count, c, exponents, bits, out, own);
    } else {
        memcpy(out, sums, (size_t)c * sizeof *out);
        *own = *exponents;
    }
    *largest = samebits_max_i64(out, c, 1);
    free(sums);
    return FINE;
}
