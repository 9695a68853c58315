/* --- convolution ------------------------------------------------------------------------------
 *
 * A band of the scratch memory holds the rows that `tile` output pixels read, padding included. A
 * kernel row of a pixel is then a run of codes side by side (or `runs` of them where it is
 * dilated), and every output a dot product of runs with weights in the same order.
 *
 * Codes of 8 bits are held as x - least code of their type, so that they are not negative, and
 * uint16 as x - 32768; biases are corrected for that. */

#include "samebits_integer.h"

/* Rows that the pixels from (oy, ox) on read, as [kernel_height][columns][depth]. */
#define SAMEBITS_BAND(NAME, T, B, CODE)                                                            \
    static void NAME(const samebits_conv *c, const T *x, int32_t group, int32_t oy, int32_t ox,    \
                     int32_t columns, B *band, B pad) {                                            \
        const int32_t depth = c->channels / c->groups;                                             \
        const int32_t first = ox * c->stride_x - c->pad_left;                                      \
        const int32_t begin = samebits_clamp32(-first, 0, columns);                                \
        const int32_t end = samebits_clamp32(c->width - first, begin, columns);                    \
        int32_t row, i, j;                                                                         \
        for (row = 0; row < c->kernel_height; row++, band += columns * depth) {                    \
            const int32_t y = oy * c->stride_y - c->pad_top + row * c->dilation_y;                 \
            const int32_t inside = y >= 0 && y < c->height;                                        \
            const int32_t from = inside ? begin : columns, to = inside ? end : columns;            \
            for (i = 0; i < from * depth; i++) band[i] = pad;                                      \
            for (i = to * depth; i < columns * depth; i++) band[i] = pad;                          \
            if (from >= to) continue;                                                              \
            x += (y * c->width + first + from) * c->channels + group * depth;                      \
            if (c->groups == 1) {                                                                  \
                for (i = 0; i < (to - from) * depth; i++) (band + from * depth)[i] = CODE(x[i]);   \
            } else {                                                                               \
                for (j = from; j < to; j++) {                                                      \
                    const T *pixel = x + (j - from) * c->channels;                                 \
                    for (i = 0; i < depth; i++) band[j * depth + i] = CODE(pixel[i]);              \
                }                                                                                  \
            }                                                                                      \
            x -= (y * c->width + first + from) * c->channels + group * depth;                      \
        }                                                                                          \
    }

#define SAMEBITS_FROM_S8(v) (uint8_t)((v) ^ 0x80)
#define SAMEBITS_FROM_U16(v) (int16_t)((int32_t)(v)-32768)

SAMEBITS_BAND(samebits_band_u8, uint8_t, uint8_t, (uint8_t))
SAMEBITS_BAND(samebits_band_s8, uint8_t, uint8_t, SAMEBITS_FROM_S8)
SAMEBITS_BAND(samebits_band_s8_16, int8_t, int16_t, (int16_t))
SAMEBITS_BAND(samebits_band_u8_16, uint8_t, int16_t, (int16_t))
SAMEBITS_BAND(samebits_band_s16, samebits_i16, int16_t, (int16_t))
SAMEBITS_BAND(samebits_band_u16, samebits_u16, int16_t, SAMEBITS_FROM_U16)

static int32_t samebits_columns(const samebits_conv *c, int32_t pixels) {
    return (pixels - 1) * c->stride_x + (c->kernel_width - 1) * c->dilation_x + 1;
}

static void samebits_fill8(const samebits_conv *c, const void *x, int32_t n, int32_t group,
                           int32_t oy, int32_t ox, int32_t columns, uint8_t *band) {
    const uint8_t *image = (const uint8_t *)x + n * c->height * c->width * c->channels;
    if (c->type == SAMEBITS_UINT8) {
        samebits_band_u8(c, image, group, oy, ox, columns, band, (uint8_t)c->pad_code);
    } else {
        samebits_band_s8(c, image, group, oy, ox, columns, band, (uint8_t)(c->pad_code + 128));
    }
}

