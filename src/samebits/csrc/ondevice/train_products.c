/* Linear layers and convolutions (5). */
#include "train_dots.h"
#include "train_rounding.h"
#include "train_rows.h"

/* The taps of a window that lie in the image. */
typedef struct {
    int32_t y0, x0, ky0, ky1, kx0, kx1;
} Taps;

SAMEBITS_INLINE Taps taps_of(const samebits_conv *s, int32_t y, int32_t x) {
    Taps t;
    t.y0 = y * s->stride_y - s->pad_y, t.x0 = x * s->stride_x - s->pad_x;
    t.ky0 = t.y0 < 0 ? -t.y0 : 0, t.ky1 = SAMEBITS_MIN(s->kh, s->h - t.y0);
    t.kx0 = t.x0 < 0 ? -t.x0 : 0, t.kx1 = SAMEBITS_MIN(s->kw, s->w - t.x0);
    t.kx1 = SAMEBITS_MAX(t.kx0, t.kx1); /* a window in the padding alone has no taps */
    return t;
}

/* The sum of an output whose window begins at x[at], of weights w of one of several groups. */
SAMEBITS_INLINE int32_t sum_of_group(const samebits_conv *s, const Taps *t, const int8_t *x,
                                     int32_t at, const int8_t *w) {
    const int32_t c = inputs_of(s);
    int32_t acc = 0, ky, kx;
    for (ky = t->ky0; ky < t->ky1; ky++)
        for (kx = t->kx0; kx < t->kx1; kx++)
            acc += dot8(x + (at + (ky * s->w + kx) * s->c), w + (ky * s->kw + kx) * c, c);
    return acc;
}

/* How a bias is added: shifts of the sums and of J; `on`: some J is not zero. */
typedef struct {
    int32_t on, sums, joint;
} Bias;

static Bias bias_of(const samebits_parameter *b, int32_t *e) {
    Bias r = {0, 0, 0};
    int32_t top = 0, e_b, e_c, i;
    if (!b) return r;
    for (i = 0; i < b->n; i++) {
        const int32_t j = magnitude32(joint_at(b, i));
        top = SAMEBITS_MAX(top, j);
    }
    if (!top) return r;
    e_b = b->s->e_w - 15;
    e_c = e_b + length_of(top) - 30;
    e_c = SAMEBITS_MAX(*e, e_c);
    r.on = 1, r.sums = e_c - *e, r.joint = e_c - e_b;
    *e = e_c;
    return r;
}

/* What becomes of sums: they are measured, and kept in memory, if there is some; they are rounded;
 * or rounded to 16 bits, by `shift`, and normalized.
 *
 * lines: of every output the smallest and the largest sum; or its factor and term; or NULL */
enum { MEASURE, ROUND, NORMALIZE };
typedef struct {
    const samebits_parameter *b;
    Bias by;
    int32_t *sums, *lines;
    int32_t shift;
    Rounding rounding;
    Reach reach;
} Sink;

SAMEBITS_INLINE void sink(Sink *k, int kind, int32_t i, int32_t o, int32_t acc) {
    int32_t size;
    if (k->by.on)
        acc = down32(acc, k->by.sums) + (int32_t)down64(joint_at(k->b, o), k->by.joint);
    if (kind == NORMALIZE) acc = down32(acc, k->shift) * k->lines[2 * o] + k->lines[2 * o + 1];
    if (kind != MEASURE) {
        round_sum(&k->rounding, i, acc);
        return;
    }
    size = magnitude32(acc);
    k->reach.size = SAMEBITS_MAX(k->reach.size, size);
    k->reach.high = SAMEBITS_MAX(k->reach.high, acc);
    if (k->sums) k->sums[i] = acc;
    if (k->lines) {
        k->lines[2 * o] = SAMEBITS_MIN(k->lines[2 * o], acc);
        k->lines[2 * o + 1] = SAMEBITS_MAX(k->lines[2 * o + 1], acc);
    }
}

