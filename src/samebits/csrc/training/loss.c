/* Cross-entropy of rows of logits and its gradient (docs/spec/training.md, section 6): powers of
 * two from two tables, exact sums, one division rounded half to even an element.
 *
 * Bounds: with c <= 2**14 classes S = sum p <= 2**38, and |p - S| * 2**24 <= 2**62; A < 2**29, so
 * p * A < 2**53, and sums of a * d are below 2**61. */
#include "samebits_integer.h"

/* log2(s) - 24 in units of 2**-24 by 24 steps of squaring; s >= 2**24. */
static int64_t log2_24(int64_t s) {
    int64_t length = 63 - __builtin_clzll((unsigned long long)s), bits = 0;
    int64_t v = length >= 30 ? s >> (length - 30) : s << (30 - length);
    for (int i = 0; i < 24; i++) {
        v = v * v >> 30;
        int64_t high = v >> 31;
        bits = 2 * bits + high;
        v >>= high;
    }
    return ((length - 24) << 24) + bits;
}

/* p of a row z[c] whose largest code is `top`; their sum. Tables have 256 entries. */
static int64_t powers(const int32_t *z, int64_t c, int64_t top, int64_t exponent, const int64_t *t1,
                      const int64_t *t2, int64_t *p) {
    const int64_t log2_e = 1549082005, cap = (int64_t)1 << 21, shift = exponent - 14;
    const int left = shift < 0 ? 0 : shift > 22 ? 22 : (int)shift;
    const int right = shift > 0 ? 0 : shift < -63 ? 63 : (int)-shift;
    int64_t total = 0;
    for (int64_t j = 0; j < c; j++) {
        int64_t u = (top - z[j]) * log2_e >> right;
        u = u > cap >> left ? cap : u << left;
        int64_t f = u & 65535, whole = u >> 16;
        p[j] = whole > 24 ? 0 : (t1[f >> 8] * t2[f & 255] >> 30) >> (6 + whole);
        total += p[j];
    }
    return total;
}

/* Gradient codes of logits [n][c], for class indices (6.2, a row of the target -1 does not count)
 * or, where `target` is null, for the amounts a [n][c] (6.3); log2(S) - 24 and the sum of distances
 * of every row. `p` is scratch of c numbers. */
void samebits_entropy(const int32_t *z, int64_t n, int64_t c, int64_t exponent,
                      const int64_t *target, int64_t divisor, const int64_t *a, const int64_t *t1,
                      const int64_t *t2, int64_t *p, int32_t *out, int64_t *logs, int64_t *d) {
    for (int64_t r = 0; r < n; r++, z += c, out += c) {
        int64_t top = z[0];
        for (int64_t j = 1; j < c; j++) top = SAMEBITS_MAX(top, z[j]);
        const int64_t total = powers(z, c, top, exponent, t1, t2, p);
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
