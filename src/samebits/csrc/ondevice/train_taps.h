/* Where the weights of a tap meet an image (7): of convolutions without the padding. */
#ifndef SAMEBITS_TRAIN_TAPS_H
#define SAMEBITS_TRAIN_TAPS_H

#include "train_scalars.h"

/* The outputs [first, last) along one axis that meet the tap k. */
static inline void meeting(int32_t k, int32_t outputs, int32_t side, int32_t stride, int32_t pad,
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

static inline Tap tap_of(const samebits_conv *s, int32_t ky, int32_t kx) {
    Tap t;
    meeting(ky, s->oh, s->h, s->stride_y, s->pad_y, &t.y0, &t.y1);
    meeting(kx, s->ow, s->w, s->stride_x, s->pad_x, &t.u0, &t.u1);
    t.x = (t.y0 * s->stride_y + ky - s->pad_y) * s->w + t.u0 * s->stride_x + kx - s->pad_x;
    t.x *= s->c;
    return t;
}

#endif
