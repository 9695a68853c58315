/* Functions of 8-bit codes by table (docs/spec/training.md, 5 and 7): entry[128 + code], of 256
 * entries. No code is -128; its entry only keeps reads within the table. */
#include <string.h>

#include "parallel.h"
#include "shift.h"

static void used_range(const int8_t *restrict x, int64_t n, uint8_t *restrict used) {
    for (int64_t i = 0; i < n; i++) used[x[i] + 128] = 1;
}

/* Which codes occur: used[128 + code] is 1, of 256 bytes. */
void samebits_used(const int8_t *x, int64_t n, uint8_t *used, int threads) {
    memset(used, 0, 256);
#pragma omp parallel num_threads(TEAM(n))
    {
        uint8_t own[256] = {0};
        SHARE(n)
        used_range(x + lo, len, own);
#pragma omp critical
        for (int k = 0; k < 256; k++) used[k] |= own[k];
    }
}

#define LOOKUP(name, type)                                                                     \
    static void name##_range(const int8_t *restrict x, int64_t n, const type *restrict entry,  \
                             type *restrict y) {                                               \
        for (int64_t i = 0; i < n; i++) y[i] = entry[x[i] + 128];                              \
    }                                                                                          \
    void samebits_##name(const int8_t *x, int64_t n, const type *entry, type *y, int threads) {\
        PARALLEL(n, n, name##_range(x + lo, len, entry, y + lo))                               \
    }
LOOKUP(lookup_i8, int8_t)
LOOKUP(lookup_i32, int32_t)

/* |g * entry| <= Q32 * Q16 < 2**46 */
#define LOOKUP_GRAD(name, type)                                                                \
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
LOOKUP_GRAD(lookup_grad16, int16_t)
LOOKUP_GRAD(lookup_grad32, int32_t)

/* Largest |g * entry| (out == NULL), or the same values times 2**exponent, rounded. */
int64_t samebits_lookup_grad(const void *g, int width, const int8_t *x, int64_t n,
                             const int32_t *entry, int64_t exponent, int32_t *out, int threads) {
    const int16_t *g16 = g;
    const int32_t *g32 = g;
    Shift s = shift_by(exponent);
    int64_t top = 0;
    if (out && width == 16) {
        PARALLEL(n, n, lookup_grad16(g16 + lo, x + lo, len, entry, s, out + lo))
    } else if (out) {
        PARALLEL(n, n, lookup_grad32(g32 + lo, x + lo, len, entry, s, out + lo))
    } else if (width == 16) {
        PARALLEL_MAX(n, n, top, lookup_grad16_max(g16 + lo, x + lo, len, entry))
    } else {
        PARALLEL_MAX(n, n, top, lookup_grad32_max(g32 + lo, x + lo, len, entry))
    }
    return top;
}
