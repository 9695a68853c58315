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
 * z = zero * 2**shift + 2**(shift - 1), then a shift, then SSAT.
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

/* Three pixels by blocks of two channels; 9 instructions, 36 bytes, for two codes of each. */
SAMEBITS_NAKED samebits_dsp_three(samebits_core_frame *frame __attribute__((unused))) {
    __asm__("push {r0, r4-r11, lr}\n\t"
            "mov r9, r0\n\t"
            "adr r1, 3f\n\t"
            "ldr r2, [r9, #36]\n\t"
            "add r1, r2\n\t"
            "str r1, [r9, #36]\n\t"
            "ldr r12, [r9, #4]\n"
            "2:\n\t"
            "ldrd r0, r3, [r12], #8\n\t"
            "ldr r11, [r9]\n\t"
            "ldrd lr, r10, [r9, #32]\n\t"
            "mov r1, r0\n\t"
            "mov r2, r0\n\t"
            "mov r4, r3\n\t"
            "mov r5, r3\n\t"
            "bx r10\n\t"
            ".balign 4\n"
            "3:\n\t"
            ".rept 4\n\t"
            "ldr r9, [r12], #4\n\t"
            "ldm r11!, {r6, r7, r8}\n\t"
            "sxtb16 r10, r9\n\t"
            "smlad r0, r6, r9, r0\n\t"
            "smlad r1, r7, r9, r1\n\t"
            "smlad r2, r8, r9, r2\n\t"
            "smlad r3, r6, r10, r3\n\t"
            "smlad r4, r7, r10, r4\n\t"
            "smlad r5, r8, r10, r5\n\t"
            ".endr\n\t"
            "subs lr, #1\n\t"
            "bne 3b\n\t"
            "ldr r9, [sp]\n\t"
            "ldrd r6, r7, [r12], #8\n\t"
            "sub r0, r0, r3\n\t"
            "sub r1, r1, r4\n\t"
            "sub r2, r2, r5\n\t"
            "asr r0, r0, #8\n\t"
            "asr r1, r1, #8\n\t"
            "asr r2, r2, #8\n\t"
            "ldrd r8, r10, [r9, #16]\n\t"
            "ldr r11, [r9, #8]\n\t"
            "ldr lr, [r9, #24]\n\t" SAMEBITS_DSP_CODE("r0", "r6", "r11")
                SAMEBITS_DSP_CODE("r3", "r7", "r11, #1")
            "add r0, r11, #2\n\t"
            "str r0, [r9, #8]\n\t"
            "add r11, lr\n\t" SAMEBITS_DSP_CODE("r1", "r6", "r11")
                SAMEBITS_DSP_CODE("r4", "r7", "r11, #1")
            "add r11, lr\n\t" SAMEBITS_DSP_CODE("r2", "r6", "r11")
                SAMEBITS_DSP_CODE("r5", "r7", "r11, #1")
            "ldr r1, [r9, #12]\n\t"
            "cmp r0, r1\n\t"
            "bne 2b\n\t"
            "pop {r0, r4-r11, pc}\n\t");
}

#define SAMEBITS_DSP_BLOCK(w, u, v)                                                                \
    "ldrd r6, r7, [" w "], #8\n\t"                                                                 \
    "sxtb16 r8, r6\n\t"                                                                          \
    "smlad " u ", r4, r6, " u "\n\t"                                                               \
    "smlad " v ", r4, r8, " v "\n\t"                                                               \
    "sxtb16 r8, r7\n\t"                                                                          \
    "smlad " u ", r5, r7, " u "\n\t"                                                               \
    "smlad " v ", r5, r8, " v "\n\t"

