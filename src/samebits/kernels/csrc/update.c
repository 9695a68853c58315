/* The optimizer step on integer state (docs/spec/training.md, sections 2 to 4): weights W (int8)
 * and delayed updates A (int16), momentum V (int16), gradient G (int32). Every pass reads a few
 * bytes an element and writes at most its own state; nothing is held in floating point. */
#include <stddef.h>

#include "integer.h"

INLINE int64_t joint(int8_t w, int16_t a) { return (int64_t)w * 32768 - a; }

/* combine(): gradient, weight-decay and momentum terms at one exponent. */
typedef struct {
    const int32_t *g;
    const int8_t *w;
    const int16_t *a, *v;
    int64_t decay, momentum; /* 16-bit coefficients, 0 = term absent */
    int64_t shift_g, shift_decay, shift_momentum;
} Terms;

typedef struct {
    Shift g, decay, momentum;
} TermShifts;

/* One element; absent terms cost nothing once the two flags are constants. A term is a product of
 * a 16-bit coefficient and at most 23 bits, in 64 bits. */
INLINE int64_t combined(int32_t g, int8_t w, int16_t a, int16_t v, int64_t decay, int64_t momentum,
                        const TermShifts *s, int has_decay, int has_momentum) {
    int64_t sum = scale64(g, s->g);
    if (has_decay) sum += scale64((int64_t)(int32_t)decay * (int32_t)joint(w, a), s->decay);
    if (has_momentum) sum += scale64((int64_t)((int32_t)momentum * v), s->momentum);
    return sum;
}

#define COMBINE(name, has_decay, has_momentum)                                                 \
    static int64_t name##_max(const int32_t *restrict g, const int8_t *restrict w,             \
                              const int16_t *restrict a, const int16_t *restrict v, int64_t n, \
                              int64_t decay, int64_t momentum, TermShifts s) {                 \
        int64_t top = 0;                                                                       \
        for (int64_t i = 0; i < n; i++) {                                                      \
            int64_t d = combined(g[i], has_decay ? w[i] : 0, has_decay ? a[i] : 0,             \
                                 has_momentum ? v[i] : 0, decay, momentum, &s, has_decay,      \
                                 has_momentum);                                                \
            d = magnitude(d);                                                                  \
            top = MAX(top, d);                                                                 \
        }                                                                                      \
        return top;                                                                            \
    }                                                                                          \
    static int64_t name##_range(const int32_t *restrict g, const int8_t *restrict w,           \
                                const int16_t *restrict a, const int16_t *v, int64_t n,        \
                                int64_t decay, int64_t momentum, TermShifts s, Shift to,       \
                                int16_t *out) {                                                \
        _Pragma("GCC ivdep") for (int64_t i = 0; i < n; i++) {                                 \
            int64_t d = combined(g[i], has_decay ? w[i] : 0, has_decay ? a[i] : 0,             \
                                 has_momentum ? v[i] : 0, decay, momentum, &s, has_decay,      \
                                 has_momentum);                                                \
            out[i] = (int16_t)scale64(d, to);                                                  \
        }                                                                                      \
        return 0;                                                                              \
    }                                                                                          \
    static int64_t name(const Terms *t, int64_t n, TermShifts s, Shift to, int16_t *out,       \
                        int threads) {                                                         \
        int64_t top = 0;                                                                       \
        const int16_t *v = has_momentum ? t->v : NULL;                                         \
        if (out) {                                                                             \
            PARALLEL(n, n, name##_range(t->g + lo, t->w + lo, t->a + lo,                       \
                                        has_momentum ? v + lo : NULL, len, t->decay,           \
                                        t->momentum, s, to, out + lo))                         \
        } else {                                                                               \
            PARALLEL_MAX(n, n, top, name##_max(t->g + lo, t->w + lo, t->a + lo,                \
                                               has_momentum ? v + lo : NULL, len, t->decay,    \
                                               t->momentum, s))                                \
        }                                                                                      \
        return top;                                                                            \
    }
COMBINE(combine_plain, 0, 0)
COMBINE(combine_momentum, 0, 1)
COMBINE(combine_decay, 1, 0)
COMBINE(combine_both, 1, 1)

/* The largest |combined| (out == NULL), or rne(combined * 2**exponent) as bfp16; out may be t->v. */
int64_t samebits_combine(const Terms *t, int64_t n, int64_t exponent, int16_t *out, int threads) {
    TermShifts s = {shift_by(t->shift_g), shift_by(t->shift_decay), shift_by(t->shift_momentum)};
    Shift to = shift_by(exponent);
    if (t->decay && t->momentum) return combine_both(t, n, s, to, out, threads);
    if (t->momentum) return combine_momentum(t, n, s, to, out, threads);
    if (t->decay) return combine_decay(t, n, s, to, out, threads);
    return combine_plain(t, n, s, to, out, threads);
}

