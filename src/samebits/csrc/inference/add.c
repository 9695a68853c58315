/* --- sums of two tensors of int8 ----------------------------------------------------------------
 *
 * A code is floor((a * factor_a + b * factor_b + offset) / 2**shift), clamped: the offset holds the
 * zero point and what rounds. codegen/lowering/add.py has compared every pair of codes with the
 * definition. Products and sums wrap modulo 2**32; what they are at the end fits. */

#include "samebits_vector.h"

#if defined(__ARM_FEATURE_MVE) && defined(__GNUC__)
#include <arm_mve.h>
#endif

#if defined(__ARM_FEATURE_SAT) && defined(__GNUC__)
#define SAMEBITS_SSAT
SAMEBITS_INLINE int8_t samebits_ssat8(int32_t v) { /* clamped to the codes of int8 */
    int32_t code;
    __asm__("ssat %0, #8, %1" : "=r"(code) : "r"(v));
    return (int8_t)code;
}
#endif

SAMEBITS_INLINE int32_t samebits_add_one(const samebits_add8 *c, int8_t a, int8_t b) {
    const uint32_t sum = (uint32_t)a * (uint32_t)c->factor_a + (uint32_t)c->offset;
    const uint32_t both = sum + (uint32_t)b * (uint32_t)c->factor_b;
    return samebits_floor32(samebits_signed32(both), c->shift);
}

void samebits_run_add8(const samebits_add8 *c, const void *x, const void *y, void *out) {
    const int8_t *a = (const int8_t *)x, *b = (const int8_t *)y;
    int8_t *to = (int8_t *)out;
    const samebits_add8 k = *c; /* no store changes it */
    int32_t i = 0;
#if defined(__ARM_FEATURE_MVE) && defined(__GNUC__)
    const int32x4_t low = vdupq_n_s32(k.low), high = vdupq_n_s32(k.high);
    const int32x4_t offset = vdupq_n_s32(k.offset);
    for (i = 0; i + 8 <= k.size; i += 8) {
        int32x4_t u = vmlaq_n_s32(offset, vldrbq_s32(a + i), k.factor_a);
        int32x4_t v = vmlaq_n_s32(offset, vldrbq_s32(a + i + 4), k.factor_a);
        u = vmlaq_n_s32(u, vldrbq_s32(b + i), k.factor_b);
        v = vmlaq_n_s32(v, vldrbq_s32(b + i + 4), k.factor_b);
        u = vminq_s32(vmaxq_s32(vshlq_r_s32(u, -k.shift), low), high);
        v = vminq_s32(vmaxq_s32(vshlq_r_s32(v, -k.shift), low), high);
        vstrbq_s32(to + i, u);
        vstrbq_s32(to + i + 4, v);
    }
#elif defined(SAMEBITS_SSAT)
    if (k.low == -128 && k.high == 127) {
        for (i = 0; i + 2 <= k.size; i += 2) {
            const int32_t u = samebits_add_one(&k, a[i], b[i]);
            const int32_t v = samebits_add_one(&k, a[i + 1], b[i + 1]);
            to[i] = samebits_ssat8(u);
            to[i + 1] = samebits_ssat8(v);
        }
    }
#endif
    for (; i < k.size; i++) {
        to[i] = (int8_t)samebits_clamp32(samebits_add_one(&k, a[i], b[i]), k.low, k.high);
    }
}
