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

/* One thread alone has all of [0, n), without the cost of a team. */
#define ALONE(n)                                                                               \
    const int64_t lo = 0, me = 0, len = (n);                                                   \
    (void)lo, (void)me;

/* Per-thread results are combined by maximum; `call` yields one. */
#define PARALLEL_MAX(n, size, top, call)                                                       \
    {                                                                                          \
        int crew = TEAM(size);                                                                 \
        int64_t most = 0;                                                                      \
        if (crew == 1) {                                                                       \
            ALONE(n)                                                                           \
            if (len > 0) most = (call);                                                        \
        } else {                                                                               \
            _Pragma("omp parallel num_threads(crew) reduction(max : most)")                    \
            {                                                                                  \
                SHARE(n)                                                                       \
                if (len > 0) most = (call);                                                    \
            }                                                                                  \
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
        if (crew == 1) {                                                                       \
            ALONE(n)                                                                           \
            if (len > 0) call;                                                                 \
        } else {                                                                               \
            _Pragma("omp parallel num_threads(crew)")                                          \
            {                                                                                  \
                SHARE(n)                                                                       \
                if (len > 0) call;                                                             \
            }                                                                                  \
        }                                                                                      \
    }

/* Rows r of n elements each, shared among threads: `call` of a row says whether it failed; it has
 * `crew` threads, which are all of them where there is one row. status: that of a row which failed,
 * or 0; unfit: the row. */
#define EACH_ROW(rows, n, status, unfit, call)                                                 \
    {                                                                                          \
        int crews = (rows) > 1 ? TEAM((rows) * (n)) : 1, crew = (rows) > 1 ? 1 : threads;      \
        status = 0;                                                                            \
        if (crews == 1) {                                                                      \
            for (int64_t r = 0; r < (rows) && !status; r++) {                                  \
                status = (call);                                                               \
                unfit = r;                                                                     \
            }                                                                                  \
        } else {                                                                               \
            _Pragma("omp parallel for num_threads(crews)")                                     \
            for (int64_t r = 0; r < (rows); r++) {                                             \
                int failed = (call);                                                           \
                if (!failed) continue;                                                         \
                _Pragma("omp critical")                                                        \
                {                                                                              \
                    status = failed;                                                           \
                    unfit = r;                                                                 \
                }                                                                              \
            }                                                                                  \
        }                                                                                      \
    }

#endif
