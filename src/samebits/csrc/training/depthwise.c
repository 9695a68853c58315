/* Depthwise convolution (one input and one output channel a group), forward and both gradients:
 * exact integer sums, vectors along the channels of NHWC images (docs/spec/training.md, 5 and 7).
 *
 * With one product per channel and tap there is no operand to use again, so no tile: the bound is
 * memory. 32 bits hold the sums of 8-bit codes over any window, and those of 16-bit gradients over
 * 518 taps (518 * 32639 * 127 < 2**31); weight gradients are sums over all pixels, in 64 bits. */
#include "conv.h"

/* Weights [c][taps] as 16-bit [taps][c]; NULL when memory ran out. */
static int16_t *taps_first(const int8_t *w, int64_t taps, int64_t c) {
    int16_t *wt = scratch(taps * c * 2);
    for (int64_t t = 0; wt && t < taps; t++)
        for (int64_t k = 0; k < c; k++) wt[t * c + k] = w[k * taps + t];
    return wt;
}

int64_t samebits_depthwise(const Conv *s, const int8_t *x, const int8_t *w, int32_t *out,
                           int threads) {
    threads = crew(s, threads);
    int64_t c = s->co, taps = s->kh * s->kw, largest = 0;
    int16_t *wt = taps_first(w, taps, c);
    if (!wt) return -1;
#pragma omp parallel for num_threads(threads) reduction(max : largest) collapse(2)
    for (int64_t n = 0; n < s->n; n++)
        for (int64_t i = 0; i < s->oh; i++)
            for (int64_t j = 0; j < s->ow; j++) {
                int32_t *o = out + ((n * s->oh + i) * s->ow + j) * c, top = 0;
                memset(o, 0, (size_t)c * 4);
                for (int64_t t = 0; t < taps; t++) {
                    int64_t a = i * s->stride_h + t / s->kw * s->dil_h - s->pad_h;
                    int64_t b = j * s->stride_w + t % s->kw * s->dil_w - s->pad_w;
                    if (a < 0 || a >= s->h || b < 0 || b >= s->w) continue;
                    const int8_t *p = x + ((n * s->h + a) * s->w + b) * c;
                    const int16_t *q = wt + t * c;
                    for (int64_t k = 0; k < c; k++) o[k] += p[k] * q[k];
                }
                for (int64_t k = 0; k < c; k++) {
                    int32_t v = o[k] < 0 ? -o[k] : o[k];
                    top = v > top ? v : top;
                }
                largest = SAMEBITS_MAX(largest, top);
            }
    free(wt);
    return largest;
}

/* dx (int32, zeroed; at most 518 taps) of a depthwise convolution. */
int64_t samebits_depthwise_input_grad(const Conv *s, const int16_t *g, const int8_t *w, int32_t *dx,
                                      int threads) {
    threads = crew(s, threads);
    int64_t c = s->co, taps = s->kh * s->kw, largest = 0;
    int16_t *wt = taps_first(w, taps, c);
    if (!wt) return -1;
#pragma omp parallel for num_threads(threads) reduction(max : largest)
    for (int64_t n = 0; n < s->n; n++) {
        for (int64_t i = 0; i < s->oh; i++)
            for (int64_t j = 0; j < s->ow; j++) {
                const int16_t *p = g + ((n * s->oh + i) * s->ow + j) * c;
                for (int64_t t = 0; t < taps; t++) {
                    int64_t a = i * s->stride_h + t / s->kw * s->dil_h - s->pad_h;
                    int64_t b = j * s->stride_w + t % s->kw * s->dil_w - s->pad_w;
                    if (a < 0 || a >= s->h || b < 0 || b >= s->w) continue;
                    int32_t *o = dx + ((n * s->h + a) * s->w + b) * c;
                    const int16_t *q = wt + t * c;
                    for (int64_t k = 0; k < c; k++) o[k] += p[k] * q[k];
                }
            }
        int32_t top = 0;
        const int32_t *o = dx + n * s->h * s->w * c;
        for (int64_t k = 0; k < s->h * s->w * c; k++) {
            int32_t v = o[k] < 0 ? -o[k] : o[k];
            top = v > top ? v : top;
        }
        largest = SAMEBITS_MAX(largest, top);
    }
    free(wt);
    return largest;
}

/* dw (int64 [c][taps], zeroed) of a depthwise convolution; g has 16 or 32 bits. */
int64_t samebits_depthwise_weight_grad(const Conv *s, const void *g, int width, const int8_t *x,
                                       int64_t *dw, int threads) {
    threads = crew(s, threads);
    int64_t c = s->co, taps = s->kh * s->kw, largest = 0;
    int failed = 0;
#pragma omp parallel num_threads(threads) reduction(| : failed)
    {
        int64_t *sum = scratch(taps * c * 8);
        failed = !sum;
        if (sum) memset(sum, 0, (size_t)(taps * c) * 8);
#pragma omp for schedule(static)
        for (int64_t r = 0; r < s->n * s->oh; r++)
            for (int64_t j = 0; sum && j < s->ow; j++) {
                int64_t n = r / s->oh, i = r % s->oh, at = (r * s->ow + j) * c;
                for (int64_t t = 0; t < taps; t++) {
                    int64_t a = i * s->stride_h + t / s->kw * s->dil_h - s->pad_h;
                    int64_t b = j * s->stride_w + t % s->kw * s->dil_w - s->pad_w;
                    if (a < 0 || a >= s->h || b < 0 || b >= s->w) continue;
                    const int8_t *q = x + ((n * s->h + a) * s->w + b) * c;
                    int64_t *o = sum + t * c;
                    if (width == 16) {
                        const int16_t *p = (const int16_t *)g + at;
                        for (int64_t k = 0; k < c; k++) o[k] += (int32_t)p[k] * q[k];
                    } else {
                        const int32_t *p = (const int32_t *)g + at;
                        for (int64_t k = 0; k < c; k++) o[k] += (int64_t)p[k] * q[k];
                    }
                }
            }
#pragma omp critical
        for (int64_t t = 0; sum && t < taps; t++)
            for (int64_t k = 0; k < c; k++) dw[k * taps + t] += sum[t * c + k];
        free(sum);
    }
    if (failed) return -1;
    for (int64_t i = 0; i < taps * c; i++) {
        int64_t v = samebits_magnitude64(dw[i]);
        largest = SAMEBITS_MAX(largest, v);
    }
    return largest;
}
