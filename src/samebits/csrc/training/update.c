/* The optimizer step on integer state (docs/spec/training.md, sections 2 to 4): weights W (int8)
 * and delayed updates A (int16), moments and directions (e6m9 codes, int16), gradients (int32).
 * Every pass reads a few bytes an element and writes at most its own state.
 *
 * Numbers between are integers held in binary64, below 2**52: terms are scaled by powers of two,
 * rounded to integers once, and their sum is exact. */
#include "optimizer.h"
#include "parallel.h"
#include "shift.h"

/* --- directions of SGD (4) ------------------------------------------------------------------ */

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

/* Codes of a block at the exponent bias - MOMENT_BIAS, out[0] that of its first element, and the
 * largest magnitude among them; `out` may be t->v at the block. */
SAMEBITS_INLINE int32_t combine_block(const Terms *t, const TermScales *s, Block b, int64_t bias,
                                      int random, int16_t *out, int two, int decay,
                                      int momentum) {
    int32_t top = 0;
#pragma GCC ivdep
    for (int64_t i = b.from; i < b.to; i++) {
        double d = combined(t, s, i, two, decay, momentum);
        int64_t added = random ? added_random(b.bits[i - b.from]) : added_nearest(d);
        int32_t code = moment_code(d, bias, added);
        out[i - b.from] = (int16_t)code;
        top = SAMEBITS_MAX(top, magnitude_of(code));
    }
    return top;
}

typedef int32_t CombineBlock(const Terms *, const TermScales *, Block, int64_t, int, int16_t *);

#define COMBINE(name, two, decay, momentum)                                                       \
    static int32_t name(const Terms *t, const TermScales *s, Block b, int64_t bias, int random,   \
                        int16_t *out) {                                                           \
        if (random) return combine_block(t, s, b, bias, 1, out, two, decay, momentum);            \
        return combine_block(t, s, b, bias, 0, out, two, decay, momentum);                        \
    }
COMBINE(combine_one, 0, 0, 0)
COMBINE(combine_one_momentum, 0, 0, 1)
COMBINE(combine_one_decay, 0, 1, 0)
COMBINE(combine_one_both, 0, 1, 1)
COMBINE(combine_two, 1, 0, 0)
COMBINE(combine_two_momentum, 1, 0, 1)
COMBINE(combine_two_decay, 1, 1, 0)
COMBINE(combine_two_both, 1, 1, 1)

/* Of the terms that there are. */
static CombineBlock *combine_of(const Terms *t) {
    static CombineBlock *const kernels[2][2][2] = {
        {{combine_one, combine_one_momentum}, {combine_one_decay, combine_one_both}},
        {{combine_two, combine_two_momentum}, {combine_two_decay, combine_two_both}}};
    return kernels[t->second != NULL][t->decay != 0][t->momentum != 0];
}

/* The terms from element lo on. */
SAMEBITS_INLINE Terms terms_from(Terms t, int64_t lo) {
    t.g += lo, t.w += lo, t.a += lo;
    if (t.second) t.second += lo;
    if (t.v) t.v += lo;
    return t;
}

/* A block whose rows have a shift_decay each; `first` is the element of the tensor at index 0. */
static int64_t combine_rows(const Terms *t, TermScales s, Block b, int64_t first, int64_t bias,
                            int random, int16_t *out) {
    CombineBlock *combine = combine_of(t);
    int64_t top = 0;
    for (int64_t from = b.from, to; from < b.to; from = to) {
        int64_t row = (first + from) / t->row_size;
        to = SAMEBITS_MIN(b.to, (row + 1) * t->row_size - first);
        s.decay = power_of_two(t->rows[row]);
        Block part = {from, to, b.bits + (from - b.from)};
        int64_t largest = combine(t, &s, part, bias, random, out + (from - b.from));
        top = SAMEBITS_MAX(top, largest);
    }
    return top;
}

static int64_t combine_range(const Terms *all, const Draw *draw, int64_t lo, int64_t n,
                             int64_t bias, int16_t *out) {
    Terms t = terms_from(*all, lo);
    TermScales s = scales_of(&t);
    CombineBlock *combine = combine_of(&t);
    int64_t top = 0;
    FOR_BLOCKS(b, draw, lo, n) {
        int16_t *codes = out + lo + b.from;
        int64_t largest = t.rows ? combine_rows(&t, s, b, lo, bias, draw->on, codes)
                                 : combine(&t, &s, b, bias, draw->on, codes);
        top = SAMEBITS_MAX(top, largest);
    }
    return top;
}

/* e6m9 codes of combined at the exponent bias - MOMENT_BIAS, and the largest magnitude among them;
 * out may be t->v. */
