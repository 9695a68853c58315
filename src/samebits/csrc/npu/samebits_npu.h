/* The arithmetic of the neural processor in portable C99 (docs/spec/npu.md 1). Every file that
   `samebits concord --to c` writes begins with a copy of this.

   Tensors are floats that hold binary16 numbers, [positions][lanes]. Nothing depends on the order
   of a sum: sums of codes are integers, sums of units are exact (samebits_sum). */
#ifndef SAMEBITS_NPU_H
#define SAMEBITS_NPU_H

#include <float.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__FAST_MATH__) || (defined(FLT_EVAL_METHOD) && FLT_EVAL_METHOD != 0)
#error "expected float and double arithmetic of IEEE 754, found another; leave -ffast-math out"
#endif

#if defined(__GNUC__)
#define SAMEBITS_MAY_BE_UNUSED __attribute__((unused))
#else
#define SAMEBITS_MAY_BE_UNUSED
#endif
#define SAMEBITS_NPU static inline SAMEBITS_MAY_BE_UNUSED

#define SAMEBITS_FRACTION 1099511627776.0 /* 2**40: dot products are sums of multiples of 2**-40 */
#define SAMEBITS_EXACT 9007199254740992.0 /* 2**53: binary64 holds integers up to here */

/* ---- binary16 ------------------------------------------------------------------------------ */

SAMEBITS_NPU uint32_t samebits_word(float x) {
    uint32_t word;
    memcpy(&word, &x, sizeof word);
    return word;
}

SAMEBITS_NPU float samebits_float(uint32_t word) {
    float x;
    memcpy(&x, &word, sizeof x);
    return x;
}

/* The nearest binary16 number, ties to even, gradual underflow. */
SAMEBITS_NPU float samebits_half(float x) {
    uint32_t word = samebits_word(x), sign = word & 0x80000000u, size = word ^ sign;
    if (size < 0x38800000u) /* below 2**-14: multiples of 2**-24, as 0.5 and on are in binary32 */
        return samebits_float(samebits_word(samebits_float(size) + 0.5f - 0.5f) | sign);
    if (size >= 0x477ff000u) /* 65520 and on, infinity, NaN */
        return size > 0x7f800000u ? x : samebits_float(0x7f800000u | sign);
    return samebits_float(((size + 0xfffu + (size >> 13 & 1u)) & ~0x1fffu) | sign);
}

/* Binary64 (0, or at least 2**-40 in magnitude) rounded once: to odd at the 24 bits of binary32
   first, which makes the second rounding innocuous (S. Boldo, G. Melquiond, IEEE Trans. Computers
   57(4), 2008). */
SAMEBITS_NPU float samebits_half_of(double x) {
    const uint64_t below = ((uint64_t)1 << 29) - 1;
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    bits = (bits | ((bits & below) + below)) & ~below;
    memcpy(&x, &bits, sizeof bits);
    return samebits_half((float)x);
}

/* The bits of a binary16 number; of NaN 0x7E00. */
SAMEBITS_NPU uint16_t samebits_bits(float x) {
    uint32_t word = samebits_word(x), size = word & 0x7fffffffu, sign = word >> 16 & 0x8000u;
    if (size > 0x7f800000u)
        return 0x7e00u;
    if (size == 0x7f800000u)
        return (uint16_t)(sign | 0x7c00u);
    if (size < 0x38800000u)
        return (uint16_t)(sign | (uint32_t)(samebits_float(size) * 16777216.0f));
    return (uint16_t)(sign | ((size - 0x38000000u) >> 13));
}

SAMEBITS_NPU float samebits_number(uint16_t bits) {
    uint32_t sign = (uint32_t)(bits & 0x8000u) << 16, size = bits & 0x7fffu;
    if (size < 0x400u)
        return samebits_float(samebits_word((float)size / 16777216.0f) | sign);
    const uint32_t wide = size >= 0x7c00u ? size << 13 | 0x7f800000u : (size << 13) + 0x38000000u;
    return samebits_float(wide | sign);
}

SAMEBITS_NPU float samebits_look_up(const uint16_t *table, float x) {
    return samebits_number(table[samebits_bits(x)]);
}

/* ---- vectors ------------------------------------------------------------------------------- */

/* An input [channels][positions] or, if `last`, [positions][channels], rounded to binary16. */
SAMEBITS_NPU void samebits_receive(float *y, const float *x, size_t positions, size_t channels,
                                   int last) {
    for (size_t p = 0; p < positions; p++)
        for (size_t c = 0; c < channels; c++)
            y[p * channels + c] = samebits_half(x[last ? p * channels + c : c * positions + p]);
}

