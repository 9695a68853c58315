/* Register tile of the integer matrix product: C[MR][NR] += A[MR][K] * B[K][NR], 16-bit operands,
 * 32-bit accumulators. K advances in pairs: one multiply-add instruction (pmaddwd, vpdpwssd) sums
 * two neighbouring products, so A is read as 32-bit pairs and B is packed [pair][NR][2].
 *
 * Bound: |a| <= 32768, |b| <= 127, so FLUSH_PAIRS pairs stay below 2 * 256 * 32768 * 127 < 2**31;
 * longer sums are flushed to 64-bit tiles (or the caller proves a smaller bound).
 *
 * Structure after Goto & van de Geijn, "Anatomy of high-performance matrix multiplication" (2008);
 * rows addressed by pointer instead of packed, after Dukhan, "The indirect convolution algorithm"
 * (2019).
 */
#ifndef SAMEBITS_TILE_H
#define SAMEBITS_TILE_H

#include <stdint.h>
#include <string.h>

#include "samebits_integer.h"

#define FLUSH_PAIRS 256

#if defined(__AVX512BW__)
#include <immintrin.h>
typedef __m512i vec;
#define LANES 16
#define MR 8
#define vec_zero() _mm512_setzero_si512()
#define vec_load(p) _mm512_loadu_si512((const void *)(p))
#define vec_store(p, v) _mm512_storeu_si512((void *)(p), v)
#define vec_pair(p) _mm512_set1_epi32(load_pair(p))
#if defined(__AVX512VNNI__)
#define vec_dot(acc, a, b) _mm512_dpwssd_epi32(acc, a, b)
#define vec_bytes(acc, a, b) _mm512_dpbusd_epi32(acc, a, b)
#else
#define vec_dot(acc, a, b) _mm512_add_epi32(acc, _mm512_madd_epi16(a, b))
#endif
#elif defined(__AVX2__)
#include <immintrin.h>
typedef __m256i vec;
#define LANES 8
#define MR 6
#define vec_zero() _mm256_setzero_si256()
#define vec_load(p) _mm256_loadu_si256((const __m256i *)(p))
#define vec_store(p, v) _mm256_storeu_si256((__m256i *)(p), v)
#define vec_pair(p) _mm256_set1_epi32(load_pair(p))
#define vec_dot(acc, a, b) _mm256_add_epi32(acc, _mm256_madd_epi16(a, b))
#elif defined(__SSE2__)
#include <emmintrin.h>
typedef __m128i vec;
#define LANES 4
#define MR 6
#define vec_zero() _mm_setzero_si128()
#define vec_load(p) _mm_loadu_si128((const __m128i *)(p))
#define vec_store(p, v) _mm_storeu_si128((__m128i *)(p), v)
#define vec_pair(p) _mm_set1_epi32(load_pair(p))
#define vec_dot(acc, a, b) _mm_add_epi32(acc, _mm_madd_epi16(a, b))
#else /* any other machine: plain C, left to the compiler's vectoriser */
#define LANES 4
#define MR 4
typedef struct { int32_t lane[LANES]; } vec;
static inline vec vec_zero(void) { vec v; memset(&v, 0, sizeof v); return v; }
static inline void vec_store(int32_t *p, vec v) { memcpy(p, &v, sizeof v); }
typedef struct { int16_t lane[2 * LANES]; } vec16;
static inline vec16 vec_load(const int16_t *p) { vec16 v; memcpy(&v, p, sizeof v); return v; }
static inline vec16 vec_pair(const int16_t *p) {
    vec16 v;
    for (int i = 0; i < LANES; i++) { v.lane[2 * i] = p[0]; v.lane[2 * i + 1] = p[1]; }
    return v;
}
static inline vec vec_dot(vec acc, vec16 a, vec16 b) {
    for (int i = 0; i < LANES; i++)
        acc.lane[i] += a.lane[2 * i] * b.lane[2 * i] + a.lane[2 * i + 1] * b.lane[2 * i + 1];
    return acc;
}
#define SAMEBITS_PLAIN 1
#endif

#define NR (2 * LANES)

static inline int32_t load_pair(const void *p) {
    int32_t pair;
    memcpy(&pair, p, sizeof pair);
    return pair;
}

#ifdef SAMEBITS_PLAIN
typedef vec16 operand;
static inline vec vec_of(const int32_t *p) { vec v; memcpy(&v, p, sizeof v); return v; }
#else
typedef vec operand;
#define vec_of(p) vec_load(p)
#endif

/* Where one instruction sums four products of a byte without a sign and one with (vpdpbusd), a word
 * of 4 bytes may hold four codes of 8 bits instead of two of 16. */
#define LIFT 128 /* what is added to codes so that they have no sign */
#ifdef vec_bytes
#define SAMEBITS_BYTES 1
#else
#define SAMEBITS_BYTES 0
#define vec_bytes(acc, a, b) vec_dot(acc, a, b)
#endif
#define CODES (SAMEBITS_BYTES ? 4 : 2) /* of 8 bits in a word */
#define SIZE (4 / CODES)               /* bytes of one */

