/* Cross-entropy of logits and its gradient (docs/spec/training.md, section 6): powers of two from
 * two tables, exact sums, one division rounded half to even an element.
 *
 * Bounds: with c <= 2**14 classes S = sum p <= 2**38, and |p - S| * 2**24 <= 2**62. */
#include "samebits_integer.h"

/* log2(s) in units of 2**-24 by 24 steps of squaring; s >= 1. */
static int64_t log2_24(int64_t s) {
    int64_t length = 63 - __builtin_clzll((unsigned long long)s), bits = 0;
    int64_t v = length >= 30 ? s >> (length - 30) : s << (30 - length);
    for (int i = 0; i < 24; i++) {
        v = v * v >> 30;
        int64_t high = v >> 31;
        bits = 2 * bits + high;
        v >>= high;
    }
    return (length << 24) + bits;
}

/* Gradient codes (exponent -24) of the mean cross-entropy of logits [n][c]; returns the sum over
 * rows of log2(S) - 24 + u_y in units of 2**-24. `scratch` holds 2 * c; tables have 256 entries. */
int64_t samebits_cross_entropy(const int32_t *z, int64_t n, int64_t c, int64_t exponent,
                               const int64_t *target, const int64_t *t1, const int64_t *t2,
                               int64_t *scratch, int32_t *out) {
    const int64_t log2_e = 1549082005, cap = (int64_t)1 << 21;
    int64_t *p = scratch, *u = scratch + c, loss = 0, shift = exponent - 14;
    int left = shift < 0 ? 0 : shift > 22 ? 22 : (int)shift;
    int right = shift > 0 ? 0 : shift < -63 ? 63 : (int)-shift;
    for (int64_t r = 0; r < n; r++, z += c, out += c) {
        int64_t top = z[0], total = 0, y = target[r];
        for (int64_t j = 1; j < c; j++) top = SAMEBITS_MAX(top, z[j]);
        for (int64_t j = 0; j < c; j++) {
            int64_t v = (top - z[j]) * log2_e >> right;
            v = v > cap >> left ? cap : v << left;
            u[j] = v > cap ? cap : v;
            int64_t f = u[j] & 65535, whole = u[j] >> 16;
            p[j] = whole > 24 ? 0 : (t1[f >> 8] * t2[f & 255] >> 30) >> (6 + whole);
            total += p[j];
        }
        int64_t divisor = total * n;
        for (int64_t j = 0; j < c; j++) {
            int64_t v = (p[j] - (j == y ? total : 0)) * ((int64_t)1 << 24);
            out[j] = (int32_t)samebits_quotient(v, divisor);
        }
        loss += log2_24(total) - (24 << 24) + (u[y] << 8);
    }
    return loss;
}
