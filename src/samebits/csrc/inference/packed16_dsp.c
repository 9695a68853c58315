/* --- packed convolution: codes of 16 bits, DSP extension -----------------------------------------
 *
 * A word of weights holds those of two channels and two codes, a0 b0 a1 b1, so that SXTB16 leaves
 * the pair of the first channel and, with a rotation, that of the second: codes are taken as they
 * lie. Three pixels by two channels, or one by four, add to sums in memory, which the biases began;
 * of three pixels, the words lie one after the other.
 *
 * Requantization (codegen/lowering/high.py, `word_multipliers`): SMMUL is floor(acc * m0 / 2**32);
 * its sign and what rounds begin the upper word to which SMLAL adds acc * m1. */

#include "samebits_vector.h"

#ifdef SAMEBITS_PACKED_DSP
#define SAMEBITS_PACKED16
typedef struct {
    const void *x;
    int32_t loops;            /* 4: turns of the loop */
    int32_t *sums;            /* 8 */
    int32_t entry;            /* 12: where the first turn begins */
    const int32_t *end;       /* 16: of the sums */
    const int8_t *stream;     /* 20 */
    int32_t block;            /* 24: bytes from a block of weights to the next */
} samebits_dsp16_frame;

/* Three pixels by blocks of two channels; 10 instructions, 40 bytes, for two codes of each. */
SAMEBITS_NAKED samebits_dsp16_three(samebits_dsp16_frame *frame __attribute__((unused))) {
    __asm__("push {r0, r4-r11, lr}\n\t"
            "adr r1, 3f\n\t"
            "ldr r2, [r0, #12]\n\t"
            "add r1, r2\n\t"
            "str r1, [r0, #12]\n\t"
            "ldr r12, [r0, #20]\n"
            "2:\n\t"
            "ldr r9, [sp]\n\t"
            "ldrd r11, lr, [r9]\n\t"
            "ldrd r9, r10, [r9, #8]\n\t"
            "ldm r9, {r0-r5}\n\t"
            "bx r10\n\t"
            ".balign 4\n"
            "3:\n\t"
            ".rept 4\n\t"
            "ldr r9, [r12], #4\n\t"
            "ldm r11!, {r6, r7, r8}\n\t"
            "sxtb16 r10, r9\n\t"
            "sxtb16 r9, r9, ror #8\n\t"
            "smlad r0, r6, r10, r0\n\t"
            "smlad r1, r7, r10, r1\n\t"
            "smlad r2, r8, r10, r2\n\t"
            "smlad r3, r6, r9, r3\n\t"
            "smlad r4, r7, r9, r4\n\t"
            "smlad r5, r8, r9, r5\n\t"
            ".endr\n\t"
            "subs lr, #1\n\t"
            "bne 3b\n\t"
            "ldr r9, [sp]\n\t"
            "ldr r10, [r9, #8]\n\t"
            "ldr r11, [r9, #16]\n\t"
            "stm r10!, {r0-r5}\n\t"
            "str r10, [r9, #8]\n\t"
            "cmp r10, r11\n\t"
            "bne 2b\n\t"
            "pop {r0, r4-r11, pc}\n\t");
}

#define SAMEBITS_DSP16_BLOCK(w, u, v)                                                              \
    "ldrd r7, r8, [" w "], #8\n\t"                                                                 \
    "sxtb16 r4, r7\n\t"                                                                            \
    "sxtb16 r7, r7, ror #8\n\t"                                                                    \
    "smlad " u ", r5, r4, " u "\n\t"                                                               \
    "smlad " v ", r5, r7, " v "\n\t"                                                               \
    "sxtb16 r4, r8\n\t"                                                                            \
    "sxtb16 r8, r8, ror #8\n\t"                                                                    \
    "smlad " u ", r6, r4, " u "\n\t"                                                               \
    "smlad " v ", r6, r8, " v "\n\t"

