/* Cross-entropy of rows of logits and its gradient (docs/spec/training.md, section 6), and softmax
 * (14.3): powers of two from two tables, exact sums, one division rounded half to even an element.
 *
 * Bounds: with c <= 2**14 classes S = sum p <= 2**38, and |p - S| * 2**24 <= 2**62; A < 2**29, so
 * p * A < 2**53, and sums of a * d are below 2**61. */
#include "exponent.h"
#include "parallel.h"
#include "powers.h"

/* Gradient codes of logits [n][c], for class indices (6.2, a row of the target -1 does not count)
 * or, where `target` is null, for the amounts a [n][c] (6.3); log2(S) - 24 and the sum of distances
 * of every row. exponents [n], or one where `own` is 0. `p` is scratch of c numbers. */
void samebits_entropy(const int32_t *z, int64_t n, int64_t c, const int64_t *exponents, int own,
                      const int64_t *target, int64_t divisor, const int64_t *a, const int64_t *t1,
                      const int64_t *t2, int64_t *p, int32_t *out, int64_t *logs, int64_t *d) {
    for (int64_t r = 0; r < n; r++, z += c, out += c) {
        int64_t top = z[0];
        for (int64_t j = 1; j < c; j++) top = SAMEBITS_MAX(top, z[j]);
        const int64_t total = powers(z, c, top, exponents[own ? r : 0], t1, t2, p);
        logs[r] = log2_24(total);
        if (target) {
            const int64_t y = target[r], by = total * divisor;
            for (int64_t j = 0; j < c; j++) {
                const int64_t v = y < 0 ? 0 : (p[j] - (j == y ? total : 0)) * ((int64_t)1 << 24);
                out[j] = (int32_t)samebits_quotient(v, by);
            }
            if (y < 0) logs[r] = 0;
            d[r] = y < 0 ? 0 : top - z[y];
        } else {
            int64_t whole = 0, sum = 0;
            for (int64_t j = 0; j < c; j++) {
                whole += a[j];
                sum += a[j] * (top - z[j]);
            }
            for (int64_t j = 0; j < c; j++)
                out[j] = (int32_t)(samebits_quotient(p[j] * whole, total) - a[j]);
            d[r] = sum;
            a += c;
        }
    }
}

#define LOG2_E 1549082005 /* rne(log2(e) * 2**30) */
#define HALF 31

/* An amount at the class of every row, else 0 [n][classes], and `beside` at all; a class of -1 is
 * none, and takes no part where nothing is given beside. */
void samebits_hits(const int64_t *target, int64_t n, int64_t classes, int64_t amount,
                   int64_t beside, int64_t *out) {
    for (int64_t r = 0; r < n; r++)
        for (int64_t j = 0; j < classes; j++) *out++ = (target[r] == j ? amount : 0) + beside;
}

/* The sum of the rows' losses (6.1), from what `samebits_entropy` gives, as three numbers: of
 * logarithms, and the halves of that of distances times log2(e), of which the lower has 31 bits.
 * own: whether each row has an exponent; d < 2**61. OUT_OF_RANGE where an exponent is above 14, or
 * a product that it shifts has more than 62 bits. */
int samebits_loss_units(const int64_t *logs, const int64_t *d, int64_t n,
                        const int64_t *exponents, int own, int64_t *units) {
    const int64_t low = ((int64_t)1 << 30) - 1;
    units[0] = units[1] = units[2] = 0;
    for (int64_t r = 0; r < n; r++) {
        const int64_t by = 14 - exponents[own ? r : 0];
        const int64_t above = (d[r] >> 30) * LOG2_E, below = (d[r] & low) * LOG2_E;
        int64_t loss;
        if (by < 0) return OUT_OF_RANGE;
        if (by < 30) {
            if (above >> (31 + by)) return OUT_OF_RANGE;
            loss = (above << (30 - by)) + (below >> by);
        } else {
            loss = (above + (below >> 30)) >> SAMEBITS_MIN(by - 30, 63);
        }
        units[0] += logs[r];
        units[1] += loss >> HALF;
        units[2] += loss & (((int64_t)1 << HALF) - 1);
    }
    return FINE;
}

#define SHARE_EXPONENT (-30) /* of the result of a softmax */

/* rne(p * 2**30 / S) of one vector, of the places that are allowed (null: all). u and then
 * p < 2**25 lie in `out` until S is known, in loops of which compilers make vectors. q in binary64
 * is less than 1/2 + 2**-20 beside the exact quotient, however it is computed; the rest decides. */
