/* e6m9, the 16-bit codes of moments and directions, and the random bits of their rounding
 * (docs/spec/training.md, sections 1.4 and 1.5).
 *
 * The code of a number is cut out of its binary64: below the sign six bits of exponent count from
 * the tensor's own, nine of significand follow, and what rounding adds below carries into both. */
#ifndef SAMEBITS_MOMENT_H
#define SAMEBITS_MOMENT_H

#include "philox.h"
#include "real.h"

#define MOMENT_DROPPED 43 /* bits of a binary64's significand below a code's nine */
#define MOMENT_BIAS 969   /* F = the biased exponent of |v| - (e + MOMENT_BIAS) */
#define DRAW_BLOCK 2048   /* elements whose random bits are made at a time */

/* J = W * 2**15 - A. */
SAMEBITS_INLINE int32_t joint(int8_t w, int16_t a) { return (int32_t)w * 32768 - a; }

/* The code of v at the exponent e = bias - MOMENT_BIAS; added: see `added_random`. Selections are
 * masks here and below, so that loops vectorise. */
SAMEBITS_INLINE int16_t moment_code(double v, int64_t bias, int64_t added) {
    int64_t sign = samebits_floor64(bits_of(v), 63), bits = magnitude_bits(v);
    int64_t code = ((bits + added) >> MOMENT_DROPPED) - bias * 512;
    code &= -(int64_t)((bits >> 52) > bias);
    return (int16_t)((code ^ sign) - sign);
}

/* What rounds the bits of v to nearest, or with 16 random bits. */
SAMEBITS_INLINE int64_t added_nearest(double v) {
    return ((int64_t)1 << (MOMENT_DROPPED - 1)) - 1 + ((bits_of(v) >> MOMENT_DROPPED) & 1);
}

SAMEBITS_INLINE int64_t added_random(uint32_t bits) {
    return (int64_t)bits << (MOMENT_DROPPED - 16);
}

/* -1 of a negative code, 0 of others; its magnitude; its significand (0 for the code 0); F. */
SAMEBITS_INLINE int32_t sign_of(int32_t code) { return samebits_floor32(code, 31); }

SAMEBITS_INLINE int32_t magnitude_of(int32_t code) {
    return (code ^ sign_of(code)) - sign_of(code);
}

SAMEBITS_INLINE int32_t significand_of(int32_t code) {
    return (512 + (magnitude_of(code) & 511)) & -(int32_t)(code != 0);
}

SAMEBITS_INLINE int32_t field_of(int32_t code) { return magnitude_of(code) >> 9; }

SAMEBITS_INLINE int32_t with_sign(int32_t v, int32_t sign) { return (v ^ sign) - sign; }

/* m * value of a code at the exponent e, exactly: base = e - 63 in [-900, 900], |m| < 2**16. */
SAMEBITS_INLINE double moment_value(int32_t m, int32_t code, int64_t base) {
    int32_t product = with_sign(m * significand_of(code), sign_of(code));
    return (double)product * power_of_two(base + field_of(code));
}

/* --- random bits: halves of words of Philox4x32-10 (Salmon et al., SC 2011) ------------------ */

typedef struct {
    uint32_t seed, parameter, step;
    int32_t on; /* 0: to nearest, without random bits */
} Draw;

#define DRAW_THIRD 0xFFFFFFFDu /* the third word of every counter */

/* w_U and w_S from w_V: products with odd numbers, so that each is as uniform as it. */
SAMEBITS_INLINE uint32_t update_bits(uint32_t w) { return (w * 0x9E37u) & 65535u; }

SAMEBITS_INLINE uint32_t root_bits(uint32_t w) { return (w * 0x85EBu) & 65535u; }

/* A word as it must lie in memory for its low half to come first. */
typedef uint16_t Bits __attribute__((may_alias));

SAMEBITS_INLINE uint32_t halves(uint32_t word) {
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    return word << 16 | word >> 16;
#else
    return word;
#endif
}

/* Words 4 * first to 4 * (first + count) - 1 of a draw, round by round over all counters. */
static void draw_words(const Draw *draw, int64_t first, int64_t count, uint32_t *restrict words) {
    uint32_t a[DRAW_BLOCK / 8 + 1], b[DRAW_BLOCK / 8 + 1], c[DRAW_BLOCK / 8 + 1],
        d[DRAW_BLOCK / 8 + 1];
    for (int64_t i = 0; i < count; i++) {
        a[i] = (uint32_t)(first + i);
        b[i] = draw->step;
        c[i] = DRAW_THIRD;
        d[i] = 0;
    }
    philox(a, b, c, d, draw->seed, draw->parameter, count);
    for (int64_t i = 0; i < count; i++) {
        words[4 * i] = halves(a[i]);
        words[4 * i + 1] = halves(b[i]);
        words[4 * i + 2] = halves(c[i]);
        words[4 * i + 3] = halves(d[i]);
    }
}

/* Elements `from` to `to` - 1 of a thread's range; bits[i - from] is w_V of element i. */
typedef struct {
    int64_t from, to;
    const Bits *bits;
} Block;

/* The block at `from` of n elements, the first of which is element lo of the tensor. Without random
 * bits the buffer stays as it is. */
SAMEBITS_INLINE Block block_at(const Draw *draw, int64_t lo, int64_t n, int64_t from,
                               uint32_t *buffer) {
    int64_t to = SAMEBITS_MIN(n, from + DRAW_BLOCK), first = (lo + from) >> 3;
    if (draw->on && from < n)
        draw_words(draw, first, ((lo + to + 7) >> 3) - first, buffer);
    return (Block){from, to, (const Bits *)buffer + ((lo + from) & 7)};
}

#define FOR_BLOCKS(block, draw, lo, n)                                                         \
    uint32_t buffer[DRAW_BLOCK / 2 + 4] = {0};                                                 \
    for (Block block = block_at(draw, lo, n, 0, buffer); block.from < (n);                     \
         block = block_at(draw, lo, n, block.to, buffer))

#endif