/* One pixel by pairs of blocks; 20 instructions, 80 bytes, for four codes. */
SAMEBITS_NAKED samebits_dsp16_single(samebits_dsp16_frame *frame __attribute__((unused))) {
    __asm__("push {r4-r11, lr}\n\t"
            "mov lr, r0\n\t"
            "adr r1, 3f\n\t"
            "ldr r2, [lr, #12]\n\t"
            "add r1, r2\n\t"
            "str r1, [lr, #12]\n\t"
            "ldr r11, [lr, #20]\n"
            "2:\n\t"
            "ldr r0, [lr, #24]\n\t"
            "mov r10, r11\n\t"
            "add r11, r0\n\t"
            "ldrd r9, r12, [lr]\n\t"
            "ldrd r4, r5, [lr, #8]\n\t"
            "ldm r4, {r0-r3}\n\t"
            "bx r5\n\t"
            ".balign 4\n"
            "3:\n\t"
            ".rept 4\n\t"
            "ldr r5, [r9], #4\n\t"
            "ldr r6, [r9], #4\n\t" SAMEBITS_DSP16_BLOCK("r10", "r0", "r1")
                SAMEBITS_DSP16_BLOCK("r11", "r2", "r3")
            ".endr\n\t"
            "subs r12, #1\n\t"
            "bne 3b\n\t"
            "ldr r4, [lr, #8]\n\t"
            "ldr r5, [lr, #16]\n\t"
            "stm r4!, {r0-r3}\n\t"
            "str r4, [lr, #8]\n\t"
            "cmp r4, r5\n\t"
            "bne 2b\n\t"
            "pop {r4-r11, pc}\n\t");
}

/* Codes of n channels of `pixels` pixels, whose sums lie channel by channel, at out[start ..]. */
static void samebits_dsp16_end(const samebits_packed16 *c, const int32_t *sums, int32_t channel,
                               int32_t n, const int32_t pixels, void *out, int32_t start) {
    const int32_t pitch = c->window.out_channels;
    int32_t i, k, p, count, acc[SAMEBITS_CHUNK];
    if (c->fast) {
        const int32_t *m = (const int32_t *)c->rescale.multipliers + 2 * channel;
        const samebits_words w = samebits_words_of(&c->rescale);
        samebits_i16 *to = (samebits_i16 *)out + start;
        for (i = 0; i < n; i++, m += 2, sums += pixels, to++) {
            const int32_t m0 = m[0], m1 = m[1];
            to[0] = samebits_dsp_words(&w, sums[0], m0, m1);
            if (pixels == 3) {
                to[pitch] = samebits_dsp_words(&w, sums[1], m0, m1);
                to[2 * pitch] = samebits_dsp_words(&w, sums[2], m0, m1);
            }
        }
        return;
    }
    for (p = 0; p < pixels; p++, start += pitch) {
        for (i = 0; i < n; i += count) {
            count = SAMEBITS_MIN(n - i, SAMEBITS_CHUNK);
            for (k = 0; k < count; k++) acc[k] = sums[(i + k) * pixels + p];
            samebits_finish32(&c->rescale, channel + i, count, acc, out, start + i);
        }
    }
}

