/* The step of all parameters of a model as one call (docs/spec/training.md, sections 2 to 4),
 * by the kernels that also serve one parameter after the other (`train/optim.py`). What decides
 * here are a few numbers of each parameter: exponents, and bounds of what may grow. */
#include <stdlib.h>
#include <string.h>

#include "exponent.h"
#include "optimizer.h"

#define HIGHEST EXPONENT_MAX /* of weights, moments and directions */
#define LOWEST EXPONENT_MIN
#define ROUNDING 24 /* powers of two that sums, their rounding and a new split may add */
#define TOP_FIELD 63
#define WITNESSES 256 /* elements of a sum of gradients that are looked at before it is used */

/* What is kept of a parameter from step to step, beside its moments. Before the first step all is
 * 0. */
typedef struct {
    int64_t begun; /* whether there are moments */
    int64_t steps, momentum_exponent, momentum_largest, first_exponent, root_exponent;
    double power1, power2; /* beta1**steps, beta2**steps */
} Numbers;

/* One contribution to a gradient: codes of 16 or 32 bits, their exponent, and a bound of their
 * magnitudes, -1 where none is known. A cell that is not NULL holds the number in place of that
 * beside it. */
typedef struct {
    const void *codes;
    int64_t width, exponent, bound;
    const int64_t *exponent_cell, *bound_cell;
} Part;

/* Options of a group of parameters. Coefficients are m * 2**x; m = 0: the term is absent. For each
 * number `bits` is the least n with |number| < 2**n. */
typedef struct {
    int64_t is_adam, nesterov, random, seed;
    int64_t lr, lr_exponent, lr_bits;
    int64_t decay, decay_exponent, decay_bits;
    int64_t momentum, momentum_exponent, momentum_bits;
    int64_t divisor_bits; /* of 1 - beta1, and those of eps */
    double beta1, beta2, coupled, decoupled, eps;
} Options;

/* One parameter: W, A and e_W, or by rows all e_W (else NULL); max|J| where the last update left it
 * (-1: unknown, as of rows), and the version of W that this is true of; V, or M and S. `place`:
 * among all parameters, for its random bits. Its gradient has the next `parts` of the list. */
typedef struct {
    int8_t *w;
    int16_t *a;
    int64_t *exponent, *largest;
    int8_t *exponents;
    int16_t *moment, *root;
    Numbers *numbers;
    int64_t size, rows, limit, place, group, parts;
} Trained;

/* Memory of a step: a number of each row, directions and sums of the largest parameter, addends of
 * the longest sum. */
typedef struct {
    int64_t *numbers;
    int16_t *direction;
    int32_t *sum;
    Addend *addends;
    int threads;
} Desk;

/* A gradient as kernels read it: codes at an exponent, or two parts and the shift of each. */
typedef struct {
    const int32_t *codes, *second;
    int64_t exponent, by_first, by_second;
} Gradient;

static int64_t exponent_of(const Part *p) {
    return p->exponent_cell ? *p->exponent_cell : p->exponent;
}

static int64_t bound_of(const Part *p) {
    int64_t bound = p->bound_cell ? *p->bound_cell : p->bound;
    return SAMEBITS_MIN(bound, Q32);
}

/* e_W, or the largest of its rows. */
static int64_t weight_exponent(const Trained *t) {
    if (!t->exponents) return *t->exponent;
    int64_t most = LOWEST;
    for (int64_t r = 0; r < t->rows; r++) most = SAMEBITS_MAX(most, t->exponents[r]);
    return most;
}

/* e_W + by of every row, at least -900; NULL where there are none. */
static const int64_t *row_shifts(const Trained *t, int64_t by, const Desk *desk) {
    for (int64_t r = 0; r < t->rows; r++)
        desk->numbers[r] = SAMEBITS_MAX(t->exponents[r] + by, -900);
    return t->exponents ? desk->numbers : NULL;
}

/* v * 2**k, as far as binary64 goes; of a v > 0 never less than that. */
static double bound_times_power(double v, int64_t k) {
    return v * power_of_two(samebits_clamp64(k, -1000, 1000));
}

typedef struct {
    int64_t least, most;
} Ends;

