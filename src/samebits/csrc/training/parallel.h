/* Threads: shares of a range, and the maximum of what they yield. Every kernel's result is a sum of
 * integers, a maximum or a value per element, so no number of threads can change a bit of it. */
#ifndef SAMEBITS_PARALLEL_H
#define SAMEBITS_PARALLEL_H

#include <stdint.h>

#ifdef _OPENMP
#include <omp.h>
#else /* one thread, the same bits */
#define omp_get_num_threads() 1
#define omp_get_thread_num() 0
#endif

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
