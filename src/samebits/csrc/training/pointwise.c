/* Element-wise and per-channel parts of a training step: each reads codes once, writes codes once.
 * Per-channel data is NHWC: `rows` pixels of `c` channels. Section numbers are those of
 * docs/spec/training.md. Each function says which width holds its sums and why; what is returned as
 * a largest magnitude is what the next requantization chooses its exponent by. */
#include <stdlib.h>
#include <string.h>

#include "optimizer.h"
#include "parallel.h"
#include "shift.h"

/* --- largest magnitude and requantization (1.1, 1.2) ---------------------------------------- */

#define MAX_ABS(name, type, wide)                                                              \
    static int64_t name##_range(const type *restrict v, int64_t n) {                           \
        wide top = 0;                                                                          \
        for (int64_t i = 0; i < n; i++) {                                                      \
            wide a = v[i] < 0 ? -(wide)v[i] : (wide)v[i];                                      \
            top = SAMEBITS_MAX(top, a);                                                        \
        }                                                                                      \
        return top;                                                                            \
    }                                                                                          \
    int64_t samebits_##name(const type *v, int64_t n, int threads) {                           \
        int64_t top = 0;                                                                       \
        PARALLEL_MAX(n, n, top, name##_range(v + lo, len))                                     \
        return top;                                                                            \
    }
MAX_ABS(max_i8, int8_t, int16_t)
MAX_ABS(max_i16, int16_t, int32_t)
MAX_ABS(max_i32, int32_t, int32_t)
MAX_ABS(max_i64, int64_t, int64_t)

/* out = rne(v * 2**exponent); the caller has chosen the exponent so that the result fits. */
#define SCALE(name, from, to, shift, make, apply)                                              \
    static void name##_range(const from *restrict v, int64_t n, shift s, to *restrict out) {   \
        for (int64_t i = 0; i < n; i++) out[i] = (to)apply(v[i], s);                           \
    }                                                                                          \
    void samebits_##name(const from *v, int64_t n, int64_t exponent, to *out, int threads) {   \
        shift s = make(exponent);                                                              \
        PARALLEL(n, n, name##_range(v + lo, len, s, out + lo))                                 \
    }
SCALE(scale_i32_i8, int32_t, int8_t, Shift32, shift32_by, scale32)
SCALE(scale_i32_i16, int32_t, int16_t, Shift32, shift32_by, scale32)
SCALE(scale_i32_i32, int32_t, int32_t, Shift32, shift32_by, scale32)
SCALE(scale_i64_i8, int64_t, int8_t, Shift, shift_by, scale64)
SCALE(scale_i64_i16, int64_t, int16_t, Shift, shift_by, scale64)
SCALE(scale_i64_i32, int64_t, int32_t, Shift, shift_by, scale64)
SCALE(scale_i32_i64, int32_t, int64_t, Shift, shift_by, scale64)
SCALE(scale_i64_i64, int64_t, int64_t, Shift, shift_by, scale64)

/* acc = rne(acc * 2**shift) + bias[channel], in place; the largest magnitude. */
static int64_t add_bias_range(int32_t *restrict acc, int64_t rows, int64_t c, Shift32 s,
                              const int32_t *restrict bias) {
    int32_t top = 0;
    for (int64_t r = 0; r < rows; r++, acc += c)
        for (int64_t k = 0; k < c; k++) {
            int32_t v = scale32(acc[k], s) + bias[k], a = v < 0 ? -v : v;
            acc[k] = v;
            top = SAMEBITS_MAX(top, a);
        }
    return top;
}

/* Adds the bias J = W * 2**15 - A (exponent e_b) to acc (exponent *common), both brought to the
 * exponent that leaves the bias 30 bits, which is stored in *common (5). `bias` is scratch of c.
 * Returns the largest magnitude, or -1 and changes nothing when the bias is all zeros. */