static void samebits_fill16(const samebits_conv *c, const void *x, int32_t n, int32_t group,
                            int32_t oy, int32_t ox, int32_t columns, int16_t *band) {
    const int32_t start = n * c->height * c->width * c->channels;
    const int16_t pad = (int16_t)(c->type == SAMEBITS_UINT16 ? c->pad_code - 32768 : c->pad_code);
    switch (c->type) {
    case SAMEBITS_INT8:
        samebits_band_s8_16(c, (const int8_t *)x + start, group, oy, ox, columns, band, pad);
        break;
    case SAMEBITS_UINT8:
        samebits_band_u8_16(c, (const uint8_t *)x + start, group, oy, ox, columns, band, pad);
        break;
    case SAMEBITS_INT16:
        samebits_band_s16(c, (const samebits_i16 *)x + start, group, oy, ox, columns, band, pad);
        break;
    default:
        samebits_band_u16(c, (const samebits_u16 *)x + start, group, oy, ox, columns, band, pad);
        break;
    }
}

/* 8 bits: weights lie in blocks of up to 16 output channels,
 * [group][block][kernel row][run][length / 4][channel of the block][4], runs padded with zeros.
 * samebits_dots computes `pixels` by `lanes` sums into acc[pixel][SAMEBITS_WIDTH]. */

typedef struct {
    const samebits_conv *conv;
    int32_t quads;               /* weights of a run and channel, / 4 */
    int32_t pixel, row, run;     /* bytes from one to the next in the band */
    int32_t block;               /* bytes of a full block of weights */
} samebits_steps;

#if defined(__AVX512VNNI__) && defined(__AVX512BW__)
#include <immintrin.h>
#define SAMEBITS_WIDTH 32
#define SAMEBITS_PIXELS 8

/* P pixels by B blocks, sums of a pixel `pitch` after those of the one before; the last block has the
 * lanes of `mask`, `last` bytes a quad. */
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
    const __mmask16 mask = (__mmask16)((1u << rest) - 1u);
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

#ifdef SAMEBITS_AVX512
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
#endif

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

#elif defined(__ARM_FEATURE_DSP) && defined(__ARM_FEATURE_SIMD32) && defined(__ARMEL__)
#include <arm_acle.h>
#define SAMEBITS_WIDTH 16
#define SAMEBITS_PIXELS 2

SAMEBITS_INLINE uint32_t samebits_word(const void *p) {
    uint32_t word;
    __builtin_memcpy(&word, p, 4);
    return word;
}

/* sum + the products of four codes and four weights, split in pairs: words hold four bytes,
 * UXTB16 and SXTB16 take every other one, SMLAD multiplies two pairs and adds; its sum wraps. */
#define SAMEBITS_PAIRS(sum, even, odd, w) __smlad(odd, w##_odd, __smlad(even, w##_even, sum))
#define SAMEBITS_WEIGHTS(w, from)                                                                  \
    const uint32_t w##_word = samebits_word(from);                                                 \
    const int32_t w##_even = (int32_t)__sxtb16((int8x4_t)w##_word);                                \
    const int32_t w##_odd = (int32_t)__sxtb16((int8x4_t)(w##_word >> 8 | w##_word << 24));
#define SAMEBITS_CODES(x, from)                                                                    \
    const uint32_t x##_word = samebits_word(from);                                                 \
    const int32_t x##_even = (int32_t)__uxtb16(x##_word);                                          \
    const int32_t x##_odd = (int32_t)__uxtb16(x##_word >> 8 | x##_word << 24);

/* 1 or 2 pixels by 1 or 2 channels. */
SAMEBITS_INLINE void samebits_tile(const samebits_steps *s, const uint8_t *x, const int8_t *w,
                                   int32_t step, const int32_t *bias, int32_t *acc,
                                   const int32_t P, const int32_t L) {
    const int32_t next = P == 2 ? s->pixel : 0;
    int32_t s00 = bias[0], s01 = bias[L - 1], s10 = s00, s11 = s01, row, run;
    for (row = 0; row < s->conv->kernel_height; row++) {
        for (run = 0; run < s->conv->runs; run++) {
            const uint8_t *from = x + row * s->row + run * s->run;
            const uint8_t *end = from + 4 * s->quads;
            for (; from != end; from += 4, w += step) {
                SAMEBITS_CODES(a, from)
                SAMEBITS_CODES(b, from + next)
                SAMEBITS_WEIGHTS(u, w)
                s00 = SAMEBITS_PAIRS(s00, a_even, a_odd, u);
                if (P == 2) s10 = SAMEBITS_PAIRS(s10, b_even, b_odd, u);
                if (L == 2) {
                    SAMEBITS_WEIGHTS(v, w + 4)
                    s01 = SAMEBITS_PAIRS(s01, a_even, a_odd, v);
                    if (P == 2) s11 = SAMEBITS_PAIRS(s11, b_even, b_odd, v);
                }
            }
        }
    }
    acc[0] = s00;
    if (L == 2) acc[1] = s01;
    if (P == 2) acc[SAMEBITS_WIDTH] = s10;
    if (P == 2 && L == 2) acc[SAMEBITS_WIDTH + 1] = s11;
}

