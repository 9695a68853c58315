/* Batch norm (5, 7): exact sums, binary64 scalars of every channel in the order that the definition
 * writes, integer multiply-add. */
#include "train_exact.h"

#include "real.h"
#include "samebits_bytes.h"
#include "train_root.h"
#include "train_rows.h"

/* rne(v * 2**-e), |result| < 2**62. */
static int64_t coded(double v, int32_t e) {
    int64_t m;
    Scaled s;
    if (v == 0) return 0;
    s = scaled_of(v);
    m = down64(s.mantissa, e - (int32_t)s.exponent);
    return v < 0 ? -m : m;
}

static double joint_value(const samebits_parameter *p, int32_t k) {
    return times_power((double)joint_at(p, k), p->s->e_w - 15);
}

/* Sums of the n codes of a channel: S1, and n * S2 - S1 * S1. */
typedef struct {
    int64_t sum, spread;
} Sums;

/* The sums of a channel; ends: its smallest and largest code. */
static Sums sums_of(const samebits_norm *s, const void *z, int32_t k, int32_t *ends) {
    const Codes own = s->bits == 8 ? codes_of(8, z, s->rows, s->c, k)
                                   : codes_of(16, z, s->rows, s->c, k);
    ends[0] = own.low, ends[1] = own.high;
    return (Sums){own.sum, s->rows * own.squares - own.sum * own.sum};
}

void samebits_train_running(const samebits_norm *s, const samebits_channel *saved, int32_t e_z,
                            double *mean, double *var) {
    const double n = s->rows, old = 1.0 - s->momentum;
    int32_t k;
    for (k = 0; k < s->c; k++) {
        const double v = saved[k].spread / (n * (n - 1.0));
        mean[k] = old * mean[k] + s->momentum * saved[k].centre;
        var[k] = old * var[k] + s->momentum * times_power(v, 2 * e_z);
    }
}

int samebits_train_norm_codes(const samebits_norm *s, const int16_t *z, int32_t e_z, int8_t *out,
                              int32_t *e_out) {
    const int32_t size = s->rows * s->c;
    int32_t e = e_z, shift = narrowed(largest_code(z, size), 8, &e), i = 0;
#if defined(__ARM_FEATURE_MVE)
    for (; i + 4 <= size; i += 4) vstrbq_s32(out + i, down_fours(vldrhq_s32(z + i), shift));
#endif
    if (shift > 0 && shift <= 30)
        for (; i < size; i++) out[i] = (int8_t)samebits_round32(z[i], shift);
    else
        for (; i < size; i++) out[i] = (int8_t)down32(z[i], shift);
    *e_out = e;
    return in_range(e);
}

static double shift_of(const samebits_parameter *beta, const samebits_channel *saved, int32_t k) {
    return joint_value(beta, k) - saved[k].centre * saved[k].a;
}

/* y = requantize(z * M + B, 8) of clamped sums: M and B of every channel, in the place of its
 * smallest and largest code, by saved centres and inverses. */
static int scaled(const samebits_norm *s, int32_t e_z, const samebits_parameter *gamma,
                  const samebits_parameter *beta, samebits_channel *saved, int32_t *room,
                  int32_t clamp, samebits_rounding *rounding, int32_t *e_y) {
    const int32_t c = s->c, q = s->bits == 8 ? Q8 : Q16;
    double bound = 0;
    int64_t top = 0;
    int32_t e, k;
    for (k = 0; k < c; k++) {
        double reach;
        saved[k].a = joint_value(gamma, k) * saved[k].inv;
        reach = (double)q * magnitude_of_real(times_power(saved[k].a, e_z)) +
                magnitude_of_real(shift_of(beta, saved, k));
        bound = reach > bound ? reach : bound;
    }
    e = (int32_t)fits_of(bound, 30);
    for (k = 0; k < c; k++) {
        int32_t *own = room + 2 * k;
        const int32_t low = own[0], high = own[1];
        int64_t least, most;
        own[0] = (int32_t)coded(times_power(saved[k].a, e_z), e);
        own[1] = (int32_t)coded(shift_of(beta, saved, k), e);
        least = (int64_t)low * own[0] + own[1], most = (int64_t)high * own[0] + own[1];
        if (!clamp) least = samebits_magnitude64(least), most = samebits_magnitude64(most);
        top = SAMEBITS_MAX(top, least), top = SAMEBITS_MAX(top, most);
    }
    rounding->clamp = clamp, rounding->limit = limit_of(clamp, e);
    rounding->shift = narrowed(SAMEBITS_MIN(top, rounding->limit), 8, &e);
    *e_y = e;
    return in_range(e);
}

