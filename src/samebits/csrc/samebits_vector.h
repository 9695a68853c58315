/* What the inference kernels share beyond single numbers: codes of any type at any address, and
 * runs of accumulators that become codes; with AVX-512, 16 of them at a time.
 *
 * The vector forms compute what rescale.c computes one by one (the forms of samebits_kernels.h), so
 * an instruction set changes speed and no code. */
#ifndef SAMEBITS_VECTOR_H
#define SAMEBITS_VECTOR_H

#include "samebits_integer.h"
#include "samebits_kernels.h"

#if defined(__GNUC__)
/* The arena holds values of different types one after the other. */
#define SAMEBITS_MAY_ALIAS __attribute__((may_alias))
#else
#define SAMEBITS_MAY_ALIAS
#endif

typedef int16_t SAMEBITS_MAY_ALIAS samebits_i16;
typedef uint16_t SAMEBITS_MAY_ALIAS samebits_u16;
typedef int32_t SAMEBITS_MAY_ALIAS samebits_i32;
typedef int64_t SAMEBITS_MAY_ALIAS samebits_i64;

/* Where flash counts more than time: one loop for all channels and for each. */
#if defined(__ARM_ARCH_PROFILE) && __ARM_ARCH_PROFILE == 'M'
#define SAMEBITS_SMALL 1
#else
#define SAMEBITS_SMALL 0
#endif

/* Elements that a kernel holds in a local array: at least 16, more for wide vectors. */
#define SAMEBITS_CHUNK (SAMEBITS_SMALL ? 16 : 64)

/* One code of any type. */
SAMEBITS_INLINE int64_t samebits_get(const void *p, uint8_t type, int32_t i) {
    switch (type) {
    case SAMEBITS_INT8: return ((const int8_t *)p)[i];
    case SAMEBITS_UINT8: return ((const uint8_t *)p)[i];
    case SAMEBITS_INT16: return ((const samebits_i16 *)p)[i];
    case SAMEBITS_UINT16: return ((const samebits_u16 *)p)[i];
    case SAMEBITS_INT32: return ((const samebits_i32 *)p)[i];
    default: return ((const samebits_i64 *)p)[i];
    }
}

SAMEBITS_INLINE void samebits_put(void *p, uint8_t type, int32_t i, int64_t v) {
    switch (type) {
    case SAMEBITS_INT8: ((int8_t *)p)[i] = (int8_t)v; break;
    case SAMEBITS_UINT8: ((uint8_t *)p)[i] = (uint8_t)v; break;
    case SAMEBITS_INT16: ((samebits_i16 *)p)[i] = (int16_t)v; break;
    case SAMEBITS_UINT16: ((samebits_u16 *)p)[i] = (uint16_t)v; break;
    case SAMEBITS_INT32: ((samebits_i32 *)p)[i] = (int32_t)v; break;
    default: ((samebits_i64 *)p)[i] = v; break;
    }
}

/* n codes from `start`, `step` elements apart. */
void samebits_load32(const void *p, uint8_t type, int32_t start, int32_t step, int32_t n,
                     int32_t *to);
void samebits_load64(const void *p, uint8_t type, int32_t start, int32_t step, int32_t n,
                     int64_t *to);

/* n accumulators of consecutive channels from `channel` become codes at out[start ..]; they are
 * overwritten. n <= SAMEBITS_CHUNK. */
void samebits_finish32(const samebits_rescale *r, int32_t channel, int32_t n, int32_t *acc,
                       void *out, int32_t start);
void samebits_finish64(const samebits_rescale *r, int32_t channel, int32_t n, int64_t *acc,
                       void *out, int32_t start);

/* How many elements from flat index i on can be finished in one call, and their first channel. */
SAMEBITS_INLINE int32_t samebits_chunk(const samebits_rescale *r, int32_t i, int32_t left,
                                       int32_t *channel) {
    int32_t n = SAMEBITS_MIN(left, SAMEBITS_CHUNK);
    *channel = 0;
    if (r->channels > 1) {
        *channel = i % r->channels;
        n = SAMEBITS_MIN(n, r->channels - *channel);
    }
    return n;
}

/* --- other vectors of 8-bit codes ------------------------------------------------------------ */

