/* Normalisation of vectors (docs/spec/training.md, 5 and 7): rows of d codes with one exponent
 * for all, each with a few binary64 numbers of its own. What is rounded in several steps is one
 * pass where the ends of the rows tell the largest magnitude; else a pass that finds it, and
 * one that writes. Parameters belong to the places of a row, those of `period` rows lie side by
 * side: that of row r are row r % period of them. */
#include <stdlib.h>
#include <string.h>

#include "parallel.h"
#include "vector.h"

static void stats_range(const int8_t *z, int64_t rows, int64_t d, int64_t n, int64_t *out) {
    for (int64_t r = 0; r < rows; r++) {
        Stats s = stats_of(z + r * d, d);
        out[r] = s.sum, out[n + r] = s.squares, out[2 * n + r] = s.low, out[3 * n + r] = s.high;
    }
}

/* Of every row the sum, the sum of squares, the smallest and the largest code: out is [4][n]. */
void samebits_vector_stats(const int8_t *z, int64_t n, int64_t d, int64_t *out, int threads) {
    PARALLEL(n, n *d, stats_range(z + lo * d, len, d, n, out + lo))
}

/* --- the norm -------------------------------------------------------------------------------- */

/* What rows are multiplied by, [period][d]: m at its exponent (NULL: 1), and what is then added. */
typedef struct {
    const int32_t *m;
    const int64_t *b;
    int64_t period;
    Shift by; /* of products */
} Affine;

SAMEBITS_INLINE const int32_t *factors_of(Affine a, int64_t row, int64_t d) {
    return a.m ? a.m + row % a.period * d : NULL;
}

/* Sums and factors of every row; the largest |(d * z - sum) * factor| in units of 2***e_k. */
static int64_t row_factors(const int8_t *z, int64_t e_z, int64_t n, int64_t d, double eps,
                           int centred, int32_t *sums, int32_t *m, double *factor, int64_t *ends,
                           int64_t *e_k, int threads) {
    PARALLEL(n, n * d, stats_range(z + lo * d, len, d, n, ends + lo))
    for (int64_t r = 0; r < n; r++) {
        int64_t sum = centred ? ends[r] : 0;
        factor[r] = factor_of(sum, ends[n + r], d, e_z, eps);
        sums[r] = (int32_t)sum;
    }
    double most = largest_real(factor, n);
    if (!is_finite(most)) {
        *e_k = bits_of(most);
        return -1;
    }
    *e_k = fits_of(most, 24);
    int64_t top = 0;
    for (int64_t r = 0; r < n; r++) {
        m[r] = (int32_t)nearest_integer(times_power(factor[r], -*e_k));
        int64_t high = d * ends[3 * n + r] - sums[r], low = sums[r] - d * ends[2 * n + r];
        top = SAMEBITS_MAX(top, SAMEBITS_MAX(high, low) * m[r]);
    }
    return top;
}

/* How a row becomes codes of 32 bits, these codes of 16 and of 8, and those of 16 the result. */
typedef struct {
    Shift first;
    int64_t by16, by8;
    Affine affine;
} Steps;

/* Rows `lo` on of the normalised vectors; the largest magnitude of what they become. */
static int64_t normalized_range(const int8_t *z, int64_t lo, int64_t rows, int64_t d,
                                const int32_t *sums, const int32_t *m, Steps s, int16_t *wide,
                                int8_t *narrow, int64_t *room) {
    int64_t top = 0;
    for (int64_t r = lo; r < lo + rows; r++) {
        const int64_t *b = s.affine.b ? s.affine.b + r % s.affine.period * d : NULL;
        normalized_row(z + r * d, d, sums[r], m[r], s.first, s.by16, s.by8, wide + r * d,
                       narrow + r * d);
        affine_row16(wide + r * d, d, factors_of(s.affine, r, d), b, s.affine.by, room);
        top = magnitude_max(room, d, top);
    }
    return top;
}

static void affine_range(const int16_t *wide, int64_t lo, int64_t rows, int64_t d, Affine a,
                         Shift by, int8_t *y, int64_t *room) {
    for (int64_t r = lo; r < lo + rows; r++) {
        const int64_t *b = a.b ? a.b + r % a.period * d : NULL;
        affine_row16(wide + r * d, d, factors_of(a, r, d), b, a.by, room);
        for (int64_t k = 0; k < d; k++) y[r * d + k] = (int8_t)scale64(room[k], by);
    }
}

/* The norm of the rows z [n][d], centred or not, times gamma plus beta, as codes of `bits`.
 * gamma and beta [period][d]: W, A and the exponent of J, or NULL. For the gradient: xhat, the
 * normalised rows as codes of 8 bits, and the factor m of every row. */
