/* Shifts with one round-half-even, branch-free so that loops over them vectorise. */
#ifndef SAMEBITS_INTEGER_H
#define SAMEBITS_INTEGER_H

#include <stdint.h>

/* A signed shift as a left and a right amount, one of them 0. Right amounts saturate: beyond the
 * width every value below half the range rounds to 0 already. */
typedef struct {
    int left, right;
    int64_t mask, half;
} Shift;

static inline Shift shift_by(int64_t exponent) {
    Shift s;
    s.left = exponent > 0 ? (int)exponent : 0;
    s.right = exponent < 0 ? (int)(exponent < -62 ? 62 : -exponent) : 0;
    s.mask = ((int64_t)1 << s.right) - 1;
    s.half = s.right ? (int64_t)1 << (s.right - 1) : INT64_MAX;
    return s;
}

/* rne(v * 2**exponent) for 64-bit v. */
static inline int64_t scale64(int64_t v, Shift s) {
    int64_t u = (int64_t)((uint64_t)v << s.left);
    int64_t q = u >> s.right, r = u & s.mask;
    return q + ((r > s.half) | ((r == s.half) & (q & 1)));
}

/* The same in 32 bits; the caller knows that v << left fits. */
typedef struct {
    int left, right;
    int32_t mask, half;
} Shift32;

static inline Shift32 shift32_by(int64_t exponent) {
    Shift32 s;
    s.left = exponent > 0 ? (int)exponent : 0;
    s.right = exponent < 0 ? (int)(exponent < -31 ? 31 : -exponent) : 0;
    s.mask = s.right ? (int32_t)(((uint32_t)1 << s.right) - 1) : 0;
    s.half = s.right ? (int32_t)1 << (s.right - 1) : INT32_MAX;
    return s;
}

static inline int32_t scale32(int32_t v, Shift32 s) {
    int32_t u = (int32_t)((uint32_t)v << s.left);
    int32_t q = u >> s.right, r = u & s.mask;
    return q + ((r > s.half) | ((r == s.half) & (q & 1)));
}

static inline int64_t magnitude(int64_t v) { return v < 0 ? -v : v; }

#endif