static Ends exponents_of(const Part *parts, int64_t count) {
    Ends ends = {exponent_of(parts), exponent_of(parts)};
    for (int64_t i = 1; i < count; i++) {
        int64_t e = exponent_of(parts + i);
        ends.least = SAMEBITS_MIN(ends.least, e);
        ends.most = SAMEBITS_MAX(ends.most, e);
    }
    return ends;
}

/* --- whether a step surely fits ------------------------------------------------------------- */

/* n such that every number on the way to the direction is below 2**n. */
static int64_t direction_bits(const Trained *t, const Options *o, int64_t gradient,
                              int64_t joint) {
    const Numbers *now = t->numbers;
    int64_t decay = o->decay_bits + joint, top;
    if (!o->is_adam) {
        top = (now->begun ? now->momentum_exponent : LOWEST) + 10 + o->momentum_bits;
        top = SAMEBITS_MAX(SAMEBITS_MAX(top, decay), gradient);
        return top + 2 + SAMEBITS_MAX(o->momentum_bits, 0) + o->nesterov;
    }
    int64_t first = now->begun ? now->first_exponent : LOWEST;
    int64_t root = now->begun ? now->root_exponent : LOWEST;
    top = SAMEBITS_MAX(SAMEBITS_MAX(first, root) + 10, SAMEBITS_MAX(gradient, decay) + 1) + 1;
    return SAMEBITS_MAX(SAMEBITS_MAX(top, decay), top + 2 - o->divisor_bits) + 1;
}

/* Whether no exponent of an update can leave its range, by bounds on all magnitudes: `_surely_fits`
 * of train/optim.py. For Adam binary64 must also hold the gradient. */
static int fits(const Trained *t, const Options *o, const Part *parts) {
    Ends e = exponents_of(parts, t->parts);
    int64_t length = 0, joint = weight_exponent(t) + 8;
    while (t->parts >> length) length++;
    int64_t n = direction_bits(t, o, e.most + 31 + length, joint);
    int64_t most = SAMEBITS_MAX(SAMEBITS_MAX(n, n + o->lr_bits), joint);
    return most + ROUNDING <= HIGHEST && (!o->is_adam || e.least >= -900);
}

/* --- gradients (1.3) ------------------------------------------------------------------------ */

static int is_zero(const Part *p, int64_t n) {
    const int16_t *narrow = p->codes;
    const int32_t *wide = p->codes;
    int64_t i = 0;
    if (p->width == 16)
        while (i < n && narrow[i] == 0) i++;
    else
        while (i < n && wide[i] == 0) i++;
    return i == n;
}

/* The largest exponent among parts that are not all zeros; of zeros alone, the least. */
static int64_t live_exponent(const Part *parts, int64_t count, int64_t n) {
    for (int64_t below = INT64_MAX;;) {
        int64_t e = INT64_MIN, left = 0, zero = 1;
        for (int64_t i = 0; i < count; i++)
            if (exponent_of(parts + i) < below) {
                int64_t own = exponent_of(parts + i);
                e = SAMEBITS_MAX(e, own);
                left++;
            }
        for (int64_t i = 0; i < count && zero; i++)
            if (exponent_of(parts + i) == e) {
                left--;
                zero = is_zero(parts + i, n);
            }
        if (!zero || left == 0) return e;
        below = e;
    }
}

static Gradient resolved(const Part *parts, int64_t count, int64_t n, const Desk *desk) {
    int64_t e = exponent_of(parts), by, largest;
    if (count == 1 && parts->width == 32) return (Gradient){parts->codes, NULL, e, 0, 0};
    if (count > 1) e = live_exponent(parts, count, n);
    for (int64_t i = 0; i < count; i++) {
        int64_t own = exponent_of(parts + i) - e; /* above 0 of zeros alone */
        desk->addends[i] = (Addend){parts[i].codes, parts[i].width, SAMEBITS_MIN(own, 0)};
    }
    largest = samebits_add_grad(desk->addends, count, n, desk->sum, &by, desk->threads);
    if (count > 1 && largest == 0) e = LOWEST;
    return (Gradient){desk->sum, NULL, e + by, 0, 0};
}

/* As `resolved`, but two parts of 32 bits whose sum surely fits are added where they are used. Only
 * one thing can differ then: parts that cancel everywhere would give a lower exponent. So some sum
 * among the first must be other than 0. */
