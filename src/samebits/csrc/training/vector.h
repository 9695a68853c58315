/* One vector of a norm: its sums, its codes, and what its gradient is made of
 * (docs/spec/training.md, 5 and 7). */
#ifndef SAMEBITS_TRAINING_VECTOR_H
#define SAMEBITS_TRAINING_VECTOR_H

#include "exponent.h"
#include "moment.h"

#define STATS_CODES 65536 /* 2**16 * 2**14 < 2**31: sums of squares of as many fit 32 bits */

typedef struct {
    int64_t sum, squares, low, high;
} Stats;

static Stats stats_of(const int8_t *restrict z, int64_t d) {
    Stats all = {0, 0, 127, -127};
    for (int64_t at = 0; at < d; at += STATS_CODES) {
        int64_t end = SAMEBITS_MIN(d, at + STATS_CODES);
        int32_t s1 = 0, s2 = 0;
        int8_t low = 127, high = -127;
        for (int64_t k = at; k < end; k++) {
            s1 += z[k];
            s2 += z[k] * z[k];
            low = SAMEBITS_MIN(z[k], low);
            high = SAMEBITS_MAX(z[k], high);
        }
        all.sum += s1;
        all.squares += s2;
        all.low = SAMEBITS_MIN(low, all.low);
        all.high = SAMEBITS_MAX(high, all.high);
    }
    return all;
}

static int64_t magnitude_max(const int64_t *restrict v, int64_t n, int64_t top) {
    for (int64_t k = 0; k < n; k++) {
        int64_t size = samebits_magnitude64(v[k]);
        top = SAMEBITS_MAX(top, size);
    }
    return top;
}

/* out = rne(x * m * 2**by) + b of one row, with d numbers each. */
#define AFFINE_ROW(name, from)                                                                 \
    static void name(const from *restrict x, int64_t d, const int32_t *restrict m,             \
                     const int64_t *restrict b, Shift by, int64_t *restrict out) {             \
        if (m)                                                                                 \
            for (int64_t k = 0; k < d; k++) out[k] = scale64((int64_t)x[k] * m[k], by);        \
        else                                                                                   \
            for (int64_t k = 0; k < d; k++) out[k] = scale64(x[k], by);                        \
        if (b)                                                                                 \
            for (int64_t k = 0; k < d; k++) out[k] += b[k];                                    \
    }
AFFINE_ROW(affine_row16, int16_t)
AFFINE_ROW(affine_row32, int32_t)

/* J of a parameter [size], W * 2**15 - A. */
static void joints(const int8_t *w, const int16_t *a, int64_t size, int32_t *out) {
    for (int64_t k = 0; k < size; k++) out[k] = joint(w[k], a[k]);
}

/* The factor of a row of d codes, in binary64, from its sums. */
SAMEBITS_INLINE double factor_of(int64_t sum, int64_t squares, int64_t d, int64_t e_z,
                                 double eps) {
    double width = (double)d, spread = (double)(d * squares - sum * sum) / (width * width);
    return times_power(1.0 / __builtin_sqrt(times_power(spread, 2 * e_z) + eps) / width, e_z);
}

/* The codes of 16 and 8 bits of a row. */
static void normalized_row(const int8_t *restrict z, int64_t d, int32_t sum, int32_t m, Shift s,
                           int64_t by16, int64_t by8, int16_t *restrict wide,
                           int8_t *restrict narrow) {
    int32_t size = (int32_t)d;
    if (by8 <= 24) { /* what rounding adds fits 32 bits */
        Shift32 s16 = shift32_by(-by16), s8 = shift32_by(-by8);
        for (int64_t k = 0; k < d; k++) {
            int32_t code = (int32_t)scale64((int64_t)(size * z[k] - sum) * m, s);
            wide[k] = (int16_t)scale32(code, s16);
            narrow[k] = (int8_t)scale32(code, s8);
        }
        return;
    }
    Shift s16 = shift_by(-by16), s8 = shift_by(-by8);
    for (int64_t k = 0; k < d; k++) {
        int64_t code = scale64((int64_t)(size * z[k] - sum) * m, s);
        wide[k] = (int16_t)scale64(code, s16);
        narrow[k] = (int8_t)scale64(code, s8);
    }
}

#define SUM_BITS 60 /* of the largest term of a sum at a common exponent (3) */

static void gradient_row(const void *g, int width, int64_t at, int64_t d, const int32_t *m,
                         int64_t *out) {
    if (width == 16)
        affine_row16((const int16_t *)g + at, d, m, NULL, shift_by(0), out);
    else
        affine_row32((const int32_t *)g + at, d, m, NULL, shift_by(0), out);
}

/* Of a row the sum of h and of h * x, |h| <= Q16, |x| <= Q8. */
static void dots_of(const int16_t *restrict h, const int8_t *restrict x, int64_t d, int64_t *sum,
                    int64_t *dot) {
    int64_t s = 0, p = 0;
    for (int64_t at = 0; at < d; at += 512) { /* 512 * 2**15 * 2**7 = 2**31 - what Q16 spares */
        int64_t end = SAMEBITS_MIN(d, at + 512);
        int32_t part = 0, product = 0;
        for (int64_t k = at; k < end; k++) part += h[k], product += h[k] * x[k];
        s += part, p += product;
    }
    *sum = s, *dot = p;
}

/* t = rne((d * h - sum) * 2**by_h) - rne(dot * x * 2**by_x) of a row. */
static void inner_row(const int16_t *restrict h, const int8_t *restrict x, int64_t d, int64_t sum,
                      int64_t dot, Shift by_h, Shift by_x, int64_t *restrict out) {
    for (int64_t k = 0; k < d; k++)
        out[k] = scale64(d * h[k] - sum, by_h) - scale64(dot * x[k], by_x);
}

#endif
