/* --- x86: sums of 32 bits to codes of 8, many at a time ------------------------------------------
 *
 * SAMEBITS_SHIFT, _NARROW and _PRODUCT are one function, acc * m / 2**s rounded half to even. Where
 * m / 2**s < 1/4, m and s grow by the same bits until s >= 33: then half of 2**s is a multiple of
 * 2**32, so that adding it to the upper word of the product rounds half up, and 64-bit products
 * need no 64-bit sums. Half up differs from half to even at ties alone. m is odd (the lowering
 * drops common factors of 2), so acc * m is a tie of 2**s where acc is one: never where s > 32,
 * else by a mask.
 *
 * SAMEBITS_DOUBLED takes twice the sum, so that the upper word of what is added to the product with
 * 2**31 is the first rounding, and the half of the second is a number of upper words
 * (codegen/lowering/doubled.py). Where low >= zero, negative sums end at low whatever their
 * rounding: then all is added to the product of the sum itself.
 *
 * What is then added and clamped has 16 bits: packing saturates, and a quotient out of 16 bits is
 * out of the range of codes on the same side, as |zero| <= 32000. */

#include "samebits_vector.h"

#ifdef SAMEBITS_AVX512
/* In a register, where a compiler would load it again for every use. */
#define SAMEBITS_KEEP(v) __asm__("" : "+v"(v))

typedef struct {
    __m512i factor, odd, half, shift; /* odd: the factors of odd lanes */
    __m512i below, tie;               /* a tie: acc & below == tie */
    __m512i even_more, odd_more;      /* doubled: added to products of even and of odd lanes */
    int32_t ties, doubled, away;      /* away: sums are doubled, negative words less 1 */
} samebits_scale;

typedef struct {
    __m512i zero, low, high; /* 16 bits */
    int32_t sign;
} samebits_range;

SAMEBITS_INLINE samebits_scale samebits_doubled_of(const samebits_rescale *r, __m512i m,
                                                   __m512i s) {
    const __m512i even = _mm512_and_si512(s, _mm512_set1_epi64(0xffffffff));
    samebits_scale k;
    __m512i half;
    k.ties = 0;
    k.doubled = 1;
    k.away = r->low < r->zero;
    k.factor = m;
    k.odd = _mm512_srli_epi64(m, 32);
    k.shift = _mm512_sub_epi32(s, _mm512_set1_epi32(1 - k.away));
    half = _mm512_set1_epi64((int64_t)1 << (30 + k.away)); /* of the first rounding */
    k.even_more = _mm512_add_epi64(_mm512_sllv_epi64(half, even), half);
    k.odd_more = _mm512_add_epi64(_mm512_sllv_epi64(half, _mm512_srli_epi64(s, 32)), half);
    k.half = k.below = k.tie = half;
    return k;
}

/* For sums up to `reach`, unsigned, in magnitude: most reach no tie. */
SAMEBITS_INLINE samebits_scale samebits_scale_of(const samebits_rescale *r, __m512i m, __m512i s,
                                                 __m512i reach) {
    const __m512i one = _mm512_set1_epi32(1), least = _mm512_set1_epi32(33);
    const __m512i more = _mm512_max_epi32(_mm512_sub_epi32(least, s), _mm512_setzero_si512());
    samebits_scale k;
    if (r->form == SAMEBITS_DOUBLED) return samebits_doubled_of(r, m, s);
    k.doubled = k.away = 0;
    k.factor = _mm512_sllv_epi32(m, more);
    k.odd = _mm512_srli_epi64(k.factor, 32);
    k.shift = _mm512_sub_epi32(_mm512_add_epi32(s, more), _mm512_set1_epi32(32));
    k.half = _mm512_sllv_epi32(one, _mm512_sub_epi32(k.shift, one));
    k.tie = _mm512_sllv_epi32(one, _mm512_sub_epi32(s, one)); /* 0, as acc = 0, where s > 32 */
    k.below = _mm512_sub_epi32(_mm512_add_epi32(k.tie, k.tie), one);
    k.ties = _mm512_mask_cmpge_epu32_mask(_mm512_cmplt_epi32_mask(s, least), reach, k.tie) != 0;
    return k;
}

