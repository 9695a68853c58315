/* The random bits by which the codes of moments and updates are rounded (docs/spec/training.md,
 * section 1.5), many at a time. */
#ifndef SAMEBITS_MOMENT_H
#define SAMEBITS_MOMENT_H

#include "e6m9.h"
#include "philox.h"

#define DRAW_BLOCK 2048 /* elements whose random bits are made at a time */

/* --- random bits: halves of words of Philox4x32-10 (Salmon et al., SC 2011) ------------------ */

typedef struct {
    uint32_t seed, parameter, step;
    int32_t on; /* 0: to nearest, without random bits */
} Draw;

#define DRAW_THIRD 0xFFFFFFFDu /* the third word of every counter */

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
