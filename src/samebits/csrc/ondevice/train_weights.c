/* Gradients of weights and biases with their updates: no weight gradient is ever stored (4, 7). */
#include "samebits_bytes.h"
#include "train_sgd.h"

#define LANES 4

/* Where the outputs lie that meet a tap, and how pointers to the gradient and to the input move
 * over them. */
typedef struct {
    int32_t rows, cols, images;
    int32_t g, x;             /* of the first one */
    int32_t g_col, x_col;     /* to the next column */
    int32_t g_row, x_row;     /* from the end of a row to the next */
    int32_t g_image, x_image; /* from the end of the rows to the next image */
} Walk;

/* The outputs [first, last) along one axis that meet the tap k. */
static void meeting(int32_t k, int32_t outputs, int32_t side, int32_t stride, int32_t pad,
                    int32_t *first, int32_t *last) {
    int32_t low = 0, high = outputs;
    while (low < high && low * stride + k < pad) low++;
    while (high > low && (high - 1) * stride + k - pad >= side) high--;
    *first = low, *last = high;
}

static Walk walk_of(const samebits_conv *s, int32_t ky, int32_t kx) {
    int32_t y0, y1, u0, u1;
    Walk v;
    meeting(ky, s->oh, s->h, s->stride_y, s->pad_y, &y0, &y1);
    meeting(kx, s->ow, s->w, s->stride_x, s->pad_x, &u0, &u1);
    v.rows = u1 > u0 ? y1 - y0 : 0, v.cols = u1 - u0, v.images = v.rows ? s->n : 0;
    v.g = (y0 * s->ow + u0) * s->o;
    v.x = ((y0 * s->stride_y + ky - s->pad_y) * s->w + u0 * s->stride_x + kx - s->pad_x) * s->c;
    v.g_col = s->o, v.x_col = s->stride_x * s->c;
    v.g_row = (s->ow - v.cols) * s->o;
    v.x_row = (s->stride_y * s->w - s->stride_x * v.cols) * s->c;
    v.g_image = (s->oh - v.rows) * s->ow * s->o;
    v.x_image = (s->h - s->stride_y * v.rows) * s->w * s->c;
    if (v.images && !v.g_row && !v.x_row && !v.g_image && !v.x_image)
        v.cols *= v.images * v.rows, v.rows = v.images = 1; /* one run over everything: a matrix */
    return v;
}

/* Sums of G * x for LANES channels of a weight. */
#define WEIGHT_SUMS(name, type)                                                                    \
    static void name(const Walk *v, const type *g, const int8_t *x, int32_t lanes, int64_t *sum) { \
        int64_t a = 0, b = 0, c = 0, d = 0;                                                        \
        const int32_t g_col = v->g_col, x_col = v->x_col, rows = v->rows, cols = v->cols;          \
        int32_t n, y, u, l;                                                                        \
        for (l = 0; l < LANES; l++) sum[l] = 0;                                                    \
        for (n = v->images; n; n--, g += v->g_image, x += v->x_image)                              \
            for (y = rows; y; y--, g += v->g_row, x += v->x_row)                                   \
                if (lanes == LANES)                                                                \
                    for (u = cols; u; u--, g += g_col, x += x_col) {                               \
                        const int32_t k = *g;                                                      \
                        a += (int64_t)k * x[0], b += (int64_t)k * x[1];                            \
                        c += (int64_t)k * x[2], d += (int64_t)k * x[3];                            \
                    }                                                                              \
                else                                                                               \
                    for (u = cols; u; u--, g += g_col, x += x_col)                                 \
                        for (l = 0; l < lanes; l++) sum[l] += (int64_t)*g * x[l];                  \
        if (lanes == LANES) sum[0] = a, sum[1] = b, sum[2] = c, sum[3] = d;                        \
    }
WEIGHT_SUMS(weight_sums32, int32_t)
WEIGHT_SUMS(weight_sums16, int16_t)

/* The sums of one output, by element: their largest magnitude, or with d their updates. */
static int64_t output_sums(const samebits_conv *s, const samebits_gradient *g, const int8_t *x,
                           int32_t o, Sgd *d, int32_t shift) {
    int32_t i = o * s->kh * s->kw * s->c, ky, kx, c, l;
    int64_t top = 0, sum[LANES];
    for (ky = 0; ky < s->kh; ky++)
        for (kx = 0; kx < s->kw; kx++) {
            const Walk v = walk_of(s, ky, kx);
            for (c = 0; c < s->c; c += LANES) {
                const int32_t lanes = SAMEBITS_MIN(LANES, s->c - c);
                if (g->width == 16)
                    weight_sums16(&v, (const int16_t *)g->codes + v.g + o, x + v.x + c, lanes, sum);
                else
                    weight_sums32(&v, (const int32_t *)g->codes + v.g + o, x + v.x + c, lanes, sum);
                for (l = 0; l < lanes; l++) {
                    const int64_t size = samebits_magnitude64(sum[l]);
                    if (d)
                        sgd_element(d, i++, (int32_t)down64(sum[l], shift));
                    else
                        top = SAMEBITS_MAX(top, size);
                }
            }
        }
    return top;
}

/* Sums twice: for their largest, then with each element's update. `shorten` changes nothing where
 * all sums surely fit, and then one that is not 0 is enough. */
int samebits_train_weight_step(const samebits_conv *s, samebits_gradient g, const int8_t *x,
                               int32_t e_x, samebits_parameter *w, const samebits_sgd *o) {
    const int64_t limit = (int64_t)s->n * s->oh * s->ow * Q16 * Q8;
    const int32_t sure = g.width == 16 && limit <= Q32;
    int32_t e = g.e + e_x, shift, k, status;
    int64_t top = 0;
    Sgd d;
    for (k = 0; k < s->o && !(sure && top); k++) {
        const int64_t own = output_sums(s, &g, x, k, NULL, 0);
        top = SAMEBITS_MAX(top, own);
    }
    if (sure && top) top = limit;
    shift = shortened(top, &e);
    status = samebits_train_sgd_start(&d, w, o, down64(top, shift), e);
    if (status || o->mode != SAMEBITS_TRAIN_COMMIT) return status;
    for (k = 0; k < s->o; k++) (void)output_sums(s, &g, x, k, &d, shift);
    samebits_train_sgd_end(&d);
    return SAMEBITS_TRAIN_OK;
}

int samebits_train_bias_step(samebits_gradient g, int32_t rows, samebits_parameter *bias,
                             const samebits_sgd *o, int64_t *room) {
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
