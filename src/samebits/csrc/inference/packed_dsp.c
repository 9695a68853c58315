/* --- packed convolution: DSP extension ----------------------------------------------------------
 *
 * SMLAD adds two products of 16 bits to a sum of 32 bits that wraps. A halfword of the weights
 * holds those of two output channels, 256 * a + b. With x the codes,
 *
 *     u = sum x * (256 * a + b)    takes the halfwords as they are,
 *     v = sum x * b                takes them after SXTB16, which leaves their lower bytes,
 *
 * and (u - v) / 256 is the sum of the first channel: modulo 2**24, within which the lowering has
 * proved it to lie, but for long sums (samebits_dsp_long_three). So one SXTB16, not two, unpacks
 * four weights. A word holds the weights of codes 0 and 2, or 1 and 3, of four: that is how SXTB16
 * and its rotation split a word of four codes.
 *
 * Three pixels by two channels fill the registers: their codes are widened once, word by word for
 * the three pixels, and each word of weights is loaded once for all three. What is left over, and a
 * fully connected layer, takes one pixel by four channels, and widens codes on the way.
 *
 * Requantization (codegen/lowering/high.py): SMMLA is floor((acc * m + z * 2**32) / 2**32) with
 * z = zero * 2**shift + 2**(shift - 1), then a shift, then SSAT. Doubled (lowering/doubled.py),
 * SMMLAR is floor((2 * acc * m + (z - [acc < 0]) * 2**32) / 2**32 + 1 / 2), with z of each channel:
 * (2 * zero + 1) * 2**(right - 1); SSAT shifts by the last bit. That 2 * acc is had for nothing in
 * the first channel of a pair.
 *
 * The functions are written in the processor's language as a whole (naked), so that they are the
 * same at every level of optimisation; they use 40 bytes of stack that the compiler does not know.
 * (Armv7-M Architecture Reference Manual, DDI 0403, section A7.7.) */

#include "samebits_vector.h"

#if defined(SAMEBITS_PACKED_WORDS) && defined(__ARM_FEATURE_DSP)
#include <arm_acle.h>
#define SAMEBITS_PACKED_DSP
#ifdef SAMEBITS_LAYOUT_DSP
#define SAMEBITS_OWN(test) 1 /* the package has no other layout */
#else
#define SAMEBITS_OWN(test) (test)
#endif

#define SAMEBITS_DSP_CODE(sum, m, to)                                                              \
    "smmla " sum ", " sum ", " m ", r8\n\t"                                                        \
    "asr " sum ", " sum ", r10\n\t"                                                                \
    "ssat " sum ", #8, " sum "\n\t"                                                                \
    "strb " sum ", [" to "]\n\t"

#define SAMEBITS_DSP_DOUBLED(sum, m, z, shift, free, to)                                           \
    "add " free ", " z ", " sum ", asr #31\n\t"                                                    \
    "smmlar " sum ", " sum ", " m ", " free "\n\t"                                                 \
    "asr " sum ", " sum ", " shift "\n\t"                                                          \
    "ssat " sum ", #8, " sum ", asr #1\n\t"                                                        \
    "strb " sum ", [" to "]\n\t"

/* Codes of three pixels by two channels; r0 then is where the next go. */
#define SAMEBITS_DSP_THREE_HIGH                                                                    \
    "ldr r9, [sp]\n\t"                                                                             \
    "ldrd r6, r7, [r12], #8\n\t"                                                                   \
    "sub r0, r0, r3\n\t"                                                                           \
    "sub r1, r1, r4\n\t"                                                                           \
    "sub r2, r2, r5\n\t"                                                                           \
    "asr r0, r0, #8\n\t"                                                                           \
    "asr r1, r1, #8\n\t"                                                                           \
    "asr r2, r2, #8\n\t"                                                                           \
    "ldrd r8, r10, [r9, #16]\n\t"                                                                  \
    "ldr r11, [r9, #8]\n\t"                                                                        \
    "ldr lr, [r9, #24]\n\t" SAMEBITS_DSP_CODE("r0", "r6", "r11")                                   \
    SAMEBITS_DSP_CODE("r3", "r7", "r11, #1")                                                       \
    "add r0, r11, #2\n\t"                                                                          \
    "str r0, [r9, #8]\n\t"                                                                         \
    "add r11, lr\n\t" SAMEBITS_DSP_CODE("r1", "r6", "r11")                                         \
    SAMEBITS_DSP_CODE("r4", "r7", "r11, #1")                                                       \
    "add r11, lr\n\t" SAMEBITS_DSP_CODE("r2", "r6", "r11")                                         \
    SAMEBITS_DSP_CODE("r5", "r7", "r11, #1")
