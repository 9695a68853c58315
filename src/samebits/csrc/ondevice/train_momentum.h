/* The inner loops of SGD with momentum (4), of up to BLOCK elements: codes of V, then the step that
 * they make. In portable C, and with Helium.
 *
 * A sum D has 52 bits: lanes of 32 bits hold it in two parts, hi * 2**25 + lo. */
#ifndef SAMEBITS_TRAIN_MOMENTUM_H
#define SAMEBITS_TRAIN_MOMENTUM_H

#include "train_update.h"

#define BLOCK 16

/* What is the same for all elements, out of memory: writes of bytes may change what pointers reach.
 *
 * field: of the leading bit of D, less its place. least_v: no shift of V is smaller */
typedef struct {
    int8_t *w;
    int16_t *a, *v;
    int32_t momentum, decay, rate, old, by_g, by_j, by_v, field, shift_u, least_v;
} Fixed;

SAMEBITS_INLINE Fixed fixed_of(const samebits_update *d) {
    const samebits_parameter *p = d->p;
    const samebits_optimizer *o = d->o;
    return (Fixed){p->w,    p->a,    p->v,    o->momentum.m,         o->decay.m,
                   o->rate.m, d->old, d->by_g, d->by_j,              d->by_v,
                   d->e_d - d->e_v + 53, d->shift_u, d->by_v - (p->s->top_v >> 9)};
}

/* What mu * V adds to D. */
SAMEBITS_INLINE int64_t kept_of(const Fixed *f, int32_t v) {
    const int32_t size = magnitude32(v), q = f->momentum * (512 + (size & 511));
    return v ? down26(v < 0 ? -q : q, f->by_v - (size >> 9)) : 0;
}

SAMEBITS_INLINE int64_t sum_of(const Fixed *f, int32_t i, int32_t g) {
    int64_t sum = moved_by(g, f->by_g);
    if (f->decay) sum += down64((int64_t)f->decay * (f->w[i] * 32768 - f->a[i]), f->by_j);
    if (f->old) sum += kept_of(f, f->v[i]);
    return sum;
}

/* The code of a sum, by 16 random bits; `*top`: the largest so far. */
SAMEBITS_INLINE int32_t code_of(const Fixed *f, int64_t sum, uint32_t bits, int32_t *top) {
    const int64_t size = samebits_magnitude64(sum);
    const int32_t n = length_of(size), field = n + f->field;
    int32_t code = 0;
    if (size && field >= 1) code = 512 * (field - 1) + rounded10(size, n, bits);
    *top = SAMEBITS_MAX(*top, code);
    return sum < 0 ? -code : code;
}

#if defined(__ARM_FEATURE_MVE)
#include <arm_mve.h>

#define PART 25
#define PART_MASK ((1 << PART) - 1)

/* V of elements from i on, of G and 16 random bits each. Returns the largest code, or `top`. */
SAMEBITS_APART int32_t codes_by_fours(const Fixed *f, int32_t i, const int32_t *g,
                                      const uint16_t *bits, int32_t count, int32_t top) {
    const int32x4_t one = vdupq_n_s32(1), mask = vdupq_n_s32(PART_MASK), none = vdupq_n_s32(0);
    int16_t *v = f->v + i;
    int32x4_t most = none;
    for (; count > 0; count -= 4, g += 4, v += 4, bits += 4) {
        const mve_pred16_t lanes = vctp32q((uint32_t)count);
        const int32x4_t codes = vldrwq_z_s32(g, lanes), old = vldrhq_z_s32(v, lanes);
        int32x4_t lo = vandq_s32(vshlq_r_s32(codes, -f->by_g), mask);
        int32x4_t hi = vshlq_r_s32(codes, -f->by_g - PART), big, small, sign, n;
        mve_pred16_t p;
        if (f->old) {
            const int32x4_t size = vabsq_s32(old);
            const int32x4_t s = vminq_s32(vsubq_s32(vdupq_n_s32(f->by_v), vshrq_n_s32(size, 9)),
                                          vdupq_n_s32(31));
            const int32x4_t q = vmulq_n_s32(
                vaddq_n_s32(vandq_s32(size, vdupq_n_s32(511)), 512), f->momentum);
            const int32x4_t down = vnegq_s32(s);
            int32x4_t left = vmaxq_s32(down, none), term = vshlq_s32(one, vsubq_s32(s, one));
            term = vaddq_s32(vsubq_s32(term, one), q);
            term = vaddq_s32(term, vandq_s32(vshlq_s32(q, down), one));
            term = vpselq_s32(vshlq_s32(term, down), q, vcmpgtq_n_s32(s, 0));
            term = vpselq_s32(none, term, vcmpeqq_n_s32(size, 0));
            term = vpselq_s32(vnegq_s32(term), term, vcmpltq_n_s32(old, 0));
            lo = vaddq_s32(lo, vandq_s32(vshlq_s32(term, left), mask));
            hi = vaddq_s32(hi, vshlq_s32(term, vsubq_s32(left, vdupq_n_s32(PART))));
            hi = vaddq_s32(hi, vshrq_n_s32(lo, PART)), lo = vandq_s32(lo, mask);
        }
        sign = vshrq_n_s32(hi, 31); /* magnitudes */
        lo = vsubq_s32(veorq_s32(lo, vandq_s32(sign, mask)), sign);
        hi = vaddq_s32(veorq_s32(hi, sign), vshrq_n_s32(lo, PART)), lo = vandq_s32(lo, mask);
        p = vcmpeqq_n_s32(hi, 0); /* 26 bits from the leading one on */
        big = vpselq_s32(lo, hi, p), small = vpselq_s32(none, lo, p);
        n = vclzq_s32(big);
        hi = vorrq_s32(vshlq_s32(big, vsubq_s32(n, vdupq_n_s32(6))),
                       vshlq_s32(small, vsubq_s32(n, vdupq_n_s32(6 + PART))));
        hi = vaddq_s32(hi, vreinterpretq_s32_u32(vldrhq_z_u32(bits, lanes)));
        n = vsubq_s32(vpselq_s32(vdupq_n_s32(31 + f->field), vdupq_n_s32(31 + f->field + PART), p),
                      n); /* field - 1 */
        hi = vaddq_s32(vshlq_n_s32(n, 9), vshrq_n_s32(hi, 16));
        hi = vpselq_s32(none, hi, vcmpltq_n_s32(n, 0));
        hi = vpselq_s32(none, hi, vcmpeqq_n_s32(big, 0));
        most = vmaxq_s32(most, hi);
        vstrhq_p_s32(v, vsubq_s32(veorq_s32(hi, sign), sign), lanes);
    }
    return vmaxvq_s32(top, most);
}