int64_t samebits_with_bias(int32_t *acc, int64_t rows, int64_t c, int64_t e_b, const int8_t *w,
                           const int16_t *a, int32_t *bias, int64_t *common, int threads) {
    int64_t top = 0, bits = 0;
    for (int64_t k = 0; k < c; k++) {
        bias[k] = w[k] * 32768 - a[k];
        int64_t v = samebits_magnitude64(bias[k]);
        top = SAMEBITS_MAX(top, v);
    }
    if (top == 0) return -1;
    while (top >> bits) bits++;
    int64_t exponent = *common;
    if (e_b + bits - 30 > *common) *common = e_b + bits - 30;
    Shift s = shift_by(e_b - *common);
    for (int64_t k = 0; k < c; k++) bias[k] = (int32_t)scale64(bias[k], s);
    Shift32 down = shift32_by(exponent - *common);
    PARALLEL_MAX(rows, rows * c, top, add_bias_range(acc + lo * c, len, c, down, bias))
    return top;
}

/* sum over rows of g, per channel (bias gradient, 7). */
void samebits_channel_sum(const void *g, int width, int64_t rows, int64_t c,
                          int64_t *restrict sum) {
    memset(sum, 0, (size_t)c * 8);
    for (int64_t r = 0; r < rows; r++)
        if (width == 16)
            for (int64_t k = 0; k < c; k++) sum[k] += ((const int16_t *)g)[r * c + k];
        else
            for (int64_t k = 0; k < c; k++) sum[k] += ((const int32_t *)g)[r * c + k];
}

/* Largest sum of |w| over `outer` rows that meets one of c columns, over all groups: w is
 * [groups][outer][c]. Times max|g| it bounds every element of an input gradient. */
int64_t samebits_reach(const int8_t *restrict w, int64_t groups, int64_t outer, int64_t c) {
    int64_t top = 0;
    int32_t *sum = malloc((size_t)c * sizeof *sum);
    if (!sum) return -1;
    for (int64_t g = 0; g < groups; g++) {
        memset(sum, 0, (size_t)c * sizeof *sum);
        for (int64_t o = 0; o < outer; o++, w += c)
            for (int64_t k = 0; k < c; k++) sum[k] += w[k] < 0 ? -w[k] : w[k];
        for (int64_t k = 0; k < c; k++) top = SAMEBITS_MAX(top, sum[k]);
    }
    free(sum);
    return top;
}

/* --- batch normalisation (5, 7) ------------------------------------------------------------- */

#define STATS_ROWS 4096 /* 4096 * 127 * 127 < 2**31: exact in 32 bits between flushes */

static void stats_block(const int8_t *restrict z, int64_t rows, int64_t c, int32_t *restrict s1,
                        int32_t *restrict s2, int32_t *restrict low, int32_t *restrict high) {
    for (int64_t r = 0; r < rows; r++, z += c)
        for (int64_t k = 0; k < c; k++) {
            int32_t v = z[k];
            s1[k] += v;
            s2[k] += v * v;
            low[k] = v < low[k] ? v : low[k];
            high[k] = v > high[k] ? v : high[k];
        }
}

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
        SHARE(rows)
        for (int64_t at = lo; part && at < lo + len; at += STATS_ROWS) {
            int64_t take = lo + len - at < STATS_ROWS ? lo + len - at : STATS_ROWS;
            memset(part, 0, (size_t)c * 2 * sizeof *part);
            for (int64_t k = 0; k < c; k++) part[2 * c + k] = 127, part[3 * c + k] = -127;
            stats_block(z + at * c, take, c, part, part + c, part + 2 * c, part + 3 * c);
#pragma omp critical
            for (int64_t k = 0; k < c; k++) {
                out[k] += part[k];
                out[c + k] += part[c + k];
                out[2 * c + k] = SAMEBITS_MIN(part[2 * c + k], out[2 * c + k]);
                out[3 * c + k] = SAMEBITS_MAX(part[3 * c + k], out[3 * c + k]);
            }
        }
        free(part);
    }
    return failed;
}

static void affine_range(const int8_t *restrict z, int64_t rows, int64_t c,
                         const int32_t *restrict m, const int32_t *restrict b, Shift32 s,
                         int8_t *restrict y) {
    for (int64_t r = 0; r < rows; r++, z += c, y += c)
        for (int64_t k = 0; k < c; k++) y[k] = (int8_t)scale32(z[k] * m[k] + b[k], s);
}

