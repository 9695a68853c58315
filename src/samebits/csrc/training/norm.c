/* Batch normalisation (docs/spec/training.md, sections 5, 7 and 12): exact sums over channels, a
 * few binary64 numbers of each, and one multiply-add of integers an element. Data is NHWC: `rows`
 * pixels of `c` channels, of one sample after the other where these have exponents of their own.
 * Every operation on binary64 is rounded once, in the order of the specification. */
#include <stdlib.h>
#include <string.h>

#include "exponent.h"
#include "moment.h"
#include "parallel.h"
#include "rows.h"

#define STATS_ROWS 4096 /* 4096 * 2**16 < 2**31: exact in 32 bits between flushes */

/* How many rows of few channels are taken as one, so that loops over channels are long. */
static int64_t rows_in_one(int64_t c) { return c < 64 ? 64 / c : 1; }

/* Sums of codes and of their squares, the lower 16 bits of these apart from the others, and ends:
 * part[0] to part[4], [c] each. */
#define STATS_BLOCK(name, type)                                                                \
    static void name(const type *restrict z, int64_t rows, int64_t c, int32_t *restrict part) { \
        int32_t *restrict s1 = part, *restrict below = s1 + c, *restrict above = below + c;    \
        int32_t *restrict low = above + c, *restrict high = low + c;                           \
        for (int64_t r = 0; r < rows; r++, z += c)                                             \
            for (int64_t k = 0; k < c; k++) {                                                  \
                int32_t v = z[k], square = v * v;                                              \
                s1[k] += v;                                                                    \
                below[k] += square & 0xFFFF;                                                   \
                if (sizeof(type) > 1) above[k] += square >> 16;                                \
                low[k] = v < low[k] ? v : low[k];                                              \
                high[k] = v > high[k] ? v : high[k];                                           \
            }                                                                                  \
    }
STATS_BLOCK(stats_block8, int8_t)
STATS_BLOCK(stats_block16, int16_t)

/* The statistics of rows of c channels: [5][c]. */
static void stats_block(const void *z, int width, int64_t rows, int64_t c, int32_t *part) {
    int32_t most = (int32_t)code_max(width);
    memset(part, 0, (size_t)c * 3 * sizeof *part);
    for (int64_t k = 0; k < c; k++) part[3 * c + k] = most, part[4 * c + k] = -most;
    if (width == 16)
        stats_block16(z, rows, c, part);
    else
        stats_block8(z, rows, c, part);
}

/* Of every channel the sum of z, the sum of z * z, the smallest and the largest code: [4][c]. */
static int channel_stats(const void *z, int width, int64_t rows, int64_t c, int64_t *out,
                         int threads) {
    int failed = 0;
    int64_t times = rows_in_one(c), size = width / 8;
    int32_t most = (int32_t)code_max(width);
    for (int64_t k = 0; k < c; k++) {
        out[k] = out[c + k] = 0;
        out[2 * c + k] = most;
        out[3 * c + k] = -most;
    }
#pragma omp parallel num_threads(TEAM(rows *c)) reduction(| : failed)
    {
        int32_t *part = malloc((size_t)(c * times) * 5 * sizeof *part);
        if (!part) failed = 1;
        SHARE(rows)
        for (int64_t at = lo; part && at < lo + len;) {
            int64_t take = SAMEBITS_MIN(lo + len - at, STATS_ROWS * times);
            int64_t one = take < times ? 1 : times, all = one * c;
            stats_block((const char *)z + at * c * size, width, take / one, all, part);
            at += take / one * one;
#pragma omp critical
            for (int64_t k = 0; k < all; k++) {
                int64_t *o = out + k % c;
                o[0] += part[k];
                o[c] += part[all + k] + (int64_t)part[2 * all + k] * 65536;
                o[2 * c] = SAMEBITS_MIN(part[3 * all + k], o[2 * c]);
                o[3 * c] = SAMEBITS_MAX(part[4 * all + k], o[3 * c]);
            }
        }
        free(part);
    }
    return failed ? NO_MEMORY : FINE;
}

SAMEBITS_INLINE int not_finite(double v, int64_t *found) {
    *found = bits_of(v);
    return NOT_FINITE;
}

__extension__ typedef __int128 Wide;

/* n * S2 - S1 * S1, below 2**80, rounded once: codes have 16 bits, or 8 and 8 guard bits. Roundings
 * of samples may leave less than 0, which counts as 0. */
SAMEBITS_INLINE double spread_of(int64_t s1, int64_t s2, int64_t n) {
    Wide spread = (Wide)n * s2 - (Wide)s1 * s1;
    return spread > 0 ? (double)spread : 0;
}

/* shift of every channel, whose output is a * z + shift of real numbers z, and the scalars [3][c]:
 * the mean, 1 / standard deviation, and a, which is gamma times it. */
