/* Norms of vectors, LayerNorm and RMSNorm (5, 7): exact sums, binary64 scalars of every vector in
 * the order that the definition writes, integer multiply-shift. No row is stored but the result and
 * 8 bits of the normalized ones. */
#include "train_exact.h"

#include "real.h"
#include "samebits_bytes.h"
#include "samebits_train_sequences.h"
#include "train_root.h"
#include "train_rows.h"

#define SUM_BITS 60 /* of the largest term of a sum (3, combine) */

/* How d * z - sum, times m, become codes of 32 bits, these codes of 16 and of 8; and those of 16,
 * times gamma plus beta, the result. */
typedef struct {
    int32_t first, by16, by8, products, e_beta, common;
    const samebits_parameter *gamma, *beta;
} Route;

static int32_t joint_exponent(const samebits_parameter *p) { return p->s->e_w - 15; }

SAMEBITS_INLINE int64_t wide_code(const Route *r, int32_t v, int32_t m) {
    return down64((int64_t)v * m, r->first);
}

/* The sum of an element. */
SAMEBITS_INLINE int64_t moved(const Route *r, int32_t v, int32_t m, int32_t k) {
    int64_t sum = down64(wide_code(r, v, m), r->by16);
    if (r->gamma) sum *= joint_at(r->gamma, k);
    sum = down64(sum, r->products);
    if (r->beta) sum += down64(joint_at(r->beta, k), r->common - r->e_beta);
    return sum;
}

/* Factors of all vectors, m at the exponent e_k, and their sums in the place of the real ones; the
 * largest |(d * z - sum) * m|, or -1 where a factor is not finite. */
static int64_t factors_of(const samebits_vectors *s, const int8_t *z, int32_t e_z,
                          samebits_vector *room, int32_t *m, int32_t *e_k) {
    const double width = (double)s->d;
    double most = 0;
    int64_t top = 0;
    int32_t r;
    for (r = 0; r < s->rows; r++) {
        const Codes own = codes_of(8, z + r * s->d, s->d, 1, 0);
        const int64_t sum = s->centred ? own.sum : 0;
        const double spread = (double)(s->d * own.squares - sum * sum) / (width * width);
        const double v = times_power(spread, 2 * e_z) + s->eps;
        room[r].factor = times_power(1.0 / square_root(v) / width, e_z);
        room[r].sum = (int32_t)sum, room[r].low = (int16_t)own.low;
        room[r].high = (int16_t)own.high;
        if (!is_finite(room[r].factor)) return -1;
        most = room[r].factor > most ? room[r].factor : most;
    }
    *e_k = (int32_t)fits_of(most, 24);
    for (r = 0; r < s->rows; r++) {
        const int64_t high = (int64_t)s->d * room[r].high - room[r].sum;
        const int64_t low = room[r].sum - (int64_t)s->d * room[r].low;
        m[r] = (int32_t)nearest_integer(times_power(room[r].factor, -*e_k));
        top = SAMEBITS_MAX(top, SAMEBITS_MAX(high, low) * m[r]);
    }
    return top;
}

int samebits_train_vector_norm(const samebits_vectors *s, const int8_t *z, int32_t e_z,
                               const samebits_parameter *gamma, const samebits_parameter *beta,
                               samebits_vector *room, int8_t *xhat, int32_t *e_xhat, int32_t *m,
                               int32_t *e_m, int8_t *y, int32_t *e_y) {
    Route by = {0, 0, 0, 0, 0, 0, gamma, beta};
    int32_t e_k = 0, e_wide = EXPONENT_MIN, e, shift = 0, pass, r, k;
    int64_t top = factors_of(s, z, e_z, room, m, &e_k);
    if (top < 0) return SAMEBITS_TRAIN_RANGE;
    *e_m = e_k - e_z, *e_xhat = EXPONENT_MIN;
    if (top) {
        int32_t own = e_k;
        by.first = shortened(top, &own), top = down64(top, by.first);
        e_wide = *e_xhat = own;
        by.by16 = narrowed(top, 16, &e_wide), by.by8 = narrowed(top, 8, e_xhat);
    }
    if (e_wide > EXPONENT_MAX || *e_xhat > EXPONENT_MAX) return SAMEBITS_TRAIN_RANGE;
    e = gamma ? e_wide + joint_exponent(gamma) : e_wide;
    by.common = e + (gamma ? 38 : 16);
    if (beta) by.e_beta = joint_exponent(beta);
    if (beta) by.common = SAMEBITS_MAX(by.common, by.e_beta + 23);
    by.common -= SUM_BITS, by.products = by.common - e;
    for (pass = 0, top = 0; pass < 2; pass++) {
        for (r = 0; r < s->rows; r++)
            for (k = 0; k < s->d; k++) {
                const int32_t i = r * s->d + k, v = s->d * z[i] - room[r].sum;
                const int64_t sum = moved(&by, v, m[r], k), size = samebits_magnitude64(sum);
                if (pass) {
                    if (xhat) xhat[i] = (int8_t)down64(wide_code(&by, v, m[r]), by.by8);
                    y[i] = (int8_t)down64(sum, shift);
                } else {
                    top = SAMEBITS_MAX(top, size);
                }
            }
        if (!pass) *e_y = by.common, shift = narrowed(top, 8, e_y);
    }
    return in_range(*e_y);
}

