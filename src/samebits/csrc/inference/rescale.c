/* --- loads, requantization, stores -------------------------------------------------------------
 *
 * An accumulator becomes a code by one of the forms of samebits_kernels.h. Which form is exact for
 * which ratio and range of sums is proved when a graph is lowered (codegen/lowering/rescale.py,
 * docs/spec/graph.md section 6), so nothing here tests for overflow. */

#include "samebits_vector.h"

#if defined(__ARM_FEATURE_MVE) && defined(__GNUC__)
#include <arm_mve.h>
#endif

#define SAMEBITS_LOAD(T, WIDE)                                                                     \
    {                                                                                              \
        const T *from = (const T *)p + start;                                                      \
        if (step == 1) {                                                                           \
            for (i = 0; i < n; i++) to[i] = (WIDE)from[i];                                         \
        } else {                                                                                   \
            for (i = 0; i < n; i++) to[i] = (WIDE)from[i * step];                                  \
        }                                                                                          \
    }                                                                                              \
    break;

void samebits_load32(const void *p, uint8_t type, int32_t start, int32_t step, int32_t n,
                     int32_t *to) {
    int32_t i;
    switch (type) {
    case SAMEBITS_INT8: SAMEBITS_LOAD(int8_t, int32_t)
    case SAMEBITS_UINT8: SAMEBITS_LOAD(uint8_t, int32_t)
    case SAMEBITS_INT16: SAMEBITS_LOAD(samebits_i16, int32_t)
    case SAMEBITS_UINT16: SAMEBITS_LOAD(samebits_u16, int32_t)
    case SAMEBITS_INT32: SAMEBITS_LOAD(samebits_i32, int32_t)
    default: SAMEBITS_LOAD(samebits_i64, int32_t)
    }
}

void samebits_load64(const void *p, uint8_t type, int32_t start, int32_t step, int32_t n,
                     int64_t *to) {
    int32_t i;
    switch (type) {
    case SAMEBITS_INT8: SAMEBITS_LOAD(int8_t, int64_t)
    case SAMEBITS_UINT8: SAMEBITS_LOAD(uint8_t, int64_t)
    case SAMEBITS_INT16: SAMEBITS_LOAD(samebits_i16, int64_t)
    case SAMEBITS_UINT16: SAMEBITS_LOAD(samebits_u16, int64_t)
    case SAMEBITS_INT32: SAMEBITS_LOAD(samebits_i32, int64_t)
    default: SAMEBITS_LOAD(samebits_i64, int64_t)
    }
}

#define SAMEBITS_STORE_AS(T, C)                                                                    \
    {                                                                                              \
        T *to = (T *)out + start;                                                                  \
        for (i = 0; i < n; i++) to[i] = (C)y[i];                                                   \
    }                                                                                              \
    break;

#define SAMEBITS_STORE_ALL                                                                         \
    switch (type) {                                                                                \
    case SAMEBITS_INT8: SAMEBITS_STORE_AS(int8_t, int8_t)                                          \
    case SAMEBITS_UINT8: SAMEBITS_STORE_AS(uint8_t, uint8_t)                                       \
    case SAMEBITS_INT16: SAMEBITS_STORE_AS(samebits_i16, int16_t)                                  \
    case SAMEBITS_UINT16: SAMEBITS_STORE_AS(samebits_u16, uint16_t)                                \
    case SAMEBITS_INT32: SAMEBITS_STORE_AS(samebits_i32, int32_t)                                  \
    default: SAMEBITS_STORE_AS(samebits_i64, int64_t)                                              \
    }

static void samebits_store32(uint8_t type, int32_t n, const int32_t *y, void *out, int32_t start) {
    int32_t i = 0;
#if defined(__ARM_FEATURE_MVE) && defined(__GNUC__)
    if (type <= SAMEBITS_UINT8) {
        int8_t *to = (int8_t *)out + start;
        for (; i + 4 <= n; i += 4) vstrbq_s32(to + i, vldrwq_s32(y + i));
        for (; i < n; i++) ((uint8_t *)out)[start + i] = (uint8_t)y[i];
        return;
    }
#endif
    SAMEBITS_STORE_ALL
}

