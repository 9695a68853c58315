/* Sums of products of 8-bit codes: ROWS outputs with the same codes of x. In portable C, with the DSP
 * extension, and with Helium, whose loop (as a whole in the processor's language) takes all of a
 * window. */
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

#if defined(SAMEBITS_NAKED) && defined(__ARM_FEATURE_MVE) && defined(__ARMEL__)

typedef struct {
    const int8_t *x, *w;
    int32_t step, row; /* 8, 12: from the end of the vectors of a run */
    int32_t run, taps; /* 16, 20 */
    int32_t k;         /* 24 */
    int32_t *to, *end; /* 28, 32 */
} Vectors;

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

/* Sums of `outputs`, a multiple of ROWS. */
SAMEBITS_INLINE void window_sums(const Window *v, int32_t outputs, int32_t *sum) {
    const int32_t whole = (v->run + 15) / 16 * 16;
    Vectors f = {v->x, v->w, v->step - whole, v->row - whole, v->run, v->taps, v->k, sum,
                 sum + outputs};
    if (v->run && v->taps > 0)
        vector_sums(&f);
    else
        memset(sum, 0, (size_t)outputs * sizeof *sum);
}

#else
#if defined(__ARM_FEATURE_DSP) && defined(__ARMEL__) && defined(__GNUC__)
#include <arm_acle.h>

SAMEBITS_INLINE uint32_t word_at(const int8_t *from) {
    uint32_t v;
    SAMEBITS_COPY(&v, from, sizeof v);
    return v;
}

SAMEBITS_INLINE int32_t even_of(uint32_t v) { return (int32_t)__sxtb16((int8x4_t)v); }

SAMEBITS_INLINE int32_t odd_of(uint32_t v) {
    int32_t odd;
    __asm__("sxtb16 %0, %1, ror #8" : "=r"(odd) : "r"(v));
    return odd;
}

/* Adds the products of a run of n codes; rows of weights are k apart. */
SAMEBITS_INLINE void dots(const int8_t *x, const int8_t *w, int32_t k, int32_t n, int32_t *sum) {
    const int8_t *v = w + k, *p = v + k, *q = p + k, *end = x + n;
    int32_t a = sum[0], b = sum[1], c = sum[2], d = sum[3];
    for (; end - x >= 4; x += 4, w += 4, v += 4, p += 4, q += 4) {
        const uint32_t own = word_at(x);
        const int32_t even = even_of(own), odd = odd_of(own);
        uint32_t row = word_at(w);
        a = __smlad(odd, odd_of(row), __smlad(even, even_of(row), a)), row = word_at(v);
        b = __smlad(odd, odd_of(row), __smlad(even, even_of(row), b)), row = word_at(p);
        c = __smlad(odd, odd_of(row), __smlad(even, even_of(row), c)), row = word_at(q);
        d = __smlad(odd, odd_of(row), __smlad(even, even_of(row), d));
    }
    while (x < end) {
        const int32_t own = *x++;
        a += own * *w++, b += own * *v++, c += own * *p++, d += own * *q++;
    }
    sum[0] = a, sum[1] = b, sum[2] = c, sum[3] = d;
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
#endif

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