/* W and A of elements from i on, by V and the random bits. Returns the largest |W - r|. */
SAMEBITS_APART int32_t steps_by_fours(const Fixed *f, int32_t i, const uint16_t *bits,
                                      int32_t count, int32_t top) {
    const int32x4_t one = vdupq_n_s32(1), none = vdupq_n_s32(0), half = vdupq_n_s32(16);
    const int16_t *v = f->v + i;
    int16_t *a = f->a + i;
    int8_t *w = f->w + i;
    int32x4_t largest = none;
    for (; count > 0; count -= 4, v += 4, a += 4, w += 4, bits += 4) {
        const mve_pred16_t lanes = vctp32q((uint32_t)count);
        const int32x4_t code = vldrhq_z_s32(v, lanes), size = vabsq_s32(code);
        const int32x4_t s = vminq_s32(vsubq_s32(vdupq_n_s32(f->shift_u), vshrq_n_s32(size, 9)),
                                      vdupq_n_s32(60));
        const int32x4_t above = vsubq_s32(s, half);
        uint32x4_t drawn = vmulq_n_u32(vldrhq_z_u32(bits, lanes), 0x9E37);
        int32x4_t u, t, by, old = vldrbq_z_s32(w, lanes);
        drawn = vandq_u32(drawn, vdupq_n_u32(65535));
        u = vmulq_n_s32(vaddq_n_s32(vandq_s32(size, vdupq_n_s32(511)), 512), f->rate);
        u = vshlq_s32(u, vnegq_s32(vmaxq_s32(above, none)));
        u = vaddq_s32(u, vreinterpretq_s32_u32(vshlq_u32(drawn, vminq_s32(above, none))));
        u = vshlq_s32(u, vnegq_s32(vminq_s32(s, half)));
        u = vpselq_s32(none, u, vcmpeqq_n_s32(size, 0));
        u = vpselq_s32(vnegq_s32(u), u, vcmpltq_n_s32(code, 0));
        t = vaddq_s32(vldrhq_z_s32(a, lanes), u);
        by = vaddq_n_s32(vaddq_s32(t, vandq_s32(vshrq_n_s32(t, 15), one)), 16383);
        by = vshrq_n_s32(by, 15);
        vstrhq_p_s32(a, vsubq_s32(t, vshlq_n_s32(by, 15)), lanes);
        old = vsubq_s32(old, by);
        vstrbq_p_s32(w, old, lanes);
        largest = vmaxq_s32(largest, vabsq_s32(old));
    }
    return vmaxvq_s32(top, largest);
}
#endif

/* V of elements from i on, of G and 16 random bits each. Returns the largest code, or `top`. */
SAMEBITS_APART int32_t new_codes(const Fixed *f, int32_t i, const int32_t *g, const uint16_t *bits,
                                 int32_t count, int32_t top) {
    const int32_t left = (int32_t)(1u << (-f->by_g & 31));
    int16_t *v = f->v + i, *end = v + count;
#if defined(__ARM_FEATURE_MVE)
    if (!f->decay && f->by_g <= 0 && f->by_g >= 1 - PART && (!f->old || f->least_v > -PART))
        return codes_by_fours(f, i, g, bits, count, top);
#endif
    if (!f->decay && f->old && f->by_g <= 0 && f->by_g > -31)
        for (; v < end; v++)
            *v = (int16_t)code_of(f, (int64_t)*g++ * left + kept_of(f, *v), *bits++, &top);
    else
        for (; v < end; v++)
            *v = (int16_t)code_of(f, sum_of(f, i++, *g++), *bits++, &top);
    return top;
}

/* W and A of elements from i on, by V and the random bits: W - r and J - u, where u has less than
 * 29 bits. W - r is stored modulo 2**8, A exactly. Returns the largest |W - r|, or `top`. */
SAMEBITS_APART int32_t new_steps(const Fixed *f, int32_t i, const uint16_t *bits, int32_t count,
                                 int32_t top) {
#if defined(__ARM_FEATURE_MVE)
    return steps_by_fours(f, i, bits, count, top);
#else
    const int32_t rate = f->rate, shift = f->shift_u;
    const int16_t *v = f->v + i, *end = v + count;
    int16_t *a = f->a + i;
    int8_t *w = f->w + i;
    for (; v < end; v++, a++, w++, bits++) {
        const int32_t t = *a + (int32_t)step_of(rate, *v, shift, *bits);
        const int32_t by = samebits_round32(t, 15), own = *w - by, k = magnitude32(own);
        *w = (int8_t)(uint8_t)own;
        *a = (int16_t)(t - by * 32768);
        top = SAMEBITS_MAX(top, k);
    }
    return top;
#endif
}

#endif
