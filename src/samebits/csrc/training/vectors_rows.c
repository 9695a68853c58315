/* Normalisation of vectors that have exponents of their own (docs/spec/training.md, 12.2, 12.3 and
 * 14.6): vector by vector, of which one or several are a row of the result. */
#include <stdlib.h>
#include <string.h>

#include "parallel.h"
#include "parts.h"
#include "rows.h"
#include "vector.h"

/* Parameters of vectors as joint values, of one row or of `period` of them. */
typedef struct {
    const int32_t *gamma, *beta; /* NULL: none */
    int64_t e_gamma, e_beta, period;
} Joints;

SAMEBITS_INLINE const int32_t *joints_at(const int32_t *j, int64_t row, int64_t period, int64_t d) {
    return j ? j + row % period * d : NULL;
}

/* One vector, normalised with an exponent of its own: codes of 16 bits in `wide` and of 8 in xhat,
 * and of these times gamma plus beta the sums, int64, and their exponent. On failure that is what
 * does not fit. */
static int one_norm(const int8_t *z, int64_t e_z, int64_t d, const int32_t *gamma,
                    const int32_t *beta, const Joints *of, double eps, int centred, int16_t *wide,
                    int8_t *xhat, int64_t *e_xhat, int32_t *m, int64_t *e_m, int64_t *sums,
                    int64_t *e_sums) {
    Stats s = stats_of(z, d);
    int64_t sum = centred ? s.sum : 0;
    double factor = factor_of(sum, s.squares, d, e_z, eps);
    if (!is_finite(factor)) {
        *e_sums = bits_of(factor);
        return NOT_FINITE;
    }
    int64_t e_k = fits_of(factor, 24), e_wide = EXPONENT_MIN, by16 = 0, by8 = 0;
    *m = (int32_t)nearest_integer(times_power(factor, -e_k));
    *e_m = e_k - e_z;
    *e_xhat = EXPONENT_MIN;
    int64_t top = SAMEBITS_MAX(d * s.high - sum, sum - d * s.low) * *m, by = shorten_by(top);
    if (top) {
        int64_t code = scale64(top, shift_by(-by)), own = e_k + by;
        by16 = requantize_by(code, own, 16);
        by8 = requantize_by(code, own, 8);
        e_wide = own + by16;
        *e_xhat = own + by8;
    }
    *e_sums = SAMEBITS_MAX(e_wide, *e_xhat);
    if (e_wide > EXPONENT_MAX) *e_sums = e_wide;
    if (*e_sums > EXPONENT_MAX) return OUT_OF_RANGE;
    normalized_row(z, d, (int32_t)sum, *m, shift_by(-by), by16, by8, wide, xhat);
    int64_t e_x = gamma ? e_wide + of->e_gamma : e_wide, highest = e_x + (gamma ? 38 : 16);
    if (beta) highest = SAMEBITS_MAX(highest, of->e_beta + 23);
    *e_sums = highest - SUM_BITS;
    affine_row16(wide, d, gamma, NULL, shift_by(e_x - *e_sums), sums);
    Shift of_beta = shift_by(of->e_beta - *e_sums);
    for (int64_t k = 0; beta && k < d; k++) sums[k] += scale64(beta[k], of_beta);
    return FINE;
}

/* Vectors of sums [together][d], each with an exponent, as the codes of one row. */
static int joined(const int64_t *sums, const int64_t *exponents, int64_t together, int64_t d,
                  int bits, int kind, void *codes, int to, int64_t *own) {
    if (together > 1) {
        const Rows row = {.a = 1, .b = together, .c = d, .step_b = 1};
        int64_t none = 0, highest;
        return samebits_requantize_rows(&row, sums, 64, exponents, &none, bits, kind, codes, to,
                                        own, &highest, 1);
    }
    int64_t top = magnitude_max(sums, d, 0);
    if (kind == LIMITED)
        return samebits_requantize(sums, 64, d, &top, exponents, bits, codes, to, own, 1);
    samebits_shorten(sums, 64, d, &top, exponents, codes, own, 1);
    return FINE;
}

/* `samebits_vector_norm` of rows of `together` vectors z [rows][together][d], which have exponents
 * of their own (12.2), e_z and e_y [rows]; e_xhat and e_m are those of vectors. found: what does
 * not fit. */