/* Multipliers and shifts of 16 channels from `channel` on; 0 and 33 of those that are not there. */
SAMEBITS_INLINE __m512i samebits_factors(const samebits_rescale *r, int32_t channel,
                                         __mmask16 mask) {
    const int32_t *m = (const int32_t *)r->multipliers;
    if (r->form == SAMEBITS_SHIFT) return _mm512_maskz_set1_epi32(mask, 1);
    if (r->channels == 1) return _mm512_maskz_set1_epi32(mask, m[0]);
    return _mm512_maskz_loadu_epi32(mask, m + channel);
}

SAMEBITS_INLINE __m512i samebits_shifts(const samebits_rescale *r, int32_t channel,
                                        __mmask16 mask) {
    const __m512i none = _mm512_set1_epi32(33);
    if (r->channels == 1) return _mm512_mask_set1_epi32(none, mask, r->shifts[0]);
    return _mm512_mask_cvtepu8_epi32(none, mask, _mm_maskz_loadu_epi8(mask, r->shifts + channel));
}

/* The requantizations to 8 bits that are here. */
static int samebits_has_codes(const samebits_rescale *r) {
    const __m512i one = _mm512_set1_epi32(1), last = _mm512_set1_epi32(31);
    int32_t i;
    if (r->type > SAMEBITS_UINT8 || r->zero > 32000 || r->zero < -32000) return 0;
    if (r->form == SAMEBITS_DOUBLED) return samebits_shifted(r);
    if (r->form < SAMEBITS_SHIFT || r->form > SAMEBITS_PRODUCT) return 0;
    for (i = 0; i < r->channels; i += 16) {
        const __mmask16 mask = samebits_first(r->channels - i);
        const __m512i m = samebits_factors(r, i, mask), s = samebits_shifts(r, i, mask);
        const __m512i most = _mm512_sub_epi32(s, _mm512_set1_epi32(2)); /* m / 2**s < 1/4 */
        const __m512i bits = _mm512_min_epi32(_mm512_max_epi32(most, _mm512_setzero_si512()), last);
        const __m512i rest = _mm512_srlv_epi32(m, bits);
        const __mmask16 even = _mm512_testn_epi32_mask(m, one);
        if (_mm512_test_epi32_mask(rest, rest) || _mm512_mask_test_epi32_mask(even, m, m)) return 0;
    }
    return 1;
}

SAMEBITS_INLINE samebits_range samebits_range_of(const samebits_rescale *r) {
    samebits_range range;
    range.zero = _mm512_set1_epi16((int16_t)r->zero);
    range.low = _mm512_set1_epi16((int16_t)r->low);
    range.high = _mm512_set1_epi16((int16_t)r->high);
    range.sign = r->type == SAMEBITS_INT8;
    return range;
}

SAMEBITS_INLINE __m512i samebits_doubled16(const samebits_scale *k, __m512i acc) {
    const __m512i x = k->away ? _mm512_add_epi32(acc, acc) : acc;
    const __m512i even = _mm512_add_epi64(_mm512_mul_epi32(x, k->factor), k->even_more);
    const __m512i odd =
        _mm512_add_epi64(_mm512_mul_epi32(_mm512_srli_epi64(x, 32), k->odd), k->odd_more);
    __m512i v = _mm512_mask_shuffle_epi32(odd, 0x5555, even, (_MM_PERM_ENUM)0xf5);
    if (k->away) v = _mm512_add_epi32(v, _mm512_srai_epi32(acc, 31));
    return _mm512_srav_epi32(v, k->shift);
}

SAMEBITS_INLINE __m512i samebits_rounded16(const samebits_scale *k, __m512i acc) {
    const __m512i even = _mm512_mul_epi32(acc, k->factor);
    const __m512i odd = _mm512_mul_epi32(_mm512_srli_epi64(acc, 32), k->odd);
    __m512i v = _mm512_mask_shuffle_epi32(odd, 0x5555, even, (_MM_PERM_ENUM)0xf5);
    v = _mm512_srav_epi32(_mm512_add_epi32(v, k->half), k->shift);
    if (k->ties) {
        const __m512i one = _mm512_set1_epi32(1), rest = _mm512_and_si512(acc, k->below);
        __mmask16 up = _mm512_cmpeq_epi32_mask(rest, k->tie);
        up = _mm512_mask_test_epi32_mask(up, v, one);
        v = _mm512_mask_sub_epi32(v, up, v, one);
    }
    return v;
}