static void channel_scalars(const int64_t *sums, int64_t n, int64_t e, int64_t c,
                            const double *mean, const double *variance, double eps,
                            const double *gamma, const double *beta, double *scalars,
                            double *shift) {
    double count = (double)n, square = (double)(n * n);
    for (int64_t k = 0; k < c; k++) {
        double centre, spread;
        if (mean) {
            centre = mean[k];
            spread = variance[k];
        } else {
            centre = times_power((double)sums[k] / count, e);
            spread = times_power(spread_of(sums[k], sums[c + k], n) / square, 2 * e);
        }
        double inv = 1.0 / __builtin_sqrt(spread + eps), a = gamma[k] * inv;
        scalars[k] = centre;
        scalars[c + k] = inv;
        scalars[2 * c + k] = a;
        shift[k] = beta[k] - centre * a;
    }
}

/* The real joint values of a parameter, exactly. */
static void joint_values(const int8_t *w, const int16_t *a, int64_t exponent, int64_t c,
                         double *out) {
    for (int64_t k = 0; k < c; k++) out[k] = times_power(joint(w[k], a[k]), exponent);
}

/* S1 and S2 [2][c] of samples, each with sums `stats` [4][c] and an exponent, and the exponent of
 * S1: `guard` bits below the largest of a sample that is not all zero (12.2). That of one sample
 * without guard bits, which may be a whole tensor, counts in any case. */
static int64_t join_samples(const int64_t *stats, const int64_t *e, int64_t samples, int64_t c,
                            int64_t guard, int64_t *sums) {
    int64_t common = EXPONENT_MIN, live = 0;
    memset(sums, 0, (size_t)c * 2 * sizeof *sums);
    if (samples == 1 && !guard) common = *e;
    for (int64_t i = 0; (guard || samples > 1) && i < samples; i++) {
        int64_t squares = 0;
        for (int64_t k = 0; k < c; k++) squares |= stats[(4 * i + 1) * c + k];
        if (squares && (!live || e[i] > common)) common = e[i];
        live |= squares;
    }
    for (int64_t i = 0; i < samples; i++) {
        int64_t by = SAMEBITS_MIN(e[i] - common, 0) + guard;
        Shift first = shift_by(by), second = shift_by(2 * by);
        for (int64_t k = 0; k < c; k++) {
            sums[k] += scale64(stats[4 * i * c + k], first);
            sums[c + k] += scale64(stats[(4 * i + 1) * c + k], second);
        }
    }
    return common - guard;
}

/* Coefficients m and b of one multiply-add of integers for every channel, and their one exponent,
 * at which no sum leaves 30 bits; largest: of a code; ends: the largest magnitude of a sum
 * of codes from `low` to `high`, and the largest sum above 0. term: room for [c]. */
static int affine_of(const double *a, const double *shift, double largest, int64_t e_z,
                     const int64_t *low, const int64_t *high, int64_t c, double *term, int32_t *m,
                     int32_t *b, int64_t *exponent, int64_t *ends, int64_t *found) {
    for (int64_t k = 0; k < c; k++)
        term[k] = largest * magnitude_of_real(times_power(a[k], e_z)) + magnitude_of_real(shift[k]);
    double bound = largest_real(term, c);
    if (!is_finite(bound)) return not_finite(bound, found);
    int64_t e = *exponent = fits_of(bound, 30), top = 0, most = 0;
    for (int64_t k = 0; k < c; k++) {
        m[k] = (int32_t)nearest_integer(times_power(times_power(a[k], e_z), -e));
        b[k] = (int32_t)nearest_integer(times_power(shift[k], -e));
        int64_t first = low[k] * m[k] + b[k], second = high[k] * m[k] + b[k];
        most = SAMEBITS_MAX(most, SAMEBITS_MAX(first, second));
        top = SAMEBITS_MAX(top, SAMEBITS_MAX(-first, -second));
    }
    ends[0] = SAMEBITS_MAX(top, most);
    ends[1] = most;
    return FINE;
}

/* The batch norm of codes z [samples][rows][c] of `width` bits, 8 or 16, by its own statistics, or
 * where `mean` and `variance` are given by these: the multiply-adds m and b [samples][c] at
 * exponents, and `ends` [samples][2] as `affine_of` has them. Samples have exponents e_z; guard:
 * bits that they are added with, 0 for codes of 16 bits and for one sample that is a whole tensor.
 * gamma and beta: W, A and the exponent of J. sums [2][c], of z and of z * z, with the exponent
 * e_sums; scalars [3][c]: as `channel_scalars`; top: of the first sample.
 *
 * A multiply-add is largest at the smallest or the largest code, so that exponents of what it gives
 * follow from the statistics. found: what does not fit. */
