/* What the kernels share: shifts, rounding, and codes of any type at any address. */
#ifndef SAMEBITS_INTEGER_H
#define SAMEBITS_INTEGER_H

#include "samebits_kernels.h"

#if defined(__GNUC__)
/* The arena holds values of different types one after the other. */
#define SAMEBITS_MAY_ALIAS __attribute__((may_alias))
#define SAMEBITS_INLINE static inline __attribute__((always_inline))
#else
#define SAMEBITS_MAY_ALIAS
#define SAMEBITS_INLINE static inline
#endif

typedef int16_t SAMEBITS_MAY_ALIAS samebits_i16;
typedef uint16_t SAMEBITS_MAY_ALIAS samebits_u16;
typedef int32_t SAMEBITS_MAY_ALIAS samebits_i32;
typedef int64_t SAMEBITS_MAY_ALIAS samebits_i64;

/* Elements that a kernel holds in a local array: at least 16, more for wide vectors. */
#if defined(__ARM_ARCH_PROFILE) && __ARM_ARCH_PROFILE == 'M'
#define SAMEBITS_CHUNK 16
#else
#define SAMEBITS_CHUNK 64
#endif
#define SAMEBITS_MIN(a, b) ((a) < (b) ? (a) : (b))
#define SAMEBITS_MAX(a, b) ((a) > (b) ? (a) : (b))

/* floor(v / 2**s). >> of a negative number is the compiler's choice in C99; the test on -1 folds. */
SAMEBITS_INLINE int32_t samebits_floor32(int32_t v, int32_t s) {
    return ((int32_t)-1 >> 1) == -1 ? v >> s : (v < 0 ? ~(~v >> s) : v >> s);
}

SAMEBITS_INLINE int64_t samebits_floor64(int64_t v, int32_t s) {
    return ((int64_t)-1 >> 1) == -1 ? v >> s : (v < 0 ? ~(~v >> s) : v >> s);
}

/* v / 2**s rounded half to even; 1 <= s <= 30 and |v| + 2**(s - 1) < 2**31. */
SAMEBITS_INLINE int32_t samebits_round32(int32_t v, int32_t s) {
    int32_t below = (int32_t)(((uint32_t)1 << (s - 1)) - 1u);
    return samebits_floor32(v + below + (samebits_floor32(v, s) & 1), s);
}

/* The same; 1 <= s <= 62 and |v| + 2**(s - 1) < 2**63. */
SAMEBITS_INLINE int64_t samebits_round64(int64_t v, int32_t s) {
    int64_t below = (int64_t)(((uint64_t)1 << (s - 1)) - 1u);
    return samebits_floor64(v + below + (samebits_floor64(v, s) & 1), s);
}

/* The number that is v modulo 2**32 or 2**64. */
SAMEBITS_INLINE int32_t samebits_signed32(uint32_t v) {
    return v <= (uint32_t)INT32_MAX ? (int32_t)v : (int32_t)(v - (uint32_t)INT32_MAX - 1u) + INT32_MIN;
}

SAMEBITS_INLINE int64_t samebits_signed64(uint64_t v) {
    return v <= (uint64_t)INT64_MAX ? (int64_t)v : (int64_t)(v - (uint64_t)INT64_MAX - 1u) + INT64_MIN;
}

SAMEBITS_INLINE int64_t samebits_clamp64(int64_t v, int64_t low, int64_t high) {
    return SAMEBITS_MIN(SAMEBITS_MAX(v, low), high);
}

SAMEBITS_INLINE int32_t samebits_clamp32(int32_t v, int32_t low, int32_t high) {
    return SAMEBITS_MIN(SAMEBITS_MAX(v, low), high);
}

/* One code of any type. */
SAMEBITS_INLINE int64_t samebits_get(const void *p, uint8_t type, int32_t i) {
    switch (type) {
    case SAMEBITS_INT8: return ((const int8_t *)p)[i];
    case SAMEBITS_UINT8: return ((const uint8_t *)p)[i];
    case SAMEBITS_INT16: return ((const samebits_i16 *)p)[i];
    case SAMEBITS_UINT16: return ((const samebits_u16 *)p)[i];
    case SAMEBITS_INT32: return ((const samebits_i32 *)p)[i];
    default: return ((const samebits_i64 *)p)[i];
    }
}

SAMEBITS_INLINE void samebits_put(void *p, uint8_t type, int32_t i, int64_t v) {
    switch (type) {
    case SAMEBITS_INT8: ((int8_t *)p)[i] = (int8_t)v; break;
    case SAMEBITS_UINT8: ((uint8_t *)p)[i] = (uint8_t)v; break;
    case SAMEBITS_INT16: ((samebits_i16 *)p)[i] = (int16_t)v; break;
    case SAMEBITS_UINT16: ((samebits_u16 *)p)[i] = (uint16_t)v; break;
    case SAMEBITS_INT32: ((samebits_i32 *)p)[i] = (int32_t)v; break;
    default: ((samebits_i64 *)p)[i] = v; break;
    }
}

/* n codes from `start`, `step` elements apart. */
void samebits_load32(const void *p, uint8_t type, int32_t start, int32_t step, int32_t n,
                     int32_t *to);
void samebits_load64(const void *p, uint8_t type, int32_t start, int32_t step, int32_t n,
                     int64_t *to);

/* n accumulators of consecutive channels from `channel` become codes at out[start ..]; they are
 * overwritten. n <= SAMEBITS_CHUNK. */
void samebits_finish32(const samebits_rescale *r, int32_t channel, int32_t n, int32_t *acc,
                       void *out, int32_t start);
void samebits_finish64(const samebits_rescale *r, int32_t channel, int32_t n, int64_t *acc,
                       void *out, int32_t start);

/* numerator / denominator rounded half to even; neither is negative. */
int64_t samebits_quotient(int64_t numerator, int64_t denominator);

#include "samebits_vector.h"

/* How many elements from flat index i on can be finished in one call, and their first channel. */
SAMEBITS_INLINE int32_t samebits_chunk(const samebits_rescale *r, int32_t i, int32_t left,
                                       int32_t *channel) {
    int32_t n = SAMEBITS_MIN(left, SAMEBITS_CHUNK);
    *channel = 0;
    if (r->channels > 1) {
        *channel = i % r->channels;
        n = SAMEBITS_MIN(n, r->channels - *channel);
    }
    return n;
}

#endif
