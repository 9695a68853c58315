/* --- packed convolution: Helium ------------------------------------------------------------------
 *
 * Two pixels by four channels: eight sums fill the registers that VMLADAVA can add to (the even
 * ones), so that a step of 16 codes takes 6 loads and 8 instructions of 16 products. One stream
 * brings biases, weights and multipliers in the order in which they are used. Loops are unrolled
 * fourfold and entered in the middle where the steps are no multiple of four.
 *
 * Requantization (codegen/lowering/high.py): VQDMULH is floor(2 * acc * m / 2**32), and saturates
 * for no m of 31 bits; VRSHL by a negative number divides by a power of two, rounded half up.
 * Doubled (codegen/lowering/doubled.py), VQRDMULH rounds half up, VQDMLAH by 1 takes 1 from what is
 * negative (it adds floor(2 * x / 2**32)), so that VRSHL by a vector rounds half away from 0.
 *
 * The functions are written in the processor's language as a whole (naked), so that they need no
 * registers of the compiler's and are the same at every level of optimisation. They keep what they
 * must restore in their frame, which lies on the stack of the caller: its size is then known to
 * the compiler. Labels that ADR takes are aligned to words, from which it counts. (Arm v8-M
 * Architecture Reference Manual, DDI 0553, chapter C2.) */

#include "samebits_vector.h"

#if defined(__ARM_FEATURE_MVE) && defined(__GNUC__) && defined(__ARMEL__)
#include <arm_mve.h>
#define SAMEBITS_PACKED_MVE
#ifdef SAMEBITS_LAYOUT_HELIUM
#define SAMEBITS_OWN(test) 1 /* the package has no other layout */
#else
#define SAMEBITS_OWN(test) (test)
#endif
typedef struct {
    int32_t saved[9];
    const int8_t *x0, *x1;          /* 36, 40: codes of the two pixels */
    int8_t *out0, *out1, *end;      /* 44, 48, 52: end of the first pixel's outputs */
    const int32_t *stream;          /* 56 */
    int32_t loops, entry;           /* 60, 64: turns of four steps, where the first begins */
    int32_t shift, zero, low, high; /* 68, 72, 76, 80 */
    int32_t rest, channels, whole;  /* 84, 88, 92: bytes to the next pair, of a pixel, written */
    int32_t next, pairs;            /* 96, 100 */
    int32_t vectors[8];             /* 104 */
} samebits_mve_frame;

#define SAMEBITS_MVE_ENTER                                                                         \
    "stm r0, {r4-r11, lr}\n\t"                                                                     \
    "mov r9, r0\n\t"                                                                               \
    "add r1, r0, #104\n\t"                                                                         \
    "vstmia r1, {d8-d11}\n\t"                                                                      \
    "ldrd r1, r3, [r9, #76]\n\t"                                                                   \
    "vdup.32 q4, r1\n\t"                                                                           \
    "vdup.32 q5, r3\n\t"                                                                           \
    "adr r1, 3f\n\t"                                                                               \
    "ldr r3, [r9, #64]\n\t"                                                                        \
    "add r1, r3\n\t"                                                                               \
    "str r1, [r9, #64]\n"

#define SAMEBITS_MVE_LEAVE                                                                         \
    "add r1, r9, #104\n\t"                                                                         \
    "vldmia r1, {d8-d11}\n\t"                                                                      \
    "ldm r9, {r4-r11, pc}\n\t"

/* Sums of four channels, of one or two pixels, by the multipliers in q2; r11, r7: `shift`. */
#define SAMEBITS_MVE_HIGH                                                                          \
    "vqdmulh.s32 q0, q0, q2\n\t"                                                                   \
    "vrshl.s32 q0, r11\n\t"
#define SAMEBITS_MVE_HIGH_TWO                                                                      \
    "vqdmulh.s32 q0, q0, q2\n\t"                                                                   \
    "vqdmulh.s32 q1, q1, q2\n\t"                                                                   \
    "vrshl.s32 q0, r7\n\t"                                                                         \
    "vrshl.s32 q1, r7\n\t"