int samebits_train_norm_scale(const samebits_norm *s, int32_t e_z, const samebits_parameter *gamma,
                              const samebits_parameter *beta, const double *mean, const double *var,
                              samebits_channel *saved, int32_t *room, int32_t clamp,
                              samebits_rounding *rounding, int32_t *e_y) {
    int32_t k;
    for (k = 0; k < s->c; k++) {
        saved[k].centre = mean[k];
        saved[k].inv = 1.0 / square_root(var[k] + s->eps);
    }
    return scaled(s, e_z, gamma, beta, saved, room, clamp, rounding, e_y);
}

/* All codes of y, by factors and terms. */
static void normalized(const samebits_norm *s, const void *z, const int32_t *room,
                       const samebits_rounding *by, int8_t *y, uint8_t *mask) {
    const int32_t n = s->rows * s->c;
    if (s->bits == 8)
        rows_of(8, z, n, s->c, room, by, y, mask);
    else
        rows_of(16, z, n, s->c, room, by, y, mask);
}

int samebits_train_norm(const samebits_norm *s, const void *z, int32_t e_z,
                        const samebits_parameter *gamma, const samebits_parameter *beta,
                        samebits_channel *saved, int32_t *room, int8_t *y, int32_t *e_y,
                        int32_t clamp, uint8_t *mask) {
    const double n = s->rows;
    samebits_rounding by;
    int32_t k, status;
    for (k = 0; k < s->c; k++) {
        const Sums own = sums_of(s, z, k, room + 2 * k);
        saved[k].centre = times_power((double)own.sum / n, e_z);
        saved[k].spread = (double)own.spread;
        saved[k].inv =
            1.0 / square_root(times_power((double)own.spread / (n * n), 2 * e_z) + s->eps);
    }
    status = scaled(s, e_z, gamma, beta, saved, room, clamp, &by, e_y);
    normalized(s, z, room, &by, y, mask);
    return status;
}

int samebits_train_norm_run(const samebits_norm *s, const void *z, int32_t e_z,
                            const samebits_parameter *gamma, const samebits_parameter *beta,
                            const double *mean, const double *var, samebits_channel *saved,
                            int32_t *room, int8_t *y, int32_t *e_y, int32_t clamp,
                            uint8_t *mask) {
    samebits_rounding by;
    int32_t k, status;
    for (k = 0; k < s->c; k++) (void)sums_of(s, z, k, room + 2 * k);
    status = samebits_train_norm_scale(s, e_z, gamma, beta, mean, var, saved, room, clamp, &by,
                                       e_y);
    normalized(s, z, room, &by, y, mask);
    return status;
}

/* Reals to codes of 32 bits at the smallest exponent that holds them, which has no limit (1). */
static int32_t quantized(const double *v, int32_t n, int32_t *out) {
    const double top = largest_real(v, n);
    int32_t e, k;
    if (top == 0) {
        memset(out, 0, (size_t)n * sizeof *out);
        return EXPONENT_MIN;
    }
    e = (int32_t)fits_of(top, 31);
    while (coded(top, e - 1) <= Q32) e--;
    while (coded(top, e) > Q32) e++;
    for (k = 0; k < n; k++) out[k] = (int32_t)coded(v[k], e);
    return e;
}