int samebits_vector_norm_rows(const int8_t *z, const int64_t *e_z, int64_t rows, int64_t together,
                              int64_t d, int64_t period, const int8_t *gamma,
                              const int16_t *gamma_rest, const int64_t *e_gamma, const int8_t *beta,
                              const int16_t *beta_rest, const int64_t *e_beta, double eps,
                              int centred, int bits, int8_t *xhat, int64_t *e_xhat, int32_t *m,
                              int64_t *e_m, int8_t *y, int64_t *e_y, int64_t *found, int threads) {
    int64_t size = period * d, of_row = together * d;
    int status = FINE;
    int32_t *joint_values = malloc((size_t)(2 * size) * sizeof *joint_values);
    if (!joint_values) return NO_MEMORY;
    Joints j = {gamma ? joint_values : NULL, beta ? joint_values + size : NULL, *e_gamma, *e_beta,
                period};
    if (gamma) joints(gamma, gamma_rest, size, joint_values);
    if (beta) joints(beta, beta_rest, size, joint_values + size);
#pragma omp parallel num_threads(TEAM(rows *of_row))
    {
        SHARE(rows)
        int64_t *sums = malloc((size_t)(of_row + together) * sizeof *sums + (size_t)d * 2);
        int64_t *exponents = sums + of_row, unfit = 0;
        int failed = sums ? FINE : NO_MEMORY;
        for (int64_t r = lo; r < lo + len && !failed; r++) {
            for (int64_t v = r * together; v < (r + 1) * together && !failed; v++) {
                int64_t at = v - r * together;
                failed = one_norm(z + v * d, e_z[r], d, joints_at(j.gamma, v, period, d),
                                  joints_at(j.beta, v, period, d), &j, eps, centred,
                                  (int16_t *)(exponents + together), xhat + v * d, e_xhat + v,
                                  m + v, e_m + v, sums + at * d, exponents + at);
                unfit = exponents[at];
            }
            if (failed) break;
            failed = joined(sums, exponents, together, d, bits, LIMITED, y + r * of_row, 8,
                            e_y + r);
            unfit = e_y[r];
        }
        free(sums);
#pragma omp critical
        if (failed) {
            status = failed;
            *found = unfit;
        }
    }
    free(joint_values);
    return status;
}

/* The gradient of one vector, int64, and its exponent; on failure that is what does not fit. h:
 * room for d. */
static int one_gradient(const void *g, int width, int64_t at, int64_t e_g, int64_t d,
                        const int32_t *gamma, int64_t e_gamma, const int8_t *xhat, int64_t e_xhat,
                        int32_t m, int64_t e_m, int centred, int16_t *h, int64_t *out,
                        int64_t *e_out) {
    int64_t more = SAMEBITS_MAX(12, bit_length(d - 1)), sum, dot;
    *e_out = EXPONENT_MIN;
    gradient_row(g, width, at, d, gamma, out);
    int64_t top = magnitude_max(out, d, 0);
    if (top == 0) return FINE;
    int64_t own = gamma ? e_g + e_gamma : e_g, by = requantize_by(top, own, 16), e_h = own + by;
    *e_out = e_h;
    if (e_h > EXPONENT_MAX) return OUT_OF_RANGE;
    Shift to_h = shift_by(-by);
    for (int64_t k = 0; k < d; k++) h[k] = (int16_t)scale64(out[k], to_h);
    dots_of(h, xhat, d, &sum, &dot);
    int64_t e_dot = e_h + 2 * e_xhat;
    int64_t common = SAMEBITS_MAX(e_h + 16 + more, e_dot + 30 + more) - SUM_BITS;
    inner_row(h, xhat, d, centred ? sum : 0, dot, shift_by(e_h - common), shift_by(e_dot - common),
              out);
    top = magnitude_max(out, d, 0);
    *e_out = EXPONENT_MIN;
    if (top == 0) return FINE;
    by = requantize_by(top, common, 16);
    *e_out = common + by;
    if (*e_out > EXPONENT_MAX) return OUT_OF_RANGE;
    Shift last = shift_by(-by);
    for (int64_t k = 0; k < d; k++) out[k] = (int16_t)scale64(out[k], last) * (int64_t)m;
    *e_out += e_m;
    return FINE;
}

/* `samebits_vector_norm_gradient` of rows of `together` vectors with exponents of their own (12.3),
 * e_g and e_x [rows]; e_xhat and e_m are those of vectors. found: what does not fit. */
int samebits_vector_norm_gradient_rows(const void *g, int width, const int64_t *e_g,
                                       const int8_t *xhat, const int64_t *e_xhat, int64_t rows,
                                       int64_t together, int64_t d, int64_t period,
                                       const int8_t *gamma, const int16_t *gamma_rest,
                                       const int64_t *e_gamma, const int32_t *m,
                                       const int64_t *e_m, int centred, int32_t *dx, int64_t *e_x,
                                       int64_t *found, int threads) {
    int64_t size = period * d, of_row = together * d;
    int status = FINE;
    int32_t *j = malloc((size_t)size * sizeof *j);
    if (!j) return NO_MEMORY;
    if (gamma) joints(gamma, gamma_rest, size, j);
#pragma omp parallel num_threads(TEAM(rows *of_row))
    {
        SHARE(rows)
        int64_t *sums = malloc((size_t)(of_row + together) * sizeof *sums + (size_t)d * 2);
        int64_t *exponents = sums + of_row, unfit = 0;
        int failed = sums ? FINE : NO_MEMORY;
        for (int64_t r = lo; r < lo + len && !failed; r++) {
            for (int64_t v = r * together; v < (r + 1) * together && !failed; v++) {
                int64_t at = v - r * together;
                failed = one_gradient(g, width, v * d, e_g[r], d,
                                      joints_at(gamma ? j : NULL, v, period, d), *e_gamma,
                                      xhat + v * d, e_xhat[v], m[v], e_m[v], centred,
                                      (int16_t *)(exponents + together), sums + at * d,
                                      exponents + at);
                unfit = exponents[at];
            }
            if (!failed)
                failed = joined(sums, exponents, together, d, 32, SHORTENED, dx + r * of_row, 32,
                                e_x + r);
        }
        free(sums);
#pragma omp critical
        if (failed) {
            status = failed;
            *found = unfit;
        }
    }
    free(j);
    return status;
}
