/* --- convolution: x86 vectors ------------------------------------------------------------------
 *
 * VNNI multiplies four codes of 8 bits, not negative, with four weights and adds the products to a
 * sum of 32 bits (vpdpbusd), or two pairs of 16 bits (vpdpwssd); neither saturates. AVX2 and SSE2
 * widen to 16 bits and add two products (pmaddwd): at most 2 * 255 * 128. vpmaddubsw, which would
 * not need to widen, saturates at 16 bits. */

#include "samebits_vector.h"

#if defined(SAMEBITS_VNNI)
#define SAMEBITS_WIDTH 32
#define SAMEBITS_PIXELS 8

/* P pixels by B blocks, sums of a pixel `pitch` after those of the one before; the last block has
 * the lanes of `mask`, `last` bytes a quad. */
SAMEBITS_INLINE void samebits_tile(const samebits_steps *s, const uint8_t *x, const int8_t *w,
                                   __mmask16 mask, int32_t last, const int32_t *bias,
                                   samebits_i32 *acc, int32_t pitch, const int32_t P,
                                   const int32_t B) {
    __m512i sum[8][2];
    const int8_t *w0 = w, *w1 = w + (B - 1) * s->block;
    const int32_t first = B == 2 ? 64 : last;
    const __mmask16 mask0 = B == 2 ? (__mmask16)0xffff : mask;
    int32_t row, run, q, p;
    for (p = 0; p < P; p++) {
        sum[p][0] = _mm512_maskz_loadu_epi32(mask0, bias);
        if (B == 2) sum[p][1] = _mm512_maskz_loadu_epi32(mask, bias + 16);
    }
    for (row = 0; row < s->conv->kernel_height; row++) {
        for (run = 0; run < s->conv->runs; run++) {
            const uint8_t *from = x + row * s->row + run * s->run;
            for (q = 0; q < s->quads; q++, from += 4, w0 += first, w1 += last) {
                const __m512i v0 = _mm512_maskz_loadu_epi32(mask0, w0);
                const __m512i v1 = B == 2 ? _mm512_maskz_loadu_epi32(mask, w1) : v0;
                for (p = 0; p < P; p++) {
                    int32_t four;
                    __m512i codes;
                    __builtin_memcpy(&four, from + p * s->pixel, 4);
                    codes = _mm512_set1_epi32(four);
                    sum[p][0] = _mm512_dpbusd_epi32(sum[p][0], codes, v0);
                    if (B == 2) sum[p][1] = _mm512_dpbusd_epi32(sum[p][1], codes, v1);
                }
            }
        }
    }
    for (p = 0; p < P; p++) {
        _mm512_mask_storeu_epi32(acc + p * pitch, mask0, sum[p][0]);
        if (B == 2) _mm512_mask_storeu_epi32(acc + p * pitch + 16, mask, sum[p][1]);
    }
}

static void samebits_sums(const samebits_steps *s, const uint8_t *x, const int8_t *w, int32_t lanes,
                          const int32_t *bias, int32_t pixels, samebits_i32 *acc, int32_t pitch) {
    const int32_t rest = lanes > 16 ? lanes - 16 : lanes;
    const __mmask16 mask = samebits_first(rest);
    while (pixels > 0) {
        const int32_t done = pixels >= 8 ? 8 : pixels >= 4 ? 4 : 1;
        if (lanes > 16) {
            if (done == 8) {
                samebits_tile(s, x, w, mask, rest * 4, bias, acc, pitch, 8, 2);
            } else if (done == 4) {
                samebits_tile(s, x, w, mask, rest * 4, bias, acc, pitch, 4, 2);
            } else {
                samebits_tile(s, x, w, mask, rest * 4, bias, acc, pitch, 1, 2);
            }
        } else if (done == 8) {
            samebits_tile(s, x, w, mask, rest * 4, bias, acc, pitch, 8, 1);
        } else if (done == 4) {
            samebits_tile(s, x, w, mask, rest * 4, bias, acc, pitch, 4, 1);
        } else {
            samebits_tile(s, x, w, mask, rest * 4, bias, acc, pitch, 1, 1);
        }
        x += done * s->pixel;
        acc += done * pitch;
        pixels -= done;
    }
}

