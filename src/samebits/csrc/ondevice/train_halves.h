/* Sums of a column of a gradient and LANES channels of an input at a time, by products of 16 bits:
 * with the DSP extension, and with Helium.
 *
 * A code of 32 bits is at most 32639.5 * 2**16 (Q32), so that any of them is 2**16 * upper + lower,
 * where both have 16 signed bits. Uppers and lowers are taken one after the other, in sums of 32
 * bits; the uppers alone tell the largest sum well enough to choose a shift.
 *
 * The loops are written in the processor's language as a whole (naked), so that they are the same
 * at every level of optimisation; they use at most 44 bytes of stack that the compiler does not
 * know. */
#ifndef SAMEBITS_TRAIN_HALVES_H
#define SAMEBITS_TRAIN_HALVES_H

#include "train_taps.h"

#define LANES 4

/* Which halves of the codes count: of codes of 16 bits the lower ones are all. */
enum { UPPER = 1, LOWER = 2 };

#define MOST_HALVES 512 /* products of 8 and 16 bits that a sum of 32 bits holds */

#if defined(SAMEBITS_NAKED) && defined(__ARM_FEATURE_MVE) && defined(__ARMEL__)
#define TRAIN_HALVES
#define TRAIN_TABLE
#include <arm_mve.h>

/* Where codes of G and of x meet, tap after tap: places of G, then places of x, of 16 bits each.
 * They are the same for all outputs. codes: lowers of a column, then its uppers. */
typedef struct {
    const int8_t *x;
    int16_t *codes;
    const uint16_t *table, *next;
    int32_t rows, count;
} Halves;

static int32_t meetings_of(const samebits_conv *s, const Tap *t) {
    return s->n * SAMEBITS_MAX(t->y1 - t->y0, 0) * SAMEBITS_MAX(t->u1 - t->u0, 0);
}

static int halves_start(Halves *h, const samebits_conv *s, const int8_t *x, void *room,
                        void *table) {
    *h = (Halves){x, (int16_t *)room, (const uint16_t *)table, NULL, s->n * s->oh * s->ow, 0};
    return table && s->n * s->h * s->w * s->c <= 65536 && h->rows <= 65536;
}

/* A tap's part of the table; taps come in their order. */
static uint16_t *halves_note(const samebits_conv *s, const Tap *t, uint16_t *to) {
    const int32_t across = s->stride_x * s->c, down = s->stride_y * s->w * s->c;
    const int32_t count = meetings_of(s, t);
    int32_t n, y, u;
    for (n = 0; n < s->n; n++)
        for (y = t->y0; y < t->y1; y++) {
            int32_t x = t->x + n * s->h * s->w * s->c + (y - t->y0) * down;
            for (u = t->u0; u < t->u1; u++, x += across, to++) {
                to[0] = (uint16_t)((n * s->oh + y) * s->ow + u);
                to[count] = (uint16_t)x;
            }
        }
    return to + count;
}

static void halves_column(Halves *h, const samebits_conv *s, const int32_t *g) {
    int32_t r;
    (void)s;
    for (r = 0; r < h->rows; r += 4) {
        const mve_pred16_t lanes = vctp32q((uint32_t)(h->rows - r));
        const int32x4_t codes = vldrwq_z_s32(g + r, lanes);
        vstrhq_p_s32(h->codes + r, codes, lanes);
        vstrhq_p_s32(h->codes + h->rows + r, vshrq_n_s32(vaddq_n_s32(codes, 0x8000), 16), lanes);
    }
    h->next = h->table, h->count = 0;
}

SAMEBITS_INLINE void halves_tap(Halves *h, const samebits_conv *s, const Tap *t,
                                const int32_t *g) {
    (void)g;
    h->next += 2 * h->count;
    h->count = meetings_of(s, t);
}

typedef struct {
    const int16_t *codes;
    const uint16_t *g, *x; /* 4, 8: places */
    int32_t count;         /* 12 */
    const int8_t *from;    /* 16: channel 0 */
    int32_t *to, *end;     /* 20, 24: sums */
} Gathered;