static int64_t softmax_vector(const int32_t *restrict z, int64_t c, int64_t exponent,
                              const uint8_t *restrict allowed, const int64_t *restrict t1,
                              const int64_t *restrict t2, int32_t *restrict out) {
    const Units by = units_of(exponent);
    int64_t total = 0;
    int32_t top = INT32_MIN, most = 0;
    if (allowed)
        for (int64_t j = 0; j < c; j++) top = SAMEBITS_MAX(top, allowed[j] ? z[j] : INT32_MIN);
    else
        for (int64_t j = 0; j < c; j++) top = SAMEBITS_MAX(top, z[j]);
    for (int64_t j = 0; j < c; j++) {
        int64_t d = (int64_t)top - z[j];
        out[j] = (int32_t)units(SAMEBITS_MAX(d, 0), by); /* one that is not allowed may be larger */
    }
    if (allowed)
        for (int64_t j = 0; j < c; j++) out[j] = allowed[j] ? (int32_t)power(out[j], t1, t2) : 0;
    else
        for (int64_t j = 0; j < c; j++) out[j] = (int32_t)power(out[j], t1, t2);
    for (int64_t j = 0; j < c; j++) total += out[j];
    if (total == 0) return 0;
    const double each = (double)((int64_t)1 << 30) / (double)total;
    for (int64_t j = 0; j < c; j++) {
        int64_t p = (int64_t)out[j] << 30, q = (int32_t)(out[j] * each + 0.5), odd = q & 1;
        int64_t twice = 2 * (p - q * total);
        q -= (total - twice - odd) >> 63;
        q += (total + twice - odd) >> 63;
        out[j] = (int32_t)q;
        most = SAMEBITS_MAX(most, out[j]);
    }
    return most;
}

/* A softmax of vectors z [n][c]: 32-bit codes, and of every vector codes of 8 bits. exponents [n],
 * or one where `own` is 0; allowed [n][c] or null. */
static void softmax_vectors(const int32_t *z, int64_t n, int64_t c, const int64_t *exponents,
                            int own, const uint8_t *allowed, const int64_t *t1, const int64_t *t2,
                            int32_t *out, int8_t *narrow, int64_t *e_narrow) {
    for (int64_t r = 0; r < n; r++, z += c, out += c, narrow += c) {
        int64_t top = softmax_vector(z, c, exponents[own ? r : 0], allowed ? allowed + r * c : 0,
                                     t1, t2, out);
        int64_t by = fit_by(top, 8);
        Shift32 s = shift32_by(-by);
        for (int64_t j = 0; j < c; j++) narrow[j] = (int8_t)scale32(out[j], s);
        e_narrow[r] = top ? SHARE_EXPONENT + by : EXPONENT_MIN;
    }
}

void samebits_softmax(const int32_t *z, int64_t n, int64_t c, const int64_t *exponents, int own,
                      const uint8_t *allowed, const int64_t *t1, const int64_t *t2, int32_t *out,
                      int8_t *narrow, int64_t *e_narrow, int threads) {
    PARALLEL(n, n * c,
             softmax_vectors(z + lo * c, len, c, exponents + (own ? lo : 0), own,
                             allowed ? allowed + lo * c : 0, t1, t2, out + lo * c, narrow + lo * c,
                             e_narrow + lo))
}

/* t * y of one vector, t = S * g - sum(g * y) in 16 bits and S = sum(y); the exponent of t. |S| is
 * at most 2**14 * 127 < 2**21 and |g| < 2**15: both terms of t are below 2**36. */
static int64_t softmax_grad_vector(const int16_t *restrict g, const int8_t *restrict y, int64_t c,
                                   int64_t e_g, int32_t *restrict out) {
    int64_t total = 0, dot = 0, top = 0;
    for (int64_t k = 0; k < c; k++) {
        total += y[k];
        dot += (int32_t)g[k] * y[k];
    }
    for (int64_t k = 0; k < c; k++) {
        int64_t size = samebits_magnitude64(total * g[k] - dot);
        top = SAMEBITS_MAX(top, size);
    }
    int64_t by = top ? requantize_by(top, e_g, 16) : EXPONENT_MIN - e_g;
    Shift s = shift_by(SAMEBITS_MIN(-by, 62)); /* beyond that of zeros alone */
    for (int64_t k = 0; k < c; k++) out[k] = (int32_t)scale64(total * g[k] - dot, s) * y[k];
    return e_g + by;
}

static int64_t softmax_grad_vectors(const int16_t *g, const int64_t *e_g, int own, const int8_t *y,
                                    const int64_t *e_y, int64_t n, int64_t c, int32_t *out,
                                    int64_t *e_out) {
    int64_t highest = 0;
    for (int64_t r = 0; r < n; r++) {
        int64_t e = softmax_grad_vector(g + r * c, y + r * c, c, e_g[own ? r : 0], out + r * c);
        highest = SAMEBITS_MAX(highest, e);
        e_out[r] = e + 2 * e_y[r];
    }
    return highest;
}

/* The gradient of a softmax (14.3) of vectors y [n][c] with exponents [n], from g with [n], or one
 * where `own` is 0: products of 16 and 8 bits, and an exponent for every vector. */
int samebits_softmax_grad(const int16_t *g, const int64_t *e_g, int own, const int8_t *y,
                          const int64_t *e_y, int64_t n, int64_t c, int32_t *out, int64_t *e_out,
                          int64_t *highest, int threads) {
    PARALLEL_MAX(n, n * c, *highest,
                 softmax_grad_vectors(g + lo * c, e_g + (own ? lo : 0), own, y + lo * c, e_y + lo,
                                      len, c, out + lo * c, e_out + lo))
    return *highest > EXPONENT_MAX ? OUT_OF_RANGE : FINE;
}