static void samebits_store64(uint8_t type, int32_t n, const int64_t *y, void *out, int32_t start) {
    int32_t i;
    SAMEBITS_STORE_ALL
}

/* acc * m / 2**s rounded half to even, + zero, clamped; |acc * m| < 2**62. */
SAMEBITS_INLINE int32_t samebits_product(int32_t acc, int32_t m, int32_t s, int32_t zero,
                                         int32_t low, int32_t high) {
    const int64_t v = (int64_t)acc * m;
#if UINTPTR_MAX <= 0xffffffff
    if (s > 32) { /* the upper word decides but for ties: 64-bit shifts take many instructions */
        const int32_t upper = (int32_t)samebits_floor64(v, 32);
        const int32_t half = (int32_t)((uint32_t)1 << (s - 33));
        const int32_t rest = upper & (half + half - 1);
        int32_t q = samebits_floor32(upper, s - 32);
        q += rest > half || (rest == half && ((uint32_t)v != 0 || (q & 1)));
        return samebits_clamp32(q + zero, low, high);
    }
#endif
    return (int32_t)samebits_clamp64(samebits_round64(v, s) + zero, low, high);
}

/* acc * m / 2**31 rounded half up, that / 2**s half away from 0, in one step (codegen/lowering/
 * doubled.py): the first rounding moves the half of the second by 2**30, to where the sign is. */
SAMEBITS_INLINE int32_t samebits_doubled(int32_t acc, int32_t m, int32_t s) {
    const int64_t half = (int64_t)1 << 30, v = (int64_t)acc * m;
    const int64_t moved = v + (s > 0 && acc < 0 ? -half : half);
#if UINTPTR_MAX <= 0xffffffff
    if (s > 1) { /* 64-bit shifts take many instructions */
        const int32_t upper = (int32_t)samebits_floor64(moved, 32);
        return samebits_floor32(upper + (int32_t)((uint32_t)1 << (s - 2)), s - 1);
    }
#endif
    return (int32_t)samebits_floor64(moved + (s > 0 ? half << s : 0), s + 31);
}

/* acc * m / 2**s rounded, and where acc * p / q is a tie, to the even code. m: m, p, q. */
SAMEBITS_INLINE int32_t samebits_tied(int32_t acc, const int64_t *m, int32_t s, int32_t zero,
                                      int32_t low, int32_t high) {
    int64_t v = samebits_round64((int64_t)acc * (int32_t)m[0], s);
    if (v & 1) {
        const int64_t error = 2 * (m[1] * acc - m[2] * v);
        v += error == m[2] ? 1 : (error == -m[2] ? -1 : 0);
    }
    return (int32_t)samebits_clamp64(v + zero, low, high);
}

/* The upper word of acc * (m[1] * 2**32 + m[0]) / 2**s, rounded half up. */
SAMEBITS_INLINE int32_t samebits_by_words(int32_t acc, const int32_t *m, int32_t s, int32_t zero,
                                          int32_t low, int32_t high) {
    const int64_t lower = samebits_floor64((int64_t)acc * m[0], 32);
    const int32_t upper = (int32_t)samebits_floor64((int64_t)acc * m[1] + lower, 32);
    const int32_t code = samebits_floor32(upper + (int32_t)((uint32_t)1 << (s - 1)), s) + zero;
    return samebits_clamp32(code, low, high);
}

