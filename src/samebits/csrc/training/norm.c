/* Batch normalisation (docs/spec/training.md, sections 5 and 7) of tensors with one exponent: exact
 * sums over channels, a few binary64 numbers of each, and one multiply-add of integers an element.
 * Data is NHWC: `rows` pixels of `c` channels. Every operation on binary64 is rounded once, in the
 * order of the specification. */
#include <stdlib.h>
#include <string.h>

#include "exponent.h"
#include "moment.h"
#include "parallel.h"

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

/* Of every channel the sum of z, the sum of z * z, the smallest and the largest code: [4][c]. */
static int channel_stats(const int8_t *z, int64_t rows, int64_t c, int64_t *out, int threads) {
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
    return failed ? NO_MEMORY : FINE;
}

#define AFFINE(name, sum, shift, apply)                                                        \
    static void name(const int8_t *restrict z, int64_t rows, int64_t c,                        \
                     const int32_t *restrict m, const int32_t *restrict b, shift s,            \
                     int8_t *restrict y) {                                                     \
        for (int64_t r = 0; r < rows; r++, z += c, y += c)                                     \
            for (int64_t k = 0; k < c; k++) y[k] = (int8_t)apply((sum)(z[k] * m[k] + b[k]), s); \
    }
AFFINE(affine_range, int32_t, Shift32, scale32)
AFFINE(affine_far_range, int64_t, Shift, scale64)

/* y = rne((z * m + b) * 2**-by), |z * m + b| <= 2**30 + 2**7, which 32 bits hold together with half
 * of 2**30. */
static void affine(const int8_t *z, int64_t rows, int64_t c, const int32_t *m, const int32_t *b,
                   int64_t by, int8_t *y, int threads) {
    if (by <= 30) {
        Shift32 s = shift32_by(-by);
        PARALLEL(rows, rows * c, affine_range(z + lo * c, len, c, m, b, s, y + lo * c))
    } else {
        Shift s = shift_by(-by);
        PARALLEL(rows, rows * c, affine_far_range(z + lo * c, len, c, m, b, s, y + lo * c))
    }
}

SAMEBITS_INLINE int not_finite(double v, int64_t *found) {
    *found = bits_of(v);
    return NOT_FINITE;
}

/* alpha and shift of every channel, with which its output is alpha * z + shift, and the scalars
 * [3][c]: the mean, 1 / standard deviation, and gamma times it. */
static void channel_scalars(const int64_t *sums, double n, int64_t e_z, int64_t c,
                            const double *mean, const double *variance, double eps,
                            const double *gamma, const double *beta, double *scalars,
                            double *alpha, double *shift) {
    for (int64_t k = 0; k < c; k++) {
        double centre, spread;
        if (mean) {
            centre = mean[k];
            spread = variance[k];
        } else {
            /* n * S2 < 2**24 * 2**38: exact, and rounded once. */
            int64_t whole = (int64_t)n * sums[c + k] - sums[k] * sums[k];
            centre = times_power((double)sums[k] / n, e_z);
            spread = times_power((double)whole / (n * n), 2 * e_z);
        }
        double inv = 1.0 / __builtin_sqrt(spread + eps), a = gamma[k] * inv;
        scalars[k] = centre;
        scalars[c + k] = inv;
        scalars[2 * c + k] = a;
        alpha[k] = times_power(a, e_z);
        shift[k] = beta[k] - centre * a;
    }
}

/* The real joint values of a parameter, exactly. */
static void joint_values(const int8_t *w, const int16_t *a, int64_t exponent, int64_t c,
                         double *out) {
    for (int64_t k = 0; k < c; k++) out[k] = times_power(joint(w[k], a[k]), exponent);
}

/* The batch norm of z [rows][c] by its own statistics, or where `mean` and `variance` are given by
 * these, as codes of `bits`. gamma and beta: W, A and the exponent of J. sums [4][c]: as
 * `channel_stats` has them; scalars [3][c]: as `channel_scalars`.
 *
 * Channels are one multiply-add of integers each, of coefficients with one exponent at which no sum
 * leaves 30 bits. It is largest at the smallest or the largest code, so that the exponent of y
 * follows from the statistics. */
