/* The stages of docs/spec/audio.md, section 4. A complex number is two integers, re and im. */
#ifndef SAMEBITS_AUDIO_FRAME_H
#define SAMEBITS_AUDIO_FRAME_H

#include "samebits_audio.h"
#include "samebits_integer.h"

static inline int32_t samebits_audio_sine(const samebits_audio *a, int32_t i) {
    const int32_t quarter = a->fft / 4;
    return a->cosine[i < quarter ? quarter - i : i - quarter];
}

/* Stage 1, in the order that stage 2 wants. The frame begins at ring[at]. */
static inline void samebits_audio_load(const samebits_audio *a, const int16_t *ring, int32_t at,
                                       int32_t *z) {
    const int32_t half = a->fft / 2;
    int32_t n, place = 0; /* n / 2 with its bits reversed */
    for (n = 0; n < a->fft; n++) {
        int32_t v = 0;
        if (n < a->frame) {
            v = ring[at] * (int32_t)a->window[n <= a->frame / 2 ? n : a->frame - n];
            at = at + 1 == a->frame ? 0 : at + 1;
        }
        z[2 * place + (n & 1)] = v;
        if (n & 1) {
            int32_t bit = half / 2;
            while (place & bit) {
                place ^= bit;
                bit /= 2;
            }
            place |= bit;
        }
    }
}

/* One stage of stage 2: blocks of 2 * span values. */
static inline void samebits_audio_stage(const samebits_audio *a, int32_t span, int32_t *z) {
    const int32_t half = a->fft / 2;
    int32_t j, k;
    for (k = 0; k < half; k += 2 * span) { /* j = 0: c = 2**14, s = 0 */
        int32_t *x = z + 2 * k, *y = x + 2 * span;
        const int64_t x0 = x[0], x1 = x[1], y0 = y[0], y1 = y[1];
        x[0] = (int32_t)samebits_round64(x0 + y0, 1);
        x[1] = (int32_t)samebits_round64(x1 + y1, 1);
        y[0] = (int32_t)samebits_round64(x0 - y0, 1);
        y[1] = (int32_t)samebits_round64(x1 - y1, 1);
    }
    for (j = 1; j < span; j++) {
        const int32_t turn = j * (half / span);
        const int64_t c = a->cosine[turn], s = samebits_audio_sine(a, turn);
        for (k = j; k < half; k += 2 * span) {
            int32_t *x = z + 2 * k, *y = x + 2 * span;
            const int64_t p = y[0] * c + y[1] * s, q = y[1] * c - y[0] * s;
            const int64_t x0 = (int64_t)x[0] * 16384, x1 = (int64_t)x[1] * 16384;
            x[0] = (int32_t)samebits_round64(x0 + p, 15);
            x[1] = (int32_t)samebits_round64(x1 + q, 15);
            y[0] = (int32_t)samebits_round64(x0 - p, 15);
            y[1] = (int32_t)samebits_round64(x1 - q, 15);
        }
    }
}

/* Stage 3 in place. The last value is real and lies in the imaginary part of the first, whose own
 * is 0. */
static inline void samebits_audio_split(const samebits_audio *a, int32_t *z) {
    const int32_t half = a->fft / 2;
    const int64_t first = z[0], second = z[1];
    int32_t k;
    z[0] = (int32_t)samebits_round64(first + second, 1);
    z[1] = (int32_t)samebits_round64(first - second, 1);
    for (k = 1; k <= half / 2; k++) {
        int32_t *x = z + 2 * k, *y = z + 2 * (half - k);
        const int64_t c = a->cosine[k], s = samebits_audio_sine(a, k);
        const int64_t d0 = (int64_t)x[0] - y[0], d1 = (int64_t)x[1] + y[1];
        const int64_t re = ((int64_t)x[0] + y[0]) * 16384, im = ((int64_t)x[1] - y[1]) * 16384;
        const int64_t p = c * d1 - s * d0, q = c * d0 + s * d1;
        x[0] = (int32_t)samebits_round64(re + p, 16);
        x[1] = (int32_t)samebits_round64(im - q, 16);
        y[0] = (int32_t)samebits_round64(re - p, 16);
        y[1] = (int32_t)samebits_round64(-im - q, 16);
    }
}

/* Stage 4. */
static inline uint64_t samebits_audio_power(const samebits_audio *a, const int32_t *z, int32_t k) {
    const int32_t half = a->fft / 2;
    const int64_t re = k == half ? z[1] : z[2 * k], im = k == 0 || k == half ? 0 : z[2 * k + 1];
    return (uint64_t)samebits_round64(re * re + im * im, 16);
}

/* Stages 6 and 7. */
static inline int16_t samebits_audio_logarithm(const uint16_t *table, uint64_t energy) {
    int32_t e = 63, code;
    uint32_t r, v;
    while (!(energy >> 63)) {
        energy <<= 1;
        e--;
    }
    r = (uint32_t)(energy >> 41) & 0x3fffffu;
    table += r >> 16;
    v = ((uint32_t)table[0] << 16) + ((uint32_t)table[1] - table[0]) * (r & 0xffffu);
    code = e * 2048 + (int32_t)samebits_round64(v, 20) - 40 * 2048;
    return (int16_t)samebits_clamp32(code, -SAMEBITS_AUDIO_MAX, SAMEBITS_AUDIO_MAX);
}

/* The features of a frame that begins at ring[at]; z: fft integers to work in. */
static inline void samebits_audio_frame(const samebits_audio *a, const int16_t *ring, int32_t at,
                                        int32_t *z, int16_t *features) {
    const uint16_t *weight = a->weights;
    int32_t span, band, k;
    samebits_audio_load(a, ring, at, z);
    for (span = 1; span < a->fft / 2; span *= 2) samebits_audio_stage(a, span, z);
    samebits_audio_split(a, z);
    for (band = 0; band < a->mels; band++) { /* stage 5 */
        const int32_t end = a->first[band] + a->count[band];
        uint64_t energy = 0;
        for (k = a->first[band]; k < end; k++) energy += samebits_audio_power(a, z, k) * *weight++;
        energy = SAMEBITS_MAX(energy, (uint64_t)1 << 24);
        features[band] = samebits_audio_logarithm(a->logarithm, energy);
    }
}

#endif
