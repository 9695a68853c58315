/* --- packed convolution: Helium, one channel at a time ------------------------------------------
 *
 * Sixteen lanes: 16 channels of a pixel, or 16 / C pixels of C channels (C < 16). Helium has no
 * product of vectors that adds to a vector of sums, so products of 8 by 8 bits are taken in 16,
 * added in pairs (which the lowering has proved to fit) and widened. VMULLB takes the even bytes,
 * VMULLT the odd ones, VMOVLB and VMOVLT the even and odd halves: sums lie in the order 0 4 8 12,
 * 1 5 9 13, 2 6 10 14, 3 7 11 15, in which VLD4 loads biases and multipliers. */

#include "samebits_vector.h"

#ifdef SAMEBITS_PACKED_MVE
typedef struct {
    int32_t saved[9];
    const int32_t *taps;            /* 36: bytes from a pixel's first code to each tap's */
    const int8_t *x;                /* 40: of the first pixel, in the block's band */
    int8_t *out;                    /* 44 */
    const int32_t *stream;          /* 48 */
    int32_t turns, odd, vectors;    /* 52, 56, 60: pairs of taps, whether the first is single */
    int32_t next_x, next_out, less; /* 64, 68, 72: from a vector to the next */
    int32_t left, block_less;       /* 76, 80: lanes that are stored; fewer in the next block */
    int32_t block, blocks;          /* 84, 88: bytes of a block's band */
    int32_t shift, zero;            /* 92, 96 */
    int32_t vector[16];             /* 100 */
} samebits_mve_depth;

#define SAMEBITS_MVE_FOUR(q, last)                                                                 \
    "vld40.32 {" q "}, [r5]\n\t"                                                                   \
    "vld41.32 {" q "}, [r5]\n\t"                                                                   \
    "vld42.32 {" q "}, [r5]\n\t"                                                                   \
    "vld43.32 {" q "}, [r5]" last "\n\t"

/* Sixteen sums by the multipliers in q4 to q7; r1: `shift`. */
#define SAMEBITS_MVE_DEPTH_HIGH                                                                    \
    "vqdmulh.s32 q0, q0, q4\n\t"                                                                   \
    "vqdmulh.s32 q1, q1, q5\n\t"                                                                   \
    "vqdmulh.s32 q2, q2, q6\n\t"                                                                   \
    "vqdmulh.s32 q3, q3, q7\n\t"                                                                   \
    "vrshl.s32 q0, r1\n\t"                                                                         \
    "vrshl.s32 q1, r1\n\t"                                                                         \
    "vrshl.s32 q2, r1\n\t"                                                                         \
    "vrshl.s32 q3, r1\n\t"
#define SAMEBITS_MVE_DEPTH_DOUBLED                                                                 \
    "vqrdmulh.s32 q0, q0, q4\n\t"                                                                  \
    "vqrdmulh.s32 q1, q1, q5\n\t"                                                                  \
    "vqrdmulh.s32 q2, q2, q6\n\t"                                                                  \
    "vqrdmulh.s32 q3, q3, q7\n\t"                                                                  \
    "vqdmlah.s32 q0, q0, r1\n\t"                                                                   \
    "vqdmlah.s32 q1, q1, r1\n\t"                                                                   \
    "vqdmlah.s32 q2, q2, r1\n\t"                                                                   \
    "vqdmlah.s32 q3, q3, r1\n\t"                                                                   \
    SAMEBITS_MVE_FOUR("q4, q5, q6, q7", "!")                                                       \
    "vrshl.s32 q0, q0, q4\n\t"                                                                     \
    "vrshl.s32 q1, q1, q5\n\t"                                                                     \
    "vrshl.s32 q2, q2, q6\n\t"                                                                     \
    "vrshl.s32 q3, q3, q7\n\t"

