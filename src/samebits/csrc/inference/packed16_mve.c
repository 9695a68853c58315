/* --- packed convolution: codes of 16 bits, Helium ------------------------------------------------
 *
 * As packed_mve.c, two pixels by four channels, in steps of 8 codes; VLDRB widens weights. Sums go
 * to memory, four channels of a pixel after the other.
 *
 * Requantization (codegen/lowering/high.py, `word_multipliers`) of a vector: VMULH is
 * floor(acc * m / 2**32), the carry of the lower words the upper bit of VHADD, half their sum. */

#include "samebits_vector.h"

#ifdef SAMEBITS_PACKED_MVE
#define SAMEBITS_PACKED16
typedef struct {
    const int16_t *x0, *x1; /* of the two pixels */
    int32_t *to;            /* 8: the sums */
    int32_t entry;          /* 12: where the first turn begins */
    const int32_t *end;     /* 16: of the biases */
    const void *stream;     /* 20 */
    int32_t loops;          /* 24: turns of four steps */
    const int32_t *bias;    /* 28 */
} samebits_mve16_frame;

/* A pair of pixels by blocks of four channels; 14 instructions, 56 bytes, a step. */
SAMEBITS_NAKED samebits_mve16_pair(samebits_mve16_frame *frame __attribute__((unused))) {
    __asm__("push {r4-r11, lr}\n\t"
            "mov r9, r0\n\t"
            "adr r1, 3f\n\t"
            "ldr r3, [r9, #12]\n\t"
            "add r1, r3\n\t"
            "str r1, [r9, #12]\n\t"
            "ldr r5, [r9, #20]\n"
            "2:\n\t"
            "ldrd r7, r1, [r9, #24]\n\t"
            "ldr r11, [r9, #12]\n\t"
            "ldm r1, {r0, r2, r4, r6}\n\t"
            "ldm r1!, {r8, r10, r12, lr}\n\t"
            "str r1, [r9, #28]\n\t"
            "ldrd r1, r3, [r9]\n\t"
            "bx r11\n\t"
            ".balign 4\n"
            "3:\n\t"
            ".rept 4\n\t"
            "vldrh.16 q0, [r1], #16\n\t"
            "vldrb.s16 q2, [r5], #8\n\t"
            "vldrh.16 q1, [r3], #16\n\t"
            "vmladava.s16 r0, q0, q2\n\t"
            "vldrb.s16 q3, [r5], #8\n\t"
            "vmladava.s16 r8, q1, q2\n\t"
            "vldrb.s16 q2, [r5], #8\n\t"
            "vmladava.s16 r2, q0, q3\n\t"
            "vmladava.s16 r10, q1, q3\n\t"
            "vldrb.s16 q3, [r5], #8\n\t"
            "vmladava.s16 r4, q0, q2\n\t"
            "vmladava.s16 r12, q1, q2\n\t"
            "vmladava.s16 r6, q0, q3\n\t"
            "vmladava.s16 lr, q1, q3\n\t"
            ".endr\n\t"
            "subs r7, #1\n\t"
            "bne 3b\n\t"
            "ldr r1, [r9, #8]\n\t"
            "stm r1!, {r0, r2, r4, r6, r8, r10, r12, lr}\n\t"
            "str r1, [r9, #8]\n\t"
            "ldr r0, [r9, #28]\n\t"
            "ldr r3, [r9, #16]\n\t"
            "cmp r0, r3\n\t"
            "blo 2b\n\t"
            "pop {r4-r11, pc}\n\t");
}

/* One pixel by blocks of four channels; 9 instructions, 36 bytes, a step. */
SAMEBITS_NAKED samebits_mve16_single(samebits_mve16_frame *frame __attribute__((unused))) {
    __asm__("push {r4-r11, lr}\n\t"
            "mov r9, r0\n\t"
            "adr r1, 3f\n\t"
            "ldr r3, [r9, #12]\n\t"
            "add r1, r3\n\t"
            "str r1, [r9, #12]\n\t"
            "ldr r5, [r9, #20]\n"
            "2:\n\t"
            "ldrd r7, r1, [r9, #24]\n\t"
            "ldr r11, [r9, #12]\n\t"
            "ldm r1!, {r0, r2, r4, r6}\n\t"
            "str r1, [r9, #28]\n\t"
            "ldr r1, [r9]\n\t"
            "bx r11\n\t"
            ".balign 4\n"
            "3:\n\t"
            ".rept 4\n\t"
            "vldrh.16 q0, [r1], #16\n\t"
            "vldrb.s16 q1, [r5], #8\n\t"
            "vldrb.s16 q2, [r5], #8\n\t"
            "vmladava.s16 r0, q0, q1\n\t"
            "vldrb.s16 q3, [r5], #8\n\t"
            "vmladava.s16 r2, q0, q2\n\t"
            "vldrb.s16 q1, [r5], #8\n\t"
            "vmladava.s16 r4, q0, q3\n\t"
            "vmladava.s16 r6, q0, q1\n\t"
            ".endr\n\t"
            "subs r7, #1\n\t"
            "bne 3b\n\t"
            "ldr r1, [r9, #8]\n\t"
            "stm r1!, {r0, r2, r4, r6}\n\t"
            "str r1, [r9, #8]\n\t"
            "ldr r0, [r9, #28]\n\t"
            "ldr r3, [r9, #16]\n\t"
            "cmp r0, r3\n\t"
            "blo 2b\n\t"
            "pop {r4-r11, pc}\n\t");
}