static void samebits_dots(const samebits_steps *s, const uint8_t *x, const int8_t *w, int32_t lanes,
                          const int32_t *bias, int32_t pixels, int32_t *acc) {
    samebits_sums(s, x, w, lanes, bias, pixels, acc, SAMEBITS_WIDTH);
}

/* Sums of B blocks of 16 channels from x itself, the last block with the lanes of `mask`; chains of
 * sums of their own for every J-th quad, as each waits for itself. */
SAMEBITS_INLINE void samebits_blocks(const samebits_conv *c, const uint8_t *x, const int8_t *w,
                                     int32_t o, __mmask16 mask, void *out, const int32_t B,
                                     const int32_t J) {
    const __m512i flip = _mm512_set1_epi8(c->type == SAMEBITS_INT8 ? -128 : 0);
    const int32_t quads = c->length / 4, *bias = (const int32_t *)c->bias + o;
    const int32_t step = B > 1 ? 64 : 4 * SAMEBITS_MIN(c->out_channels - o, 16);
    __m512i sum[4][4];
    int32_t q, j, b;
    for (b = 0; b < B; b++) {
        sum[b][0] = _mm512_maskz_loadu_epi32(mask, bias + 16 * b);
        for (j = 1; j < J; j++) sum[b][j] = _mm512_setzero_si512();
    }
    for (q = 0; q < quads; q += J) {
        for (j = 0; j < J && q + j < quads; j++) {
            int32_t four;
            __m512i codes;
            __builtin_memcpy(&four, x + 4 * (q + j), 4);
            codes = _mm512_xor_si512(_mm512_set1_epi32(four), flip);
            for (b = 0; b < B; b++) {
                const int8_t *from = w + (b * quads + q + j) * step;
                sum[b][j] = _mm512_dpbusd_epi32(sum[b][j], codes, _mm512_loadu_si512(from));
            }
        }
    }
    for (b = 0; b < B; b++) {
        for (j = 1; j < J; j++) sum[b][0] = _mm512_add_epi32(sum[b][0], sum[b][j]);
        samebits_store16(c->rescale.type, out, c->out_start + o + 16 * b, mask,
                         samebits_sixteen(&c->rescale, sum[b][0], mask, o + 16 * b));
    }
}

/* `linear` of one row, without a band. 0 for what is not that. */
static int samebits_vector_linear(const samebits_conv *c, const void *x, void *out) {
    const uint8_t *from = (const uint8_t *)x;
    const int8_t *w = (const int8_t *)c->weights;
    int32_t o = 0;
    if (c->batch * c->out_height * c->out_width != 1 || c->kernel_height * c->kernel_width != 1 ||
        c->pad_top || c->pad_left || c->groups != 1 || c->length % 4 ||
        !samebits_has_vector(&c->rescale)) {
        return 0;
    }
    for (; o + 64 <= c->out_channels; o += 64) {
        samebits_blocks(c, from, w + o * c->length, o, 0xffff, out, 4, 1);
    }
    for (; o < c->out_channels; o += 16) {
        const __mmask16 mask = samebits_first(c->out_channels - o);
        samebits_blocks(c, from, w + o * c->length, o, mask, out, 1, 4);
    }
    return 1;
}
/* The sums of one pixel for `count` channels from `channel` on; u: its first code in the band. A
 * product of a code (0 to 255) and a weight fits in 16 bits. */
