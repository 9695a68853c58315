/* Gradients of the inputs of linear layers and convolutions (7). */
#include "train_rounding.h"
#include "train_taps.h"

#define LANES 4
#define EXACT 516 /* outputs whose products of 16 and 8 bits a sum of 32 bits holds */

/* Sums of G * w for the pixel (n, y, u), `lanes` channels from c on. */
SAMEBITS_INLINE void input_sums(const samebits_conv *s, const int16_t *g, const int8_t *w,
                                int32_t n, int32_t y, int32_t u, int32_t c, int32_t lanes,
                                int64_t *sum) {
    const int32_t k = weights_of(s);
    int32_t part[LANES] = {0}, left = EXACT, ky, kx, o, l, first, last;
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
                if (!left) {
                    for (l = 0; l < LANES; l++) sum[l] += part[l], part[l] = 0;
                    left = EXACT;
                }
                last = SAMEBITS_MIN(s->o, first + left);
                left -= last - first;
                if (lanes == LANES)
                    for (o = first; o < last; o++, row += k) {
                        const int32_t v = from[o];
                        part[0] += v * row[0], part[1] += v * row[1];
                        part[2] += v * row[2], part[3] += v * row[3];
                    }
                else
                    for (o = first; o < last; o++, row += k)
                        for (l = 0; l < lanes; l++) part[l] += (int32_t)from[o] * row[l];
            }
        }
    }
    for (l = 0; l < LANES; l++) sum[l] += part[l];
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

/* --- tap by tap, into sums that are kept -------------------------------------------------------
 *
 * The weights of a tap, of LANES channels and CHUNK outputs, are widened to 16 bits once for all
 * pixels. The loops over a row of pixels are written in the processor's language as a whole. */

#define CHUNK 32

#if defined(SAMEBITS_NAKED) && defined(__ARM_FEATURE_MVE) && defined(__ARMEL__)
#define TRAIN_TAPS

typedef struct {
    int32_t outputs, next_g, next_sum, pixels; /* from the end of the vectors of a pixel */
} Row;

SAMEBITS_INLINE int has_taps(const samebits_conv *s) { return s->groups == 1 && s->c % LANES == 0; }

SAMEBITS_INLINE Row row_of(const samebits_conv *s, int32_t outputs, int32_t pixels) {
    const int32_t across = s->stride_x * s->c * (int32_t)sizeof(int32_t);
    return (Row){outputs, 2 * s->o - (outputs + 7) / 8 * 16, across, pixels};
}

/* CHUNK codes of a channel, then those of the next. */
SAMEBITS_INLINE void widen(const int8_t *w, int32_t k, int32_t outputs, int16_t *wide) {
    int32_t o, l;
    for (o = 0; o < outputs; o++, w += k)
        for (l = 0; l < LANES; l++) wide[l * CHUNK + o] = w[l];
}

/* Eight outputs by four channels in 10 instructions. */
SAMEBITS_NAKED row_sums(const int16_t *g __attribute__((unused)),
                        const int16_t *wide __attribute__((unused)),
                        int32_t *sum __attribute__((unused)),
                        const Row *f __attribute__((unused))) {
    __asm__("push {r4-r11, lr}\n\t"
            "mov r5, r1\n\t"
            "ldm r3, {r7, r9, r11, r12}\n"
            "1:\n\t"
            "ldm r2, {r4, r6, r8, r10}\n\t"
            "mov r1, r5\n\t"
            "dlstp.16 lr, r7\n"
            "2:\n\t"
            "vldrh.16 q0, [r0], #16\n\t"
            "vldrh.16 q1, [r1, #64]\n\t"
            "vldrh.16 q2, [r1, #128]\n\t"
            "vmladava.s16 r6, q0, q1\n\t"
            "vldrh.16 q1, [r1, #192]\n\t"
            "vmladava.s16 r8, q0, q2\n\t"
            "vldrh.16 q2, [r1], #16\n\t"
            "vmladava.s16 r10, q0, q1\n\t"
            "vmladava.s16 r4, q0, q2\n\t"
            "letp lr, 2b\n\t"
            "stm r2, {r4, r6, r8, r10}\n\t"
            "add r0, r9\n\t"
            "add r2, r11\n\t"
            "subs r12, #1\n\t"
            "bne 1b\n\t"
            "pop {r4-r11, pc}\n\t");
}

#elif defined(SAMEBITS_NAKED) && defined(__ARM_FEATURE_DSP) && defined(__ARMEL__)
#define TRAIN_TAPS

typedef struct {
    int32_t turns, next_g, next_sum, pixels;
} Row;

SAMEBITS_INLINE int has_taps(const samebits_conv *s) {
    return s->groups == 1 && s->c % LANES == 0 && s->o % 2 == 0;
}

SAMEBITS_INLINE Row row_of(const samebits_conv *s, int32_t outputs, int32_t pixels) {
    const int32_t across = s->stride_x * s->c * (int32_t)sizeof(int32_t);
    return (Row){outputs / 2, 2 * (s->o - outputs), across, pixels};
}

/* Codes of four channels, two outputs a word. */
SAMEBITS_INLINE void widen(const int8_t *w, int32_t k, int32_t outputs, int16_t *wide) {
    int32_t o, l;
    for (o = 0; o < outputs; o += 2, w += 2 * k, wide += 2 * LANES)
        for (l = 0; l < LANES; l++) wide[2 * l] = w[l], wide[2 * l + 1] = w[k + l];
}