/* The same of n outputs from o on: without a bias and lines, which is most of them, in a few
 * instructions. */
SAMEBITS_INLINE void sink_some(Sink *k, int kind, int32_t i, int32_t o, const int32_t *sum,
                               int32_t n) {
    const Rounding *r = &k->rounding;
    int32_t l = 0;
    if (kind == MEASURE && !k->by.on && !k->lines) {
        const Reach own = reach_of(sum, n);
        k->reach.size = SAMEBITS_MAX(k->reach.size, own.size);
        k->reach.high = SAMEBITS_MAX(k->reach.high, own.high);
        for (; k->sums && l < n; l++) k->sums[i + l] = sum[l];
    } else if (kind == ROUND && !k->by.on && r->bits == 16 && !r->by.clamp && !r->mask) {
        round_plain(sum, n, r->by.shift, (int16_t *)r->y + i);
    } else {
        for (; l < n; l++) sink(k, kind, i + l, o + l, sum[l]);
    }
}

/* Outputs whose sums are taken together: of a loop in C as many as it has sums. */
#ifdef TRAIN_WINDOWS
#define TAKEN 16
#else
#define TAKEN ROWS
#endif
#define PATCH 64 /* weights of an output up to which a window is copied, with zeros around it */

SAMEBITS_INLINE void copy_window(const samebits_conv *s, const Taps *t, const int8_t *x, int32_t at,
                                 int8_t *patch) {
    const int32_t first = t->kx0 * s->c, run = t->kx1 * s->c - first;
    int32_t ky, i;
    for (i = 0; i < weights_of(s); i++) patch[i] = 0;
    for (ky = t->ky0; ky < t->ky1; ky++)
        for (i = first; i < first + run; i++)
            patch[ky * s->kw * s->c + i] = x[at + ky * s->w * s->c + i];
}

/* All sums. The constants `grouped` and `kind` make loops of their own of each kind. */
SAMEBITS_INLINE void sums_of(const samebits_conv *s, int grouped, int kind, const int8_t *x,
                             const int8_t *w, Sink *to) {
    const int32_t k = weights_of(s), group = inputs_of(s), outputs = outputs_of(s);
    const int small = !grouped && k <= PATCH;
    int8_t patch[PATCH];
    int32_t n, y, u, o, i = 0;
    for (n = 0; n < s->n; n++)
        for (y = 0; y < s->oh; y++)
            for (u = 0; u < s->ow; u++, i += s->o) {
                Taps t = taps_of(s, y, u);
                const int32_t at = ((n * s->h + t.y0) * s->w + t.x0) * s->c;
                const int8_t *from = x + at;
                int32_t first = t.kx0 * s->c, run = t.kx1 * s->c - first, step = s->w * s->c, ky;
                int32_t sum[TAKEN], held;
                if (small) {
                    copy_window(s, &t, x, at, patch);
                    from = patch, first = 0, run = k, t.ky0 = 0, t.ky1 = 1;
                }
                for (o = 0; !grouped && o + ROWS <= s->o; o += held) {
                    const int8_t *row = w + o * k + first + t.ky0 * s->kw * s->c;
                    const Window v = {from + (first + t.ky0 * step), row, step, s->kw * s->c, run,
                                      t.ky1 - t.ky0, k};
                    held = TAKEN == ROWS ? ROWS : SAMEBITS_MIN(TAKEN, (s->o - o) / ROWS * ROWS);
                    window_sums(&v, held, sum);
                    sink_some(to, kind, i + o, o, sum, held);
                }
                for (; o < s->o; o++) {
                    const int8_t *row = w + o * k;
                    int32_t acc = 0;
                    if (grouped)
                        acc = sum_of_group(s, &t, x, at + o / outputs * group, row);
                    for (ky = t.ky0; !grouped && ky < t.ky1; ky++)
                        acc += dot8(from + (first + ky * step), row + (first + ky * s->kw * s->c),
                                    run);
                    sink(to, kind, i + o, o, acc);
                }
            }
}