#if defined(__ARM_FEATURE_MVE) && defined(__GNUC__)
/* The upper words, rounded and moved to the zero point; not yet saturated. */
SAMEBITS_INLINE int32x4_t samebits_mve_words(int32x4_t acc, int32x4_t m0, int32x4_t m1,
                                             int32_t shift, int32_t zero) {
    const int32x4_t low = vmulhq_s32(acc, m0), product = vmulq_s32(acc, m1);
    const uint32x4_t half =
        vhaddq_u32(vreinterpretq_u32_s32(product), vreinterpretq_u32_s32(low));
    int32x4_t upper = vaddq_s32(vmulhq_s32(acc, m1), vshrq_n_s32(low, 31));
    upper = vaddq_s32(upper, vreinterpretq_s32_u32(vshrq_n_u32(half, 31)));
    return vaddq_n_s32(vrshlq_n_s32(upper, shift), zero);
}
#elif defined(__ARM_FEATURE_DSP) && defined(__GNUC__) && defined(__ARM_ARCH_PROFILE)
#define SAMEBITS_DSP_WORDS
typedef struct {
    int32_t rounding, shift;
} samebits_words;

SAMEBITS_INLINE samebits_words samebits_words_of(const samebits_rescale *r) {
    const int32_t s = r->shifts[0];
    samebits_words w;
    w.rounding = (int32_t)(((uint32_t)r->zero << s) + ((uint32_t)1 << (s - 1)));
    w.shift = s;
    return w;
}

SAMEBITS_INLINE int32_t samebits_dsp_upper(const samebits_words *w, int32_t acc, int32_t m0,
                                           int32_t m1) {
    int32_t low, upper;
    __asm__("smmul %[low], %[acc], %[m0]\n\t"
            "add %[upper], %[rounding], %[low], asr #31\n\t"
            "smlal %[low], %[upper], %[acc], %[m1]\n\t"
            "asr %[upper], %[upper], %[shift]"
            : [low] "=&r"(low), [upper] "=&r"(upper)
            : [acc] "r"(acc), [m0] "r"(m0), [m1] "r"(m1), [rounding] "r"(w->rounding),
              [shift] "r"(w->shift));
    return upper;
}

SAMEBITS_INLINE int16_t samebits_dsp_words(const samebits_words *w, int32_t acc, int32_t m0,
                                           int32_t m1) {
    int32_t code;
    __asm__("ssat %0, #16, %1" : "=r"(code) : "r"(samebits_dsp_upper(w, acc, m0, m1)));
    return (int16_t)code;
}
#endif

/* SAMEBITS_WORDS of n sums. */
static void samebits_words_all(const samebits_rescale *r, int32_t channel, int32_t n,
                               int32_t *acc) {
    const int32_t step = r->channels > 1, low = r->low, high = r->high, s = r->shifts[0];
    const int32_t *m = (const int32_t *)r->multipliers + 2 * channel * step;
    int32_t i = 0;
#if defined(__ARM_FEATURE_MVE) && defined(__GNUC__)
    const int32x4_t least = vdupq_n_s32(low), most = vdupq_n_s32(high);
    int32x4x2_t words;
    words.val[0] = vdupq_n_s32(m[0]);
    words.val[1] = vdupq_n_s32(m[1]);
    for (; i + 4 <= n; i += 4) {
        int32x4_t code;
        if (step) words = vld2q_s32(m + 2 * i);
        code = samebits_mve_words(vldrwq_s32(acc + i), words.val[0], words.val[1], -s, r->zero);
        vstrwq_s32(acc + i, vminq_s32(vmaxq_s32(code, least), most));
    }
#elif defined(SAMEBITS_DSP_WORDS)
    const samebits_words w = samebits_words_of(r);
    for (; i < n; i++) {
        const int32_t *own = m + 2 * i * step;
        acc[i] = samebits_clamp32(samebits_dsp_upper(&w, acc[i], own[0], own[1]), low, high);
    }
#endif
    for (; i < n; i++) {
        acc[i] = samebits_by_words(acc[i], m + 2 * i * step, s, r->zero, low, high);
    }
}