int64_t samebits_combine(const Terms *t, const Draw *draw, int64_t n, int64_t bias, int16_t *out,
                         int threads) {
    int64_t top = 0;
    PARALLEL_MAX(n, n, top, combine_range(t, draw, lo, len, bias, out))
    return top;
}

/* --- lazy update (2.1) ---------------------------------------------------------------------- */

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
    int32_t by = -((int32_t)u->shift + field_of(code)) - 10, near = SAMEBITS_MIN(by, 31);
    uint32_t bits = (product >> near) & -(uint32_t)(by == near); /* 32 are all */
    int32_t v = (int32_t)((bits + update_bits(w)) >> 16);
    return with_sign(v, sign_of(code));
}

/* t = A + u; r = rne(t / 2**15), over a block in `bits` bits: tops[0], the largest |W - r|, and
 * tops[1], the largest |J - u|. */
#define CARRY(bits, u_of)                                                                         \
    int##bits##_t top = 0, most = 0;                                                              \
    _Pragma("GCC ivdep") for (int64_t i = b.from; i < b.to; i++) {                                \
        int##bits##_t t = a[i] + (u_of), r = scale##bits(t, carry), code = w[i] - r;              \
        int##bits##_t left = w[i] * 32768 - t;                                                    \
        if (commit) {                                                                             \
            w[i] = (int8_t)code;                                                                  \
            a[i] = (int16_t)(t - r * 32768);                                                      \
        }                                                                                         \
        code = code < 0 ? -code : code;                                                           \
        left = left < 0 ? -left : left;                                                           \
        top = SAMEBITS_MAX(top, code);                                                            \
        most = SAMEBITS_MAX(most, left);                                                          \
    }                                                                                             \
    tops[0] = SAMEBITS_MAX(tops[0], top);                                                         \
    tops[1] = SAMEBITS_MAX(tops[1], most);

/* A block with its directions p, p[0] that of its first element, where every |u| < 2**16. */
SAMEBITS_INLINE void carry_block(int8_t *w, int16_t *a, const Update *u, const int16_t *p, Block b,
                                 int commit, int64_t *tops) {
    Shift32 carry = shift32_by(-15);
    CARRY(32, moved32(u, p[i - b.from], b.bits[i - b.from]))
}

SAMEBITS_INLINE void carry_range(int8_t *w, int16_t *a, Update u, int64_t lo, int64_t n,
                                 int random, int narrow, int commit, int64_t *tops) {
    w += lo, a += lo;
    const int16_t *p = u.p + lo;
    FOR_BLOCKS(b, &u.draw, lo, n) {
        if (narrow) {
            carry_block(w, a, &u, p + b.from, b, commit, tops);
        } else {
            Shift carry = shift_by(-15);
            CARRY(64, moved(&u, p[i], b.bits[i - b.from], random))
        }
    }
}

#define CARRY_RANGE(name, random, narrow, commit)                                                 \
    static void name(int8_t *w, int16_t *a, Update u, int64_t lo, int64_t n, int64_t *tops) {     \
        carry_range(w, a, u, lo, n, random, narrow, commit, tops);                                \
    }
CARRY_RANGE(carry_nearest, 0, 0, 0)
CARRY_RANGE(carry_nearest_commit, 0, 0, 1)
CARRY_RANGE(carry_random, 1, 0, 0)
CARRY_RANGE(carry_random_commit, 1, 0, 1)
CARRY_RANGE(carry_narrow, 1, 1, 0)
CARRY_RANGE(carry_narrow_commit, 1, 1, 1)

static void lazy_carry(int8_t *w, int16_t *a, const Update *u, int64_t lo, int64_t n, int commit,
                       int64_t *tops) {
    static void (*const kernels[3][2])(int8_t *, int16_t *, Update, int64_t, int64_t,
                                       int64_t *) = {{carry_nearest, carry_nearest_commit},
                                                     {carry_random, carry_random_commit},
                                                     {carry_narrow, carry_narrow_commit}};
    int kind = !u->draw.on ? 0 : u->shift + 63 <= -10 ? 2 : 1;
    kernels[kind][commit != 0](w, a, *u, lo, n, tops);
}

/* t = A + u; r = rne(t / 2**15). tops: the largest |W - r|, and the largest |J - u|; with `commit`
 * writes W - r and t - r * 2**15 (the caller knows that they fit). */
