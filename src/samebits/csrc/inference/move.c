/* --- data movement -----------------------------------------------------------------------------
 *
 * Copies between any strides (transpose, slice, pad, concat), fills, gathers and scatters. No
 * arithmetic on codes, so elements are moved by their width and not by their type. */

#include "samebits_vector.h"

/* Two axes, the last one inner unless it is short. */
#define SAMEBITS_MOVE(T)                                                                           \
    {                                                                                              \
        const T *source = (const T *)x + from;                                                     \
        T *target = (T *)out + to;                                                                 \
        if (inner < 16 && inner < rows) {                                                          \
            for (j = 0; j < inner; j++, source += a, target += b) {                                \
                for (i = 0; i < rows; i++) target[i * rows_to] = source[i * rows_from];            \
            }                                                                                      \
        } else {                                                                                   \
            for (j = 0; j < rows; j++, source += rows_from, target += rows_to) {                   \
                if (a == 1 && b == 1) {                                                            \
                    for (i = 0; i < inner; i++) target[i] = source[i];                             \
                } else {                                                                           \
                    for (i = 0; i < inner; i++) target[i * b] = source[i * a];                     \
                }                                                                                  \
            }                                                                                      \
        }                                                                                          \
    }                                                                                              \
    break;

/* Codes of 8 bits whose `columns`, `from` apart in x, go side by side in rows `to` apart (turn.c),
 * or 0. */
SAMEBITS_INLINE int samebits_turned8(const uint8_t *x, int32_t from, uint8_t *out, int32_t to,
                                     int32_t rows, int32_t columns) {
#ifdef SAMEBITS_TURN_THREE
    if (columns == 3 && to == 3) {
        samebits_three(x, from, out, rows);
        return 1;
    }
#endif
#ifdef SAMEBITS_TURN
    if (columns >= 8 && rows >= 8) {
        samebits_turn(x, from, out, to, rows, columns);
        return 1;
    }
#endif
    (void)x, (void)from, (void)out, (void)to, (void)rows, (void)columns;
    return 0;
}

void samebits_run_copy(const samebits_copy *c, const void *x, void *out) {
    const int32_t last = c->shape.rank - 1, inner = c->shape.shape[last];
    const int32_t a = c->from[last], b = c->to[last];
    const int32_t rows = last > 0 ? c->shape.shape[last - 1] : 1;
    const int32_t rows_from = last > 0 ? c->from[last - 1] : 0;
    const int32_t rows_to = last > 0 ? c->to[last - 1] : 0;
    int32_t index[SAMEBITS_MAX_RANK] = {0};
    int32_t from = c->from_start, to = c->to_start, axis, i, j;
    do {
        switch (c->width) {
        case 1: {
            const uint8_t *source = (const uint8_t *)x + from;
            uint8_t *target = (uint8_t *)out + to;
            if (b == 1 && rows_from == 1 &&
                samebits_turned8(source, a, target, rows_to, rows, inner)) {
                break;
            }
            if (a == 1 && rows_to == 1 &&
                samebits_turned8(source, rows_from, target, b, inner, rows)) {
                break;
            }
        }
            SAMEBITS_MOVE(uint8_t)
        case 2: SAMEBITS_MOVE(samebits_i16)
        case 4: SAMEBITS_MOVE(samebits_i32)
        default: SAMEBITS_MOVE(samebits_i64)
        }
        for (axis = last - 2; axis >= 0; axis--) {
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
    if (c->type <= SAMEBITS_UINT8) {
        for (i = 0; i < c->size; i++) ((uint8_t *)out)[i] = (uint8_t)c->code;
        return;
    }
    for (i = 0; i < c->size; i++) samebits_put(out, c->type, i, c->code);
}

static void samebits_row(const uint8_t *row, int32_t n, uint8_t *to) {
    int32_t i;
    for (i = 0; i < n; i++) to[i] = row[i];
}

void samebits_copy_bytes(const void *from, void *to, uint32_t count) {
    samebits_row((const uint8_t *)from, (int32_t)count, (uint8_t *)to);
}

void samebits_run_gather(const samebits_gather *c, const void *x, void *out) {
    const uint8_t *from = (const uint8_t *)x;
    uint8_t *to = (uint8_t *)out;
    int32_t outer, k;
    for (outer = 0; outer < c->outer; outer++, from += c->source * c->inner) {
        for (k = 0; k < c->count; k++, to += c->inner) {
            samebits_row(from + c->indices[k] * c->inner, c->inner, to);
        }
    }
}

void samebits_run_take(const samebits_take *c, const void *x, const void *indices, void *out) {
    const uint8_t *from = (const uint8_t *)x;
    uint8_t *to = (uint8_t *)out;
    int32_t outer, k;
    for (outer = 0; outer < c->outer; outer++, from += c->source * c->inner) {
        for (k = 0; k < c->count; k++, to += c->inner) {
            int64_t at = samebits_get(indices, c->type, k);
            at = samebits_clamp64(at < 0 ? at + c->source : at, 0, c->source - 1);
            samebits_row(from + at * c->inner, c->inner, to);
        }
    }
}

void samebits_run_scatter(const samebits_scatter *c, const void *x, const void *update,
                          const void *starts, void *out) {
    const uint8_t *from = (const uint8_t *)update;
    uint8_t *to = (uint8_t *)out;
    const int32_t line = c->size * c->inner;
    int32_t n, outer, k;
    if (x != out) samebits_row((const uint8_t *)x, c->samples * c->outer * line, to);
    for (n = 0; n < c->samples; n++) {
        int64_t start = samebits_get(starts, c->type, n) % c->size;
        if (start < 0) start += c->size;
        for (outer = 0; outer < c->outer; outer++, to += line) {
            int32_t at = (int32_t)start;
            for (k = 0; k < c->count; k++, from += c->inner) {
                samebits_row(from, c->inner, to + at * c->inner);
                if (++at == c->size) at = 0;
            }
        }
    }
}
