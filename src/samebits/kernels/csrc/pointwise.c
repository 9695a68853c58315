/* Element-wise and per-channel parts of a training step: each reads codes once, writes codes once.
 * Per-channel data is NHWC: `rows` pixels of `c` channels. Section numbers: docs/spec/training.md. */
#include <stdlib.h>
#include <string.h>

#include "integer.h"

#define MAX(a, b) ((a) > (b) ? (a) : (b))
#define PARALLEL_MIN 16384 /* elements below which a thread team costs more than it saves */
#define TEAM(n) ((n) < PARALLEL_MIN ? 1 : threads)

/* --- largest magnitude and requantization (1.1, 1.2) ---------------------------------------- */

#define MAX_ABS(name, type, wide)                                                              \
    int64_t name(const type *v, int64_t n, int threads) {                                      \
        wide top = 0;                                                                          \
        _Pragma("omp parallel for simd num_threads(TEAM(n)) reduction(max : top)")             \
        for (int64_t i = 0; i < n; i++) {                                                      \
            wide a = v[i] < 0 ? -(wide)v[i] : (wide)v[i];                                      \
            top = MAX(top, a);                                                                 \
        }                                                                                      \
        return top;                                                                            \
    }
MAX_ABS(samebits_max_i8, int8_t, int32_t)
MAX_ABS(samebits_max_i16, int16_t, int32_t)
MAX_ABS(samebits_max_i32, int32_t, int32_t)
MAX_ABS(samebits_max_i64, int64_t, int64_t)

/* out = rne(v * 2**exponent); the caller has chosen the exponent so that the result fits. */
#define SCALE(name, from, to, shift, make, apply)                                              \
    void name(const from *restrict v, int64_t n, int64_t exponent, to *restrict out,           \
              int threads) {                                                                   \
        shift s = make(exponent);                                                              \
        _Pragma("omp parallel for simd num_threads(TEAM(n))")                                  \
        for (int64_t i = 0; i < n; i++) out[i] = (to)apply(v[i], s);                           \
    }
SCALE(samebits_scale_i32_i8, int32_t, int8_t, Shift32, shift32_by, scale32)
SCALE(samebits_scale_i32_i16, int32_t, int16_t, Shift32, shift32_by, scale32)
SCALE(samebits_scale_i32_i32, int32_t, int32_t, Shift32, shift32_by, scale32)
SCALE(samebits_scale_i64_i8, int64_t, int8_t, Shift, shift_by, scale64)
SCALE(samebits_scale_i64_i16, int64_t, int16_t, Shift, shift_by, scale64)
SCALE(samebits_scale_i64_i32, int64_t, int32_t, Shift, shift_by, scale64)

/* acc = rne(acc * 2**exponent) + bias[channel], in place; returns the largest magnitude (5). */
int64_t samebits_add_bias(int32_t *acc, int64_t rows, int64_t c, int64_t exponent,
                          const int32_t *bias, int threads) {
    Shift32 s = shift32_by(exponent);
    int32_t top = 0;
#pragma omp parallel for num_threads(TEAM(rows * c)) reduction(max : top)
    for (int64_t r = 0; r < rows; r++)
        for (int64_t k = 0; k < c; k++) {
            int32_t v = scale32(acc[r * c + k], s) + bias[k], a = v < 0 ? -v : v;
            acc[r * c + k] = v;
            top = MAX(top, a);
        }
    return top;
}

/* sum over rows of g, per channel (bias gradient, 7). */
void samebits_channel_sum(const void *g, int width, int64_t rows, int64_t c, int64_t *sum) {
    memset(sum, 0, (size_t)c * 8);
    for (int64_t r = 0; r < rows; r++)
        if (width == 16)
            for (int64_t k = 0; k < c; k++) sum[k] += ((const int16_t *)g)[r * c + k];
        else
            for (int64_t k = 0; k < c; k++) sum[k] += ((const int32_t *)g)[r * c + k];
}

/* --- batch normalisation (5, 7) ------------------------------------------------------------- */

#define STATS_ROWS 4096 /* 4096 * 127 * 127 < 2**31: exact in 32 bits between flushes */