/* sums: scratch memory of three sums a channel, of whole blocks, then the words of three runs. */
static int32_t samebits_vector_dots16(const samebits_packed16 *c16, const samebits_packed *c,
                                      const int16_t *x, int32_t pixels, int32_t channel, void *out,
                                      int32_t start, int32_t *sums) {
    const int32_t codes = c->steps * c->step / 2, n = c->out_channels;
    const int32_t twos = (n + 1) & ~1, fours = (n + 3) & ~3, pitch = c16->window.out_channels;
    const int32_t *bias = c16->bias + channel;
    samebits_dsp16_frame f;
    int32_t i;
    if (!SAMEBITS_OWN(c->lanes == 2)) return 0;
    for (; pixels >= 3; pixels -= 3, x += 3 * codes, start += 3 * pitch) {
        uint32_t *words = (uint32_t *)sums + 3 * fours, *to = words;
        int32_t *sum = sums;
        for (i = 0; i < codes; i += 2, to += 3) {
            __builtin_memcpy(to, x + i, 4);
            __builtin_memcpy(to + 1, x + codes + i, 4);
            __builtin_memcpy(to + 2, x + 2 * codes + i, 4);
        }
        for (i = 0; i < n; i++, sum += 3) sum[0] = sum[1] = sum[2] = bias[i];
        f.x = words;
        f.loops = (codes / 2 + 3) / 4;
        f.sums = sums;
        f.entry = 40 * (codes / 2 % 4 ? 4 - codes / 2 % 4 : 0) + 1; /* + 1: Thumb */
        f.end = sums + 3 * twos;
        f.stream = (const int8_t *)c->stream;
        samebits_dsp16_three(&f);
        samebits_dsp16_end(c16, sums, channel, n, 3, out, start);
    }
    for (; pixels > 0; pixels--, x += codes, start += pitch) {
        const int32_t entry = 80 * (codes / 4 % 4 ? 4 - codes / 4 % 4 : 0) + 1;
        const int32_t whole = twos & ~3; /* channels of whole pairs of blocks */
        for (i = 0; i < n; i++) sums[i] = bias[i];
        f.x = x;
        f.loops = (codes / 4 + 3) / 4;
        f.sums = sums;
        f.stream = (const int8_t *)c->stream;
        f.block = 2 * codes;
        if (whole) {
            f.entry = entry;
            f.end = sums + whole;
            samebits_dsp16_single(&f);
        }
        if (whole != twos) { /* the last block twice */
            f.entry = entry;
            f.end = sums + fours;
            f.stream = (const int8_t *)c->stream + whole / 2 * 2 * codes;
            f.block = 0;
            samebits_dsp16_single(&f);
        }
        samebits_dsp16_end(c16, sums, channel, n, 1, out, start);
    }
    return 1;
}

/* Four channels of a pixel at a time. */
static int32_t samebits_vector_depth16(const samebits_packed16 *c16, const int8_t *band,
                                       const int32_t *taps, void *out, int32_t start) {
    const samebits_packed *c = &c16->window;
    const int32_t channels = c->out_channels, pixel = c->stride_x * c->channels;
    const int32_t *end = taps + c->steps;
    samebits_words w = {0, 0};
    int32_t o, ox;
    if (c16->fast) w = samebits_words_of(&c16->rescale);
    for (o = 0; o < channels; o += 4) {
        const int32_t *bias = c16->bias + o, *m = (const int32_t *)c16->rescale.multipliers + 2 * o;
        const int8_t *from = band + 2 * o;
        const int8_t *weights = (const int8_t *)c->stream + o / 8 * 8 * c->steps + o % 8;
        const int32_t some = SAMEBITS_MIN(channels - o, 4);
        int32_t to = start + o;
        for (ox = 0; ox < c->out_width; ox++, from += pixel, to += channels) {
            int32_t acc[4] = {0, 0, 0, 0}, i;
            const int32_t *tap = taps;
            const int8_t *at = weights;
            for (i = 0; i < some; i++) acc[i] = bias[i];
            for (; tap != end; tap++, at += 8) {
                const int8_t *here = from + *tap;
                uint32_t four;
                int32_t first, second, even, odd;
                __builtin_memcpy(&four, at, 4);
                __builtin_memcpy(&first, here, 4);
                __builtin_memcpy(&second, here + 4, 4);
                even = (int32_t)__sxtb16((int8x4_t)four);
                __asm__("sxtb16 %0, %1, ror #8" : "=r"(odd) : "r"(four));
                acc[0] = __smlabb(first, even, acc[0]);
                acc[1] = __smlatb(first, odd, acc[1]);
                acc[2] = __smlabt(second, even, acc[2]);
                acc[3] = __smlatt(second, odd, acc[3]);
            }
            if (c16->fast) {
                samebits_i16 *codes = (samebits_i16 *)out + to;
                for (i = 0; i < some; i++) {
                    codes[i] = samebits_dsp_words(&w, acc[i], m[2 * i], m[2 * i + 1]);
                }
            } else {
                samebits_finish32(&c16->rescale, o, some, acc, out, to);
            }
        }
    }
    return 1;
}
#endif