/* Codes of n channels of 1 or 2 pixels at out[start ..]. */
SAMEBITS_INLINE void samebits_mve16_end(const samebits_packed16 *c, const int32_t *sums,
                                        int32_t channel, int32_t n, const int32_t pixels, void *out,
                                        int32_t start) {
    const int32_t pitch = c->window.out_channels;
    int32_t i, p;
    if (c->fast) {
        const int32_t shift = -c->rescale.shifts[0], zero = c->rescale.zero;
        const int32_t *m = (const int32_t *)c->rescale.multipliers + 2 * channel;
        int16_t *to = (int16_t *)out + start;
        for (i = n; i > 0; i -= 4, m += 8, to += 4, sums += 4 * pixels) {
            const mve_pred16_t some = vctp32q((uint32_t)i);
            const int32x4x2_t words = vld2q_s32(m);
            for (p = 0; p < pixels; p++) {
                const int32x4_t acc = vldrwq_s32(sums + 4 * p);
                const int32x4_t code =
                    samebits_mve_words(acc, words.val[0], words.val[1], shift, zero);
                const int16x8_t codes = vqmovnbq_s32(vreinterpretq_s16_s32(code), code);
                if (i >= 4) {
                    vstrhq_s32(to + p * pitch, vreinterpretq_s32_s16(codes));
                } else {
                    vstrhq_p_s32(to + p * pitch, vreinterpretq_s32_s16(codes), some);
                }
            }
        }
        return;
    }
    for (p = 0; p < pixels; p++, start += pitch) {
        for (i = 0; i < n; i += 4) {
            int32_t acc[4];
            vstrwq_s32(acc, vldrwq_s32(sums + (i * pixels + 4 * p)));
            samebits_finish32(&c->rescale, channel + i, SAMEBITS_MIN(n - i, 4), acc, out,
                              start + i);
        }
    }
}

/* sums: scratch memory of two sums a channel, of whole blocks. */
static int32_t samebits_vector_dots16(const samebits_packed16 *c16, const samebits_packed *c,
                                      const int16_t *x, int32_t pixels, int32_t channel, void *out,
                                      int32_t start, int32_t *sums) {
    const int32_t codes = c->steps * 8, n = c->out_channels, pitch = c16->window.out_channels;
    const int32_t turn = (4 - c->steps % 4) % 4;
    samebits_mve16_frame f;
    if (!SAMEBITS_OWN(c->lanes == 4)) return 0;
    f.loops = (c->steps + 3) / 4;
    f.stream = c->stream;
    for (; pixels > 1; pixels -= 2, x += 2 * codes, start += 2 * pitch) {
        f.x0 = x;
        f.x1 = x + codes;
        f.to = sums;
        f.bias = c16->bias + channel;
        f.end = f.bias + n;
        f.entry = 56 * turn + 1; /* + 1: Thumb */
        samebits_mve16_pair(&f);
        samebits_mve16_end(c16, sums, channel, n, 2, out, start);
    }
    if (pixels) {
        f.x0 = x;
        f.to = sums;
        f.bias = c16->bias + channel;
        f.end = f.bias + n;
        f.entry = 36 * turn + 1;
        samebits_mve16_single(&f);
        samebits_mve16_end(c16, sums, channel, n, 1, out, start);
    }
    return 1;
}

/* Eight channels of a pixel at a time; products of the even ones (VMULLB) and the odd ones. */
static int32_t samebits_vector_depth16(const samebits_packed16 *c16, const int8_t *band,
                                       const int32_t *taps, void *out, int32_t start) {
    const samebits_packed *c = &c16->window;
    const int32_t channels = c->out_channels, pixel = c->stride_x * c->channels;
    const int32_t *end = taps + c->steps, *bias = c16->bias;
    const int32_t *m = (const int32_t *)c16->rescale.multipliers;
    const int32_t shift = c16->fast ? -c16->rescale.shifts[0] : 0, zero = c16->rescale.zero;
    const int8_t *weights = (const int8_t *)c->stream;
    int32_t o, ox;
    if (!c16->fast) return 0;
    for (o = 0; o < channels; o += 8, bias += 8, m += 16, weights += 8 * c->steps) {
        const mve_pred16_t some = vctp16q((uint32_t)(channels - o));
        const int8_t *from = band + 2 * o;
        int16_t *to = (int16_t *)out + start + o;
        const int32x4x2_t begin = vld2q_s32(bias);
        for (ox = 0; ox < c->out_width; ox++, from += pixel, to += channels) {
            const int32x4x4_t words = vld4q_s32(m);
            int32x4_t even = begin.val[0], odd = begin.val[1];
            const int32_t *tap = taps;
            const int8_t *at = weights;
            int16x8_t codes = vdupq_n_s16(0);
            for (; tap != end; tap++, at += 8) { /* behind the last channel lies slack */
                const int16x8_t x = vldrhq_s16((const int16_t *)(const void *)(from + *tap));
                const int16x8_t w = vldrbq_s16(at);
                even = vaddq_s32(even, vmullbq_int_s16(x, w));
                odd = vaddq_s32(odd, vmulltq_int_s16(x, w));
            }
            even = samebits_mve_words(even, words.val[0], words.val[1], shift, zero);
            odd = samebits_mve_words(odd, words.val[2], words.val[3], shift, zero);
            codes = vqmovntq_s32(vqmovnbq_s32(codes, even), odd);
            vstrhq_p_s16(to, codes, some);
        }
    }
    return 1;
}
#endif
