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

#define ADD_BLOCK 1024 /* elements whose sums stay in the first-level cache */

/* sum = (first ? 0 : sum) + rne(v * 2**by), of a part whose codes have `type`. */
#define ADD_SCALED(name, type)                                                                 \
    static void name(const type *restrict v, int64_t n, int64_t by, int first,                 \
                     int64_t *restrict sum) {                                                  \
        Shift s = shift_by(by);                                                                \
        if (first && by == 0)                                                                  \
            for (int64_t i = 0; i < n; i++) sum[i] = v[i];                                     \
        else if (first)                                                                        \
            for (int64_t i = 0; i < n; i++) sum[i] = scale64(v[i], s);                         \
        else if (by == 0)                                                                      \
            for (int64_t i = 0; i < n; i++) sum[i] += v[i];                                    \
        else                                                                                   \
            for (int64_t i = 0; i < n; i++) sum[i] += scale64(v[i], s);                        \
    }
ADD_SCALED(add_scaled16, int16_t)
ADD_SCALED(add_scaled32, int32_t)

static int64_t add_grad_range(const Addend *parts, int64_t count, int64_t first, int64_t n,
                              int64_t exponent, int32_t *restrict out) {
    int64_t sum[ADD_BLOCK], top = 0;
    Shift s = shift_by(exponent);
    for (int64_t at = 0; at < n; at += ADD_BLOCK) {
        int64_t size = SAMEBITS_MIN(n - at, ADD_BLOCK), place = first + at;
        for (int64_t p = 0; p < count; p++) {
            const Addend *part = parts + p;
            if (part->width == 16)
                add_scaled16((const int16_t *)part->codes + place, size, part->by, p == 0, sum);
            else
                add_scaled32((const int32_t *)part->codes + place, size, part->by, p == 0, sum);
        }
        for (int64_t i = 0; i < size; i++) {
            int64_t v = samebits_magnitude64(sum[i]);
            top = SAMEBITS_MAX(top, v);
        }
        if (out && exponent == 0)
            for (int64_t i = 0; i < size; i++) out[place + i] = (int32_t)sum[i];
        else if (out)
            for (int64_t i = 0; i < size; i++) out[place + i] = (int32_t)scale64(sum[i], s);
    }
    return top;
}

/* The sum of all rne(codes * 2**by), by <= 0, as codes of 32 bits (1.3): in one pass, and where
 * these do not hold it in another. own: the exponent of the codes. out == NULL: neither is
 * written. Gives the largest magnitude of the sum. Less than 2**30 addends. */
int64_t samebits_add_grad(const Addend *parts, int64_t count, int64_t n, int32_t *out,
                          int64_t *own, int threads) {
    int64_t top = 0;
    PARALLEL_MAX(n, n, top, add_grad_range(parts, count, lo, len, 0, out))
    if (!out) return top;
    *own = shorten_by(top);
    if (*own) PARALLEL(n, n, add_grad_range(parts, count, lo, len, -*own, out))
    return top;
}
