/* --- sums of tensors of 8 bits: AVX-512 ---------------------------------------------------------
 *
 * Residual connections: tensors of one shape whose weighted sum fits in 32 bits, to codes of 8
 * bits, 64 of them at a time, with one store. */

#include "samebits_vector.h"

#ifdef SAMEBITS_AVX512
/* 16 sums from element `at` on, of `count` sources. */
SAMEBITS_INLINE __m512i samebits_sum8(const samebits_source *sources, const void *const *x,
                                      int32_t at, __mmask16 mask, __m512i v, int32_t count,
                                      uint8_t type) {
    int32_t k;
    for (k = 0; k < count; k++) {
        const __m512i factor = _mm512_set1_epi32((int32_t)sources[k].factor);
        const uint8_t known = type == SAMEBITS_INT64 ? sources[k].type : type;
        v = _mm512_add_epi32(v, _mm512_mullo_epi32(samebits_load16(known, x[k], at, mask), factor));
    }
    return v;
}

/* Sums in 32 bits of tensors of one shape and of 8 bits, to codes of 8 bits, 64 of them at a time;
 * by a shift in 32 bits, or a product. Type SAMEBITS_INT64: any. */
SAMEBITS_INLINE void samebits_sums8(const samebits_broadcast *c, const void *const *x, void *out,
                                    int32_t count, uint8_t type, const int32_t shifts) {
    const int32_t size = c->shape.shape[0];
    const samebits_rescale r = c->rescale; /* no store changes it */
    const samebits_source two[2] = {c->sources[0], c->sources[count - 1]};
    const samebits_source *sources = count == 2 ? two : c->sources;
    const int64_t half = shifts ? (int64_t)1 << (r.shifts[0] - 1) : 0;
    const __m512i offset = _mm512_set1_epi32((int32_t)(c->offset + half));
    const __m512i rest = _mm512_set1_epi32((int32_t)(2 * half - 1)), even = _mm512_set1_epi32(-2);
    const __m128i shift = _mm_cvtsi32_si128(r.shifts[0]);
    const samebits_range range = samebits_range_of(&r);
    const samebits_scale scale =
        samebits_scale_of(&r, samebits_factors(&r, 0, 0xffff), samebits_shifts(&r, 0, 0xffff),
                          _mm512_set1_epi32(-1));
    int32_t i, j;
    for (i = 0; i < size; i += 64) {
        __m512i v[4];
        for (j = 0; j < 4; j++) {
            const int32_t at = i + 16 * j;
            const __mmask16 mask = at < size ? samebits_first(size - at) : (__mmask16)0;
            if (i + 64 <= size) {
                v[j] = samebits_sum8(sources, x, at, 0xffff, offset, count, type);
            } else {
                v[j] = samebits_sum8(sources, x, at, mask, offset, count, type);
            }
            if (shifts) { /* half is added: what divides was a tie */
                const __mmask16 tie = _mm512_testn_epi32_mask(v[j], rest);
                v[j] = _mm512_sra_epi32(v[j], shift);
                v[j] = _mm512_mask_and_epi32(v[j], tie, v[j], even);
            } else {
                v[j] = samebits_quotients(&scale, v[j]);
            }
        }
        samebits_put64((uint8_t *)out + i, samebits_codes(&range, v[0], v[1], v[2], v[3]),
                       size - i);
    }
}

/* 0 where the sums are not those. */
static int samebits_elements8(const samebits_broadcast *c, const void *const *x, void *out) {
    const int32_t shifts = c->rescale.form == SAMEBITS_SHIFT;
    int32_t k, same = c->count == 2;
    if (c->operation != SAMEBITS_SUM || !samebits_has_codes(&c->rescale)) return 0;
    for (k = 0; k < c->count; k++) {
        if (c->sources[k].type > SAMEBITS_UINT8) return 0;
        same = same && c->sources[k].type == SAMEBITS_INT8;
    }
    if (same && shifts) {
        samebits_sums8(c, x, out, 2, SAMEBITS_INT8, 1);
    } else if (same) {
        samebits_sums8(c, x, out, 2, SAMEBITS_INT8, 0);
    } else if (shifts) {
        samebits_sums8(c, x, out, c->count, SAMEBITS_INT64, 1);
    } else {
        samebits_sums8(c, x, out, c->count, SAMEBITS_INT64, 0);
    }
    return 1;
}
#endif
