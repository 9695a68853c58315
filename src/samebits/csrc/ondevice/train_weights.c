/* Gradients of weights and biases with their updates: no weight gradient is ever stored (4, 7). */
#include "samebits_bytes.h"
#include "train_update.h"

/* One direction in which outputs lie: how many, and how far apart in gradient and input. */
typedef struct {
    int32_t count, g, x;
} Along;

/* The outputs that meet a tap, of which the first lies at g and x: images, rows, columns, in an
 * order that puts the most in the innermost loop, the last. */
typedef struct {
    int32_t g, x;
    Along by[3];
} Walk;

/* The outputs [first, last) along one axis that meet the tap k. */
static void meeting(int32_t k, int32_t outputs, int32_t side, int32_t stride, int32_t pad,
                    int32_t *first, int32_t *last) {
    int32_t low = 0, high = outputs;
    while (low < high && low * stride + k < pad) low++;
    while (high > low && (high - 1) * stride + k - pad >= side) high--;
    *first = low, *last = high;
}

/* The outer direction joins the inner one where both are one run. */
static void join(Along *outer, Along *inner) {
    if (outer->g != inner->count * inner->g || outer->x != inner->count * inner->x) return;
    inner->count *= outer->count;
    outer->count = 1;
}

static void swap(Along *a, Along *b) {
    const Along held = *a;
    *a = *b, *b = held;
}

static Walk walk_of(const samebits_conv *s, int32_t ky, int32_t kx) {
    int32_t y0, y1, u0, u1;
    Walk v;
    meeting(ky, s->oh, s->h, s->stride_y, s->pad_y, &y0, &y1);
    meeting(kx, s->ow, s->w, s->stride_x, s->pad_x, &u0, &u1);
    v.g = (y0 * s->ow + u0) * s->o;
    v.x = ((y0 * s->stride_y + ky - s->pad_y) * s->w + u0 * s->stride_x + kx - s->pad_x) * s->c;
    v.by[0] = (Along){s->n, s->oh * s->ow * s->o, s->h * s->w * s->c};
    v.by[1] = (Along){y1 - y0, s->ow * s->o, s->stride_y * s->w * s->c};
    v.by[2] = (Along){u1 - u0, s->o, s->stride_x * s->c};
    if (y1 <= y0 || u1 <= u0) {
        v.by[0].count = 0;
        return v;
    }
    join(&v.by[1], &v.by[2]);
    join(&v.by[0], &v.by[v.by[1].count == 1 ? 2 : 1]);
    if (v.by[1].count > v.by[2].count) swap(&v.by[1], &v.by[2]);
    if (v.by[0].count > v.by[2].count) swap(&v.by[0], &v.by[2]);
    return v;
}

#define LANES 4

/* Sums of G * x for some channels of a weight: for LANES of them along one direction, for one, and
 * for up to LANES along all. */
#define WEIGHT_SUMS(all, four, one, type)                                                          \
    static void four(const type *g, const int8_t *x, const Along *by, int64_t *sum) {              \
        int64_t a = sum[0], b = sum[1], c = sum[2], d = sum[3];                                    \
        const int32_t g_step = by->g, x_step = by->x;                                              \
        int32_t i;                                                                                 \
        for (i = by->count; i; i--, g += g_step, x += x_step) {                                    \
            const int32_t k = *g;                                                                  \
            a += (int64_t)k * x[0], b += (int64_t)k * x[1];                                        \
            c += (int64_t)k * x[2], d += (int64_t)k * x[3];                                        \
        }                                                                                          \
        sum[0] = a, sum[1] = b, sum[2] = c, sum[3] = d;                                            \
    }                                                                                              \
    static int64_t one(const type *g, const int8_t *x, const Along *by) {                          \
        const int32_t g_step = by->g, x_step = by->x;                                              \
        int64_t a = 0;                                                                             \
        int32_t i;                                                                                 \
        for (i = by->count; i; i--, g += g_step, x += x_step) a += (int64_t)*g * *x;               \
        return a;                                                                                  \
    }                                                                                              \
    static void all(const Walk *v, const type *g, const int8_t *x, int32_t lanes, int64_t *sum) {  \
        int32_t i, j, l;                                                                           \
        for (l = 0; l < LANES; l++) sum[l] = 0;                                                    \
        for (i = 0; i < v->by[0].count; i++)                                                       \
            for (j = 0; j < v->by[1].count; j++) {                                                 \
                const type *gs = g + i * v->by[0].g + j * v->by[1].g;                              \
                const int8_t *xs = x + i * v->by[0].x + j * v->by[1].x;                            \
                if (lanes == LANES)                                                                \
                    four(gs, xs, &v->by[2], sum);                                                  \
                else                                                                               \
                    for (l = 0; l < lanes; l++) sum[l] += one(gs, xs + l, &v->by[2]);              \
            }                                                                                      \
    }
