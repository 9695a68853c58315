/* --- gates ---------------------------------------------------------------------------------------
 *
 * What a recurrent step does element by element, in one loop each: sums and products of two tensors
 * of one shape that end in a shift or in nothing, and piecewise cubics of 16-bit codes whose sums
 * fit in 32 bits. elementwise.c computes the same, and everything else, in chunks.
 *
 * With Helium four elements at a time: VRSHL rounds half up, so ties to even are made as in
 * samebits_integer.h, by what is added before the shift. */

#include "samebits_vector.h"

#ifndef SAMEBITS_AVX512
#if defined(__ARM_FEATURE_MVE) && defined(__GNUC__)
#include <arm_mve.h>
#define SAMEBITS_GATES_MVE
#endif

SAMEBITS_INLINE int32_t samebits_element(const void *p, uint8_t type, int32_t i) {
    return type == SAMEBITS_INT8    ? ((const int8_t *)p)[i]
           : type == SAMEBITS_INT16 ? ((const samebits_i16 *)p)[i]
                                    : ((const samebits_i32 *)p)[i];
}

SAMEBITS_INLINE void samebits_set_element(void *p, uint8_t type, int32_t i, int32_t v) {
    if (type == SAMEBITS_INT8) {
        ((int8_t *)p)[i] = (int8_t)v;
    } else if (type == SAMEBITS_INT16) {
        ((samebits_i16 *)p)[i] = (int16_t)v;
    } else {
        ((samebits_i32 *)p)[i] = v;
    }
}

/* From an element on, by types and a form that the compiler knows. */
SAMEBITS_INLINE void samebits_pair_rest(const samebits_broadcast *c, const void *a, const void *b,
                                        void *out, int32_t i, const int32_t n, const uint8_t type,
                                        const uint8_t out_type, const uint8_t operation,
                                        const int32_t shifted) {
    const int32_t fa = (int32_t)c->sources[0].factor, fb = (int32_t)c->sources[1].factor;
    const int32_t s = shifted ? c->rescale.shifts[0] : 0, zero = c->rescale.zero;
    const int32_t low = c->rescale.low, high = c->rescale.high;
    const uint32_t offset = (uint32_t)c->offset;
    for (; i < n; i++) {
        const int32_t x = samebits_element(a, type, i), y = samebits_element(b, type, i);
        int32_t v;
        if (operation == SAMEBITS_SUM) {
            v = samebits_signed32((uint32_t)x * (uint32_t)fa + (uint32_t)y * (uint32_t)fb + offset);
        } else {
            v = samebits_signed32((uint32_t)(x - fa) * (uint32_t)(y - fb));
        }
        if (shifted) v = samebits_clamp32(samebits_round32(v, s) + zero, low, high);
        samebits_set_element(out, out_type, i, v);
    }
}

#ifdef SAMEBITS_GATES_MVE
SAMEBITS_INLINE int32x4_t samebits_four(const void *p, uint8_t type, int32_t i) {
    return type == SAMEBITS_INT8    ? vldrbq_s32((const int8_t *)p + i)
           : type == SAMEBITS_INT16 ? vldrhq_s32((const int16_t *)p + i)
                                    : vldrwq_s32((const int32_t *)p + i);
}

SAMEBITS_INLINE void samebits_set_four(void *p, uint8_t type, int32_t i, int32x4_t v) {
    if (type == SAMEBITS_INT8) {
        vstrbq_s32((int8_t *)p + i, v);
    } else if (type == SAMEBITS_INT16) {
        vstrhq_s32((int16_t *)p + i, v);
    } else {
        vstrwq_s32((int32_t *)p + i, v);
    }
}

/* v / 2**s, ties to even, as SAMEBITS_NEAREST. */
SAMEBITS_INLINE int32x4_t samebits_nearest4(int32x4_t v, int32_t s, int32x4_t below) {
    const int32x4_t odd = vandq_s32(vshlq_r_s32(v, -s), vdupq_n_s32(1));
    return vshlq_r_s32(vaddq_s32(vaddq_s32(v, below), odd), -s);
}