static void samebits_depth_sums(const samebits_conv *c, const uint8_t *u, int32_t columns,
                                int32_t channel, int32_t count, int32_t *acc) {
    const int32_t *bias = (const int32_t *)c->bias + channel;
    int32_t i, row, column;
    for (i = 0; i < count; i += 16) {
        const int8_t *w = (const int8_t *)c->weights + channel + i;
        const __mmask16 mask = samebits_first(count - i);
        __m512i sum = _mm512_maskz_loadu_epi32(mask, bias + i);
        for (row = 0; row < c->kernel_height; row++) {
            for (column = 0; column < c->kernel_width; column++, w += c->channels) {
                const uint8_t *from =
                    u + i + (row * columns + column * c->dilation_x) * c->channels;
                /* pairs of 16 bits whose upper halves multiply to 0: codes are not negative */
                sum = _mm512_dpwssd_epi32(
                    sum, _mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(mask, from)),
                    _mm512_cvtepi8_epi32(_mm_maskz_loadu_epi8(mask, w)));
            }
        }
        _mm512_mask_storeu_epi32(acc + i, mask, sum);
    }
}

/* 32 weights of 8 (`short_`) or 16 bits. */
SAMEBITS_INLINE __m512i samebits_weights32(const void *w, int32_t at, int32_t short_) {
    const void *from = (const int8_t *)w + at;
    if (short_) return _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i *)from));
    return _mm512_loadu_si512((const int16_t *)w + at);
}

/* The first of them. */
SAMEBITS_INLINE __m512i samebits_weights(const void *w, int32_t at, __mmask32 mask,
                                         int32_t short_) {
    const int8_t *from = (const int8_t *)w + at;
    if (short_) return _mm512_cvtepi8_epi16(_mm256_maskz_loadu_epi8(mask, from));
    return _mm512_maskz_loadu_epi16(mask, (const int16_t *)w + at);
}

/* The sums of four vectors. */
SAMEBITS_INLINE __m128i samebits_four(const __m512i *v) {
    const __m512i a = _mm512_add_epi32(_mm512_unpacklo_epi32(v[0], v[1]),
                                       _mm512_unpackhi_epi32(v[0], v[1]));
    const __m512i b = _mm512_add_epi32(_mm512_unpacklo_epi32(v[2], v[3]),
                                       _mm512_unpackhi_epi32(v[2], v[3]));
    const __m512i c = _mm512_add_epi32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
    const __m256i d = _mm256_add_epi32(_mm512_castsi512_si256(c), _mm512_extracti64x4_epi64(c, 1));
    return _mm_add_epi32(_mm256_castsi256_si128(d), _mm256_extracti128_si256(d, 1));
}

/* `linear` of int16 whose products sum up in 32 bits, four outputs at a time, without a band: some
 * outputs of all rows, which leave the weights at hand, then the next. */
SAMEBITS_INLINE void samebits_rows16(const samebits_conv *c, const void *x, void *out,
                                     const int32_t short_) {
    const samebits_i16 *from = (const samebits_i16 *)x;
    const int64_t *bias = (const int64_t *)c->bias;
    const int32_t n = c->length, last = c->out_channels - 1;
    int64_t acc[SAMEBITS_CHUNK];
    int32_t start, pixel, o, i, j, sums[4];
    for (start = 0; start <= last; start += SAMEBITS_CHUNK) {
        const int32_t count = SAMEBITS_MIN(last + 1 - start, SAMEBITS_CHUNK);
        for (pixel = 0; pixel < c->out_width; pixel++) {
            for (o = 0; o < count; o += 4) {
                int32_t row[4];
                __m512i sum[4];
                for (j = 0; j < 4; j++) { /* rows that are not there are the last one */
                    row[j] = SAMEBITS_MIN(start + o + j, last) * n;
                    sum[j] = _mm512_setzero_si512();
                }
                for (i = 0; i + 32 <= n; i += 32) {
                    const __m512i codes = _mm512_loadu_si512(from + pixel * n + i);
                    for (j = 0; j < 4; j++) {
                        const __m512i v = samebits_weights32(c->weights, row[j] + i, short_);
                        sum[j] = _mm512_dpwssd_epi32(sum[j], codes, v);
                    }
                }
                if (i < n) {
                    const __mmask32 mask = ((__mmask32)1 << (n - i)) - 1u;
                    const __m512i codes = _mm512_maskz_loadu_epi16(mask, from + pixel * n + i);
                    for (j = 0; j < 4; j++) {
                        const __m512i v = samebits_weights(c->weights, row[j] + i, mask, short_);
                        sum[j] = _mm512_dpwssd_epi32(sum[j], codes, v);
                    }
                }
                _mm_storeu_si128((__m128i *)(void *)sums, samebits_four(sum));
                for (j = 0; j < 4 && o + j < count; j++) {
                    acc[o + j] = bias[start + o + j] + sums[j];
                }
            }
            samebits_finish64(&c->rescale, start, count, acc, out,
                              c->out_start + pixel * c->out_pixel + start);
        }
    }
}