WEIGHT_SUMS(weight_sums32, four_sums32, one_sum32, int32_t)
WEIGHT_SUMS(weight_sums16, four_sums16, one_sum16, int16_t)

/* The sums of one output, by element: their largest magnitude, or with d what it does with them. */
static int64_t output_sums(const samebits_conv *s, const samebits_gradient *g, const int8_t *x,
                           int32_t o, samebits_update *d) {
    const int32_t inputs = inputs_of(s), first = o / outputs_of(s) * inputs;
    int32_t i = o * weights_of(s), ky, kx, c, l;
    int64_t top = 0, sum[LANES];
    int32_t own[LANES];
    for (ky = 0; ky < s->kh; ky++)
        for (kx = 0; kx < s->kw; kx++) {
            const Walk v = walk_of(s, ky, kx);
            for (c = 0; c < inputs; c += LANES) {
                const int32_t lanes = SAMEBITS_MIN(LANES, inputs - c);
                const int8_t *from = x + v.x + first + c;
                if (g->width == 16)
                    weight_sums16(&v, (const int16_t *)g->codes + v.g + o, from, lanes, sum);
                else
                    weight_sums32(&v, (const int32_t *)g->codes + v.g + o, from, lanes, sum);
                if (d) {
                    for (l = 0; l < lanes; l++) own[l] = gradient_of(d, sum[l]);
                    d->rule->elements(d, i, own, lanes);
                    i += lanes;
                    continue;
                }
                for (l = 0; l < lanes; l++) {
                    const int64_t size = samebits_magnitude64(sum[l]);
                    top = SAMEBITS_MAX(top, size);
                }
            }
        }
    return top;
}

/* Sums for their largest, then for every pass of the optimizer. `shorten` changes nothing where all
 * sums surely fit, and then one that is not 0 is enough. */
int samebits_train_weight_step(const samebits_conv *s, samebits_gradient g, const int8_t *x,
                               int32_t e_x, samebits_parameter *w, const samebits_optimizer *o) {
    const int64_t limit = (int64_t)s->n * s->oh * s->ow * Q16 * Q8;
    const int32_t sure = g.width == 16 && limit <= Q32 && !needs_largest(o);
    int32_t k, made, status;
    int64_t top = 0;
    samebits_update d;
    for (k = 0; k < s->o && !(sure && top); k++) {
        const int64_t own = output_sums(s, &g, x, k, NULL);
        top = SAMEBITS_MAX(top, own);
    }
    if (sure && top) top = limit;
    status = samebits_train_start(&d, w, o, top, g.e + e_x, &made);
    if (status || !made) return status;
    do
        for (k = 0; k < s->o; k++) (void)output_sums(s, &g, x, k, &d);
    while (d.rule->again(&d));
    return SAMEBITS_TRAIN_OK;
}

int samebits_train_bias_step(samebits_gradient g, int32_t rows, samebits_parameter *bias,
                             const samebits_optimizer *o, int64_t *room) {
    int32_t *out = (int32_t *)room, shift, r, k;
    int64_t top = 0;
    for (k = 0; k < bias->n; k++) {
        int64_t sum = 0;
        for (r = 0; r < rows; r++) sum += gradient_at(&g, r * bias->n + k);
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
