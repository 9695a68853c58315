/* ReLU, pools and dropout (5, 7). */
#include "samebits_bytes.h"
#include "train_rows.h"

void samebits_train_relu(int8_t *x, int32_t n, int32_t e, int32_t clamp, uint8_t *mask) {
    const int32_t limit = limit_of(clamp, e);
    int32_t i;
    for (i = 0; i < n; i++) {
        if (mask) mask_put(mask, i, passes(x[i], limit));
        x[i] = (int8_t)clamped(x[i], clamp, limit);
    }
}

void samebits_train_relu_gradient(void *g, int32_t width, const uint8_t *mask, int32_t n) {
    int32_t i;
    for (i = 0; i < n; i++) {
        if (mask_at(mask, i)) continue;
        if (width == 16)
            ((int16_t *)g)[i] = 0;
        else
            ((int32_t *)g)[i] = 0;
    }
}

/* Where position t of the window (n, i, j) lies, channel 0. */
SAMEBITS_INLINE int32_t pixel(const samebits_pool *s, int32_t n, int32_t i, int32_t j, int32_t t) {
    return ((n * s->h + i * s->kh + t / s->kw) * s->w + j * s->kw + t % s->kw) * s->c;
}

void samebits_train_max_pool(const samebits_pool *s, const int8_t *x, const uint8_t *mask,
                             int8_t *y, uint8_t *where) {
    int32_t n, i, j, k, t;
    for (n = 0; n < s->n; n++)
        for (i = 0; i < s->oh; i++)
            for (j = 0; j < s->ow; j++) {
                k = 0;
#if defined(__ARM_FEATURE_MVE)
                for (; k + 16 <= s->c && s->c % 16 == 0; k += 16, y += 16) {
                    largest_of(s, x, mask, pixel(s, n, i, j, 0) + k, y, where);
                    if (where) where += 16;
                }
#endif
                for (; k < s->c; k++) {
                    const int8_t *row = x + pixel(s, n, i, j, 0) + k;
                    int32_t best = -Q8 - 1, at = 0, u, v, stopped;
                    for (t = 0, u = 0; u < s->kh; u++, row += s->w * s->c) {
                        const int8_t *from = row;
                        for (v = 0; v < s->kw; v++, t++, from += s->c)
                            if (*from > best) best = *from, at = t;
                    }
                    *y++ = (int8_t)best;
                    if (!where) continue;
                    stopped = mask && !mask_at(mask, pixel(s, n, i, j, at) + k);
                    *where++ = (uint8_t)(at | (stopped ? SAMEBITS_TRAIN_STOPPED : 0));
                }
            }
}

/* rne(v / (d * 2**shift)) */
SAMEBITS_INLINE int64_t divided(int64_t v, int32_t d, int32_t shift) {
    return shift >= 0 ? samebits_quotient(v, (int64_t)d << shift)
                      : samebits_quotient(v * ((int64_t)1 << -shift), d);
}

int samebits_train_average(const samebits_pool *s, const int8_t *x, int32_t e, int32_t *sums,
                           int8_t *y, int32_t *e_y) {
    const int32_t d = s->h * s->w, size = s->n * s->c;
    int32_t n, i, k, shift = 0, top = 0;
    for (n = 0; n < s->n; n++)
        for (k = 0; k < s->c; k++) {
            int32_t sum = 0;
            for (i = 0; i < d; i++) sum += x[(n * d + i) * s->c + k];
            sums[n * s->c + k] = sum;
            sum = magnitude32(sum);
            top = SAMEBITS_MAX(top, sum);
        }
    if (top) {
        const int32_t least = EXPONENT_MIN - e;
        shift = length_of(top) - 7 - length_of(d);
        while (divided(top, d, shift) > Q8) shift++;
        shift = SAMEBITS_MAX(shift, least);
    }
    for (i = 0; i < size; i++) y[i] = (int8_t)divided(sums[i], d, shift);
    *e_y = top ? e + shift : EXPONENT_MIN;
    return in_range(*e_y);
}

void samebits_train_average_gradient(const samebits_pool *s, samebits_gradient g, int32_t *dx,
                                     int32_t *e_dx) {
    const int32_t d = s->h * s->w, size = s->n * s->c;
    int32_t top = 0, up, shift, n, i, k;
    for (i = 0; i < size; i++) {
        const int32_t own = magnitude32(gradient_at(&g, i));
        top = SAMEBITS_MAX(top, own);
    }
    up = 30 - length_of(top);
    up = SAMEBITS_MAX(up, 0);
    *e_dx = g.e - up;
    shift = shortened(divided(top, d, -up), e_dx);
    for (n = 0; n < s->n; n++)
        for (k = 0; k < s->c; k++) {
            const int32_t v = gradient_at(&g, n * s->c + k);
            const int32_t own = (int32_t)down64(divided(v, d, -up), shift);
            for (i = 0; i < d; i++) dx[(n * d + i) * s->c + k] = own;
        }
}

/* --- dropout: the mask is drawn again, never stored ------------------------------------------ */

/* What element i is multiplied by; words: of its block of four. */
SAMEBITS_INLINE int32_t kept(const samebits_dropout *s, const samebits_optimizer *o, int32_t i,
                             uint32_t words[4]) {
    if (!(i & 3)) {
        words[0] = (uint32_t)i >> 2, words[1] = o->step, words[2] = words[3] = 0;
        samebits_train_words(words, o->seed, s->site);
    }
    return words[i & 3] >= s->threshold ? s->scale.m : 0;
}

int samebits_train_dropout(const samebits_dropout *s, const samebits_optimizer *o, const int8_t *x,
                           int32_t e_x, int8_t *y, int32_t *e_y) {
    int32_t top = 0, e = e_x + s->scale.x, shift = 0, pass, i;
    uint32_t words[4];
    for (pass = 0; pass < 2; pass++) {
        for (i = 0; i < s->n; i++) {
            const int32_t v = x[i] * kept(s, o, i, words), size = magnitude32(v);
            if (pass)
                y[i] = (int8_t)down32(v, shift);
            else
                top = SAMEBITS_MAX(top, size);
        }
        if (!pass) shift = narrowed(top, 8, &e);
    }
    *e_y = e;
    return in_range(e);
}

void samebits_train_dropout_gradient(const samebits_dropout *s, const samebits_optimizer *o,
                                     samebits_gradient g, int32_t *out, int32_t *e_out) {
    int32_t e = g.e + s->scale.x, shift = 0, pass, i;
    int64_t top = 0;
    uint32_t words[4];
    for (pass = 0; pass < 2; pass++) {
        for (i = 0; i < s->n; i++) {
            const int64_t v = (int64_t)gradient_at(&g, i) * kept(s, o, i, words);
            const int64_t size = samebits_magnitude64(v);
            if (pass)
                out[i] = (int32_t)down64(v, shift);
            else
                top = SAMEBITS_MAX(top, size);
        }
        if (!pass) shift = shortened(top, &e);
    }
    *e_out = e;
}