/* SAMEBITS_NARROW by vectors, one multiplier for all: how many sums are codes. */
static int32_t samebits_narrow_vectors(const samebits_rescale *r, int32_t n, int32_t *acc) {
    int32_t i = 0;
#if defined(__ARM_FEATURE_MVE) && defined(__GNUC__)
    const int32_t m = ((const int32_t *)r->multipliers)[0], s = r->shifts[0], zero = r->zero;
    const int32_t below = (int32_t)(((uint32_t)1 << (s - 1)) - 1u);
    const int32x4_t low = vdupq_n_s32(r->low), high = vdupq_n_s32(r->high), one = vdupq_n_s32(1);
    for (; r->channels == 1 && i + 4 <= n; i += 4) {
        const int32x4_t v = vmulq_n_s32(vldrwq_s32(acc + i), m);
        const int32x4_t odd = vandq_s32(vshlq_r_s32(v, -s), one);
        int32x4_t code = vshlq_r_s32(vaddq_s32(vaddq_n_s32(v, below), odd), -s);
        code = vaddq_n_s32(code, zero);
        vstrwq_s32(acc + i, vminq_s32(vmaxq_s32(code, low), high));
    }
#else
    (void)r;
    (void)n;
    (void)acc;
#endif
    return i;
}

/* SAMEBITS_DOUBLED whose shifts are 1 at least: then the second rounding needs no test. */
SAMEBITS_INLINE int samebits_shifted(const samebits_rescale *r) {
    int32_t i, all = r->form == SAMEBITS_DOUBLED;
    for (i = 0; all && i < r->channels; i++) all = r->shifts[i] > 0;
    return all;
}

/* SAMEBITS_DOUBLED of n sums. VRSHL rounds half up; a negative number less 1 so half away. */
static void samebits_doubled_all(const samebits_rescale *r, int32_t channel, int32_t n,
                                 int32_t *acc) {
    const int32_t step = r->channels > 1, low = r->low, high = r->high, zero = r->zero;
    const int32_t *m = (const int32_t *)r->multipliers + channel * step;
    const uint8_t *s = r->shifts + channel * step;
    int32_t i = 0;
#if defined(__ARM_FEATURE_MVE) && defined(__GNUC__)
    const int32x4_t least = vdupq_n_s32(low), most = vdupq_n_s32(high);
    int32x4_t factor = vdupq_n_s32(m[0]), left = vdupq_n_s32(-s[0]);
    for (; i + 4 <= n; i += 4) {
        int32x4_t v = vldrwq_s32(acc + i);
        if (step) {
            factor = vldrwq_s32(m + i);
            left = vnegq_s32(vreinterpretq_s32_u32(vldrbq_u32(s + i)));
        }
        v = vqrdmulhq_s32(v, factor);
        v = vaddq_s32(v, vmaxq_s32(vshrq_n_s32(v, 31), left)); /* not where the shift is 0 */
        v = vaddq_n_s32(vrshlq_s32(v, left), zero);
        vstrwq_s32(acc + i, vminq_s32(vmaxq_s32(v, least), most));
    }
#endif
    for (; i < n; i++) {
        acc[i] = samebits_clamp32(samebits_doubled(acc[i], m[i * step], s[i * step]) + zero, low,
                                  high);
    }
}

