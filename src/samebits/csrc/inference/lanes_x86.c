/* --- depthwise convolution: lanes, x86 ----------------------------------------------------------
 *
 * A lane is a channel, or a channel of one of several pixels beside each other. VNNI adds four
 * products of 8 bits, VPMADDWD two of 16: codes of as many taps are interleaved, so that the
 * products of one sum belong to one lane; the same instructions have interleaved the weights. */

#include "samebits_vector.h"

#define SAMEBITS_TAPS 64 /* of the largest kernel, 8x8 */

#ifdef SAMEBITS_VNNI
#define SAMEBITS_LANES 64
#define SAMEBITS_GROUP 4 /* taps */

/* What is the same for all pixels of up to 64 lanes: vector j of four has channels 4 * j to
 * 4 * j + 3 of every 16. */
typedef struct {
    __m512i flip, bias[4], weights[SAMEBITS_TAPS / 4][4];
    samebits_scale scale[4];
    samebits_range range;
} samebits_lanes;

/* Four vectors of bytes as vectors of four bytes a lane. */
SAMEBITS_INLINE void samebits_interleaved(__m512i a, __m512i b, __m512i c, __m512i d, __m512i *v) {
    const __m512i low = _mm512_unpacklo_epi8(a, b), high = _mm512_unpackhi_epi8(a, b);
    const __m512i low2 = _mm512_unpacklo_epi8(c, d), high2 = _mm512_unpackhi_epi8(c, d);
    v[0] = _mm512_unpacklo_epi16(low, low2);
    v[1] = _mm512_unpackhi_epi16(low, low2);
    v[2] = _mm512_unpacklo_epi16(high, high2);
    v[3] = _mm512_unpackhi_epi16(high, high2);
}

/* The 16 of 64 numbers that vector j has. */
SAMEBITS_INLINE __m512i samebits_quarter(const int32_t *v, int32_t j) {
    const __m128i *from = (const __m128i *)(const void *)(v + 4 * j);
    __m512i all = _mm512_castsi128_si512(_mm_loadu_si128(from));
    all = _mm512_inserti32x4(all, _mm_loadu_si128(from + 4), 1);
    all = _mm512_inserti32x4(all, _mm_loadu_si128(from + 8), 2);
    return _mm512_inserti32x4(all, _mm_loadu_si128(from + 12), 3);
}

/* The lanes of `count` channels from `channel` on, repeated in `lanes` lanes. */
static void samebits_lanes_of(samebits_lanes *k, const samebits_conv *c, int32_t channel,
                              int32_t count, int32_t lanes) {
    const int32_t taps = c->kernel_height * c->kernel_width;
    const int32_t quads = (taps + 3) / 4;
    const int8_t *w = (const int8_t *)c->weights + channel;
    const __mmask64 first = samebits_bytes(count);
    int32_t bias[80], m[80], s[80], i, j, q; /* whole vectors may follow the last of 64 */
    for (j = 0; j < 64; j += 16) {
        _mm512_storeu_si512(bias + j, _mm512_setzero_si512());
        _mm512_storeu_si512(m + j, _mm512_setzero_si512());
        _mm512_storeu_si512(s + j, _mm512_set1_epi32(33));
    }
    for (i = 0; i < lanes; i += count) {
        for (j = 0; j < count; j += 16) {
            const __mmask16 mask = samebits_first(count - j);
            const int32_t at = channel + j;
            _mm512_storeu_si512(bias + i + j,
                                _mm512_maskz_loadu_epi32(mask, (const int32_t *)c->bias + at));
            _mm512_storeu_si512(m + i + j, samebits_factors(&c->rescale, at, mask));
            _mm512_storeu_si512(s + i + j, samebits_shifts(&c->rescale, at, mask));
        }
    }
    for (j = 0; j < 4; j++) {
        k->bias[j] = samebits_quarter(bias, j);
        k->scale[j] = samebits_scale_of(&c->rescale, samebits_quarter(m, j),
                                        samebits_quarter(s, j), samebits_reach(k->bias[j], taps));
    }
    k->flip = _mm512_set1_epi8(c->type == SAMEBITS_INT8 ? -128 : 0);
    k->range = samebits_range_of(&c->rescale);
    for (q = 0; q < quads; q++) {
        __m512i v[4];
        for (j = 0; j < 4; j++) {
            v[j] = _mm512_setzero_si512();
            if (4 * q + j >= taps) continue;
            v[j] = _mm512_maskz_loadu_epi8(first, w + (4 * q + j) * c->channels);
            if (lanes > count) { /* 8, 16 or 32 channels, again and again */
                v[j] = count == 8    ? _mm512_broadcastq_epi64(_mm512_castsi512_si128(v[j]))
                       : count == 16 ? _mm512_broadcast_i32x4(_mm512_castsi512_si128(v[j]))
                                     : _mm512_broadcast_i64x4(_mm512_castsi512_si256(v[j]));
            }
        }
        samebits_interleaved(v[0], v[1], v[2], v[3], k->weights[q]);
    }
}

/* Codes of P times `lanes` lanes whose taps begin at from[tap] + at, and `step` further on; Q quads
 * of taps. */
