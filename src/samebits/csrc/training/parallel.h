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
/* The same for two maxima: `call` writes those of a thread into its own array `most`. */
#define PARALLEL_MAX_TWO(n, size, tops, call)                                                  \
    {                                                                                          \
        int crew = TEAM(size);                                                                 \
        int64_t first = 0, second = 0;                                                         \
        _Pragma("omp parallel num_threads(crew) reduction(max : first, second)")               \
        {                                                                                      \
            SHARE(n)                                                                           \
            int64_t most[2] = {0, 0};                                                          \
            if (len > 0) call;                                                                 \
            first = most[0];                                                                   \
            second = most[1];                                                                  \
        }                                                                                      \
        (tops)[0] = first;                                                                     \
        (tops)[1] = second;                                                                    \
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