SAMEBITS_INLINE int32_t samebits_pair_fours(const samebits_broadcast *c, const void *a,
                                            const void *b, void *out, const uint8_t type,
                                            const uint8_t out_type, const uint8_t operation,
                                            const int32_t shifted) {
    const int32_t n = c->shape.shape[0] & ~3, s = shifted ? c->rescale.shifts[0] : 1;
    const int32_t fa = (int32_t)c->sources[0].factor, fb = (int32_t)c->sources[1].factor;
    const int32x4_t below = vdupq_n_s32((int32_t)(((uint32_t)1 << (s - 1)) - 1u));
    const int32x4_t zero = vdupq_n_s32(c->rescale.zero), low = vdupq_n_s32(c->rescale.low);
    const int32x4_t high = vdupq_n_s32(c->rescale.high);
    int32_t i;
    for (i = 0; i < n; i += 4) {
        const int32x4_t x = samebits_four(a, type, i), y = samebits_four(b, type, i);
        int32x4_t v;
        if (operation == SAMEBITS_SUM) {
            v = vaddq_s32(vaddq_s32(vmulq_n_s32(x, fa), vmulq_n_s32(y, fb)),
                          vdupq_n_s32((int32_t)c->offset));
        } else {
            v = vmulq_s32(vsubq_s32(x, vdupq_n_s32(fa)), vsubq_s32(y, vdupq_n_s32(fb)));
        }
        if (shifted) {
            v = vaddq_s32(samebits_nearest4(v, s, below), zero);
            v = vminq_s32(vmaxq_s32(v, low), high);
        }
        samebits_set_four(out, out_type, i, v);
    }
    return n;
}
#endif

#define SAMEBITS_PAIR(TYPE, OUT, OPERATION, SHIFTED)                                               \
    if (type == TYPE && c->rescale.type == OUT && c->operation == OPERATION &&                     \
        shifted == SHIFTED) {                                                                      \
        SAMEBITS_PAIR_FOURS(TYPE, OUT, OPERATION, SHIFTED)                                         \
        samebits_pair_rest(c, sources[0], sources[1], out, i, n, TYPE, OUT, OPERATION, SHIFTED);   \
        return 1;                                                                                  \
    }
#ifdef SAMEBITS_GATES_MVE
#define SAMEBITS_PAIR_FOURS(TYPE, OUT, OPERATION, SHIFTED)                                         \
    i = samebits_pair_fours(c, sources[0], sources[1], out, TYPE, OUT, OPERATION, SHIFTED);
#else
#define SAMEBITS_PAIR_FOURS(TYPE, OUT, OPERATION, SHIFTED)
#endif

/* 16-bit codes of sums of two 32-bit tensors in 64 bits, shifted: what a cell becomes. */
static void samebits_pair_wide(const samebits_broadcast *c, const void *const *sources, void *out) {
    const int64_t fa = c->sources[0].factor, fb = c->sources[1].factor;
    const int32_t s = c->rescale.shifts[0];
    int32_t i;
    for (i = 0; i < c->shape.shape[0]; i++) {
        const int64_t x = ((const samebits_i32 *)sources[0])[i];
        const int64_t y = ((const samebits_i32 *)sources[1])[i];
        const int64_t v = samebits_round64(x * fa + y * fb + c->offset, s) + c->rescale.zero;
        ((samebits_i16 *)out)[i] =
            (int16_t)samebits_clamp64(v, c->rescale.low, c->rescale.high);
    }
}

/* Whether a call is one of these, and done. */
static int samebits_pair(const samebits_broadcast *c, const void *const *sources, void *out) {
    const samebits_rescale *r = &c->rescale;
    const uint8_t type = c->sources[0].type;
    const int32_t shifted = r->form == SAMEBITS_SHIFT, n = c->shape.shape[0];
    int32_t i = 0;
    if (c->shape.rank != 1 || c->count != 2 || r->channels > 1 || c->sources[1].type != type ||
        c->sources[0].strides[0] != 1 || c->sources[1].strides[0] != 1) {
        return 0;
    }
    if (c->wide) {
        if (type != SAMEBITS_INT32 || c->operation != SAMEBITS_SUM || r->form != SAMEBITS_WIDE ||
            r->type != SAMEBITS_INT16 || ((const int64_t *)r->multipliers)[0] != 1) {
            return 0;
        }
        samebits_pair_wide(c, sources, out);
        return 1;
    }
    if (!shifted && r->form != SAMEBITS_STORE) return 0;
    SAMEBITS_PAIR(SAMEBITS_INT32, SAMEBITS_INT16, SAMEBITS_SUM, 1)
    SAMEBITS_PAIR(SAMEBITS_INT16, SAMEBITS_INT32, SAMEBITS_MULTIPLY, 0)
    SAMEBITS_PAIR(SAMEBITS_INT16, SAMEBITS_INT8, SAMEBITS_MULTIPLY, 1)
    SAMEBITS_PAIR(SAMEBITS_INT16, SAMEBITS_INT16, SAMEBITS_MULTIPLY, 1)
    return 0;
}

/* v * r / 2**s, down, where that fits in 32 bits: the upper and lower word of the product. */
SAMEBITS_INLINE int32_t samebits_scaled32(int32_t v, int32_t r, int32_t s) {
    const uint64_t p = (uint64_t)((int64_t)v * r);
    const uint32_t low = (uint32_t)(p & 0xffffffffu), high = (uint32_t)(p >> 32);
    return samebits_signed32(((high << 1) << (31 - s)) | (low >> s));
}

