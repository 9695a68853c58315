/* --- sums of products, fully connected ----------------------------------------------------------
 *
 * Rows of int8 codes times a matrix of int8 weights, to 32-bit sums that nothing rounds yet: the
 * products of a recurrent step, of which two are added before a code is made. Weights are rows of
 * `padded` numbers, 0 behind the last, whole vectors; codes are read as they lie where rows have
 * that length, else from a copy. Sums wrap modulo 2**32, and the lowering has proved that they fit.
 *
 * The plain C defines. With Helium, 16 products are one instruction (VMLADAVA, Armv8-M Architecture
 * Reference Manual, DDI 0553); with the DSP extension a row is widened once, codes 0 and 2 of each
 * four in one word and 1 and 3 in the next, as SXTB16 splits a word of weights. */

#include "samebits_vector.h"

#if defined(__ARM_FEATURE_MVE) && defined(__GNUC__)
#include <arm_mve.h>
#define SAMEBITS_LINEAR_SUMS
/* Four outputs share the loads of the codes. */
static void samebits_row_sums(const samebits_linear_sums *c, const int8_t *x, samebits_i32 *out) {
    const int8_t *w = (const int8_t *)c->weights;
    const int32_t *bias = (const int32_t *)c->bias;
    int32_t o, i;
    for (o = 0; o + 4 <= c->outputs; o += 4, w += 4 * c->padded) {
        int32_t s0 = bias[o], s1 = bias[o + 1], s2 = bias[o + 2], s3 = bias[o + 3];
        for (i = 0; i < c->padded; i += 16) {
            const int8x16_t v = vldrbq_s8(x + i);
            s0 = vmladavaq_s8(s0, v, vldrbq_s8(w + i));
            s1 = vmladavaq_s8(s1, v, vldrbq_s8(w + c->padded + i));
            s2 = vmladavaq_s8(s2, v, vldrbq_s8(w + 2 * c->padded + i));
            s3 = vmladavaq_s8(s3, v, vldrbq_s8(w + 3 * c->padded + i));
        }
        out[o] = s0;
        out[o + 1] = s1;
        out[o + 2] = s2;
        out[o + 3] = s3;
    }
    for (; o < c->outputs; o++, w += c->padded) {
        int32_t s = bias[o];
        for (i = 0; i < c->padded; i += 16) {
            s = vmladavaq_s8(s, vldrbq_s8(x + i), vldrbq_s8(w + i));
        }
        out[o] = s;
    }
}
#elif defined(__ARM_FEATURE_DSP) && defined(__ARM_FEATURE_SIMD32) && defined(__ARMEL__)
#include <arm_acle.h>
#define SAMEBITS_LINEAR_SUMS
/* The even and the odd bytes of a word, widened; the compiler does not fold the rotation. */
SAMEBITS_INLINE int32_t samebits_even(uint32_t w) { return (int32_t)__sxtb16((int8x4_t)w); }

SAMEBITS_INLINE int32_t samebits_odd(uint32_t w) {
    int32_t odd;
    __asm__("sxtb16 %0, %1, ror #8" : "=r"(odd) : "r"(w));
    return odd;
}

/* wide: the widened codes, `padded` halfwords. */
static void samebits_row_sums(const samebits_linear_sums *c, const uint32_t *wide,
                              samebits_i32 *out) {
    const int8_t *w = (const int8_t *)c->weights;
    const int32_t *bias = (const int32_t *)c->bias;
    const uint32_t *end = wide + c->padded / 2;
    int32_t o;
    for (o = 0; o < c->outputs; o += 2) {
        const int32_t second = o + 1 < c->outputs; /* else the same row twice */
        const int8_t *u = w, *v = w + second * c->padded;
        int32_t s0 = bias[o], s1 = bias[o + second];
        const uint32_t *x;
        for (x = wide; x != end; x += 4, u += 8, v += 8) {
            uint32_t a, b, p, q;
            __builtin_memcpy(&a, u, 4);
            __builtin_memcpy(&b, v, 4);
            __builtin_memcpy(&p, u + 4, 4);
            __builtin_memcpy(&q, v + 4, 4);
            s0 = __smlad((int32_t)x[0], samebits_even(a), s0);
            s1 = __smlad((int32_t)x[0], samebits_even(b), s1);
            s0 = __smlad((int32_t)x[1], samebits_odd(a), s0);
            s1 = __smlad((int32_t)x[1], samebits_odd(b), s1);
            s0 = __smlad((int32_t)x[2], samebits_even(p), s0);
            s1 = __smlad((int32_t)x[2], samebits_even(q), s1);
            s0 = __smlad((int32_t)x[3], samebits_odd(p), s0);
            s1 = __smlad((int32_t)x[3], samebits_odd(q), s1);
        }
        out[o] = s0;
        out[o + second] = s1;
        w += 2 * c->padded;
    }
}

static void samebits_widen_row(const int8_t *x, int32_t n, uint32_t *wide) {
    int32_t i;
    for (i = 0; i < n; i += 4, wide += 2) {
        uint32_t four;
        __builtin_memcpy(&four, x + i, 4);
        wide[0] = (uint32_t)samebits_even(four);
        wide[1] = (uint32_t)samebits_odd(four);
    }
}
#define SAMEBITS_WIDE_ROWS
#endif

#ifndef SAMEBITS_LINEAR_SUMS
#define SAMEBITS_TWO(i)                                                                            \
    s0 += (uint32_t)(from[i] * u[i]);                                                              \
    s1 += (uint32_t)(from[i] * v[i]);

/* Two outputs share the loads of the codes. */
static void samebits_row_sums(const samebits_linear_sums *c, const int8_t *x, samebits_i32 *out) {
    const int8_t *w = (const int8_t *)c->weights;
    const int32_t *bias = (const int32_t *)c->bias;
    const int8_t *end = x + c->padded;
    int32_t o;
    for (o = 0; o < c->outputs; o += 2) {
        const int32_t second = o + 1 < c->outputs; /* else the same row twice */
        const int8_t *u = w, *v = w + second * c->padded, *from = x;
        uint32_t s0 = (uint32_t)bias[o], s1 = (uint32_t)bias[o + second];
        for (; from != end; from += 4, u += 4, v += 4) { /* padded is a multiple of 4 */
            SAMEBITS_TWO(0)
            SAMEBITS_TWO(1)
            SAMEBITS_TWO(2)
            SAMEBITS_TWO(3)
        }
        out[o] = samebits_signed32(s0);
        out[o + second] = samebits_signed32(s1);
        w += 2 * c->padded;
    }
}
#endif

/* scratch: a row of codes where it is padded, then (`wide`) its halfwords. */
void samebits_run_linear_sums(const samebits_linear_sums *c, const void *x, void *out,
                              void *scratch) {
    const int8_t *from = (const int8_t *)x;
    samebits_i32 *to = (samebits_i32 *)out;
    int8_t *copy = (int8_t *)scratch;
    int32_t row, i;
    for (row = 0; row < c->rows; row++, from += c->depth, to += c->outputs) {
        const int8_t *codes = from;
        if (c->depth != c->padded) {
            for (i = 0; i < c->padded; i++) copy[i] = 0;
            for (i = 0; i < c->depth; i++) copy[i] = from[i];
            codes = copy;
        }
#ifdef SAMEBITS_WIDE_ROWS
        samebits_widen_row(codes, c->padded, (uint32_t *)scratch + c->padded / 4);
        samebits_row_sums(c, (const uint32_t *)scratch + c->padded / 4, to);
#else
        samebits_row_sums(c, codes, to);
#endif
    }
}
