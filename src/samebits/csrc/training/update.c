/* The optimizer step on integer state (docs/spec/training.md, sections 2 to 4): weights W (int8)
 * and delayed updates A (int16), moments and directions (e6m9 codes, int16), gradients (int32).
 * Every pass reads a few bytes an element and writes at most its own state.
 *
 * Numbers between are integers held in binary64, below 2**52: terms are scaled by powers of two,
 * rounded to integers once, and their sum is exact. */
#include <stddef.h>

#include "moment.h"
#include "parallel.h"
#include "shift.h"

/* --- directions of SGD (4) ------------------------------------------------------------------ */

/* combine50(): gradient, weight-decay and momentum terms at one exponent. The gradient may still
 * lie in two parts, each with the shift that aligns it (1.3); their sum fits in 32 bits. */
typedef struct {
    const int32_t *g, *second;
    const int8_t *w;
    const int16_t *a, *v;
    int64_t decay, momentum; /* 16-bit coefficients, 0 = term absent */
    /* Exponents, in [-900, 900]; of the momentum that of a code with F = 0. */
    int64_t shift_first, shift_second, shift_g, shift_decay, shift_momentum;
} Terms;

typedef struct {
    double first, other, scale, decay;
} TermScales;

SAMEBITS_INLINE TermScales scales_of(const Terms *t) {
    return (TermScales){power_of_two(t->shift_first), power_of_two(t->shift_second),
                        power_of_two(t->shift_g), power_of_two(t->shift_decay)};
}

/* Element i; absent terms cost nothing where the flags are constants. */
SAMEBITS_INLINE double combined(const Terms *t, const TermScales *s, int64_t i, int two,
                                int decay, int momentum) {
    double gradient = t->g[i];
    if (two) gradient = nearest(gradient * s->first) + nearest(t->second[i] * s->other);
    double sum = nearest(gradient * s->scale);
    if (decay) sum += nearest((double)(int32_t)t->decay * joint(t->w[i], t->a[i]) * s->decay);
    if (momentum)
        sum += nearest(moment_value((int32_t)t->momentum, t->v[i], t->shift_momentum));
    return sum;
}

/* The largest code; `out` may be v itself. */
SAMEBITS_INLINE int64_t combine_range(Terms t, const Draw *draw, int64_t lo, int64_t n,
                                      int64_t bias, int16_t *out, int two, int decay,
                                      int momentum) {
    TermScales s = scales_of(&t);
    t.g += lo, t.w += lo, t.a += lo, out += lo;
    if (two) t.second += lo;
    if (momentum) t.v += lo;
    int32_t top = 0;
    FOR_BLOCKS(b, draw, lo, n) {
        const Bits *bits = b.bits;
        if (draw->on) {
#pragma GCC ivdep
            for (int64_t i = b.from; i < b.to; i++) {
                double d = combined(&t, &s, i, two, decay, momentum);
                int32_t code = moment_code(d, bias, added_random(bits[i - b.from]));
                out[i] = (int16_t)code;
                top = SAMEBITS_MAX(top, magnitude_of(code));
            }
        } else {
#pragma GCC ivdep
            for (int64_t i = b.from; i < b.to; i++) {
                double d = combined(&t, &s, i, two, decay, momentum);
                int32_t code = moment_code(d, bias, added_nearest(d));
                out[i] = (int16_t)code;
                top = SAMEBITS_MAX(top, magnitude_of(code));
            }
        }
    }
    return top;
}

#define COMBINE(name, two, decay, momentum)                                                     \
    static int64_t name(Terms t, const Draw *draw, int64_t lo, int64_t n, int64_t bias,         \
                        int16_t *out) {                                                         \
        return combine_range(t, draw, lo, n, bias, out, two, decay, momentum);                  \
    }
COMBINE(combine_one, 0, 0, 0)
COMBINE(combine_one_momentum, 0, 0, 1)
COMBINE(combine_one_decay, 0, 1, 0)
COMBINE(combine_one_both, 0, 1, 1)
COMBINE(combine_two, 1, 0, 0)
COMBINE(combine_two_momentum, 1, 0, 1)
COMBINE(combine_two_decay, 1, 1, 0)
COMBINE(combine_two_both, 1, 1, 1)