/* One pixel by pairs of blocks; 17 instructions, 68 bytes, for four codes. */
SAMEBITS_NAKED samebits_dsp_single(samebits_core_frame *frame __attribute__((unused))) {
    __asm__("push {r0, r4-r11, lr}\n\t"
            "mov lr, r0\n\t"
            "adr r1, 3f\n\t"
            "ldr r2, [lr, #36]\n\t"
            "add r1, r2\n\t"
            "str r1, [lr, #36]\n\t"
            "ldr r10, [lr, #4]\n"
            "2:\n\t"
            "ldr r11, [lr, #40]\n\t"
            "add r11, r10\n\t"
            "ldrd r0, r1, [r10], #8\n\t"
            "ldrd r2, r3, [r11], #8\n\t"
            "ldr r9, [lr]\n\t"
            "ldrd r12, r4, [lr, #32]\n\t"
            "bx r4\n\t"
            ".balign 4\n"
            "3:\n\t"
            ".rept 4\n\t"
            "ldr r5, [r9], #4\n\t"
            "sxtb16 r4, r5\n\t"
            "sxtb16 r5, r5, ror #8\n\t" SAMEBITS_DSP_BLOCK("r10", "r0", "r1")
                SAMEBITS_DSP_BLOCK("r11", "r2", "r3")
            ".endr\n\t"
            "subs r12, #1\n\t"
            "bne 3b\n\t"
            "ldrd r4, r5, [r10]\n\t"
            "ldrd r6, r7, [r11], #8\n\t"
            "mov r12, r11\n\t"
            "sub r0, r0, r1\n\t"
            "sub r2, r2, r3\n\t"
            "asr r0, r0, #8\n\t"
            "asr r2, r2, #8\n\t"
            "ldrd r8, r10, [lr, #16]\n\t"
            "ldrd r9, r11, [lr, #8]\n\t" SAMEBITS_DSP_CODE("r0", "r4", "r9")
                SAMEBITS_DSP_CODE("r1", "r5", "r9, #1") SAMEBITS_DSP_CODE("r2", "r6", "r9, #2")
                    SAMEBITS_DSP_CODE("r3", "r7", "r9, #3")
            "mov r10, r12\n\t"
            "add r9, #4\n\t"
            "str r9, [lr, #8]\n\t"
            "cmp r9, r11\n\t"
            "bne 2b\n\t"
            "pop {r0, r4-r11, pc}\n\t");
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

SAMEBITS_INLINE int8_t samebits_dsp_code(const samebits_core_frame *f, int32_t acc, int32_t m) {
    __asm__("smmla %0, %0, %1, %2\n\t"
            "asr %0, %0, %3\n\t"
            "ssat %0, #8, %0"
            : "+r"(acc)
            : "r"(m), "r"(f->rounding), "r"(f->shift));
    return (int8_t)acc;
}

/* The sum of the first channel in u, of which v holds that of the second. */
SAMEBITS_INLINE int32_t samebits_dsp_first(int32_t u, int32_t v) {
    return samebits_floor32(samebits_signed32((uint32_t)u - (uint32_t)v), 8);
}

/* Long sums of three pixels by pairs of channels. Every 512 codes, whose products of at most
 * 127 * 128 fit, the sum of the first channel leaves u for a word of its own. */
static void samebits_dsp_long_three(const samebits_packed *c, const samebits_core_frame *f,
                                    const uint32_t *x, int8_t *out, int32_t pitch) {
    const int32_t *w = c->stream;
    int32_t o;
    for (o = 0; o < c->out_channels; o += 2, out += 2, w += 2) {
        const int16x2_t *at = (const int16x2_t *)x;
        int32_t left = 2 * c->steps, v0 = w[1], v1 = v0, v2 = v0;
        uint32_t a0 = (uint32_t)w[0], a1 = a0, a2 = a0;
        for (w += 2; left > 0; left -= 256) {
            const int32_t *end = w + SAMEBITS_MIN(left, 256);
            int32_t u0 = v0, u1 = v1, u2 = v2;
            for (; w != end; w += 2, at += 6) {
                const int16x2_t both = w[0], second = __sxtb16(w[0]);
                const int16x2_t next = w[1], after = __sxtb16(w[1]);
                u0 = __smlad(at[0], both, u0);
                u1 = __smlad(at[1], both, u1);
                u2 = __smlad(at[2], both, u2);
                v0 = __smlad(at[0], second, v0);
                v1 = __smlad(at[1], second, v1);
                v2 = __smlad(at[2], second, v2);
                u0 = __smlad(at[3], next, u0);
                u1 = __smlad(at[4], next, u1);
                u2 = __smlad(at[5], next, u2);
                v0 = __smlad(at[3], after, v0);
                v1 = __smlad(at[4], after, v1);
                v2 = __smlad(at[5], after, v2);
            }
            a0 += (uint32_t)samebits_dsp_first(u0, v0);
            a1 += (uint32_t)samebits_dsp_first(u1, v1);
            a2 += (uint32_t)samebits_dsp_first(u2, v2);
        }
        out[0] = samebits_dsp_code(f, samebits_signed32(a0), w[0]);
        out[pitch] = samebits_dsp_code(f, samebits_signed32(a1), w[0]);
        out[2 * pitch] = samebits_dsp_code(f, samebits_signed32(a2), w[0]);
        if (o + 1 == c->out_channels) return;
        out[1] = samebits_dsp_code(f, v0, w[1]);
        out[pitch + 1] = samebits_dsp_code(f, v1, w[1]);
        out[2 * pitch + 1] = samebits_dsp_code(f, v2, w[1]);
    }
}

/* The same of one pixel by two pairs of channels, which share its widened codes; where one pair is
 * left, it is taken twice. */
static void samebits_dsp_long_one(const samebits_packed *c, const samebits_core_frame *f,
                                  const int8_t *x, int8_t *out) {
    const int32_t block = 4 + 2 * c->steps, channels = c->out_channels;
    int32_t o;
    for (o = 0; o < channels; o += 4) {
        const int32_t *w = c->stream + o / 2 * block, *z = o + 2 < channels ? w + block : w;
        const int8_t *at = x;
        int32_t left = 2 * c->steps, v = w[1], q = z[1];
        uint32_t a = (uint32_t)w[0], b = (uint32_t)z[0];
        for (w += 2, z += 2; left > 0; left -= 256) {
            const int32_t *end = w + SAMEBITS_MIN(left, 256);
            int32_t u = v, p = q;
            for (; w != end; w += 2, z += 2, at += 4) {
                uint32_t four;
                int16x2_t even, odd;
                __builtin_memcpy(&four, at, 4);
                even = __sxtb16((int8x4_t)four);
                odd = __sxtb16((int8x4_t)(four >> 8 | four << 24));
                u = __smlad(even, w[0], u);
                v = __smlad(even, __sxtb16(w[0]), v);
                u = __smlad(odd, w[1], u);
                v = __smlad(odd, __sxtb16(w[1]), v);
                p = __smlad(even, z[0], p);
                q = __smlad(even, __sxtb16(z[0]), q);
                p = __smlad(odd, z[1], p);
                q = __smlad(odd, __sxtb16(z[1]), q);
            }
            a += (uint32_t)samebits_dsp_first(u, v);
            b += (uint32_t)samebits_dsp_first(p, q);
        }
        out[o] = samebits_dsp_code(f, samebits_signed32(a), w[0]);
        if (o + 1 < channels) out[o + 1] = samebits_dsp_code(f, v, w[1]);
        if (o + 2 < channels) out[o + 2] = samebits_dsp_code(f, samebits_signed32(b), z[0]);
        if (o + 3 < channels) out[o + 3] = samebits_dsp_code(f, q, z[1]);
    }
}

/* wide: scratch memory of 6 bytes for each code of a run. */
static int32_t samebits_vector_dots(const samebits_packed *c, const int8_t *x, int32_t pixels,
                                    int8_t *out, int32_t pitch, void *wide) {
    const int32_t codes = 4 * c->steps, channels = c->out_channels;
    const int32_t pairs = channels & ~1, fours = channels & ~3;
    samebits_core_frame f;
    if (!SAMEBITS_OWN(c->lanes == 2)) return 0;
    samebits_core_start(c, &f);
    if (c->long_sums) {
        for (; pixels >= 3; pixels -= 3, x += 3 * codes, out += 3 * pitch) {
            samebits_dsp_widen(x, codes, (uint32_t *)wide);
            samebits_dsp_long_three(c, &f, (const uint32_t *)wide, out, pitch);
        }
        for (; pixels > 0; pixels--, x += codes, out += pitch) {
            samebits_dsp_long_one(c, &f, x, out);
        }
        return 1;
    }
    f.block = 16 + 8 * c->steps;
    f.channels = pitch;
    for (; pixels >= 3; pixels -= 3, x += 3 * codes, out += 3 * pitch) {
        samebits_dsp_widen(x, codes, (uint32_t *)wide);
        f.x = wide;
        if (pairs) {
            f.stream = c->stream;
            f.out = out;
            f.end = out + pairs;
            f.loops = (2 * c->steps + 3) / 4;
            f.entry = 36 * (c->steps % 2 * 2) + 1;
            samebits_dsp_three(&f);
        }
        if (pairs != channels) {
            int8_t last[6];
            f.stream = c->stream + pairs / 2 * (4 + 2 * c->steps);
            f.out = last;
            f.end = last + 2;
            f.channels = 2;
            f.loops = (2 * c->steps + 3) / 4;
            f.entry = 36 * (c->steps % 2 * 2) + 1;
            samebits_dsp_three(&f);
            f.channels = pitch;
            out[pairs] = last[0];
            out[pitch + pairs] = last[2];
            out[2 * pitch + pairs] = last[4];
        }
    }
    f.loops = (c->steps + 3) / 4;
    for (; pixels > 0; pixels--, x += codes, out += pitch) {
        const int32_t entry = 68 * ((4 - c->steps % 4) % 4) + 1;
        int32_t o;
        f.x = x;
        if (fours) {
            f.stream = c->stream;
            f.out = out;
            f.end = out + fours;
            f.entry = entry;
            samebits_dsp_single(&f);
        }
        if (fours != channels) {
            int8_t last[4];
            f.stream = c->stream + fours / 2 * (4 + 2 * c->steps);
            f.out = last;
            f.end = last + 4;
            f.entry = entry;
            if (channels - fours < 3) f.block = 0; /* the last block twice */
            samebits_dsp_single(&f);
            f.block = 16 + 8 * c->steps;
            for (o = fours; o < channels; o++) out[o] = last[o - fours];
        }
    }
    return 1;
}

/* --- one channel at a time --- */

/* Four channels of a pixel; taps: bytes from its first code to that of each tap. Halfwords 0 and 1
 * of SXTB16 are the codes of channels 0 and 2, and after a rotation of 1 and 3. */
SAMEBITS_INLINE void samebits_vector_depth4(const samebits_packed *c, const samebits_core_frame *f,
                                            const int32_t *taps, const int8_t *from,
                                            const int32_t *stream, int8_t *codes) {
    const int32_t *end = taps + c->steps;
    int32_t s0 = stream[0], s1 = stream[1], s2 = stream[2], s3 = stream[3];
    stream += 4;
    for (; taps != end; taps++, stream++) {
        const uint32_t w = (uint32_t)*stream;
        const int32_t w_even = (int32_t)__sxtb16((int8x4_t)w);
        const int32_t w_odd = (int32_t)__sxtb16((int8x4_t)(w >> 8 | w << 24));
        uint32_t x;
        int32_t even, odd;
        __builtin_memcpy(&x, from + *taps, 4);
        even = (int32_t)__sxtb16((int8x4_t)x);
        odd = (int32_t)__sxtb16((int8x4_t)(x >> 8 | x << 24));
        s0 = __smlabb(even, w_even, s0);
        s2 = __smlatt(even, w_even, s2);
        s1 = __smlabb(odd, w_odd, s1);
        s3 = __smlatt(odd, w_odd, s3);
    }
    codes[0] = samebits_dsp_code(f, s0, stream[0]);
    codes[1] = samebits_dsp_code(f, s1, stream[1]);
    codes[2] = samebits_dsp_code(f, s2, stream[2]);
    codes[3] = samebits_dsp_code(f, s3, stream[3]);
}
#endif
