/* --- convolution: Arm DSP extension --------------------------------------------------------------
 *
 * Cortex-M4 and up: SMLAD multiplies two pairs of 16 bits and adds both products to a sum of 32
 * bits that wraps. Two pixels by two channels share their loads and widenings. Little-endian only:
 * words hold four codes. */

#include "samebits_vector.h"

#if defined(__ARM_FEATURE_DSP) && defined(__ARM_FEATURE_SIMD32) && defined(__ARMEL__)
#include <arm_acle.h>
#define SAMEBITS_WIDTH 16
#define SAMEBITS_PIXELS 2

SAMEBITS_INLINE uint32_t samebits_word(const void *p) {
    uint32_t word;
    __builtin_memcpy(&word, p, 4);
    return word;
}

/* sum + the products of four codes and four weights, split in pairs: words hold four bytes,
 * UXTB16 and SXTB16 take every other one, SMLAD multiplies two pairs and adds; its sum wraps. */
#define SAMEBITS_PAIRS(sum, even, odd, w) __smlad(odd, w##_odd, __smlad(even, w##_even, sum))
#define SAMEBITS_WEIGHTS(w, from)                                                                  \
    const uint32_t w##_word = samebits_word(from);                                                 \
    const int32_t w##_even = (int32_t)__sxtb16((int8x4_t)w##_word);                                \
    const int32_t w##_odd = (int32_t)__sxtb16((int8x4_t)(w##_word >> 8 | w##_word << 24));
#define SAMEBITS_CODES(x, from)                                                                    \
    const uint32_t x##_word = samebits_word(from);                                                 \
    const int32_t x##_even = (int32_t)__uxtb16(x##_word);                                          \
    const int32_t x##_odd = (int32_t)__uxtb16(x##_word >> 8 | x##_word << 24);

/* 1 or 2 pixels by 1 or 2 channels. */
SAMEBITS_INLINE void samebits_tile(const samebits_steps *s, const uint8_t *x, const int8_t *w,
                                   int32_t step, const int32_t *bias, int32_t *acc,
                                   const int32_t P, const int32_t L) {
    const int32_t next = P == 2 ? s->pixel : 0;
    int32_t s00 = bias[0], s01 = bias[L - 1], s10 = s00, s11 = s01, row, run;
    for (row = 0; row < s->conv->kernel_height; row++) {
        for (run = 0; run < s->conv->runs; run++) {
            const uint8_t *from = x + row * s->row + run * s->run;
            const uint8_t *end = from + 4 * s->quads;
            for (; from != end; from += 4, w += step) {
                SAMEBITS_CODES(a, from)
                SAMEBITS_CODES(b, from + next)
                SAMEBITS_WEIGHTS(u, w)
                s00 = SAMEBITS_PAIRS(s00, a_even, a_odd, u);
                if (P == 2) s10 = SAMEBITS_PAIRS(s10, b_even, b_odd, u);
                if (L == 2) {
                    SAMEBITS_WEIGHTS(v, w + 4)
                    s01 = SAMEBITS_PAIRS(s01, a_even, a_odd, v);
                    if (P == 2) s11 = SAMEBITS_PAIRS(s11, b_even, b_odd, v);
                }
            }
        }
    }
    acc[0] = s00;
    if (L == 2) acc[1] = s01;
    if (P == 2) acc[SAMEBITS_WIDTH] = s10;
    if (P == 2 && L == 2) acc[SAMEBITS_WIDTH + 1] = s11;
}

static void samebits_dots(const samebits_steps *s, const uint8_t *x, const int8_t *w, int32_t lanes,
                          const int32_t *bias, int32_t pixels, int32_t *acc) {
    int32_t lane;
    for (lane = 0; lane + 1 < lanes; lane += 2) {
        if (pixels == 2) {
            samebits_tile(s, x, w + 4 * lane, lanes * 4, bias + lane, acc + lane, 2, 2);
        } else {
            samebits_tile(s, x, w + 4 * lane, lanes * 4, bias + lane, acc + lane, 1, 2);
        }
    }
    if (lane < lanes) {
        if (pixels == 2) {
            samebits_tile(s, x, w + 4 * lane, lanes * 4, bias + lane, acc + lane, 2, 1);
        } else {
            samebits_tile(s, x, w + 4 * lane, lanes * 4, bias + lane, acc + lane, 1, 1);
        }
    }
}
#endif