/* y = rne((z * m + b) * 2**exponent), |z * m + b| < 2**30 + 2**7. */
void samebits_channel_affine(const int8_t *z, int64_t rows, int64_t c, const int32_t *m,
                             const int32_t *b, int64_t exponent, int8_t *y, int threads) {
    Shift32 s = shift32_by(exponent);
    PARALLEL(rows, rows * c, affine_range(z + lo * c, len, c, m, b, s, y + lo * c))
}

#define GRAD_SUMS(name, type, product)                                                         \
    static void name(const type *restrict g, const int8_t *restrict z, int64_t rows,           \
                     int64_t c, int64_t *restrict sg, int64_t *restrict sgz) {                 \
        for (int64_t r = 0; r < rows; r++, g += c, z += c)                                     \
            for (int64_t k = 0; k < c; k++) {                                                  \
                sg[k] += g[k];                                                                 \
                sgz[k] += (product)g[k] * z[k];                                                \
            }                                                                                  \
    }
GRAD_SUMS(grad_sums16, int16_t, int32_t)
GRAD_SUMS(grad_sums32, int32_t, int64_t)

/* Per channel: sum of g and sum of g * z. out is [2][c]. */
int samebits_channel_grad_sums(const void *g, int width, const int8_t *z, int64_t rows, int64_t c,
                               int64_t *out, int threads) {
    int failed = 0;
    memset(out, 0, (size_t)c * 2 * sizeof *out);
#pragma omp parallel num_threads(TEAM(rows *c)) reduction(| : failed)
    {
        int64_t *part = calloc((size_t)c * 2, sizeof *part);
        SHARE(rows)
        if (!part) {
            failed = 1;
        } else {
            if (width == 16)
                grad_sums16((const int16_t *)g + lo * c, z + lo * c, len, c, part, part + c);
            else
                grad_sums32((const int32_t *)g + lo * c, z + lo * c, len, c, part, part + c);
#pragma omp critical
            for (int64_t k = 0; k < 2 * c; k++) out[k] += part[k];
        }
        free(part);
    }
    return failed;
}

/* |a * g| < 2**24 * 2**31; a fits in 32 bits, so that the product is one 32x32 -> 64 multiply. */
#define BN_GRAD(name, type)                                                                    \
    static int64_t name##_max(const type *restrict g, const int8_t *restrict z, int64_t rows,  \
                              int64_t c, const int64_t *restrict abc) {                        \
        const int64_t *a = abc, *b = abc + c, *d = abc + 2 * c;                                \
        int64_t top = 0;                                                                       \
        for (int64_t r = 0; r < rows; r++, g += c, z += c)                                     \
            for (int64_t k = 0; k < c; k++) {                                                  \
                int64_t v = (int64_t)(int32_t)a[k] * g[k] + b[k] * z[k] + d[k];                \
                v = samebits_magnitude64(v);                                                   \
                top = SAMEBITS_MAX(top, v);                                                    \
            }                                                                                  \
        return top;                                                                            \
    }                                                                                          \
    static void name(const type *restrict g, const int8_t *restrict z, int64_t rows,           \
                     int64_t c, const int64_t *restrict abc, Shift s, int32_t *restrict out) { \
        const int64_t *a = abc, *b = abc + c, *d = abc + 2 * c;                                \
        for (int64_t r = 0; r < rows; r++, g += c, z += c, out += c)                           \
            for (int64_t k = 0; k < c; k++)                                                    \
                out[k] = (int32_t)scale64(                                                     \
                    (int64_t)(int32_t)a[k] * g[k] + b[k] * z[k] + d[k], s);                    \
    }
BN_GRAD(bn_grad16, int16_t)
BN_GRAD(bn_grad32, int32_t)

/* Largest |a*g + b*z + c| (out == NULL), or the same values times 2**exponent, rounded. */
int64_t samebits_batch_norm_grad(const void *g, int width, const int8_t *z, int64_t rows, int64_t c,
                                 const int64_t *abc, int64_t exponent, int32_t *out, int threads) {
    const int16_t *g16 = g;
    const int32_t *g32 = g;
    Shift s = shift_by(exponent);
    int64_t top = 0, size = rows * c;
    if (out && width == 16) {
        PARALLEL(rows, size, bn_grad16(g16 + lo * c, z + lo * c, len, c, abc, s, out + lo * c))
    } else if (out) {
        PARALLEL(rows, size, bn_grad32(g32 + lo * c, z + lo * c, len, c, abc, s, out + lo * c))
    } else if (width == 16) {
        PARALLEL_MAX(rows, size, top, bn_grad16_max(g16 + lo * c, z + lo * c, len, c, abc))
    } else {
        PARALLEL_MAX(rows, size, top, bn_grad32_max(g32 + lo * c, z + lo * c, len, c, abc))
    }
    return top;
}

