/* --- depthwise convolution: rows -----------------------------------------------------------------
 *
 * x is read in place: each tap has a pointer, to padding where it is out of the image; for pixels
 * whose windows are inside, one number moves them all. */

#include "samebits_vector.h"

#ifdef SAMEBITS_LANES
#define SAMEBITS_GROUPS(taps) (((taps) + SAMEBITS_GROUP - 1) / SAMEBITS_GROUP)

/* What a row of outputs reads: rows of x from `channel` on, or of padding. */
typedef struct {
    const samebits_conv *conv;
    const uint8_t *x, *padding;
    int32_t oy, channel, count, span;
} samebits_depth;

/* Pointers to the taps of the window whose first column is `left`. */
SAMEBITS_INLINE void samebits_taps(const samebits_depth *d, int32_t left, const int32_t taps,
                                   const int32_t height, const int32_t width,
                                   const uint8_t **from) {
    const samebits_conv *c = d->conv;
    const int32_t channels = c->channels, dilation = c->dilation_x, columns = c->width;
    int32_t y = d->oy * c->stride_y - c->pad_top, row, column, t = 0;
    for (row = 0; row < height; row++, y += c->dilation_y) {
        const int32_t there = y >= 0 && y < c->height;
        const int32_t at = (y * columns + left) * channels + d->channel;
        for (column = 0; column < width; column++, t++) {
            const int32_t z = left + column * dilation;
            from[t] = d->padding;
            if (there && z >= 0 && z < columns) from[t] = d->x + at + column * dilation * channels;
        }
    }
    for (; t < taps; t++) from[t] = from[0]; /* times weights that are 0 */
}

/* A row of outputs, `span` pixels at a time where all their taps are inside. */
SAMEBITS_INLINE void samebits_depth_row(const samebits_lanes *k, const samebits_depth *d,
                                        uint8_t *out, const int32_t Q, const int32_t height,
                                        const int32_t width) {
    const samebits_conv *c = d->conv;
    const uint8_t *from[SAMEBITS_TAPS];
    const int32_t reach = (width - 1) * c->dilation_x, count = d->count, span = d->span;
    const int32_t top = d->oy * c->stride_y - c->pad_top, pitch = c->out_pixel, many = span * pitch;
    const int32_t step = c->stride_x * c->channels * span;
    const int32_t whole = top >= 0 && top + (height - 1) * c->dilation_y < c->height;
    int32_t ox = 0, at = 0;
    while (ox < c->out_width) {
        const int32_t left = ox * c->stride_x - c->pad_left;
        uint8_t *to = out + ox * pitch;
        int32_t pixels = 0; /* from here on whose columns are inside */
        if (left >= 0 && left + reach < c->width) {
            pixels = (c->width - 1 - reach - left) / c->stride_x + 1;
            pixels = SAMEBITS_MIN(pixels, c->out_width - ox);
        }
        samebits_taps(d, left, SAMEBITS_GROUP * Q, height, width, from);
        if (whole && pixels >= span && span * count == SAMEBITS_LANES) {
            for (at = 0; pixels >= 2 * span; pixels -= 2 * span, at += 2 * step, to += 2 * many) {
                samebits_lanes_at(k, from, at, step, SAMEBITS_LANES, to, many, Q, 2);
            }
            for (; pixels >= span; pixels -= span, at += step, to += many) {
                samebits_lanes_at(k, from, at, step, SAMEBITS_LANES, to, many, Q, 1);
            }
            ox = (int32_t)(to - out) / pitch;
        } else if (whole && pixels && span == 1) {
            for (at = 0; pixels > 0; pixels--, at += step, ox++, to += pitch) {
                samebits_lanes_at(k, from, at, step, count, to, pitch, Q, 1);
            }
        } else {
            pixels = SAMEBITS_MIN(SAMEBITS_MAX(pixels, 1), span);
            samebits_lanes_at(k, from, 0, step, pixels * count, to, pitch, Q, 1);
            ox += pixels;
        }
    }
}

/* 0 for what is not here: other types of codes, forms of requantization, very large kernels. */
static int samebits_lanes_conv(const samebits_conv *given, const void *x, void *out) {
    const samebits_conv turned = samebits_turned(given), *c = &turned;
    const int32_t taps = c->kernel_height * c->kernel_width, channels = c->channels;
    const int32_t many = c->stride_x == 1 && c->out_pixel == channels &&
                         channels < SAMEBITS_LANES &&
                         (channels == 8 || channels == 16 || channels == 32);
    uint8_t padding[SAMEBITS_LANES];
    samebits_lanes k;
    samebits_depth d;
    int32_t n, i;
    if (taps > SAMEBITS_TAPS || !samebits_has_panel(&c->rescale)) return 0;
    for (i = 0; i < SAMEBITS_LANES; i++) padding[i] = (uint8_t)c->pad_code;
    d.conv = c;
    d.padding = padding;
    d.span = many ? SAMEBITS_LANES / channels : 1;
    for (d.channel = 0; d.channel < channels; d.channel += SAMEBITS_LANES) {
        if (channels > SAMEBITS_LANES) { /* the last of them again, in whole vectors */
            d.channel = SAMEBITS_MIN(d.channel, channels - SAMEBITS_LANES);
        }
        d.count = SAMEBITS_MIN(channels, SAMEBITS_LANES);
        samebits_lanes_of(&k, c, d.channel, d.count, d.span * d.count);
        for (n = 0; n < c->batch; n++) {
            d.x = (const uint8_t *)x + n * c->height * c->width * channels;
            for (d.oy = 0; d.oy < c->out_height; d.oy++) {
                uint8_t *to = (uint8_t *)out + c->out_start + n * c->out_batch +
                              d.oy * c->out_row + d.channel;
                if (c->kernel_height == 3 && c->kernel_width == 3) {
                    samebits_depth_row(&k, &d, to, SAMEBITS_GROUPS(9), 3, 3);
                } else if (c->kernel_height == 1 && c->kernel_width == 3) {
                    samebits_depth_row(&k, &d, to, SAMEBITS_GROUPS(3), 1, 3);
                } else {
                    samebits_depth_row(&k, &d, to, SAMEBITS_GROUPS(taps), c->kernel_height,
                                       c->kernel_width);
                }
            }
        }
    }
    return 1;
}
#endif