int samebits_vector_norm(const int8_t *z, const int64_t *e_z, int64_t n, int64_t d, int64_t period,
                         const int8_t *gamma, const int16_t *gamma_rest, const int64_t *e_gamma,
                         const int8_t *beta, const int16_t *beta_rest, const int64_t *e_beta,
                         double eps, int centred, int bits, int8_t *xhat, int64_t *e_xhat,
                         int32_t *m, int64_t *e_m, int8_t *y, int64_t *e_y, int threads) {
    int64_t size = period * d, crews = SAMEBITS_MAX(threads, 1);
    size_t numbers = (size_t)(5 * n + size + crews * d);
    int64_t *ends = malloc(numbers * 8 + (size_t)(n + size) * 4 + (size_t)(n * d) * 2);
    if (!ends) return NO_MEMORY;
    double *factor = (double *)(ends + 4 * n);
    int64_t *b = (int64_t *)(factor + n), *rooms = b + size, e_k, status = FINE;
    int32_t *sums = (int32_t *)(rooms + crews * d), *j = sums + n;
    int16_t *wide = (int16_t *)(j + size);
    int64_t top = row_factors(z, *e_z, n, d, eps, centred, sums, m, factor, ends, &e_k, threads);
    if (top < 0) {
        *e_y = e_k;
        free(ends);
        return NOT_FINITE;
    }
    /* Of codes that are all zeros every shift gives these. */
    int64_t by = shorten_by(top), e_wide = EXPONENT_MIN, by16 = 0, by8 = 0;
    *e_m = e_k - *e_z;
    *e_xhat = EXPONENT_MIN;
    if (top) {
        int64_t code = scale64(top, shift_by(-by)), own = e_k + by;
        by16 = requantize_by(code, own, 16);
        by8 = requantize_by(code, own, 8);
        e_wide = own + by16;
        *e_xhat = own + by8;
    }
    /* Both terms at one exponent: products have 38 bits, or 16 without gamma, J 23. */
    int64_t e_x = gamma ? e_wide + *e_gamma : e_wide, highest = e_x + (gamma ? 38 : 16);
    if (beta) highest = SAMEBITS_MAX(highest, *e_beta + 23);
    int64_t common = highest - SUM_BITS;
    if (beta) {
        Shift s = shift_by(*e_beta - common);
        for (int64_t k = 0; k < size; k++) b[k] = scale64(joint(beta[k], beta_rest[k]), s);
    }
    if (gamma) joints(gamma, gamma_rest, size, j);
    Affine a = {gamma ? j : NULL, beta ? b : NULL, period, shift_by(e_x - common)};
    Steps steps = {shift_by(-by), by16, by8, a};
    *e_y = SAMEBITS_MAX(e_wide, *e_xhat);
    if (e_wide > EXPONENT_MAX) *e_y = e_wide;
    if (*e_y > EXPONENT_MAX) {
        status = OUT_OF_RANGE;
    } else {
        PARALLEL_MAX(n, n * d, top, normalized_range(z, lo, len, d, sums, m, steps, wide, xhat,
                                                     rooms + me * d))
        int64_t last = top ? requantize_by(top, common, bits) : 0;
        *e_y = top ? common + last : EXPONENT_MIN;
        if (*e_y > EXPONENT_MAX)
            status = OUT_OF_RANGE;
        else
            PARALLEL(n, n * d, affine_range(wide, lo, len, d, a, shift_by(-last), y,
                                            rooms + me * d))
    }
    free(ends);
    return (int)status;
}

/* --- its gradient ---------------------------------------------------------------------------- */

static int64_t scaled_max(const void *g, int width, int64_t lo, int64_t rows, int64_t d, Affine a,
                          int64_t *room) {
    int64_t top = 0;
    for (int64_t r = lo; r < lo + rows; r++) {
        gradient_row(g, width, r * d, d, factors_of(a, r, d), room);
        top = magnitude_max(room, d, top);
    }
    return top;
}

/* h = rne(g * gamma * 2**by), and of every row its sum and that of h * x: dots is [2][n]. */
static void scaled_range(const void *g, int width, int64_t lo, int64_t rows, int64_t n, int64_t d,
                         Affine a, Shift by, const int8_t *x, int16_t *h, int64_t *dots,
                         int64_t *room) {
    for (int64_t r = lo; r < lo + rows; r++) {
        gradient_row(g, width, r * d, d, factors_of(a, r, d), room);
        for (int64_t k = 0; k < d; k++) h[r * d + k] = (int16_t)scale64(room[k], by);
        dots_of(h + r * d, x + r * d, d, dots + r, dots + n + r);
    }
}

static int64_t inner_max(const int16_t *h, const int8_t *x, int64_t lo, int64_t rows, int64_t n,
                         int64_t d, const int64_t *dots, Shift by_h, Shift by_x, int64_t *room) {
    int64_t top = 0;
    for (int64_t r = lo; r < lo + rows; r++) {
        inner_row(h + r * d, x + r * d, d, dots[r], dots[n + r], by_h, by_x, room);
        top = magnitude_max(room, d, top);
    }
    return top;
}

