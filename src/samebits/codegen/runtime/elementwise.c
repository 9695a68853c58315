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

#ifdef SAMEBITS_AVX512
/* Sums of tensors of one shape in 64 bits, to codes; sources of at most 32 bits. 0 for all others. */
static int samebits_sums64(const samebits_broadcast *c, const void *const *sources, void *out) {
    const int32_t size = c->shape.shape[0];
    const samebits_rescale r = c->rescale; /* no store changes it */
    int32_t i, k;
    if (c->operation != SAMEBITS_SUM || r.form != SAMEBITS_WIDE) return 0;
    for (k = 0; k < c->count; k++) {
        if (c->sources[k].type == SAMEBITS_INT64) return 0;
    }
    for (i = 0; i < size; i += 16) {
        const __mmask16 mask = samebits_first(size - i);
        __m512i low = _mm512_set1_epi64(c->offset), high = low;
        for (k = 0; k < c->count; k++) {
            const __m512i factor = _mm512_set1_epi64(c->sources[k].factor);
            const __m512i x = samebits_load16(c->sources[k].type, sources[k], i, mask);
            const __m512i a = _mm512_cvtepi32_epi64(_mm512_castsi512_si256(x));
            const __m512i b = _mm512_cvtepi32_epi64(_mm512_extracti64x4_epi64(x, 1));
            low = _mm512_add_epi64(low, _mm512_mullo_epi64(a, factor));
            high = _mm512_add_epi64(high, _mm512_mullo_epi64(b, factor));
        }
        samebits_store16(
            r.type, out, i, mask,
            _mm512_inserti64x4(
                _mm512_castsi256_si512(_mm512_cvtepi64_epi32(samebits_wide8(&r, low))),
                _mm512_cvtepi64_epi32(samebits_wide8(&r, high)), 1));
    }
    return 1;
}

/* Sums and products of tensors of one shape in 32 bits, or as above; 0 for all others. */
static int samebits_elements(const samebits_broadcast *c, const void *const *sources, void *out) {
    const int32_t size = c->shape.shape[0], store = c->rescale.form == SAMEBITS_STORE;
    const samebits_rescale r = c->rescale; /* no store changes it */
    int32_t i, k;
    if (c->shape.rank != 1 || c->operation > SAMEBITS_MULTIPLY || r.channels > 1) return 0;
    for (k = 0; k < c->count; k++) {
        if (c->sources[k].strides[0] != 1) return 0;
    }
    if (c->wide) return samebits_sums64(c, sources, out);
    if (!(store || samebits_has_vector(&r))) return 0;
    for (i = 0; i < size; i += 16) {
        const __mmask16 mask = samebits_first(size - i);
        __m512i v = _mm512_set1_epi32((int32_t)c->offset);
        for (k = 0; k < c->count; k++) {
            const __m512i factor = _mm512_set1_epi32((int32_t)c->sources[k].factor);
            const __m512i x = samebits_load16(c->sources[k].type, sources[k], i, mask);
            if (c->operation == SAMEBITS_SUM) {
                v = _mm512_add_epi32(v, _mm512_mullo_epi32(x, factor));
            } else {
                const __m512i centred = _mm512_sub_epi32(x, factor);
                v = k == 0 ? centred : _mm512_mullo_epi32(v, centred);
            }
        }
        if (!store) v = samebits_sixteen(&r, v, mask, 0);
        samebits_store16(r.type, out, i, mask, v);
    }
    return 1;
}
#endif

