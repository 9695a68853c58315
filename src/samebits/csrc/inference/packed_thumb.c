/* --- packed convolution: Armv7-M and later ------------------------------------------------------
 *
 * Words are copied at any address. Without the DSP extension (Cortex-M3), one code of two pixels
 * meets one weight of four channels: 6 loads and 8 MLA. What is left over, and a fully connected
 * layer, takes one pixel by four channels.
 *
 * Requantization (codegen/lowering/high.py): the upper word of SMULL, plus zero * 2**shift +
 * 2**(shift - 1), a shift, then SSAT. Doubled (lowering/doubled.py), the upper word of 2 * acc * m
 * rounds by the first bit of the lower; added are its sign and (2 * zero + 1) * 2**(right - 1) of
 * each channel; SSAT shifts by the last bit.
 *
 * The functions are written in the processor's language as a whole (naked), so that they are the
 * same at every level of optimisation; they use 44 bytes of stack that the compiler does not know.
 * (Armv7-M Architecture Reference Manual, DDI 0403, section A7.7.) */

#include "samebits_vector.h"

#if defined(__ARM_ARCH_PROFILE) && __ARM_ARCH_PROFILE == 'M' && defined(__thumb2__) &&             \
    defined(__ARM_FEATURE_SAT) && defined(__GNUC__) && defined(__ARMEL__) &&                       \
    !defined(SAMEBITS_PACKED_MVE)
#define SAMEBITS_PACKED_WORDS
static void samebits_set(int8_t *to, int8_t code, int32_t n) {
    const uint32_t four = 0x01010101u * (uint8_t)code;
    for (; n >= 4; n -= 4, to += 4) __builtin_memcpy(to, &four, 4);
    for (; n > 0; n--) *to++ = code;
}

SAMEBITS_INLINE void samebits_move_bytes(int8_t *to, const int8_t *from, int32_t n) {
    for (; n >= 16; n -= 16, to += 16, from += 16) {
        uint32_t a, b, c, d;
        __builtin_memcpy(&a, from, 4);
        __builtin_memcpy(&b, from + 4, 4);
        __builtin_memcpy(&c, from + 8, 4);
        __builtin_memcpy(&d, from + 12, 4);
        __builtin_memcpy(to, &a, 4);
        __builtin_memcpy(to + 4, &b, 4);
        __builtin_memcpy(to + 8, &c, 4);
        __builtin_memcpy(to + 12, &d, 4);
    }
    for (; n >= 4; n -= 4, to += 4, from += 4) {
        uint32_t four;
        __builtin_memcpy(&four, from, 4);
        __builtin_memcpy(to, &four, 4);
    }
    for (; n > 0; n--) *to++ = *from++;
}

typedef struct {
    const void *x;
    const int32_t *stream;
    int8_t *out, *end;        /* 8, 12: of the first pixel */
    int32_t rounding, shift;  /* 16, 20: doubled, 2 * zero + 1 */
    int32_t channels, codes;  /* 24, 28: bytes from a pixel's outputs to the next's, of a run */
    int32_t loops, entry;     /* 32, 36: turns of the loop, where the first begins */
    int32_t block;            /* 40: bytes of a block of weights */
} samebits_core_frame;

static void samebits_core_start(const samebits_packed *c, samebits_core_frame *f) {
    f->rounding = c->doubled ? 2 * c->zero + 1
                             : (int32_t)((uint32_t)c->zero << c->shift) +
                                   (int32_t)((uint32_t)1 << (c->shift - 1));
    f->shift = c->shift;
}

/* Bytes from the first code of a pixel's window to that of each tap. */
static void samebits_core_taps(const samebits_packed *c, int32_t top, int32_t line,
                               int32_t *taps) {
    const int32_t next = c->dilation_x * c->channels;
    int32_t at = 0, p, q;
    for (p = 0; p < c->kernel_height; p++) {
        const int32_t row = (top + p * c->dilation_y) % c->rows * line;
        for (q = 0; q < c->kernel_width; q++) taps[at++] = row + q * next;
    }
}
#endif

