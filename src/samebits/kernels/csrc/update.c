/* The optimizer step on integer state (docs/spec/training.md, sections 2 to 4): weights W (int8)
 * and delayed updates A (int16), momentum V (int16), gradient G (int32). Every pass reads a few
 * bytes an element and writes at most its own state; nothing is held in floating point. */
#include "integer.h"

#define MAX(a, b) ((a) > (b) ? (a) : (b))

static inline int64_t joint(const int8_t *w, const int16_t *a, int64_t i) {
    return (int64_t)w[i] * 32768 - a[i];
}

/* combine(): gradient, weight-decay and momentum terms at one exponent. */
typedef struct {
    const int32_t *g;
    const int8_t *w;
    const int16_t *a, *v;
    int64_t decay, momentum;                 /* 16-bit coefficients, 0 = term absent */
    int64_t shift_g, shift_decay, shift_momentum;
} Terms;

#define COMBINED(i)                                                                            \
    (scale64(t->g[i], sg) + (decay ? scale64(decay * joint(t->w, t->a, i), sd) : 0) +          \
     (momentum ? scale64(momentum * t->v[i], sm) : 0))

#define EACH_TERMS(BODY)                                                                       \
    if (decay && momentum) {                                                                   \
        BODY                                                                                   \
    } else if (momentum) {                                                                     \
        decay = 0;                                                                             \
        BODY                                                                                   \
    } else if (decay) {                                                                        \
        momentum = 0;                                                                          \
        BODY                                                                                   \
    } else {                                                                                   \
        decay = momentum = 0;                                                                  \
        BODY                                                                                   \
    }

int64_t samebits_combine_max(const Terms *t, int64_t n, int threads) {
    Shift sg = shift_by(t->shift_g), sd = shift_by(t->shift_decay), sm = shift_by(t->shift_momentum);
    int64_t decay = t->decay, momentum = t->momentum, top = 0;
    EACH_TERMS(
        _Pragma("omp parallel for simd num_threads(threads) reduction(max : top)")
        for (int64_t i = 0; i < n; i++) {
            int64_t v = magnitude(COMBINED(i));
            top = MAX(top, v);
        })
    return top;
}

/* out = rne(combined * 2**exponent) as bfp16; out may be t->v itself. */
void samebits_combine(const Terms *t, int64_t n, int64_t exponent, int16_t *out, int threads) {
    Shift sg = shift_by(t->shift_g), sd = shift_by(t->shift_decay), sm = shift_by(t->shift_momentum);
    Shift s = shift_by(exponent);
    int64_t decay = t->decay, momentum = t->momentum;
    EACH_TERMS(
        _Pragma("omp parallel for simd num_threads(threads)")
        for (int64_t i = 0; i < n; i++) out[i] = (int16_t)scale64(COMBINED(i), s);)
}

/* t = A + rne(m * P * 2**shift), shift <= 15: carries r = rne(t / 2**15) into W. Returns the largest
 * |W| after the carry and, through top_joint, the largest |J|; writes W and A only when `commit`. */
int64_t samebits_lazy_update(int8_t *w, int16_t *a, const int16_t *p, int64_t m, int64_t shift,
                             int64_t n, int commit, int threads) {
    Shift s = shift_by(shift), carry = shift_by(-15);
    int64_t top = 0;
    if (commit) {
#pragma omp parallel for simd num_threads(threads)
        for (int64_t i = 0; i < n; i++) {
            int64_t t = a[i] + scale64(m * p[i], s), r = scale64(t, carry);
            w[i] = (int8_t)(w[i] - r);
            a[i] = (int16_t)(t - r * 32768);
        }
    } else {
#pragma omp parallel for simd num_threads(threads) reduction(max : top)
        for (int64_t i = 0; i < n; i++) {
            int64_t t = a[i] + scale64(m * p[i], s), v = magnitude(w[i] - scale64(t, carry));
            top = MAX(top, v);
        }
    }
    return top;
}

/* J (after the update) times 2**-by, split again; `by` may be negative (exact). */
void samebits_lazy_resplit(int8_t *w, int16_t *a, const int16_t *p, int64_t m, int64_t shift,
                           int64_t by, int64_t n, int threads) {
    Shift s = shift_by(shift), down = shift_by(-by), carry = shift_by(-15);
#pragma omp parallel for simd num_threads(threads)
    for (int64_t i = 0; i < n; i++) {
        int64_t j = scale64(joint(w, a, i) - (m ? scale64(m * p[i], s) : 0), down);
        int64_t code = scale64(j, carry);
        w[i] = (int8_t)code;
        a[i] = (int16_t)(code * 32768 - j);
    }
}

/* Largest |J - update|. */
int64_t samebits_joint_max(const int8_t *w, const int16_t *a, const int16_t *p, int64_t m,
                           int64_t shift, int64_t n, int threads) {
    Shift s = shift_by(shift);
    int64_t top = 0;
#pragma omp parallel for simd num_threads(threads) reduction(max : top)
    for (int64_t i = 0; i < n; i++) {
        int64_t v = magnitude(joint(w, a, i) - (m ? scale64(m * p[i], s) : 0));
        top = MAX(top, v);
    }
    return top;
}