/* e6m9 codes of combined at the exponent bias - MOMENT_BIAS, and the largest magnitude among them;
 * out may be t->v. */
int64_t samebits_combine(const Terms *t, const Draw *draw, int64_t n, int64_t bias, int16_t *out,
                         int threads) {
    static int64_t (*const kernels[2][2][2])(Terms, const Draw *, int64_t, int64_t, int64_t,
                                             int16_t *) = {
        {{combine_one, combine_one_momentum}, {combine_one_decay, combine_one_both}},
        {{combine_two, combine_two_momentum}, {combine_two_decay, combine_two_both}}};
    int64_t top = 0;
    PARALLEL_MAX(n, n, top, kernels[t->second != NULL][t->decay != 0][t->momentum != 0](
                                *t, draw, lo, len, bias, out))
    return top;
}

/* --- lazy update (2.1) ---------------------------------------------------------------------- */

/* What is subtracted from J: m * P, where a code with F = 0 has the exponent `shift` against J; m
 * below 2**16, shift at most -43, so that every |u| is below 2**46. */
typedef struct {
    const int16_t *p;
    int64_t m, shift;
    Draw draw;
} Update;

#define GUARD 36 /* bits that a product of 26 is moved left before it is moved right */

/* u of an element: floor(m * q * 2**(16 - s)) + w without its last 16 bits, s = -(shift + F). */
SAMEBITS_INLINE int64_t moved(const Update *u, int32_t code, uint32_t w, int random) {
    int64_t product = (int64_t)((int32_t)u->m * significand_of(code)), sign = sign_of(code), v;
    int64_t right = -(u->shift + field_of(code));
    if (random) {
        int64_t by = SAMEBITS_MIN(right + GUARD - 16, 63);
        v = (int64_t)((((uint64_t)product << GUARD) >> by) + update_bits(w)) >> 16;
    } else {
        v = (int64_t)nearest((double)product * power_of_two(SAMEBITS_MAX(-right, -900)));
    }
    return (v ^ sign) - sign;
}

/* The same in 32 bits where every s >= 10: |u| < 2**16. */
SAMEBITS_INLINE int32_t moved32(const Update *u, int32_t code, uint32_t w) {
    uint32_t product = (uint32_t)((int32_t)u->m * significand_of(code)) << 6;
    int32_t by = SAMEBITS_MIN(-((int32_t)u->shift + field_of(code)) - 10, 31);
    int32_t v = (int32_t)(((product >> by) + update_bits(w)) >> 16);
    return with_sign(v, sign_of(code));
}

#define CARRY(bits, u_of)                                                                         \
    for (int64_t i = b.from; i < b.to; i++) {                                                    \
        int##bits##_t t = a[i] + (u_of), r = scale##bits(t, carry), code = w[i] - r;              \
        if (commit) {                                                                             \
            w[i] = (int8_t)code;                                                                  \
            a[i] = (int16_t)(t - r * 32768);                                                      \
        }                                                                                         \
        code = code < 0 ? -code : code;                                                           \
        top = SAMEBITS_MAX(top, code);                                                            \
    }

SAMEBITS_INLINE int64_t carry_range(int8_t *restrict w, int16_t *restrict a, Update u, int64_t lo,
                                    int64_t n, int random, int narrow, int commit) {
    int64_t most = 0;
    w += lo, a += lo;
    const int16_t *restrict p = u.p + lo;
    FOR_BLOCKS(b, &u.draw, lo, n) {
        if (narrow) {
            int32_t top = 0;
            Shift32 carry = shift32_by(-15);
            CARRY(32, moved32(&u, p[i], b.bits[i - b.from]))
            most = SAMEBITS_MAX(most, top);
        } else {
            int64_t top = 0;
            Shift carry = shift_by(-15);
            CARRY(64, moved(&u, p[i], b.bits[i - b.from], random))
            most = SAMEBITS_MAX(most, top);
        }
    }
    return most;
}

