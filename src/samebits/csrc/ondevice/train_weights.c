/* Gradients of weights and biases with their updates: no weight gradient is ever stored (4, 7). */
#include "samebits_bytes.h"
#include "train_halves.h"
#include "train_update.h"

/* The codes of a column of G that meet a tap and are not 0. Returns how many there are. */
static int32_t met(const samebits_conv *s, const Tap *t, const int32_t *g, samebits_meeting *to) {
    const samebits_meeting *first = to;
    const int32_t across = s->stride_x * s->c, down = s->stride_y * s->w * s->c;
    int32_t n, y, u;
    for (n = 0; n < s->n; n++)
        for (y = t->y0; y < t->y1; y++) {
            const int32_t *row = g + (n * s->oh + y) * s->ow;
            int32_t x = t->x + n * s->h * s->w * s->c + (y - t->y0) * down;
            for (u = t->u0; u < t->u1; u++, x += across) {
                if (!row[u]) continue;
                to->g = row[u], to->x = x;
                to++;
            }
        }
    return (int32_t)(to - first);
}

/* Sums that are taken together: by halves more, as their loops begin and end more slowly. */
#ifdef TRAIN_HALVES
#define TAKEN 16
#else
#define TAKEN 8
#endif

/* Sums of G * x of LANES channels. */
SAMEBITS_INLINE void four_sums(const samebits_meeting *m, int32_t count, const int8_t *x,
                               int64_t *sum) {
    const samebits_meeting *end = m + count;
    int64_t a = 0, b = 0, c = 0, d = 0;
    for (; m < end; m++) {
        const int8_t *from = x + m->x;
        const int32_t g = m->g;
        a += (int64_t)g * from[0], b += (int64_t)g * from[1];
        c += (int64_t)g * from[2], d += (int64_t)g * from[3];
    }
    sum[0] = a, sum[1] = b, sum[2] = c, sum[3] = d;
}

/* The sum of one channel, which are too few for a list. */
SAMEBITS_APART int64_t one_sum(const samebits_conv *s, const Tap *t, const int32_t *g,
                               const int8_t *x) {
    const int32_t across = s->stride_x * s->c, down = s->stride_y * s->w * s->c;
    int64_t sum = 0;
    int32_t n;
    for (n = 0; n < s->n; n++) {
        const int32_t *row = g + (n * s->oh + t->y0) * s->ow;
        const int8_t *from = x + t->x + n * s->h * s->w * s->c;
#ifdef TRAIN_PLANES
        Plane f = {row + t->u0, from, t->u1 - t->u0, 4 * s->ow, down, across, t->y1 - t->y0, sum};
        if (f.count > 0 && f.rows > 0) plane_sum(&f);
        sum = f.sum;
#else
        int32_t y, u;
        for (y = t->y0; y < t->y1; y++, row += s->ow, from += down) {
            const int8_t *own = from;
            for (u = t->u0; u + 2 <= t->u1; u += 2, own += 2 * across)
                sum += (int64_t)row[u] * own[0], sum += (int64_t)row[u + 1] * own[across];
            if (u < t->u1) sum += (int64_t)row[u] * *own;
        }
#endif
    }
    return sum;
}

/* What becomes of sums: all of them are kept, or their largest magnitude, or an update is made. */
typedef struct {
    int64_t *all, top;
    samebits_update *update;
} Taken;

SAMEBITS_INLINE void take(Taken *t, int32_t i, const int64_t *sum, int32_t count) {
    int32_t own[TAKEN], l;
    if (t->update) {
        for (l = 0; l < count; l++) own[l] = gradient_of(t->update, sum[l]);
        t->update->rule->elements(t->update, i, own, count);
        return;
    }
    for (l = 0; l < count; l++) {
        const uint64_t top = (uint64_t)t->top;
        if ((uint64_t)sum[l] + top > 2 * top) t->top = samebits_magnitude64(sum[l]);
        if (t->all) t->all[i + l] = sum[l];
    }
}

/* What sums are computed of. halves: those of G that count; 0: codes of 32 bits */
typedef struct {
    const samebits_conv *s;
    const int8_t *x;
    samebits_meeting *room;
    int halves;
#ifdef TRAIN_HALVES
    Halves own;
#endif
} Given;

/* The sums of one output, of its column of G. */
SAMEBITS_APART void output_sums(const Given *v, const int32_t *g, int32_t o, Taken *taken) {
    const samebits_conv *s = v->s;
    const int32_t inputs = inputs_of(s), first = o / outputs_of(s) * inputs;
    int32_t i = o * weights_of(s), ky, kx, c, held;
    int64_t sum[TAKEN];
    for (ky = 0; ky < s->kh; ky++)
        for (kx = 0; kx < s->kw; kx++) {
            const Tap t = tap_of(s, ky, kx);
            const int32_t count = inputs < LANES ? 0 : met(s, &t, g, v->room);
            for (c = 0; c < inputs; c += held, i += held) {
                for (held = 0; held < TAKEN && c + held < inputs;) {
                    const int8_t *from = v->x + first + c + held;
                    if (c + held + LANES <= inputs)
                        four_sums(v->room, count, from, sum + held), held += LANES;
                    else
                        sum[held++] = one_sum(s, &t, g, from);
                }
                take(taken, i, sum, held);
            }
        }
}