/* An output of that form as bits; the tensor has `lanes` lanes a position. */
SAMEBITS_NPU void samebits_send(uint16_t *y, const float *x, size_t positions, size_t lanes,
                                size_t channels, int last) {
    for (size_t p = 0; p < positions; p++)
        for (size_t c = 0; c < channels; c++)
            y[last ? p * channels + c : c * positions + p] = samebits_bits(x[p * lanes + c]);
}

SAMEBITS_NPU void samebits_widen(float *y, const float *x, size_t positions, size_t before,
                                 size_t after, float padding) {
    for (size_t p = 0; p < positions; p++)
        for (size_t c = 0; c < after; c++)
            y[p * after + c] = c < before ? x[p * before + c] : padding;
}

SAMEBITS_NPU void samebits_pick(float *y, const float *x, const int32_t *index, size_t count,
                                size_t lanes) {
    for (size_t p = 0; p < count; p++)
        memcpy(y + p * lanes, x + (size_t)index[p] * lanes, lanes * sizeof *y);
}

/* Tiles, whose rows are positions, transposed. */
SAMEBITS_NPU void samebits_turn(float *y, const float *x, size_t tiles, size_t native) {
    for (size_t t = 0; t < tiles; t++)
        for (size_t i = 0; i < native; i++)
            for (size_t j = 0; j < native; j++)
                y[(t * native + j) * native + i] = x[(t * native + i) * native + j];
}

/* v_sum: binary64 holds the sum of 8192 numbers or fewer, in any order. */
SAMEBITS_NPU void samebits_total(float *y, const float *x, size_t count, size_t lanes) {
    for (size_t p = 0; p < count; p++, x += lanes, y += lanes) {
        double sum = 0.0;
        for (size_t c = 0; c < lanes; c++)
            sum += x[c];
        for (size_t c = 0; c < lanes; c++)
            y[c] = samebits_half_of(sum);
    }
}

/* v_max: NaN if a lane is NaN; a zero is +0. */
SAMEBITS_NPU void samebits_largest(float *y, const float *x, size_t count, size_t lanes) {
    for (size_t p = 0; p < count; p++, x += lanes, y += lanes) {
        float most = x[0], nothing = 0.0f;
        for (size_t c = 0; c < lanes; c++) {
            most = x[c] > most ? x[c] : most;
            nothing = x[c] == x[c] ? nothing : x[c];
        }
        for (size_t c = 0; c < lanes; c++)
            y[c] = nothing == nothing ? most + 0.0f : nothing;
    }
}

/* ---- matrix-vector unit -------------------------------------------------------------------- */

/* Quantized blocks of `lanes` codes with an exponent each: value = code * 2**(exponent - mantissa).
   index: of positions of `each` blocks, the ones meant; NULL: all, in order. */
typedef struct {
    const int16_t *codes;
    const int8_t *exponents;
    const int32_t *index;
    size_t each;
} samebits_blocks;

SAMEBITS_NPU size_t samebits_block(const samebits_blocks *x, size_t i) {
    return x->index ? (size_t)x->index[i / x->each] * x->each + i % x->each : i;
}