#if defined(SAMEBITS_PACKED_WORDS) && !defined(__ARM_FEATURE_DSP)
#define SAMEBITS_PACKED_THUMB
#ifdef SAMEBITS_LAYOUT_PLAIN
#define SAMEBITS_OWN(test) 1 /* the package has no other layout */
#else
#define SAMEBITS_OWN(test) (test)
#endif
#define SAMEBITS_THUMB_LANE(at, a, b)                                                              \
    "ldrsb r8, [lr, #" at "]\n\t"                                                                  \
    "mla " a ", r9, r8, " a "\n\t"                                                                 \
    "mla " b ", r10, r8, " b "\n\t"
#define SAMEBITS_THUMB_TAP(t0, t1, t2, t3)                                                         \
    "ldrsb r10, [r11, r12]\n\t"                                                                    \
    "ldrsb r9, [r11], #1\n\t" SAMEBITS_THUMB_LANE(t0, "r0", "r4")                                  \
        SAMEBITS_THUMB_LANE(t1, "r1", "r5") SAMEBITS_THUMB_LANE(t2, "r2", "r6")                    \
            SAMEBITS_THUMB_LANE(t3, "r3", "r7")
#define SAMEBITS_THUMB_UPPER(a, b)                                                                 \
    "ldr r8, [lr], #4\n\t"                                                                         \
    "smull r10, " a ", " a ", r8\n\t"                                                              \
    "smull r10, " b ", " b ", r8\n\t"
#define SAMEBITS_THUMB_CODE(sum, to)                                                               \
    "add " sum ", " sum ", r11\n\t"                                                                \
    "asr " sum ", " sum ", r12\n\t"                                                                \
    "ssat " sum ", #8, " sum "\n\t"                                                                \
    "strb " sum ", [" to "]\n\t"

#define SAMEBITS_THUMB_DOUBLED(sum, m, z, shift, free)                                             \
    "lsl " sum ", " sum ", #1\n\t"                                                                 \
    "smull " free ", " sum ", " sum ", " m "\n\t"                                                  \
    "add " sum ", " sum ", " free ", lsr #31\n\t"                                                  \
    "add " sum ", " sum ", " sum ", asr #31\n\t"                                                   \
    "add " sum ", " sum ", " z "\n\t"                                                              \
    "asr " sum ", " sum ", " shift "\n\t"                                                          \
    "ssat " sum ", #8, " sum ", asr #1\n\t"

/* Codes of two pixels by four channels; then r9 is where the first's went, r10 the end. */
#define SAMEBITS_THUMB_TWO_HIGH                                                                    \
    SAMEBITS_THUMB_UPPER("r0", "r4") SAMEBITS_THUMB_UPPER("r1", "r5")                              \
    SAMEBITS_THUMB_UPPER("r2", "r6") SAMEBITS_THUMB_UPPER("r3", "r7")                              \
    "ldr r8, [sp]\n\t"                                                                             \
    "ldrd r11, r12, [r8, #16]\n\t"                                                                 \
    "ldrd r9, r10, [r8, #8]\n\t" SAMEBITS_THUMB_CODE("r0", "r9")                                   \
    SAMEBITS_THUMB_CODE("r1", "r9, #1") SAMEBITS_THUMB_CODE("r2", "r9, #2")                        \
    SAMEBITS_THUMB_CODE("r3", "r9, #3")                                                            \
    "ldr r0, [r8, #24]\n\t"                                                                        \
    "add r0, r9\n\t" SAMEBITS_THUMB_CODE("r4", "r0") SAMEBITS_THUMB_CODE("r5", "r0, #1")           \
    SAMEBITS_THUMB_CODE("r6", "r0, #2") SAMEBITS_THUMB_CODE("r7", "r0, #3")
