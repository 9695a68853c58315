/* Geometry and scratch shared by the convolution kernels. */
#ifndef SAMEBITS_CONV_H
#define SAMEBITS_CONV_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "samebits_integer.h"

typedef struct {
    int64_t n, h, w, ci, oh, ow, co; /* batch, input and output shape */
    int64_t kh, kw, stride_h, stride_w, pad_h, pad_w, dil_h, dil_w, groups;
} Conv;

static inline int64_t round_up(int64_t a, int64_t b) { return (a + b - 1) / b * b; }

/* Below this many products a thread team costs more than it saves. */
static inline int crew(const Conv *s, int threads) {
    int64_t work = s->n * s->oh * s->ow * s->co * (s->ci / s->groups) * s->kh * s->kw;
    return work < ((int64_t)1 << 20) ? 1 : threads;
}

/* 64 bytes more than asked for: vector loads may read past the end. NULL when memory ran out. */
static inline void *scratch(int64_t bytes) {
    return aligned_alloc(64, (size_t)round_up(bytes + 64, 64));
}

#endif