#define SAMEBITS_DSP_THREE_DOUBLED                                                                 \
    "ldr r9, [sp]\n\t"                                                                             \
    "ldr r11, [r9, #8]\n\t"                                                                        \
    "ldr lr, [r9, #24]\n\t"                                                                        \
    "sub r0, r0, r3\n\t"                                                                           \
    "sub r1, r1, r4\n\t"                                                                           \
    "sub r2, r2, r5\n\t"                                                                           \
    "asr r0, r0, #7\n\t"                                                                           \
    "asr r1, r1, #7\n\t"                                                                           \
    "asr r2, r2, #7\n\t"                                                                           \
    "lsl r3, r3, #1\n\t"                                                                           \
    "lsl r4, r4, #1\n\t"                                                                           \
    "lsl r5, r5, #1\n\t"                                                                           \
    "ldr r7, [r9, #16]\n\t"                                                                        \
    "ldrd r6, r8, [r12], #8\n\t"                                                                   \
    "lsl r7, r7, r8\n\t"                                                                           \
    SAMEBITS_DSP_DOUBLED("r0", "r6", "r7", "r8", "r10", "r11")                                     \
    SAMEBITS_DSP_DOUBLED("r1", "r6", "r7", "r8", "r10", "r11, lr")                                 \
    SAMEBITS_DSP_DOUBLED("r2", "r6", "r7", "r8", "r10", "r11, lr, lsl #1")                         \
    "add r11, r11, #1\n\t"                                                                         \
    "ldr r7, [r9, #16]\n\t"                                                                        \
    "ldrd r6, r8, [r12], #8\n\t"                                                                   \
    "lsl r7, r7, r8\n\t"                                                                           \
    SAMEBITS_DSP_DOUBLED("r3", "r6", "r7", "r8", "r10", "r11")                                     \
    SAMEBITS_DSP_DOUBLED("r4", "r6", "r7", "r8", "r10", "r11, lr")                                 \
    SAMEBITS_DSP_DOUBLED("r5", "r6", "r7", "r8", "r10", "r11, lr, lsl #1")                         \
    "add r0, r11, #1\n\t"                                                                          \
    "str r0, [r9, #8]\n\t"

/* Three pixels by blocks of two channels; 9 instructions, 36 bytes, for two codes of each. */
#define SAMEBITS_DSP_THREE(ENDS)                                                                   \
    "push {r0, r4-r11, lr}\n\t"                                                                    \
    "mov r9, r0\n\t"                                                                               \
    "adr r1, 3f\n\t"                                                                               \
    "ldr r2, [r9, #36]\n\t"                                                                        \
    "add r1, r2\n\t"                                                                               \
    "str r1, [r9, #36]\n\t"                                                                        \
    "ldr r12, [r9, #4]\n"                                                                          \
    "2:\n\t"                                                                                       \
    "ldrd r0, r3, [r12], #8\n\t"                                                                   \
    "ldr r11, [r9]\n\t"                                                                            \
    "ldrd lr, r10, [r9, #32]\n\t"                                                                  \
    "mov r1, r0\n\t"                                                                               \
    "mov r2, r0\n\t"                                                                               \
    "mov r4, r3\n\t"                                                                               \
    "mov r5, r3\n\t"                                                                               \
    "bx r10\n\t"                                                                                   \
    ".balign 4\n"                                                                                  \
    "3:\n\t"                                                                                       \
    ".rept 4\n\t"                                                                                  \
    "ldr r9, [r12], #4\n\t"                                                                        \
    "ldm r11!, {r6, r7, r8}\n\t"                                                                   \
    "sxtb16 r10, r9\n\t"                                                                           \
    "smlad r0, r6, r9, r0\n\t"                                                                     \
    "smlad r1, r7, r9, r1\n\t"                                                                     \
    "smlad r2, r8, r9, r2\n\t"                                                                     \
    "smlad r3, r6, r10, r3\n\t"                                                                    \
    "smlad r4, r7, r10, r4\n\t"                                                                    \
    "smlad r5, r8, r10, r5\n\t"                                                                    \
    ".endr\n\t"                                                                                    \
    "subs lr, #1\n\t"                                                                              \
    "bne 3b\n\t"                                                                                   \
    ENDS                                                                                           \
    "ldr r1, [r9, #12]\n\t"                                                                        \
    "cmp r0, r1\n\t"                                                                               \
    "bne 2b\n\t"                                                                                   \
    "pop {r0, r4-r11, pc}\n\t"

