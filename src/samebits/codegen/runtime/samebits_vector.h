/* AVX-512: 16 accumulators at a time. */
#ifndef SAMEBITS_VECTOR_H
#define SAMEBITS_VECTOR_H

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
#define SAMEBITS_AVX512
#include <immintrin.h>

/* The first n of 16 lanes. */
SAMEBITS_INLINE __mmask16 samebits_first(int32_t n) {
    return n >= 16 ? (__mmask16)0xffff : (__mmask16)((1u << n) - 1u);
}

/* SAMEBITS_SHIFT, _NARROW and _PRODUCT of 16 accumulators. */
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
    if (r->form != SAMEBITS_PRODUCT) {
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
    const __m512i below = _mm512_set1_epi64(((int64_t)1 << (r->shifts[0] - 1)) - 1);
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
    return r->form == SAMEBITS_TIES ? r->channels == 1
                                    : r->form >= SAMEBITS_SHIFT && r->form <= SAMEBITS_PRODUCT;
}

/* Codes of 16 accumulators. */
SAMEBITS_INLINE __m512i samebits_sixteen(const samebits_rescale *r, __m512i acc, __mmask16 mask,
                                         int32_t channel) {
    __m512i low, high;
    if (r->form != SAMEBITS_TIES) return samebits_scaled16(r, acc, mask, channel);
    low = samebits_ties8(r, _mm512_cvtepi32_epi64(_mm512_castsi512_si256(acc)));
    high = samebits_ties8(r, _mm512_cvtepi32_epi64(_mm512_extracti64x4_epi64(acc, 1)));
    return _mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtepi64_epi32(low)),
                              _mm512_cvtepi64_epi32(high), 1);
}

/* SAMEBITS_WIDE of 8 accumulators, one channel. */
SAMEBITS_INLINE __m512i samebits_wide8(const samebits_rescale *r, __m512i acc) {
    const __m512i one = _mm512_set1_epi64(1);
    const __m512i below = _mm512_set1_epi64(((int64_t)1 << (r->shifts[0] - 1)) - 1);
    const __m128i shift = _mm_cvtsi32_si128(r->shifts[0]);
    __m512i v = _mm512_mullo_epi64(acc, _mm512_set1_epi64(((const int64_t *)r->multipliers)[0]));
    v = _mm512_add_epi64(_mm512_add_epi64(v, below),
                         _mm512_and_si512(_mm512_sra_epi64(v, shift), one));
    v = _mm512_add_epi64(_mm512_sra_epi64(v, shift), _mm512_set1_epi64(r->zero));
    v = _mm512_max_epi64(v, _mm512_set1_epi64(r->low));
    return _mm512_min_epi64(v, _mm512_set1_epi64(r->high));
}

/* 16 codes of any type but SAMEBITS_INT64. */
SAMEBITS_INLINE __m512i samebits_load16(uint8_t type, const void *p, int32_t at, __mmask16 mask) {
    switch (type) {
    case SAMEBITS_INT8:
        return _mm512_cvtepi8_epi32(_mm_maskz_loadu_epi8(mask, (const int8_t *)p + at));
    case SAMEBITS_UINT8:
        return _mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(mask, (const uint8_t *)p + at));
    case SAMEBITS_INT16:
        return _mm512_cvtepi16_epi32(_mm256_maskz_loadu_epi16(mask, (const samebits_i16 *)p + at));
    case SAMEBITS_UINT16:
        return _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, (const samebits_u16 *)p + at));
    default: return _mm512_maskz_loadu_epi32(mask, (const samebits_i32 *)p + at);
    }
}

SAMEBITS_INLINE void samebits_store16(uint8_t type, void *p, int32_t at, __mmask16 mask, __m512i v) {
    switch (type) {
    case SAMEBITS_INT8:
    case SAMEBITS_UINT8: _mm512_mask_cvtepi32_storeu_epi8((uint8_t *)p + at, mask, v); break;
    case SAMEBITS_INT16:
    case SAMEBITS_UINT16: _mm512_mask_cvtepi32_storeu_epi16((samebits_u16 *)p + at, mask, v); break;
    default: _mm512_mask_storeu_epi32((samebits_i32 *)p + at, mask, v); break;
    }
}

#endif
#endif