/* t in 16 bits, in the place of h; the largest |t * m|. */
static int64_t inner_range(int16_t *h, const int8_t *x, int64_t lo, int64_t rows, int64_t n,
                           int64_t d, const int64_t *dots, Shift by_h, Shift by_x, Shift by,
                           const int32_t *m, int64_t *room) {
    int64_t top = 0;
    for (int64_t r = lo; r < lo + rows; r++) {
        int16_t *t = h + r * d;
        int32_t most = 0;
        inner_row(t, x + r * d, d, dots[r], dots[n + r], by_h, by_x, room);
        for (int64_t k = 0; k < d; k++) {
            int32_t v = (int16_t)scale64(room[k], by), size = v < 0 ? -v : v;
            t[k] = (int16_t)v;
            most = SAMEBITS_MAX(most, size);
        }
        top = SAMEBITS_MAX(top, (int64_t)most * m[r]);
    }
    return top;
}

static void times_range(const int16_t *restrict t, int64_t rows, int64_t d,
                        const int32_t *restrict m, Shift s, int32_t *restrict out) {
    for (int64_t r = 0; r < rows; r++, t += d, out += d)
        for (int64_t k = 0; k < d; k++) out[k] = (int32_t)scale64((int64_t)t[k] * m[r], s);
}

/* The gradient of z of `samebits_vector_norm` from g of `width` bits, as codes of 32 bits: with
 * h = g * gamma in 16 bits, (d * h - sum h) - sum(h * xhat) * xhat in 16 bits, times the factor
 * m of the row at its exponent e_m. No term leaves 60 bits. */
int samebits_vector_norm_gradient(const void *g, int width, const int64_t *e_g,
                                  const int8_t *xhat, const int64_t *e_xhat, int64_t n, int64_t d,
                                  int64_t period, const int8_t *gamma, const int16_t *gamma_rest,
                                  const int64_t *e_gamma, const int32_t *m, const int64_t *e_m,
                                  int centred, int32_t *dx, int64_t *e_x, int threads) {
    int64_t size = period * d, crews = SAMEBITS_MAX(threads, 1), status = FINE;
    int64_t *dots = malloc((size_t)(2 * n + crews * d) * 8 + (size_t)size * 4 +
                           (size_t)(n * d) * 2);
    if (!dots) return NO_MEMORY;
    int64_t *rooms = dots + 2 * n, top, count = n * d;
    int32_t *j = (int32_t *)(rooms + crews * d);
    int16_t *h = (int16_t *)(j + size);
    if (gamma) joints(gamma, gamma_rest, size, j);
    Affine a = {gamma ? j : NULL, NULL, period, shift_by(0)};
    PARALLEL_MAX(n, count, top, scaled_max(g, width, lo, len, d, a, rooms + me * d))
    if (top == 0) goto zeros;
    int64_t own = gamma ? *e_g + *e_gamma : *e_g, by = requantize_by(top, own, 16);
    int64_t e_h = own + by, more = SAMEBITS_MAX(12, bit_length(d - 1));
    *e_x = e_h;
    if (e_h > EXPONENT_MAX) {
        status = OUT_OF_RANGE;
        goto end;
    }
    PARALLEL(n, count, scaled_range(g, width, lo, len, n, d, a, shift_by(-by), xhat, h, dots,
                                    rooms + me * d))
    if (!centred) memset(dots, 0, (size_t)n * sizeof *dots);
    int64_t e_dot = e_h + 2 * *e_xhat;
    int64_t common = SAMEBITS_MAX(e_h + 16 + more, e_dot + 30 + more) - SUM_BITS;
    Shift by_h = shift_by(e_h - common), by_x = shift_by(e_dot - common);
    PARALLEL_MAX(n, count, top, inner_max(h, xhat, lo, len, n, d, dots, by_h, by_x,
                                          rooms + me * d))
    if (top == 0) goto zeros;
    by = requantize_by(top, common, 16);
    *e_x = common + by;
    if (*e_x > EXPONENT_MAX) {
        status = OUT_OF_RANGE;
        goto end;
    }
    *e_x += *e_m;
    Shift last = shift_by(-by);
    PARALLEL_MAX(n, count, top, inner_range(h, xhat, lo, len, n, d, dots, by_h, by_x, last, m,
                                            rooms + me * d))
    if (top == 0) goto zeros;
    by = shorten_by(top);
    *e_x += by;
    PARALLEL(n, count, times_range(h + lo * d, len, d, m + lo, shift_by(-by), dx + lo * d))
    goto end;
zeros:
    memset(dx, 0, (size_t)count * sizeof *dx);
    *e_x = EXPONENT_MIN;
end:
    free(dots);
    return (int)status;
}