#define CARRY_RANGE(name, random, narrow, commit)                                                 \
    static int64_t name(int8_t *w, int16_t *a, Update u, int64_t lo, int64_t n) {                 \
        return carry_range(w, a, u, lo, n, random, narrow, commit);                               \
    }
CARRY_RANGE(carry_nearest, 0, 0, 0)
CARRY_RANGE(carry_nearest_commit, 0, 0, 1)
CARRY_RANGE(carry_random, 1, 0, 0)
CARRY_RANGE(carry_random_commit, 1, 0, 1)
CARRY_RANGE(carry_narrow, 1, 1, 0)
CARRY_RANGE(carry_narrow_commit, 1, 1, 1)

/* t = A + u; r = rne(t / 2**15). Returns the largest |W - r|; with `commit` writes W - r and
 * t - r * 2**15 (the caller knows that they fit). */
int64_t samebits_lazy_update(int8_t *w, int16_t *a, const Update *u, int64_t n, int commit,
                             int threads) {
    static int64_t (*const kernels[3][2])(int8_t *, int16_t *, Update, int64_t, int64_t) = {
        {carry_nearest, carry_nearest_commit},
        {carry_random, carry_random_commit},
        {carry_narrow, carry_narrow_commit}};
    int kind = !u->draw.on ? 0 : u->shift + 63 <= -10 ? 2 : 1;
    int64_t top = 0;
    PARALLEL_MAX(n, n, top, kernels[kind][commit != 0](w, a, *u, lo, len))
    return top;
}

SAMEBITS_INLINE void resplit_range(int8_t *restrict w, int16_t *restrict a, Update u,
                                   int64_t lo, int64_t n, Shift down, Shift carry,
                                   int random) {
    w += lo, a += lo;
    const int16_t *restrict p = u.p + lo;
    FOR_BLOCKS(b, &u.draw, lo, n) {
        for (int64_t i = b.from; i < b.to; i++) {
            int64_t j =
                scale64(joint(w[i], a[i]) - moved(&u, p[i], b.bits[i - b.from], random), down);
            int64_t code = scale64(j, carry);
            w[i] = (int8_t)code;
            a[i] = (int16_t)(code * 32768 - j);
        }
    }
}

/* J (after the update) times 2**-by, split again; `by` may be negative (exact). */
void samebits_lazy_resplit(int8_t *w, int16_t *a, const Update *u, int64_t by, int64_t n,
                           int threads) {
    Shift down = shift_by(-by), carry = shift_by(-15);
    if (u->draw.on) {
        PARALLEL(n, n, resplit_range(w, a, *u, lo, len, down, carry, 1))
    } else {
        PARALLEL(n, n, resplit_range(w, a, *u, lo, len, down, carry, 0))
    }
}

SAMEBITS_INLINE int64_t joint_max_range(const int8_t *restrict w, const int16_t *restrict a,
                                        Update u, int64_t lo, int64_t n, int random) {
    w += lo, a += lo;
    const int16_t *restrict p = u.p + lo;
    int64_t top = 0;
    FOR_BLOCKS(b, &u.draw, lo, n) {
        for (int64_t i = b.from; i < b.to; i++) {
            int64_t v = samebits_magnitude64(joint(w[i], a[i]) -
                                             moved(&u, p[i], b.bits[i - b.from], random));
            top = SAMEBITS_MAX(top, v);
        }
    }
    return top;
}

/* Largest |J - update|. */
int64_t samebits_joint_max(const int8_t *w, const int16_t *a, const Update *u, int64_t n,
                           int threads) {
    int64_t top = 0;
    if (u->draw.on) {
        PARALLEL_MAX(n, n, top, joint_max_range(w, a, *u, lo, len, 1))
    } else {
        PARALLEL_MAX(n, n, top, joint_max_range(w, a, *u, lo, len, 0))
    }
    return top;
}

/* --- SGD in one pass (4) -------------------------------------------------------------------- */

