/* What every generated model shares: settings of the build, and helpers that a caller needs.
 *
 * C99 and C++11, no floating-point arithmetic, no allocation. */
#ifndef SAMEBITS_H
#define SAMEBITS_H

#include <stdint.h>

/* Whether model_steps computes blocks of steps, in a larger arena: not on Cortex-M. */
#ifndef SAMEBITS_BLOCKS
#if defined(__ARM_ARCH_PROFILE) && __ARM_ARCH_PROFILE == 'M'
#define SAMEBITS_BLOCKS 0
#else
#define SAMEBITS_BLOCKS 1
#endif
#endif

/* Vector loads of constants stay within cache lines. */
#if defined(__GNUC__) && defined(__AVX512F__)
#define SAMEBITS_ALIGNED __attribute__((aligned(64)))
#else
#define SAMEBITS_ALIGNED
#endif

/* With SAMEBITS_DEBUG the functions of models check their arguments (samebits_debug.h). The bytes
 * from a pointer to the end of the memory that it points to, or the most where nothing knows. */
#ifdef SAMEBITS_DEBUG
#include <stddef.h>
#if defined(__GNUC__)
#define SAMEBITS_BYTES(pointer) __builtin_object_size(pointer, 0)
#else
#define SAMEBITS_BYTES(pointer) ((size_t)-1)
#endif
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* The code of a real number at scale m * 2**e: round(x / (m * 2**e)), ties to even, + zero, held in
 * [low, high]; exactly, in integers. Infinity is held too; NaN counts as 0. m > 0. */
int32_t samebits_code(float x, uint32_t m, int32_t e, int32_t zero, int32_t low, int32_t high);

/* The real number of a code: (code - zero) * m * 2**e, rounded once to binary32. m < 2**31. */
float samebits_real(int32_t code, uint32_t m, int32_t e, int32_t zero);

/* The code of code + zero, a quotient of real numbers: the nearest, ties to even, saturated to low
 * and high; NaN counts as 0. Here, in binary64, for callers alone: no kernel has floating point. */
static inline int32_t samebits_nearest(double code, int32_t zero, int32_t low, int32_t high) {
    int32_t whole;
    double rest;
    if (code != code) {
        return zero;
    }
    if (code <= (double)low - (double)zero) {
        return low;
    }
    if (code >= (double)high - (double)zero) {
        return high;
    }
    whole = (int32_t)code;
    rest = code - (double)whole;
    if (rest > 0.5 || (rest == 0.5 && (whole & 1))) {
        whole++;
    } else if (rest < -0.5 || (rest == -0.5 && (whole & 1))) {
        whole--;
    }
    return whole + zero;
}

/* Four words that depend on (index, stream) alone: Philox4x32-10 with the key (stream, 0). */
void samebits_philox(uint32_t index, uint32_t stream, uint32_t words[4]);

/* `count` pseudo-random codes of `width` bytes over their whole type, the same on every machine. */
void samebits_random(void *codes, uint32_t width, int32_t is_signed, uint32_t count,
                     uint32_t stream);

/* FNV-1a, 64 bits, of the little-endian bytes of more codes, from the hash of those before. */
#define SAMEBITS_HASH (((uint64_t)0xcbf29ce4u << 32) | 0x84222325u) /* of no codes */
uint64_t samebits_hash(uint64_t hash, const void *codes, uint32_t width, uint32_t count);

void samebits_copy_bytes(const void *from, void *to, uint32_t count);

#ifdef __cplusplus
}
#endif

#endif