#if defined(__AVX2__) && !(defined(__AVX512VNNI__) && defined(__AVX512BW__) &&                     \
                           defined(__AVX512DQ__) && defined(__AVX512VL__))
#define SAMEBITS_AVX2
#include <immintrin.h>
#elif defined(__aarch64__) && defined(__ARM_NEON) && defined(__AARCH64EL__)
#define SAMEBITS_NEON
#include <arm_neon.h>
#endif

#if defined(SAMEBITS_AVX2) && defined(SAMEBITS_NEON)
#error "samebits_scale16 has two vectors of AVX2 or four of NEON: define neither, the compiler does"
#endif

/* --- AVX-512 ----------------------------------------------------------------------------- */

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
#define SAMEBITS_AVX512
#if defined(__AVX512VNNI__)
#define SAMEBITS_VNNI /* sums of products of 8 and of 16 bits */
#endif
#include <immintrin.h>

/* The first n of 16 lanes. */
SAMEBITS_INLINE __mmask16 samebits_first(int32_t n) {
    return n >= 16 ? (__mmask16)0xffff : (__mmask16)((1u << n) - 1u);
}

/* Codes that are the upper words of 64-bit products, one channel: of a SAMEBITS_PRODUCT with a
 * shift of at least 32, or less where the multiplier can take the rest; of SAMEBITS_TIES where 32
 * bits settle a tie, modulo 2**32, as twice the error is at most q. */
SAMEBITS_INLINE int samebits_upper(const samebits_rescale *r) {
    if (r->channels == 1 && r->form == SAMEBITS_PRODUCT) {
        const int32_t m = ((const int32_t *)r->multipliers)[0];
        return r->shifts[0] >= 32 || m >> (r->shifts[0] - 1) == 0;
    }
    if (r->channels == 1 && r->form == SAMEBITS_TIES) {
        const int64_t *m = (const int64_t *)r->multipliers;
        return r->shifts[0] >= 32 && m[1] <= m[2] && m[2] < (int64_t)1 << 30;
    }
    return 0;
}

typedef struct {
    __m512i factor, below, p, q, zero, low, high;
    __m128i shift, rest;
    int32_t ties;
} samebits_constants;

SAMEBITS_INLINE samebits_constants samebits_constants_of(const samebits_rescale *r) {
    const int32_t ties = r->form == SAMEBITS_TIES, s = r->shifts[0], missing = s < 32 ? 32 - s : 0;
    const int64_t *m = (const int64_t *)r->multipliers;
    const int64_t factor = ties ? m[0] : ((const int32_t *)r->multipliers)[0];
    samebits_constants k;
    k.factor = _mm512_set1_epi64(factor << missing);
    k.below = _mm512_set1_epi64((long long)(((int64_t)1 << (s + missing - 1)) - 1));
    k.p = _mm512_set1_epi32(ties ? (int32_t)m[1] : 0);
    k.q = _mm512_set1_epi32(ties ? (int32_t)m[2] : 0);
    k.shift = _mm_cvtsi32_si128(s + missing);
    k.rest = _mm_cvtsi32_si128(s + missing - 32);
    k.zero = _mm512_set1_epi32(r->zero);
    k.low = _mm512_set1_epi32(r->low);
    k.high = _mm512_set1_epi32(r->high);
    k.ties = ties;
    return k;
}

SAMEBITS_INLINE __m512i samebits_upper16(const samebits_constants *k, __m512i acc) {
    const __m512i one = _mm512_set1_epi64(1);
    __m512i even = _mm512_mul_epi32(acc, k->factor), v;
    __m512i odd = _mm512_mul_epi32(_mm512_srli_epi64(acc, 32), k->factor);
    even = _mm512_add_epi64(_mm512_add_epi64(even, k->below),
                            _mm512_and_si512(_mm512_srl_epi64(even, k->shift), one));
    odd = _mm512_add_epi64(_mm512_add_epi64(odd, k->below),
                           _mm512_and_si512(_mm512_srl_epi64(odd, k->shift), one));
    v = _mm512_mask_mov_epi32(_mm512_srli_epi64(even, 32), 0xaaaa, odd);
    v = _mm512_sra_epi32(v, k->rest);
    if (k->ties) {
        __m512i error = _mm512_mullo_epi32(acc, k->p);
        __mmask16 tie;
        error = _mm512_sub_epi32(error, _mm512_mullo_epi32(v, k->q));
        tie = _mm512_cmpeq_epi32_mask(_mm512_abs_epi32(_mm512_add_epi32(error, error)), k->q);
        tie = _mm512_mask_test_epi32_mask(tie, v, _mm512_set1_epi32(1));
        error = _mm512_or_si512(_mm512_srai_epi32(error, 31), _mm512_set1_epi32(1)); /* 1 or -1 */
        v = _mm512_mask_add_epi32(v, tie, v, error);
    }
    v = _mm512_add_epi32(v, k->zero);
    return _mm512_min_epi32(_mm512_max_epi32(v, k->low), k->high);
}