SAMEBITS_INLINE __m512i samebits_quotients(const samebits_scale *k, __m512i acc) {
    return k->doubled ? samebits_doubled16(k, acc) : samebits_rounded16(k, acc);
}

/* Codes of 64 quotients, in every 128 bits four of each vector. */
SAMEBITS_INLINE __m512i samebits_mixed(const samebits_range *r, __m512i a, __m512i b, __m512i c,
                                       __m512i d) {
    a = _mm512_adds_epi16(_mm512_packs_epi32(a, b), r->zero);
    c = _mm512_adds_epi16(_mm512_packs_epi32(c, d), r->zero);
    a = _mm512_min_epi16(_mm512_max_epi16(a, r->low), r->high);
    c = _mm512_min_epi16(_mm512_max_epi16(c, r->low), r->high);
    return r->sign ? _mm512_packs_epi16(a, c) : _mm512_packus_epi16(a, c);
}

/* The same, one vector after the other. */
SAMEBITS_INLINE __m512i samebits_codes(const samebits_range *r, __m512i a, __m512i b, __m512i c,
                                       __m512i d) {
    const __m512i order =
        _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    return _mm512_permutexvar_epi32(order, samebits_mixed(r, a, b, c, d));
}

/* The first n of 64 bytes. */
SAMEBITS_INLINE __mmask64 samebits_bytes(int32_t n) {
    return n >= 64 ? ~(__mmask64)0 : ((__mmask64)1 << n) - 1u;
}

/* The first n of 64 codes; whole vectors without masks, which cost time in stores. */
SAMEBITS_INLINE void samebits_put64(uint8_t *to, __m512i v, int32_t n) {
    if (n >= 64) {
        _mm512_storeu_si512(to, v);
    } else {
        _mm512_mask_storeu_epi8(to, samebits_bytes(n), v);
    }
}

#ifdef SAMEBITS_VNNI
/* What sums of `count` products of 8 bits and these biases reach, unsigned. */
SAMEBITS_INLINE __m512i samebits_reach(__m512i bias, int64_t count) {
    const int64_t most = count * 255 * 128;
    if (most > INT32_MAX) return _mm512_set1_epi32(-1);
    return _mm512_add_epi32(_mm512_abs_epi32(bias), _mm512_set1_epi32((int32_t)most));
}

/* The same of 16 and of 32. */
SAMEBITS_INLINE void samebits_put16(uint8_t *to, __m128i v, int32_t n) {
    if (n >= 16) {
        _mm_storeu_si128((__m128i *)(void *)to, v);
    } else {
        _mm_mask_storeu_epi8(to, (__mmask16)samebits_bytes(n), v);
    }
}

SAMEBITS_INLINE void samebits_put32(uint8_t *to, __m256i v, int32_t n) {
    if (n >= 32) {
        _mm256_storeu_si256((__m256i *)(void *)to, v);
    } else {
        _mm256_mask_storeu_epi8(to, (__mmask32)samebits_bytes(n), v);
    }
}

/* n bytes, each changed by the bits of `flip`: the last of them twice rather than by a mask, as
 * what masks store is not at hand for the loads that follow. */
SAMEBITS_INLINE void samebits_flipped(const uint8_t *from, int32_t n, uint8_t flip, uint8_t *to) {
    const __m512i flips = _mm512_set1_epi8((char)flip);
    const __m256i half = _mm512_castsi512_si256(flips);
    int32_t i;
    if (n >= 64) {
        for (i = 0; i < n; i += 64) {
            const int32_t at = SAMEBITS_MIN(i, n - 64);
            _mm512_storeu_si512(to + at, _mm512_xor_si512(_mm512_loadu_si512(from + at), flips));
        }
    } else if (n >= 32) {
        for (i = 0; i < n; i += 32) {
            const int32_t at = SAMEBITS_MIN(i, n - 32);
            const __m256i v = _mm256_loadu_si256((const __m256i *)(const void *)(from + at));
            _mm256_storeu_si256((__m256i *)(void *)(to + at), _mm256_xor_si256(v, half));
        }
    } else {
        for (i = 0; i < n; i++) to[i] = from[i] ^ flip;
    }
}
#endif
#endif