#ifdef TRAIN_HALVES
/* The sums of `channels`, a multiple of LANES, from number `at` of x on. */
SAMEBITS_INLINE void half_sums(const Given *v, int32_t at, int32_t channels, int64_t *sum) {
    const int32_t count = v->own.count;
    int32_t part[TAKEN], first, n, l;
    for (l = 0; l < channels; l++) sum[l] = 0;
    for (first = 0; first < count; first += n) {
        n = SAMEBITS_MIN(MOST_HALVES / 2, count - first);
        if (v->halves & UPPER) {
            halves_sums(&v->own, UPPER, first, n, at, channels, part);
            for (l = 0; l < channels; l++) sum[l] += part[l] * (int64_t)65536;
        }
        if (v->halves & LOWER) {
            halves_sums(&v->own, LOWER, first, n, at, channels, part);
            for (l = 0; l < channels; l++) sum[l] += part[l];
        }
    }
}

/* rne((upper * 2**16 + lower) * 2**-s), 0 < s < 32. */
SAMEBITS_INLINE int32_t halved(int32_t upper, int32_t lower, int32_t s) {
    const uint64_t v = (uint64_t)(upper * (int64_t)65536 + lower);
    const uint64_t t = v + ((((uint32_t)1 << (s - 1)) - 1u) + ((uint32_t)v >> s & 1u));
    return samebits_signed32((uint32_t)t >> s | (uint32_t)(t >> 32) << (32 - s));
}

/* The same of a list of at most MOST_HALVES / 2, as elements of G. */
SAMEBITS_INLINE void half_elements(const Given *v, const samebits_update *d, int32_t at,
                                   int32_t channels, int32_t *g) {
    int32_t low[TAKEN], l;
    if (v->halves & UPPER)
        halves_sums(&v->own, UPPER, 0, v->own.count, at, channels, g);
    else
        for (l = 0; l < channels; l++) g[l] = 0;
    halves_sums(&v->own, LOWER, 0, v->own.count, at, channels, low);
    if (d->shift > 0 && d->shift < 32 && !d->clipped)
        for (l = 0; l < channels; l++) g[l] = halved(g[l], low[l], d->shift);
    else
        for (l = 0; l < channels; l++) g[l] = gradient_of(d, g[l] * (int64_t)65536 + low[l]);
}

/* The largest of uppers, of a list of at most MOST_HALVES / 2. */
SAMEBITS_INLINE void take_uppers(const Given *v, int32_t at, int32_t channels, Taken *taken) {
    int32_t part[TAKEN], top = 0, l;
    halves_sums(&v->own, UPPER, 0, v->own.count, at, channels, part);
    for (l = 0; l < channels; l++) {
        const int32_t size = magnitude32(part[l]);
        top = SAMEBITS_MAX(top, size);
    }
    if (top > taken->top >> 16) taken->top = top * (int64_t)65536;
}

/* The same by halves. */
SAMEBITS_APART void output_halves(Given *v, int32_t *g, int32_t o, Taken *taken) {
    const samebits_conv *s = v->s;
    const int32_t inputs = inputs_of(s), first = o / outputs_of(s) * inputs;
    int32_t i = o * weights_of(s), own[TAKEN], ky, kx, c, held;
    int64_t sum[TAKEN];
    halves_column(&v->own, s, g);
    for (ky = 0; ky < s->kh; ky++)
        for (kx = 0; kx < s->kw; kx++) {
            const Tap t = tap_of(s, ky, kx);
            halves_tap(&v->own, s, &t, g);
            for (c = 0; c < inputs; c += held, i += held) {
                held = SAMEBITS_MIN(inputs - c, TAKEN);
                if (held < LANES) {
                    int32_t l;
                    for (l = 0; l < held; l++) sum[l] = one_sum(s, &t, g, v->x + first + c + l);
                } else {
                    held = held / LANES * LANES;
                    if (v->own.count && v->own.count <= MOST_HALVES / 2) {
                        if (v->halves == UPPER) {
                            take_uppers(v, first + c, held, taken);
                            continue;
                        }
                        if (taken->update) {
                            half_elements(v, taken->update, first + c, held, own);
                            taken->update->rule->elements(taken->update, i, own, held);
                            continue;
                        }
                    }
                    half_sums(v, first + c, held, sum);
                }
                take(taken, i, sum, held);
            }
        }
}
#endif

/* The sums of all outputs, or up to the first that is not 0. */
SAMEBITS_INLINE void all_sums(Given *v, const samebits_gradient *g, int32_t *column, Taken *taken,
                              int any) {
    const samebits_conv *s = v->s;
    int32_t k;
    for (k = 0; k < s->o && !(any && taken->top); k++) {
        samebits_train_column(g, s->n * s->oh * s->ow, s->o, k, column);
#ifdef TRAIN_HALVES
        if (v->halves) {
            output_halves(v, column, k, taken);
            continue;
        }
#endif
        output_sums(v, column, k, taken);
    }
}

