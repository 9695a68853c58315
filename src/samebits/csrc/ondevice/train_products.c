/* Linear layers and convolutions: sums forward, and gradients of inputs (5, 7). */
#include "train_scalars.h"

SAMEBITS_INLINE int32_t dot8(const int8_t *x, const int8_t *w, int32_t n) {
    int32_t a = 0;
    for (; n >= 4; n -= 4, x += 4, w += 4)
        a += (int32_t)x[0] * w[0] + (int32_t)x[1] * w[1] + (int32_t)x[2] * w[2] +
             (int32_t)x[3] * w[3];
    for (; n; n--) a += (int32_t)*x++ * *w++;
    return a;
}

/* The taps of a window that lie in the image. */
typedef struct {
    int32_t y0, x0, ky0, ky1, kx0, kx1;
} Taps;

SAMEBITS_INLINE Taps taps_of(const samebits_conv *s, int32_t y, int32_t x) {
    Taps t;
    t.y0 = y * s->stride_y - s->pad_y, t.x0 = x * s->stride_x - s->pad_x;
    t.ky0 = t.y0 < 0 ? -t.y0 : 0, t.ky1 = SAMEBITS_MIN(s->kh, s->h - t.y0);
    t.kx0 = t.x0 < 0 ? -t.x0 : 0, t.kx1 = SAMEBITS_MIN(s->kw, s->w - t.x0);
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

/* The largest magnitude of all sums, and the largest sum. */
typedef struct {
    int32_t size, high;
} Reach;

/* How sums become codes. */
typedef struct {
    int32_t clamp, limit, shift, bits;
    void *y;
    uint8_t *mask;
} Rounding;

SAMEBITS_INLINE void round_sum(const Rounding *r, int32_t i, int32_t sum) {
    const int32_t code = down32(clamped(sum, r->clamp, r->limit), r->shift);
    if (r->bits == 8)
        ((int8_t *)r->y)[i] = (int8_t)code;
    else
        ((int16_t *)r->y)[i] = (int16_t)code;
    if (r->mask) mask_put(r->mask, i, passes(sum, r->limit));
}

/* All sums: measured, and written to memory if there is some; or rounded. The constants `grouped`
 * and `rounds` make loops of their own of each kind. */
SAMEBITS_INLINE Reach sums_of(const samebits_conv *s, int grouped, int rounds, const int8_t *x,
                              const int8_t *w, const samebits_parameter *b, Bias by, int32_t *sums,
                              const Rounding *rounding) {
    const int32_t k = weights_of(s), group = inputs_of(s), outputs = outputs_of(s);
    int32_t unused, n, y, u, o, i = 0;
    const int32_t step = sums != NULL;
    Reach reach = {0, 0};
    if (!sums) sums = &unused;
    for (n = 0; n < s->n; n++)
        for (y = 0; y < s->oh; y++)
            for (u = 0; u < s->ow; u++) {
                const Taps t = taps_of(s, y, u);
                const int32_t first = t.kx0 * s->c, run = t.kx1 * s->c - first;
                const int32_t from = ((n * s->h + t.y0) * s->w + t.x0) * s->c;
                const int8_t *row = w;
                for (o = 0; o < s->o; o++, row += k) {
                    int32_t acc = 0, size, ky;
                    if (grouped)
                        acc = sum_of_group(s, &t, x, from + o / outputs * group, row);
                    for (ky = t.ky0; !grouped && ky < t.ky1; ky++)
                        acc += dot8(x + (from + first) + ky * s->w * s->c,
                                    row + first + ky * s->kw * s->c, run);
                    if (by.on)
                        acc = down32(acc, by.sums) + (int32_t)down64(joint_at(b, o), by.joint);
                    if (rounds) {
                        round_sum(rounding, i++, acc);
                        continue;
                    }
                    size = magnitude32(acc);
                    reach.size = SAMEBITS_MAX(reach.size, size);
                    reach.high = SAMEBITS_MAX(reach.high, acc);
                    *sums = acc, sums += step;
                }
            }
    return reach;
}

static Reach measured(const samebits_conv *s, const int8_t *x, const int8_t *w,
                      const samebits_parameter *b, Bias by, int32_t *sums) {
    return sums_of(s, 0, 0, x, w, b, by, sums, NULL);
}

static Reach measured_groups(const samebits_conv *s, const int8_t *x, const int8_t *w,
                             const samebits_parameter *b, Bias by, int32_t *sums) {
    return sums_of(s, 1, 0, x, w, b, by, sums, NULL);
}

static void rounded(const samebits_conv *s, const int8_t *x, const int8_t *w,
                    const samebits_parameter *b, Bias by, const Rounding *r) {
    (void)sums_of(s, 0, 1, x, w, b, by, NULL, r);
}

static void rounded_groups(const samebits_conv *s, const int8_t *x, const int8_t *w,
                           const samebits_parameter *b, Bias by, const Rounding *r) {
    (void)sums_of(s, 1, 1, x, w, b, by, NULL, r);
}

int samebits_train_products(const samebits_conv *s, const int8_t *x, int32_t e_x,
                            const samebits_parameter *w, const samebits_parameter *bias,
                            int32_t *sums, void *y, int32_t bits, int32_t *e_y, int32_t clamp,
                            uint8_t *mask) {
    const int32_t size = s->n * s->oh * s->ow * s->o;
    int32_t e = e_x + w->s->e_w, i;
    const Bias by = bias_of(bias, &e);
    const Reach reach =
        (s->groups == 1 ? measured : measured_groups)(s, x, w->w, bias, by, sums);
    Rounding r = {clamp, limit_of(clamp, e), 0, bits, y, mask};
    r.shift = narrowed(clamp ? SAMEBITS_MIN(reach.high, r.limit) : reach.size, bits, &e);
    for (i = 0; sums && i < size; i++) round_sum(&r, i, sums[i]);
    if (!sums) (s->groups == 1 ? rounded : rounded_groups)(s, x, w->w, bias, by, &r);
    *e_y = e;
    return in_range(e);
}

int samebits_train_logits(const samebits_conv *s, const int8_t *x, int32_t e_x,
                          const samebits_parameter *w, const samebits_parameter *bias, int32_t *z,
                          int32_t *e_z) {
    const int32_t size = s->n * s->oh * s->ow * s->o;
    int32_t shift, i;
    *e_z = e_x + w->s->e_w;
    {
        const Bias by = bias_of(bias, e_z);
        shift = shortened(measured(s, x, w->w, bias, by, z).size, e_z);
    }
    for (i = 0; shift && i < size; i++) z[i] = down32(z[i], shift);
    return SAMEBITS_TRAIN_OK;
}

/* --- gradients -------------------------------------------------------------------------------- */

int samebits_train_narrow(samebits_gradient g, int32_t n, int16_t *out, int32_t *e_out) {
    const int32_t *codes = (const int32_t *)g.codes;
    int32_t top = 0, e = g.e, shift, i;
    for (i = 0; i < n; i++) {
        const int32_t size = magnitude32(codes[i]);
        top = SAMEBITS_MAX(top, size);
    }
    shift = narrowed(top, 16, &e);
    for (i = 0; i < n; i++) out[i] = (int16_t)down64(codes[i], shift);
    *e_out = e;
    return in_range(e);
}

#define LANES 4
#define EXACT 516 /* outputs whose products of 16 and 8 bits a sum of 32 bits holds */

/* Sums of G * w for the pixel (n, y, u), `lanes` channels from c on. */
SAMEBITS_INLINE void input_sums(const samebits_conv *s, const int16_t *g, const int8_t *w,
                                int32_t n, int32_t y, int32_t u, int32_t c, int32_t lanes,
                                int64_t *sum) {
    const int32_t k = weights_of(s);
    int32_t ky, kx, o, l, first, last;
    for (l = 0; l < LANES; l++) sum[l] = 0;
    for (ky = 0; ky < s->kh; ky++) {
        const int32_t down = y + s->pad_y - ky, oy = down / s->stride_y;
        if (down < 0 || down % s->stride_y || oy >= s->oh) continue;
        for (kx = 0; kx < s->kw; kx++) {
            const int32_t across = u + s->pad_x - kx, ox = across / s->stride_x;
            const int16_t *from;
            const int8_t *row;
            if (across < 0 || across % s->stride_x || ox >= s->ow) continue;
            from = g + ((n * s->oh + oy) * s->ow + ox) * s->o;
            row = w + (ky * s->kw + kx) * s->c + c;
            for (first = 0; first < s->o; first = last) {
                int32_t part[LANES] = {0};
                last = SAMEBITS_MIN(s->o, first + EXACT);
                if (lanes == LANES)
                    for (o = first; o < last; o++, row += k) {
                        const int32_t v = from[o];
                        part[0] += v * row[0], part[1] += v * row[1];
                        part[2] += v * row[2], part[3] += v * row[3];
                    }
                else
                    for (o = first; o < last; o++, row += k)
                        for (l = 0; l < lanes; l++) part[l] += (int32_t)from[o] * row[l];
                for (l = 0; l < LANES; l++) sum[l] += part[l];
            }
        }
    }
}

/* The same with groups of channels. */
static void group_sums(const samebits_conv *s, const int16_t *g, const int8_t *w, int32_t n,
                       int32_t y, int32_t u, int32_t c, int32_t lanes, int64_t *sum) {
    const int32_t k = weights_of(s), group = inputs_of(s), outputs = outputs_of(s);
    const int16_t *own_g[LANES];
    const int8_t *own_w[LANES];
    int32_t ky, kx, o, l;
    for (l = 0; l < lanes; l++, c++) {
        const int32_t first = c / group * outputs;
        own_g[l] = g + first, own_w[l] = w + first * k + c % group;
        sum[l] = 0;
    }
    for (ky = 0; ky < s->kh; ky++) {
        const int32_t down = y + s->pad_y - ky, oy = down / s->stride_y;
        if (down < 0 || down % s->stride_y || oy >= s->oh) continue;
        for (kx = 0; kx < s->kw; kx++) {
            const int32_t across = u + s->pad_x - kx, ox = across / s->stride_x;
            const int32_t at = ((n * s->oh + oy) * s->ow + ox) * s->o;
            const int32_t tap = (ky * s->kw + kx) * group;
            if (across < 0 || across % s->stride_x || ox >= s->ow) continue;
            for (l = 0; l < lanes; l++)
                for (o = 0; o < outputs; o++)
                    sum[l] += (int64_t)own_g[l][at + o] * own_w[l][o * k + tap];
        }
    }
}

int samebits_train_input_gradient(const samebits_conv *s, const int16_t *g, int32_t e_g,
                                  const samebits_parameter *w, int16_t *dx, int32_t *e_dx) {
    int32_t e = e_g + w->s->e_w, shift = 0, pass, n, y, u, c, l;
    int64_t top = 0, sum[LANES];
    for (pass = 0; pass < 2; pass++) {
        int16_t *out = dx;
        for (n = 0; n < s->n; n++)
            for (y = 0; y < s->h; y++)
                for (u = 0; u < s->w; u++)
                    for (c = 0; c < s->c; c += LANES) {
                        const int32_t lanes = SAMEBITS_MIN(LANES, s->c - c);
                        if (s->groups == 1)
                            input_sums(s, g, w->w, n, y, u, c, lanes, sum);
                        else
                            group_sums(s, g, w->w, n, y, u, c, lanes, sum);
                        for (l = 0; l < lanes; l++) {
                            const int64_t size = samebits_magnitude64(sum[l]);
                            if (pass)
                                *out++ = (int16_t)down64(sum[l], shift);
                            else
                                top = SAMEBITS_MAX(top, size);
                        }
                    }
        if (!pass) shift = narrowed(top, 16, &e);
    }
    *e_dx = e;
    return in_range(e);
}
