/* --- data movement: codes of 8 bits that change places, in vectors -------------------------------
 *
 * Inputs of other tools have their channels one after the other, and kernels side by side. Tiles of
 * 8 by 8 codes by three rounds of interleaving; three channels by one. */

#include "samebits_vector.h"

#if defined(__SSE2__)
#include <immintrin.h>
#define SAMEBITS_TURN
typedef __m128i samebits_bytes16;
#define samebits_zip8 _mm_unpacklo_epi8
#define samebits_zip16 _mm_unpacklo_epi16
#define samebits_zip16_high _mm_unpackhi_epi16
#define samebits_zip32 _mm_unpacklo_epi32
#define samebits_zip32_high _mm_unpackhi_epi32

SAMEBITS_INLINE __m128i samebits_load8(const uint8_t *p) {
    return _mm_loadl_epi64((const __m128i *)(const void *)p);
}

SAMEBITS_INLINE void samebits_two8(uint8_t *low, uint8_t *high, __m128i v) {
    _mm_storel_epi64((__m128i *)(void *)low, v);
    _mm_storel_epi64((__m128i *)(void *)high, _mm_unpackhi_epi64(v, v));
}
#elif defined(SAMEBITS_NEON)
#define SAMEBITS_TURN
typedef uint8x16_t samebits_bytes16;
#define SAMEBITS_ZIP(NAME, FUNCTION, BITS)                                                         \
    SAMEBITS_INLINE uint8x16_t NAME(uint8x16_t a, uint8x16_t b) {                                  \
        return vreinterpretq_u8_u##BITS(                                                           \
            FUNCTION##_u##BITS(vreinterpretq_u##BITS##_u8(a), vreinterpretq_u##BITS##_u8(b)));     \
    }
#define samebits_zip8 vzip1q_u8
SAMEBITS_ZIP(samebits_zip16, vzip1q, 16)
SAMEBITS_ZIP(samebits_zip16_high, vzip2q, 16)
SAMEBITS_ZIP(samebits_zip32, vzip1q, 32)
SAMEBITS_ZIP(samebits_zip32_high, vzip2q, 32)

SAMEBITS_INLINE uint8x16_t samebits_load8(const uint8_t *p) {
    return vcombine_u8(vld1_u8(p), vdup_n_u8(0));
}

SAMEBITS_INLINE void samebits_two8(uint8_t *low, uint8_t *high, uint8x16_t v) {
    vst1_u8(low, vget_low_u8(v));
    vst1_u8(high, vget_high_u8(v));
}
#endif

#ifdef SAMEBITS_TURN
/* Eight rows of eight codes, `from` apart, become eight columns. */
SAMEBITS_INLINE void samebits_turn_tile(const uint8_t *x, int32_t from, uint8_t *out, int32_t to) {
    samebits_bytes16 pairs[4], fours[4];
    int32_t i;
    for (i = 0; i < 4; i++) {
        pairs[i] = samebits_zip8(samebits_load8(x + 2 * i * from),
                                 samebits_load8(x + (2 * i + 1) * from));
    }
    for (i = 0; i < 2; i++) {
        fours[i] = samebits_zip16(pairs[2 * i], pairs[2 * i + 1]);
        fours[2 + i] = samebits_zip16_high(pairs[2 * i], pairs[2 * i + 1]);
    }
    for (i = 0; i < 2; i++, out += 4 * to) {
        samebits_two8(out, out + to, samebits_zip32(fours[2 * i], fours[2 * i + 1]));
        samebits_two8(out + 2 * to, out + 3 * to,
                      samebits_zip32_high(fours[2 * i], fours[2 * i + 1]));
    }
}

/* out[row * to + column] = x[column * from + row]. */
static void samebits_turn(const uint8_t *x, int32_t from, uint8_t *out, int32_t to, int32_t rows,
                          int32_t columns) {
    int32_t row, column = 0, i;
    for (; column + 8 <= columns; column += 8) {
        for (row = 0; row + 8 <= rows; row += 8) {
            samebits_turn_tile(x + column * from + row, from, out + row * to + column, to);
        }
        for (; row < rows; row++) {
            for (i = column; i < column + 8; i++) out[row * to + i] = x[i * from + row];
        }
    }
    for (; column < columns; column++) {
        for (row = 0; row < rows; row++) out[row * to + column] = x[column * from + row];
    }
}
#endif

#if defined(__SSSE3__) || defined(SAMEBITS_NEON)
#define SAMEBITS_TURN_THREE

/* 16 codes of three channels, `from` apart, side by side. */
SAMEBITS_INLINE void samebits_three_tile(const uint8_t *x, int32_t from, uint8_t *out) {
#ifdef SAMEBITS_NEON
    uint8x16x3_t v;
    v.val[0] = vld1q_u8(x);
    v.val[1] = vld1q_u8(x + from);
    v.val[2] = vld1q_u8(x + 2 * from);
    vst3q_u8(out, v);
#else
    /* The places of a channel's codes in each of the three vectors; -1: another channel's */
    static const int8_t places[3][3][16] = {
        {{0, -1, -1, 1, -1, -1, 2, -1, -1, 3, -1, -1, 4, -1, -1, 5},
         {-1, 0, -1, -1, 1, -1, -1, 2, -1, -1, 3, -1, -1, 4, -1, -1},
         {-1, -1, 0, -1, -1, 1, -1, -1, 2, -1, -1, 3, -1, -1, 4, -1}},
        {{-1, -1, 6, -1, -1, 7, -1, -1, 8, -1, -1, 9, -1, -1, 10, -1},
         {5, -1, -1, 6, -1, -1, 7, -1, -1, 8, -1, -1, 9, -1, -1, 10},
         {-1, 5, -1, -1, 6, -1, -1, 7, -1, -1, 8, -1, -1, 9, -1, -1}},
        {{-1, 11, -1, -1, 12, -1, -1, 13, -1, -1, 14, -1, -1, 15, -1, -1},
         {-1, -1, 11, -1, -1, 12, -1, -1, 13, -1, -1, 14, -1, -1, 15, -1},
         {10, -1, -1, 11, -1, -1, 12, -1, -1, 13, -1, -1, 14, -1, -1, 15}}};
    int32_t i, j;
    for (i = 0; i < 3; i++) {
        __m128i v = _mm_setzero_si128();
        for (j = 0; j < 3; j++) {
            const __m128i *place = (const __m128i *)(const void *)places[i][j];
            const __m128i *codes = (const __m128i *)(const void *)(x + j * from);
            v = _mm_or_si128(v, _mm_shuffle_epi8(_mm_loadu_si128(codes), _mm_loadu_si128(place)));
        }
        _mm_storeu_si128((__m128i *)(void *)(out + 16 * i), v);
    }
#endif
}

static void samebits_three(const uint8_t *x, int32_t from, uint8_t *out, int32_t rows) {
    int32_t row = 0, i;
    for (; row + 16 <= rows; row += 16) samebits_three_tile(x + row, from, out + 3 * row);
    for (; row < rows; row++) {
        for (i = 0; i < 3; i++) out[3 * row + i] = x[i * from + row];
    }
}
#endif