#define SAMEBITS_MVE_DOUBLED                                                                       \
    "vqrdmulh.s32 q0, q0, q2\n\t"                                                                  \
    "vldrw.32 q2, [r5], #16\n\t"                                                                   \
    "vqdmlah.s32 q0, q0, r11\n\t"                                                                  \
    "vrshl.s32 q0, q0, q2\n\t"
#define SAMEBITS_MVE_DOUBLED_TWO                                                                   \
    "vqrdmulh.s32 q0, q0, q2\n\t"                                                                  \
    "vqrdmulh.s32 q1, q1, q2\n\t"                                                                  \
    "vldrw.32 q2, [r5], #16\n\t"                                                                   \
    "vqdmlah.s32 q0, q0, r7\n\t"                                                                   \
    "vqdmlah.s32 q1, q1, r7\n\t"                                                                   \
    "vrshl.s32 q0, q0, q2\n\t"                                                                     \
    "vrshl.s32 q1, q1, q2\n\t"

/* Pairs of pixels by blocks of four channels; 14 instructions, 56 bytes, a step. */
#define SAMEBITS_MVE_PAIRS(ROUND)                                                                  \
    SAMEBITS_MVE_ENTER                                                                             \
    "1:\n\t"                                                                                       \
    "ldr r5, [r9, #56]\n"                                                                          \
    "2:\n\t"                                                                                       \
    "ldm r5, {r0, r2, r4, r6}\n\t"                                                                 \
    "ldm r5!, {r8, r10, r12, lr}\n\t"                                                              \
    "ldrd r1, r3, [r9, #36]\n\t"                                                                   \
    "ldrd r7, r11, [r9, #60]\n\t"                                                                  \
    "bx r11\n\t"                                                                                   \
    ".balign 4\n"                                                                                  \
    "3:\n\t"                                                                                       \
    ".rept 4\n\t"                                                                                  \
    "vldrb.8 q0, [r1], #16\n\t"                                                                    \
    "vldrb.8 q2, [r5], #16\n\t"                                                                    \
    "vldrb.8 q1, [r3], #16\n\t"                                                                    \
    "vmladava.s8 r0, q0, q2\n\t"                                                                   \
    "vldrb.8 q3, [r5], #16\n\t"                                                                    \
    "vmladava.s8 r8, q1, q2\n\t"                                                                   \
    "vldrb.8 q2, [r5], #16\n\t"                                                                    \
    "vmladava.s8 r2, q0, q3\n\t"                                                                   \
    "vmladava.s8 r10, q1, q3\n\t"                                                                  \
    "vldrb.8 q3, [r5], #16\n\t"                                                                    \
    "vmladava.s8 r4, q0, q2\n\t"                                                                   \
    "vmladava.s8 r12, q1, q2\n\t"                                                                  \
    "vmladava.s8 r6, q0, q3\n\t"                                                                   \
    "vmladava.s8 lr, q1, q3\n\t"                                                                   \
    ".endr\n\t"                                                                                    \
    "subs r7, #1\n\t"                                                                              \
    "bne 3b\n\t"                                                                                   \
    "vmov q0[2], q0[0], r0, r4\n\t"                                                                \
    "vldrw.32 q2, [r5], #16\n\t"                                                                   \
    "vmov q0[3], q0[1], r2, r6\n\t"                                                                \
    "ldrd r7, r11, [r9, #68]\n\t"                                                                  \
    "vmov q1[2], q1[0], r8, r12\n\t"                                                               \
    "vmov q1[3], q1[1], r10, lr\n\t"                                                               \
    ROUND                                                                                          \
    "vadd.i32 q0, q0, r11\n\t"                                                                     \
    "ldrd r1, r3, [r9, #44]\n\t"                                                                   \
    "vadd.i32 q1, q1, r11\n\t"                                                                     \
    "vmax.s32 q0, q0, q4\n\t"                                                                      \
    "ldr r0, [r9, #52]\n\t"                                                                        \
    "vmax.s32 q1, q1, q4\n\t"                                                                      \
    "vmin.s32 q0, q0, q5\n\t"                                                                      \
    "vmin.s32 q1, q1, q5\n\t"                                                                      \
    "vstrb.32 q0, [r1], #4\n\t"                                                                    \
    "cmp r1, r0\n\t"                                                                               \
    "vstrb.32 q1, [r3], #4\n\t"                                                                    \
    "strd r1, r3, [r9, #44]\n\t"                                                                   \
    "bne 2b\n\t"                                                                                   \
    "ldrd r0, r2, [r9, #84]\n\t"                                                                   \
    "ldr r4, [r9, #92]\n\t"                                                                        \
    "add r1, r0\n\t"                                                                               \
    "add r3, r1, r2\n\t"                                                                           \
    "add r4, r1\n\t"                                                                               \
    "strd r1, r3, [r9, #44]\n\t"                                                                   \
    "str r4, [r9, #52]\n\t"                                                                        \
    "ldrd r1, r3, [r9, #36]\n\t"                                                                   \
    "ldrd r0, r2, [r9, #96]\n\t"                                                                   \
    "add r1, r0\n\t"                                                                               \
    "add r3, r0\n\t"                                                                               \
    "strd r1, r3, [r9, #36]\n\t"                                                                   \
    "subs r2, #1\n\t"                                                                              \
    "str r2, [r9, #100]\n\t"                                                                       \
    "bne 1b\n\t" SAMEBITS_MVE_LEAVE