/* Momentum, or without one the direction, and the update, where every |u| is below 2**16 and every
 * code of W surely stays in range. */
SAMEBITS_INLINE int64_t sgd_range(Terms t, Update u, int8_t *w, int16_t *a, int16_t *v, int64_t lo,
                                  int64_t n, int64_t bias, int32_t *code_top, int two, int decay,
                                  int momentum) {
    TermScales s = scales_of(&t);
    t.g += lo, t.w += lo, t.a += lo, w += lo, a += lo;
    if (two) t.second += lo;
    if (momentum) t.v += lo;
    if (v) v += lo;
    int32_t top = 0, largest = 0;
    Shift32 carry = shift32_by(-15);
    FOR_BLOCKS(b, &u.draw, lo, n) {
        const Bits *bits = b.bits;
        int16_t p[DRAW_BLOCK];
        if (v) {
#pragma GCC ivdep
            for (int64_t i = b.from; i < b.to; i++) {
                double d = combined(&t, &s, i, two, decay, momentum);
                int16_t code = moment_code(d, bias, added_random(bits[i - b.from]));
                v[i] = code;
                p[i - b.from] = code;
                largest = SAMEBITS_MAX(largest, magnitude_of(code));
            }
        } else {
#pragma GCC ivdep
            for (int64_t i = b.from; i < b.to; i++) {
                double d = combined(&t, &s, i, two, decay, momentum);
                p[i - b.from] = moment_code(d, bias, added_nearest(d));
            }
        }
#pragma GCC ivdep
        for (int64_t i = b.from; i < b.to; i++) {
            int32_t x = a[i] + moved32(&u, p[i - b.from], bits[i - b.from]);
            int32_t r = scale32(x, carry), code = w[i] - r;
            w[i] = (int8_t)code;
            a[i] = (int16_t)(x - r * 32768);
            code = code < 0 ? -code : code;
            top = SAMEBITS_MAX(top, code);
        }
    }
    *code_top = largest;
    return top;
}

#define SGD(name, two, decay, momentum)                                                          \
    static int64_t name(Terms t, Update u, int8_t *w, int16_t *a, int16_t *v, int64_t lo,        \
                        int64_t n, int64_t bias, int32_t *code_top) {                            \
        return sgd_range(t, u, w, a, v, lo, n, bias, code_top, two, decay, momentum);            \
    }
SGD(sgd_one, 0, 0, 0)
SGD(sgd_one_momentum, 0, 0, 1)
SGD(sgd_one_decay, 0, 1, 0)
SGD(sgd_one_both, 0, 1, 1)
SGD(sgd_two, 1, 0, 0)
SGD(sgd_two_momentum, 1, 0, 1)
SGD(sgd_two_decay, 1, 1, 0)
SGD(sgd_two_both, 1, 1, 1)

/* u as of samebits_lazy_update, its p unused; v receives the momentum, NULL: there is none. Returns
 * the largest |W|, and in *code_top the largest magnitude of a code of v. */
int64_t samebits_sgd(const Terms *t, const Update *u, int8_t *w, int16_t *a, int16_t *v, int64_t n,
                     int64_t bias, int64_t *code_top, int threads) {
    static int64_t (*const kernels[2][2][2])(Terms, Update, int8_t *, int16_t *, int16_t *, int64_t,
                                             int64_t, int64_t, int32_t *) = {
        {{sgd_one, sgd_one_momentum}, {sgd_one_decay, sgd_one_both}},
        {{sgd_two, sgd_two_momentum}, {sgd_two_decay, sgd_two_both}}};
    int64_t top = 0, largest = 0;
    int crew = TEAM(n);
#pragma omp parallel num_threads(crew) reduction(max : top, largest)
    {
        SHARE(n)
        int32_t own = 0;
        if (len > 0)
            top = kernels[t->second != NULL][t->decay != 0][t->momentum != 0](*t, *u, w, a, v, lo,
                                                                              len, bias, &own);
        largest = own;
    }
    *code_top = largest;
    return top;
}
