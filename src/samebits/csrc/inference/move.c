/* --- data movement -----------------------------------------------------------------------------
 *
 * Copies between any strides (transpose, slice, pad, concat), fills and gathers. No arithmetic on
 * codes, so elements are moved by their width and not by their type. */

#include "samebits_vector.h"

#define SAMEBITS_MOVE(T)                                                                           \
    {                                                                                              \
        const T *source = (const T *)x + from;                                                     \
        T *target = (T *)out + to;                                                                 \
        if (a == 1 && b == 1) {                                                                    \
            for (i = 0; i < inner; i++) target[i] = source[i];                                     \
        } else {                                                                                   \
            for (i = 0; i < inner; i++) target[i * b] = source[i * a];                             \
        }                                                                                          \
    }                                                                                              \
    break;

void samebits_run_copy(const samebits_copy *c, const void *x, void *out) {
    const int32_t last = c->shape.rank - 1, inner = c->shape.shape[last];
    const int32_t a = c->from[last], b = c->to[last];
    int32_t index[SAMEBITS_MAX_RANK] = {0};
    int32_t from = c->from_start, to = c->to_start, axis, i;
    do {
        switch (c->width) {
        case 1: SAMEBITS_MOVE(uint8_t)
        case 2: SAMEBITS_MOVE(samebits_i16)
        case 4: SAMEBITS_MOVE(samebits_i32)
        default: SAMEBITS_MOVE(samebits_i64)
        }
        for (axis = last - 1; axis >= 0; axis--) {
            index[axis]++;
            from += c->from[axis];
            to += c->to[axis];
            if (index[axis] < c->shape.shape[axis]) break;
            from -= index[axis] * c->from[axis];
            to -= index[axis] * c->to[axis];
            index[axis] = 0;
        }
    } while (axis >= 0);
}

void samebits_run_fill(const samebits_fill *c, void *out) {
    int32_t i;
    for (i = 0; i < c->size; i++) samebits_put(out, c->type, i, c->code);
}

void samebits_run_gather(const samebits_gather *c, const void *x, void *out) {
    const uint8_t *from = (const uint8_t *)x;
    uint8_t *to = (uint8_t *)out;
    int32_t outer, k, i;
    for (outer = 0; outer < c->outer; outer++, from += c->source * c->inner) {
        for (k = 0; k < c->count; k++, to += c->inner) {
            const uint8_t *row = from + c->indices[k] * c->inner;
            for (i = 0; i < c->inner; i++) to[i] = row[i];
        }
    }
}
