/* Normalisation of vectors (docs/spec/training.md, 5 and 7): rows of d codes with one exponent for
 * all. What is rounded in several steps is one pass here: where the largest magnitude decides a
 * shift, a pass that finds it, and one that writes. */
#include "parallel.h"
#include "shift.h"

static void stats_range(const int8_t *restrict z, int64_t rows, int64_t d, int64_t n, int64_t lo,
                        int64_t *restrict out) {
    for (int64_t r = 0; r < rows; r++, z += d) {
        int32_t s1 = 0, s2 = 0; /* d <= 2**16: 2**16 * 2**14 < 2**31 */
        int8_t low = 127, high = -127;
        for (int64_t k = 0; k < d; k++) {
            s1 += z[k];
            s2 += z[k] * z[k];
            low = SAMEBITS_MIN(z[k], low);
            high = SAMEBITS_MAX(z[k], high);
        }
        int64_t *own = out + lo + r;
        own[0] = s1, own[n] = s2, own[2 * n] = low, own[3 * n] = high;
    }
}

/* Of every row the sum, the sum of squares, the smallest and the largest code: out is [4][n]. */
void samebits_vector_stats(const int8_t *z, int64_t n, int64_t d, int64_t *out, int threads) {
    PARALLEL(n, n *d, stats_range(z + lo * d, len, d, n, lo, out))
}

static void normalized_range(const int8_t *restrict z, int64_t rows, int64_t d,
                             const int32_t *restrict sum, const int32_t *restrict m, Shift s,
                             Shift32 s16, Shift32 s8, int16_t *restrict wide,
                             int8_t *restrict narrow) {
    for (int64_t r = 0; r < rows; r++, z += d, wide += d, narrow += d)
        for (int64_t k = 0; k < d; k++) {
            int32_t code = (int32_t)scale64((int64_t)((int32_t)d * z[k] - sum[r]) * m[r], s);
            wide[k] = (int16_t)scale32(code, s16);
            narrow[k] = (int8_t)scale32(code, s8);
        }
}

/* c = rne((d * z - sum[row]) * m[row] * 2**shift), which fits bfp32, and of it the codes
 * rne(c * 2**shift16) and rne(c * 2**shift8). |d * z - sum| < 2**31, |m| < 2**31. */
void samebits_vector_normalized(const int8_t *z, int64_t n, int64_t d, const int32_t *sum,
                                const int32_t *m, int64_t shift, int64_t shift16, int64_t shift8,
                                int16_t *wide, int8_t *narrow, int threads) {
    Shift s = shift_by(shift);
    Shift32 s16 = shift32_by(shift16), s8 = shift32_by(shift8);
    PARALLEL(n, n *d, normalized_range(z + lo * d, len, d, sum + lo, m + lo, s, s16, s8,
                                       wide + lo * d, narrow + lo * d))
}

/* v = rne(x * m[column] * 2**by) + b[column]: the largest magnitude, or rne(v * 2**exponent). */
#define AFFINE(name, from)                                                                     \
    static int64_t name##_max(const from *restrict x, int64_t rows, int64_t d,                 \
                              const int32_t *restrict m, const int64_t *restrict b, Shift by) { \
        int64_t top = 0;                                                                       \
        for (int64_t r = 0; r < rows; r++, x += d)                                             \
            for (int64_t k = 0; k < d; k++) {                                                  \
                int64_t v = scale64((int64_t)x[k] * m[k], by) + b[k];                          \
                v = samebits_magnitude64(v);                                                   \
                top = SAMEBITS_MAX(top, v);                                                    \
            }                                                                                  \
        return top;                                                                            \
    }
#define AFFINE_TO(name, from, to)                                                              \
    static void name(const from *restrict x, int64_t rows, int64_t d,                          \
                     const int32_t *restrict m, const int64_t *restrict b, Shift by, Shift s,  \
                     to *restrict out) {                                                       \
        for (int64_t r = 0; r < rows; r++, x += d, out += d)                                   \
            for (int64_t k = 0; k < d; k++)                                                    \
                out[k] = (to)scale64(scale64((int64_t)x[k] * m[k], by) + b[k], s);             \
    }
AFFINE(affine16, int16_t)
AFFINE(affine32, int32_t)
AFFINE_TO(affine_16_8, int16_t, int8_t)
AFFINE_TO(affine_16_16, int16_t, int16_t)
AFFINE_TO(affine_32_8, int32_t, int8_t)
AFFINE_TO(affine_32_16, int32_t, int16_t)

/* The largest |rne(x * m[column] * 2**by) + b[column]| (out == NULL), or those values times
 * 2**exponent, rounded once more, as codes of `to` bits. |m| < 2**31; no sum leaves 62 bits. */
int64_t samebits_column_affine(const void *x, int width, int64_t n, int64_t d, const int32_t *m,
                               const int64_t *b, int64_t by, int64_t exponent, void *out, int to,
                               int threads) {
    const int16_t *x16 = x;
    const int32_t *x32 = x;
    int8_t *y8 = out;
    int16_t *y16 = out;
    Shift first = shift_by(by), s = shift_by(exponent);
    int64_t top = 0, size = n * d;
    if (!out && width == 16) {
        PARALLEL_MAX(n, size, top, affine16_max(x16 + lo * d, len, d, m, b, first))
    } else if (!out) {
        PARALLEL_MAX(n, size, top, affine32_max(x32 + lo * d, len, d, m, b, first))
    } else if (width == 16 && to == 8) {
        PARALLEL(n, size, affine_16_8(x16 + lo * d, len, d, m, b, first, s, y8 + lo * d))
    } else if (width == 16) {
        PARALLEL(n, size, affine_16_16(x16 + lo * d, len, d, m, b, first, s, y16 + lo * d))
    } else if (to == 8) {
        PARALLEL(n, size, affine_32_8(x32 + lo * d, len, d, m, b, first, s, y8 + lo * d))
    } else {
        PARALLEL(n, size, affine_32_16(x32 + lo * d, len, d, m, b, first, s, y16 + lo * d))
    }
    return top;
}