void samebits_run_broadcast(const samebits_broadcast *c, const void *const *sources, void *out) {
    const int32_t last = c->shape.rank - 1, inner = c->shape.shape[last];
    int32_t index[SAMEBITS_MAX_RANK] = {0}, starts[SAMEBITS_MAX_SOURCES] = {0};
    int32_t flat = 0, axis, k;
#ifdef SAMEBITS_AVX512
    if (samebits_elements(c, sources, out)) return;
#endif
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

#ifdef SAMEBITS_AVX512
/* c[at[0]] to c[at[7]], four numbers each, by number. */
SAMEBITS_INLINE void samebits_transposed(const int32_t *c, const int32_t *at, __m256i *k) {
    __m256i rows[4], a, b;
    int32_t i;
    for (i = 0; i < 4; i++) {
        const __m128i *p = (const __m128i *)(const void *)(c + at[i]);
        const __m128i *q = (const __m128i *)(const void *)(c + at[4 + i]);
        rows[i] = _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128(p)),
                                          _mm_loadu_si128(q), 1);
    }
    a = _mm256_unpacklo_epi32(rows[0], rows[1]);
    b = _mm256_unpacklo_epi32(rows[2], rows[3]);
    k[0] = _mm256_unpacklo_epi64(a, b);
    k[1] = _mm256_unpackhi_epi64(a, b);
    a = _mm256_unpackhi_epi32(rows[0], rows[1]);
    b = _mm256_unpackhi_epi32(rows[2], rows[3]);
    k[2] = _mm256_unpacklo_epi64(a, b);
    k[3] = _mm256_unpackhi_epi64(a, b);
}

/* 16-bit codes to codes of 8 or 16 bits. */
static void samebits_cubics(const samebits_cubic *parameters, const void *x, void *out) {
    const samebits_cubic own = *parameters, *c = &own; /* no store changes it */
    const __m512i half = _mm512_set1_epi64((int64_t)1 << (c->shift0 - 1));
    const __m512i least = _mm512_set1_epi32(c->type == SAMEBITS_INT16 ? 32768 : 0);
    const __m512i below = _mm512_set1_epi32(((int32_t)1 << c->bits) - 1);
    int32_t i, n;
    for (i = 0; i < c->size; i += 16) {
        const __mmask16 mask = samebits_first(c->size - i);
        const __m512i u = _mm512_add_epi32(samebits_load16(c->type, x, i, mask), least);
        const __m512i r = _mm512_and_si512(u, below);
        int32_t at[16];
        __m256i y[2];
        _mm512_storeu_si512(
            at, _mm512_slli_epi32(_mm512_srl_epi32(u, _mm_cvtsi32_si128(c->bits)), 2));
        for (n = 0; n < 2; n++) { /* Horner's scheme in 8 lanes of 64 bits */
            const __m512i rest = _mm512_cvtepi32_epi64(n == 0 ? _mm512_castsi512_si256(r)
                                                              : _mm512_extracti64x4_epi64(r, 1));
            __m256i k[4];
            __m512i v;
            samebits_transposed(c->coefficients, at + 8 * n, k);
            v = _mm512_mullo_epi64(_mm512_cvtepi32_epi64(k[3]), rest);
            v = _mm512_sra_epi64(v, _mm_cvtsi32_si128(c->shift3));
            v = _mm512_mullo_epi64(_mm512_add_epi64(v, _mm512_cvtepi32_epi64(k[2])), rest);
            v = _mm512_sra_epi64(v, _mm_cvtsi32_si128(c->shift2));
            v = _mm512_mullo_epi64(_mm512_add_epi64(v, _mm512_cvtepi32_epi64(k[1])), rest);
            v = _mm512_sra_epi64(v, _mm_cvtsi32_si128(c->shift1));
            v = _mm512_add_epi64(_mm512_add_epi64(v, _mm512_cvtepi32_epi64(k[0])), half);
            v = _mm512_sra_epi64(v, _mm_cvtsi32_si128(c->shift0));
            v = _mm512_max_epi64(v, _mm512_set1_epi64(c->low));
            y[n] = _mm512_cvtepi64_epi32(_mm512_min_epi64(v, _mm512_set1_epi64(c->high)));
        }
        samebits_store16(c->out_type, out, i, mask,
                         _mm512_inserti64x4(_mm512_castsi256_si512(y[0]), y[1], 1));
    }
}
#endif

void samebits_run_cubic(const samebits_cubic *c, const void *x, void *out) {
    const int64_t half = (int64_t)1 << (c->shift0 - 1);
    int32_t i;
#ifdef SAMEBITS_AVX512
    if (c->out_type <= SAMEBITS_UINT16) {
        samebits_cubics(c, x, out);
        return;
    }
#endif
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