/* --- gradient --------------------------------------------------------------------------------- */

/* h = rne(g * gamma * 2**-by) in 16 bits. */
SAMEBITS_INLINE int64_t met(const samebits_gradient *g, const samebits_parameter *gamma, int32_t i,
                            int32_t k, int32_t by) {
    const int64_t own = gradient_at(g, i);
    return down64(gamma ? own * joint_at(gamma, k) : own, by);
}

/* (d * h - sum h) - sum(h * xhat) * xhat, at a common exponent. */
typedef struct {
    int32_t by, of_h, of_dot;
} Inner;

SAMEBITS_INLINE int64_t inner(const samebits_vectors *s, const samebits_gradient *g,
                              const samebits_parameter *gamma, const int8_t *xhat,
                              const samebits_dots *dots, const Inner *by, int32_t r, int32_t k) {
    const int32_t i = r * s->d + k;
    return down64(s->d * met(g, gamma, i, k, by->by) - dots[r].sum, by->of_h) -
           down64(dots[r].product * xhat[i], by->of_dot);
}

/* What all elements become: measured or written. */
enum { SCALED, INNER, TIMES, WRITTEN };

static int64_t walked(const samebits_vectors *s, const samebits_gradient *g,
                      const samebits_parameter *gamma, const int8_t *xhat, const int32_t *m,
                      const samebits_dots *dots, const Inner *by, int what, int32_t narrow,
                      int32_t last, int32_t *dx) {
    int64_t top = 0;
    int32_t r, k;
    for (r = 0; r < s->rows; r++)
        for (k = 0; k < s->d; k++) {
            int64_t v;
            if (what == SCALED)
                v = met(g, gamma, r * s->d + k, k, 0);
            else
                v = inner(s, g, gamma, xhat, dots, by, r, k);
            if (what >= TIMES) v = down64(v, narrow) * m[r];
            if (what == WRITTEN) dx[r * s->d + k] = (int32_t)down64(v, last);
            v = samebits_magnitude64(v);
            top = SAMEBITS_MAX(top, v);
        }
    return top;
}

int samebits_train_vector_norm_gradient(const samebits_vectors *s, samebits_gradient g,
                                        const samebits_parameter *gamma, const int8_t *xhat,
                                        int32_t e_xhat, const int32_t *m, int32_t e_m,
                                        samebits_dots *room, int32_t *dx, int32_t *e_dx) {
    const int32_t bits = SAMEBITS_MAX(12, length_of(s->d - 1));
    int32_t e = g.e + (gamma ? joint_exponent(gamma) : 0), e_dot, narrow, r, k;
    int64_t top = walked(s, &g, gamma, xhat, m, room, NULL, SCALED, 0, 0, NULL);
    Inner by = {0, 0, 0};
    memset(dx, 0, (size_t)(s->rows * s->d) * sizeof *dx);
    *e_dx = EXPONENT_MIN;
    if (!top) return SAMEBITS_TRAIN_OK;
    by.by = narrowed(top, 16, &e);
    if (e > EXPONENT_MAX) return SAMEBITS_TRAIN_RANGE;
    for (r = 0; r < s->rows; r++) {
        int64_t sum = 0, product = 0;
        for (k = 0; k < s->d; k++) {
            const int64_t h = met(&g, gamma, r * s->d + k, k, by.by);
            sum += h, product += h * xhat[r * s->d + k];
        }
        room[r].sum = s->centred ? sum : 0, room[r].product = product;
    }
    e_dot = e + 2 * e_xhat;
    by.of_h = e, e = SAMEBITS_MAX(e + 16, e_dot + 30) + bits - SUM_BITS;
    by.of_h = e - by.of_h, by.of_dot = e - e_dot;
    top = walked(s, &g, gamma, xhat, m, room, &by, INNER, 0, 0, NULL);
    if (!top) return SAMEBITS_TRAIN_OK;
    narrow = narrowed(top, 16, &e);
    if (e > EXPONENT_MAX) return SAMEBITS_TRAIN_RANGE;
    top = walked(s, &g, gamma, xhat, m, room, &by, TIMES, narrow, 0, NULL);
    if (!top) return SAMEBITS_TRAIN_OK;
    e += e_m;
    r = shortened(top, &e);
    (void)walked(s, &g, gamma, xhat, m, room, &by, WRITTEN, narrow, r, dx);
    *e_dx = e;
    return SAMEBITS_TRAIN_OK;
}
