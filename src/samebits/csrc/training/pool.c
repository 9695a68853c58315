/* Pools of images (docs/spec/training.md, sections 5 and 7), NHWC: maxima and where they were
 * found, exact sums over windows, and their quotients. */
#include <string.h>

#include "exponent.h"
#include "parallel.h"
#include "parts.h"
#include "real.h"

/* --- maxima ---------------------------------------------------------------------------------- */

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

/* dx: g added at the saved positions, and its largest magnitude. */
void samebits_max_pool_grad(const Pool *s, const void *g, int width, const uint8_t *where,
                            int64_t *dx, int64_t *largest, int threads) {
    int64_t top = 0, size = s->h * s->w * s->c;
#pragma omp parallel for num_threads(TEAM(s->n *s->oh *s->ow *s->c)) reduction(max : top)
    for (int64_t n = 0; n < s->n; n++) {
        int64_t *own = dx + n * size, at = n * s->oh * s->ow * s->c;
        memset(own, 0, (size_t)size * sizeof *own);
        for (int64_t i = 0; i < s->oh; i++)
            for (int64_t j = 0; j < s->ow; j++, at += s->c)
                for (int64_t k = 0; k < s->c; k++) {
                    int64_t a = i * s->stride_h + where[at + k] / s->kw - s->pad_h;
                    int64_t b = j * s->stride_w + where[at + k] % s->kw - s->pad_w;
                    int64_t v = width == 16 ? ((const int16_t *)g)[at + k]
                                            : ((const int32_t *)g)[at + k];
                    own[(a * s->w + b) * s->c + k] += v;
                }
        for (int64_t i = 0; i < size; i++) {
            int64_t v = samebits_magnitude64(own[i]);
            top = SAMEBITS_MAX(top, v);
        }
    }
    *largest = top;
}

/* --- sums ------------------------------------------------------------------------------------ */

/* Windows of images [n][h][w][c]. spans: of every of oh rows of windows the first row of the image
 * and the one after its last, then the same of ow columns. before: factors of the h rows and the w
 * columns of what is added; after: of the oh rows and ow columns of sums. NULL: none. */
typedef struct {
    int64_t n, h, w, c, oh, ow;
    const int64_t *spans, *before, *after;
} Windows;

#define ADD_TIMES(name, type)                                                                  \
    static void name(const type *restrict v, int64_t c, int64_t factor,                        \
                     int64_t *restrict sum) {                                                  \
        if (factor == 1)                                                                       \
            for (int64_t k = 0; k < c; k++) sum[k] += v[k];                                    \
        else                                                                                   \
            for (int64_t k = 0; k < c; k++) sum[k] += factor * v[k];                           \
    }
ADD_TIMES(add_times8, int8_t)
ADD_TIMES(add_times16, int16_t)
ADD_TIMES(add_times32, int32_t)

/* The product of two factors of a table of rows, then columns. */
SAMEBITS_INLINE int64_t factor_at(const int64_t *factors, int64_t rows, int64_t i, int64_t j) {
    return factors ? factors[i] * factors[rows + j] : 1;
}

/* The sum of window [i][j] of image n over all channels. */
static void add_window(const Windows *s, const void *v, int width, int64_t n, int64_t i, int64_t j,
                       int64_t *restrict sum) {
    const int64_t *down = s->spans + 2 * i, *across = s->spans + 2 * (s->oh + j);
    for (int64_t a = down[0]; a < down[1]; a++)
        for (int64_t b = across[0]; b < across[1]; b++) {
            int64_t at = ((n * s->h + a) * s->w + b) * s->c;
            int64_t factor = factor_at(s->before, s->h, a, b);
            if (width == 8)
                add_times8((const int8_t *)v + at, s->c, factor, sum);
            else if (width == 16)
                add_times16((const int16_t *)v + at, s->c, factor, sum);
            else
                add_times32((const int32_t *)v + at, s->c, factor, sum);
        }
}

/* The exact sums [n][oh][ow][c] over windows of integers of 8 to 32 bits, none of which leaves 62
 * bits, and the largest magnitude. */
void samebits_window_sums(const Windows *s, const void *v, int width, int64_t *sums,
                          int64_t *largest, int threads) {
    int64_t top = 0, rows = s->n * s->oh, size = s->n * (s->h * s->w + s->oh * s->ow) * s->c;
#pragma omp parallel for num_threads(TEAM(size)) reduction(max : top)
    for (int64_t r = 0; r < rows; r++)
        for (int64_t j = 0; j < s->ow; j++) {
            int64_t *sum = sums + (r * s->ow + j) * s->c, i = r % s->oh;
            memset(sum, 0, (size_t)s->c * sizeof *sum);
            add_window(s, v, width, r / s->oh, i, j, sum);
            int64_t factor = factor_at(s->after, s->oh, i, j);
            for (int64_t k = 0; k < s->c; k++) {
                sum[k] *= factor;
                int64_t size_k = samebits_magnitude64(sum[k]);
                top = SAMEBITS_MAX(top, size_k);
            }
        }
    *largest = top;
}

/* --- means ----------------------------------------------------------------------------------- */

/* rne(v * 2**by / divisor), then rne of that times 2**down; left shifts fit. A power of two, which
 * most divisors are, costs a shift and no division, and a division of binary64, where it is exact,
 * less than one of integers. */
