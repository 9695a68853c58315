/* Real inputs (5), and the cross-entropy of class indices (6.2). */
#include "train_exact.h"

#include "powers.h"
#include "real.h"
#include "train_scalars.h"

/* rne(|v| * 2**-e) of a binary32 given as bits; below 2**31 where it matters. */
static int64_t input_code(uint32_t bits, int32_t e) {
    const int32_t x = (int32_t)(bits >> 23 & 255);
    const int64_t m = (int64_t)(bits & 0x7FFFFF) | (x ? 0x800000 : 0);
    return down64(m, e - ((x ? x : 1) - 150));
}

static uint32_t word_of(float v) {
    uint32_t bits;
    memcpy(&bits, &v, sizeof bits);
    return bits;
}

int samebits_train_quantize(const float *in, int32_t n, int8_t *out, int32_t *e) {
    uint32_t top = 0;
    int32_t i, x;
    for (i = 0; i < n; i++) {
        const uint32_t size = word_of(in[i]) & 0x7FFFFFFF;
        top = SAMEBITS_MAX(top, size);
    }
    if (top >= 0x7F800000) return SAMEBITS_TRAIN_INPUT;
    x = (int32_t)(top >> 23) - 150 + 16; /* here the largest code is below 2**9 */
    x = SAMEBITS_MAX(x, EXPONENT_MIN);
    while (x > EXPONENT_MIN && input_code(top, x - 1) <= Q8) x--;
    while (input_code(top, x) > Q8) x++;
    *e = top ? x : EXPONENT_MIN;
    for (i = 0; i < n; i++) {
        const int64_t code = input_code(word_of(in[i]) & 0x7FFFFFFF, x);
        out[i] = (int8_t)(word_of(in[i]) >> 31 ? -code : code);
    }
    return in_range(*e);
}

int samebits_train_quantize_rows(const float *in, int32_t rows, int32_t n, int8_t *out,
                                 int32_t *e) {
    int status = SAMEBITS_TRAIN_OK;
    for (; rows > 0 && status == SAMEBITS_TRAIN_OK; rows--, in += n, out += n, e++)
        status = samebits_train_quantize(in, n, out, e);
    return status;
}

#define LOG2_E 1549082005 /* rne(log2(e) * 2**30) */
#define FARTHEST 43       /* bits of a distance in units of 2**-16 that the loss counts */

/* floor(d * LOG2_E * 2**(e - 14)), -1 from 2**FARTHEST on: LOG2_E in two parts, so that all
 * products have 62 bits. */
static int64_t distance_units(int64_t d, int32_t e) {
    const int64_t high = (d >> 30) * LOG2_E, low = (d & ((1 << 30) - 1)) * LOG2_E;
    const int32_t by = 14 - e;
    int64_t whole;
    if (d == 0) return 0;
    if (by >= 30) { /* floors of floors */
        whole = high + (low >> 30);
        whole = by - 30 > 62 ? 0 : whole >> (by - 30);
    } else {
        const int64_t above = by >= 0 ? low >> by : low;
        if (by < -FARTHEST || high >> (FARTHEST - 30 + by < 0 ? 0 : FARTHEST - 30 + by))
            return -1;
        if (by < 0) {
            if (above >> (FARTHEST + by)) return -1;
            return above << -by;
        }
        whole = (high << (30 - by)) + above;
    }
    return whole >> FARTHEST ? -1 : whole;
}

void samebits_train_cross_entropy(const int32_t *z, int32_t n, int32_t c, int32_t e,
                                  const uint8_t *labels, const int64_t *tables, int64_t *row,
                                  int32_t *g, int32_t *e_g, double *loss) {
    int64_t total = 0, top_g = 0;
    int32_t r, j, shift, far = 0;
    for (r = 0; r < n; r++, z += c) {
        const int32_t y = labels[r];
        int32_t top = z[0];
        int64_t sum, units;
        for (j = 1; j < c; j++) top = SAMEBITS_MAX(top, z[j]);
        sum = powers(z, c, top, e, tables, tables + 256, row);
        units = distance_units((int64_t)top - z[y], e);
        far |= units < 0;
        total += log2_24(sum) + 256 * units;
        for (j = 0; j < c; j++) {
            const int64_t v = (row[j] - (j == y ? sum : 0)) * ((int64_t)1 << 24);
            const int64_t q = samebits_quotient(v, sum * n), size = samebits_magnitude64(q);
            g[r * c + j] = (int32_t)q;
            top_g = SAMEBITS_MAX(top_g, size);
        }
    }
    *loss = far ? real_of((int64_t)2047 << 52) /* infinity */
                : 0.6931471805599453 * times_power((double)total, -24) / n;
    *e_g = -24;
    shift = shortened(top_g, e_g);
    for (j = 0; shift && j < n * c; j++) g[j] = (int32_t)down64(g[j], shift);
}
