/* Sums of products of 8-bit codes: ROWS outputs with the same codes of x. In portable C, and for
 * the DSP extension and Helium in the processor's language, as a whole (naked), so that the loops
 * are the same at every level of optimisation. */
#ifndef SAMEBITS_TRAIN_DOTS_H
#define SAMEBITS_TRAIN_DOTS_H

#include "samebits_bytes.h"
#include "train_scalars.h"

#define ROWS 4

/* Where a window meets weights: `taps` runs of `run` codes, `step` apart in x and `row` apart in w;
 * weights of the next output follow after k. */
typedef struct {
    const int8_t *x, *w;
    int32_t step, row, run, taps, k;
} Window;

SAMEBITS_INLINE int32_t dot8(const int8_t *x, const int8_t *w, int32_t n) {
    int32_t a = 0;
    for (; n >= 4; n -= 4, x += 4, w += 4)
        a += (int32_t)x[0] * w[0] + (int32_t)x[1] * w[1] + (int32_t)x[2] * w[2] +
             (int32_t)x[3] * w[3];
    for (; n; n--) a += (int32_t)*x++ * *w++;
    return a;
}

#if defined(SAMEBITS_NAKED) && defined(__ARM_FEATURE_DSP) && defined(__ARMEL__) && \
    defined(__ARM_FEATURE_UNALIGNED)
#define TRAIN_WINDOWS /* reads words of codes wherever they lie */

typedef struct {
    const int8_t *x, *w;
    int32_t step, row; /* 8, 12: from the end of a run */
    int32_t run, taps; /* 16, 20 */
    int32_t k;         /* 24 */
    int32_t *to, *end; /* 28, 32 */
    int32_t left;      /* 36: taps */
} Vectors;
#endif

#if defined(TRAIN_WINDOWS) && defined(__ARM_FEATURE_MVE)
#define TURN 16 /* codes */

/* Sixteen codes by four outputs in 10 instructions; the last turn may have fewer codes. */
SAMEBITS_NAKED vector_sums(Vectors *f __attribute__((unused))) {
    __asm__("push {r0, r4-r11, lr}\n"
            "2:\n\t"
            "ldr r12, [sp]\n\t"
            "ldrd r0, r1, [r12]\n\t"
            "ldrd r2, r9, [r12, #16]\n\t"
            "ldr r11, [r12, #24]\n\t"
            "movs r4, #0\n\t"
            "movs r6, #0\n\t"
            "mov r8, r4\n\t"
            "mov r10, r4\n\t"
            "add r3, r1, r11\n\t"
            "add r5, r3, r11\n\t"
            "add r7, r5, r11\n"
            "3:\n\t"
            "dlstp.8 lr, r2\n"
            "1:\n\t"
            "vldrb.8 q0, [r0], #16\n\t"
            "vldrb.8 q1, [r1], #16\n\t"
            "vldrb.8 q2, [r3], #16\n\t"
            "vmladava.s8 r4, q0, q1\n\t"
            "vldrb.8 q1, [r5], #16\n\t"
            "vmladava.s8 r6, q0, q2\n\t"
            "vldrb.8 q2, [r7], #16\n\t"
            "vmladava.s8 r8, q0, q1\n\t"
            "vmladava.s8 r10, q0, q2\n\t"
            "letp lr, 1b\n\t"
            "ldrd r11, lr, [r12, #8]\n\t"
            "add r0, r11\n\t"
            "add r1, lr\n\t"
            "add r3, lr\n\t"
            "add r5, lr\n\t"
            "add r7, lr\n\t"
            "subs r9, #1\n\t"
            "bne 3b\n\t"
            "ldrd r2, r3, [r12, #28]\n\t"
            "stm r2!, {r4, r6, r8, r10}\n\t"
            "str r2, [r12, #28]\n\t"
            "ldr r1, [r12, #4]\n\t"
            "ldr r11, [r12, #24]\n\t"
            "add r1, r1, r11, lsl #2\n\t"
            "str r1, [r12, #4]\n\t"
            "cmp r2, r3\n\t"
            "bne 2b\n\t"
            "pop {r0, r4-r11, pc}\n\t");
}

#elif defined(TRAIN_WINDOWS)
#define TURN 1

#define WINDOW_ROW(w, sum)                                                                         \
    "ldr r10, [" w "], #4\n\t"                                                                     \
    "sxtb16 r11, r10\n\t"                                                                         \
    "sxtb16 r10, r10, ror #8\n\t"                                                                 \
    "smlad " sum ", r8, r11, " sum "\n\t"                                                         \
    "smlad " sum ", r9, r10, " sum "\n\t"