#ifdef SAMEBITS_GATES_MVE
/* The same four times: the two words of a product come from VMULH and VMUL. */
SAMEBITS_INLINE int32x4_t samebits_scaled4(int32x4_t v, int32x4_t r, int32_t s) {
    const uint32x4_t low = (uint32x4_t)vmulq_s32(v, r), high = (uint32x4_t)vmulhq_s32(v, r);
    return (int32x4_t)vorrq_u32(vshlq_r_u32(vshlq_n_u32(high, 1), 31 - s), vshlq_r_u32(low, -s));
}

static int32_t samebits_cubic_fours(const samebits_cubic *c, const int16_t *x, int16_t *out) {
    const int32_t n = c->size & ~3, mask = ((int32_t)1 << c->bits) - 1;
    const int32_t *k = c->coefficients;
    int32_t i;
    for (i = 0; i < n; i += 4) {
        const int32x4_t code = vldrhq_s32(x + i);
        const int32x4_t u = c->mirrored
                                ? vminq_s32(vabsq_s32(code), vdupq_n_s32(32767))
                                : vaddq_n_s32(code, 32768);
        const uint32x4_t at = (uint32x4_t)vshlq_r_s32(u, -(int32_t)c->bits);
        const int32x4_t r = vandq_s32(u, vdupq_n_s32(mask));
        int32x4_t v = vldrwq_gather_shifted_offset_s32(k + 3 * c->segments, at);
        v = vaddq_s32(samebits_scaled4(v, r, c->shift3),
                      vldrwq_gather_shifted_offset_s32(k + 2 * c->segments, at));
        v = vaddq_s32(samebits_scaled4(v, r, c->shift2),
                      vldrwq_gather_shifted_offset_s32(k + c->segments, at));
        v = vaddq_s32(samebits_scaled4(v, r, c->shift1), vldrwq_gather_shifted_offset_s32(k, at));
        v = vshlq_r_s32(vaddq_n_s32(v, (int32_t)1 << (c->shift0 - 1)), -(int32_t)c->shift0);
        if (c->mirrored) {
            v = vpselq_s32(vsubq_s32(vdupq_n_s32(c->mirror), v), v, vcmpltq_n_s32(code, 0));
        }
        vstrhq_s32(out + i, vminq_s32(vmaxq_s32(v, vdupq_n_s32(c->low)), vdupq_n_s32(c->high)));
    }
    return n;
}
#endif

/* From an element on; short_: products with c3 and c2 fit in 32 bits too. */
SAMEBITS_INLINE void samebits_cubic_rest(const samebits_cubic *c, const samebits_i16 *x,
                                         samebits_i16 *out, int32_t i, const int32_t short_) {
    const int32_t half = (int32_t)1 << (c->shift0 - 1), mask = ((int32_t)1 << c->bits) - 1;
    const int32_t *k0 = c->coefficients, *k1 = k0 + c->segments, *k2 = k1 + c->segments;
    const int32_t *k3 = k2 + c->segments;
    const int32_t bits = c->bits, s0 = c->shift0, s1 = c->shift1, s2 = c->shift2, s3 = c->shift3;
    const int32_t low = c->low, high = c->high, mirrored = c->mirrored, mirror = c->mirror;
    for (; i < c->size; i++) {
        const int32_t code = x[i];
        int32_t u = code + 32768, r, v, at;
        if (mirrored) u = SAMEBITS_MIN(code < 0 ? -code : code, 32767);
        at = u >> bits;
        r = u & mask;
        if (short_) {
            v = samebits_floor32(k3[at] * r, s3) + k2[at];
            v = samebits_floor32(v * r, s2) + k1[at];
        } else {
            v = samebits_scaled32(k3[at], r, s3) + k2[at];
            v = samebits_scaled32(v, r, s2) + k1[at];
        }
        v = samebits_scaled32(v, r, s1) + k0[at];
        v = samebits_floor32(v + half, s0);
        if (mirrored && code < 0) v = mirror - v;
        out[i] = (int16_t)samebits_clamp32(v, low, high);
    }
}

/* Whether all sums of a cubic of int16 codes to int16 codes fit in 32 bits, and it is done. */
static int samebits_narrow_cubic(const samebits_cubic *c, const void *x, void *out) {
    int32_t i = 0;
    if (!c->narrow || c->type != SAMEBITS_INT16 || c->out_type != SAMEBITS_INT16) return 0;
#ifdef SAMEBITS_GATES_MVE
    i = samebits_cubic_fours(c, (const int16_t *)x, (int16_t *)out);
#endif
    if (c->narrow == 2) {
        samebits_cubic_rest(c, (const samebits_i16 *)x, (samebits_i16 *)out, i, 1);
    } else {
        samebits_cubic_rest(c, (const samebits_i16 *)x, (samebits_i16 *)out, i, 0);
    }
    return 1;
}
#endif
