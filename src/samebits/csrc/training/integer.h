/* Shifts with one round-half-even, branch-free so that loops over them vectorise, and ranges. */
#ifndef SAMEBITS_INTEGER_H
#define SAMEBITS_INTEGER_H

#include <stdint.h>

#ifdef _OPENMP
#include <omp.h>
#else /* one thread, the same bits */
#define omp_get_num_threads() 1
#define omp_get_thread_num() 0
#endif

#define MAX(a, b) ((a) > (b) ? (a) : (b))
#define INLINE static inline __attribute__((always_inline))

/* v * 2**exponent as a left or a right shift; the right one rounds half to even by adding
 * half - 1 + (lowest kept bit) first. Right amounts saturate where every value rounds to 0. */
typedef struct {
    int left, right;
    int64_t bias, odd;
} Shift;

INLINE Shift shift_by(int64_t exponent) {
    Shift s;
    s.left = exponent > 0 ? (int)exponent : 0;
    s.right = exponent < 0 ? (int)(exponent < -63 ? 63 : -exponent) : 0;
    s.bias = s.right ? ((int64_t)1 << (s.right - 1)) - 1 : 0;
    s.odd = s.right != 0;
    return s;
}

/* rne(v * 2**exponent); |v| <= 2**62 and v << left fits. */
INLINE int64_t scale64(int64_t v, Shift s) {
    int64_t u = (int64_t)((uint64_t)v << s.left);
    return (u + s.bias + ((u >> s.right) & s.odd)) >> s.right;
}

/* The same in 32 bits: |v << left| < 2**30, or at most Q32 and right <= 24. */
typedef struct {
    int left, right;
    int32_t bias, odd;
} Shift32;

INLINE Shift32 shift32_by(int64_t exponent) {
    Shift32 s;
    s.left = exponent > 0 ? (int)exponent : 0;
    s.right = exponent < 0 ? (int)(exponent < -31 ? 31 : -exponent) : 0;
    s.bias = s.right ? (int32_t)(((uint32_t)1 << (s.right - 1)) - 1) : 0;
    s.odd = s.right != 0;
    return s;
}

INLINE int32_t scale32(int32_t v, Shift32 s) {
    int32_t u = (int32_t)((uint32_t)v << s.left);
    return (u + s.bias + ((u >> s.right) & s.odd)) >> s.right;
}

INLINE int64_t magnitude(int64_t v) { return v < 0 ? -v : v; }

/* Runs the statement once per thread with [lo, lo + len) set to the thread's share of [0, n).
 * Kernels are serial functions with restrict pointers, so that compilers see no aliasing. */
#define PARALLEL_MIN 16384 /* elements below which a thread team costs more than it saves */
#define SHARE(n)                                                                               \
    int64_t team = omp_get_num_threads(), me = omp_get_thread_num();                           \
    int64_t lo = (n) * me / team, len = (n) * (me + 1) / team - lo;
#define TEAM(n) ((n) < PARALLEL_MIN ? 1 : threads)

/* Per-thread results are combined by maximum; `call` yields one. */
#define PARALLEL_MAX(n, size, top, call)                                                       \
    {                                                                                          \
        int crew = TEAM(size);                                                                 \
        int64_t most = 0;                                                                      \
        _Pragma("omp parallel num_threads(crew) reduction(max : most)")                        \
        {                                                                                      \
            SHARE(n)                                                                           \
            if (len > 0) most = (call);                                                        \
        }                                                                                      \
        top = most;                                                                            \
    }
#define PARALLEL(n, size, call)                                                                \
    {                                                                                          \
        int crew = TEAM(size);                                                                 \
        _Pragma("omp parallel num_threads(crew)")                                              \
        {                                                                                      \
            SHARE(n)                                                                           \
            if (len > 0) call;                                                                 \
        }                                                                                      \
    }

#endif
