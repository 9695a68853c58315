/* --- convolution: VNNI, codes of 8 bits to codes of 8 bits ---------------------------------------
 *
 * Up to 8 pixels by 16 channels, or 4 by 64, stay in registers from their first product to their
 * codes. Four codes of a pixel are one broadcast load, and the four weights of 16 channels beside
 * each other as the lowering packs them. Windows of one pixel are read where x lies; others from
 * the band. Codes that may be negative lose their sign by a flip of the upper bit. */

#include "samebits_vector.h"

#ifdef SAMEBITS_VNNI
/* What is the same for all pixels of up to 64 channels. */
typedef struct {
    samebits_steps steps;
    __m512i flip, bias[4];
    samebits_scale scale[4];
    samebits_range range;
    const int8_t *weights;
    int32_t lanes, last; /* last: bytes of a quad of the last block */
    int32_t pitch;       /* bytes from one pixel's codes to the next one's */
    int64_t products;    /* that one sum adds */
    int32_t slot;        /* row of the band that is the first of the window */
} samebits_panel;

/* P pixels by B blocks of 16 channels. */
SAMEBITS_INLINE void samebits_panel_tile(const samebits_panel *k, const uint8_t *x, uint8_t *out,
                                         const int32_t P, const int32_t B) {
    const samebits_steps *s = &k->steps;
    const int32_t pixel = s->pixel, quads = s->quads, last = k->last, lanes = k->lanes;
    const int32_t block = s->block;
    const __m512i flip = k->flip;
    const int8_t *w = k->weights, *end = w + (B - 1) * block;
    __m512i sum[8][4];
    int32_t row, run, q, p, b, slot = k->slot;
    for (p = 0; p < P; p++) {
        for (b = 0; b < B; b++) sum[p][b] = k->bias[b];
    }
    for (row = 0; row < s->conv->kernel_height; row++, slot++) {
        if (slot == s->conv->kernel_height) slot = 0;
        for (run = 0; run < s->conv->runs; run++) {
            const uint8_t *from = x + slot * s->row + run * s->run;
            for (q = 0; q < quads; q++, from += 4, w += 64, end += last) {
                __m512i v[4];
                for (b = 0; b < B - 1; b++) v[b] = _mm512_loadu_si512(w + b * block);
                v[B - 1] = _mm512_loadu_si512(end);
                for (b = 0; b < B; b++) SAMEBITS_KEEP(v[b]);
                for (p = 0; p < P; p++) {
                    int32_t four;
                    __m512i codes;
                    __builtin_memcpy(&four, from + p * pixel, 4);
                    codes = _mm512_xor_si512(_mm512_set1_epi32(four), flip);
                    for (b = 0; b < B; b++) sum[p][b] = _mm512_dpbusd_epi32(sum[p][b], codes, v[b]);
                }
            }
        }
    }
    for (p = 0; p < P; p++) {
        for (b = 0; b < B; b++) sum[p][b] = samebits_quotients(&k->scale[b], sum[p][b]);
    }
    if (B > 2) {
        for (p = 0; p < P; p++) {
            const __m512i v =
                samebits_codes(&k->range, sum[p][0], sum[p][1], sum[p][2], sum[p][B - 1]);
            samebits_put64(out + p * k->pitch, v, lanes);
        }
    } else if (B == 2) {
        for (p = 0; p < P; p += 2) {
            const int32_t o = P > 1 ? p + 1 : p;
            const __m512i v =
                samebits_codes(&k->range, sum[p][0], sum[p][1], sum[o][0], sum[o][1]);
            samebits_put32(out + p * k->pitch, _mm512_castsi512_si256(v), lanes);
            if (P > 1) samebits_put32(out + o * k->pitch, _mm512_extracti64x4_epi64(v, 1), lanes);
        }
    } else {
        for (p = 0; p < P; p += 4) {
            const int32_t i = P > 1 ? 1 : 0;
            const __m512i v = samebits_codes(&k->range, sum[p][0], sum[p + i][0], sum[p + 2 * i][0],
                                             sum[p + 3 * i][0]);
            uint8_t *to = out + p * k->pitch;
            if (P > 1 && k->pitch == 16) {
                _mm512_storeu_si512(to, v);
                continue;
            }
            samebits_put16(to, _mm512_castsi512_si128(v), lanes);
            if (P == 1) continue;
            samebits_put16(to + k->pitch, _mm512_extracti32x4_epi32(v, 1), lanes);
            samebits_put16(to + 2 * k->pitch, _mm512_extracti32x4_epi32(v, 2), lanes);
            samebits_put16(to + 3 * k->pitch, _mm512_extracti32x4_epi32(v, 3), lanes);
        }
    }
}

#define SAMEBITS_TILES(P, B)                                                                       \
    for (; pixels >= P; pixels -= P, x += P * k->steps.pixel, out += P * k->pitch) {               \
        samebits_panel_tile(k, x, out, P, B);                                                      \
    }

static void samebits_panel_run(const samebits_panel *k, const uint8_t *x, int32_t pixels,
                               uint8_t *out) {
    if (k->lanes > 48) {
        SAMEBITS_TILES(4, 4)
        SAMEBITS_TILES(1, 4)
    } else if (k->lanes > 32) {
        SAMEBITS_TILES(4, 3)
        SAMEBITS_TILES(1, 3)
    } else if (k->lanes > 16) {
        SAMEBITS_TILES(8, 2)
        SAMEBITS_TILES(4, 2)
        SAMEBITS_TILES(1, 2)
    } else {
        SAMEBITS_TILES(8, 1)
        SAMEBITS_TILES(4, 1)
        SAMEBITS_TILES(1, 1)
    }
}

