/* Gradients of weights and biases with their updates: no weight gradient is ever stored (4, 7). */
#include "samebits_bytes.h"
#include "train_update.h"

/* The outputs [first, last) along one axis that meet the tap k. */
static void meeting(int32_t k, int32_t outputs, int32_t side, int32_t stride, int32_t pad,
                    int32_t *first, int32_t *last) {
    int32_t low = 0, high = outputs;
    while (low < high && low * stride + k < pad) low++;
    while (high > low && (high - 1) * stride + k - pad >= side) high--;
    *first = low, *last = high;
}

/* The outputs that meet a tap: rows and columns, and where the number lies in x that the first of
 * them meets, channel 0. */
typedef struct {
    int32_t y0, y1, u0, u1, x;
} Tap;

static Tap tap_of(const samebits_conv *s, int32_t ky, int32_t kx) {
    Tap t;
    meeting(ky, s->oh, s->h, s->stride_y, s->pad_y, &t.y0, &t.y1);
    meeting(kx, s->ow, s->w, s->stride_x, s->pad_x, &t.u0, &t.u1);
    t.x = (t.y0 * s->stride_y + ky - s->pad_y) * s->w + t.u0 * s->stride_x + kx - s->pad_x;
    t.x *= s->c;
    return t;
}

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

#define LANES 4
#define TAKEN 16 /* sums that are taken together */

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

/* The same of one channel, which are too few for a list. */
static int64_t one_sum(const samebits_conv *s, const Tap *t, const int32_t *g, const int8_t *x) {
    const int32_t across = s->stride_x * s->c, down = s->stride_y * s->w * s->c;
    int64_t sum = 0;
    int32_t n, y, u;
    for (n = 0; n < s->n; n++)
        for (y = t->y0; y < t->y1; y++) {
            const int32_t *row = g + (n * s->oh + y) * s->ow;
            const int8_t *from = x + (t->x + n * s->h * s->w * s->c + (y - t->y0) * down);
            for (u = t->u0; u < t->u1; u++, from += across) sum += (int64_t)row[u] * *from;
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

/* The sums of one output, of its column of G. */
static void output_sums(const samebits_conv *s, const int32_t *g, samebits_meeting *room,
                        const int8_t *x, int32_t o, Taken *taken) {
    const int32_t inputs = inputs_of(s), first = o / outputs_of(s) * inputs;
    int32_t i = o * weights_of(s), ky, kx, c, held;
    int64_t sum[TAKEN];
    for (ky = 0; ky < s->kh; ky++)
        for (kx = 0; kx < s->kw; kx++) {
            const Tap t = tap_of(s, ky, kx);
            const int32_t count = inputs < LANES ? 0 : met(s, &t, g, room);
            for (c = 0; c < inputs; c += held, i += held) {
                for (held = 0; held < TAKEN && c + held < inputs;) {
                    const int8_t *from = x + first + c + held;
                    if (c + held + LANES <= inputs)
                        four_sums(room, count, from, sum + held), held += LANES;
                    else
                        sum[held++] = one_sum(s, &t, g, from);
                }
                take(taken, i, sum, held);
            }
        }
}

/* Sums for their largest, then for every pass of the optimizer. `shorten` changes nothing where all
 * sums surely fit, and then one that is not 0 is enough. */
int samebits_train_weight_step(const samebits_conv *s, const int8_t *x, int32_t e_x,
                               samebits_gradient g, int32_t *column, samebits_meeting *room,
                               int64_t *sums, samebits_parameter *w, const samebits_optimizer *o) {
    const int32_t rows = s->n * s->oh * s->ow;
    const int64_t limit = (int64_t)rows * Q16 * Q8;
    const int32_t sure = g.width == 16 && !g.pool && !g.lines && limit <= Q32 && !needs_largest(o);
    int32_t k, i, made, status;
    samebits_update d;
    Taken taken = {sums, 0, NULL};
    for (k = 0; k < s->o && !(sure && taken.top && !sums); k++) {
        samebits_train_column(&g, rows, s->o, k, column);
        output_sums(s, column, room, x, k, &taken);
    }
    if (sure && taken.top) taken.top = limit;
    status = samebits_train_start(&d, w, o, taken.top, g.e + e_x, &made);
    if (status || !made) return status;
    taken.update = &d;
    do {
        for (i = 0; sums && i < w->n; i += TAKEN)
            take(&taken, i, sums + i, SAMEBITS_MIN(TAKEN, w->n - i));
        for (k = 0; !sums && k < s->o; k++) {
            samebits_train_column(&g, rows, s->o, k, column);
            output_sums(s, column, room, x, k, &taken);
        }
    } while (d.rule->again(&d));
    return SAMEBITS_TRAIN_OK;
}

int samebits_train_bias_step(samebits_gradient g, int32_t rows, int32_t *column, int64_t *room,
                             samebits_parameter *bias, const samebits_optimizer *o) {
    int32_t *out = (int32_t *)room, shift, r, k;
    int64_t top = 0;
    for (k = 0; k < bias->n; k++) {
        int64_t sum = 0;
        samebits_train_column(&g, rows, bias->n, k, column);
        for (r = 0; r < rows; r++) sum += column[r];
        room[k] = sum;
        sum = samebits_magnitude64(sum);
        top = SAMEBITS_MAX(top, sum);
    }
    shift = shortened(top, &g.e);
    for (k = 0; k < bias->n; k++) { /* in place, from the front */
        const int32_t v = (int32_t)down64(room[k], shift);
        memcpy(out + k, &v, sizeof v);
    }
    return samebits_train_vector_step(bias, o, out, g.e);
}