/* SAMEBITS_DOUBLED of 16 accumulators: the upper words of twice the sums' products, half up, less 1
 * where they are negative and will be shifted, half up again. */
SAMEBITS_INLINE __m512i samebits_twice16(__m512i acc, __m512i f, __m512i s) {
    const __m512i one = _mm512_set1_epi32(1), half = _mm512_set1_epi64((int64_t)1 << 31);
    const __m512i x = _mm512_add_epi32(acc, acc);
    const __m512i even = _mm512_add_epi64(_mm512_mul_epi32(x, f), half);
    const __m512i odd = _mm512_mul_epi32(_mm512_srli_epi64(x, 32), _mm512_srli_epi64(f, 32));
    __m512i v = _mm512_mask_mov_epi32(_mm512_srli_epi64(even, 32), 0xaaaa,
                                      _mm512_add_epi64(odd, half));
    const __mmask16 below =
        _mm512_mask_cmplt_epi32_mask(_mm512_test_epi32_mask(s, s), v, _mm512_setzero_si512());
    v = _mm512_add_epi32(v, _mm512_srli_epi32(_mm512_sllv_epi32(one, s), 1));
    return _mm512_srav_epi32(_mm512_mask_sub_epi32(v, below, v, one), s);
}

/* SAMEBITS_SHIFT, _NARROW, _PRODUCT and _DOUBLED of 16 accumulators. */
SAMEBITS_INLINE __m512i samebits_scaled16(const samebits_rescale *r, __m512i acc, __mmask16 mask,
                                          int32_t channel) {
    const int32_t *m = (const int32_t *)r->multipliers;
    const __m512i zero = _mm512_set1_epi32(r->zero), one = _mm512_set1_epi32(1);
    const int32_t step = r->channels > 1;
    __m512i s, f;
    if (step) {
        s = _mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(mask, r->shifts + channel));
    } else {
        s = _mm512_set1_epi32(r->shifts[0]);
    }
    if (r->form != SAMEBITS_SHIFT) {
        f = step ? _mm512_maskz_loadu_epi32(mask, m + channel) : _mm512_set1_epi32(m[0]);
    } else {
        f = one;
    }
    if (r->form == SAMEBITS_DOUBLED) {
        const __m512i v = _mm512_add_epi32(samebits_twice16(acc, f, s), zero);
        return _mm512_min_epi32(_mm512_max_epi32(v, _mm512_set1_epi32(r->low)),
                                _mm512_set1_epi32(r->high));
    } else if (r->form != SAMEBITS_PRODUCT) {
        __m512i below = _mm512_sub_epi32(_mm512_sllv_epi32(one, _mm512_sub_epi32(s, one)), one);
        __m512i v = r->form == SAMEBITS_SHIFT ? acc : _mm512_mullo_epi32(acc, f);
        __m512i odd = _mm512_and_si512(_mm512_srav_epi32(v, s), one);
        v = _mm512_srav_epi32(_mm512_add_epi32(_mm512_add_epi32(v, below), odd), s);
        v = _mm512_max_epi32(_mm512_add_epi32(v, zero), _mm512_set1_epi32(r->low));
        return _mm512_min_epi32(v, _mm512_set1_epi32(r->high));
    } else { /* 64-bit products of the even and of the odd lanes */
        const __m512i unit = _mm512_set1_epi64(1), wide = _mm512_set1_epi64(r->zero);
        const __m512i low = _mm512_set1_epi64(r->low), high = _mm512_set1_epi64(r->high);
        const __m512i mask32 = _mm512_set1_epi64(0xffffffff);
        __m512i even = _mm512_mul_epi32(acc, f);
        __m512i odd = _mm512_mul_epi32(_mm512_srli_epi64(acc, 32), _mm512_srli_epi64(f, 32));
        __m512i se = _mm512_and_si512(s, mask32), so = _mm512_srli_epi64(s, 32);
        __m512i be = _mm512_sub_epi64(_mm512_sllv_epi64(unit, _mm512_sub_epi64(se, unit)), unit);
        __m512i bo = _mm512_sub_epi64(_mm512_sllv_epi64(unit, _mm512_sub_epi64(so, unit)), unit);
        __m512i oe = _mm512_and_si512(_mm512_srav_epi64(even, se), unit);
        __m512i oo = _mm512_and_si512(_mm512_srav_epi64(odd, so), unit);
        even = _mm512_srav_epi64(_mm512_add_epi64(_mm512_add_epi64(even, be), oe), se);
        odd = _mm512_srav_epi64(_mm512_add_epi64(_mm512_add_epi64(odd, bo), oo), so);
        even = _mm512_min_epi64(_mm512_max_epi64(_mm512_add_epi64(even, wide), low), high);
        odd = _mm512_min_epi64(_mm512_max_epi64(_mm512_add_epi64(odd, wide), low), high);
        return _mm512_mask_mov_epi32(even, 0xaaaa, _mm512_slli_epi64(odd, 32));
    }
}