#define WINDOW_CODE(w, sum)                                                                        \
    "ldrsb r10, [" w "], #1\n\t"                                                                  \
    "mla " sum ", r8, r10, " sum "\n\t"

/* Four codes by four outputs in 25 instructions, then one code in 11. */
SAMEBITS_NAKED vector_sums(Vectors *f __attribute__((unused))) {
    __asm__("push {r0, r4-r11, lr}\n"
            "2:\n\t"
            "ldr lr, [sp]\n\t"
            "ldrd r0, r1, [lr]\n\t"
            "ldrd r11, r10, [lr, #20]\n\t"
            "str r11, [lr, #36]\n\t"
            "add r2, r1, r10\n\t"
            "add r3, r2, r10\n\t"
            "add r12, r3, r10\n\t"
            "movs r4, #0\n\t"
            "movs r5, #0\n\t"
            "movs r6, #0\n\t"
            "movs r7, #0\n"
            "3:\n\t"
            "ldr lr, [lr, #16]\n\t"
            "subs lr, #4\n\t"
            "blt 5f\n"
            "4:\n\t"
            "ldr r8, [r0], #4\n\t"
            "sxtb16 r9, r8, ror #8\n\t"
            "sxtb16 r8, r8\n\t"
            WINDOW_ROW("r1", "r4") WINDOW_ROW("r2", "r5")
            WINDOW_ROW("r3", "r6") WINDOW_ROW("r12", "r7")
            "subs lr, #4\n\t"
            "bge 4b\n"
            "5:\n\t"
            "adds lr, #4\n\t"
            "beq 7f\n"
            "6:\n\t"
            "ldrsb r8, [r0], #1\n\t"
            WINDOW_CODE("r1", "r4") WINDOW_CODE("r2", "r5")
            WINDOW_CODE("r3", "r6") WINDOW_CODE("r12", "r7")
            "subs lr, #1\n\t"
            "bne 6b\n"
            "7:\n\t"
            "ldr lr, [sp]\n\t"
            "ldrd r8, r9, [lr, #8]\n\t"
            "add r0, r8\n\t"
            "add r1, r9\n\t"
            "add r2, r9\n\t"
            "add r3, r9\n\t"
            "add r12, r9\n\t"
            "ldr r8, [lr, #36]\n\t"
            "subs r8, #1\n\t"
            "str r8, [lr, #36]\n\t"
            "bne 3b\n\t"
            "ldrd r8, r9, [lr, #28]\n\t"
            "stm r8!, {r4, r5, r6, r7}\n\t"
            "str r8, [lr, #28]\n\t"
            "ldr r10, [lr, #24]\n\t"
            "ldr r11, [lr, #4]\n\t"
            "add r11, r11, r10, lsl #2\n\t"
            "str r11, [lr, #4]\n\t"
            "cmp r8, r9\n\t"
            "bne 2b\n\t"
            "pop {r0, r4-r11, pc}\n\t");
}
#endif

#ifdef TRAIN_WINDOWS
/* Sums of `outputs`, a multiple of ROWS. */
SAMEBITS_INLINE void window_sums(const Window *v, int32_t outputs, int32_t *sum) {
    const int32_t whole = (v->run + TURN - 1) / TURN * TURN;
    Vectors f = {v->x, v->w, v->step - whole, v->row - whole, v->run, v->taps, v->k, sum,
                 sum + outputs, 0};
    if (v->run && v->taps > 0)
        vector_sums(&f);
    else
        memset(sum, 0, (size_t)outputs * sizeof *sum);
}

#else

/* Adds the products of a run of n codes; rows of weights are k apart. */
SAMEBITS_INLINE void dots(const int8_t *x, const int8_t *w, int32_t k, int32_t n, int32_t *sum) {
    const int8_t *v = w + k, *p = v + k, *q = p + k, *end = x + n;
    int32_t a = sum[0], b = sum[1], c = sum[2], d = sum[3];
    while (x < end) {
        const int32_t own = *x++;
        a += own * *w++, b += own * *v++, c += own * *p++, d += own * *q++;
    }
    sum[0] = a, sum[1] = b, sum[2] = c, sum[3] = d;
}

/* Sums of `outputs`, a multiple of ROWS. */
SAMEBITS_INLINE void window_sums(const Window *v, int32_t outputs, int32_t *sum) {
    const int8_t *w = v->w;
    int32_t o, ky;
    for (o = 0; o < outputs; o += ROWS, w += ROWS * v->k) {
        for (ky = 0; ky < ROWS; ky++) sum[o + ky] = 0;
        for (ky = 0; ky < v->taps; ky++)
            dots(v->x + ky * v->step, w + ky * v->row, v->k, v->run, sum + o);
    }
}
#endif

#endif
