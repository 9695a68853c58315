/* --- element by element ---------------------------------------------------------------------- */

#include "samebits_integer.h"

/* The inner axis of a broadcast in one chunk: n elements of every source. */
static void samebits_combine32(const samebits_broadcast *c, const void *const *sources,
                               const int32_t *starts, int32_t n, int32_t *acc) {
    const int32_t last = c->shape.rank - 1;
    uint32_t sum[SAMEBITS_CHUNK];
    int32_t k, i;
    for (i = 0; i < n; i++) sum[i] = (uint32_t)c->offset;
    for (k = 0; k < c->count; k++) {
        const samebits_source *s = c->sources + k;
        const uint32_t factor = (uint32_t)s->factor;
        const int32_t zero = (int32_t)s->factor;
        samebits_load32(sources[k], s->type, starts[k], s->strides[last], n, acc);
        switch (c->operation) {
        case SAMEBITS_SUM:
            for (i = 0; i < n; i++) sum[i] += factor * (uint32_t)acc[i];
            break;
        case SAMEBITS_MULTIPLY:
            for (i = 0; i < n; i++) {
                const uint32_t v = (uint32_t)(acc[i] - zero);
                sum[i] = k == 0 ? v : sum[i] * v;
            }
            break;
        case SAMEBITS_MAXIMUM:
            for (i = 0; i < n; i++) {
                const int32_t v = samebits_signed32(sum[i]);
                sum[i] = (uint32_t)(k == 0 ? acc[i] : SAMEBITS_MAX(v, acc[i]));
            }
            break;
        default:
            for (i = 0; i < n; i++) {
                const int32_t v = samebits_signed32(sum[i]);
                sum[i] = (uint32_t)(k == 0 ? acc[i] : SAMEBITS_MIN(v, acc[i]));
            }
            break;
        }
    }
    for (i = 0; i < n; i++) acc[i] = samebits_signed32(sum[i]);
}

static void samebits_combine64(const samebits_broadcast *c, const void *const *sources,
                               const int32_t *starts, int32_t n, int64_t *acc) {
    const int32_t last = c->shape.rank - 1;
    uint64_t sum[SAMEBITS_CHUNK];
    int32_t k, i;
    for (i = 0; i < n; i++) sum[i] = (uint64_t)c->offset;
    for (k = 0; k < c->count; k++) {
        const samebits_source *s = c->sources + k;
        samebits_load64(sources[k], s->type, starts[k], s->strides[last], n, acc);
        for (i = 0; i < n; i++) {
            const int64_t v = samebits_signed64(sum[i]);
            if (c->operation == SAMEBITS_SUM) {
                sum[i] += (uint64_t)s->factor * (uint64_t)acc[i];
            } else if (c->operation == SAMEBITS_MULTIPLY) {
                sum[i] = (uint64_t)(acc[i] - s->factor) * (k == 0 ? (uint64_t)1 : sum[i]);
            } else if (c->operation == SAMEBITS_MAXIMUM) {
                sum[i] = (uint64_t)(k == 0 ? acc[i] : SAMEBITS_MAX(v, acc[i]));
            } else {
                sum[i] = (uint64_t)(k == 0 ? acc[i] : SAMEBITS_MIN(v, acc[i]));
            }
        }
    }
    for (i = 0; i < n; i++) acc[i] = samebits_signed64(sum[i]);
}

#define SAMEBITS_MAX_SOURCES 16

void samebits_run_broadcast(const samebits_broadcast *c, const void *const *sources, void *out) {
    const int32_t last = c->shape.rank - 1, inner = c->shape.shape[last];
    int32_t index[SAMEBITS_MAX_RANK] = {0}, starts[SAMEBITS_MAX_SOURCES] = {0};
    int32_t flat = 0, axis, k;
    do {
        int32_t i = 0;
        while (i < inner) {
            int32_t channel, n = samebits_chunk(&c->rescale, flat, inner - i, &channel);
            if (c->wide) {
                int64_t acc[SAMEBITS_CHUNK];
                samebits_combine64(c, sources, starts, n, acc);
                samebits_finish64(&c->rescale, channel, n, acc, out, flat);
            } else {
                int32_t acc[SAMEBITS_CHUNK];
                samebits_combine32(c, sources, starts, n, acc);
                samebits_finish32(&c->rescale, channel, n, acc, out, flat);
            }
            for (k = 0; k < c->count; k++) starts[k] += n * c->sources[k].strides[last];
            i += n;
            flat += n;
        }
        for (k = 0; k < c->count; k++) starts[k] -= inner * c->sources[k].strides[last];
        for (axis = last - 1; axis >= 0; axis--) {
            index[axis]++;
            for (k = 0; k < c->count; k++) starts[k] += c->sources[k].strides[axis];
            if (index[axis] < c->shape.shape[axis]) break;
            for (k = 0; k < c->count; k++) starts[k] -= index[axis] * c->sources[k].strides[axis];
            index[axis] = 0;
        }
    } while (axis >= 0);
}