void samebits_lazy_update(int8_t *w, int16_t *a, const Update *u, int64_t n, int commit,
                          int64_t *tops, int threads) {
    PARALLEL_MAX_TWO(n, n, tops, lazy_carry(w, a, u, lo, len, commit, most))
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

static void lazy_resplit(int8_t *w, int16_t *a, const Update *u, int64_t by, int64_t lo,
                         int64_t n) {
    Shift down = shift_by(-by), carry = shift_by(-15);
    if (u->draw.on)
        resplit_range(w, a, *u, lo, n, down, carry, 1);
    else
        resplit_range(w, a, *u, lo, n, down, carry, 0);
}

/* J (after the update) times 2**-by, split again; `by` may be negative (exact). */
void samebits_lazy_resplit(int8_t *w, int16_t *a, const Update *u, int64_t by, int64_t n,
                           int threads) {
    PARALLEL(n, n, lazy_resplit(w, a, u, by, lo, len))
}

/* --- rows with exponents of their own (2.1) -------------------------------------------------- */

static int64_t code_of(int64_t joint, int64_t by) {
    return scale64(scale64(joint, shift_by(-by)), shift_by(-15));
}

/* By how much an exponent moves, from max|W| and max|J| of its row: steps 4 and 5. Codes of W go up
 * to `limit`. */
int64_t samebits_lazy_move(int64_t largest, int64_t joint, int64_t exponent, int64_t limit) {
    int64_t by = 0;
    if (largest > limit) {
        do by++;
        while (code_of(joint, by) > limit);
    } else if (joint > 0) {
        while (largest <= limit / 2 && exponent + by > -128) largest = code_of(joint, --by);
    }
    return by;
}

/* The update of elements lo to lo + n - 1, one row; its exponent before, and the result after. */
static int64_t update_row(int8_t *w, int16_t *a, Update u, int64_t lo, int64_t n,
                          int64_t exponent, int64_t limit) {
    int64_t top = 0, by = 0;
    for (int64_t i = lo; i < lo + n; i++) top = SAMEBITS_MAX(top, magnitude_of(u.p[i]));
    if (top == 0) return exponent;
    int64_t above = u.shift + (top >> 9) + 26 - 46;
    if (above > 0) {
        Update none = {u.p, 0, -63, {0, 0, 0, 0}};
        lazy_resplit(w, a, &none, above, lo, n);
        u.shift -= above;
        exponent += above;
    }
    int64_t tops[2] = {0, 0};
    lazy_carry(w, a, &u, lo, n, 0, tops);
    by = samebits_lazy_move(tops[0], tops[1], exponent, limit);
    if (by == 0)
        lazy_carry(w, a, &u, lo, n, 1, tops);
    else
        lazy_resplit(w, a, &u, by, lo, n);
    return exponent + by;
}

static void update_rows(int8_t *w, int16_t *a, Update u, int64_t *exponents, int64_t limit,
                        int64_t size, int64_t lo, int64_t n) {
    int64_t shift = u.shift + 15;
    for (int64_t row = lo; row < lo + n; row++) {
        u.shift = SAMEBITS_MAX(shift - exponents[row], -900);
        exponents[row] = update_row(w, a, u, row * size, size, exponents[row], limit);
    }
}

/* Every row of `size` elements for itself: u against e_A = 0; exponents of the weight before, and
 * after; codes of W go up to `limit`. */
void samebits_lazy_rows(int8_t *w, int16_t *a, const Update *u, int64_t *exponents, int64_t limit,
                        int64_t rows, int64_t size, int threads) {
    PARALLEL(rows, rows * size, update_rows(w, a, *u, exponents, limit, size, lo, len))
}

/* --- SGD in one pass (4) -------------------------------------------------------------------- */

/* Momentum, or without one the direction, and the update, where every |u| is below 2**16 and every
 * code of W surely stays in range. */
static void sgd_range(const Terms *all, const Update *u, int8_t *w, int16_t *a, int16_t *v,
                      int64_t lo, int64_t n, int64_t bias, int64_t *most) {
    Terms t = terms_from(*all, lo);
    TermScales s = scales_of(&t);
    CombineBlock *combine = combine_of(&t);
    w += lo, a += lo;
    FOR_BLOCKS(b, &u->draw, lo, n) {
        int16_t direction[DRAW_BLOCK], *p = v ? v + lo + b.from : direction;
        int64_t code = combine(&t, &s, b, bias, v != NULL, p), tops[2] = {0, 0};
        carry_block(w, a, u, p, b, 1, tops);
        most[0] = SAMEBITS_MAX(most[0], tops[1]);
        most[1] = SAMEBITS_MAX(most[1], code);
    }
}

/* u as of samebits_lazy_update, its p unused; v receives the momentum, NULL: there is none, and the
 * direction is rounded to nearest. tops: the largest |J| after the update, and the largest
 * magnitude of a code of the direction. */
void samebits_sgd(const Terms *t, const Update *u, int8_t *w, int16_t *a, int16_t *v, int64_t n,
                  int64_t bias, int64_t *tops, int threads) {
    PARALLEL_MAX_TWO(n, n, tops, sgd_range(t, u, w, a, v, lo, len, bias, most))
}