/* One pixel by blocks of four channels; 9 instructions, 36 bytes, a step. */
#define SAMEBITS_MVE_SINGLE(ROUND)                                                                 \
    SAMEBITS_MVE_ENTER                                                                             \
    "ldr r5, [r9, #56]\n\t"                                                                        \
    "ldrd r8, r10, [r9, #60]\n\t"                                                                  \
    "ldrd r11, r12, [r9, #68]\n"                                                                   \
    "2:\n\t"                                                                                       \
    "ldm r5!, {r0, r2, r4, r6}\n\t"                                                                \
    "ldr r1, [r9, #36]\n\t"                                                                        \
    "mov r7, r8\n\t"                                                                               \
    "bx r10\n\t"                                                                                   \
    ".balign 4\n"                                                                                  \
    "3:\n\t"                                                                                       \
    ".rept 4\n\t"                                                                                  \
    "vldrb.8 q0, [r1], #16\n\t"                                                                    \
    "vldrb.8 q1, [r5], #16\n\t"                                                                    \
    "vldrb.8 q2, [r5], #16\n\t"                                                                    \
    "vmladava.s8 r0, q0, q1\n\t"                                                                   \
    "vldrb.8 q3, [r5], #16\n\t"                                                                    \
    "vmladava.s8 r2, q0, q2\n\t"                                                                   \
    "vldrb.8 q1, [r5], #16\n\t"                                                                    \
    "vmladava.s8 r4, q0, q3\n\t"                                                                   \
    "vmladava.s8 r6, q0, q1\n\t"                                                                   \
    ".endr\n\t"                                                                                    \
    "subs r7, #1\n\t"                                                                              \
    "bne 3b\n\t"                                                                                   \
    "vmov q0[2], q0[0], r0, r4\n\t"                                                                \
    "vldrw.32 q2, [r5], #16\n\t"                                                                   \
    "vmov q0[3], q0[1], r2, r6\n\t"                                                                \
    "ldrd r1, r3, [r9, #44]\n\t"                                                                   \
    ROUND                                                                                          \
    "ldr r0, [r9, #52]\n\t"                                                                        \
    "vadd.i32 q0, q0, r12\n\t"                                                                     \
    "vmax.s32 q0, q0, q4\n\t"                                                                      \
    "vmin.s32 q0, q0, q5\n\t"                                                                      \
    "vstrb.32 q0, [r1], #4\n\t"                                                                    \
    "str r1, [r9, #44]\n\t"                                                                        \
    "cmp r1, r0\n\t"                                                                               \
    "bne 2b\n\t" SAMEBITS_MVE_LEAVE

SAMEBITS_NAKED samebits_mve_pairs(samebits_mve_frame *frame __attribute__((unused))) {
    __asm__(SAMEBITS_MVE_PAIRS(SAMEBITS_MVE_HIGH_TWO));
}

SAMEBITS_NAKED samebits_mve_pairs_doubled(samebits_mve_frame *frame __attribute__((unused))) {
    __asm__(SAMEBITS_MVE_PAIRS(SAMEBITS_MVE_DOUBLED_TWO));
}