static void measured(const samebits_conv *s, const int8_t *x, const int8_t *w, Sink *to) {
    if (s->groups == 1)
        sums_of(s, 0, MEASURE, x, w, to);
    else
        sums_of(s, 1, MEASURE, x, w, to);
}

static void rounded(const samebits_conv *s, const int8_t *x, const int8_t *w, Sink *to) {
    if (s->groups == 1)
        sums_of(s, 0, ROUND, x, w, to);
    else
        sums_of(s, 1, ROUND, x, w, to);
}

static void normalized(const samebits_conv *s, const int8_t *x, const int8_t *w, Sink *to) {
    if (s->groups == 1)
        sums_of(s, 0, NORMALIZE, x, w, to);
    else
        sums_of(s, 1, NORMALIZE, x, w, to);
}

int samebits_train_products(const samebits_conv *s, const int8_t *x, int32_t e_x,
                            const samebits_parameter *w, const samebits_parameter *bias,
                            int32_t *sums, void *y, int32_t bits, int32_t *e_y, int32_t clamp,
                            uint8_t *mask) {
    const int32_t size = s->n * s->oh * s->ow * s->o;
    int32_t e = e_x + w->s->e_w;
    Sink to = {bias, bias_of(bias, &e), sums, NULL, 0, {{clamp, 0, 0}, bits, y, mask}, {0, 0}};
    samebits_rounding *by = &to.rounding.by;
    measured(s, x, w->w, &to);
    by->limit = limit_of(clamp, e);
    by->shift = narrowed(clamp ? SAMEBITS_MIN(to.reach.high, by->limit) : to.reach.size, bits, &e);
    if (sums)
        round_kept(&to.rounding, sums, size);
    else
        rounded(s, x, w->w, &to);
    *e_y = e;
    return in_range(e);
}

int samebits_train_products_norm(const samebits_conv *s, const int8_t *x, int32_t e_x,
                                 const samebits_parameter *w, const samebits_parameter *bias,
                                 const samebits_norm *norm, const samebits_parameter *gamma,
                                 const samebits_parameter *beta, const double *mean,
                                 const double *var, samebits_channel *saved, int32_t *room,
                                 int8_t *y, int32_t *e_y, int32_t clamp, uint8_t *mask) {
    int32_t e = e_x + w->s->e_w, i, status;
    Sink to = {bias, bias_of(bias, &e), NULL, room, 0, {{0, 0, 0}, 8, y, mask}, {0, 0}};
    for (i = 0; i < s->o; i++) room[2 * i] = INT32_MAX, room[2 * i + 1] = -INT32_MAX;
    measured(s, x, w->w, &to);
    to.shift = narrowed(to.reach.size, 16, &e);
    if ((status = in_range(e)) != SAMEBITS_TRAIN_OK) return status;
    for (i = 0; i < 2 * s->o; i++) room[i] = down32(room[i], to.shift);
    status = samebits_train_norm_scale(norm, e, gamma, beta, mean, var, saved, room, clamp,
                                       &to.rounding.by, e_y);
    normalized(s, x, w->w, &to);
    return status;
}

int samebits_train_logits(const samebits_conv *s, const int8_t *x, int32_t e_x,
                          const samebits_parameter *w, const samebits_parameter *bias, int32_t *z,
                          int32_t *e_z) {
    const int32_t size = s->n * s->oh * s->ow * s->o;
    int32_t shift, i;
    *e_z = e_x + w->s->e_w;
    {
        Sink to = {bias, bias_of(bias, e_z), z, NULL, 0, {{0, 0, 0}, 32, z, NULL}, {0, 0}};
        measured(s, x, w->w, &to);
        shift = shortened(to.reach.size, e_z);
    }
    for (i = 0; shift && i < size; i++) z[i] = down32(z[i], shift);
    return SAMEBITS_TRAIN_OK;
}