#define SAMEBITS_THUMB_TWO_DOUBLED                                                                 \
    "ldr r8, [sp]\n\t"                                                                             \
    "ldr r12, [r8, #16]\n\t"                                                                       \
    "ldrd r9, r10, [lr], #8\n\t"                                                                   \
    "lsl r11, r12, r10\n\t"                                                                        \
    SAMEBITS_THUMB_DOUBLED("r0", "r9", "r11", "r10", "r8")                                         \
    SAMEBITS_THUMB_DOUBLED("r4", "r9", "r11", "r10", "r8")                                         \
    "ldrd r9, r10, [lr], #8\n\t"                                                                   \
    "lsl r11, r12, r10\n\t"                                                                        \
    SAMEBITS_THUMB_DOUBLED("r1", "r9", "r11", "r10", "r8")                                         \
    SAMEBITS_THUMB_DOUBLED("r5", "r9", "r11", "r10", "r8")                                         \
    "ldrd r9, r10, [lr], #8\n\t"                                                                   \
    "lsl r11, r12, r10\n\t"                                                                        \
    SAMEBITS_THUMB_DOUBLED("r2", "r9", "r11", "r10", "r8")                                         \
    SAMEBITS_THUMB_DOUBLED("r6", "r9", "r11", "r10", "r8")                                         \
    "ldrd r9, r10, [lr], #8\n\t"                                                                   \
    "lsl r11, r12, r10\n\t"                                                                        \
    SAMEBITS_THUMB_DOUBLED("r3", "r9", "r11", "r10", "r8")                                         \
    SAMEBITS_THUMB_DOUBLED("r7", "r9", "r11", "r10", "r8")                                         \
    "ldr r8, [sp]\n\t"                                                                             \
    "ldrd r9, r10, [r8, #8]\n\t"                                                                   \
    "strb r0, [r9]\n\t"                                                                            \
    "strb r1, [r9, #1]\n\t"                                                                        \
    "strb r2, [r9, #2]\n\t"                                                                        \
    "strb r3, [r9, #3]\n\t"                                                                        \
    "ldr r0, [r8, #24]\n\t"                                                                        \
    "add r0, r9\n\t"                                                                               \
    "strb r4, [r0]\n\t"                                                                            \
    "strb r5, [r0, #1]\n\t"                                                                        \
    "strb r6, [r0, #2]\n\t"                                                                        \
    "strb r7, [r0, #3]\n\t"

/* Two pixels by blocks of four channels. */
#define SAMEBITS_THUMB_TWO(ENDS)                                                                   \
    "push {r4-r11, lr}\n\t"                                                                        \
    "ldr r1, [r0]\n\t"                                                                             \
    "ldr r2, [r0, #28]\n\t"                                                                        \
    "add r1, r2\n\t"                                                                               \
    "ldr lr, [r0, #4]\n\t"                                                                         \
    "push {r0, r1}\n"                                                                              \
    "2:\n\t"                                                                                       \
    "ldr r8, [sp]\n\t"                                                                             \
    "ldm lr!, {r0, r1, r2, r3}\n\t"                                                                \
    "ldr r11, [r8]\n\t"                                                                            \
    "ldr r12, [r8, #28]\n\t"                                                                       \
    "mov r4, r0\n\t"                                                                               \
    "mov r5, r1\n\t"                                                                               \
    "mov r6, r2\n\t"                                                                               \
    "mov r7, r3\n"                                                                                 \
    "3:\n\t" SAMEBITS_THUMB_TAP("0", "4", "8", "12")                                               \
    SAMEBITS_THUMB_TAP("1", "5", "9", "13") SAMEBITS_THUMB_TAP("2", "6", "10", "14")               \
    SAMEBITS_THUMB_TAP("3", "7", "11", "15")                                                       \
    "ldr r9, [sp, #4]\n\t"                                                                         \
    "add lr, #16\n\t"                                                                              \
    "cmp r11, r9\n\t"                                                                              \
    "bne 3b\n\t" ENDS                                                                              \
    "add r9, #4\n\t"                                                                               \
    "str r9, [r8, #8]\n\t"                                                                         \
    "cmp r9, r10\n\t"                                                                              \
    "bne 2b\n\t"                                                                                   \
    "pop {r0, r1}\n\t"                                                                             \
    "pop {r4-r11, pc}\n\t"