/* The panel of `lanes` channels from `channel` on, the o-th of their group. */
SAMEBITS_INLINE void samebits_panel_of(samebits_panel *k, int32_t channel, int32_t o,
                                       int32_t lanes) {
    const samebits_conv *c = k->steps.conv;
    const int32_t step = k->steps.block / 16;
    int32_t b;
    k->lanes = lanes;
    k->last = 4 * ((lanes - 1) % 16 + 1);
    k->weights = (const int8_t *)c->weights + (channel - o) * step + o * step;
    for (b = 0; 16 * b < lanes; b++) {
        const __mmask16 mask = samebits_first(lanes - 16 * b);
        const int32_t at = channel + 16 * b;
        k->bias[b] = _mm512_maskz_loadu_epi32(mask, (const int32_t *)c->bias + at);
        k->scale[b] = samebits_scale_of(samebits_factors(&c->rescale, at, mask),
                                        samebits_shifts(&c->rescale, at, mask),
                                        samebits_reach(k->bias[b], k->products));
    }
}

/* Windows that lie in x, one group. */
SAMEBITS_INLINE void samebits_points(samebits_panel *k, const uint8_t *x, uint8_t *out) {
    const samebits_conv *c = k->steps.conv;
    int32_t n, o, oy;
    for (o = 0; o < c->out_channels; o += 64) {
        samebits_panel_of(k, o, o, SAMEBITS_MIN(c->out_channels - o, 64));
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
                                       int32_t columns, __m512i flip, uint8_t *band) {
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
    samebits_flipped(image + y * c->width * depth, inside * depth, flip, to + before * depth);
}

/* Bands of whole rows that keep the rows that two windows share. */
SAMEBITS_INLINE void samebits_rolling(samebits_panel *k, const uint8_t *x, uint8_t *out,
                                      uint8_t *band) {
    const samebits_conv *c = k->steps.conv;
    const int32_t columns = samebits_columns(c, c->out_width);
    const __m512i flip = _mm512_set1_epi8(c->type == SAMEBITS_INT8 ? -128 : 0);
    int32_t n, oy, o, y;
    k->steps.row = columns * c->channels;
    for (n = 0; n < c->batch; n++) {
        const uint8_t *image = x + n * c->height * c->width * c->channels;
        int32_t next = -c->pad_top;
        for (oy = 0; oy < c->out_height; oy++) {
            const int32_t top = oy * c->stride_y - c->pad_top;
            for (y = SAMEBITS_MAX(next, top); y < top + c->kernel_height; y++) {
                samebits_band_row(c, image, y, columns, flip, band);
            }
            next = top + c->kernel_height;
            k->slot = (top + c->pad_top) % c->kernel_height;
            for (o = 0; o < c->out_channels; o += 64) {
                samebits_panel_of(k, o, o, SAMEBITS_MIN(c->out_channels - o, 64));
                samebits_panel_run(k, band, c->out_width,
                                   out + c->out_start + n * c->out_batch + oy * c->out_row + o);
            }
        }
    }
}

/* The same convolution of an image that is one column, as that of one row. */
SAMEBITS_INLINE samebits_conv samebits_turned(const samebits_conv *c) {
    samebits_conv t = *c;
    if (c->width != 1 || c->out_width != 1 || c->kernel_width != 1 || c->pad_left) return t;
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

/* 0 for what is not here: other types of codes, or forms of requantization. */
static int samebits_vnni_conv(const samebits_conv *given, const void *x, void *out, uint8_t *band) {
    const samebits_conv turned = samebits_turned(given), *c = &turned;
    const int32_t outputs = c->out_channels / c->groups, depth = c->channels / c->groups;
    int32_t n, group, oy, ox, o;
    samebits_panel k;
    if (!samebits_has_codes(&c->rescale)) return 0;
    k.steps.conv = c;
    k.steps.quads = (c->length + 3) / 4;
    k.steps.pixel = c->stride_x * depth;
    k.steps.run = c->dilation_x * depth;
    k.steps.row = c->dilation_y * c->width * depth;
    k.steps.block = c->kernel_height * c->runs * k.steps.quads * 64;
    k.products = (int64_t)c->kernel_height * c->runs * c->length;
    k.range = samebits_range_of(&c->rescale);
    k.pitch = c->out_pixel;
    k.slot = 0;
    if (c->groups == 1 && c->length % 4 == 0 && samebits_in_image(c)) {
        k.flip = _mm512_set1_epi8(c->type == SAMEBITS_INT8 ? -128 : 0);
        samebits_points(&k, (const uint8_t *)x, (uint8_t *)out);
        return 1;
    }
    if (given->width != c->width) { /* the band has its tile */
        k.steps.conv = c = given;
        k.steps.pixel = c->stride_x * depth;
        k.steps.run = c->dilation_x * depth;
        k.pitch = c->out_pixel;
    }
    k.flip = _mm512_setzero_si512();
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
                    k.steps.row = columns * depth;
                    samebits_fill8(c, x, n, group, oy, ox, columns, band);
                    for (o = 0; o < outputs; o += 64) {
                        const int32_t channel = group * outputs + o;
                        samebits_panel_of(&k, channel, o, SAMEBITS_MIN(outputs - o, 64));
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