/* --- activations, addition, pooling (5, 7) -------------------------------------------------- */

static void relu_range(const int8_t *restrict x, int64_t n, int8_t high, int8_t *restrict y) {
    for (int64_t i = 0; i < n; i++) {
        int8_t v = x[i] > 0 ? x[i] : 0;
        y[i] = v < high ? v : high;
    }
}

/* y = min(max(x, 0), high). */
void samebits_relu(const int8_t *x, int64_t n, int high, int8_t *y, int threads) {
    PARALLEL(n, n, relu_range(x + lo, len, (int8_t)high, y + lo))
}

#define RELU_GRAD(name, type)                                                                  \
    static void name(const type *restrict g, const int8_t *restrict y, int64_t n, int high,    \
                     type *restrict out) {                                                     \
        for (int64_t i = 0; i < n; i++) out[i] = (type)((y[i] > 0) & (y[i] < high) ? g[i] : 0); \
    }
RELU_GRAD(relu_grad16, int16_t)
RELU_GRAD(relu_grad32, int32_t)

/* out = g where 0 < y < high, else 0. */
void samebits_relu_grad(const void *g, int width, const int8_t *y, int64_t n, int high, void *out,
                        int threads) {
    if (width == 16) {
        const int16_t *p = g;
        PARALLEL(n, n, relu_grad16(p + lo, y + lo, len, high, (int16_t *)out + lo))
    } else {
        const int32_t *p = g;
        PARALLEL(n, n, relu_grad32(p + lo, y + lo, len, high, (int32_t *)out + lo))
    }
}

static int64_t add_max(const int8_t *restrict a, const int8_t *restrict b, int64_t n, Shift32 sa,
                       Shift32 sb) {
    int32_t top = 0;
    for (int64_t i = 0; i < n; i++) {
        int32_t v = scale32(a[i], sa) + scale32(b[i], sb), m = v < 0 ? -v : v;
        top = SAMEBITS_MAX(top, m);
    }
    return top;
}

static void add_range(const int8_t *restrict a, const int8_t *restrict b, int64_t n, Shift32 sa,
                      Shift32 sb, Shift32 s, int8_t *restrict y) {
    for (int64_t i = 0; i < n; i++)
        y[i] = (int8_t)scale32(scale32(a[i], sa) + scale32(b[i], sb), s);
}

/* rne(a * 2**ea) + rne(b * 2**eb): the largest magnitude (y == NULL), or the sum times
 * 2**exponent, rounded once more, as 8-bit codes. |a|, |b| <= 127 and ea, eb <= 22. */
int64_t samebits_add_i8(const int8_t *a, const int8_t *b, int64_t n, int64_t ea, int64_t eb,
                        int64_t exponent, int8_t *y, int threads) {
    Shift32 sa = shift32_by(ea), sb = shift32_by(eb), s = shift32_by(exponent);
    int64_t top = 0;
    if (y) {
        PARALLEL(n, n, add_range(a + lo, b + lo, len, sa, sb, s, y + lo))
    } else {
        PARALLEL_MAX(n, n, top, add_max(a + lo, b + lo, len, sa, sb))
    }
    return top;
}

#define ADD_BLOCK 1024 /* elements whose sums stay in the first-level cache */

#define ADD_SCALED(name, type)                                                                 \
    static void name(const type *restrict v, int64_t n, Shift s, int64_t *restrict sum) {      \
        for (int64_t i = 0; i < n; i++) sum[i] += scale64(v[i], s);                            \
    }
ADD_SCALED(add_scaled16, int16_t)
ADD_SCALED(add_scaled32, int32_t)

