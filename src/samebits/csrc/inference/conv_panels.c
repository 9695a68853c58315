/* --- convolution: codes of 8 bits by panels ------------------------------------------------------
 *
 * A panel is some output channels, with what is the same for all their pixels. Windows without
 * padding are read where x lies; others from a band, which keeps the rows that two windows share.
 * Codes that may be negative lose their sign by a flip of the upper bit. */

#include "samebits_vector.h"

#ifdef SAMEBITS_PANEL
/* Windows that lie in x, one group. */
SAMEBITS_INLINE void samebits_points(samebits_panel *k, const uint8_t *x, uint8_t *out) {
    /* cppcheck-suppress ctuuninitvar ; samebits_panel_conv has set the window */
    const samebits_conv *c = k->window.steps.conv;
    int32_t n, o, oy;
    for (o = 0; o < c->out_channels; o += SAMEBITS_PANEL) {
        samebits_panel_of(k, o, o, SAMEBITS_MIN(c->out_channels - o, SAMEBITS_PANEL));
        for (n = 0; n < c->batch; n++) {
            for (oy = 0; oy < c->out_height; oy++) {
                const int32_t from = (n * c->height + oy * c->stride_y) * c->width * c->channels;
                samebits_panel_run(k, x + from, c->out_width,
                                   out + c->out_start + n * c->out_batch + oy * c->out_row + o);
            }
        }
    }
}

/* Row y of a band of whole rows, at its place modulo the rows of the window. */
SAMEBITS_INLINE void samebits_band_row(const samebits_conv *c, const uint8_t *image, int32_t y,
                                       int32_t columns, uint8_t *band) {
    const int32_t depth = c->channels, before = SAMEBITS_MIN(c->pad_left, columns);
    const int32_t inside = samebits_clamp32(columns - c->pad_left, 0, c->width);
    const uint8_t sign = c->type == SAMEBITS_INT8 ? 0x80 : 0, pad = (uint8_t)c->pad_code ^ sign;
    uint8_t *to = band + (y + c->pad_top) % c->kernel_height * columns * depth;
    int32_t i;
    if (y < 0 || y >= c->height) {
        for (i = 0; i < columns * depth; i++) to[i] = pad;
        return;
    }
    for (i = 0; i < before * depth; i++) to[i] = pad;
    for (i = (before + inside) * depth; i < columns * depth; i++) to[i] = pad;
    samebits_flipped(image + y * c->width * depth, inside * depth, sign, to + before * depth);
}

/* Bands of whole rows that keep the rows that two windows share. */
SAMEBITS_INLINE void samebits_rolling(samebits_panel *k, const uint8_t *x, uint8_t *out,
                                      uint8_t *band) {
    const samebits_conv *c = k->window.steps.conv;
    const int32_t columns = samebits_columns(c, c->out_width);
    int32_t n, oy, o, y;
    k->window.steps.row = columns * c->channels;
    for (n = 0; n < c->batch; n++) {
        const uint8_t *image = x + n * c->height * c->width * c->channels;
        int32_t next = -c->pad_top;
        for (oy = 0; oy < c->out_height; oy++) {
            const int32_t top = oy * c->stride_y - c->pad_top;
            for (y = SAMEBITS_MAX(next, top); y < top + c->kernel_height; y++) {
                samebits_band_row(c, image, y, columns, band);
            }
            next = top + c->kernel_height;
            k->window.slot = (top + c->pad_top) % c->kernel_height;
            for (o = 0; o < c->out_channels; o += SAMEBITS_PANEL) {
                if (oy == 0 || c->out_channels > SAMEBITS_PANEL) {
                    samebits_panel_of(k, o, o, SAMEBITS_MIN(c->out_channels - o, SAMEBITS_PANEL));
                }
                samebits_panel_run(k, band, c->out_width,
                                   out + c->out_start + n * c->out_batch + oy * c->out_row + o);
            }
        }
    }
}

/* 0 for what is not here: other types of codes, or forms of requantization. */
static int samebits_panel_conv(const samebits_conv *given, const void *x, void *out,
                               uint8_t *band) {
    /* A band has no room for the columns between those of a dilated window. */
    const int in_x = given->groups == 1 && given->length % 4 == 0 && samebits_in_image(given);
    const samebits_conv turned = in_x || given->dilation_y == 1 ? samebits_turned(given) : *given;
    const samebits_conv *c = &turned;
    const int32_t outputs = c->out_channels / c->groups, depth = c->channels / c->groups;
    int32_t n, group, oy, ox, o;
    samebits_panel k;
    if (!samebits_has_panel(&c->rescale)) return 0;
    k.window.steps.conv = c;
    k.window.steps.quads = (c->length + 3) / 4;
    k.window.steps.pixel = c->stride_x * depth;
    k.window.steps.run = c->dilation_x * depth;
    k.window.steps.row = c->dilation_y * c->width * depth;
    k.window.steps.block = c->kernel_height * c->runs * k.window.steps.quads * 64;
    k.window.products = (int64_t)c->kernel_height * c->runs * c->length;
    k.window.pitch = c->out_pixel;
    k.window.slot = 0;
    if (in_x) {
        k.window.flip = c->type == SAMEBITS_INT8 ? 0x80 : 0;
        samebits_points(&k, (const uint8_t *)x, (uint8_t *)out);
        return 1;
    }
    k.window.flip = 0;
    if (c->groups == 1 && c->tile >= c->out_width && c->dilation_y == 1 && c->pad_top >= 0 &&
        c->pad_left >= 0) {
        samebits_rolling(&k, (const uint8_t *)x, (uint8_t *)out, band);
        return 1;
    }
    for (n = 0; n < c->batch; n++) {
        for (group = 0; group < c->groups; group++) {
            for (oy = 0; oy < c->out_height; oy++) {
                for (ox = 0; ox < c->out_width; ox += c->tile) {
                    const int32_t pixels = SAMEBITS_MIN(c->tile, c->out_width - ox);
                    const int32_t columns = samebits_columns(c, pixels);
                    k.window.steps.row = columns * depth;
                    samebits_fill8(c, x, n, group, oy, ox, columns, band);
                    for (o = 0; o < outputs; o += SAMEBITS_PANEL) {
                        const int32_t channel = group * outputs + o;
                        samebits_panel_of(&k, channel, o,
                                          SAMEBITS_MIN(outputs - o, SAMEBITS_PANEL));
                        samebits_panel_run(&k, band, pixels,
                                           (uint8_t *)out + c->out_start + n * c->out_batch +
                                               oy * c->out_row + ox * c->out_pixel + channel);
                    }
                }
            }
        }
    }
    return 1;
}
#endif