typedef struct {
    int64_t divisor;
    double real; /* the divisor, or 0: integers are divided */
    Shift first, down;
} Quotient;

/* The quotients of |v| <= top <= 2**62. */
static Quotient quotient_by(int64_t divisor, int64_t by, int64_t down, int64_t top) {
    int64_t log = bit_length(divisor) - 1;
    if (divisor == (int64_t)1 << log) return (Quotient){1, 0, shift_by(by - log), shift_by(down)};
    if (by < 0 && log + 1 - by > 63) return (Quotient){1, 0, shift_by(-63), shift_by(down)}; /* 0 */
    int64_t left = SAMEBITS_MAX(by, 0), whole = divisor << (left - by);
    int fits = bit_length(top) + left <= 51 && bit_length(whole) <= 53;
    return (Quotient){whole, fits ? (double)whole : 0, shift_by(left), shift_by(down)};
}

SAMEBITS_INLINE int64_t quotient_of(int64_t v, Quotient q) {
    int64_t u = scale64(v, q.first);
    return scale64(q.divisor == 1 ? u : samebits_quotient(u, q.divisor), q.down);
}

#define QUOTIENTS(name, type)                                                                  \
    static void name(const int64_t *restrict v, int64_t n, Quotient q, type *restrict out) {   \
        if (q.divisor == 1)                                                                    \
            for (int64_t i = 0; i < n; i++)                                                    \
                out[i] = (type)scale64(scale64(v[i], q.first), q.down);                        \
        else if (q.real != 0)                                                                  \
            for (int64_t i = 0; i < n; i++)                                                    \
                out[i] = (type)scale64(                                                        \
                    real_quotient((int64_t)((uint64_t)v[i] << q.first.left), q.real), q.down); \
        else                                                                                   \
            for (int64_t i = 0; i < n; i++) out[i] = (type)quotient_of(v[i], q);               \
    }
QUOTIENTS(quotients8, int8_t)
QUOTIENTS(quotients16, int16_t)
QUOTIENTS(quotients32, int32_t)

/* One row of `samebits_requantize_divided`; top: max|acc|. */
static int requantize_divided(const int64_t *acc, int64_t n, int64_t top, int64_t exponent,
                              int64_t divisor, int bits, void *codes, int to, int64_t *own,
                              int threads) {
    int64_t by = bit_length(top) - bit_length(divisor - 1) - bits + 1;
    if (top == 0) {
        memset(codes, 0, (size_t)(n * (to / 8)));
        *own = EXPONENT_MIN;
        return FINE;
    }
    by = SAMEBITS_MAX(by, EXPONENT_MIN - exponent);
    while (quotient_of(top, quotient_by(divisor, -by, 0, top)) > code_max(bits)) by++;
    *own = exponent + by;
    if (*own > EXPONENT_MAX) return OUT_OF_RANGE;
    Quotient q = quotient_by(divisor, -by, 0, top);
    if (to == 8) {
        PARALLEL(n, n, quotients8(acc + lo, len, q, (int8_t *)codes + lo))
    } else {
        PARALLEL(n, n, quotients16(acc + lo, len, q, (int16_t *)codes + lo))
    }
    return FINE;
}

/* max|acc| of a row: the largest of a tensor that is one row, or (NULL) to be found. */
static int64_t top_of(const int64_t *acc, int64_t n, const int64_t *largest, int threads) {
    return largest ? *largest : samebits_max_i64(acc, n, threads);
}

/* Rows of n integers acc * 2**exponent / divisor as codes of `bits` bits in integers of `to` (8 or
 * 16) with one rounding, of which max|acc| decides the exponent (1.1): `largest`, where there is
 * one row, or NULL. divisor <= 2**46. */
int samebits_requantize_divided(const int64_t *acc, int64_t rows, int64_t n,
                                const int64_t *largest, const int64_t *exponents, int64_t divisor,
                                int bits, void *codes, int to, int64_t *own, int64_t *found,
                                int threads) {
    for (int64_t r = 0; r < rows; r++, acc += n, codes = (char *)codes + n * (to / 8)) {
        int64_t top = top_of(acc, n, largest, threads);
        int status = requantize_divided(acc, n, top, exponents[r], divisor, bits, codes, to,
                                        own + r, threads);
        *found = own[r];
        if (status != FINE) return status;
    }
    return FINE;
}

/* Rows of n integers acc * 2**exponent / divisor as codes of 32 bits (7): acc is shifted to the
 * left to `bits` bits, which must fit, then divided, then shortened (1.2). largest: as above. */
void samebits_divided(const int64_t *acc, int64_t rows, int64_t n, const int64_t *largest,
                      const int64_t *exponents, int64_t divisor, int bits, int32_t *codes,
                      int64_t *own, int threads) {
    for (int64_t r = 0; r < rows; r++, acc += n, codes += n) {
        int64_t most = top_of(acc, n, largest, threads), up = bits - bit_length(most);
        up = SAMEBITS_MAX(0, up);
        int64_t top = quotient_of(most, quotient_by(divisor, up, 0, most));
        Quotient q = quotient_by(divisor, up, -shorten_by(top), most);
        PARALLEL(n, n, quotients32(acc + lo, len, q, codes + lo))
        own[r] = top == 0 ? EXPONENT_MIN : exponents[r] - up + shorten_by(top);
    }
}