/* Eight places by four channels in 12 instructions; the last turn may have fewer places. */
SAMEBITS_NAKED gathered_sums(Gathered *f __attribute__((unused))) {
    __asm__("push {r0, r4-r11, lr}\n"
            "2:\n\t"
            "ldr r12, [sp]\n\t"
            "ldm r12, {r0, r9, r11}\n\t"
            "ldrd r2, r1, [r12, #12]\n\t"
            "movs r4, #0\n\t"
            "movs r6, #0\n\t"
            "mov r8, r4\n\t"
            "mov r10, r4\n\t"
            "adds r3, r1, #1\n\t"
            "adds r5, r1, #2\n\t"
            "adds r7, r1, #3\n\t"
            "dlstp.16 lr, r2\n"
            "1:\n\t"
            "vldrh.16 q0, [r9], #16\n\t"
            "vldrh.u16 q1, [r0, q0, uxtw #1]\n\t"
            "vldrh.16 q0, [r11], #16\n\t"
            "vldrb.s16 q2, [r1, q0]\n\t"
            "vldrb.s16 q3, [r3, q0]\n\t"
            "vmladava.s16 r4, q2, q1\n\t"
            "vldrb.s16 q2, [r5, q0]\n\t"
            "vmladava.s16 r6, q3, q1\n\t"
            "vldrb.s16 q3, [r7, q0]\n\t"
            "vmladava.s16 r8, q2, q1\n\t"
            "vmladava.s16 r10, q3, q1\n\t"
            "letp lr, 1b\n\t"
            "adds r1, #4\n\t"
            "ldrd r2, r3, [r12, #20]\n\t"
            "stm r2!, {r4, r6, r8, r10}\n\t"
            "strd r1, r2, [r12, #16]\n\t"
            "cmp r2, r3\n\t"
            "bne 2b\n\t"
            "pop {r0, r4-r11, pc}\n\t");
}

#define TRAIN_PLANES

/* Rows of codes of G, and of one channel of x. */
typedef struct {
    const int32_t *g;
    const int8_t *x;
    int32_t count, next_g, next_x; /* 8, 12, 16: of a row; bytes from row to row */
    int32_t across, rows;          /* 20, 24: bytes from a code of x to the next */
    int64_t sum;                   /* 32 */
} Plane;

/* Four codes of 32 bits by those of one channel in 5 instructions. */
SAMEBITS_NAKED plane_sum(Plane *f __attribute__((unused))) {
    __asm__("push {r4-r11, lr}\n\t"
            "ldm r0, {r1, r3, r5, r7, r8, r9, r10}\n\t"
            "ldrd r4, r11, [r0, #32]\n\t"
            "movs r2, #0\n\t"
            "vidup.u32 q0, r2, #1\n\t"
            "vmul.i32 q0, q0, r9\n\t"
            "lsl r9, r9, #2\n"
            "1:\n\t"
            "mov r2, r1\n\t"
            "mov r12, r3\n\t"
            "dlstp.32 lr, r5\n"
            "2:\n\t"
            "vldrw.32 q1, [r2], #16\n\t"
            "vldrb.s32 q2, [r12, q0]\n\t"
            "add r12, r9\n\t"
            "vmlaldava.s32 r4, r11, q1, q2\n\t"
            "letp lr, 2b\n\t"
            "add r1, r7\n\t"
            "add r3, r8\n\t"
            "subs r10, #1\n\t"
            "bne 1b\n\t"
            "strd r4, r11, [r0, #32]\n\t"
            "pop {r4-r11, pc}\n\t");
}

/* Sums of `channels` from number `at` of x on, over `count` meetings of the tap. */
static void halves_sums(const Halves *h, int half, int32_t first, int32_t count, int32_t at,
                        int32_t channels, int32_t *part) {
    Gathered f = {h->codes + (half == UPPER ? h->rows : 0), h->next + first,
                  h->next + h->count + first, count, h->x + at, part, part + channels};
    gathered_sums(&f);
}

#elif defined(SAMEBITS_NAKED) && defined(__ARM_FEATURE_DSP) && defined(__ARMEL__)
#define TRAIN_HALVES

/* Codes of two images at a place, a word each of uppers and of lowers, and where their codes of x
 * lie. */
typedef struct {
    int32_t lower, x, upper;
} Pair;

/* x: two images a word. */
typedef struct {
    const int32_t *x;
    Pair *list;
    int32_t count;
} Halves;

/* A pair takes 12 bytes; a list has room for 8 an image. A column gives way to its halves. */
static int halves_start(Halves *h, const samebits_conv *s, const int8_t *x, void *room,
                        void *table) {
    const int32_t size = s->h * s->w * s->c;
    int32_t *to = (int32_t *)table, n, i;
    *h = (Halves){to, (Pair *)room, 0};
    if (!to || s->n % 2 || inputs_of(s) % LANES) return 0;
    for (n = 0; n < s->n; n += 2, x += 2 * size)
        for (i = 0; i < size; i++)
            *to++ = (int32_t)((uint32_t)(uint16_t)x[i] | (uint32_t)x[size + i] << 16);
    return 1;
}