/* SAMEBITS_TIES of 8 accumulators in 64 bits, one channel. */
SAMEBITS_INLINE __m512i samebits_ties8(const samebits_rescale *r, __m512i acc) {
    const int64_t *m = (const int64_t *)r->multipliers;
    const __m512i one = _mm512_set1_epi64(1), q = _mm512_set1_epi64(m[2]);
    const __m512i below = _mm512_set1_epi64((long long)(((int64_t)1 << (r->shifts[0] - 1)) - 1));
    const __m128i shift = _mm_cvtsi32_si128(r->shifts[0]);
    __m512i v = _mm512_mul_epi32(acc, _mm512_set1_epi64(m[0])), error;
    v = _mm512_add_epi64(_mm512_add_epi64(v, below),
                         _mm512_and_si512(_mm512_sra_epi64(v, shift), one));
    v = _mm512_sra_epi64(v, shift);
    error = _mm512_sub_epi64(_mm512_mullo_epi64(acc, _mm512_set1_epi64(m[1])),
                             _mm512_mullo_epi64(v, q));
    error = _mm512_add_epi64(error, error);
    {
        const __mmask8 odd = _mm512_test_epi64_mask(v, one);
        const __mmask8 above = _mm512_mask_cmpeq_epi64_mask(odd, error, q);
        const __mmask8 under =
            _mm512_mask_cmpeq_epi64_mask(odd, error, _mm512_sub_epi64(_mm512_setzero_si512(), q));
        v = _mm512_mask_add_epi64(v, above, v, one);
        v = _mm512_mask_sub_epi64(v, under, v, one);
    }
    v = _mm512_add_epi64(v, _mm512_set1_epi64(r->zero));
    v = _mm512_max_epi64(v, _mm512_set1_epi64(r->low));
    return _mm512_min_epi64(v, _mm512_set1_epi64(r->high));
}

/* The requantizations that are here. */
SAMEBITS_INLINE int samebits_has_vector(const samebits_rescale *r) {
    if (r->form == SAMEBITS_TIES) return r->channels == 1;
    return (r->form <= SAMEBITS_PRODUCT || r->form == SAMEBITS_DOUBLED) &&
           r->type != SAMEBITS_INT64;
}

/* Codes of 16 accumulators. */
SAMEBITS_INLINE __m512i samebits_sixteen(const samebits_rescale *r, __m512i acc, __mmask16 mask,
                                         int32_t channel) {
    __m512i low, high;
    if (r->form == SAMEBITS_STORE) return acc;
    if (r->form != SAMEBITS_TIES) return samebits_scaled16(r, acc, mask, channel);
    low = samebits_ties8(r, _mm512_cvtepi32_epi64(_mm512_castsi512_si256(acc)));
    high = samebits_ties8(r, _mm512_cvtepi32_epi64(_mm512_extracti64x4_epi64(acc, 1)));
    return _mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtepi64_epi32(low)),
                              _mm512_cvtepi64_epi32(high), 1);
}