/* 0 for what is not that. */
static int samebits_vector_linear16(const samebits_conv *c, const void *x, void *out) {
    if (c->batch * c->out_height != 1 || c->kernel_height * c->kernel_width != 1 ||
        c->out_width != c->width || c->pad_top || c->pad_left || c->groups != 1 ||
        c->type != SAMEBITS_INT16 || c->block < c->length) {
        return 0;
    }
    if (c->w_type == SAMEBITS_INT8) {
        samebits_rows16(c, x, out, 1);
    } else {
        samebits_rows16(c, x, out, 0);
    }
    return 1;
}

#elif defined(__AVX2__)
#include <immintrin.h>
#define SAMEBITS_WIDTH 16
#define SAMEBITS_PIXELS 2

/* 16-bit products, two summed to 32 bits: at most 2 * 255 * 128. Reads 16 bytes of weights for
 * fewer lanes too; what follows the last block is slack. */
SAMEBITS_INLINE void samebits_tile(const samebits_steps *s, const uint8_t *x, const int8_t *w,
                                   int32_t step, int32_t *acc, const int32_t P) {
    __m256i sum[2][4];
    int32_t row, run, q, p, j;
    for (p = 0; p < P; p++) {
        for (j = 0; j < 4; j++) sum[p][j] = _mm256_setzero_si256();
    }
    for (row = 0; row < s->conv->kernel_height; row++) {
        for (run = 0; run < s->conv->runs; run++) {
            const uint8_t *from = x + row * s->row + run * s->run;
            for (q = 0; q < s->quads; q++, from += 4, w += step) {
                __m256i codes[2];
                for (p = 0; p < P; p++) {
                    int32_t four;
                    __builtin_memcpy(&four, from + p * s->pixel, 4);
                    codes[p] = _mm256_cvtepu8_epi16(_mm_set1_epi32(four));
                }
                for (j = 0; j < 4; j++) {
                    const __m256i v = _mm256_cvtepi8_epi16(
                        _mm_loadu_si128((const __m128i *)(const void *)(w + 16 * j)));
                    for (p = 0; p < P; p++) {
                        sum[p][j] = _mm256_add_epi32(sum[p][j], _mm256_madd_epi16(codes[p], v));
                    }
                }
            }
        }
    }
    for (p = 0; p < P; p++) {
        for (j = 0; j < 2; j++) { /* halves of a lane: pairs, then the order of lanes */
            const __m256i pairs = _mm256_hadd_epi32(sum[p][2 * j], sum[p][2 * j + 1]);
            _mm256_storeu_si256((__m256i *)(void *)(acc + p * SAMEBITS_WIDTH + 8 * j),
                                _mm256_permute4x64_epi64(pairs, 0xd8));
        }
    }
}

