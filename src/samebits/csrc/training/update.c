/* The optimizer step on integer state (docs/spec/training.md, sections 2 to 4): weights W (int8)
 * and delayed updates A (int16), momentum V (int16), gradient G (int32). Every pass reads a few
 * bytes an element and writes at most its own state; nothing is held in floating point.
 *
 * Bounds: a term is a 16-bit coefficient times at most 23 bits (J = W * 2**15 - A), or a gradient
 * of 31; combine() of section 3 aligns them so that their sum stays below 2**62. Updates whose
 * product and shift fit in 32 bits, nearly all, take loops of half the width, to the same codes. */
#include <stddef.h>

#include "parallel.h"
#include "shift.h"

SAMEBITS_INLINE int64_t joint(int8_t w, int16_t a) { return (int64_t)w * 32768 - a; }

/* combine(): gradient, weight-decay and momentum terms at one exponent. The gradient may still lie
 * in two parts, each with the shift that aligns it (1.3); their sum is known to fit in 32 bits. */
typedef struct {
    const int32_t *g, *second;
    const int8_t *w;
    const int16_t *a, *v;
    int64_t decay, momentum; /* 16-bit coefficients, 0 = term absent */
    int64_t shift_first, shift_second, shift_g, shift_decay, shift_momentum;
} Terms;

typedef struct {
    Shift first, second, g, decay, momentum;
} TermShifts;

/* Element i; absent terms cost nothing where the flags are constants. A term is a product of a
 * 16-bit coefficient and at most 23 bits, in 64 bits. */
SAMEBITS_INLINE int64_t combined(const Terms *t, const TermShifts *s, const int32_t *restrict g,
                                 const int32_t *restrict second, const int8_t *restrict w,
                                 const int16_t *restrict a, const int16_t *v, int64_t i, int two,
                                 int decay, int momentum) {
    int64_t gradient = g[i];
    if (two) gradient = scale64(gradient, s->first) + scale64(second[i], s->second);
    int64_t sum = scale64(gradient, s->g);
    if (decay) sum += scale64((int64_t)(int32_t)t->decay * (int32_t)joint(w[i], a[i]), s->decay);
    if (momentum) sum += scale64((int64_t)((int32_t)t->momentum * v[i]), s->momentum);
    return sum;
}

/* One thread's range; `out` may be v itself, element by element. */
SAMEBITS_INLINE int64_t combine_range(Terms t, TermShifts s, int64_t lo, int64_t n, Shift to,
                                      int16_t *out, int two, int decay, int momentum) {
    const int32_t *restrict g = t.g + lo, *restrict second = two ? t.second + lo : t.g;
    const int8_t *restrict w = t.w + lo;
    const int16_t *restrict a = t.a + lo;
    const int16_t *v = momentum ? t.v + lo : t.a;
    int64_t top = 0;
    if (out) {
        out += lo;
#pragma GCC ivdep
        for (int64_t i = 0; i < n; i++)
            out[i] = (int16_t)scale64(
                combined(&t, &s, g, second, w, a, v, i, two, decay, momentum), to);
        return 0;
    }
    for (int64_t i = 0; i < n; i++) {
        int64_t d = combined(&t, &s, g, second, w, a, v, i, two, decay, momentum);
        d = samebits_magnitude64(d);
        top = SAMEBITS_MAX(top, d);
    }
    return top;
}

#define COMBINE(name, two, decay, momentum)                                                    \
    static int64_t name(Terms t, TermShifts s, int64_t lo, int64_t n, Shift to, int16_t *out) { \
        return combine_range(t, s, lo, n, to, out, two, decay, momentum);                      \
    }
COMBINE(combine_one, 0, 0, 0)
COMBINE(combine_one_momentum, 0, 0, 1)
COMBINE(combine_one_decay, 0, 1, 0)
COMBINE(combine_one_both, 0, 1, 1)
COMBINE(combine_two, 1, 0, 0)
COMBINE(combine_two_momentum, 1, 0, 1)
COMBINE(combine_two_decay, 1, 1, 0)
COMBINE(combine_two_both, 1, 1, 1)

/* The largest |combined| (out == NULL), or rne(combined * 2**exponent) as bfp16; out may be
 * t->v. */