SAMEBITS_NAKED samebits_mve_single(samebits_mve_frame *frame __attribute__((unused))) {
    __asm__(SAMEBITS_MVE_SINGLE(SAMEBITS_MVE_HIGH));
}

SAMEBITS_NAKED samebits_mve_single_doubled(samebits_mve_frame *frame __attribute__((unused))) {
    __asm__(SAMEBITS_MVE_SINGLE(SAMEBITS_MVE_DOUBLED));
}

/* Channels from `first` on of `pixels` pixels, to lines of `pitch` bytes; whole blocks. */
static void samebits_mve_blocks(const samebits_packed *c, const int8_t *x, int32_t pixels,
                                int32_t first, int32_t channels, int8_t *out, int32_t pitch) {
    const int32_t codes = 16 * c->steps, start = (4 - c->steps % 4) % 4;
    const int32_t pairs = pixels / 2;
    samebits_mve_frame f;
    f.stream = c->stream + first / 4 * (codes + (c->doubled ? 12 : 8));
    f.loops = (c->steps + 3) / 4;
    f.shift = c->doubled ? 1 : -c->shift;
    f.zero = c->zero;
    f.low = c->low;
    f.high = c->high;
    f.channels = pitch;
    f.whole = channels;
    f.rest = 2 * pitch - channels;
    f.next = 2 * codes;
    if (pairs) {
        f.x0 = x;
        f.x1 = x + codes;
        f.out0 = out;
        f.out1 = out + pitch;
        f.end = out + channels;
        f.pairs = pairs;
        f.entry = 56 * start + 1; /* + 1: Thumb */
        if (c->doubled) {
            samebits_mve_pairs_doubled(&f);
        } else {
            samebits_mve_pairs(&f);
        }
    }
    if (pixels % 2) {
        f.x0 = x + 2 * pairs * codes;
        f.out0 = out + 2 * pairs * pitch;
        f.end = f.out0 + channels;
        f.entry = 36 * start + 1;
        if (c->doubled) {
            samebits_mve_single_doubled(&f);
        } else {
            samebits_mve_single(&f);
        }
    }
}

static int32_t samebits_vector_dots(const samebits_packed *c, const int8_t *x, int32_t pixels,
                                    int8_t *out, int32_t pitch, void *wide) {
    const int32_t whole = c->out_channels & ~3, rest = c->out_channels - whole;
    int32_t p, i;
    (void)wide;
    if (!SAMEBITS_OWN(c->lanes == 4 && c->step == 16)) return 0;
    if (whole) samebits_mve_blocks(c, x, pixels, 0, whole, out, pitch);
    for (p = 0; rest && p < pixels; p++) {
        int8_t codes[4];
        samebits_mve_blocks(c, x + p * 16 * c->steps, 1, whole, 4, codes, 4);
        for (i = 0; i < rest; i++) out[p * pitch + whole + i] = codes[i];
    }
    return 1;
}

/* 16 bytes at a time, the last with those lanes only that there are. */
static void samebits_set(int8_t *to, int8_t code, int32_t n) {
    __asm__ volatile("vdup.8 q0, %[code]\n\t"
                     "wlstp.8 lr, %[n], 2f\n"
                     "1:\n\t"
                     "vstrb.8 q0, [%[to]], #16\n\t"
                     "letp lr, 1b\n"
                     "2:\n\t"
                     : [to] "+r"(to)
                     : [n] "r"(n), [code] "r"(code)
                     : "lr", "q0", "memory");
}

SAMEBITS_INLINE void samebits_move_bytes(int8_t *to, const int8_t *from, int32_t n) {
    __asm__ volatile("wlstp.8 lr, %[n], 2f\n"
                     "1:\n\t"
                     "vldrb.8 q0, [%[from]], #16\n\t"
                     "vstrb.8 q0, [%[to]], #16\n\t"
                     "letp lr, 1b\n"
                     "2:\n\t"
                     : [to] "+r"(to), [from] "+r"(from)
                     : [n] "r"(n)
                     : "lr", "q0", "memory");
}
#endif