SAMEBITS_NAKED samebits_dsp_three(samebits_core_frame *frame __attribute__((unused))) {
    __asm__(SAMEBITS_DSP_THREE(SAMEBITS_DSP_THREE_HIGH));
}

SAMEBITS_NAKED samebits_dsp_three_doubled(samebits_core_frame *frame __attribute__((unused))) {
    __asm__(SAMEBITS_DSP_THREE(SAMEBITS_DSP_THREE_DOUBLED));
}

#define SAMEBITS_DSP_BLOCK(w, u, v)                                                                \
    "ldrd r6, r7, [" w "], #8\n\t"                                                                 \
    "sxtb16 r8, r6\n\t"                                                                          \
    "smlad " u ", r4, r6, " u "\n\t"                                                               \
    "smlad " v ", r4, r8, " v "\n\t"                                                               \
    "sxtb16 r8, r7\n\t"                                                                          \
    "smlad " u ", r5, r7, " u "\n\t"                                                               \
    "smlad " v ", r5, r8, " v "\n\t"

/* Codes of two blocks; then r9 is where they went, r11 the end, r10 the next block. */
#define SAMEBITS_DSP_SINGLE_HIGH                                                                   \
    "ldrd r4, r5, [r10]\n\t"                                                                       \
    "ldrd r6, r7, [r11], #8\n\t"                                                                   \
    "mov r12, r11\n\t"                                                                             \
    "sub r0, r0, r1\n\t"                                                                           \
    "sub r2, r2, r3\n\t"                                                                           \
    "asr r0, r0, #8\n\t"                                                                           \
    "asr r2, r2, #8\n\t"                                                                           \
    "ldrd r8, r10, [lr, #16]\n\t"                                                                  \
    "ldrd r9, r11, [lr, #8]\n\t" SAMEBITS_DSP_CODE("r0", "r4", "r9")                               \
    SAMEBITS_DSP_CODE("r1", "r5", "r9, #1") SAMEBITS_DSP_CODE("r2", "r6", "r9, #2")                \
    SAMEBITS_DSP_CODE("r3", "r7", "r9, #3")                                                        \
    "mov r10, r12\n\t"
#define SAMEBITS_DSP_SINGLE_DOUBLED                                                                \
    "sub r0, r0, r1\n\t"                                                                           \
    "sub r2, r2, r3\n\t"                                                                           \
    "asr r0, r0, #7\n\t"                                                                           \
    "asr r2, r2, #7\n\t"                                                                           \
    "lsl r1, r1, #1\n\t"                                                                           \
    "lsl r3, r3, #1\n\t"                                                                           \
    "ldr r8, [lr, #16]\n\t"                                                                        \
    "ldr r9, [lr, #8]\n\t"                                                                         \
    "ldm r10, {r4, r5, r6, r7}\n\t"                                                                \
    "lsl r12, r8, r5\n\t"                                                                          \
    SAMEBITS_DSP_DOUBLED("r0", "r4", "r12", "r5", "r12", "r9, #0")                                 \
    "lsl r12, r8, r7\n\t"                                                                          \
    SAMEBITS_DSP_DOUBLED("r1", "r6", "r12", "r7", "r12", "r9, #1")                                 \
    "ldm r11!, {r4, r5, r6, r7}\n\t"                                                               \
    "lsl r12, r8, r5\n\t"                                                                          \
    SAMEBITS_DSP_DOUBLED("r2", "r4", "r12", "r5", "r12", "r9, #2")                                 \
    "lsl r12, r8, r7\n\t"                                                                          \
    SAMEBITS_DSP_DOUBLED("r3", "r6", "r12", "r7", "r12", "r9, #3")                                 \
    "mov r10, r11\n\t"                                                                             \
    "ldr r11, [lr, #12]\n\t"

