/* Vectors with exponents of their own, as the vectors that a softmax or a product of
 * activations rounds (docs/spec/training.md, 12.1 and 14): of a matrix every so many rows share
 * an exponent, and every so many of the result, a block, get one. */
#include <stdlib.h>

#include "exponent.h"
#include "parallel.h"

/* How the exponent of a block is chosen: in [-128, 127], in no bounds, or none below those that its
 * rows have (1.2). */
enum { LIMITED, UNLIMITED, SHORTENED };

#define TOPS(name, type)                                                                       \
    static void name(const type *restrict v, int64_t rows, int64_t c, int64_t *restrict top) { \
        for (int64_t r = 0; r < rows; r++, v += c) {                                           \
            type most = 0;                                                                     \
            for (int64_t k = 0; k < c; k++) {                                                  \
                type size = v[k] < 0 ? -v[k] : v[k];                                           \
                most = SAMEBITS_MAX(most, size);                                               \
            }                                                                                  \
            top[r] = most;                                                                     \
        }                                                                                      \
    }
TOPS(tops32, int32_t)
TOPS(tops64, int64_t)

#define CODES(name, from, to, shift, make, scale)                                              \
    static void name(const from *restrict v, int64_t c, int64_t by, to *restrict out) {        \
        shift s = make(by);                                                                    \
        for (int64_t k = 0; k < c; k++) out[k] = (to)scale(v[k], s);                           \
    }
CODES(codes_32_8, int32_t, int8_t, Shift32, shift32_by, scale32)
CODES(codes_32_16, int32_t, int16_t, Shift32, shift32_by, scale32)
CODES(codes_32_32, int32_t, int32_t, Shift32, shift32_by, scale32)
CODES(codes_64_8, int64_t, int8_t, Shift, shift_by, scale64)
CODES(codes_64_16, int64_t, int16_t, Shift, shift_by, scale64)
CODES(codes_64_32, int64_t, int32_t, Shift, shift_by, scale64)

/* rne(v * 2**by) of one row. Integers of 32 bits are at most Q32; far to the right nothing of them
 * is left. Only zeros are shifted to the left by more than fits. */
static void row_codes(const char *v, int type, int64_t c, int64_t by, char *out, int to) {
    if (type == 32) {
        const int32_t *p = (const int32_t *)v;
        by = SAMEBITS_MIN(by, 31);
        if (by < -24) { /* 32 bits do not hold what rounding adds */
            for (int64_t k = 0; k < c; k++) {
                int64_t code = scale64(p[k], shift_by(by));
                if (to == 8) ((int8_t *)out)[k] = (int8_t)code;
                else if (to == 16) ((int16_t *)out)[k] = (int16_t)code;
                else ((int32_t *)out)[k] = (int32_t)code;
            }
        } else if (to == 8) codes_32_8(p, c, by, (int8_t *)out);
        else if (to == 16) codes_32_16(p, c, by, (int16_t *)out);
        else codes_32_32(p, c, by, (int32_t *)out);
        return;
    }
    by = SAMEBITS_MIN(by, 62);
    if (to == 8) codes_64_8((const int64_t *)v, c, by, (int8_t *)out);
    else if (to == 16) codes_64_16((const int64_t *)v, c, by, (int16_t *)out);
    else codes_64_32((const int64_t *)v, c, by, (int32_t *)out);
}

/* The exponents of `rows` rows, of which every so many share one of `count`, all plus `beside`. */
typedef struct {
    const int64_t *of;
    int64_t shared, beside;
} Exponents;

SAMEBITS_INLINE int64_t exponent_of(Exponents e, int64_t row) {
    return e.of[row / e.shared] + e.beside;
}

static int64_t block_exponent(const int64_t *top, Exponents e, int64_t from, int64_t rows,
                              int bits, int kind) {
    int64_t fit = INT64_MIN, low = INT64_MAX;
    for (int64_t r = from; r < from + rows; r++) {
        if (!top[r]) continue;
        int64_t own = exponent_of(e, r), fitting = own + fit_by(top[r], bits);
        fit = SAMEBITS_MAX(fit, fitting);
        low = SAMEBITS_MIN(low, own);
    }
    if (fit == INT64_MIN) return EXPONENT_MIN;
    if (kind == SHORTENED) return SAMEBITS_MAX(fit, low);
    return kind == LIMITED ? SAMEBITS_MAX(fit, EXPONENT_MIN) : fit;
}

/* v [rows][c], integers of 32 or 64 bits, as codes of `bits` bits in memory of `to`; own [blocks]:
 * the exponent of every block of rows. highest: the largest of these. */
int samebits_requantize_blocks(const void *v, int type, int64_t rows, int64_t c,
                               const int64_t *exponents, int64_t count, const int64_t *beside,
                               int bits, int kind, void *codes, int to, int64_t *own,
                               int64_t blocks, int64_t *highest, int threads) {
    Exponents e = {exponents, rows / count, *beside};
    int64_t *top = malloc((size_t)rows * sizeof *top), each = rows / blocks;
    if (!top) return NO_MEMORY;
    if (type == 32) {
        PARALLEL(rows, rows * c, tops32((const int32_t *)v + lo * c, len, c, top + lo))
    } else {
        PARALLEL(rows, rows * c, tops64((const int64_t *)v + lo * c, len, c, top + lo))
    }
    *highest = EXPONENT_MIN;
    for (int64_t b = 0; b < blocks; b++) {
        own[b] = block_exponent(top, e, b * each, each, bits, kind);
        *highest = SAMEBITS_MAX(*highest, own[b]);
    }
    free(top);
    if (kind == LIMITED && *highest > EXPONENT_MAX) return OUT_OF_RANGE;
    int team = TEAM(rows * c);
#pragma omp parallel for num_threads(team)
    for (int64_t r = 0; r < rows; r++)
        row_codes((const char *)v + r * c * (type / 8), type, c, exponent_of(e, r) - own[r / each],
                  (char *)codes + r * c * (to / 8), to);
    return FINE;
}