static int64_t carry_max(const int8_t *restrict w, const int16_t *restrict a,
                         const int16_t *restrict p, int64_t n, int32_t m, Shift s, Shift carry) {
    int64_t top = 0;
    for (int64_t i = 0; i < n; i++) {
        int64_t t = a[i] + scale64(m * p[i], s), v = magnitude(w[i] - scale64(t, carry));
        top = MAX(top, v);
    }
    return top;
}

static void carry_range(int8_t *restrict w, int16_t *restrict a, const int16_t *restrict p,
                        int64_t n, int32_t m, Shift s, Shift carry) {
    for (int64_t i = 0; i < n; i++) {
        int64_t t = a[i] + scale64(m * p[i], s), r = scale64(t, carry);
        w[i] = (int8_t)(w[i] - r);
        a[i] = (int16_t)(t - r * 32768);
    }
}

/* The same in 32 bits, for updates below 2**29 (|P| * m * 2**shift): nearly all of them. */
static int64_t carry_max32(const int8_t *restrict w, const int16_t *restrict a,
                           const int16_t *restrict p, int64_t n, int32_t m, Shift32 s,
                           Shift32 carry) {
    int32_t top = 0;
    for (int64_t i = 0; i < n; i++) {
        int32_t t = a[i] + scale32(m * p[i], s), v = w[i] - scale32(t, carry);
        v = v < 0 ? -v : v;
        top = MAX(top, v);
    }
    return top;
}

static void carry_range32(int8_t *restrict w, int16_t *restrict a, const int16_t *restrict p,
                          int64_t n, int32_t m, Shift32 s, Shift32 carry) {
    for (int64_t i = 0; i < n; i++) {
        int32_t t = a[i] + scale32(m * p[i], s), r = scale32(t, carry);
        w[i] = (int8_t)(w[i] - r);
        a[i] = (int16_t)(t - r * 32768);
    }
}

/* t = A + rne(m * P * 2**shift), shift <= 15; r = rne(t / 2**15). Returns the largest |W - r|, or with
 * `commit` writes W - r and t - r * 2**15 (the caller has seen that they fit). m < 2**16. */
int64_t samebits_lazy_update(int8_t *w, int16_t *a, const int16_t *p, int64_t m, int64_t shift,
                             int64_t n, int commit, int threads) {
    int64_t top = 0;
    /* |m * P| <= Q32; 32-bit shifts take it for right shifts of 2 to 24 bits. */
    if (shift <= -2 && shift >= -24) {
        Shift32 s = shift32_by(shift), carry = shift32_by(-15);
        if (commit) {
            PARALLEL(n, n, carry_range32(w + lo, a + lo, p + lo, len, (int32_t)m, s, carry))
        } else {
            PARALLEL_MAX(n, n, top, carry_max32(w + lo, a + lo, p + lo, len, (int32_t)m, s, carry))
        }
        return top;
    }
    Shift s = shift_by(shift), carry = shift_by(-15);
    if (commit) {
        PARALLEL(n, n, carry_range(w + lo, a + lo, p + lo, len, (int32_t)m, s, carry))
    } else {
        PARALLEL_MAX(n, n, top, carry_max(w + lo, a + lo, p + lo, len, (int32_t)m, s, carry))
    }
    return top;
}

static void resplit_range(int8_t *restrict w, int16_t *restrict a, const int16_t *restrict p,
                          int64_t n, int32_t m, Shift s, Shift down, Shift carry) {
    for (int64_t i = 0; i < n; i++) {
        int64_t j = scale64(joint(w[i], a[i]) - scale64(m * p[i], s), down);
        int64_t code = scale64(j, carry);
        w[i] = (int8_t)code;
        a[i] = (int16_t)(code * 32768 - j);
    }
}

/* J (after the update) times 2**-by, split again; `by` may be negative (exact). */
void samebits_lazy_resplit(int8_t *w, int16_t *a, const int16_t *p, int64_t m, int64_t shift,
                           int64_t by, int64_t n, int threads) {
    Shift s = shift_by(shift), down = shift_by(-by), carry = shift_by(-15);
    PARALLEL(n, n, resplit_range(w + lo, a + lo, p + lo, len, (int32_t)m, s, down, carry))
}

static int64_t joint_max_range(const int8_t *restrict w, const int16_t *restrict a,
                               const int16_t *restrict p, int64_t n, int32_t m, Shift s) {
    int64_t top = 0;
    for (int64_t i = 0; i < n; i++) {
        int64_t v = magnitude(joint(w[i], a[i]) - scale64(m * p[i], s));
        top = MAX(top, v);
    }
    return top;
}

/* Largest |J - update|. */
int64_t samebits_joint_max(const int8_t *w, const int16_t *a, const int16_t *p, int64_t m,
                           int64_t shift, int64_t n, int threads) {
    Shift s = shift_by(shift);
    int64_t top = 0;
    PARALLEL_MAX(n, n, top, joint_max_range(w + lo, a + lo, p + lo, len, (int32_t)m, s))
    return top;
}
