/* Element-wise and per-channel parts of a training step: each reads codes once, writes codes once.
 * Per-channel data is NHWC: `rows` pixels of `c` channels. Section numbers are those of
 * docs/spec/training.md. Each function says which width holds its sums and why; what is returned as
 * a largest magnitude is what the next requantization chooses its exponent by. */
#include <stdlib.h>
#include <string.h>

#include "exponent.h"
#include "parallel.h"
#include "parts.h"
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

/* Adds the bias J = W * 2**15 - A (exponent *e_b) to acc, in place, both brought to the
 * exponent that leaves the bias 30 bits (5). `bias` is scratch of c. largest, exponent: those
 * of acc; a bias that is all zeros changes neither. */
void samebits_with_bias(int32_t *acc, int64_t rows, int64_t c, const int64_t *largest,
                        const int64_t *exponent, const int64_t *e_b, const int8_t *w,
                        const int16_t *a, int32_t *bias, int64_t *top, int64_t *common,
                        int threads) {
    int64_t most = 0, bits = 0, found = 0;
    for (int64_t k = 0; k < c; k++) {
        bias[k] = w[k] * 32768 - a[k];
        int64_t v = samebits_magnitude64(bias[k]);
        most = SAMEBITS_MAX(most, v);
    }
    *top = *largest;
    *common = *exponent;
    if (most == 0) return;
    while (most >> bits) bits++;
    if (*e_b + bits - 30 > *common) *common = *e_b + bits - 30;
    Shift s = shift_by(*e_b - *common);
    for (int64_t k = 0; k < c; k++) bias[k] = (int32_t)scale64(bias[k], s);
    Shift32 down = shift32_by(*exponent - *common);
    PARALLEL_MAX(rows, rows * c, found, add_bias_range(acc + lo * c, len, c, down, bias))
    *top = found;
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

/* --- activations and addition (5, 7) -------------------------------------------------------- */

static void relu_range(const int8_t *restrict x, int64_t n, int8_t high, int8_t *restrict y) {
    for (int64_t i = 0; i < n; i++) {
        int8_t v = x[i] > 0 ? x[i] : 0;
        y[i] = v < high ? v : high;
    }
}

/* The clip value on the grid of an exponent, out of a table of those of all exponents from -128 on;
 * NULL: 128, which no code reaches. Beyond them the value is that of the next. */
SAMEBITS_INLINE int clip_at(const uint8_t *clips, int64_t exponent) {
    return clips ? clips[samebits_clamp64(exponent, EXPONENT_MIN, EXPONENT_MAX) - EXPONENT_MIN]
                 : 128;
}

/* y = min(max(x, 0), clip) of rows of n codes, each with an exponent. */
void samebits_relu(const int8_t *x, int64_t rows, int64_t n, const int64_t *exponents,
                   const uint8_t *clips, int8_t *y, int threads) {
    for (int64_t r = 0; r < rows; r++, x += n, y += n) {
        int high = SAMEBITS_MIN(clip_at(clips, exponents[r]), 127);
        PARALLEL(n, n, relu_range(x + lo, len, (int8_t)high, y + lo))
    }
}

#define RELU_GRAD(name, type)                                                                  \
    static void name(const type *restrict g, const int8_t *restrict y, int64_t n, int high,    \
                     type *restrict out) {                                                     \
        for (int64_t i = 0; i < n; i++) out[i] = (type)((y[i] > 0) & (y[i] < high) ? g[i] : 0); \
    }
RELU_GRAD(relu_grad16, int16_t)
RELU_GRAD(relu_grad32, int32_t)

/* out = g where 0 < y < clip, else 0, of rows of n codes y, each with an exponent. */
void samebits_relu_grad(const void *g, int width, const int8_t *y, int64_t rows, int64_t n,
                        const int64_t *exponents, const uint8_t *clips, void *out, int threads) {
    const int16_t *g16 = g;
    const int32_t *g32 = g;
    for (int64_t r = 0; r < rows; r++, y += n, g16 += n, g32 += n) {
        int high = clip_at(clips, exponents[r]);
        int16_t *out16 = (int16_t *)out + r * n;
        int32_t *out32 = (int32_t *)out + r * n;
        if (width == 16) {
            PARALLEL(n, n, relu_grad16(g16 + lo, y + lo, len, high, out16 + lo))
        } else {
            PARALLEL(n, n, relu_grad32(g32 + lo, y + lo, len, high, out32 + lo))
        }
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

static int is_live(const int8_t *v, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        if (v[i]) return 1;
    return 0;
}

/* One row of `samebits_add`. */
static int add(const int8_t *a, const int64_t *e_a, const int8_t *b, const int64_t *e_b, int64_t n,
               int bits, int8_t *y, int64_t *e_y, int threads) {
    int64_t first = *e_a, second = *e_b, top = 0;
    if (!is_live(a, n)) first = second;
    if (!is_live(b, n)) second = first;
    int64_t least = SAMEBITS_MIN(first, second), most = SAMEBITS_MAX(first, second);
    int64_t exponent = SAMEBITS_MAX(least, most - 22);
    Shift32 sa = shift32_by(first - exponent), sb = shift32_by(second - exponent);
    PARALLEL_MAX(n, n, top, add_max(a + lo, b + lo, len, sa, sb))
    if (top == 0) {
        memset(y, 0, (size_t)n);
        *e_y = EXPONENT_MIN;
        return FINE;
    }
    int64_t by = requantize_by(top, exponent, bits);
    *e_y = exponent + by;
    if (*e_y > EXPONENT_MAX) return OUT_OF_RANGE;
    Shift32 s = shift32_by(-by);
    PARALLEL(n, n, add_range(a + lo, b + lo, len, sa, sb, s, y + lo))
    return FINE;
}

/* a * 2**e_a + b * 2**e_b of rows of n codes as codes of `bits`: each is rounded to the smaller
 * exponent, or to 22 less than the larger one, so that the sum stays below 2**30; exponents of
 * zeros do not count. A pass for the largest magnitude of the sum, and one that writes it. own_a,
 * own_b: whether rows have exponents of their own there. */
int samebits_add(const int8_t *a, const int64_t *e_a, int own_a, const int8_t *b,
                 const int64_t *e_b, int own_b, int64_t rows, int64_t n, int bits, int8_t *y,
                 int64_t *e_y, int64_t *found, int threads) {
    int status;
    int64_t unfit;
    EACH_ROW(rows, n, status, unfit,
             add(a + r * n, e_a + (own_a ? r : 0), b + r * n, e_b + (own_b ? r : 0), n, bits,
                 y + r * n, e_y + r, crew))
    if (status != FINE) *found = e_y[unfit];
    return status;
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