static int64_t add_grad_range(const Addend *parts, int64_t count, int64_t first, int64_t n,
                              Shift s, int32_t *restrict out) {
    int64_t sum[ADD_BLOCK], top = 0;
    for (int64_t at = 0; at < n; at += ADD_BLOCK) {
        int64_t size = SAMEBITS_MIN(n - at, ADD_BLOCK);
        memset(sum, 0, sizeof sum);
        for (int64_t p = 0; p < count; p++) {
            Shift by = shift_by(parts[p].by);
            if (parts[p].width == 16)
                add_scaled16((const int16_t *)parts[p].codes + first + at, size, by, sum);
            else
                add_scaled32((const int32_t *)parts[p].codes + first + at, size, by, sum);
        }
        for (int64_t i = 0; out && i < size; i++) out[first + at + i] = (int32_t)scale64(sum[i], s);
        for (int64_t i = 0; !out && i < size; i++) {
            int64_t v = samebits_magnitude64(sum[i]);
            top = SAMEBITS_MAX(top, v);
        }
    }
    return top;
}

/* The sum of all rne(codes * 2**by), by <= 0: the largest magnitude (out == NULL), or the sum times
 * 2**exponent rounded once more to 32 bits (1.3). Less than 2**30 addends. */
int64_t samebits_add_grad(const Addend *parts, int64_t count, int64_t n, int64_t exponent,
                          int32_t *out, int threads) {
    Shift s = shift_by(exponent);
    int64_t top = 0;
    PARALLEL_MAX(n, n, top, add_grad_range(parts, count, lo, len, s, out))
    return top;
}

typedef struct {
    int64_t n, h, w, c, oh, ow, kh, kw, stride_h, stride_w, pad_h, pad_w;
} Pool;

static void pool_row(const int8_t *restrict p, int64_t c, uint8_t t, int8_t *restrict best,
                     uint8_t *restrict where) {
    for (int64_t k = 0; k < c; k++) {
        int win = p[k] > best[k];
        where[k] = win ? t : where[k];
        best[k] = win ? p[k] : best[k];
    }
}

/* Maximum of each window and the position (row-major in the window) of its first maximum. */
void samebits_max_pool(const Pool *s, const int8_t *x, int8_t *y, uint8_t *where, int threads) {
    int64_t out_rows = s->n * s->oh;
#pragma omp parallel for num_threads(TEAM(out_rows *s->ow *s->c *s->kh *s->kw))
    for (int64_t r = 0; r < out_rows; r++)
        for (int64_t j = 0; j < s->ow; j++) {
            int64_t n = r / s->oh, i = r % s->oh, at = (r * s->ow + j) * s->c;
            memset(y + at, -128, (size_t)s->c);
            memset(where + at, 0, (size_t)s->c);
            for (int64_t t = 0; t < s->kh * s->kw; t++) {
                int64_t a = i * s->stride_h + t / s->kw - s->pad_h;
                int64_t b = j * s->stride_w + t % s->kw - s->pad_w;
                if (a < 0 || a >= s->h || b < 0 || b >= s->w) continue;
                pool_row(x + ((n * s->h + a) * s->w + b) * s->c, s->c, (uint8_t)t, y + at,
                         where + at);
            }
        }
}

/* dx (int64, zeroed) += g at the saved positions. */
void samebits_max_pool_grad(const Pool *s, const void *g, int width, const uint8_t *where,
                            int64_t *dx, int threads) {
#pragma omp parallel for num_threads(TEAM(s->n *s->oh *s->ow *s->c))
    for (int64_t n = 0; n < s->n; n++)
        for (int64_t i = 0; i < s->oh; i++)
            for (int64_t j = 0; j < s->ow; j++) {
                int64_t at = ((n * s->oh + i) * s->ow + j) * s->c;
                for (int64_t k = 0; k < s->c; k++) {
                    int64_t a = i * s->stride_h + where[at + k] / s->kw - s->pad_h;
                    int64_t b = j * s->stride_w + where[at + k] % s->kw - s->pad_w;
                    int64_t v = width == 16 ? ((const int16_t *)g)[at + k]
                                            : ((const int32_t *)g)[at + k];
                    dx[((n * s->h + a) * s->w + b) * s->c + k] += v;
                }
            }
}