/* Codes of a row as words take them: without a sign, or widened. */
static inline void samebits_row(const int8_t *restrict src, int64_t n, void *to) {
    uint8_t *restrict lifted = to;
    int16_t *restrict wide = to;
    if (SAMEBITS_BYTES)
        for (int64_t k = 0; k < n; k++) lifted[k] = (uint8_t)(src[k] + LIFT);
    else
        for (int64_t k = 0; k < n; k++) wide[k] = src[k];
}

/* n codes as a column of words, which lie NR words apart; the last one is filled up with zeros.
 * Returns what a sum of products of the column with such rows begins with. */
static inline int32_t samebits_column(const int8_t *src, int64_t n, void *to) {
    int8_t *bytes = to;
    int16_t *pairs = to;
    int32_t sum = 0;
    if (!SAMEBITS_BYTES) {
        for (int64_t k = 0; k < n; k++) pairs[k / 2 * 2 * NR + k % 2] = src[k];
        if (n % 2) pairs[n / 2 * 2 * NR + 1] = 0;
        return 0;
    }
    for (int64_t k = 0; k < n; k++) sum += src[k];
    for (int64_t k = 0; k < n / 4; k++) memcpy(bytes + k * 4 * NR, src + 4 * k, 4);
    if (n % 4) {
        memset(bytes + n / 4 * 4 * NR, 0, 4);
        memcpy(bytes + n / 4 * 4 * NR, src + n / 4 * 4, (size_t)(n % 4));
    }
    return -LIFT * sum;
}

typedef struct { vec v[MR][2]; } Acc;

SAMEBITS_INLINE void acc_clear(Acc *acc) {
    for (int i = 0; i < MR; i++) acc->v[i][0] = acc->v[i][1] = vec_zero();
}

/* acc += rows * b over `words` words of 4 bytes, the first `vecs` vectors of columns. Row i starts
 * at rows[i]; words of a row are contiguous. `vecs` (1 or 2) and `bytes` are constants. */
SAMEBITS_INLINE void acc_rows(Acc *acc, const void *const rows[MR], const void *b, int64_t words,
                              int vecs, int bytes) {
    for (int64_t k = 0; k < words; k++) {
        const int16_t *at = (const int16_t *)b + k * 2 * NR;
        operand b0 = vec_load(at), b1 = vecs > 1 ? vec_load(at + NR) : b0;
#pragma GCC unroll 8
        for (int i = 0; i < MR; i++) {
            operand a = vec_pair((const int16_t *)rows[i] + 2 * k);
            acc->v[i][0] =
                bytes ? vec_bytes(acc->v[i][0], a, b0) : vec_dot(acc->v[i][0], a, b0);
            if (vecs > 1)
                acc->v[i][1] =
                    bytes ? vec_bytes(acc->v[i][1], a, b1) : vec_dot(acc->v[i][1], a, b1);
        }
    }
}

/* acc += panel * (b0 | b1), of which the first `vecs` count; packed [pair][MR][2] and each
 * [pair][LANES][2]. */
SAMEBITS_INLINE void acc_panel(Acc *acc, const int16_t *panel, const int16_t *b0, const int16_t *b1,
                               int64_t pairs, int vecs) {
    for (int64_t k = 0; k < pairs; k++) {
        operand v0 = vec_load(b0 + k * 2 * LANES);
        operand v1 = vecs > 1 ? vec_load(b1 + k * 2 * LANES) : v0;
#pragma GCC unroll 8
        for (int i = 0; i < MR; i++) {
            operand a = vec_pair(panel + k * 2 * MR + 2 * i);
            acc->v[i][0] = vec_dot(acc->v[i][0], a, v0);
            if (vecs > 1) acc->v[i][1] = vec_dot(acc->v[i][1], a, v1);
        }
    }
}

/* Every row begins with `start`. */
SAMEBITS_INLINE void acc_begin(Acc *acc, const int32_t start[NR]) {
    for (int i = 0; i < MR; i++)
        for (int v = 0; v < 2; v++) acc->v[i][v] = vec_of(start + v * LANES);
}

SAMEBITS_INLINE void acc_store(const Acc *acc, int32_t out[MR][NR]) {
    for (int i = 0; i < MR; i++) {
        vec_store(out[i], acc->v[i][0]);
        vec_store(out[i] + LANES, acc->v[i][1]);
    }
}

/* out += acc, in 64 bits. */
static inline void acc_flush(const Acc *acc, int64_t out[MR][NR]) {
    int32_t part[MR][NR];
    acc_store(acc, part);
    for (int i = 0; i < MR; i++)
        for (int j = 0; j < NR; j++) out[i][j] += part[i][j];
}

#endif
