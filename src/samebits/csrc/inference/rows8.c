/* --- rows of 8-bit codes, Cortex-M ---------------------------------------------------------------
 *
 * Products of two tensors of int8 by vectors of Helium or halfwords of the DSP extension: element
 * by element, and a row by a matrix. elementwise.c and products.c define the same for any types. */

#include "samebits_vector.h"

/* n products of int8 codes to int8 by SAMEBITS_WORDS; a step of 0 repeats one code. */
static void samebits_gated(const samebits_broadcast *c, const int8_t *a, int32_t step_a,
                           const int8_t *b, int32_t step_b, int32_t n, int8_t *out) {
    const int32_t zero_a = (int32_t)c->sources[0].factor, zero_b = (int32_t)c->sources[1].factor;
    int32_t i = 0;
#if defined(__ARM_FEATURE_MVE) && defined(__GNUC__)
    const samebits_rescale *r = &c->rescale;
    const int32_t *m = (const int32_t *)r->multipliers, shift = -r->shifts[0], zero = r->zero;
    const int32x4_t low = vdupq_n_s32(r->low), high = vdupq_n_s32(r->high);
    const int32x4_t m0 = vdupq_n_s32(m[0]), m1 = vdupq_n_s32(m[1]);
    for (; i + 4 <= n; i += 4) {
        const int32x4_t u = step_a ? vldrbq_s32(a + i) : vdupq_n_s32(*a);
        const int32x4_t v = step_b ? vldrbq_s32(b + i) : vdupq_n_s32(*b);
        const int32x4_t acc = vmulq_s32(vsubq_n_s32(u, zero_a), vsubq_n_s32(v, zero_b));
        const int32x4_t code = samebits_mve_words(acc, m0, m1, shift, zero);
        vstrbq_s32(out + i, vminq_s32(vmaxq_s32(code, low), high));
    }
#elif defined(SAMEBITS_DSP_WORDS)
    const samebits_words w = samebits_words_of(&c->rescale);
    const int32_t *m = (const int32_t *)c->rescale.multipliers, m0 = m[0], m1 = m[1];
    const int32_t low = c->rescale.low, high = c->rescale.high;
    for (; i < n; i++, a += step_a, b += step_b) {
        const int32_t acc = (*a - zero_a) * (*b - zero_b);
        out[i] = (int8_t)samebits_clamp32(samebits_dsp_upper(&w, acc, m0, m1), low, high);
    }
#endif
    for (; i < n; i++) {
        const int32_t acc = (a[i * step_a] - zero_a) * (b[i * step_b] - zero_b);
        int32_t code = acc;
        samebits_words_all(&c->rescale, 0, 1, &code);
        out[i] = (int8_t)code;
    }
}

/* Whether all products are of that kind. */
static int samebits_is_gate(const samebits_broadcast *c, int32_t last) {
    const samebits_source *s = c->sources;
    return SAMEBITS_SMALL && c->operation == SAMEBITS_MULTIPLY && c->count == 2 && !c->wide &&
           c->rescale.form == SAMEBITS_WORDS && c->rescale.channels == 1 &&
           c->rescale.type == SAMEBITS_INT8 && s[0].type == SAMEBITS_INT8 &&
           s[1].type == SAMEBITS_INT8 && s[0].strides[last] <= 1 && s[1].strides[last] <= 1;
}

#if SAMEBITS_SMALL
/* A row of int8 codes times `n` columns of int8 codes, at most SAMEBITS_CHUNK, to sums that wrap:
 * the zero point of b leaves them at the end. A code less its zero point has 16 bits. */
static void samebits_row8(const samebits_matmul *c, const int8_t *a, const int8_t *b, int32_t n,
                          int32_t *acc) {
    uint32_t total = 0;
    int32_t i = 0, k;
#if defined(__ARM_FEATURE_MVE) && defined(__GNUC__)
    if (n == 16) {
        int32x4_t s0 = vdupq_n_s32(0), s1 = s0, s2 = s0, s3 = s0;
        const int8_t *row = b;
        for (k = 0; k < c->depth; k++, row += c->columns) {
            const int32_t v = a[k] - c->a_zero;
            s0 = vmlaq_n_s32(s0, vldrbq_s32(row), v);
            s1 = vmlaq_n_s32(s1, vldrbq_s32(row + 4), v);
            s2 = vmlaq_n_s32(s2, vldrbq_s32(row + 8), v);
            s3 = vmlaq_n_s32(s3, vldrbq_s32(row + 12), v);
        }
        vstrwq_s32(acc, s0);
        vstrwq_s32(acc + 4, s1);
        vstrwq_s32(acc + 8, s2);
        vstrwq_s32(acc + 12, s3);
        i = n;
    }
#elif defined(__ARM_FEATURE_DSP) && defined(__GNUC__)
    for (; i + 8 <= n; i += 8) {
        int32_t s0 = 0, s1 = 0, s2 = 0, s3 = 0, s4 = 0, s5 = 0, s6 = 0, s7 = 0;
        const int8_t *column = b + i;
        for (k = 0; k < c->depth; k++, column += c->columns) {
            const int32_t v = a[k] - c->a_zero;
            uint32_t first, second;
            int32_t odd, even;
            __builtin_memcpy(&first, column, 4);
            __builtin_memcpy(&second, column + 4, 4);
            even = (int32_t)__sxtb16((int8x4_t)first);
            __asm__("sxtb16 %0, %1, ror #8" : "=r"(odd) : "r"(first));
            s0 = __smlabb(even, v, s0);
            s1 = __smlabb(odd, v, s1);
            s2 = __smlatb(even, v, s2);
            s3 = __smlatb(odd, v, s3);
            even = (int32_t)__sxtb16((int8x4_t)second);
            __asm__("sxtb16 %0, %1, ror #8" : "=r"(odd) : "r"(second));
            s4 = __smlabb(even, v, s4);
            s5 = __smlabb(odd, v, s5);
            s6 = __smlatb(even, v, s6);
            s7 = __smlatb(odd, v, s7);
        }
        acc[i] = s0;
        acc[i + 1] = s1;
        acc[i + 2] = s2;
        acc[i + 3] = s3;
        acc[i + 4] = s4;
        acc[i + 5] = s5;
        acc[i + 6] = s6;
        acc[i + 7] = s7;
    }
#endif
    for (; i + 4 <= n; i += 4) {
        const int8_t *column = b + i;
        uint32_t s0 = 0, s1 = 0, s2 = 0, s3 = 0;
        for (k = 0; k < c->depth; k++, column += c->columns) {
            const int32_t v = a[k] - c->a_zero;
            s0 += (uint32_t)(v * column[0]);
            s1 += (uint32_t)(v * column[1]);
            s2 += (uint32_t)(v * column[2]);
            s3 += (uint32_t)(v * column[3]);
        }
        acc[i] = samebits_signed32(s0);
        acc[i + 1] = samebits_signed32(s1);
        acc[i + 2] = samebits_signed32(s2);
        acc[i + 3] = samebits_signed32(s3);
    }
    for (; i < n; i++) {
        uint32_t sum = 0;
        for (k = 0; k < c->depth; k++) {
            sum += (uint32_t)((a[k] - c->a_zero) * b[k * c->columns + i]);
        }
        acc[i] = samebits_signed32(sum);
    }
    for (k = 0; k < c->depth; k++) total += (uint32_t)(a[k] - c->a_zero);
    total *= (uint32_t)c->b_zero;
    for (i = 0; i < n; i++) acc[i] = samebits_signed32((uint32_t)acc[i] - total);
}
#endif