int samebits_batch_norm(const int8_t *z, const int64_t *e_z, int64_t rows, int64_t c,
                        const int8_t *gamma, const int16_t *gamma_rest, const int64_t *e_gamma,
                        const int8_t *beta, const int16_t *beta_rest, const int64_t *e_beta,
                        const double *mean, const double *variance, double eps, int bits,
                        int64_t *sums, double *scalars, int8_t *y, int64_t *e_y, int threads) {
    double *alpha = malloc((size_t)c * (4 * sizeof *alpha + 2 * sizeof(int32_t)));
    if (!alpha) return NO_MEMORY;
    double *shift = alpha + c, *factor = shift + c, *term = factor + c, bound;
    int32_t *m = (int32_t *)(term + c), *b = m + c;
    int status = channel_stats(z, rows, c, sums, threads);
    if (status != FINE) goto end;
    joint_values(gamma, gamma_rest, *e_gamma, c, factor);
    joint_values(beta, beta_rest, *e_beta, c, term);
    channel_scalars(sums, (double)rows, *e_z, c, mean, variance, eps, factor, term, scalars, alpha,
                    shift);
    for (int64_t k = 0; k < c; k++)
        term[k] = 127.0 * magnitude_of_real(alpha[k]) + magnitude_of_real(shift[k]);
    bound = largest_real(term, c);
    if (!is_finite(bound)) {
        status = not_finite(bound, e_y);
        goto end;
    }
    int64_t e = fits_of(bound, 30), top = 0;
    for (int64_t k = 0; k < c; k++) {
        m[k] = (int32_t)nearest_integer(times_power(alpha[k], -e));
        b[k] = (int32_t)nearest_integer(times_power(shift[k], -e));
        int64_t low = samebits_magnitude64(sums[2 * c + k] * m[k] + b[k]);
        int64_t high = samebits_magnitude64(sums[3 * c + k] * m[k] + b[k]);
        top = SAMEBITS_MAX(top, SAMEBITS_MAX(low, high));
    }
    if (top == 0) {
        memset(y, 0, (size_t)(rows * c));
        *e_y = EXPONENT_MIN;
        goto end;
    }
    int64_t by = requantize_by(top, e, bits);
    *e_y = e + by;
    if (*e_y > EXPONENT_MAX)
        status = OUT_OF_RANGE;
    else
        affine(z, rows, c, m, b, by, y, threads);
end:
    free(alpha);
    return status;
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
    return failed ? NO_MEMORY : FINE;
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

/* The largest |a * g + b * z + c|. */
static int64_t gradient_top(const void *g, int width, const int8_t *z, int64_t rows, int64_t c,
                            const int64_t *abc, int threads) {
    const int16_t *g16 = g;
    const int32_t *g32 = g;
    int64_t top = 0, size = rows * c;
    if (width == 16) {
        PARALLEL_MAX(rows, size, top, bn_grad16_max(g16 + lo * c, z + lo * c, len, c, abc))
    } else {
        PARALLEL_MAX(rows, size, top, bn_grad32_max(g32 + lo * c, z + lo * c, len, c, abc))
    }
    return top;
}

/* out = rne((a * g + b * z + c) * 2**-by). */
static void gradient_codes(const void *g, int width, const int8_t *z, int64_t rows, int64_t c,
                           const int64_t *abc, int64_t by, int32_t *out, int threads) {
    const int16_t *g16 = g;
    const int32_t *g32 = g;
    Shift s = shift_by(-by);
    int64_t size = rows * c;
    if (width == 16) {
        PARALLEL(rows, size, bn_grad16(g16 + lo * c, z + lo * c, len, c, abc, s, out + lo * c))
    } else {
        PARALLEL(rows, size, bn_grad32(g32 + lo * c, z + lo * c, len, c, abc, s, out + lo * c))
    }
}

/* Real numbers as codes of 32 bits with the smallest exponent, which has no limits. */
static int wide_codes(const double *v, int64_t c, int32_t *codes, int64_t *exponent,
                      int64_t *found) {
    double top = largest_real(v, c);
    if (!is_finite(top)) return not_finite(top, found);
    *exponent = EXPONENT_MIN;
    if (top != 0) {
        Scaled s = scaled_of(top);
        *exponent = s.exponent + shorten_by(s.mantissa);
    }
    for (int64_t k = 0; k < c; k++)
        codes[k] = (int32_t)nearest_integer(times_power(v[k], -*exponent));
    return FINE;
}

/* The coefficients real [3][c] of a * g + slope * z + offset as integers with one exponent: the
 * largest `a` has 24 bits, unless the sum would leave 61 (7). reach: room for [c]. */
static int coefficients(double *real, double *reach, int64_t c, int64_t e_g, int64_t e_z, int width,
                        int64_t *abc, int64_t *exponent, int64_t *found) {
    double limit = (double)code_max(width), *a = real, *slope = a + c, *offset = slope + c;
    for (int64_t k = 0; k < c; k++) {
        a[k] = times_power(a[k], e_g);
        slope[k] = times_power(slope[k], e_z);
        reach[k] = magnitude_of_real(a[k]) * limit + 127.0 * magnitude_of_real(slope[k]) +
                   magnitude_of_real(offset[k]);
    }
    double most = largest_real(reach, c);
    if (!is_finite(most)) return not_finite(most, found);
    *exponent = SAMEBITS_MAX(fits_of(largest_real(a, c), 24), fits_of(most, 61));
    for (int64_t k = 0; k < 3 * c; k++)
        abc[k] = nearest_integer(times_power(real[k], -*exponent));
    return FINE;
}

/* Moves the running mean and variance [c] by a shard: s1, s2: the sums of n codes z, and of z * z,
 * whose exponent is *e_z (5). */
void samebits_running_statistics(double *mean, double *variance, int64_t c, const int64_t *s1,
                                 const int64_t *s2, int64_t n, const int64_t *e_z,
                                 double momentum) {
    double count = (double)n, divisor = (double)(n * (n - 1));
    for (int64_t k = 0; k < c; k++) {
        int64_t whole = n * s2[k] - s1[k] * s1[k];
        double centre = times_power((double)s1[k] / count, *e_z);
        double spread = times_power((double)whole / divisor, 2 * *e_z);
        mean[k] = (1.0 - momentum) * mean[k] + momentum * centre;
        variance[k] = (1.0 - momentum) * variance[k] + momentum * spread;
    }
}

/* The gradients of gamma and beta, and where dx is not NULL that of z [rows][c], all as codes of 32
 * bits, from a gradient g of `width` bits. scalars [3][c]: those of the forward pass; training:
 * whether they are statistics of z. NOT_FINITE: the bits stand in e_gamma. */
int samebits_batch_norm_gradient(const void *g, int width, const int64_t *e_g, const int8_t *z,
                                 const int64_t *e_z, int64_t rows, int64_t c,
                                 const double *scalars, int training, int32_t *dx, int64_t *e_x,
                                 int32_t *gamma, int64_t *e_gamma, int32_t *beta, int64_t *e_beta,
                                 int threads) {
    const double *centre = scalars, *inv = centre + c, *a = inv + c, n = (double)rows;
    int64_t *sums = malloc((size_t)c * (5 * sizeof *sums + 6 * sizeof(double)));
    if (!sums) return NO_MEMORY;
    int64_t *abc = sums + 2 * c, e;
    double *sg = (double *)(abc + 3 * c), *gg = sg + c, *real = gg + c, *reach = real + 3 * c;
    int status = samebits_channel_grad_sums(g, width, z, rows, c, sums, threads);
    for (int64_t k = 0; k < c && status == FINE; k++) {
        sg[k] = times_power((double)sums[k], *e_g);
        gg[k] = (times_power((double)sums[c + k], *e_g + *e_z) - centre[k] * sg[k]) * inv[k];
        double slope = training ? -(a[k] * ((gg[k] / n) * inv[k])) : 0;
        real[k] = a[k];
        real[c + k] = slope;
        real[2 * c + k] = training ? -(a[k] * (sg[k] / n)) - centre[k] * slope : 0;
    }
    if (status == FINE) status = wide_codes(gg, c, gamma, e_gamma, e_gamma);
    if (status == FINE) status = wide_codes(sg, c, beta, e_beta, e_gamma);
    if (status != FINE || !dx) goto end;
    if (largest_real(a, c) == 0) {
        memset(dx, 0, (size_t)(rows * c) * sizeof *dx);
        *e_x = EXPONENT_MIN;
        goto end;
    }
    status = coefficients(real, reach, c, *e_g, *e_z, width, abc, &e, e_gamma);
    if (status != FINE) goto end;
    int64_t top = gradient_top(g, width, z, rows, c, abc, threads), by = shorten_by(top);
    gradient_codes(g, width, z, rows, c, abc, by, dx, threads);
    *e_x = top == 0 ? EXPONENT_MIN : e + by;
end:
    free(sums);
    return status;
}
