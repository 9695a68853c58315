/* Real numbers as codes (docs/spec/training.md, 1.1, 5 and 12.2): a network's input. */
#include <string.h>

#include "exponent.h"
#include "real.h"

/* The largest of |v[i]|, by bits, which are in the order of magnitudes; a NaN if there is one. */
static float largest_float(const float *v, int64_t n) {
    uint32_t most = 0;
    float top;
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, v + i, sizeof bits);
        bits &= INT32_MAX;
        most = SAMEBITS_MAX(most, bits);
    }
    memcpy(&top, &most, sizeof top);
    return top;
}

/* A row of real numbers as codes of `bits` bits. */
static int quantize(const float *v, int64_t n, int bits, int8_t *codes, int64_t *own) {
    float top = largest_float(v, n);
    if (!is_finite(top)) {
        *own = bits_of(top);
        return NOT_FINITE;
    }
    *own = EXPONENT_MIN;
    if (top != 0) {
        Scaled s = scaled_of(top);
        *own = s.exponent + requantize_by(s.mantissa, s.exponent, bits);
    }
    if (*own > EXPONENT_MAX) return OUT_OF_RANGE;
    /* The factor is a power of two that binary64 has: every product is exact. */
    double factor = power_of_two(-*own);
    for (int64_t i = 0; i < n; i++) codes[i] = (int8_t)nearest_of((double)v[i] * factor);
    return FINE;
}

/* Rows of n real numbers each as codes of `bits` bits, 4 to 8, each row with the smallest exponent
 * that holds its largest (1.1, 5 and 12.2): one rounding. found: an exponent above 127, or with
 * NOT_FINITE the bits of such a number. */
int samebits_quantize(const float *v, int64_t rows, int64_t n, int bits, int8_t *codes,
                      int64_t *own, int64_t *found) {
    for (int64_t r = 0; r < rows; r++) {
        int status = quantize(v + r * n, n, bits, codes + r * n, own + r);
        *found = own[r];
        if (status != FINE) return status;
    }
    return FINE;
}