int samebits_batch_norm(const void *z, int width, const int64_t *e_z, int64_t samples,
                        int64_t rows, int64_t c, int64_t guard, const int8_t *gamma,
                        const int16_t *gamma_rest, const int64_t *e_gamma, const int8_t *beta,
                        const int16_t *beta_rest, const int64_t *e_beta, const double *mean,
                        const double *variance, double eps, int64_t *sums, int64_t *e_sums,
                        double *scalars, int32_t *m, int32_t *b, int64_t *exponents, int64_t *ends,
                        int64_t *top, int64_t *found, int threads) {
    int64_t *stats = malloc((size_t)c * ((size_t)samples * 4 * sizeof *stats + 3 * sizeof(double)));
    if (!stats) return NO_MEMORY;
    double *shift = (double *)(stats + 4 * samples * c), *factor = shift + c, *term = factor + c;
    int status = FINE;
    for (int64_t i = 0; i < samples && status == FINE; i++)
        status = channel_stats((const char *)z + i * rows * c * (width / 8), width, rows, c,
                               stats + 4 * i * c, threads);
    if (status != FINE) goto end;
    *e_sums = join_samples(stats, e_z, samples, c, guard, sums);
    joint_values(gamma, gamma_rest, *e_gamma, c, factor);
    joint_values(beta, beta_rest, *e_beta, c, term);
    channel_scalars(sums, samples * rows, *e_sums, c, mean, variance, eps, factor, term, scalars,
                    shift);
    for (int64_t i = 0; i < samples && status == FINE; i++) {
        const int64_t *low = stats + (4 * i + 2) * c, *high = low + c;
        status = affine_of(scalars + 2 * c, shift, (double)code_max(width), e_z[i], low, high, c,
                           term, m + i * c, b + i * c, exponents + i, ends + 2 * i, found);
    }
    if (status == FINE) *top = ends[0];
end:
    free(stats);
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
        int64_t times = rows_in_one(c), all = times * c;
        int64_t *part = calloc((size_t)all * 2, sizeof *part);
        SHARE(rows)
        if (!part) {
            failed = 1;
        } else {
            const int16_t *g16 = (const int16_t *)g + lo * c;
            const int32_t *g32 = (const int32_t *)g + lo * c;
            const int8_t *of_z = z + lo * c;
            int64_t ones = len / times, rest = len % times, at = ones * all;
            if (width == 16) {
                grad_sums16(g16, of_z, ones, all, part, part + all);
                grad_sums16(g16 + at, of_z + at, rest, c, part, part + all);
            } else {
                grad_sums32(g32, of_z, ones, all, part, part + all);
                grad_sums32(g32 + at, of_z + at, rest, c, part, part + all);
            }
#pragma omp critical
            for (int64_t k = 0; k < all; k++)
                out[k % c] += part[k], out[c + k % c] += part[all + k];
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
 * largest `a` has 24 bits, unless the sum would leave 61 (7). scaled: room for [3][c]. */
static int coefficients(const double *real, double *scaled, int64_t c, int64_t e_g, int64_t e_z,
                        int width, int64_t *abc, int64_t *exponent, int64_t *found) {
    double limit = (double)code_max(width), largest = 0, *a = scaled, *slope = a + c;
    double *reach = slope + c;
    for (int64_t k = 0; k < c; k++) {
        a[k] = times_power(real[k], e_g);
        slope[k] = times_power(real[c + k], e_z);
        reach[k] = magnitude_of_real(a[k]) * limit + 127.0 * magnitude_of_real(slope[k]) +
                   magnitude_of_real(real[2 * c + k]);
    }
    double most = largest_real(reach, c);
    largest = largest_real(a, c);
    if (!is_finite(most)) return not_finite(most, found);
    *exponent = SAMEBITS_MAX(fits_of(largest, 24), fits_of(most, 61));
    for (int64_t k = 0; k < 2 * c; k++)
        abc[k] = nearest_integer(times_power(scaled[k], -*exponent));
    for (int64_t k = 2 * c; k < 3 * c; k++)
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
        double centre = times_power((double)s1[k] / count, *e_z);
        double spread = times_power(spread_of(s1[k], s2[k], n) / divisor, 2 * *e_z);
        mean[k] = (1.0 - momentum) * mean[k] + momentum * centre;
        variance[k] = (1.0 - momentum) * variance[k] + momentum * spread;
    }
}

/* The sums [2][c] of g and of g * z over samples with exponents, as real numbers (12.3). own_g: as
 * below; by_rows: whether samples have exponents of their own. room: for [samples] and 2 * c. */
static void real_sums(const int64_t *sums, int64_t samples, int64_t c, const int64_t *e_g,
                      int own_g, const int64_t *e_z, int by_rows, int64_t *room, double *sg,
                      double *sgz) {
    int64_t first = *e_g, second = *e_g + *e_z, *e = room, *joint = room + samples;
    const int64_t *of_g = sums, *of_gz = sums + samples * c;
    if (by_rows) {
        for (int64_t i = 0; i < samples; i++) e[i] = e_g[own_g ? i : 0];
        samebits_gather(of_g, samples, c, e, 55, joint, &first);
        for (int64_t i = 0; i < samples; i++) e[i] += e_z[i];
        samebits_gather(of_gz, samples, c, e, 62, joint + c, &second);
        of_g = joint;
        of_gz = joint + c;
    }
    for (int64_t k = 0; k < c; k++) {
        sg[k] = times_power((double)of_g[k], first);
        sgz[k] = times_power((double)of_gz[k], second);
    }
}

/* The gradients of gamma and beta, and where dx is not NULL that of z [samples][rows][c], all as
 * codes of 32 bits, from a gradient g of `width` bits. by_rows: whether samples have exponents of
 * their own, e_z and e_x, and with own_g e_g too; else there is one sample. scalars [3][c]: those
 * of the forward pass; training: whether they are statistics of z. NOT_FINITE: the bits stand in
 * e_gamma. */
int samebits_batch_norm_gradient(const void *g, int width, const int64_t *e_g, int own_g,
                                 const int8_t *z, const int64_t *e_z, int by_rows,
                                 int64_t samples, int64_t rows, int64_t c, const double *scalars,
                                 int training, int32_t *dx, int64_t *e_x, int32_t *gamma,
                                 int64_t *e_gamma, int32_t *beta, int64_t *e_beta, int threads) {
    const double *centre = scalars, *inv = centre + c, *a = inv + c, n = (double)(samples * rows);
    int64_t width_c = 2 * samples * c, size = rows * c, e;
    int64_t times = rows_in_one(c), all = times * c, ones = rows / times, rest = rows % times;
    int64_t *sums = malloc((size_t)(width_c + samples + 5 * c + 3 * all) * sizeof *sums +
                           (size_t)c * 8 * sizeof(double));
    if (!sums) return NO_MEMORY;
    int64_t *room = sums + width_c, *abc = room + samples + 2 * c, *of_ones = abc + 3 * c;
    double *sg = (double *)(of_ones + 3 * all), *gg = sg + c;
    double *real = gg + c, *scaled = real + 3 * c;
    int status = FINE;
    for (int64_t i = 0; i < samples && status == FINE; i++) {
        const char *of_g = (const char *)g + i * size * (width / 8);
        status = samebits_channel_grad_sums(of_g, width, z + i * size, rows, c, abc, threads);
        memcpy(sums + i * c, abc, (size_t)c * sizeof *abc);
        memcpy(sums + (samples + i) * c, abc + c, (size_t)c * sizeof *abc);
    }
    if (status != FINE) goto end;
    real_sums(sums, samples, c, e_g, own_g, e_z, by_rows, room, sg, gg);
    for (int64_t k = 0; k < c; k++) {
        gg[k] = (gg[k] - centre[k] * sg[k]) * inv[k];
        double slope = training ? -(a[k] * ((gg[k] / n) * inv[k])) : 0;
        real[k] = a[k];
        real[c + k] = slope;
        real[2 * c + k] = training ? -(a[k] * (sg[k] / n)) - centre[k] * slope : 0;
    }
    status = wide_codes(gg, c, gamma, e_gamma, e_gamma);
    if (status == FINE) status = wide_codes(sg, c, beta, e_beta, e_gamma);
    int zero = largest_real(a, c) == 0;
    for (int64_t i = 0; dx && status == FINE && i < samples; i++) {
        const char *of_g = (const char *)g + i * size * (width / 8);
        e_x[i] = EXPONENT_MIN;
        if (zero) {
            memset(dx + i * size, 0, (size_t)size * sizeof *dx);
            continue;
        }
        status = coefficients(real, scaled, c, e_g[own_g ? i : 0], e_z[i], width, abc, &e, e_gamma);
        if (status != FINE) break;
        const char *g_rest = of_g + ones * all * (width / 8);
        const int8_t *of_z = z + i * size, *z_rest = of_z + ones * all;
        int32_t *out = dx + i * size;
        for (int64_t k = 0; ones && k < 3 * all; k++) of_ones[k] = abc[k / all * c + k % c];
        int64_t top = gradient_top(of_g, width, of_z, ones, all, of_ones, threads);
        int64_t more = gradient_top(g_rest, width, z_rest, rest, c, abc, threads);
        top = SAMEBITS_MAX(more, top);
        int64_t by = shorten_by(top);
        gradient_codes(of_g, width, of_z, ones, all, of_ones, by, out, threads);
        gradient_codes(g_rest, width, z_rest, rest, c, abc, by, out + ones * all, threads);
        if (top) e_x[i] = e + by;
    }
end:
    free(sums);
    return status;
}