/* Per channel: sum of z, sum of z*z, smallest and largest code. out is [4][c], int64. */
int samebits_channel_stats(const int8_t *z, int64_t rows, int64_t c, int64_t *out, int threads) {
    int failed = 0;
    for (int64_t k = 0; k < c; k++) {
        out[k] = out[c + k] = 0;
        out[2 * c + k] = 127;
        out[3 * c + k] = -127;
    }
#pragma omp parallel num_threads(TEAM(rows *c)) reduction(| : failed)
    {
        int32_t *part = malloc((size_t)c * 4 * sizeof *part);
        if (!part) failed = 1;
#pragma omp for schedule(static)
        for (int64_t b = 0; b < (rows + STATS_ROWS - 1) / STATS_ROWS; b++) {
            if (!part) continue;
            int32_t *s1 = part, *s2 = part + c, *low = part + 2 * c, *high = part + 3 * c;
            int64_t end = (b + 1) * STATS_ROWS < rows ? (b + 1) * STATS_ROWS : rows;
            memset(part, 0, (size_t)c * 2 * sizeof *part);
            for (int64_t k = 0; k < c; k++) low[k] = 127, high[k] = -127;
            for (int64_t r = b * STATS_ROWS; r < end; r++) {
                const int8_t *p = z + r * c;
#pragma omp simd
                for (int64_t k = 0; k < c; k++) {
                    int32_t v = p[k];
                    s1[k] += v;
                    s2[k] += v * v;
                    low[k] = v < low[k] ? v : low[k];
                    high[k] = v > high[k] ? v : high[k];
                }
            }
#pragma omp critical
            for (int64_t k = 0; k < c; k++) {
                out[k] += s1[k];
                out[c + k] += s2[k];
                out[2 * c + k] = low[k] < out[2 * c + k] ? low[k] : out[2 * c + k];
                out[3 * c + k] = high[k] > out[3 * c + k] ? high[k] : out[3 * c + k];
            }
        }
        free(part);
    }
    return failed;
}

/* y = rne((z * m + b) * 2**exponent), |z * m + b| < 2**31. */
void samebits_channel_affine(const int8_t *z, int64_t rows, int64_t c, const int32_t *m,
                             const int32_t *b, int64_t exponent, int8_t *y, int threads) {
    Shift32 s = shift32_by(exponent);
#pragma omp parallel for num_threads(TEAM(rows *c))
    for (int64_t r = 0; r < rows; r++) {
        const int8_t *p = z + r * c;
        int8_t *q = y + r * c;
#pragma omp simd
        for (int64_t k = 0; k < c; k++) q[k] = (int8_t)scale32(p[k] * m[k] + b[k], s);
    }
}

/* Per channel: sum of g and sum of g * z. out is [2][c]. */
int samebits_channel_grad_sums(const void *g, int width, const int8_t *z, int64_t rows, int64_t c,
                               int64_t *out, int threads) {
    int failed = 0;
    memset(out, 0, (size_t)c * 2 * sizeof *out);
#pragma omp parallel num_threads(TEAM(rows *c)) reduction(| : failed)
    {
        int64_t *part = calloc((size_t)c * 2, sizeof *part);
        if (!part) failed = 1;
#pragma omp for schedule(static)
        for (int64_t r = 0; r < rows; r++) {
            if (!part) continue;
            const int8_t *q = z + r * c;
            if (width == 16) {
                const int16_t *p = (const int16_t *)g + r * c;
#pragma omp simd
                for (int64_t k = 0; k < c; k++) {
                    part[k] += p[k];
                    part[c + k] += (int32_t)p[k] * q[k];
                }
            } else {
                const int32_t *p = (const int32_t *)g + r * c;
#pragma omp simd
                for (int64_t k = 0; k < c; k++) {
                    part[k] += p[k];
                    part[c + k] += (int64_t)p[k] * q[k];
                }
            }
        }
        if (part) {
#pragma omp critical
            for (int64_t k = 0; k < 2 * c; k++) out[k] += part[k];
        }
        free(part);
    }
    return failed;
}

/* The exact 64-bit input gradient a*g + b*z + c of one row. */
static inline __attribute__((always_inline)) int64_t affine64(int64_t a, int32_t g, int64_t b,
                                                              int32_t z, int64_t c) {
    return a * g + b * z + c;
}

