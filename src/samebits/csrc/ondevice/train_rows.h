/* Loops of batch norms and pools over all codes of an image: in portable C, and with Helium. */
#ifndef SAMEBITS_TRAIN_ROWS_H
#define SAMEBITS_TRAIN_ROWS_H

#include "train_scalars.h"

/* The codes of a channel: S1, S2, the smallest and the largest. */
typedef struct {
    int64_t sum, squares;
    int32_t low, high;
} Codes;

SAMEBITS_INLINE int32_t code_at(int32_t bits, const void *z, int32_t i) {
    return bits == 8 ? ((const int8_t *)z)[i] : ((const int16_t *)z)[i];
}

/* The largest magnitude of sums, and the largest sum. */
typedef struct {
    int32_t size, high;
} Reach;

/* Codes of channel k, one after the other. */
SAMEBITS_INLINE Codes codes_by_one(int32_t bits, const void *z, int32_t rows, int32_t c,
                                   int32_t k) {
    Codes own = {0, 0, Q16, -Q16};
    int32_t r;
    for (r = 0; r < rows; r++, k += c) {
        const int32_t code = code_at(bits, z, k);
        own.sum += code, own.squares += code * code;
        own.low = SAMEBITS_MIN(own.low, code), own.high = SAMEBITS_MAX(own.high, code);
    }
    return own;
}

#if defined(__ARM_FEATURE_MVE)
#include <arm_mve.h>

#define CHANNELS_MOST (0xFFFF / 7) /* of eight rows, offsets of 16 bits */

/* rne(v * 2**-s) of |v| < 2**30. */
SAMEBITS_INLINE int32x4_t down_fours(int32x4_t v, int32_t s) {
    if (s <= 0) return vshlq_r_s32(v, -s);
    if (s > 30) return vdupq_n_s32(0);
    return vshlq_r_s32(vaddq_n_s32(vaddq_s32(v, vandq_s32(vshlq_r_s32(v, -s), vdupq_n_s32(1))),
                                   (1 << (s - 1)) - 1),
                       -s);
}

/* Codes of channel k, eight rows at a time. */
SAMEBITS_INLINE Codes codes_of(int32_t bits, const void *z, int32_t rows, int32_t c, int32_t k) {
    const uint16x8_t at = vmulq_n_u16(vidupq_n_u16(0, 1), (uint16_t)c);
    const int8_t *bytes = (const int8_t *)z + k;
    const int16_t *words = (const int16_t *)z + k;
    int64_t squares = 0;
    int32_t sum = 0;
    int16_t low = Q16, high = -Q16;
    if (c > CHANNELS_MOST) return codes_by_one(bits, z, rows, c, k);
    for (; rows > 0; rows -= 8, bytes += 8 * c, words += 8 * c) {
        const mve_pred16_t lanes = vctp16q((uint32_t)rows);
        const int16x8_t v = bits == 8 ? vldrbq_gather_offset_z_s16(bytes, at, lanes)
                                      : vldrhq_gather_shifted_offset_z_s16(words, at, lanes);
        sum = vaddvaq_s16(sum, v), squares = vmlaldavaq_s16(squares, v, v);
        low = vminvq_p_s16(low, v, lanes), high = vmaxvq_p_s16(high, v, lanes);
    }
    return (Codes){sum, squares, low, high};
}

/* Clamps and rounds rows of sums z * factor + term, `lines` of all channels; c % 4 == 0. */
SAMEBITS_INLINE void rows_by_fours(int32_t bits, const void *z, int32_t n, int32_t c,
                                   const int32_t *lines, const samebits_rounding *by, int8_t *y,
                                   uint8_t *mask) {
    const int32x4_t none = vdupq_n_s32(0), limit = vdupq_n_s32(by->limit);
    const int32x4_t weights = vreinterpretq_s32_u32(
        vshlq_u32(vdupq_n_u32(1), vreinterpretq_s32_u32(vidupq_n_u32(0, 1))));
    int32_t i, k = 0;
    for (i = 0; i < n; i += 4) {
        const int32x4x2_t line = vld2q_s32(lines + 2 * k);
        int32x4_t v = bits == 8 ? vldrbq_s32((const int8_t *)z + i)
                                : vldrhq_s32((const int16_t *)z + i);
        v = vaddq_s32(vmulq_s32(v, line.val[0]), line.val[1]);
        if (mask) {
            const mve_pred16_t p = vcmpltq_m_s32(v, limit, vcmpgtq_n_s32(v, 0));
            const int32_t four = vaddvq_s32(vpselq_s32(weights, none, p));
            mask[i >> 3] = (uint8_t)(i & 4 ? mask[i >> 3] | four << 4 : four);
        }
        if (by->clamp) v = vminq_s32(vmaxq_s32(v, none), limit);
        vstrbq_s32(y + i, down_fours(v, by->shift));
        k = k + 4 == c ? 0 : k + 4;
    }
}