int64_t samebits_combine(const Terms *t, int64_t n, int64_t exponent, int16_t *out, int threads) {
    static int64_t (*const kernels[2][2][2])(Terms, TermShifts, int64_t, int64_t, Shift,
                                             int16_t *) = {
        {{combine_one, combine_one_momentum}, {combine_one_decay, combine_one_both}},
        {{combine_two, combine_two_momentum}, {combine_two_decay, combine_two_both}}};
    TermShifts s = {shift_by(t->shift_first), shift_by(t->shift_second), shift_by(t->shift_g),
                    shift_by(t->shift_decay), shift_by(t->shift_momentum)};
    Shift to = shift_by(exponent);
    int64_t top = 0;
    PARALLEL_MAX(n, n, top, kernels[t->second != NULL][t->decay != 0][t->momentum != 0](
                                *t, s, lo, len, to, out))
    return top;
}

static int64_t carry_max(const int8_t *restrict w, const int16_t *restrict a,
                         const int16_t *restrict p, int64_t n, int32_t m, Shift s, Shift carry) {
    int64_t top = 0;
    for (int64_t i = 0; i < n; i++) {
        int64_t t = a[i] + scale64(m * p[i], s), v = samebits_magnitude64(w[i] - scale64(t, carry));
        top = SAMEBITS_MAX(top, v);
    }
    return top;
}

static int64_t carry_range(int8_t *restrict w, int16_t *restrict a, const int16_t *restrict p,
                           int64_t n, int32_t m, Shift s, Shift carry) {
    int64_t top = 0;
    for (int64_t i = 0; i < n; i++) {
        int64_t t = a[i] + scale64(m * p[i], s), r = scale64(t, carry), code = w[i] - r;
        w[i] = (int8_t)code;
        a[i] = (int16_t)(t - r * 32768);
        code = samebits_magnitude64(code);
        top = SAMEBITS_MAX(top, code);
    }
    return top;
}

/* The same in 32 bits, for updates below 2**29 (|P| * m * 2**shift): nearly all of them. */
static int64_t carry_max32(const int8_t *restrict w, const int16_t *restrict a,
                           const int16_t *restrict p, int64_t n, int32_t m, Shift32 s,
                           Shift32 carry) {
    int32_t top = 0;
    for (int64_t i = 0; i < n; i++) {
        int32_t t = a[i] + scale32(m * p[i], s), v = w[i] - scale32(t, carry);
        v = v < 0 ? -v : v;
        top = SAMEBITS_MAX(top, v);
    }
    return top;
}

static int64_t carry_range32(int8_t *restrict w, int16_t *restrict a, const int16_t *restrict p,
                             int64_t n, int32_t m, Shift32 s, Shift32 carry) {
    int32_t top = 0;
    for (int64_t i = 0; i < n; i++) {
        int32_t t = a[i] + scale32(m * p[i], s), r = scale32(t, carry), code = w[i] - r;
        w[i] = (int8_t)code;
        a[i] = (int16_t)(t - r * 32768);
        code = code < 0 ? -code : code;
        top = SAMEBITS_MAX(top, code);
    }
    return top;
}

/* t = A + rne(m * P * 2**shift), shift <= 15; r = rne(t / 2**15). Returns the largest |W - r|; with
 * `commit` writes W - r and t - r * 2**15 (the caller knows that they fit). m < 2**16. */
int64_t samebits_lazy_update(int8_t *w, int16_t *a, const int16_t *p, int64_t m, int64_t shift,
                             int64_t n, int commit, int threads) {
    int64_t top = 0;
    /* |m * P| <= Q32; 32-bit shifts take it for right shifts of 2 to 24 bits. */
    if (shift <= -2 && shift >= -24) {
        Shift32 s = shift32_by(shift), carry = shift32_by(-15);
        if (commit) {
            PARALLEL_MAX(n, n, top,
                         carry_range32(w + lo, a + lo, p + lo, len, (int32_t)m, s, carry))
        } else {
            PARALLEL_MAX(n, n, top, carry_max32(w + lo, a + lo, p + lo, len, (int32_t)m, s, carry))
        }
        return top;
    }
    Shift s = shift_by(shift), carry = shift_by(-15);
    if (commit) {
        PARALLEL_MAX(n, n, top, carry_range(w + lo, a + lo, p + lo, len, (int32_t)m, s, carry))
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
        int64_t v = samebits_magnitude64(joint(w[i], a[i]) - scale64(m * p[i], s));
        top = SAMEBITS_MAX(top, v);
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
