/* Multiply-adds a second of this processor's instructions on integers, one thread: sixteen independent
 * accumulators in registers, the best of fifteen runs. Prints a JSON object; instructions that the
 * compiler was not told of (-march=native) are left out. */
#include <stdint.h>
#include <stdio.h>
#include <time.h>

#define ROUNDS 2000000L

static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static const char *separator = "{";

#define BEST(name, type, zero, step, products)                                                 \
    {                                                                                          \
        double best = 1e9;                                                                     \
        for (int run = 0; run < 15; run++) {                                                   \
            type a[16], x = zero;                                                              \
            for (int i = 0; i < 16; i++) a[i] = x;                                             \
            __asm__ volatile("" : "+v"(x));                                                    \
            double began = seconds();                                                          \
            for (long k = 0; k < ROUNDS; k++)                                                  \
                _Pragma("GCC unroll 16") for (int i = 0; i < 16; i++) a[i] = step;             \
            double took = seconds() - began;                                                   \
            for (int i = 0; i < 16; i++) __asm__ volatile("" : : "v"(a[i]));                   \
            best = took < best ? took : best;                                                  \
        }                                                                                      \
        printf("%s\"%s\": %.1f", separator, name, 16.0 * ROUNDS * products / best * 1e-9);     \
        separator = ", ";                                                                      \
    }

#if defined(__x86_64__)
#include <immintrin.h>
#endif

int main(void) {
#if defined(__AVX512VNNI__)
    BEST("vpdpwssd", __m512i, _mm512_setzero_si512(), _mm512_dpwssd_epi32(a[i], x, x), 32)
    BEST("vpdpbusd", __m512i, _mm512_setzero_si512(), _mm512_dpbusd_epi32(a[i], x, x), 64)
#elif defined(__AVX2__)
    BEST("vpmaddwd", __m256i, _mm256_setzero_si256(),
         _mm256_add_epi32(a[i], _mm256_madd_epi16(a[i], x)), 16)
#endif
    printf("%s}\n", separator[0] == '{' ? "{" : "");
    return 0;
}
