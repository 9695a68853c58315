/* ReLU and its kin (docs/spec/training.md, 5 and 7) of sums, which are clamped and then rounded
 * once, and of codes; and the gradient behind the mask (mask.h). Data has its channels last. */
#include "mask.h"
#include "parallel.h"

/* The largest of v that is above 0, or 0. */
#define LARGEST(name, type)                                                                    \
    static int64_t name(const type *restrict v, int64_t n) {                                   \
        type top = 0;                                                                          \
        for (int64_t i = 0; i < n; i++) top = SAMEBITS_MAX(top, v[i]);                         \
        return top;                                                                            \
    }
LARGEST(largest32, int32_t)
LARGEST(largest64, int64_t)

/* y = rne(min(max(v, 0), limit) * 2**by), and the mask from `at` on. */
#define CLAMPED(name, from, to, math, shift, apply)                                            \
    static void name(const from *restrict v, int64_t n, math limit, shift by, int64_t at,      \
                     to *restrict y, uint8_t *mask) {                                          \
        uint8_t flags[MASK_BLOCK];                                                             \
        for (int64_t lo = 0; lo < n; lo += MASK_BLOCK) {                                       \
            int64_t size = SAMEBITS_MIN(n - lo, MASK_BLOCK);                                   \
            for (int64_t i = 0; i < size; i++) {                                               \
                math u = v[lo + i];                                                            \
                flags[i] = (u > 0) & (u < limit);                                              \
                u = SAMEBITS_MAX(u, 0);                                                        \
                u = SAMEBITS_MIN(u, limit);                                                    \
                y[lo + i] = (to)apply(u, by);                                                  \
            }                                                                                  \
            write_mask(flags, size, at + lo, mask);                                            \
        }                                                                                      \
    }
CLAMPED(near32, int32_t, int8_t, int32_t, Shift32, scale32)
CLAMPED(far32, int32_t, int8_t, int64_t, Shift, scale64)
CLAMPED(far64, int64_t, int8_t, int64_t, Shift, scale64)

#define AS_IT_IS(v, by) ((void)(by), (v))
CLAMPED(codes8, int8_t, int8_t, int32_t, int, AS_IT_IS)
CLAMPED(sums32, int32_t, int32_t, int32_t, int, AS_IT_IS)
CLAMPED(sums64, int64_t, int64_t, int64_t, int, AS_IT_IS)

SAMEBITS_INLINE int32_t narrow_limit(int64_t limit) {
    return (int32_t)SAMEBITS_MIN(limit, INT32_MAX);
}

/* Integers v of 32 or 64 bits at an exponent, |v| <= Q32 or below 2**48, clamped (clip: mask.h), as
 * codes of up to 8 bits (1.1); mask: of n bits. OUT_OF_RANGE: `own` is the exponent that it would
 * have. */
int samebits_clamped(const void *v, int type, int64_t n, const int64_t *exponent, int64_t clip,
                     int bits, int8_t *codes, int64_t *own, uint8_t *mask, int threads) {
    const int32_t *v32 = v;
    const int64_t *v64 = v;
    int64_t limit = limit_at(clip, *exponent), top, by = 0;
    if (type == 32) {
        PARALLEL_MAX(n, n, top, largest32(v32 + lo, len))
    } else {
        PARALLEL_MAX(n, n, top, largest64(v64 + lo, len))
    }
    top = SAMEBITS_MIN(top, limit);
    *own = EXPONENT_MIN;
    if (top) {
        by = requantize_by(top, *exponent, bits);
        *own = *exponent + by;
        if (*own > EXPONENT_MAX) return OUT_OF_RANGE;
    }
    clear_mask(mask, n);
    if (type == 32 && by <= 24) { /* what rounding adds fits 32 bits */
        Shift32 s = shift32_by(-by);
        int32_t most = narrow_limit(limit);
        PARALLEL_MASK(n, 0, n, near32(v32 + lo, len, most, s, lo, codes + lo, mask))
    } else if (type == 32) {
        Shift s = shift_by(-by);
        PARALLEL_MASK(n, 0, n, far32(v32 + lo, len, limit, s, lo, codes + lo, mask))
    } else {
        Shift s = shift_by(-by);
        PARALLEL_MASK(n, 0, n, far64(v64 + lo, len, limit, s, lo, codes + lo, mask))
    }
    return FINE;
}

/* Integers v [rows][n][c] of 8, 32 or 64 bits, clamped as they are; those of a row and a channel
 * have an exponent [rows][c]. */
void samebits_clamp(const void *v, int type, int64_t rows, int64_t n, int64_t c,
                    const int64_t *exponents, int64_t clip, void *out, uint8_t *mask, int threads) {
    int64_t size = c > 1 && clip ? 1 : n * c, at = 0;
    clear_mask(mask, rows * n * c);
    if (!clip) size *= rows;
    for (int64_t end = rows * n * c; at < end; at += size) {
        int64_t limit = limit_at(clip, exponents[clip ? at / (n * c) * c + at % c : 0]);
        if (type == 8) {
            const int8_t *from = (const int8_t *)v + at;
            int8_t *to = (int8_t *)out + at;
            int32_t most = narrow_limit(limit);
            PARALLEL_MASK(size, at, size, codes8(from + lo, len, most, 0, at + lo, to + lo, mask))
        } else if (type == 32) {
            const int32_t *from = (const int32_t *)v + at;
            int32_t *to = (int32_t *)out + at, most = narrow_limit(limit);
            PARALLEL_MASK(size, at, size, sums32(from + lo, len, most, 0, at + lo, to + lo, mask))
        } else {
            const int64_t *from = (const int64_t *)v + at;
            int64_t *to = (int64_t *)out + at;
            PARALLEL_MASK(size, at, size, sums64(from + lo, len, limit, 0, at + lo, to + lo, mask))
        }
    }
}

#define BEHIND(name, type)                                                                     \
    static void name(const type *restrict g, const uint8_t *restrict mask, int64_t n,          \
                     type *restrict out) {                                                     \
        typedef type Octet __attribute__((vector_size(8 * sizeof(type))));                     \
        const Octet bits = {1, 2, 4, 8, 16, 32, 64, 128};                                      \
        for (; n >= 8; n -= 8, g += 8, out += 8) {                                             \
            Octet v;                                                                           \
            memcpy(&v, g, sizeof v);                                                           \
            v &= (bits & (type)*mask++) != 0;                                                  \
            memcpy(out, &v, sizeof v);                                                         \
        }                                                                                      \
        for (int64_t k = 0; k < n; k++) out[k] = (type)(*mask >> k & 1 ? g[k] : 0);            \
    }
BEHIND(behind16, int16_t)
BEHIND(behind32, int32_t)

/* out = g, of 16 or 32 bits, where the mask has a bit, else 0. */
void samebits_behind_mask(const void *g, int width, int64_t n, const uint8_t *mask, void *out,
                          int threads) {
    const int16_t *g16 = g;
    const int32_t *g32 = g;
    int16_t *out16 = out;
    int32_t *out32 = out;
    if (width == 16) {
        PARALLEL_MASK(n, 0, n, behind16(g16 + lo, mask + lo / 8, len, out16 + lo))
    } else {
        PARALLEL_MASK(n, 0, n, behind32(g32 + lo, mask + lo / 8, len, out32 + lo))
    }
}

/* The bits of a mask as bytes, 0 or 1. */
void samebits_mask_bytes(const uint8_t *mask, int64_t n, uint8_t *out) {
    for (int64_t i = 0; i < n; i++) out[i] = mask[i >> 3] >> (i & 7) & 1;
}
