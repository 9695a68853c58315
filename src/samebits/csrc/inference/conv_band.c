/* --- convolution: the band ---------------------------------------------------------------------
 *
 * A band of the scratch memory holds the rows that `tile` output pixels read, padding included. A
 * kernel row of a pixel is then a run of codes side by side (or `runs` of them where it is
 * dilated), and every output a dot product of runs with weights in the same order: no kernel below
 * tests for an edge of the image. Neighbouring windows share the band, other than in im2col, and it
 * is filled for a few output pixels at a time, so that it fits in the RAM of a small processor.
 *
 * Codes of 8 bits are held as x - least code of their type, so that they are not negative, and
 * uint16 as x - 32768; biases are corrected for that (codegen/lowering/conv.py). */

#include "samebits_vector.h"

/* Rows that the pixels from (oy, ox) on read, as [kernel_height][columns][depth]. */
#define SAMEBITS_BAND(NAME, T, B, CODE)                                                            \
    static void NAME(const samebits_conv *c, const T *x, int32_t group, int32_t oy, int32_t ox,    \
                     int32_t columns, B *band, B pad) {                                            \
        const int32_t depth = c->channels / c->groups;                                             \
        const int32_t first = ox * c->stride_x - c->pad_left;                                      \
        const int32_t begin = samebits_clamp32(-first, 0, columns);                                \
        const int32_t end = samebits_clamp32(c->width - first, begin, columns);                    \
        int32_t row, i, j;                                                                         \
        for (row = 0; row < c->kernel_height; row++, band += columns * depth) {                    \
            const int32_t y = oy * c->stride_y - c->pad_top + row * c->dilation_y;                 \
            const int32_t inside = y >= 0 && y < c->height;                                        \
            const int32_t from = inside ? begin : columns, to = inside ? end : columns;            \
            for (i = 0; i < from * depth; i++) band[i] = pad;                                      \
            for (i = to * depth; i < columns * depth; i++) band[i] = pad;                          \
            if (from >= to) continue;                                                              \
            x += (y * c->width + first + from) * c->channels + group * depth;                      \
            if (c->groups == 1) {                                                                  \
                for (i = 0; i < (to - from) * depth; i++) (band + from * depth)[i] = CODE(x[i]);   \
            } else {                                                                               \
                for (j = from; j < to; j++) {                                                      \
                    const T *pixel = x + (j - from) * c->channels;                                 \
                    for (i = 0; i < depth; i++) band[j * depth + i] = CODE(pixel[i]);              \
                }                                                                                  \
            }                                                                                      \
            x -= (y * c->width + first + from) * c->channels + group * depth;                      \
        }                                                                                          \
    }

#define SAMEBITS_FROM_S8(v) (uint8_t)((v) ^ 0x80)
#define SAMEBITS_FROM_U16(v) (int16_t)((int32_t)(v)-32768)

SAMEBITS_BAND(samebits_band_u8, uint8_t, uint8_t, (uint8_t))
SAMEBITS_BAND(samebits_band_s8, uint8_t, uint8_t, SAMEBITS_FROM_S8)
SAMEBITS_BAND(samebits_band_s8_16, int8_t, int16_t, (int16_t))
SAMEBITS_BAND(samebits_band_u8_16, uint8_t, int16_t, (int16_t))
SAMEBITS_BAND(samebits_band_s16, samebits_i16, int16_t, (int16_t))
SAMEBITS_BAND(samebits_band_u16, samebits_u16, int16_t, SAMEBITS_FROM_U16)

static int32_t samebits_columns(const samebits_conv *c, int32_t pixels) {
    return (pixels - 1) * c->stride_x + (c->kernel_width - 1) * c->dilation_x + 1;
}

