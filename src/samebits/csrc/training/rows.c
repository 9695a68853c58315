/* Integers of several exponents (docs/spec/training.md, 12.1): an exponent for every row, for every
 * channel of a row, or for every element. */
#include <string.h>

#include "parallel.h"
#include "shift.h"

/* A tensor as [a][b][c], dense, and the places of its exponents: that of [i][j][k] is
 * e[i * step_a + j * step_b + k * step_c]. A step is 0 along an axis that shares exponents. */
typedef struct {
    int64_t b, c, step_a, step_b, step_c;
} Grid;

/* out = rne(v * 2**e), |v| <= 2**62; where v is not 0, left shifts fit. Exponents by element are
 * shifts without a branch, so that loops over them vectorise too. */
#define SCALE_ROWS(name, type)                                                                 \
    static void name##_range(const type *restrict v, const int64_t *restrict e, int64_t a, Grid g,\
                             int64_t *restrict out) {                                          \
        for (int64_t i = 0; i < a; i++)                                                        \
            for (int64_t j = 0; j < g.b; j++, v += g.c, out += g.c) {                          \
                const int64_t *own = e + i * g.step_a + j * g.step_b;                          \
                if (g.step_c == 0) {                                                           \
                    Shift s = shift_by(*own < 62 ? *own : 62);                                 \
                    for (int64_t k = 0; k < g.c; k++) out[k] = scale64(v[k], s);               \
                } else                                                                         \
                    for (int64_t k = 0; k < g.c; k++) out[k] = scale_each(v[k], own[k]);       \
            }                                                                                  \
    }                                                                                          \
    void samebits_##name(const type *v, const int64_t *e, int64_t a, int64_t b, int64_t c,     \
                         int64_t step_a, int64_t step_b, int64_t step_c, int64_t *out,         \
                         int threads) {                                                        \
        Grid g = {b, c, step_a, step_b, step_c};                                               \
        int64_t size = b * c;                                                                  \
        PARALLEL(a, a *size,                                                                   \
                 name##_range(v + lo * size, e + lo * step_a, len, g, out + lo * size))        \
    }

SAMEBITS_INLINE int64_t scale_each(int64_t v, int64_t exponent) {
    int64_t left = samebits_clamp64(exponent, 0, 62), right = samebits_clamp64(-exponent, 0, 63);
    int64_t odd = right > 0, below = (int64_t)(((uint64_t)1 << right) >> 1) - odd;
    int64_t u = (int64_t)((uint64_t)v << left);
    return SAMEBITS_NEAREST(samebits_floor64, u, (int32_t)right, below, odd);
}

SCALE_ROWS(scale_rows_i32, int32_t)
SCALE_ROWS(scale_rows_i64, int64_t)

/* The largest magnitude of what shares each place, into `top`, which is zeros. Rows of different i
 * have different places, unless step_a is 0: then one thread does all. */
#define MAX_ROWS(name, type)                                                                   \
    static void name##_range(const type *restrict v, int64_t a, Grid g,                        \
                             int64_t *restrict top) {                                          \
        for (int64_t i = 0; i < a; i++)                                                        \
            for (int64_t j = 0; j < g.b; j++, v += g.c) {                                      \
                int64_t *own = top + i * g.step_a + j * g.step_b;                              \
                if (g.step_c == 0) {                                                           \
                    type most = 0;                                                             \
                    for (int64_t k = 0; k < g.c; k++) {                                        \
                        type size = v[k] < 0 ? -v[k] : v[k];                                   \
                        most = SAMEBITS_MAX(most, size);                                       \
                    }                                                                          \
                    *own = SAMEBITS_MAX(*own, most);                                           \
                } else                                                                         \
                    for (int64_t k = 0; k < g.c; k++) {                                        \
                        int64_t size = samebits_magnitude64(v[k]);                             \
                        own[k] = SAMEBITS_MAX(own[k], size);                                   \
                    }                                                                          \
            }                                                                                  \
    }                                                                                          \
    void samebits_##name(const type *v, int64_t a, int64_t b, int64_t c, int64_t step_a,       \
                         int64_t step_b, int64_t step_c, int64_t *top, int threads) {          \
        Grid g = {b, c, step_a, step_b, step_c};                                               \
        int64_t size = b * c;                                                                  \
        PARALLEL(a, step_a ? a *size : 0,                                                      \
                 name##_range(v + lo * size, len, g, top + lo * step_a))                       \
    }

MAX_ROWS(max_rows_i32, int32_t)
MAX_ROWS(max_rows_i64, int64_t)

/* A `Grid`, and what belongs to rows that share other axes than exponents do: that of [i][j][k] is
 * at i * row_a + j * row_b + k * row_c. */
typedef struct {
    int64_t b, c, step_a, step_b, step_c, row_a, row_b, row_c;
} Rows;

SAMEBITS_INLINE double power_of(int64_t e) {
    uint64_t bits = (uint64_t)(e + 1023) << 52;
    double power;
    memcpy(&power, &bits, sizeof power);
    return power;
}

/* The ends of rows: into `reals`, which is zeros, the largest |v| * 2**e of what shares each place,
 * and into `low`, which is filled with large exponents, the lowest e of an element that is not 0.
 * Returns the largest |v|: products with powers of two are exact in binary64 where it is at most
 * 2**53, and every |e| at most 900. */
#define ROW_ENDS(name, type)                                                                   \
    static int64_t name##_range(const type *restrict v, const int64_t *restrict e, int64_t a,  \
                                Rows g, double *restrict reals, int64_t *restrict low) {       \
        int64_t top = 0;                                                                       \
        for (int64_t i = 0; i < a; i++)                                                        \
            for (int64_t j = 0; j < g.b; j++, v += g.c) {                                      \
                const int64_t *own = e + i * g.step_a + j * g.step_b;                          \
                double *m = reals + i * g.row_a + j * g.row_b;                                 \
                int64_t *l = low + i * g.row_a + j * g.row_b;                                  \
                if (g.row_c) {                                                                 \
                    for (int64_t k = 0; k < g.c; k++) {                                        \
                        int64_t n = samebits_magnitude64(v[k]), x = own[k * g.step_c];         \
                        double real = (double)n * power_of(x);                                 \
                        top = SAMEBITS_MAX(top, n);                                            \
                        m[k] = SAMEBITS_MAX(m[k], real);                                       \
                        l[k] = n && x < l[k] ? x : l[k];                                       \
                    }                                                                          \
                    continue;                                                                  \
                }                                                                              \
                int64_t lowest = *l, here = 0;                                                 \
                double largest = *m;                                                           \
                if (g.step_c)                                                                  \
                    for (int64_t k = 0; k < g.c; k++) {                                        \
                        int64_t n = samebits_magnitude64(v[k]), x = own[k];                    \
                        double real = (double)n * power_of(x);                                 \
                        here = SAMEBITS_MAX(here, n);                                          \
                        largest = SAMEBITS_MAX(largest, real);                                 \
                        lowest = n && x < lowest ? x : lowest;                                 \
                    }                                                                          \
                else {                                                                         \
                    for (int64_t k = 0; k < g.c; k++) {                                        \
                        int64_t n = samebits_magnitude64(v[k]);                                \
                        here = SAMEBITS_MAX(here, n);                                          \
                    }                                                                          \
                    double real = (double)here * power_of(*own);                               \
                    largest = SAMEBITS_MAX(largest, real);                                     \
                    lowest = here && *own < lowest ? *own : lowest;                            \
                }                                                                              \
                top = SAMEBITS_MAX(top, here);                                                 \
                *m = largest;                                                                  \
                *l = lowest;                                                                   \
            }                                                                                  \
        return top;                                                                            \
    }                                                                                          \
    int64_t samebits_##name(const type *v, const int64_t *e, int64_t a, int64_t b, int64_t c,  \
                            int64_t step_a, int64_t step_b, int64_t step_c, int64_t row_a,     \
                            int64_t row_b, int64_t row_c, double *reals, int64_t *low,         \
                            int threads) {                                                     \
        Rows g = {b, c, step_a, step_b, step_c, row_a, row_b, row_c};                          \
        int64_t size = b * c, top = 0;                                                         \
        PARALLEL_MAX(a, row_a ? a *size : 0, top,                                              \
                     name##_range(v + lo * size, e + lo * step_a, len, g, reals + lo * row_a,  \
                                  low + lo * row_a))                                           \
        return top;                                                                            \
    }

ROW_ENDS(row_ends_i32, int32_t)
ROW_ENDS(row_ends_i64, int64_t)