static Gradient gathered(const Part *parts, int64_t count, int64_t n, const Desk *desk) {
    if (count == 2 && parts[0].width == 32 && parts[1].width == 32) {
        const Part *a = parts, *b = parts + 1;
        int64_t e = exponents_of(parts, 2).most, most_a = bound_of(a), most_b = bound_of(b);
        int64_t by_a = exponent_of(a) - e, by_b = exponent_of(b) - e;
        if (most_a > 0 && most_b > 0 &&
            scale64(most_a, shift_by(by_a)) + scale64(most_b, shift_by(by_b)) <= Q32) {
            Addend both[2] = {{a->codes, 32, by_a}, {b->codes, 32, by_b}};
            int64_t seen = SAMEBITS_MIN(n, WITNESSES);
            if (samebits_add_grad(both, 2, seen, NULL, NULL, 1))
                return (Gradient){a->codes, b->codes, e, by_a, by_b};
        }
    }
    return resolved(parts, count, n, desk);
}

/* --- lazy update (2.1) ---------------------------------------------------------------------- */

/* The largest |u| that surely keeps max|W| above half the limit and within it; below 0 for none. */
static int64_t room_of(const Trained *t) {
    int64_t joint = t->largest[0], low = (2 * (t->limit / 2) + 1) * 16384;
    int64_t high = (2 * t->limit + 1) * 16384;
    return joint < 0 ? -1 : SAMEBITS_MIN(joint - low, high - joint) - 1;
}

static Update update_by(const Trained *t, const Options *o, const int16_t *p, int64_t e_p,
                        Draw draw) {
    int64_t e_a = t->exponents ? 0 : *t->exponent - 15; /* rows have their own */
    int64_t shift = e_p - TOP_FIELD + o->lr_exponent - e_a;
    return (Update){p, o->lr, t->exponents ? shift : SAMEBITS_MAX(shift, -900), draw};
}

static void lazy_rows(const Trained *t, Update u, const Desk *desk) {
    int64_t *e = desk->numbers;
    for (int64_t r = 0; r < t->rows; r++) e[r] = t->exponents[r];
    samebits_lazy_rows(t->w, t->a, &u, e, t->limit, t->rows, t->size / t->rows, desk->threads);
    for (int64_t r = 0; r < t->rows; r++) t->exponents[r] = (int8_t)e[r];
}

static void lazy_update(const Trained *t, Update u, const Desk *desk) {
    int threads = desk->threads;
    int64_t bits = u.shift + TOP_FIELD + 26, n = t->size, tops[2]; /* every |u| <= 2**bits */
    if (bits < 40 && (int64_t)1 << SAMEBITS_MAX(bits, 0) <= room_of(t)) {
        samebits_lazy_update(t->w, t->a, &u, n, 1, tops, threads);
        t->largest[0] = tops[1];
        return;
    }
    int64_t largest = samebits_max_i16(u.p, n, threads), exponent = *t->exponent;
    if (largest == 0) return;
    int64_t above = bits - TOP_FIELD + (largest >> 9) - 46;
    if (above > 0) {
        Update none = {u.p, 0, -TOP_FIELD, {0, 0, 0, 0}};
        samebits_lazy_resplit(t->w, t->a, &none, above, n, threads);
        exponent += above;
        u.shift -= above;
    }
    samebits_lazy_update(t->w, t->a, &u, n, 0, tops, threads);
    int64_t by = samebits_lazy_move(tops[0], tops[1], exponent, t->limit);
    if (by)
        samebits_lazy_resplit(t->w, t->a, &u, by, n, threads);
    else
        samebits_lazy_update(t->w, t->a, &u, n, 1, tops, threads);
    *t->exponent = exponent + by;
    t->largest[0] = scale64(tops[1], shift_by(-by));
}

/* --- SGD (4) -------------------------------------------------------------------------------- */

/* The operands of a direction of SGD, and the exponent of its integers: 50 bits below the largest
 * term. */