/* One pixel by pairs of blocks; 17 instructions, 68 bytes, for four codes. */
#define SAMEBITS_DSP_SINGLE(ENDS)                                                                  \
    "push {r0, r4-r11, lr}\n\t"                                                                    \
    "mov lr, r0\n\t"                                                                               \
    "adr r1, 3f\n\t"                                                                               \
    "ldr r2, [lr, #36]\n\t"                                                                        \
    "add r1, r2\n\t"                                                                               \
    "str r1, [lr, #36]\n\t"                                                                        \
    "ldr r10, [lr, #4]\n"                                                                          \
    "2:\n\t"                                                                                       \
    "ldr r11, [lr, #40]\n\t"                                                                       \
    "add r11, r10\n\t"                                                                             \
    "ldrd r0, r1, [r10], #8\n\t"                                                                   \
    "ldrd r2, r3, [r11], #8\n\t"                                                                   \
    "ldr r9, [lr]\n\t"                                                                             \
    "ldrd r12, r4, [lr, #32]\n\t"                                                                  \
    "bx r4\n\t"                                                                                    \
    ".balign 4\n"                                                                                  \
    "3:\n\t"                                                                                       \
    ".rept 4\n\t"                                                                                  \
    "ldr r5, [r9], #4\n\t"                                                                         \
    "sxtb16 r4, r5\n\t"                                                                            \
    "sxtb16 r5, r5, ror #8\n\t" SAMEBITS_DSP_BLOCK("r10", "r0", "r1")                              \
    SAMEBITS_DSP_BLOCK("r11", "r2", "r3")                                                          \
    ".endr\n\t"                                                                                    \
    "subs r12, #1\n\t"                                                                             \
    "bne 3b\n\t"                                                                                   \
    ENDS                                                                                           \
    "add r9, #4\n\t"                                                                               \
    "str r9, [lr, #8]\n\t"                                                                         \
    "cmp r9, r11\n\t"                                                                              \
    "bne 2b\n\t"                                                                                   \
    "pop {r0, r4-r11, pc}\n\t"

SAMEBITS_NAKED samebits_dsp_single(samebits_core_frame *frame __attribute__((unused))) {
    __asm__(SAMEBITS_DSP_SINGLE(SAMEBITS_DSP_SINGLE_HIGH));
}

SAMEBITS_NAKED samebits_dsp_single_doubled(samebits_core_frame *frame __attribute__((unused))) {
    __asm__(SAMEBITS_DSP_SINGLE(SAMEBITS_DSP_SINGLE_DOUBLED));
}

/* The codes of three runs as halfwords: for each four, a word of codes 0 and 2 of every run, then a
 * word of codes 1 and 3. */
static void samebits_dsp_widen(const int8_t *runs, int32_t codes, uint32_t *to) {
    int32_t p;
    for (p = 0; p < 3; p++, to++) {
        const int8_t *end = runs + codes;
        uint32_t *at = to;
        for (; runs != end; runs += 4, at += 6) {
            uint32_t four;
            __builtin_memcpy(&four, runs, 4);
            at[0] = (uint32_t)__sxtb16((int8x4_t)four);
            at[3] = (uint32_t)__sxtb16((int8x4_t)(four >> 8 | four << 24));
        }
    }
}

/* The code of a sum by the words that end those of a block, of which it is the i-th. */
SAMEBITS_INLINE int8_t samebits_core_code(const samebits_core_frame *f, int32_t acc,
                                          const int32_t *ends, const int32_t i,
                                          const int32_t doubled) {
    if (doubled) {
        int32_t z;
        acc = samebits_signed32(2 * (uint32_t)acc);
        __asm__("lsl %1, %3, %4\n\t"
                "add %1, %1, %0, asr #31\n\t"
                "smmlar %0, %0, %2, %1\n\t"
                "asr %0, %0, %4\n\t"
                "ssat %0, #8, %0, asr #1"
                : "+&r"(acc), "=&r"(z)
                : "r"(ends[2 * i]), "r"(f->rounding), "r"(ends[2 * i + 1]));
    } else {
        __asm__("smmla %0, %0, %1, %2\n\t"
                "asr %0, %0, %3\n\t"
                "ssat %0, #8, %0"
                : "+r"(acc)
                : "r"(ends[i]), "r"(f->rounding), "r"(f->shift));
    }
    return (int8_t)acc;
}

#endif