static void samebits_dots(const samebits_steps *s, const uint8_t *x, const int8_t *w, int32_t lanes,
                          const int32_t *bias, int32_t pixels, int32_t *acc) {
    int32_t lane;
    for (lane = 0; lane + 1 < lanes; lane += 2) {
        if (pixels == 2) {
            samebits_tile(s, x, w + 4 * lane, lanes * 4, bias + lane, acc + lane, 2, 2);
        } else {
            samebits_tile(s, x, w + 4 * lane, lanes * 4, bias + lane, acc + lane, 1, 2);
        }
    }
    if (lane < lanes) {
        if (pixels == 2) {
            samebits_tile(s, x, w + 4 * lane, lanes * 4, bias + lane, acc + lane, 2, 1);
        } else {
            samebits_tile(s, x, w + 4 * lane, lanes * 4, bias + lane, acc + lane, 1, 1);
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
                    const __m128i low = _mm_unpacklo_epi8(v, sign), high = _mm_unpackhi_epi8(v, sign);
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

#else
#define SAMEBITS_WIDTH 16
#define SAMEBITS_PIXELS 1

#define SAMEBITS_QUAD(v) (uint32_t)(a * (v)[0] + b * (v)[1] + c * (v)[2] + d * (v)[3])

/* One pixel by L channels, 1 or 4. */
SAMEBITS_INLINE void samebits_tile(const samebits_steps *s, const uint8_t *x, const int8_t *w,
                                   int32_t step, const int32_t *bias, int32_t *acc,
                                   const int32_t L) {
    uint32_t s0 = (uint32_t)bias[0], s1 = 0, s2 = 0, s3 = 0;
    int32_t row, run, q;
    if (L == 4) {
        s1 = (uint32_t)bias[1];
        s2 = (uint32_t)bias[2];
        s3 = (uint32_t)bias[3];
    }
    for (row = 0; row < s->conv->kernel_height; row++) {
        for (run = 0; run < s->conv->runs; run++) {
            const uint8_t *from = x + row * s->row + run * s->run;
            for (q = 0; q < s->quads; q++, from += 4, w += step) {
                const int32_t a = from[0], b = from[1], c = from[2], d = from[3];
                s0 += SAMEBITS_QUAD(w);
                if (L == 4) {
                    s1 += SAMEBITS_QUAD(w + 4);
                    s2 += SAMEBITS_QUAD(w + 8);
                    s3 += SAMEBITS_QUAD(w + 12);
                }
            }
        }
    }
    acc[0] = samebits_signed32(s0);
    if (L == 4) {
        acc[1] = samebits_signed32(s1);
        acc[2] = samebits_signed32(s2);
        acc[3] = samebits_signed32(s3);
    }
}

static void samebits_dots(const samebits_steps *s, const uint8_t *x, const int8_t *w, int32_t lanes,
                          const int32_t *bias, int32_t pixels, int32_t *acc) {
    int32_t lane;
    (void)pixels;
    for (lane = 0; lane + 4 <= lanes; lane += 4) {
        samebits_tile(s, x, w + 4 * lane, lanes * 4, bias + lane, acc + lane, 4);
    }
    for (; lane < lanes; lane++) {
        samebits_tile(s, x, w + 4 * lane, lanes * 4, bias + lane, acc + lane, 1);
    }
}
#endif

void samebits_run_conv8(const samebits_conv *c, const void *x, void *out, void *scratch) {
    const int32_t outputs = c->out_channels / c->groups, depth = c->channels / c->groups;
    const int32_t *bias = (const int32_t *)c->bias;
    int32_t acc[SAMEBITS_PIXELS * SAMEBITS_WIDTH];
    int32_t n, group, oy, ox, o, p, i;
    uint8_t *band = (uint8_t *)scratch;
    samebits_steps s;
#if defined(__AVX512VNNI__) && defined(SAMEBITS_AVX512)
    if (samebits_vector_linear(c, x, out)) return;
#endif
    s.conv = c;
    s.quads = (c->length + 3) / 4;
    s.pixel = c->stride_x * depth;
    s.run = c->dilation_x * depth;
    s.block = c->kernel_height * c->runs * s.quads * 64;
    for (n = 0; n < c->batch; n++) {
        for (group = 0; group < c->groups; group++) {
            const int8_t *weights = (const int8_t *)c->weights + group * outputs * (s.block / 16);
            for (oy = 0; oy < c->out_height; oy++) {
                for (ox = 0; ox < c->out_width; ox += c->tile) {
                    const int32_t pixels = SAMEBITS_MIN(c->tile, c->out_width - ox);
                    const int32_t columns = samebits_columns(c, pixels);
                    s.row = columns * depth;
                    samebits_fill8(c, x, n, group, oy, ox, columns, band);
                    for (o = 0; o < outputs; o += SAMEBITS_WIDTH) {
                        const int32_t lanes = SAMEBITS_MIN(outputs - o, SAMEBITS_WIDTH);
                        const int32_t channel = group * outputs + o;
                        const int8_t *w = weights + o * (s.block / 16);
                        int32_t start = c->out_start + n * c->out_batch + oy * c->out_row +
                                        ox * c->out_pixel + channel;
#if defined(__AVX512VNNI__) && defined(SAMEBITS_AVX512)
                        if (c->rescale.form == SAMEBITS_STORE && c->rescale.type == SAMEBITS_INT32) {
                            samebits_sums(&s, band, w, lanes, bias + channel, pixels,
                                          (samebits_i32 *)out + start, c->out_pixel);
                            continue;
                        }
#endif
                        for (p = 0; p < pixels; p += SAMEBITS_PIXELS) {
                            const int32_t some = SAMEBITS_MIN(pixels - p, SAMEBITS_PIXELS);
                            samebits_dots(&s, band + p * s.pixel, w, lanes, bias + channel, some, acc);
                            for (i = 0; i < some; i++, start += c->out_pixel) {
                                samebits_finish32(&c->rescale, channel, lanes,
                                                  acc + i * SAMEBITS_WIDTH, out, start);
                            }
                        }
                    }
                }
            }
        }
    }
}

/* The sums of one pixel for `count` channels from `channel` on; u: its first code in the band. A
 * product of a code (0 to 255) and a weight fits in 16 bits. */
#if defined(__AVX512VNNI__) && defined(__AVX512BW__) && defined(__AVX512VL__)
static void samebits_depth_sums(const samebits_conv *c, const uint8_t *u, int32_t columns,
                                int32_t channel, int32_t count, int32_t *acc) {
    const int32_t *bias = (const int32_t *)c->bias + channel;
    int32_t i, row, column;
    for (i = 0; i < count; i += 16) {
        const int8_t *w = (const int8_t *)c->weights + channel + i;
        const __mmask16 mask =
            count - i >= 16 ? (__mmask16)0xffff : (__mmask16)((1u << (count - i)) - 1u);
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
#else
static void samebits_depth_sums(const samebits_conv *c, const uint8_t *u, int32_t columns,
                                int32_t channel, int32_t count, int32_t *acc) {
    const int32_t *bias = (const int32_t *)c->bias + channel;
    const int8_t *w = (const int8_t *)c->weights + channel;
    uint32_t sum[SAMEBITS_CHUNK];
    int32_t row, column, i;
    for (i = 0; i < count; i++) sum[i] = (uint32_t)bias[i];
    for (row = 0; row < c->kernel_height; row++) {
        for (column = 0; column < c->kernel_width; column++, w += c->channels) {
            const uint8_t *from = u + (row * columns + column * c->dilation_x) * c->channels;
            for (i = 0; i < count; i++) {
                const int16_t product = (int16_t)((int16_t)from[i] * w[i]);
                const int32_t wide = product;
                sum[i] += (uint32_t)wide;
            }
        }
    }
    for (i = 0; i < count; i++) acc[i] = samebits_signed32(sum[i]);
}
#endif

/* One input and one output channel per group; weights [KH][KW][C]. */
void samebits_run_depthwise8(const samebits_conv *c, const void *x, void *out, void *scratch) {
    const int32_t channels = c->channels;
    uint8_t *band = (uint8_t *)scratch;
    int32_t n, oy, ox, p, channel, acc[SAMEBITS_CHUNK];
    samebits_conv whole = *c;
    whole.groups = 1; /* the band holds all channels */
    for (n = 0; n < c->batch; n++) {
        for (oy = 0; oy < c->out_height; oy++) {
            for (ox = 0; ox < c->out_width; ox += c->tile) {
                const int32_t pixels = SAMEBITS_MIN(c->tile, c->out_width - ox);
                const int32_t columns = samebits_columns(c, pixels);
                samebits_fill8(&whole, x, n, 0, oy, ox, columns, band);
                for (p = 0; p < pixels; p++) {
                    const int32_t start =
                        c->out_start + n * c->out_batch + oy * c->out_row + (ox + p) * c->out_pixel;
                    for (channel = 0; channel < channels; channel += SAMEBITS_CHUNK) {
                        const int32_t count = SAMEBITS_MIN(channels - channel, SAMEBITS_CHUNK);
                        samebits_depth_sums(c, band + channel + p * c->stride_x * channels, columns,
                                            channel, count, acc);
                        samebits_finish32(&c->rescale, channel, count, acc, out, start + channel);
                    }
                }
            }
        }
    }
}

/* Sum of n products; 32-bit sums of `block` of them are exact (0: not even one of two). */
#define SAMEBITS_DOT(NAME, W)                                                                      \
    static int64_t NAME(const int16_t *x, const W *w, int32_t n, int32_t block) {                  \
        int64_t total = 0;                                                                         \
        int32_t i, start;                                                                          \
        if (block == 0) {                                                                          \
            for (i = 0; i < n; i++) total += (int32_t)x[i] * (int32_t)w[i];                        \
            return total;                                                                          \
        }                                                                                          \
        for (start = 0; start < n; start += block) {                                               \
            const int32_t end = SAMEBITS_MIN(n - start, block);                                    \
            int32_t sum = 0;                                                                       \
            for (i = 0; i < end; i++) sum += (int32_t)x[start + i] * (int32_t)w[start + i];        \
            total += sum;                                                                          \
        }                                                                                          \
        return total;                                                                              \
    }

SAMEBITS_DOT(samebits_dot8, int8_t)
SAMEBITS_DOT(samebits_dot16, int16_t)

#if defined(__AVX512VNNI__) && defined(SAMEBITS_AVX512)
/* 32 weights of 8 (`short_`) or 16 bits. */
SAMEBITS_INLINE __m512i samebits_weights32(const void *w, int32_t at, int32_t short_) {
    const int8_t *from = (const int8_t *)w + at;
    if (short_) return _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i *)(const void *)from));
    return _mm512_loadu_si512((const int16_t *)w + at);
}

/* The first of them. */
SAMEBITS_INLINE __m512i samebits_weights(const void *w, int32_t at, __mmask32 mask, int32_t short_) {
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
#endif

/* Weights [O][kernel row][run][length] of 8 or 16 bits; sums of 64 bits. */
void samebits_run_conv16(const samebits_conv *c, const void *x, void *out, void *scratch) {
    const int32_t outputs = c->out_channels / c->groups, depth = c->channels / c->groups;
    const int64_t *bias = (const int64_t *)c->bias;
    const int32_t taps = c->kernel_height * c->runs * c->length;
    int32_t n, group, oy, ox, p, o, i, row, run;
    int16_t *band = (int16_t *)scratch;
    int64_t acc[SAMEBITS_CHUNK];
#if defined(__AVX512VNNI__) && defined(SAMEBITS_AVX512)
    if (samebits_vector_linear16(c, x, out)) return;
#endif
    for (n = 0; n < c->batch; n++) {
        for (group = 0; group < c->groups; group++) {
            for (oy = 0; oy < c->out_height; oy++) {
                for (ox = 0; ox < c->out_width; ox += c->tile) {
                    const int32_t pixels = SAMEBITS_MIN(c->tile, c->out_width - ox);
                    const int32_t columns = samebits_columns(c, pixels);
                    samebits_fill16(c, x, n, group, oy, ox, columns, band);
                    for (p = 0; p < pixels; p++) {
                        const int16_t *from = band + p * c->stride_x * depth;
                        const int32_t start = c->out_start + n * c->out_batch + oy * c->out_row +
                                              (ox + p) * c->out_pixel + group * outputs;
                        for (o = 0; o < outputs; o += SAMEBITS_CHUNK) {
                            const int32_t count = SAMEBITS_MIN(outputs - o, SAMEBITS_CHUNK);
                            const int32_t channel = group * outputs + o;
                            for (i = 0; i < count; i++) {
                                int32_t at = (channel + i) * taps;
                                int64_t sum = bias[channel + i];
                                for (row = 0; row < c->kernel_height; row++) {
                                    for (run = 0; run < c->runs; run++, at += c->length) {
                                        const int16_t *u =
                                            from + (row * columns + run * c->dilation_x) * depth;
                                        sum += c->w_type == SAMEBITS_INT8
                                                   ? samebits_dot8(u, (const int8_t *)c->weights + at,
                                                                   c->length, c->block)
                                                   : samebits_dot16(u, (const int16_t *)c->weights + at,
                                                                    c->length, c->block);
                                    }
                                }
                                acc[i] = sum;
                            }
                            samebits_finish64(&c->rescale, channel, count, acc, out, start + o);
                        }
                    }
                }
            }
        }
    }
}

/* Every other combination of types, and weights that are data: one output at a time. */
static uint64_t samebits_one(const samebits_conv_any *c, const void *x, const void *w, int32_t n,
                             int32_t o, int32_t oy, int32_t ox) {
    const int32_t depth = c->channels / c->groups;
    const int32_t group = o / (c->out_channels / c->groups);
    uint64_t sum = 0;
    int32_t p, q, k;
    for (p = 0; p < c->kernel_height; p++) {
        for (q = 0; q < c->kernel_width; q++) {
            const int32_t tap = ((o * c->kernel_height + p) * c->kernel_width + q) * depth;
            int32_t y, z, inside;
            if (c->transposed) {
                const int32_t top = oy + c->pad_top - p * c->dilation_y;
                const int32_t left = ox + c->pad_left - q * c->dilation_x;
                y = top / c->stride_y;
                z = left / c->stride_x;
                inside = top >= 0 && left >= 0 && y * c->stride_y == top && z * c->stride_x == left;
            } else {
                y = oy * c->stride_y - c->pad_top + p * c->dilation_y;
                z = ox * c->stride_x - c->pad_left + q * c->dilation_x;
                inside = y >= 0 && z >= 0;
            }
            inside = inside && y < c->height && z < c->width;
            if (!inside && c->transposed) continue;
            for (k = 0; k < depth; k++) {
                const int32_t from =
                    ((n * c->height + y) * c->width + z) * c->channels + group * depth + k;
                const int64_t code = inside ? samebits_get(x, c->x_type, from) : c->pad_code;
                const int64_t zero = c->transposed ? c->pad_code : 0;
                sum += (uint64_t)((code - zero) * samebits_get(w, c->w_type, tap + k));
            }
        }
    }
    return sum;
}

void samebits_run_conv_any(const samebits_conv_any *c, const void *x, const void *w, const void *b,
                           void *out) {
    int32_t n, oy, ox, o, start = 0;
    for (n = 0; n < c->batch; n++) {
        for (oy = 0; oy < c->out_height; oy++) {
            for (ox = 0; ox < c->out_width; ox++) {
                for (o = 0; o < c->out_channels; o++, start++) {
                    const uint64_t bias = (uint64_t)samebits_get(b, c->b_type, o);
                    int64_t acc = samebits_signed64(bias + samebits_one(c, x, w, n, o, oy, ox));
                    samebits_finish64(&c->rescale, o, 1, &acc, out, start);
                }
            }
        }
    }
}
