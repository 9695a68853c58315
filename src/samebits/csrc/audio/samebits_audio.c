/* Streams of samples, and codes of features. docs/spec/audio.md. */
#include "samebits_audio_frame.h"

uint32_t samebits_audio_push(const samebits_audio *a, samebits_audio_position *position,
                             int16_t *ring, int32_t *work, const int16_t *samples, uint32_t count,
                             int16_t *features) {
    uint32_t i, frames = 0;
    for (i = 0; i < count; i++) {
        ring[position->at] = samples[i];
        position->at = position->at + 1 == a->frame ? 0 : position->at + 1;
        if (--position->missing == 0) {
            position->missing = a->hop;
            samebits_audio_frame(a, ring, position->at, work, features);
            features += a->mels;
            frames++;
        }
    }
    return frames;
}

void samebits_audio_short(const int16_t *features, uint32_t count, int8_t *codes) {
    uint32_t i;
    for (i = 0; i < count; i++) {
        codes[i] = (int8_t)samebits_round32(features[i], 8);
    }
}