void samebits_run_affine(const samebits_affine *c, const void *x, void *out) {
    int32_t start, n, first, i;
    for (start = 0; start < c->size; start += n) {
        first = start % c->channels;
        n = SAMEBITS_MIN(c->channels - first, SAMEBITS_CHUNK);
        if (c->wide) {
            const int64_t *m = (const int64_t *)c->factors, *b = (const int64_t *)c->offsets;
            int64_t acc[SAMEBITS_CHUNK];
            samebits_load64(x, c->type, start, 1, n, acc);
            for (i = 0; i < n; i++) {
                acc[i] = samebits_signed64((uint64_t)acc[i] * (uint64_t)m[first + i] +
                                           (uint64_t)b[first + i]);
            }
            samebits_finish64(&c->rescale, c->rescale.channels > 1 ? first : 0, n, acc, out, start);
        } else {
            const int32_t *m = (const int32_t *)c->factors, *b = (const int32_t *)c->offsets;
            int32_t acc[SAMEBITS_CHUNK];
            samebits_load32(x, c->type, start, 1, n, acc);
            for (i = 0; i < n; i++) {
                acc[i] = samebits_signed32((uint32_t)acc[i] * (uint32_t)m[first + i] +
                                           (uint32_t)b[first + i]);
            }
            samebits_finish32(&c->rescale, c->rescale.channels > 1 ? first : 0, n, acc, out, start);
        }
    }
}

void samebits_run_requantize(const samebits_requantize *c, const void *x, void *out) {
    int32_t start, n, channel;
    for (start = 0; start < c->size; start += n) {
        n = samebits_chunk(&c->rescale, start, c->size - start, &channel);
        if (c->type == SAMEBITS_INT64) {
            int64_t acc[SAMEBITS_CHUNK];
            samebits_load64(x, c->type, start, 1, n, acc);
            samebits_finish64(&c->rescale, channel, n, acc, out, start);
        } else {
            int32_t acc[SAMEBITS_CHUNK];
            samebits_load32(x, c->type, start, 1, n, acc);
            samebits_finish32(&c->rescale, channel, n, acc, out, start);
        }
    }
}

void samebits_run_clip(const samebits_clip *c, const void *x, void *out) {
    int32_t i;
    if (c->type == SAMEBITS_INT8) {
        const int8_t low = (int8_t)c->low, high = (int8_t)c->high;
        for (i = 0; i < c->size; i++) {
            const int8_t v = ((const int8_t *)x)[i];
            ((int8_t *)out)[i] = SAMEBITS_MIN(SAMEBITS_MAX(v, low), high);
        }
    } else {
        for (i = 0; i < c->size; i++) {
            samebits_put(out, c->type, i,
                         samebits_clamp64(samebits_get(x, c->type, i), c->low, c->high));
        }
    }
}

/* Codes of `type` as indices from 0. */
SAMEBITS_INLINE int32_t samebits_index(const void *x, uint8_t type, int32_t i) {
    switch (type) {
    case SAMEBITS_INT8: return ((const int8_t *)x)[i] + 128;
    case SAMEBITS_UINT8: return ((const uint8_t *)x)[i];
    case SAMEBITS_INT16: return (int32_t)((const samebits_i16 *)x)[i] + 32768;
    default: return ((const samebits_u16 *)x)[i];
    }
}

void samebits_run_table(const samebits_table *c, const void *x, void *out) {
    const int32_t wide = c->type >= SAMEBITS_INT16;
    int32_t i, channel = 0;
    if (c->channels == 1 && !wide && c->out_type <= SAMEBITS_UINT8) {
        const uint8_t *table = (const uint8_t *)c->table, *from = (const uint8_t *)x;
        const uint8_t flip = c->type == SAMEBITS_INT8 ? 0x80 : 0;
        uint8_t *to = (uint8_t *)out;
        for (i = 0; i < c->size; i++) to[i] = table[(uint8_t)(from[i] ^ flip)];
        return;
    }
    for (i = 0; i < c->size; i++) {
        const int32_t row = channel * (wide ? 65536 : 256);
        const int32_t entry = row + samebits_index(x, c->type, i);
        samebits_put(out, c->out_type, i, samebits_get(c->table, c->out_type, entry));
        channel = channel + 1 == c->channels ? 0 : channel + 1;
    }
}

void samebits_run_cubic(const samebits_cubic *c, const void *x, void *out) {
    const int64_t half = (int64_t)1 << (c->shift0 - 1);
    int32_t i;
    for (i = 0; i < c->size; i++) {
        const int32_t u = samebits_index(x, c->type, i);
        const int32_t *k = c->coefficients + 4 * (u >> c->bits);
        const int64_t r = u & (((int32_t)1 << c->bits) - 1);
        int64_t v = samebits_floor64(k[3] * r, c->shift3) + k[2];
        v = samebits_floor64(v * r, c->shift2) + k[1];
        v = samebits_floor64(v * r, c->shift1) + k[0];
        v = samebits_floor64(v + half, c->shift0);
        samebits_put(out, c->out_type, i, samebits_clamp64(v, c->low, c->high));
    }
}