SAMEBITS_NAKED samebits_thumb_two(samebits_core_frame *frame __attribute__((unused))) {
    __asm__(SAMEBITS_THUMB_TWO(SAMEBITS_THUMB_TWO_HIGH));
}

SAMEBITS_NAKED samebits_thumb_two_doubled(samebits_core_frame *frame __attribute__((unused))) {
    __asm__(SAMEBITS_THUMB_TWO(SAMEBITS_THUMB_TWO_DOUBLED));
}

#define SAMEBITS_THUMB_ONE(at, sum)                                                                \
    "ldrsb r5, [r12, #" at "]\n\t"                                                                 \
    "mla " sum ", r4, r5, " sum "\n\t"
#define SAMEBITS_THUMB_FOUR(t0, t1, t2, t3)                                                        \
    "ldrsb r4, [r11], #1\n\t" SAMEBITS_THUMB_ONE(t0, "r0") SAMEBITS_THUMB_ONE(t1, "r1")            \
        SAMEBITS_THUMB_ONE(t2, "r2") SAMEBITS_THUMB_ONE(t3, "r3")
#define SAMEBITS_THUMB_LAST(sum)                                                                   \
    "ldr r6, [r12], #4\n\t"                                                                        \
    "smull r5, " sum ", " sum ", r6\n\t"                                                           \
    "add " sum ", " sum ", r8\n\t"                                                                 \
    "asr " sum ", " sum ", r9\n\t"                                                                 \
    "ssat " sum ", #8, " sum "\n\t"                                                                \
    "strb " sum ", [r10], #1\n\t"

#define SAMEBITS_THUMB_LAST_DOUBLED(sum)                                                           \
    "ldrd r5, r6, [r12], #8\n\t"                                                                   \
    "lsl r9, r8, r6\n\t" SAMEBITS_THUMB_DOUBLED(sum, "r5", "r9", "r6", "r4")                       \
    "strb " sum ", [r10], #1\n\t"

/* One pixel by blocks of four channels. */
#define SAMEBITS_THUMB_SINGLE(LAST)                                                                \
    "push {r4-r11, lr}\n\t"                                                                        \
    "mov lr, r0\n\t"                                                                               \
    "ldr r12, [lr, #4]\n\t"                                                                        \
    "ldr r7, [lr]\n\t"                                                                             \
    "ldr r0, [lr, #28]\n\t"                                                                        \
    "add r7, r0\n\t"                                                                               \
    "ldrd r8, r9, [lr, #16]\n\t"                                                                   \
    "ldr r10, [lr, #8]\n"                                                                          \
    "2:\n\t"                                                                                       \
    "ldm r12!, {r0, r1, r2, r3}\n\t"                                                               \
    "ldr r11, [lr]\n"                                                                              \
    "3:\n\t" SAMEBITS_THUMB_FOUR("0", "4", "8", "12")                                              \
    SAMEBITS_THUMB_FOUR("1", "5", "9", "13") SAMEBITS_THUMB_FOUR("2", "6", "10", "14")             \
    SAMEBITS_THUMB_FOUR("3", "7", "11", "15")                                                      \
    "add r12, #16\n\t"                                                                             \
    "cmp r11, r7\n\t"                                                                              \
    "bne 3b\n\t" LAST("r0") LAST("r1") LAST("r2") LAST("r3")                                       \
    "ldr r4, [lr, #12]\n\t"                                                                        \
    "cmp r10, r4\n\t"                                                                              \
    "bne 2b\n\t"                                                                                   \
    "pop {r4-r11, pc}\n\t"

SAMEBITS_NAKED samebits_thumb_one(samebits_core_frame *frame __attribute__((unused))) {
    __asm__(SAMEBITS_THUMB_SINGLE(SAMEBITS_THUMB_LAST));
}

SAMEBITS_NAKED samebits_thumb_one_doubled(samebits_core_frame *frame __attribute__((unused))) {
    __asm__(SAMEBITS_THUMB_SINGLE(SAMEBITS_THUMB_LAST_DOUBLED));
}