/* Of n sums, a multiple of 4. */
SAMEBITS_INLINE Reach reach_of(const int32_t *sum, int32_t n) {
    uint32_t size = 0;
    int32_t high = 0;
    for (; n > 0; n -= 4, sum += 4) {
        const int32x4_t v = vldrwq_s32(sum);
        size = vmaxavq_s32(size, v), high = vmaxvq_s32(high, v);
    }
    return (Reach){(int32_t)size, high};
}

/* Codes of 16 bits of n sums below 2**30, n a multiple of 4. */
SAMEBITS_INLINE void round_plain(const int32_t *sum, int32_t n, int32_t shift, int16_t *y) {
    for (; n > 0; n -= 4, sum += 4, y += 4) vstrhq_s32(y, down_fours(vldrwq_s32(sum), shift));
}

/* The largest magnitude of n codes. */
SAMEBITS_INLINE int32_t largest_code(const int16_t *z, int32_t n) {
    uint16_t top = 0;
    for (; n > 0; n -= 8, z += 8) top = vmaxavq_s16(top, vldrhq_z_s16(z, vctp16q((uint32_t)n)));
    return top;
}

/* One output of a pool, of 16 channels. */
SAMEBITS_INLINE void largest_of(const samebits_pool *s, const int8_t *x, const uint8_t *mask,
                                int32_t at, int8_t *y, uint8_t *where) {
    int8x16_t best = vdupq_n_s8(0);
    uint8x16_t place = vdupq_n_u8(0);
    int32_t i, j, t = 0;
    for (i = 0; i < s->kh; i++)
        for (j = 0; j < s->kw; j++, t++) {
            const int32_t own = at + (i * s->w + j) * s->c;
            const int8x16_t v = vldrbq_s8(x + own);
            const mve_pred16_t p = t ? vcmpgtq_s8(v, best) : (mve_pred16_t)0xFFFF;
            uint8x16_t here = vdupq_n_u8((uint8_t)t);
            if (mask) {
                const uint32_t bits = mask[own >> 3] | (uint32_t)mask[(own >> 3) + 1] << 8;
                here = vpselq_u8(here, vdupq_n_u8((uint8_t)(t | SAMEBITS_TRAIN_STOPPED)),
                                 (mve_pred16_t)bits);
            }
            best = vpselq_s8(v, best, p), place = vpselq_u8(here, place, p);
        }
    vstrbq_s8(y, best);
    if (where) vstrbq_u8(where, place);
}
#else
#define codes_of(bits, z, rows, c, k) codes_by_one(bits, z, rows, c, k)

SAMEBITS_INLINE Reach reach_of(const int32_t *sum, int32_t n) {
    Reach r = {0, 0};
    int32_t i;
    for (i = 0; i < n; i++) {
        const int32_t size = magnitude32(sum[i]);
        r.size = SAMEBITS_MAX(r.size, size), r.high = SAMEBITS_MAX(r.high, sum[i]);
    }
    return r;
}

SAMEBITS_INLINE void round_plain(const int32_t *sum, int32_t n, int32_t shift, int16_t *y) {
    int32_t i;
    if (shift > 0 && shift <= 30)
        for (i = 0; i < n; i++) y[i] = (int16_t)samebits_round32(sum[i], shift);
    else
        for (i = 0; i < n; i++) y[i] = (int16_t)down32(sum[i], shift);
}

SAMEBITS_INLINE int32_t largest_code(const int16_t *z, int32_t n) {
    int32_t top = 0, i;
    for (i = 0; i < n; i++) {
        const int32_t own = magnitude32(z[i]);
        top = SAMEBITS_MAX(top, own);
    }
    return top;
}
#endif

/* The mask goes out byte by byte. */
SAMEBITS_INLINE void rows_one_by_one(int32_t bits, const void *z, int32_t n, int32_t c,
                                     const int32_t *lines, const samebits_rounding *by, int8_t *y,
                                     uint8_t *mask) {
    const int32_t clamp = by->clamp, limit = by->limit, shift = by->shift;
    const int32_t *line = lines, *end = lines + 2 * c;
    uint32_t passed = 0;
    int32_t i;
    for (i = 0; i < n; i++) {
        const int32_t sum = code_at(bits, z, i) * line[0] + line[1];
        line = line + 2 == end ? lines : line + 2;
        y[i] = (int8_t)down32(clamped(sum, clamp, limit), shift);
        if (!mask) continue;
        passed |= (uint32_t)passes(sum, limit) << (i & 7);
        if ((i & 7) == 7 || i + 1 == n) mask[i >> 3] = (uint8_t)passed, passed = 0;
    }
}

SAMEBITS_INLINE void rows_of(int32_t bits, const void *z, int32_t n, int32_t c,
                             const int32_t *lines, const samebits_rounding *by, int8_t *y,
                             uint8_t *mask) {
#if defined(__ARM_FEATURE_MVE)
    if (c % 4 == 0) {
        rows_by_fours(bits, z, n, c, lines, by, y, mask);
        return;
    }
#endif
    rows_one_by_one(bits, z, n, c, lines, by, y, mask);
}

#endif