/* Largest |a*g + b*z + c| (out == NULL), or the same values rounded to 32 bits. */
int64_t samebits_batch_norm_grad(const void *g, int width, const int8_t *z, int64_t rows, int64_t c,
                                 const int64_t *abc, int64_t exponent, int32_t *out, int threads) {
    const int64_t *a = abc, *b = abc + c, *d = abc + 2 * c;
    Shift s = shift_by(exponent);
    int64_t top = 0;
#pragma omp parallel for num_threads(TEAM(rows *c)) reduction(max : top)
    for (int64_t r = 0; r < rows; r++) {
        const int8_t *q = z + r * c;
        const int16_t *p16 = (const int16_t *)g + r * c;
        const int32_t *p32 = (const int32_t *)g + r * c;
        int32_t *o = out + r * c;
        if (!out) {
            int64_t m = 0;
            if (width == 16) {
#pragma omp simd reduction(max : m)
                for (int64_t k = 0; k < c; k++) {
                    int64_t v = magnitude(affine64(a[k], p16[k], b[k], q[k], d[k]));
                    m = MAX(m, v);
                }
            } else {
#pragma omp simd reduction(max : m)
                for (int64_t k = 0; k < c; k++) {
                    int64_t v = magnitude(affine64(a[k], p32[k], b[k], q[k], d[k]));
                    m = MAX(m, v);
                }
            }
            top = MAX(top, m);
        } else if (width == 16) {
#pragma omp simd
            for (int64_t k = 0; k < c; k++)
                o[k] = (int32_t)scale64(affine64(a[k], p16[k], b[k], q[k], d[k]), s);
        } else {
#pragma omp simd
            for (int64_t k = 0; k < c; k++)
                o[k] = (int32_t)scale64(affine64(a[k], p32[k], b[k], q[k], d[k]), s);
        }
    }
    return top;
}

/* --- activations, addition, pooling (5, 7) -------------------------------------------------- */

/* y = min(max(x, 0), high). */
void samebits_relu(const int8_t *restrict x, int64_t n, int high, int8_t *restrict y, int threads) {
#pragma omp parallel for simd num_threads(TEAM(n))
    for (int64_t i = 0; i < n; i++) {
        int8_t v = x[i] > 0 ? x[i] : 0;
        y[i] = v < high ? v : (int8_t)high;
    }
}

/* out = g where 0 < y < high, else 0. */
void samebits_relu_grad(const void *g, int width, const int8_t *restrict y, int64_t n, int high,
                        void *out, int threads) {
    if (width == 16) {
        const int16_t *p = g;
        int16_t *o = out;
#pragma omp parallel for simd num_threads(TEAM(n))
        for (int64_t i = 0; i < n; i++) o[i] = y[i] > 0 && y[i] < high ? p[i] : 0;
    } else {
        const int32_t *p = g;
        int32_t *o = out;
#pragma omp parallel for simd num_threads(TEAM(n))
        for (int64_t i = 0; i < n; i++) o[i] = y[i] > 0 && y[i] < high ? p[i] : 0;
    }
}

/* rne(a * 2**ea) + rne(b * 2**eb): the largest magnitude (y == NULL), or the sum times
 * 2**exponent, rounded once more, as 8-bit codes. |a|, |b| <= 127 and ea, eb <= 22. */
int64_t samebits_add_i8(const int8_t *restrict a, const int8_t *restrict b, int64_t n, int64_t ea,
                        int64_t eb, int64_t exponent, int8_t *restrict y, int threads) {
    Shift32 sa = shift32_by(ea), sb = shift32_by(eb), s = shift32_by(exponent);
    int32_t top = 0;
    if (!y) {
#pragma omp parallel for simd num_threads(TEAM(n)) reduction(max : top)
        for (int64_t i = 0; i < n; i++) {
            int32_t v = scale32(a[i], sa) + scale32(b[i], sb), m = v < 0 ? -v : v;
            top = MAX(top, m);
        }
    } else {
#pragma omp parallel for simd num_threads(TEAM(n))
        for (int64_t i = 0; i < n; i++)
            y[i] = (int8_t)scale32(scale32(a[i], sa) + scale32(b[i], sb), s);
    }
    return top;
}