static void samebits_narrow(const samebits_rescale *r, int32_t channel, int32_t n, int32_t *acc) {
    const int32_t *m = (const int32_t *)r->multipliers;
    const uint8_t *s = r->shifts;
    const int32_t low = r->low, high = r->high, zero = r->zero;
    const int32_t step = r->channels > 1;
    int32_t i;
    switch (r->form) {
    case SAMEBITS_SHIFT:
        if (step || SAMEBITS_SMALL) {
            for (i = 0; i < n; i++) {
                const int32_t q = samebits_round32(acc[i], s[(channel + i) * step]);
                acc[i] = samebits_clamp32(q + zero, low, high);
            }
        } else {
            const int32_t shift = s[0];
            for (i = 0; i < n; i++) {
                acc[i] = samebits_clamp32(samebits_round32(acc[i], shift) + zero, low, high);
            }
        }
        break;
    case SAMEBITS_NARROW:
        if (step || SAMEBITS_SMALL) {
            for (i = samebits_narrow_vectors(r, n, acc); i < n; i++) {
                const int32_t c = (channel + i) * step;
                const int32_t q = samebits_round32(acc[i] * m[c], s[c]);
                acc[i] = samebits_clamp32(q + zero, low, high);
            }
        } else {
            const int32_t factor = m[0], shift = s[0];
            for (i = 0; i < n; i++) {
                int32_t q = samebits_round32(acc[i] * factor, shift);
                acc[i] = samebits_clamp32(q + zero, low, high);
            }
        }
        break;
    case SAMEBITS_PRODUCT:
        if (step || SAMEBITS_SMALL) {
            for (i = 0; i < n; i++) {
                const int32_t c = (channel + i) * step;
                acc[i] = samebits_product(acc[i], m[c], s[c], zero, low, high);
            }
        } else {
            const int32_t factor = m[0], shift = s[0];
            for (i = 0; i < n; i++) {
                acc[i] = samebits_product(acc[i], factor, shift, zero, low, high);
            }
        }
        break;
    case SAMEBITS_TIES:
        for (i = 0; i < n; i++) {
            const int32_t c = (channel + i) * step;
            acc[i] = samebits_tied(acc[i], (const int64_t *)r->multipliers + 3 * c, s[c], zero, low,
                                   high);
        }
        break;
    case SAMEBITS_WORDS:
        samebits_words_all(r, channel, n, acc);
        break;
    case SAMEBITS_DOUBLED:
        samebits_doubled_all(r, channel, n, acc);
        break;
    default: /* SAMEBITS_THRESHOLDS32 */
        for (i = 0; i < n; i++) SAMEBITS_SEARCH(int32_t)
        break;
    }
}

#ifdef SAMEBITS_AVX512
static int samebits_vector(const samebits_rescale *r, int32_t channel, int32_t n,
                           const int32_t *acc, void *out, int32_t start) {
    int32_t i;
    if (!samebits_has_vector(r)) return 0;
    for (i = 0; i < n; i += 16) {
        const __mmask16 mask = samebits_first(n - i);
        const __m512i v = _mm512_maskz_loadu_epi32(mask, acc + i);
        samebits_store16(r->type, out, start + i, mask, samebits_sixteen(r, v, mask, channel + i));
    }
    return 1;
}
#endif

void samebits_finish32(const samebits_rescale *r, int32_t channel, int32_t n, int32_t *acc,
                       void *out, int32_t start) {
#ifdef SAMEBITS_AVX512
    if (samebits_vector(r, channel, n, acc, out, start)) return;
#endif
    if (r->form >= SAMEBITS_WIDE) {
        int64_t wide[SAMEBITS_CHUNK];
        int32_t i;
        for (i = 0; i < n; i++) wide[i] = acc[i];
        samebits_finish64(r, channel, n, wide, out, start);
        return;
    }
    if (r->form != SAMEBITS_STORE) samebits_narrow(r, channel, n, acc);
    samebits_store32(r->type, n, acc, out, start);
}

void samebits_finish64(const samebits_rescale *r, int32_t channel, int32_t n, int64_t *acc,
                       void *out, int32_t start) {
    if (r->form >= SAMEBITS_WIDE) {
        samebits_wide(r, channel, n, acc);
    } else if (r->form != SAMEBITS_STORE) { /* proved to fit in 32 bits */
        int32_t narrow[SAMEBITS_CHUNK], i;
        for (i = 0; i < n; i++) narrow[i] = (int32_t)acc[i];
        samebits_narrow(r, channel, n, narrow);
        samebits_store32(r->type, n, narrow, out, start);
        return;
    }
    samebits_store64(r->type, n, acc, out, start);
}