/* SAMEBITS_WIDE of 8 accumulators, one channel. */
SAMEBITS_INLINE __m512i samebits_wide8(const samebits_rescale *r, __m512i acc) {
    const __m512i one = _mm512_set1_epi64(1);
    const __m512i below = _mm512_set1_epi64((long long)(((int64_t)1 << (r->shifts[0] - 1)) - 1));
    const __m128i shift = _mm_cvtsi32_si128(r->shifts[0]);
    __m512i v = _mm512_mullo_epi64(acc, _mm512_set1_epi64(((const int64_t *)r->multipliers)[0]));
    v = _mm512_add_epi64(_mm512_add_epi64(v, below),
                         _mm512_and_si512(_mm512_sra_epi64(v, shift), one));
    v = _mm512_add_epi64(_mm512_sra_epi64(v, shift), _mm512_set1_epi64(r->zero));
    v = _mm512_max_epi64(v, _mm512_set1_epi64(r->low));
    return _mm512_min_epi64(v, _mm512_set1_epi64(r->high));
}

/* 16 codes of any type but SAMEBITS_INT64. Masks only where lanes are missing: what they store is
 * not at hand for the loads that follow. */
SAMEBITS_INLINE __m512i samebits_load16(uint8_t type, const void *p, int32_t at, __mmask16 mask) {
    const uint8_t *codes = (const uint8_t *)p + at;
    const samebits_u16 *shorts = (const samebits_u16 *)p + at;
    const samebits_i32 *words = (const samebits_i32 *)p + at;
    const int all = mask == 0xffff;
    switch (type) {
    case SAMEBITS_INT8:
        return _mm512_cvtepi8_epi32(all ? _mm_loadu_si128((const __m128i *)(const void *)codes)
                                        : _mm_maskz_loadu_epi8(mask, codes));
    case SAMEBITS_UINT8:
        return _mm512_cvtepu8_epi32(all ? _mm_loadu_si128((const __m128i *)(const void *)codes)
                                        : _mm_maskz_loadu_epi8(mask, codes));
    case SAMEBITS_INT16:
        return _mm512_cvtepi16_epi32(all ? _mm256_loadu_si256((const __m256i *)(const void *)shorts)
                                         : _mm256_maskz_loadu_epi16(mask, shorts));
    case SAMEBITS_UINT16:
        return _mm512_cvtepu16_epi32(all ? _mm256_loadu_si256((const __m256i *)(const void *)shorts)
                                         : _mm256_maskz_loadu_epi16(mask, shorts));
    default: return all ? _mm512_loadu_si512(words) : _mm512_maskz_loadu_epi32(mask, words);
    }
}

SAMEBITS_INLINE void samebits_store16(uint8_t type, void *p, int32_t at, __mmask16 mask,
                                      __m512i v) {
    uint8_t *codes = (uint8_t *)p + at;
    samebits_u16 *shorts = (samebits_u16 *)p + at;
    samebits_i32 *words = (samebits_i32 *)p + at;
    const int all = mask == 0xffff;
    switch (type) {
    case SAMEBITS_INT8:
    case SAMEBITS_UINT8:
        if (all) {
            _mm_storeu_si128((__m128i *)(void *)codes, _mm512_cvtepi32_epi8(v));
        } else {
            _mm512_mask_cvtepi32_storeu_epi8(codes, mask, v);
        }
        break;
    case SAMEBITS_INT16:
    case SAMEBITS_UINT16:
        if (all) {
            _mm256_storeu_si256((__m256i *)(void *)shorts, _mm512_cvtepi32_epi16(v));
        } else {
            _mm512_mask_cvtepi32_storeu_epi16(shorts, mask, v);
        }
        break;
    default:
        if (all) {
            _mm512_storeu_si512(words, v);
        } else {
            _mm512_mask_storeu_epi32(words, mask, v);
        }
        break;
    }
}

#endif
#endif