static inline __attribute__((always_inline)) int64_t code_at(const void *p, int width, int64_t i) {
    return width == 16 ? ((const int16_t *)p)[i] : ((const int32_t *)p)[i];
}

/* rne(a * 2**ea) + rne(b * 2**eb), both exponents <= 0: the largest magnitude (out == NULL), or
 * the sum times 2**exponent rounded once more to 32 bits (1.3). */
int64_t samebits_add_grad(const void *a, int wa, int64_t ea, const void *b, int wb, int64_t eb,
                          int64_t n, int64_t exponent, int32_t *out, int threads) {
    Shift sa = shift_by(ea), sb = shift_by(eb), s = shift_by(exponent);
    int64_t top = 0;
#define PAIR(WA, WB)                                                                           \
    if (!out) {                                                                                \
        _Pragma("omp parallel for simd num_threads(TEAM(n)) reduction(max : top)")             \
        for (int64_t i = 0; i < n; i++) {                                                      \
            int64_t v = magnitude(scale64(code_at(a, WA, i), sa) + scale64(code_at(b, WB, i), sb)); \
            top = MAX(top, v);                                                                 \
        }                                                                                      \
    } else {                                                                                   \
        _Pragma("omp parallel for simd num_threads(TEAM(n))")                                  \
        for (int64_t i = 0; i < n; i++)                                                        \
            out[i] = (int32_t)scale64(                                                         \
                scale64(code_at(a, WA, i), sa) + scale64(code_at(b, WB, i), sb), s);           \
    }
    if (wa == 16 && wb == 16) {
        PAIR(16, 16)
    } else if (wa == 16) {
        PAIR(16, 32)
    } else if (wb == 16) {
        PAIR(32, 16)
    } else {
        PAIR(32, 32)
    }
    return top;
}

typedef struct {
    int64_t n, h, w, c, oh, ow, kh, kw, stride_h, stride_w, pad_h, pad_w;
} Pool;

/* Maximum of each window and the position (row-major in the window) of its first maximum. */
void samebits_max_pool(const Pool *s, const int8_t *x, int8_t *y, uint8_t *where, int threads) {
#pragma omp parallel for num_threads(threads) collapse(2)
    for (int64_t n = 0; n < s->n; n++)
        for (int64_t i = 0; i < s->oh; i++)
            for (int64_t j = 0; j < s->ow; j++) {
                int64_t at = ((n * s->oh + i) * s->ow + j) * s->c;
                int8_t *o = y + at;
                uint8_t *q = where + at;
                memset(o, -128, (size_t)s->c);
                memset(q, 0, (size_t)s->c);
                for (int64_t t = 0; t < s->kh * s->kw; t++) {
                    int64_t a = i * s->stride_h + t / s->kw - s->pad_h;
                    int64_t b = j * s->stride_w + t % s->kw - s->pad_w;
                    if (a < 0 || a >= s->h || b < 0 || b >= s->w) continue;
                    const int8_t *p = x + ((n * s->h + a) * s->w + b) * s->c;
#pragma omp simd
                    for (int64_t k = 0; k < s->c; k++) {
                        int8_t win = p[k] > o[k];
                        q[k] = win ? (uint8_t)t : q[k];
                        o[k] = win ? p[k] : o[k];
                    }
                }
            }
}

/* dx (int64, zeroed) += g at the saved positions. */
void samebits_max_pool_grad(const Pool *s, const void *g, int width, const uint8_t *where,
                            int64_t *dx, int threads) {
#pragma omp parallel for num_threads(threads)
    for (int64_t n = 0; n < s->n; n++)
        for (int64_t i = 0; i < s->oh; i++)
            for (int64_t j = 0; j < s->ow; j++) {
                int64_t at = ((n * s->oh + i) * s->ow + j) * s->c;
                for (int64_t k = 0; k < s->c; k++) {
                    int64_t a = i * s->stride_h + where[at + k] / s->kw - s->pad_h;
                    int64_t b = j * s->stride_w + where[at + k] % s->kw - s->pad_w;
                    dx[((n * s->h + a) * s->w + b) * s->c + k] += code_at(g, width, at + k);
                }
            }
}