static void samebits_dots(const samebits_steps *s, const uint8_t *x, const int8_t *w, int32_t lanes,
                          const int32_t *bias, int32_t pixels, int32_t *acc) {
    int32_t p, lane;
    if (pixels == 2) {
        samebits_tile(s, x, w, lanes * 4, acc, 2);
    } else {
        samebits_tile(s, x, w, lanes * 4, acc, 1);
    }
    for (p = 0; p < pixels; p++) {
        for (lane = 0; lane < lanes; lane++) {
            int32_t *sum = acc + p * SAMEBITS_WIDTH + lane;
            *sum = samebits_signed32((uint32_t)*sum + (uint32_t)bias[lane]);
        }
    }
}

#elif defined(__SSE2__)
#include <emmintrin.h>
#define SAMEBITS_WIDTH 16
#define SAMEBITS_PIXELS 2

/* As for AVX2: P pixels by 8 channels, widened by unpacking. */
SAMEBITS_INLINE void samebits_tile(const samebits_steps *s, const uint8_t *x, const int8_t *w,
                                   int32_t step, int32_t *acc, const int32_t P) {
    const __m128i zero = _mm_setzero_si128();
    __m128i sum[2][4];
    int32_t row, run, q, p, j;
    for (p = 0; p < P; p++) {
        for (j = 0; j < 4; j++) sum[p][j] = zero;
    }
    for (row = 0; row < s->conv->kernel_height; row++) {
        for (run = 0; run < s->conv->runs; run++) {
            const uint8_t *from = x + row * s->row + run * s->run;
            for (q = 0; q < s->quads; q++, from += 4, w += step) {
                __m128i codes[2];
                for (p = 0; p < P; p++) {
                    int32_t four;
                    __builtin_memcpy(&four, from + p * s->pixel, 4);
                    codes[p] = _mm_unpacklo_epi8(_mm_cvtsi32_si128(four), zero);
                    codes[p] = _mm_unpacklo_epi64(codes[p], codes[p]);
                }
                for (j = 0; j < 2; j++) {
                    const __m128i v = _mm_loadu_si128((const __m128i *)(const void *)(w + 16 * j));
                    const __m128i sign = _mm_cmpgt_epi8(zero, v);
                    const __m128i low = _mm_unpacklo_epi8(v, sign);
                    const __m128i high = _mm_unpackhi_epi8(v, sign);
                    for (p = 0; p < P; p++) {
                        sum[p][2 * j] =
                            _mm_add_epi32(sum[p][2 * j], _mm_madd_epi16(codes[p], low));
                        sum[p][2 * j + 1] =
                            _mm_add_epi32(sum[p][2 * j + 1], _mm_madd_epi16(codes[p], high));
                    }
                }
            }
        }
    }
    for (p = 0; p < P; p++) {
        for (j = 0; j < 2; j++) {
            const __m128i a = _mm_shuffle_epi32(sum[p][2 * j], 0xd8);
            const __m128i b = _mm_shuffle_epi32(sum[p][2 * j + 1], 0xd8);
            const __m128i total = _mm_add_epi32(_mm_unpacklo_epi64(a, b), _mm_unpackhi_epi64(a, b));
            _mm_storeu_si128((__m128i *)(void *)(acc + p * SAMEBITS_WIDTH + 4 * j), total);
        }
    }
}

static void samebits_dots(const samebits_steps *s, const uint8_t *x, const int8_t *w, int32_t lanes,
                          const int32_t *bias, int32_t pixels, int32_t *acc) {
    int32_t p, lane;
    for (lane = 0; lane < lanes; lane += 8) {
        if (pixels == 2) {
            samebits_tile(s, x, w + 4 * lane, lanes * 4, acc + lane, 2);
        } else {
            samebits_tile(s, x, w + 4 * lane, lanes * 4, acc + lane, 1);
        }
    }
    for (p = 0; p < pixels; p++) {
        for (lane = 0; lane < lanes; lane++) {
            int32_t *sum = acc + p * SAMEBITS_WIDTH + lane;
            *sum = samebits_signed32((uint32_t)*sum + (uint32_t)bias[lane]);
        }
    }
}
#endif
