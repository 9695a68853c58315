/* Log-mel features of 16-bit samples, in integers: docs/spec/audio.md. */
#ifndef SAMEBITS_AUDIO_H
#define SAMEBITS_AUDIO_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SAMEBITS_AUDIO_MAX 32639 /* the largest code; the least is its negative */

typedef struct {
    int32_t frame, hop, fft, mels;
    const uint16_t *window;    /* h[0 .. frame / 2]; h[n] = h[frame - n] */
    const int16_t *cosine;     /* c[0 .. fft / 2]; s[i] = c[|fft / 4 - i|] */
    const uint16_t *first;     /* of each band its first bin, */
    const uint16_t *count;     /* its number of bins, */
    const uint16_t *weights;   /* and its weights, one band after the other */
    const uint16_t *logarithm; /* T[0 .. 64] */
} samebits_audio;

typedef struct {
    int32_t at;      /* where the next sample goes: the oldest of the last `frame` ones is there */
    int32_t missing; /* samples until the next frame is whole */
} samebits_audio_position;

/* `count` more samples; the features of the frames that they complete go to features[frame][mels].
 * The number of these frames. ring: the last `frame` samples; work: fft integers. */
uint32_t samebits_audio_push(const samebits_audio *a, samebits_audio_position *position,
                             int16_t *ring, int32_t *work, const int16_t *samples, uint32_t count,
                             int16_t *features);

/* 8-bit codes of features (section 5). */
void samebits_audio_short(const int16_t *features, uint32_t count, int8_t *codes);

#ifdef __cplusplus
}
#endif

#endif