/* Chooses products of 16 bits where this processor and this layer have them. */
static void choose(Given *v, const samebits_gradient *g, void *table) {
#ifdef TRAIN_HALVES
    const samebits_conv *s = v->s;
    if (inputs_of(s) < LANES || !halves_start(&v->own, s, v->x, v->room, table)) return;
    v->halves = g->width == 16 && !g->lines ? LOWER : UPPER | LOWER;
#ifdef TRAIN_TABLE
    {
        uint16_t *to = (uint16_t *)table;
        int32_t ky, kx;
        for (ky = 0; ky < s->kh; ky++)
            for (kx = 0; kx < s->kw; kx++) {
                const Tap t = tap_of(s, ky, kx);
                to = halves_note(s, &t, to);
            }
    }
#endif
#else
    (void)v, (void)g, (void)table;
#endif
}

/* Their largest. Uppers alone are off by up to 2**15 * Q8 a row, which is near enough where all
 * that the largest may be is shifted alike. */
static void measure(Given *v, const samebits_gradient *g, int32_t *column, Taken *taken) {
    const int32_t halves = v->halves;
    const int64_t off = (int64_t)v->s->n * v->s->oh * v->s->ow * 32768 * Q8;
    if (halves == (UPPER | LOWER)) {
        v->halves = UPPER;
        all_sums(v, g, column, taken, 0);
        v->halves = halves;
        if (taken->top > off && shorten_by(taken->top - off) == shorten_by(taken->top + off)) {
            taken->top += off;
            return;
        }
        taken->top = 0;
    }
    all_sums(v, g, column, taken, 0);
}

/* Sums for their largest, then for every pass of the optimizer. `shorten` changes nothing where all
 * sums surely fit, and then one that is not 0 is enough. */
int samebits_train_weight_step(const samebits_conv *s, const int8_t *x, int32_t e_x,
                               samebits_gradient g, int32_t *column, samebits_meeting *room,
                               int64_t *sums, void *table, samebits_parameter *w,
                               const samebits_optimizer *o) {
    const int64_t limit = (int64_t)s->n * s->oh * s->ow * Q16 * Q8;
    const int32_t sure = g.width == 16 && !g.pool && !g.lines && limit <= Q32 && !needs_largest(o);
    int32_t i, made, status;
    samebits_update d;
    Taken taken = {sums, 0, NULL};
    Given v = {.s = s, .x = x, .room = room};
    choose(&v, &g, table);
    if (sums || sure || o->clip)
        all_sums(&v, &g, column, &taken, sure && !sums);
    else
        measure(&v, &g, column, &taken);
    if (sure && taken.top) taken.top = limit;
    status = samebits_train_start(&d, w, o, taken.top, g.e + e_x, &made);
    if (status || !made) return status;
    taken.update = &d;
    do {
        for (i = 0; sums && i < w->n; i += TAKEN)
            take(&taken, i, sums + i, SAMEBITS_MIN(TAKEN, w->n - i));
        if (!sums) all_sums(&v, &g, column, &taken, 0);
    } while (d.rule->again(&d));
    return SAMEBITS_TRAIN_OK;
}

/* A parameter by the sums of the columns of G, or of G * x. */
static int column_step(samebits_gradient *g, const int8_t *x, int32_t rows, int32_t *column,
                       int64_t *room, samebits_parameter *p, const samebits_optimizer *o) {
    int32_t *out = (int32_t *)room, shift, r, k;
    int64_t top = 0;
    for (k = 0; k < p->n; k++) {
        int64_t sum = 0;
        samebits_train_column(g, rows, p->n, k, column);
        if (x)
            for (r = 0; r < rows; r++) sum += (int64_t)column[r] * x[r * p->n + k];
        else
            for (r = 0; r < rows; r++) sum += column[r];
        room[k] = sum;
        sum = samebits_magnitude64(sum);
        top = SAMEBITS_MAX(top, sum);
    }
    shift = shortened(top, &g->e);
    for (k = 0; k < p->n; k++) { /* in place, from the front */
        const int32_t v = (int32_t)down64(room[k], shift);
        memcpy(out + k, &v, sizeof v);
    }
    return samebits_train_vector_step(p, o, out, g->e);
}

int samebits_train_bias_step(samebits_gradient g, int32_t rows, int32_t *column, int64_t *room,
                             samebits_parameter *bias, const samebits_optimizer *o) {
    return column_step(&g, NULL, rows, column, room, bias, o);
}

int samebits_train_factor_step(samebits_gradient g, const int8_t *x, int32_t e_x, int32_t rows,
                               int32_t *column, int64_t *room, samebits_parameter *gamma,
                               const samebits_optimizer *o) {
    g.e += e_x;
    return column_step(&g, x, rows, column, room, gamma, o);
}
