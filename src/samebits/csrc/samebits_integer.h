/* Integers, once for all C of the project: shifts that round, wrapping, saturation, ratios.
 *
 * Training (csrc/training), the inference kernels and the audio features include this one file, so
 * that what the specifications call rne() has one definition in C. It is copied as it is into
 * generated packages, that is into other people's programs: hence C99, no dependency but limits.h
 * and stdint.h, and the prefix samebits_ on the file and on every name, in training too. */
#ifndef SAMEBITS_INTEGER_H
#define SAMEBITS_INTEGER_H

#include <limits.h>
#include <stdint.h>

/* Tools that have no limits.h go on. */
#if defined(INT_MAX) && INT_MAX < 2147483647
#error "samebits needs an int of 32 bits, in which products of codes are computed"
#endif

#if defined(__GNUC__)
#define SAMEBITS_INLINE static inline __attribute__((always_inline))
/* A function whose loops have all registers. */
#define SAMEBITS_APART static __attribute__((noinline))
#else
#define SAMEBITS_INLINE static inline
#define SAMEBITS_APART static
#endif

/* A function in the language of a Cortex-M, which the compiler does not look through. */
#if defined(__ARM_ARCH_PROFILE) && __ARM_ARCH_PROFILE == 'M' && defined(__clang__)
#define SAMEBITS_NAKED __attribute__((naked, noinline)) static void
#elif defined(__ARM_ARCH_PROFILE) && __ARM_ARCH_PROFILE == 'M' && defined(__GNUC__)
#define SAMEBITS_NAKED __attribute__((naked, noipa)) static void
#endif

#define SAMEBITS_MIN(a, b) ((a) < (b) ? (a) : (b))
#define SAMEBITS_MAX(a, b) ((a) > (b) ? (a) : (b))

/* floor(v / 2**s). >> of a negative number is the compiler's choice in C99; the test on -1
 * folds. */
SAMEBITS_INLINE int32_t samebits_floor32(int32_t v, int32_t s) {
    return ((int32_t)-1 >> 1) == -1 ? v >> s : (v < 0 ? ~(~v >> s) : v >> s);
}

SAMEBITS_INLINE int64_t samebits_floor64(int64_t v, int32_t s) {
    return ((int64_t)-1 >> 1) == -1 ? v >> s : (v < 0 ? ~(~v >> s) : v >> s);
}

/* The rounding, of either width (floor: samebits_floor32 or samebits_floor64; v and s are evaluated
 * twice). With below = 2**(s - 1) - 1 and odd = 1: v / 2**s, ties to even. Let v = k * 2**s + r and
 * 0 <= r < 2**s; what is added before the floor is one short of a half where k is even, and a half
 * where it is odd, so r carries into k where r > half, and where r == half if k is odd:
 * 5 / 2 is (5 + 0 + 0) >> 1 = 2, 7 / 2 is (7 + 0 + 1) >> 1 = 4. No branch, so that loops over it
 * vectorise. With s = below = odd = 0: v itself, so that one loop serves shifts by no bits too.
 * v + below + odd must fit. */
#define SAMEBITS_NEAREST(floor, v, s, below, odd)                                                  \
    floor((v) + (below) + (floor(v, s) & (odd)), s)

/* v / 2**s rounded half to even; 1 <= s <= 30 and |v| + 2**(s - 1) < 2**31. */
SAMEBITS_INLINE int32_t samebits_round32(int32_t v, int32_t s) {
    int32_t below = (int32_t)(((uint32_t)1 << (s - 1)) - 1u);
    return SAMEBITS_NEAREST(samebits_floor32, v, s, below, 1);
}

/* The same; 1 <= s <= 62 and |v| + 2**(s - 1) < 2**63. */
SAMEBITS_INLINE int64_t samebits_round64(int64_t v, int32_t s) {
    int64_t below = (int64_t)(((uint64_t)1 << (s - 1)) - 1u);
    return SAMEBITS_NEAREST(samebits_floor64, v, s, below, 1);
}

/* The number that is v modulo 2**32 or 2**64. */
SAMEBITS_INLINE int32_t samebits_signed32(uint32_t v) {
    return v <= (uint32_t)INT32_MAX ? (int32_t)v
                                    : (int32_t)(v - (uint32_t)INT32_MAX - 1u) + INT32_MIN;
}

SAMEBITS_INLINE int64_t samebits_signed64(uint64_t v) {
    return v <= (uint64_t)INT64_MAX ? (int64_t)v
                                    : (int64_t)(v - (uint64_t)INT64_MAX - 1u) + INT64_MIN;
}

SAMEBITS_INLINE int64_t samebits_magnitude64(int64_t v) { return v < 0 ? -v : v; }

SAMEBITS_INLINE int64_t samebits_clamp64(int64_t v, int64_t low, int64_t high) {
    return SAMEBITS_MIN(SAMEBITS_MAX(v, low), high);
}

SAMEBITS_INLINE int32_t samebits_clamp32(int32_t v, int32_t low, int32_t high) {
    return SAMEBITS_MIN(SAMEBITS_MAX(v, low), high);
}

/* numerator / denominator rounded half to even; denominator > 0, numerator > -2**63. Division in C
 * truncates, so magnitudes are divided (this rounding is symmetric), and the rest is compared with
 * what it lacks to the denominator, which cannot overflow as twice the rest could. */
static inline int64_t samebits_quotient(int64_t numerator, int64_t denominator) {
    const int64_t v = samebits_magnitude64(numerator), quotient = v / denominator;
    const int64_t rest = v - quotient * denominator, other = denominator - rest;
    const int64_t nearest = quotient + (rest > other || (rest == other && (quotient & 1)));
    return numerator < 0 ? -nearest : nearest;
}

#endif