/* Two outputs by four channels in 8 instructions. */
SAMEBITS_NAKED row_sums(const int16_t *g __attribute__((unused)),
                        const int16_t *wide __attribute__((unused)),
                        int32_t *sum __attribute__((unused)),
                        const Row *f __attribute__((unused))) {
    __asm__("push {r1, r3, r4-r11, lr}\n\t"
            "ldr r8, [r3]\n\t"
            "add lr, r1, r8, lsl #4\n\t"
            "ldr r3, [r3, #12]\n"
            "1:\n\t"
            "ldm r2, {r4-r7}\n\t"
            "ldr r1, [sp]\n"
            "2:\n\t"
            "ldr r12, [r0], #4\n\t"
            "ldm r1!, {r8-r11}\n\t"
            "smlad r4, r8, r12, r4\n\t"
            "smlad r5, r9, r12, r5\n\t"
            "smlad r6, r10, r12, r6\n\t"
            "smlad r7, r11, r12, r7\n\t"
            "cmp r1, lr\n\t"
            "bne 2b\n\t"
            "stm r2, {r4-r7}\n\t"
            "ldr r8, [sp, #4]\n\t"
            "ldrd r8, r9, [r8, #4]\n\t"
            "add r0, r8\n\t"
            "add r2, r9\n\t"
            "subs r3, #1\n\t"
            "bne 1b\n\t"
            "pop {r1, r3, r4-r11, pc}\n\t");
}
#endif

#ifdef TRAIN_TAPS
/* What one tap adds, of channels from c on and outputs from `first` on. */
static void tap_adds(const samebits_conv *s, const Tap *t, const int16_t *g, const int8_t *w,
                     int32_t first, int32_t c, int32_t *sums) {
    const int32_t down = s->stride_y * s->w * s->c, outputs = SAMEBITS_MIN(CHUNK, s->o - first);
    const Row f = row_of(s, outputs, t->u1 - t->u0);
    int32_t wide[LANES * CHUNK / 2], n, y;
    if (f.pixels <= 0) return;
    widen(w, weights_of(s), outputs, (int16_t *)(void *)wide);
    for (n = 0; n < s->n; n++)
        for (y = t->y0; y < t->y1; y++) {
            const int32_t x = t->x + n * s->h * s->w * s->c + (y - t->y0) * down;
            const int32_t at = ((n * s->oh + y) * s->ow + t->u0) * s->o;
            row_sums(g + at + first, (const int16_t *)(const void *)wide, sums + x + c, &f);
        }
}

/* All sums, and their largest magnitude. */
static int64_t tap_sums(const samebits_conv *s, const int16_t *g, const int8_t *w, int32_t *sums) {
    const int32_t size = s->n * s->h * s->w * s->c, k = weights_of(s);
    int32_t ky, kx, first, c, i, top = 0;
    memset(sums, 0, (size_t)size * sizeof *sums);
    for (ky = 0; ky < s->kh; ky++)
        for (kx = 0; kx < s->kw; kx++) {
            const Tap t = tap_of(s, ky, kx);
            for (first = 0; first < s->o; first += CHUNK)
                for (c = 0; c < s->c; c += LANES)
                    tap_adds(s, &t, g, w + first * k + (ky * s->kw + kx) * s->c + c, first, c,
                             sums);
        }
    for (i = 0; i < size; i++) {
        const int32_t own = magnitude32(sums[i]);
        top = SAMEBITS_MAX(top, own);
    }
    return top;
}
#endif

/* All sums: kept, and their largest magnitude; or rounded. */
static int64_t all_sums(const samebits_conv *s, const int16_t *g, const int8_t *w, int32_t *sums,
                        int16_t *dx, int32_t shift) {
    int64_t top = 0, sum[LANES];
    int32_t n, y, u, c, l, i = 0;
    for (n = 0; n < s->n; n++)
        for (y = 0; y < s->h; y++)
            for (u = 0; u < s->w; u++)
                for (c = 0; c < s->c; c += LANES) {
                    const int32_t lanes = SAMEBITS_MIN(LANES, s->c - c);
                    if (s->groups == 1)
                        input_sums(s, g, w, n, y, u, c, lanes, sum);
                    else
                        group_sums(s, g, w, n, y, u, c, lanes, sum);
                    for (l = 0; l < lanes; l++, i++) {
                        const int64_t size = samebits_magnitude64(sum[l]);
                        top = SAMEBITS_MAX(top, size);
                        if (sums) sums[i] = (int32_t)sum[l];
                        if (dx) dx[i] = (int16_t)down64(sum[l], shift);
                    }
                }
    return top;
}

int samebits_train_input_gradient(const samebits_conv *s, const int16_t *g, int32_t e_g,
                                  const samebits_parameter *w, int32_t *sums, int16_t *dx,
                                  int32_t *e_dx) {
    const int32_t size = s->n * s->h * s->w * s->c;
    Rounding to = {{SAMEBITS_TRAIN_PLAIN, 0, 0}, 16, dx, NULL};
    int64_t top;
    *e_dx = e_g + w->s->e_w;
#ifdef TRAIN_TAPS
    if (sums && has_taps(s))
        top = tap_sums(s, g, w->w, sums);
    else
#endif
        top = all_sums(s, g, w->w, sums, NULL, 0);
    to.by.shift = narrowed(top, 16, e_dx);
    if (sums)
        round_kept(&to, sums, size);
    else
        (void)all_sums(s, g, w->w, NULL, dx, to.by.shift);
    return in_range(*e_dx);
}