SAMEBITS_INLINE void samebits_thumb_pixels(samebits_core_frame *f, int32_t two,
                                           int32_t doubled) {
    if (doubled) {
        if (two) {
            samebits_thumb_two_doubled(f);
        } else {
            samebits_thumb_one_doubled(f);
        }
    } else if (two) {
        samebits_thumb_two(f);
    } else {
        samebits_thumb_one(f);
    }
}

static int32_t samebits_vector_dots(const samebits_packed *c, const int8_t *x, int32_t pixels,
                                    int8_t *out, int32_t pitch, void *wide) {
    const int32_t codes = 4 * c->steps, channels = c->out_channels, fours = channels & ~3;
    samebits_core_frame f;
    int32_t o, p;
    (void)wide;
    if (!SAMEBITS_OWN(c->lanes == 4 && c->step == 4)) return 0;
    samebits_core_start(c, &f);
    f.codes = codes;
    f.channels = pitch;
    for (p = 0; p < pixels; p += 2) {
        const int32_t two = p + 1 < pixels;
        f.x = x + p * codes;
        if (fours) {
            f.stream = c->stream;
            f.out = out + p * pitch;
            f.end = f.out + fours;
            samebits_thumb_pixels(&f, two, c->doubled);
        }
        if (fours != channels) {
            int8_t last[8];
            f.stream = c->stream + fours / 4 * ((c->doubled ? 12 : 8) + codes);
            f.out = last;
            f.end = last + 4;
            f.channels = 4;
            samebits_thumb_pixels(&f, two, c->doubled);
            f.channels = pitch;
            for (o = fours; o < channels; o++) {
                out[p * pitch + o] = last[o - fours];
                if (two) out[(p + 1) * pitch + o] = last[4 + o - fours];
            }
        }
    }
    return 1;
}

/* The code of a sum by the words that end those of a block, of which it is the i-th. */
SAMEBITS_INLINE int8_t samebits_core_code(const samebits_core_frame *f, int32_t acc,
                                          const int32_t *ends, const int32_t i,
                                          const int32_t doubled) {
    int32_t free, z;
    if (doubled) {
        __asm__("lsl %2, %4, %5\n\t" SAMEBITS_THUMB_DOUBLED("%0", "%3", "%2", "%5", "%1")
                : "+&r"(acc), "=&r"(free), "=&r"(z)
                : "r"(ends[2 * i]), "r"(f->rounding), "r"(ends[2 * i + 1]));
    } else {
        __asm__("smull %1, %0, %0, %2\n\t"
                "add %0, %0, %3\n\t"
                "asr %0, %0, %4\n\t"
                "ssat %0, #8, %0"
                : "+&r"(acc), "=&r"(free)
                : "r"(ends[i]), "r"(f->rounding), "r"(f->shift));
    }
    return (int8_t)acc;
}

/* One channel at a time: four channels of a pixel. */
SAMEBITS_INLINE void samebits_vector_depth4(const samebits_packed *c, const samebits_core_frame *f,
                                            const int32_t *taps, const int8_t *from,
                                            const int32_t *stream, int8_t *codes,
                                            const int32_t doubled) {
    const int32_t *end = taps + c->steps;
    int32_t s0 = stream[0], s1 = stream[1], s2 = stream[2], s3 = stream[3];
    stream += 4;
    for (; taps != end; taps++, stream++) {
        const int8_t *x = from + *taps, *w = (const int8_t *)stream;
        s0 += x[0] * w[0];
        s1 += x[1] * w[1];
        s2 += x[2] * w[2];
        s3 += x[3] * w[3];
    }
    codes[0] = samebits_core_code(f, s0, stream, 0, doubled);
    codes[1] = samebits_core_code(f, s1, stream, 1, doubled);
    codes[2] = samebits_core_code(f, s2, stream, 2, doubled);
    codes[3] = samebits_core_code(f, s3, stream, 3, doubled);
}
#endif