/* 2**n, n from -1022 to 1023 */
SAMEBITS_NPU double samebits_power(int n) {
    uint64_t bits = (uint64_t)(n + 1023) << 52;
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Binary16 [positions][width] as blocks of `lanes`, the last filled up with zeros. */
SAMEBITS_NPU void samebits_quantize(int16_t *codes, int8_t *exponents, const float *x,
                                    size_t positions, size_t width, size_t lanes, int mantissa) {
    const size_t blocks = (width + lanes - 1) / lanes;
    const float limit = (float)((1 << mantissa) - 1);
    for (size_t p = 0; p < positions; p++)
        for (size_t b = 0; b < blocks; b++, codes += lanes, exponents++) {
            const float *v = x + p * width + b * lanes;
            const size_t filled = width - b * lanes < lanes ? width - b * lanes : lanes;
            uint32_t largest = 0; /* sizes compare as their bits do */
            for (size_t c = 0; c < filled; c++) {
                uint32_t size = samebits_word(v[c]) & 0x7fffffffu;
                size = size > 0x7f800000u ? 0 : size;
                largest = size > largest ? size : largest;
            }
            /* The exponent of binary32, one higher where the largest would round to 2**mantissa. */
            const uint32_t up = (largest + (1u << (23 - mantissa))) >> 23;
            int e = largest >= 0x7f800000u ? 16 : (int)up - 126;
            e = e < -15 ? -15 : e > 16 ? 16 : e;
            *exponents = (int8_t)e;
            const float scale = (float)samebits_power(mantissa - e);
            for (size_t c = 0; c < lanes; c++) {
                float code = c < filled ? v[c] * scale : 0.0f;
                code = code > limit ? limit : code < -limit ? -limit : code == code ? code : 0.0f;
                /* Adding and subtracting 1.5 * 2**23 rounds to integers, ties to even. */
                codes[c] = (int16_t)(code + 12582912.0f - 12582912.0f);
            }
        }
}

/* A dot product, exact; short sums are below 2**31. */
SAMEBITS_NPU int64_t samebits_dot(const int16_t *a, const int16_t *b, size_t lanes, int is_short) {
    if (is_short) {
        int32_t sum = 0;
        for (size_t c = 0; c < lanes; c++)
            sum += (int32_t)a[c] * b[c];
        return sum;
    }
    int64_t sum = 0;
    for (size_t c = 0; c < lanes; c++)
        sum += (int32_t)a[c] * b[c];
    return sum;
}

/* A dot product in units of 2**-40, an integer: what lies below is rounded, ties to even. */
SAMEBITS_NPU double samebits_units(const samebits_blocks *x, const samebits_blocks *w, size_t i,
                                   size_t j, size_t lanes, int mantissa, int is_short,
                                   int requantize) {
    const size_t a = samebits_block(x, i), b = samebits_block(w, j);
    const int64_t dot = samebits_dot(x->codes + a * lanes, w->codes + b * lanes, lanes, is_short);
    const int scale = x->exponents[a] + w->exponents[b] - 2 * mantissa + 40;
    double units = (double)dot * samebits_power(scale);
    if (scale < 0) /* of less than 2**39: rounded as 1.5 * 2**52 is added and subtracted */
        units = units + 6755399441055744.0 - 6755399441055744.0;
    if (requantize)
        units = (double)samebits_half_of(units / SAMEBITS_FRACTION) * SAMEBITS_FRACTION;
    return units;
}

/* rows x outputs sums of `tiles` dot products each, rounded once to binary16. */
SAMEBITS_NPU void samebits_product(float *y, size_t rows, size_t outputs, size_t tiles,
                                   size_t lanes, samebits_blocks x, samebits_blocks w,
                                   int mantissa, int requantize) {
    const int is_short = (double)lanes * samebits_power(2 * mantissa) < 2147483648.0;
    for (size_t r = 0; r < rows; r++)
        for (size_t o = 0; o < outputs; o++) {
            double sum = 0.0, size = 0.0;
            for (size_t t = 0; t < tiles; t++) {
                const double units = samebits_units(&x, &w, r * tiles + t, o * tiles + t, lanes,
                                                    mantissa, is_short, requantize);
                sum += units;
                size += fabs(units);
            }
            /* Two limbs, high * 2**40 + low; an infinity is 2**74 - 1. */
            if (!(size < SAMEBITS_EXACT)) {
                int64_t high = 0, low = 0;
                for (size_t t = 0; t < tiles; t++) {
                    const double units = samebits_units(&x, &w, r * tiles + t, o * tiles + t, lanes,
                                                        mantissa, is_short, requantize);
                    const double whole = floor(units / SAMEBITS_FRACTION);
                    if (fabs(units) > DBL_MAX) {
                        high += units > 0 ? (int64_t)1 << 34 : -((int64_t)1 << 34);
                        low -= units > 0 ? 1 : -1;
                    } else {
                        high += (int64_t)whole;
                        low += (int64_t)(units - whole * SAMEBITS_FRACTION);
                    }
                }
                const int64_t unit = (int64_t)1 << 40, rest = (low % unit + unit) % unit;
                high += (low - rest) / unit;
                /* binary16 ends at 2**16 */
                high = high > 262144 ? 262144 : high < -262144 ? -262144 : high;
                /* What lies below 2**-32 only has to be told from nothing. */
                sum = (double)(high * 4294967296 + rest / 256) * 256.0 + (rest % 256 ? 128.0 : 0.0);
            }
            y[r * outputs + o] = samebits_half_of(sum / SAMEBITS_FRACTION + 0.0);
        }
}

#endif