/* A row of outputs, block after block. */
#define SAMEBITS_MVE_DEPTH(ROUND)                                                                  \
    "stm r0, {r4-r11, lr}\n\t"                                                                     \
    "mov r9, r0\n\t"                                                                               \
    "add r1, r0, #100\n\t"                                                                         \
    "vstmia r1, {d8-d15}\n\t"                                                                      \
    "ldr r10, [r9, #48]\n\t"                                                                       \
    "ldrd r0, r3, [r9, #52]\n\t"                                                                   \
    "adr r11, 3f\n\t"                                                                              \
    "cbz r3, 6f\n\t"                                                                               \
    "adr r11, 4f\n"                                                                                \
    "6:\n\t"                                                                                       \
    "orr r11, r11, #1\n\t"                                                                         \
    "ldrd r7, r12, [r9, #72]\n"                                                                    \
    "1:\n\t"                                                                                       \
    "ldrd r4, r6, [r9, #40]\n\t"                                                                   \
    "ldr r8, [r9, #60]\n"                                                                          \
    "2:\n\t"                                                                                       \
    "mov r5, r10\n\t"                                                                              \
    "ldr r2, [r9, #36]\n\t" SAMEBITS_MVE_FOUR("q0, q1, q2, q3", "!")                               \
    "dls lr, r0\n\t"                                                                               \
    "bx r11\n\t"                                                                                   \
    ".balign 4\n"                                                                                  \
    "3:\n\t"                                                                                       \
    "ldrd r1, r3, [r2], #8\n\t"                                                                    \
    "add.w r1, r1, r4\n\t"                                                                         \
    "add.w r3, r3, r4\n\t"                                                                         \
    "vldrb.8 q4, [r1]\n\t"                                                                         \
    "vldrb.8 q5, [r5], #16\n\t"                                                                    \
    "vmullb.s8 q6, q4, q5\n\t"                                                                     \
    "vmullt.s8 q7, q4, q5\n\t"                                                                     \
    "vldrb.8 q4, [r3]\n\t"                                                                         \
    "vldrb.8 q5, [r5], #16\n\t"                                                                    \
    "vmullb.s8 q4, q4, q5\n\t"                                                                     \
    "vadd.i16 q6, q6, q4\n\t"                                                                      \
    "vldrb.8 q4, [r3]\n\t"                                                                         \
    "vmullt.s8 q4, q4, q5\n\t"                                                                     \
    "vadd.i16 q7, q7, q4\n"                                                                        \
    "5:\n\t"                                                                                       \
    "vmovlb.s16 q4, q6\n\t"                                                                        \
    "vmovlt.s16 q5, q6\n\t"                                                                        \
    "vadd.i32 q0, q0, q4\n\t"                                                                      \
    "vmovlb.s16 q4, q7\n\t"                                                                        \
    "vadd.i32 q2, q2, q5\n\t"                                                                      \
    "vmovlt.s16 q5, q7\n\t"                                                                        \
    "vadd.i32 q1, q1, q4\n\t"                                                                      \
    "vadd.i32 q3, q3, q5\n\t"                                                                      \
    "le lr, 3b\n\t" SAMEBITS_MVE_FOUR("q4, q5, q6, q7", "!")                                       \
    "ldrd r1, r3, [r9, #92]\n\t"                                                                   \
    ROUND                                                                                          \
    "vqmovnb.s32 q0, q0\n\t"                                                                       \
    "vqmovnb.s32 q1, q1\n\t"                                                                       \
    "vqmovnt.s32 q0, q2\n\t"                                                                       \
    "vqmovnt.s32 q1, q3\n\t"                                                                       \
    "vqadd.s16 q0, q0, r3\n\t"                                                                     \
    "vqadd.s16 q1, q1, r3\n\t"                                                                     \
    "vqmovnb.s16 q0, q0\n\t"                                                                       \
    "vctp.8 r12\n\t"                                                                               \
    "vqmovnt.s16 q0, q1\n\t"                                                                       \
    "vpst\n\t"                                                                                     \
    "vstrbt.8 q0, [r6]\n\t"                                                                        \
    "ldrd r1, r3, [r9, #64]\n\t"                                                                   \
    "add r4, r1\n\t"                                                                               \
    "add r6, r3\n\t"                                                                               \
    "subs r12, r7\n\t"                                                                             \
    "subs r8, #1\n\t"                                                                              \
    "bne 2b\n\t"                                                                                   \
    "mov r10, r5\n\t"                                                                              \
    "ldrd r4, r6, [r9, #40]\n\t"                                                                   \
    "ldrd r1, r3, [r9, #84]\n\t"                                                                   \
    "add r4, r1\n\t"                                                                               \
    "add r6, #16\n\t"                                                                              \
    "strd r4, r6, [r9, #40]\n\t"                                                                   \
    "ldr r1, [r9, #80]\n\t"                                                                        \
    "subs r12, r1\n\t"                                                                             \
    "subs r3, #1\n\t"                                                                              \
    "str r3, [r9, #88]\n\t"                                                                        \
    "bne 1b\n\t"                                                                                   \
    "add r1, r9, #100\n\t"                                                                         \
    "vldmia r1, {d8-d15}\n\t"                                                                      \
    "ldm r9, {r4-r11, pc}\n\t"                                                                     \
    ".balign 4\n"                                                                                  \
    "4:\n\t"                                                                                       \
    "ldr r1, [r2], #4\n\t"                                                                         \
    "add r1, r4\n\t"                                                                               \
    "vldrb.8 q4, [r1]\n\t"                                                                         \
    "vldrb.8 q5, [r5], #16\n\t"                                                                    \
    "vmullb.s8 q6, q4, q5\n\t"                                                                     \
    "vmullt.s8 q7, q4, q5\n\t"                                                                     \
    "b 5b\n\t"

SAMEBITS_NAKED samebits_mve_depth_row(samebits_mve_depth *frame __attribute__((unused))) {
    __asm__(SAMEBITS_MVE_DEPTH(SAMEBITS_MVE_DEPTH_HIGH));
}

