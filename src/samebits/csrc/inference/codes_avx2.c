/* --- x86: sums of 32 bits to codes of 8, AVX2 ----------------------------------------------------
 *
 * The arithmetic of codes_x86.c with vectors of 8 sums: why it is exact is said there. */

#include "samebits_vector.h"

#ifdef SAMEBITS_AVX2
/* Of 16 channels: two vectors of each. */
typedef struct {
    __m256i factor[2], odd[2], half[2], shift[2], below[2], tie[2], bias[2];
    __m256i even_more[2], odd_more[2]; /* doubled: as in codes_x86.c */
    __m256i zero, low, high;           /* 16 bits */
    int32_t ties, sign, doubled, away;
} samebits_scale16;

/* Vector i of a SAMEBITS_DOUBLED. */
SAMEBITS_INLINE void samebits_doubled16_of(samebits_scale16 *k, int32_t i, __m256i m, __m256i s) {
    const __m256i half = _mm256_set1_epi64x((int64_t)1 << (30 + k->away));
    const __m256i even = _mm256_and_si256(s, _mm256_set1_epi64x(0xffffffff));
    k->factor[i] = m;
    k->odd[i] = _mm256_srli_epi64(m, 32);
    k->shift[i] = _mm256_sub_epi32(s, _mm256_set1_epi32(1 - k->away));
    k->even_more[i] = _mm256_add_epi64(_mm256_sllv_epi64(half, even), half);
    k->odd_more[i] =
        _mm256_add_epi64(_mm256_sllv_epi64(half, _mm256_srli_epi64(s, 32)), half);
}

/* Of `count` channels from `channel` on, whose sums add `products` products of 8 bits. */
static void samebits_scale16_of(samebits_scale16 *k, const samebits_rescale *r,
                                const int32_t *biases, int32_t channel, int32_t count,
                                int64_t products) {
    const __m256i one = _mm256_set1_epi32(1), least = _mm256_set1_epi32(33);
    const int64_t most = products * 255 * 128;
    int32_t bias[16] = {0}, m[16] = {0}, s[16], i, ties = 0;
    for (i = 0; i < 16; i++) s[i] = 33;
    for (i = 0; i < count; i++) {
        const int32_t at = r->channels > 1 ? channel + i : 0;
        bias[i] = biases[channel + i];
        m[i] = r->form == SAMEBITS_SHIFT ? 1 : ((const int32_t *)r->multipliers)[at];
        s[i] = r->shifts[at];
    }
    k->doubled = r->form == SAMEBITS_DOUBLED;
    k->away = r->low < r->zero;
    for (i = 0; i < 2; i++) {
        const __m256i shift = _mm256_loadu_si256((const __m256i *)(const void *)(s + 8 * i));
        const __m256i factor = _mm256_loadu_si256((const __m256i *)(const void *)(m + 8 * i));
        const __m256i more =
            _mm256_max_epi32(_mm256_sub_epi32(least, shift), _mm256_setzero_si256());
        __m256i reach = _mm256_set1_epi32(-1);
        k->bias[i] = _mm256_loadu_si256((const __m256i *)(const void *)(bias + 8 * i));
        if (k->doubled) {
            samebits_doubled16_of(k, i, factor, shift);
            continue;
        }
        if (most <= INT32_MAX) {
            reach = _mm256_add_epi32(_mm256_abs_epi32(k->bias[i]),
                                     _mm256_set1_epi32((int32_t)most));
        }
        k->factor[i] = _mm256_sllv_epi32(factor, more);
        k->odd[i] = _mm256_srli_epi64(k->factor[i], 32);
        k->shift[i] = _mm256_sub_epi32(_mm256_add_epi32(shift, more), _mm256_set1_epi32(32));
        k->half[i] = _mm256_sllv_epi32(one, _mm256_sub_epi32(k->shift[i], one));
        k->tie[i] = _mm256_sllv_epi32(one, _mm256_sub_epi32(shift, one));
        k->below[i] = _mm256_sub_epi32(_mm256_add_epi32(k->tie[i], k->tie[i]), one);
        reach = _mm256_cmpeq_epi32(_mm256_max_epu32(reach, k->tie[i]), reach); /* reach >= tie */
        ties |= _mm256_movemask_epi8(_mm256_and_si256(reach, _mm256_cmpgt_epi32(least, shift)));
    }
    k->ties = ties != 0;
    k->zero = _mm256_set1_epi16((int16_t)r->zero);
    k->low = _mm256_set1_epi16((int16_t)r->low);
    k->high = _mm256_set1_epi16((int16_t)r->high);
    k->sign = r->type == SAMEBITS_INT8;
}

SAMEBITS_INLINE __m256i samebits_doubled8(const samebits_scale16 *k, int32_t i, __m256i acc) {
    const __m256i x = k->away ? _mm256_add_epi32(acc, acc) : acc;
    const __m256i even = _mm256_add_epi64(_mm256_mul_epi32(x, k->factor[i]), k->even_more[i]);
    const __m256i odd = _mm256_mul_epi32(_mm256_srli_epi64(x, 32), k->odd[i]);
    __m256i v = _mm256_blend_epi32(_mm256_srli_epi64(even, 32),
                                   _mm256_add_epi64(odd, k->odd_more[i]), 0xaa);
    if (k->away) v = _mm256_add_epi32(v, _mm256_srai_epi32(acc, 31));
    return _mm256_srav_epi32(v, k->shift[i]);
}

SAMEBITS_INLINE __m256i samebits_rounded8(const samebits_scale16 *k, int32_t i, __m256i acc) {
    const __m256i even = _mm256_mul_epi32(acc, k->factor[i]);
    const __m256i odd = _mm256_mul_epi32(_mm256_srli_epi64(acc, 32), k->odd[i]);
    __m256i v = _mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xaa);
    v = _mm256_srav_epi32(_mm256_add_epi32(v, k->half[i]), k->shift[i]);
    if (k->ties) {
        __m256i up = _mm256_cmpeq_epi32(_mm256_and_si256(acc, k->below[i]), k->tie[i]);
        up = _mm256_and_si256(_mm256_and_si256(up, v), _mm256_set1_epi32(1));
        v = _mm256_sub_epi32(v, up);
    }
    return v;
}

SAMEBITS_INLINE __m256i samebits_quotients8(const samebits_scale16 *k, int32_t i, __m256i acc) {
    return k->doubled ? samebits_doubled8(k, i, acc) : samebits_rounded8(k, i, acc);
}

/* Codes of 16 sums with their biases. */
SAMEBITS_INLINE __m128i samebits_codes16(const samebits_scale16 *k, __m256i a, __m256i b) {
    a = samebits_quotients8(k, 0, a);
    b = samebits_quotients8(k, 1, b);
    a = _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), 0xd8);
    a = _mm256_adds_epi16(a, k->zero);
    a = _mm256_min_epi16(_mm256_max_epi16(a, k->low), k->high);
    if (k->sign) return _mm_packs_epi16(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
    return _mm_packus_epi16(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
}

/* The first n of 16 codes. */
SAMEBITS_INLINE void samebits_some16(uint8_t *to, __m128i v, int32_t n) {
    if (n >= 16) {
        _mm_storeu_si128((__m128i *)(void *)to, v);
    } else {
        uint8_t codes[16];
        int32_t i;
        _mm_storeu_si128((__m128i *)(void *)codes, v);
        for (i = 0; i < n; i++) to[i] = codes[i];
    }
}
#endif
