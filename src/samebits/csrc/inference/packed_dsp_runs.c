/* --- packed convolution: DSP extension, sums and runs -------------------------------------------
 *
 * What calls the functions of packed_dsp.c: runs of codes by threes, sums of more than 24 bits, and
 * one channel at a time. */

#include "samebits_vector.h"

#ifdef SAMEBITS_PACKED_DSP
/* The sum of the first channel in u, of which v holds that of the second. */
SAMEBITS_INLINE int32_t samebits_dsp_first(int32_t u, int32_t v) {
    return samebits_floor32(samebits_signed32((uint32_t)u - (uint32_t)v), 8);
}

/* Long sums of three pixels by pairs of channels. Every 512 codes, whose products of at most
 * 127 * 128 fit, the sum of the first channel leaves u for a word of its own. */
static void samebits_dsp_long_three(const samebits_packed *c, const samebits_core_frame *f,
                                    const uint32_t *x, int8_t *out, int32_t pitch) {
    const int32_t *w = c->stream, d = c->doubled;
    int32_t o;
    for (o = 0; o < c->out_channels; o += 2, out += 2, w += d ? 4 : 2) {
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
        out[0] = samebits_core_code(f, samebits_signed32(a0), w, 0, d);
        out[pitch] = samebits_core_code(f, samebits_signed32(a1), w, 0, d);
        out[2 * pitch] = samebits_core_code(f, samebits_signed32(a2), w, 0, d);
        if (o + 1 == c->out_channels) return;
        out[1] = samebits_core_code(f, v0, w, 1, d);
        out[pitch + 1] = samebits_core_code(f, v1, w, 1, d);
        out[2 * pitch + 1] = samebits_core_code(f, v2, w, 1, d);
    }
}

/* The same of one pixel by two pairs of channels, which share its widened codes; where one pair is
 * left, it is taken twice. */
static void samebits_dsp_long_one(const samebits_packed *c, const samebits_core_frame *f,
                                  const int8_t *x, int8_t *out) {
    const int32_t d = c->doubled, block = (d ? 6 : 4) + 2 * c->steps, channels = c->out_channels;
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
        out[o] = samebits_core_code(f, samebits_signed32(a), w, 0, d);
        if (o + 1 < channels) out[o + 1] = samebits_core_code(f, v, w, 1, d);
        if (o + 2 < channels) out[o + 2] = samebits_core_code(f, samebits_signed32(b), z, 0, d);
        if (o + 3 < channels) out[o + 3] = samebits_core_code(f, q, z, 1, d);
    }
}

SAMEBITS_INLINE void samebits_dsp_threes(samebits_core_frame *f, int32_t doubled) {
    if (doubled) {
        samebits_dsp_three_doubled(f);
    } else {
        samebits_dsp_three(f);
    }
}

SAMEBITS_INLINE void samebits_dsp_singles(samebits_core_frame *f, int32_t doubled) {
    if (doubled) {
        samebits_dsp_single_doubled(f);
    } else {
        samebits_dsp_single(f);
    }
}

/* wide: scratch memory of 6 bytes for each code of a run. */
static int32_t samebits_vector_dots(const samebits_packed *c, const int8_t *x, int32_t pixels,
                                    int8_t *out, int32_t pitch, void *wide) {
    const int32_t codes = 4 * c->steps, channels = c->out_channels;
    const int32_t pairs = channels & ~1, fours = channels & ~3;
    const int32_t block = (c->doubled ? 6 : 4) + 2 * c->steps;
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
    f.block = 4 * block;
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
            samebits_dsp_threes(&f, c->doubled);
        }
        if (pairs != channels) {
            int8_t last[6];
            f.stream = c->stream + pairs / 2 * block;
            f.out = last;
            f.end = last + 2;
            f.channels = 2;
            f.loops = (2 * c->steps + 3) / 4;
            f.entry = 36 * (c->steps % 2 * 2) + 1;
            samebits_dsp_threes(&f, c->doubled);
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
            samebits_dsp_singles(&f, c->doubled);
        }
        if (fours != channels) {
            int8_t last[4];
            f.stream = c->stream + fours / 2 * block;
            f.out = last;
            f.end = last + 4;
            f.entry = entry;
            if (channels - fours < 3) f.block = 0; /* the last block twice */
            samebits_dsp_singles(&f, c->doubled);
            f.block = 4 * block;
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
                                            const int32_t *stream, int8_t *codes,
                                            const int32_t doubled) {
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
    codes[0] = samebits_core_code(f, s0, stream, 0, doubled);
    codes[1] = samebits_core_code(f, s1, stream, 1, doubled);
    codes[2] = samebits_core_code(f, s2, stream, 2, doubled);
    codes[3] = samebits_core_code(f, s3, stream, 3, doubled);
}
#endif