SAMEBITS_INLINE void samebits_lanes_at(const samebits_lanes *k, const uint8_t *const *from,
                                       int32_t at, int32_t step, const int32_t lanes, uint8_t *out,
                                       int32_t pitch, const int32_t Q, const int32_t P) {
    const __mmask64 mask = samebits_bytes(lanes);
    __m512i sum[2][4];
    int32_t q, j, p;
    for (j = 0; j < 4; j++) sum[0][j] = sum[P - 1][j] = k->bias[j];
    for (q = 0; q < Q; q++) {
        __m512i w[4];
        for (j = 0; j < 4; j++) {
            w[j] = k->weights[q][j];
            if (P > 1) SAMEBITS_KEEP(w[j]);
        }
        for (p = 0; p < P; p++) {
            __m512i v[4], codes[4];
            for (j = 0; j < 4; j++) {
                const uint8_t *tap = from[4 * q + j] + at + p * step;
                v[j] = lanes == 64 ? _mm512_loadu_si512(tap) : _mm512_maskz_loadu_epi8(mask, tap);
                v[j] = _mm512_xor_si512(v[j], k->flip);
            }
            samebits_interleaved(v[0], v[1], v[2], v[3], codes);
            for (j = 0; j < 4; j++) sum[p][j] = _mm512_dpbusd_epi32(sum[p][j], codes[j], w[j]);
        }
    }
    for (p = 0; p < P; p++) {
        for (j = 0; j < 4; j++) sum[p][j] = samebits_quotients(&k->scale[j], sum[p][j]);
        samebits_put64(out + p * pitch,
                       samebits_mixed(&k->range, sum[p][0], sum[p][1], sum[p][2], sum[p][3]),
                       lanes);
    }
}

#elif defined(SAMEBITS_AVX2)
#define SAMEBITS_LANES 16
#define SAMEBITS_GROUP 2 /* taps */

typedef struct {
    samebits_scale16 scale;
    __m256i weights[SAMEBITS_TAPS / 2][2];
    __m128i flip;
} samebits_lanes;

/* n of 16 bytes. */
SAMEBITS_INLINE __m128i samebits_part16(const void *from, int32_t n) {
    uint8_t bytes[16] = {0};
    int32_t i;
    if (n == 16) return _mm_loadu_si128((const __m128i *)from);
    for (i = 0; i < n; i++) bytes[i] = ((const uint8_t *)from)[i];
    return _mm_loadu_si128((const __m128i *)(const void *)bytes);
}

/* The lanes of `count` channels from `channel` on, repeated in `lanes` lanes. */
static void samebits_lanes_of(samebits_lanes *k, const samebits_conv *c, int32_t channel,
                              int32_t count, int32_t lanes) {
    const int32_t taps = c->kernel_height * c->kernel_width;
    const int8_t *w = (const int8_t *)c->weights + channel;
    int32_t q, j;
    samebits_scale16_of(&k->scale, &c->rescale, (const int32_t *)c->bias, channel, count, taps);
    if (lanes > count) { /* 8 channels, twice */
        samebits_scale16 *s = &k->scale;
        s->factor[1] = s->factor[0];
        s->odd[1] = s->odd[0];
        s->half[1] = s->half[0];
        s->shift[1] = s->shift[0];
        s->below[1] = s->below[0];
        s->tie[1] = s->tie[0];
        s->even_more[1] = s->even_more[0];
        s->odd_more[1] = s->odd_more[0];
        s->bias[1] = s->bias[0];
    }
    for (q = 0; 2 * q < taps; q++) {
        __m128i v[2];
        for (j = 0; j < 2; j++) {
            v[j] = _mm_setzero_si128();
            if (2 * q + j < taps) v[j] = samebits_part16(w + (2 * q + j) * c->channels, count);
            if (lanes > count) v[j] = _mm_unpacklo_epi64(v[j], v[j]);
        }
        k->weights[q][0] = _mm256_cvtepi8_epi16(_mm_unpacklo_epi8(v[0], v[1]));
        k->weights[q][1] = _mm256_cvtepi8_epi16(_mm_unpackhi_epi8(v[0], v[1]));
    }
    k->flip = _mm_set1_epi8(c->type == SAMEBITS_INT8 ? -128 : 0);
}

/* As above, Q pairs of taps. */
SAMEBITS_INLINE void samebits_lanes_at(const samebits_lanes *k, const uint8_t *const *from,
                                       int32_t at, int32_t step, const int32_t lanes, uint8_t *out,
                                       int32_t pitch, const int32_t Q, const int32_t P) {
    __m256i sum[2][2];
    int32_t q, p;
    for (p = 0; p < P; p++) {
        sum[p][0] = k->scale.bias[0];
        sum[p][1] = k->scale.bias[1];
    }
    for (q = 0; q < Q; q++) {
        const __m256i low = k->weights[q][0], high = k->weights[q][1];
        for (p = 0; p < P; p++) {
            const uint8_t *first = from[2 * q] + at + p * step;
            const uint8_t *second = from[2 * q + 1] + at + p * step;
            const __m128i a = _mm_xor_si128(samebits_part16(first, lanes), k->flip);
            const __m128i b = _mm_xor_si128(samebits_part16(second, lanes), k->flip);
            const __m256i c = _mm256_cvtepu8_epi16(_mm_unpacklo_epi8(a, b));
            const __m256i d = _mm256_cvtepu8_epi16(_mm_unpackhi_epi8(a, b));
            sum[p][0] = _mm256_add_epi32(sum[p][0], _mm256_madd_epi16(c, low));
            sum[p][1] = _mm256_add_epi32(sum[p][1], _mm256_madd_epi16(d, high));
        }
    }
    for (p = 0; p < P; p++) {
        samebits_some16(out + p * pitch, samebits_codes16(&k->scale, sum[p][0], sum[p][1]), lanes);
    }
}
#endif
