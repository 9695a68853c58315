/* Products of many pairs of matrices (docs/spec/training.md, 14.1), each as the product of a layer
 * with its weights: exact sums, whose largest magnitude is that of all pairs. Threads share the
 * pairs, or where these are few the rows of each. */
#include "exponent.h"
#include "parts.h"

/* Runs `call`, which gives the largest magnitude of a pair or -1, for every pair of n rows, m rows
 * and their k elements. */
#define EACH_PAIR(call)                                                                        \
    {                                                                                          \
        int64_t top = 0, work = count * n * m * k;                                             \
        int crews = work < ((int64_t)1 << 20) ? 1 : threads;                                   \
        int own = count < crews ? crews : 1, failed = 0;                                       \
        if (own > 1) crews = 1;                                                                \
        _Pragma("omp parallel for num_threads(crews) reduction(max : top) reduction(| : failed)") \
        for (int64_t i = 0; i < count; i++) {                                                  \
            int64_t most = (call);                                                             \
            failed |= most < 0;                                                                \
            top = SAMEBITS_MAX(top, most);                                                     \
        }                                                                                      \
        *largest = top;                                                                        \
        return failed ? NO_MEMORY : FINE;                                                      \
    }

/* s: the geometry of one pair, n = s->w rows by m = s->co of k = s->ci elements. */
static int64_t one_product(const Conv *s, const int8_t *a, const int8_t *b, int32_t *out,
                           int threads) {
    int64_t largest;
    return samebits_products(s, a, b, out, &largest, threads) == FINE ? largest : -1;
}

/* out [count][n][m] = a [count][n][k] * b [count][m][k]^T. */
int samebits_batch_products(const Conv *s, int64_t count, const int8_t *a, const int8_t *b,
                            int32_t *out, int64_t *largest, int threads) {
    int64_t n = s->w, m = s->co, k = s->ci;
    EACH_PAIR(one_product(s, a + i * n * k, b + i * m * k, out + i * n * m, own))
}

/* out [count][n][k] = g [count][n][m] * b [count][m][k], of 32 bits or, wide, of 64. */
int samebits_batch_products_a(const Conv *s, int64_t count, const int16_t *g, const int8_t *b,
                              void *out, int wide, int64_t *largest, int threads) {
    int64_t n = s->w, m = s->co, k = s->ci, step = wide ? 8 : 4;
    EACH_PAIR(samebits_conv_input_grad(s, g + i * n * m, b + i * m * k,
                                       (char *)out + i * n * k * step, wide, own))
}

/* out [count][m][k] = g [count][n][m]^T * a [count][n][k]; g has `type` bits, 16 or 32. */
int samebits_batch_products_b(const Conv *s, int64_t count, const void *g, int type,
                              const int8_t *a, void *out, int wide, int64_t *largest,
                              int threads) {
    int64_t n = s->w, m = s->co, k = s->ci, step = wide ? 8 : 4;
    EACH_PAIR(samebits_conv_weight_grad(s, (const char *)g + i * n * m * (type / 8), type,
                                        a + i * n * k, (char *)out + i * m * k * step, wide, own))
}