/* Scalars of a channel's gradients, in the units of reals: of gamma and beta, slope and offset. */
static void channel_gradient(const samebits_norm *s, const int32_t *g, int32_t e_g, const int8_t *z,
                             int32_t e_z, const samebits_channel *saved, double *room) {
    const double n = s->rows, a = saved->a, inv = saved->inv, centre = saved->centre;
    int64_t sum = 0, product = 0;
    double *gg = room, *sg = room + s->c, *slope = room + 2 * s->c, *offset = room + 3 * s->c;
    int32_t r;
    for (r = 0; r < s->rows; r++, z += s->c) {
        sum += g[r];
        product += (int64_t)g[r] * *z;
    }
    *sg = times_power((double)sum, e_g);
    *gg = (times_power((double)product, e_g + e_z) - centre * *sg) * inv;
    *slope = s->running ? 0 : -(a * ((*gg / n) * inv));
    *offset = s->running ? 0 : -(a * (*sg / n)) - centre * *slope;
}

/* The largest magnitude of a channel's sums a * g + slope * z + offset, of all up to `top`. */
static int64_t line_top(const samebits_norm *s, const int32_t *g, const int8_t *z,
                        const int64_t *lines, int64_t top) {
    const int32_t a = (int32_t)lines[0];
    const int64_t slope = lines[s->c], offset = lines[2 * s->c];
    int32_t r;
    for (r = 0; r < s->rows; r++, z += s->c) {
        const int64_t size = samebits_magnitude64((int64_t)a * g[r] + slope * *z + offset);
        top = SAMEBITS_MAX(top, size);
    }
    return top;
}

static void put(double *to, int64_t v) { memcpy(to, &v, sizeof v); }

int samebits_train_norm_gradient(const samebits_norm *s, samebits_gradient g, const int8_t *z,
                                 int32_t e_z, samebits_parameter *gamma, samebits_parameter *beta,
                                 const samebits_channel *saved, const samebits_optimizer *o,
                                 int32_t *column, double *room, int32_t *codes, int32_t *e_dz) {
    const int32_t c = s->c;
    const double *slope = room + 2 * c, *offset = room + 3 * c;
    const double largest = g.width == 16 && !g.pool ? Q16 : Q32;
    const int64_t *lines = (const int64_t *)(const void *)room;
    double most = 0, bound = 0;
    int64_t top = 0;
    int32_t e, e1, e2, shift, k, status;
    for (k = 0; k < c; k++) {
        const double size = magnitude_of_real(times_power(saved[k].a, g.e));
        double reach;
        samebits_train_column(&g, s->rows, c, k, column);
        channel_gradient(s, column, g.e, z + k, e_z, saved + k, room + k);
        most = size > most ? size : most;
        reach = size * largest + 127.0 * magnitude_of_real(times_power(slope[k], e_z)) +
                magnitude_of_real(offset[k]);
        bound = reach > bound ? reach : bound;
    }
    if (gamma) {
        e = quantized(room, c, codes);
        if ((status = samebits_train_vector_step(gamma, o, codes, e)) != 0) return status;
    }
    if (beta) {
        e = quantized(room + c, c, codes);
        if ((status = samebits_train_vector_step(beta, o, codes, e)) != 0) return status;
    }
    if (!e_dz) return SAMEBITS_TRAIN_OK;
    *e_dz = EXPONENT_MIN;
    if (most == 0) {
        memset(room, 0, (size_t)(3 * c + 2) * sizeof *room);
        return SAMEBITS_TRAIN_OK;
    }
    e1 = (int32_t)fits_of(most, 24), e2 = (int32_t)fits_of(bound, 61);
    e = SAMEBITS_MAX(e1, e2);
    for (k = 0; k < c; k++) { /* in the place of what is used up */
        const int64_t own = coded(times_power(slope[k], e_z), e);
        put(room + 2 * c + k, coded(offset[k], e));
        put(room + c + k, own);
        put(room + k, coded(times_power(saved[k].a, g.e), e));
    }
    for (k = 0; k < c; k++) {
        samebits_train_column(&g, s->rows, c, k, column);
        top = line_top(s, column, z + k, lines + k, top);
    }
    shift = shortened(top, &e);
    put(room + 3 * c, shift);
    put(room + 3 * c + 1, down64(top, shift));
    *e_dz = e;
    return SAMEBITS_TRAIN_OK;
}