static Terms sgd_terms(const Trained *t, const Options *o, Gradient g, int64_t *exponent,
                       const Desk *desk) {
    const Numbers *now = t->numbers;
    int64_t e_decay = weight_exponent(t) - 15 + o->decay_exponent, top = g.exponent + 31, e_v = 0;
    int64_t momentum = now->begun ? o->momentum : 0;
    if (o->decay) top = SAMEBITS_MAX(top, e_decay + 39);
    if (momentum) e_v = now->momentum_exponent + o->momentum_exponent - TOP_FIELD;
    if (momentum && now->momentum_largest) {
        int64_t own = e_v + (now->momentum_largest >> 9) + 26;
        top = SAMEBITS_MAX(top, own);
    }
    int64_t e = *exponent = top - 50;
    return (Terms){.g = g.codes,
                   .second = g.second,
                   .w = t->w,
                   .a = t->a,
                   .v = momentum ? t->moment : NULL,
                   .rows = o->decay ? row_shifts(t, o->decay_exponent - 15 - e, desk) : NULL,
                   .row_size = t->rows ? t->size / t->rows : 0,
                   .decay = o->decay,
                   .momentum = momentum,
                   .shift_first = SAMEBITS_MAX(g.by_first, -900),
                   .shift_second = SAMEBITS_MAX(g.by_second, -900),
                   .shift_g = SAMEBITS_MAX(g.exponent - e, -900),
                   .shift_decay = o->decay ? SAMEBITS_MAX(e_decay - e, -900) : 0,
                   .shift_momentum = momentum ? SAMEBITS_MAX(e_v - e, -900) : 0};
}

static int64_t direction_exponent(int64_t exponent) { return SAMEBITS_MAX(exponent + 43, LOWEST); }

/* A bound of every |u| = |lr * P| in units of J, by what is known of the operands. */
static double update_bound(const Trained *t, const Options *o, const Part *parts) {
    const Numbers *now = t->numbers;
    int64_t e_a = *t->exponent - 15;
    double bound = 0;
    for (int64_t i = 0; i < t->parts; i++) {
        /* A unit more than the largest code covers the rounding of the terms. */
        int64_t known = bound_of(parts + i), most = known < 0 ? Q32 : known + 1;
        bound += bound_times_power((double)most, exponent_of(parts + i));
    }
    if (o->decay) bound += bound_times_power((double)o->decay, o->decay_exponent + e_a + 23);
    if (o->momentum && now->begun) {
        int64_t field = (now->momentum_largest >> 9) - TOP_FIELD;
        bound += bound_times_power((double)o->momentum,
                             o->momentum_exponent + now->momentum_exponent + field + 10);
    }
    /* Rounding the direction adds less than 2**-8 of it, rounding the update less than a unit. */
    return bound_times_power(bound * (double)o->lr, o->lr_exponent - e_a) * (1 + 1.0 / 256) + 1;
}

static void keep_momentum(Numbers *now, int64_t exponent, int64_t largest) {
    now->begun = 1;
    now->momentum_exponent = largest ? exponent : LOWEST;
    now->momentum_largest = largest;
}

/* The new V, or without momentum the direction to nearest; its exponent. */
static int64_t sgd_direction(const Trained *t, const Options *o, Gradient g, Draw draw,
                             int16_t *out, const Desk *desk) {
    int64_t e, largest;
    Terms terms = sgd_terms(t, o, g, &e, desk);
    int64_t result = direction_exponent(e);
    largest = samebits_combine(&terms, &draw, t->size, result - e + MOMENT_BIAS, out,
                               desk->threads);
    if (out == t->moment) keep_momentum(t->numbers, result, largest);
    return largest ? result : LOWEST;
}

static void sgd(const Trained *t, const Options *o, const Part *parts, Draw draw,
                const Desk *desk) {
    const Draw nearest = {0, 0, 0, 0};
    Gradient g = gathered(parts, t->parts, t->size, desk);
    int16_t *v = o->momentum ? t->moment : NULL, *p = v ? v : desk->direction;
    int64_t room = t->exponents ? -1 : room_of(t), tops[2], e;
    if (o->lr && o->random && !o->nesterov && room >= 0) {
        double u = update_bound(t, o, parts);
        if (u < 32768 && u <= (double)room) { /* everything in one pass */
            Terms terms = sgd_terms(t, o, g, &e, desk);
            int64_t result = direction_exponent(e);
            Update update = update_by(t, o, NULL, result, draw);
            samebits_sgd(&terms, &update, t->w, t->a, v, t->size, result - e + MOMENT_BIAS, tops,
                         desk->threads);
            t->largest[0] = tops[0];
            if (v) keep_momentum(t->numbers, result, tops[1]);
            return;
        }
    }
    int64_t e_p = sgd_direction(t, o, g, v ? draw : nearest, p, desk);
    if (o->nesterov) {
        p = desk->direction;
        e_p = sgd_direction(t, o, g, nearest, p, desk);
    }
    if (o->lr) (t->exponents ? lazy_rows : lazy_update)(t, update_by(t, o, p, e_p, draw), desk);
}