static void samebits_fill8(const samebits_conv *c, const void *x, int32_t n, int32_t group,
                           int32_t oy, int32_t ox, int32_t columns, uint8_t *band) {
    const uint8_t *image = (const uint8_t *)x + n * c->height * c->width * c->channels;
    if (c->type == SAMEBITS_UINT8) {
        samebits_band_u8(c, image, group, oy, ox, columns, band, (uint8_t)c->pad_code);
    } else {
        samebits_band_s8(c, image, group, oy, ox, columns, band, (uint8_t)(c->pad_code + 128));
    }
}

static void samebits_fill16(const samebits_conv *c, const void *x, int32_t n, int32_t group,
                            int32_t oy, int32_t ox, int32_t columns, int16_t *band) {
    const int32_t start = n * c->height * c->width * c->channels;
    const int16_t pad = (int16_t)(c->type == SAMEBITS_UINT16 ? c->pad_code - 32768 : c->pad_code);
    switch (c->type) {
    case SAMEBITS_INT8:
        samebits_band_s8_16(c, (const int8_t *)x + start, group, oy, ox, columns, band, pad);
        break;
    case SAMEBITS_UINT8:
        samebits_band_u8_16(c, (const uint8_t *)x + start, group, oy, ox, columns, band, pad);
        break;
    case SAMEBITS_INT16:
        samebits_band_s16(c, (const samebits_i16 *)x + start, group, oy, ox, columns, band, pad);
        break;
    default:
        samebits_band_u16(c, (const samebits_u16 *)x + start, group, oy, ox, columns, band, pad);
        break;
    }
}

/* The 8-bit kernels. Weights lie in blocks of up to 16 output channels,
 * [group][block][kernel row][run][length / 4][channel of the block][4], runs padded with zeros.
 *
 * samebits_dots, one of conv_x86.c, conv_arm.c and conv.c, computes `pixels` by `lanes` sums into
 * acc[pixel][SAMEBITS_WIDTH], at most SAMEBITS_PIXELS and SAMEBITS_WIDTH of them. Sums wrap modulo
 * 2**32; the lowering has proved that each fits at its end. */

typedef struct {
    const samebits_conv *conv;
    int32_t quads;               /* weights of a run and channel, / 4 */
    int32_t pixel, row, run;     /* bytes from one to the next in the band */
    int32_t block;               /* bytes of a full block of weights */
} samebits_steps;

#if defined(SAMEBITS_VNNI) || defined(SAMEBITS_AVX2) || defined(SAMEBITS_NEON)
/* What is the same for all pixels of a panel (panel_*.c) but its channels. */
typedef struct {
    samebits_steps steps;
    int64_t products; /* that one sum adds */
    int32_t pitch;    /* bytes from one pixel's codes to the next one's */
    int32_t slot;     /* row of the band that is the first of the window */
    uint8_t flip;     /* bits that change in codes */
} samebits_window;

/* The same convolution of an image that is one column, as that of one row; one output is a row, and
 * has no distance to a next row of outputs. */
SAMEBITS_INLINE samebits_conv samebits_turned(const samebits_conv *c) {
    samebits_conv t = *c;
    if (c->width != 1 || c->out_width != 1 || c->kernel_width != 1 || c->pad_left) return t;
    if (c->out_height == 1) return t;
    t.width = c->height;
    t.out_width = c->out_height;
    t.kernel_width = c->kernel_height;
    t.stride_x = c->stride_y;
    t.pad_left = c->pad_top;
    t.dilation_x = c->dilation_y;
    t.out_pixel = c->out_row;
    t.runs = c->kernel_height;
    t.height = t.out_height = t.kernel_height = t.stride_y = t.dilation_y = 1;
    t.pad_top = 0;
    return t;
}

/* Whether every window lies in the image. */
SAMEBITS_INLINE int samebits_in_image(const samebits_conv *c) {
    const int32_t y = (c->out_height - 1) * c->stride_y + (c->kernel_height - 1) * c->dilation_y;
    const int32_t x = (c->out_width - 1) * c->stride_x + (c->kernel_width - 1) * c->dilation_x;
    return !c->pad_top && !c->pad_left && y < c->height && x < c->width;
}
#endif
