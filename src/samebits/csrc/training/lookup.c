/* Functions of 8-bit codes by table (docs/spec/training.md, 5 and 7): entry[128 + code], of 256
 * entries. No code is -128; its entry, 0, only keeps reads within the table. A function has a table
 * for each exponent of its codes, from -128 on, of which the caller makes those that it has met. */
#include <string.h>

#include "exponent.h"
#include "parallel.h"
#include "parts.h"

#define CODES 256

/* Which table is that of an exponent; -1: it is not there. */
static int64_t table_at(int64_t exponent, const int64_t *exponents) {
    int64_t at = exponent - EXPONENT_MIN;
    int is_there = exponent >= EXPONENT_MIN && exponent <= EXPONENT_MAX &&
                   exponents[at] != INT64_MIN;
    return is_there ? at : -1;
}

static void used_range(const int8_t *restrict x, int64_t n, uint8_t *restrict used) {
    for (int64_t i = 0; i < n; i++) used[x[i] + 128] = 1;
}

/* Which codes occur: used[128 + code] is 1. */
static void codes_used(const int8_t *x, int64_t n, uint8_t *used, int threads) {
    memset(used, 0, CODES);
    if (TEAM(n) == 1) {
        used_range(x, n, used);
        return;
    }
#pragma omp parallel num_threads(TEAM(n))
    {
        uint8_t own[CODES] = {0};
        SHARE(n)
        used_range(x + lo, len, own);
#pragma omp critical
        for (int k = 0; k < CODES; k++) used[k] |= own[k];
    }
}

static void lookup_range(const int8_t *restrict x, int64_t n, const int8_t *restrict entry,
                         int8_t *restrict y) {
    for (int64_t i = 0; i < n; i++) y[i] = entry[x[i] + 128];
}

/* A row of `samebits_table`: what is rounded is the table, as far as it is used. */
static int table(const int8_t *x, int64_t n, int64_t exponent, const int32_t *entries,
                 const int64_t *exponents, int bits, int8_t *y, int64_t *own, int threads) {
    int64_t at = table_at(exponent, exponents), top = 0;
    uint8_t used[CODES];
    int32_t wide[CODES];
    int8_t narrow[CODES];
    if (at < 0) return MISSING;
    codes_used(x, n, used, threads);
    for (int k = 0; k < CODES; k++) {
        wide[k] = used[k] ? entries[CODES * at + k] : 0;
        top = SAMEBITS_MAX(top, samebits_magnitude64(wide[k]));
    }
    int failed =
        samebits_requantize(wide, 32, CODES, &top, exponents + at, bits, narrow, 8, own, 1);
    if (failed) return failed;
    PARALLEL(n, n, lookup_range(x + lo, len, narrow, y + lo))
    return FINE;
}

/* The entries of x as codes of `bits` (1.1), in rows of n codes, each with an exponent. found: one
 * that is above 127. */
int samebits_table(const int8_t *x, int64_t rows, int64_t n, const int64_t *of_rows,
                   const int32_t *entries, const int64_t *exponents, int bits, int8_t *y,
                   int64_t *own, int64_t *found, int threads) {
    int status;
    int64_t unfit;
    EACH_ROW(rows, n, status, unfit,
             table(x + r * n, n, of_rows[r], entries, exponents, bits, y + r * n, own + r, crew))
    if (status != FINE) *found = own[unfit];
    return status;
}

/* |g * entry| <= Q32 * Q16 < 2**46 */
#define GRADIENT(name, type)                                                                \
    static int64_t name##_max(const type *restrict g, const int8_t *restrict x, int64_t n,     \
                              const int32_t *restrict entry) {                                 \
        int64_t top = 0;                                                                       \
        for (int64_t i = 0; i < n; i++) {                                                      \
            int64_t v = samebits_magnitude64((int64_t)g[i] * entry[x[i] + 128]);               \
            top = SAMEBITS_MAX(top, v);                                                        \
        }                                                                                      \
        return top;                                                                            \
    }                                                                                          \
    static void name(const type *restrict g, const int8_t *restrict x, int64_t n,              \
                     const int32_t *restrict entry, Shift s, int32_t *restrict out) {          \
        for (int64_t i = 0; i < n; i++)                                                        \
            out[i] = (int32_t)scale64((int64_t)g[i] * entry[x[i] + 128], s);                   \
    }
GRADIENT(gradient16, int16_t)
GRADIENT(gradient32, int32_t)

/* A row of `samebits_table_gradient`: a pass for the largest magnitude, and one that writes. */
static int table_gradient(const void *g, int width, int64_t e_g, const int8_t *x, int64_t n,
                          int64_t exponent, const int32_t *entries, const int64_t *exponents,
                          int32_t *out, int64_t *own, int threads) {
    const int16_t *g16 = g;
    const int32_t *g32 = g;
    int64_t at = table_at(exponent, exponents), top = 0;
    if (at < 0) return MISSING;
    const int32_t *entry = entries + CODES * at;
    if (width == 16) {
        PARALLEL_MAX(n, n, top, gradient16_max(g16 + lo, x + lo, len, entry))
    } else {
        PARALLEL_MAX(n, n, top, gradient32_max(g32 + lo, x + lo, len, entry))
    }
    int64_t by = shorten_by(top);
    Shift s = shift_by(-by);
    *own = top == 0 ? EXPONENT_MIN : e_g + exponents[at] + by;
    if (width == 16) {
        PARALLEL(n, n, gradient16(g16 + lo, x + lo, len, entry, s, out + lo))
    } else {
        PARALLEL(n, n, gradient32(g32 + lo, x + lo, len, entry, s, out + lo))
    }
    return FINE;
}

/* g times the entries of x as codes of 32 bits (1.2), in rows of n codes, each with an exponent;
 * own_g: whether it has one in g. g: codes of `width` bits, 16 or 32. */
int samebits_table_gradient(const void *g, int width, const int64_t *e_g, int own_g,
                            const int8_t *x, int64_t rows, int64_t n, const int64_t *of_rows,
                            const int32_t *entries, const int64_t *exponents, int32_t *out,
                            int64_t *own, int threads) {
    int status;
    int64_t unfit;
    EACH_ROW(rows, n, status, unfit,
             table_gradient((const char *)g + r * n * (width / 8), width, e_g[own_g ? r : 0],
                            x + r * n, n, of_rows[r], entries, exponents, out + r * n, own + r,
                            crew))
    return status;
}