SAMEBITS_NAKED samebits_mve_depth_row_doubled(samebits_mve_depth *frame __attribute__((unused))) {
    __asm__(SAMEBITS_MVE_DEPTH(SAMEBITS_MVE_DEPTH_DOUBLED));
}

/* Every code `repeat` times. */
static void samebits_packed_repeat(int8_t *to, const int8_t *from, int32_t n, int32_t repeat) {
    int32_t i;
    if (repeat == 1) {
        samebits_move_bytes(to, from, n);
        return;
    }
    for (i = 0; i < n * repeat; i++) to[i] = from[i / repeat];
}

/* Row v of the padded image to the band, [kernel row][block][column][group]; columns beside the
 * image hold the code of the padding from the beginning. */
static void samebits_mve_band_row(const samebits_packed *c, const int8_t *image, int32_t v,
                                  int32_t columns, int32_t blocks, int8_t *band) {
    const int32_t y = v - c->pad_top, group = c->tile, line = blocks * columns * group;
    const int32_t n = SAMEBITS_MIN(c->width, columns - c->pad_left);
    const int32_t source = c->channels / c->repeat; /* channels of x */
    const int8_t *from = image + y * c->width * source;
    int8_t *to = band + v % c->rows * line;
    int32_t block, i;
    if (y < 0 || y >= c->height) {
        samebits_set(to, (int8_t)c->pad_code, line);
        return;
    }
    to += c->pad_left * group;
    if (group < 16) {
        samebits_packed_repeat(to, from, n * source, c->repeat);
        return;
    }
    if (c->repeat > 1) {
        for (block = 0; block < blocks; block++, to += columns * 16) {
            const mve_pred16_t lanes = vctp8q((uint32_t)(c->channels - 16 * block));
            uint8_t places[16];
            uint8x16_t at;
            for (i = 0; i < 16; i++) places[i] = (uint8_t)((16 * block + i) / c->repeat);
            at = vldrbq_u8(places);
            for (i = 0; i < n; i++) {
                vstrbq_s8(to + 16 * i, vldrbq_gather_offset_z_s8(from + i * source, at, lanes));
            }
        }
        return;
    }
    for (block = 0; block < blocks; block++, to += columns * 16) {
        const mve_pred16_t lanes = vctp8q((uint32_t)(c->channels - 16 * block));
        const int8_t *pixel = from + 16 * block;
        for (i = 0; i < n; i++, pixel += c->channels) {
            vstrbq_s8(to + 16 * i, vldrbq_z_s8(pixel, lanes));
        }
    }
}

static void samebits_mve_depthwise(const samebits_packed *c, const int8_t *x, int8_t *out,
                                   void *scratch) {
    const int32_t columns =
        (c->out_width - 1) * c->stride_x + (c->kernel_width - 1) * c->dilation_x + 1;
    const int32_t group = c->tile, blocks = group < 16 ? 1 : (c->channels + 15) / 16;
    const int32_t line = blocks * columns * group, row = c->out_width * c->channels;
    int32_t *taps = (int32_t *)scratch;
    int8_t *band = (int8_t *)(taps + c->steps);
    int32_t n, oy, p, q;
    samebits_mve_depth f;
    f.taps = taps;
    f.turns = (c->steps + 1) / 2;
    f.odd = c->steps % 2;
    f.vectors = group < 16 ? (row + 15) / 16 : c->out_width;
    f.next_x = group < 16 ? 16 : 16 * c->stride_x;
    f.next_out = group < 16 ? 16 : c->channels;
    f.less = group < 16 ? 16 : 0;
    f.block_less = 16;
    f.block = columns * 16;
    f.shift = c->doubled ? 1 : -c->shift;
    f.zero = c->zero;
    samebits_set(band, (int8_t)c->pad_code, c->rows * line);
    for (n = 0; n < c->batch; n++, x += c->height * c->width * (c->channels / c->repeat)) {
        int32_t next = 0;
        for (oy = 0; oy < c->out_height; oy++, out += row) {
            const int32_t top = oy * c->stride_y;
            int32_t *tap = taps;
            for (next = SAMEBITS_MAX(next, top); next < top + c->rows; next++) {
                samebits_mve_band_row(c, x, next, columns, blocks, band);
            }
            for (p = 0; p < c->kernel_height; p++) {
                const int32_t from = (top + p * c->dilation_y) % c->rows * line;
                for (q = 0; q < c->kernel_width; q++) *tap++ = from + q * c->dilation_x * group;
            }
            f.x = band;
            f.out = out;
            f.stream = c->stream;
            f.left = group < 16 ? row : c->channels;
            f.blocks = blocks;
            if (c->doubled) {
                samebits_mve_depth_row_doubled(&f);
            } else {
                samebits_mve_depth_row(&f);
            }
        }
    }
}
#endif