/* Lowers of two images in the place of the first, uppers in that of the second. */
SAMEBITS_INLINE void halves_column(Halves *h, const samebits_conv *s, int32_t *g) {
    const int32_t image = s->oh * s->ow;
    int32_t n, i;
    (void)h;
    for (n = 0; n < s->n; n += 2, g += 2 * image)
        for (i = 0; i < image; i++) {
            const uint32_t a = (uint32_t)g[i], b = (uint32_t)g[image + i];
            g[i] = (int32_t)((a & 65535u) | b << 16);
            g[image + i] = (int32_t)((a + 0x8000u) >> 16 | ((b + 0x8000u) & 0xFFFF0000u));
        }
}

SAMEBITS_INLINE void halves_tap(Halves *h, const samebits_conv *s, const Tap *t,
                                const int32_t *g) {
    const int32_t across = s->stride_x * s->c, down = s->stride_y * s->w * s->c;
    const int32_t image = s->oh * s->ow, width = t->u1 - t->u0;
    int32_t plane = t->x, n, y;
    Pair *to = h->list;
    g += t->y0 * s->ow + t->u0;
    for (n = 0; n < s->n; n += 2, g += 2 * image, plane += s->h * s->w * s->c) {
        const int32_t *row = g;
        for (y = t->y0; y < t->y1; y++, row += s->ow) {
            const int32_t *own = row, *end = row + width;
            int32_t x = plane + (y - t->y0) * down;
            for (; own < end; own++, x += across) {
                const int32_t lower = own[0], upper = own[image];
                if (!(lower | upper)) continue;
                to->lower = lower, to->x = x, to->upper = upper;
                to++;
            }
        }
    }
    h->count = (int32_t)(to - h->list);
}

/* Two images by four channels in 9 instructions. r0, r1: the first pair's own word and the end; r2:
 * x; r3, [sp]: the first and the end of sums. A word of codes lies before x, or behind it. */
#define PAIR_SUMS(FIRST, SECOND)                                                                   \
    "push {r0, r4-r11, lr}\n"                                                                      \
    "2:\n\t"                                                                                       \
    "ldr r0, [sp]\n\t"                                                                             \
    "movs r4, #0\n\t"                                                                              \
    "movs r5, #0\n\t"                                                                              \
    "movs r6, #0\n\t"                                                                              \
    "movs r7, #0\n"                                                                                \
    "1:\n\t"                                                                                       \
    "ldrd " FIRST ", " SECOND ", [r0], #12\n\t"                                                    \
    "add lr, r2, lr, lsl #2\n\t"                                                                   \
    "ldm lr, {r8, r9, r10, r11}\n\t"                                                               \
    "smlad r4, r8, r12, r4\n\t"                                                                    \
    "smlad r5, r9, r12, r5\n\t"                                                                    \
    "smlad r6, r10, r12, r6\n\t"                                                                   \
    "smlad r7, r11, r12, r7\n\t"                                                                   \
    "cmp r0, r1\n\t"                                                                               \
    "bne 1b\n\t"                                                                                   \
    "stm r3!, {r4, r5, r6, r7}\n\t"                                                                \
    "adds r2, #16\n\t"                                                                             \
    "ldr r12, [sp, #40]\n\t"                                                                       \
    "cmp r3, r12\n\t"                                                                              \
    "bne 2b\n\t"                                                                                   \
    "pop {r0, r4-r11, pc}\n\t"

SAMEBITS_NAKED lower_sums(const int32_t *first __attribute__((unused)),
                          const int32_t *end __attribute__((unused)),
                          const int32_t *x __attribute__((unused)),
                          int32_t *part __attribute__((unused)),
                          const int32_t *last __attribute__((unused))) {
    __asm__(PAIR_SUMS("r12", "lr"));
}

SAMEBITS_NAKED upper_sums(const int32_t *first __attribute__((unused)),
                          const int32_t *end __attribute__((unused)),
                          const int32_t *x __attribute__((unused)),
                          int32_t *part __attribute__((unused)),
                          const int32_t *last __attribute__((unused))) {
    __asm__(PAIR_SUMS("lr", "r12"));
}

/* Sums of `channels` from number `at` of x on, over `count` pairs of the list. */
static void halves_sums(const Halves *h, int half, int32_t first, int32_t count, int32_t at,
                        int32_t channels, int32_t *part) {
    const Pair *from = h->list + first;
    if (half == UPPER)
        upper_sums(&from->x, &from[count].x, h->x + at, part, part + channels);
    else
        lower_sums(&from->lower, &from[count].lower, h->x + at, part, part + channels);
}
#endif

#endif