static void dot_range(const int16_t *restrict h, const int8_t *restrict x, int64_t rows,
                      int64_t d, int64_t *restrict sum, int64_t *restrict dot) {
    for (int64_t r = 0; r < rows; r++, h += d, x += d) {
        int64_t s = 0, p = 0;
        for (int64_t at = 0; at < d; at += 512) { /* 512 * 2**15 * 2**7 = 2**31 - what Q16 spares */
            int64_t end = SAMEBITS_MIN(d, at + 512);
            int32_t part = 0, product = 0;
            for (int64_t k = at; k < end; k++) part += h[k], product += h[k] * x[k];
            s += part, p += product;
        }
        sum[r] = s, dot[r] = p;
    }
}

/* Of every row the sum of h and of h * x, |h| <= Q16, |x| <= Q8: out is [2][n]. */
void samebits_vector_dots(const int16_t *h, const int8_t *x, int64_t n, int64_t d, int64_t *out,
                          int threads) {
    PARALLEL(n, n *d, dot_range(h + lo * d, x + lo * d, len, d, out + lo, out + n + lo))
}

/* v = rne((d * h - sum[row]) * 2**by_h) - rne(dot[row] * x * 2**by_x). */
SAMEBITS_INLINE int64_t vector_term(int64_t h, int64_t x, int64_t d, int64_t sum, int64_t dot,
                                    Shift by_h, Shift by_x) {
    return scale64(d * h - sum, by_h) - scale64(dot * x, by_x);
}

static int64_t term_max(const int16_t *restrict h, const int8_t *restrict x, int64_t rows,
                        int64_t d, const int64_t *restrict sum, const int64_t *restrict dot,
                        Shift by_h, Shift by_x) {
    int64_t top = 0;
    for (int64_t r = 0; r < rows; r++, h += d, x += d)
        for (int64_t k = 0; k < d; k++) {
            int64_t v = vector_term(h[k], x[k], d, sum[r], dot[r], by_h, by_x);
            v = samebits_magnitude64(v);
            top = SAMEBITS_MAX(top, v);
        }
    return top;
}

static void term_range(const int16_t *restrict h, const int8_t *restrict x, int64_t rows,
                       int64_t d, const int64_t *restrict sum, const int64_t *restrict dot,
                       Shift by_h, Shift by_x, Shift s, int16_t *restrict out) {
    for (int64_t r = 0; r < rows; r++, h += d, x += d, out += d)
        for (int64_t k = 0; k < d; k++)
            out[k] = (int16_t)scale64(
                vector_term(h[k], x[k], d, sum[r], dot[r], by_h, by_x), s);
}

/* Of rows of h and x with sums [2][n] of both: the largest magnitude of v (out == NULL), or v times
 * 2**exponent, rounded once more to 16 bits. No term leaves 60 bits. */
int64_t samebits_vector_grad(const int16_t *h, const int8_t *x, int64_t n, int64_t d,
                             const int64_t *sums, int64_t by_h, int64_t by_x, int64_t exponent,
                             int16_t *out, int threads) {
    Shift sh = shift_by(by_h), sx = shift_by(by_x), s = shift_by(exponent);
    const int64_t *sum = sums, *dot = sums + n;
    int64_t top = 0;
    if (out) {
        PARALLEL(n, n *d, term_range(h + lo * d, x + lo * d, len, d, sum + lo, dot + lo, sh, sx,
                                     s, out + lo * d))
    } else {
        PARALLEL_MAX(n, n *d, top, term_max(h + lo * d, x + lo * d, len, d, sum + lo, dot + lo,
                                            sh, sx))
    }
    return top;
}

static int64_t times_max(const int16_t *restrict x, int64_t rows, int64_t d,
                         const int32_t *restrict m) {
    int64_t top = 0;
    for (int64_t r = 0; r < rows; r++, x += d) {
        int32_t most = 0;
        for (int64_t k = 0; k < d; k++) {
            int32_t v = x[k] < 0 ? -x[k] : x[k];
            most = SAMEBITS_MAX(most, v);
        }
        int64_t product = most * samebits_magnitude64(m[r]);
        top = SAMEBITS_MAX(top, product);
    }
    return top;
}

static void times_range(const int16_t *restrict x, int64_t rows, int64_t d,
                        const int32_t *restrict m, Shift s, int32_t *restrict out) {
    for (int64_t r = 0; r < rows; r++, x += d, out += d)
        for (int64_t k = 0; k < d; k++) out[k] = (int32_t)scale64((int64_t)x[k] * m[r], s);
}

/* The largest |x * m[row]| (out == NULL), or x * m[row] * 2**exponent as bfp32. */
int64_t samebits_vector_times(const int16_t *x, int64_t n, int64_t d, const int32_t *m,
                              int64_t exponent, int32_t *out, int threads) {
    Shift s = shift_by(exponent);
    int64_t top = 0;
    if (out) {
        PARALLEL(n, n *d, times_range(x + lo * d, len, d, m + lo, s, out + lo * d))
    } else {
        PARALLEL_MAX(n, n *d, top, times_max(x + lo * d, len, d, m + lo))
    }
    return top;
}