/* --- Adam (4) ------------------------------------------------------------------------------- */

static void adam(const Trained *t, const Options *o, const Part *parts, Draw draw,
                 const Desk *desk) {
    Numbers *now = t->numbers;
    Gradient g = resolved(parts, t->parts, t->size, desk);
    int64_t n = t->size, tops[2];
    int threads = desk->threads;
    if (!now->begun) {
        now->begun = 1;
        now->first_exponent = now->root_exponent = LOWEST;
        now->power1 = now->power2 = 1;
    }
    now->power1 *= o->beta1;
    now->power2 *= o->beta2;
    AdamTerms terms = {.g = g.codes,
                       .w = t->w,
                       .a = t->a,
                       .first = t->moment,
                       .root = t->root,
                       .rows = row_shifts(t, -15, desk),
                       .row_size = t->rows ? t->size / t->rows : 0,
                       .scale_g = power_of_two(g.exponent),
                       .scale_a = t->exponents ? 0 : power_of_two(*t->exponent - 15),
                       .beta1 = o->beta1,
                       .beta2 = o->beta2,
                       .rest1 = 1 - o->beta1,
                       .rest2 = 1 - o->beta2,
                       .coupled = o->coupled,
                       .decoupled = o->decoupled,
                       .c1 = 1 - now->power1,
                       .c2 = __builtin_sqrt(1 - now->power2),
                       .eps = o->eps,
                       .base_first = now->first_exponent - TOP_FIELD,
                       .base_root = now->root_exponent - TOP_FIELD};
    samebits_adam_tops(&terms, n, tops, threads);
    now->first_exponent = moment_exponent(tops[0]);
    now->root_exponent = moment_exponent(tops[1]);
    terms.bias_first = now->first_exponent + MOMENT_BIAS;
    terms.bias_root = now->root_exponent + MOMENT_BIAS;
    samebits_adam_store(&terms, &draw, n, threads);
    terms.base_first = now->first_exponent - TOP_FIELD;
    terms.base_root = now->root_exponent - TOP_FIELD;
    int64_t e = moment_exponent(samebits_adam_direction(&terms, n, 0, NULL, threads));
    samebits_adam_direction(&terms, n, e + MOMENT_BIAS, desk->direction, threads);
    const int16_t *p = desk->direction;
    if (o->lr) (t->exponents ? lazy_rows : lazy_update)(t, update_by(t, o, p, e, draw), desk);
}

/* --- the step ------------------------------------------------------------------------------- */

/* One step of every parameter, by the options of its group; with a learning rate, the version of
 * W counts as one more. Returns 0; 1, and changes nothing, where an exponent might leave its range;
 * or 2, and changes nothing, without memory. */
int samebits_optimize(const Trained *all, int64_t count, const Options *groups, const Part *parts,
                      int threads) {
    int64_t size = 0, longest = 0, rows = 0;
    const Part *next = parts;
    for (int64_t i = 0; i < count; next += all[i++].parts) {
        if (!fits(all + i, groups + all[i].group, next)) return 1;
        size = SAMEBITS_MAX(size, all[i].size);
        longest = SAMEBITS_MAX(longest, all[i].parts);
        rows = SAMEBITS_MAX(rows, all[i].rows);
    }
    char *memory = malloc((size_t)longest * sizeof(Addend) + (size_t)rows * 8 + (size_t)size * 6);
    if (!memory) return 2;
    Addend *addends = (Addend *)memory;
    int64_t *numbers = (int64_t *)(addends + longest);
    int32_t *sum = (int32_t *)(numbers + rows);
    const Desk desk = {numbers, (int16_t *)(sum + size), sum, addends, threads};
    for (int64_t i = 0; i < count; parts += all[i++].parts) {
        const Trained *t = all + i;
        const Options *o = groups + t->group;
        Numbers *now = t->numbers;
        Draw draw = {(uint32_t)o->seed, (uint32_t)t->place, (uint32_t)now->steps, o->random != 0};
        (o->is_adam ? adam : sgd)(t, o, parts, draw, &desk);
        now->steps++;
        if (o->lr) t->largest[1]++;
    }
    free(memory);
    return 0;
}
