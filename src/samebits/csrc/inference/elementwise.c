/* --- element by element ------------------------------------------------------------------------
 *
 * Sums, products, maxima and minima of broadcast tensors, affine maps, clips, and functions of one
 * code: a table of every code, piecewise cubics (tables/cubic.py defines their arithmetic, every
 * step of it integer), or straight lines (tables/lines.py).
 *
 * Bounds: sums and products wrap modulo 2**32, or 2**64 where the lowering says `wide`; it has
 * proved that what they are at the end fits. The vector forms add the same numbers 16 at a time. */

#include "samebits_vector.h"

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
/* Sums of tensors of one shape in 64 bits, to codes; sources of at most 32 bits. 0 for others. */
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
            const int64_t factor = c->sources[k].factor;
            const __m512i f = _mm512_set1_epi64(factor);
            const __m512i x = samebits_load16(c->sources[k].type, sources[k], i, mask);
            const __m512i a = _mm512_cvtepi32_epi64(_mm512_castsi512_si256(x));
            const __m512i b = _mm512_cvtepi32_epi64(_mm512_extracti64x4_epi64(x, 1));
            if (factor == (int32_t)factor) {
                low = _mm512_add_epi64(low, _mm512_mul_epi32(a, f));
                high = _mm512_add_epi64(high, _mm512_mul_epi32(b, f));
            } else {
                low = _mm512_add_epi64(low, _mm512_mullo_epi64(a, f));
                high = _mm512_add_epi64(high, _mm512_mullo_epi64(b, f));
            }
        }
        samebits_store16(
            r.type, out, i, mask,
            _mm512_inserti64x4(
                _mm512_castsi256_si512(_mm512_cvtepi64_epi32(samebits_wide8(&r, low))),
                _mm512_cvtepi64_epi32(samebits_wide8(&r, high)), 1));
    }
    return 1;
}

/* Sums or products of tensors of one shape in 32 bits. The inputs of a gate and of a cell come with
 * numbers that the compiler knows; type SAMEBITS_INT64: any of at most 32 bits. */
SAMEBITS_INLINE void samebits_sums32(const samebits_broadcast *c, const void *const *sources,
                                     void *out, uint8_t operation, int32_t count, uint8_t type,
                                     int32_t upper, samebits_rescale r) {
    const int32_t size = c->shape.shape[0];
    const samebits_constants own = upper ? samebits_constants_of(&r) : (samebits_constants){0};
    const __m512i offset = _mm512_set1_epi32((int32_t)c->offset);
    int32_t i, k;
    for (i = 0; i < size; i += 16) {
        const __mmask16 mask = samebits_first(size - i);
        __m512i v = offset;
        for (k = 0; k < count; k++) {
            const __m512i factor = _mm512_set1_epi32((int32_t)c->sources[k].factor);
            const uint8_t known = type == SAMEBITS_INT64 ? c->sources[k].type : type;
            const __m512i x = samebits_load16(known, sources[k], i, mask);
            if (operation == SAMEBITS_SUM) {
                v = _mm512_add_epi32(v, _mm512_mullo_epi32(x, factor));
            } else {
                const __m512i centred = _mm512_sub_epi32(x, factor);
                v = k == 0 ? centred : _mm512_mullo_epi32(v, centred);
            }
        }
        v = upper ? samebits_upper16(&own, v) : samebits_sixteen(&r, v, mask, 0);
        samebits_store16(r.type, out, i, mask, v);
    }
}

/* Two tensors of these types, and this requantization; 0 for others. */
SAMEBITS_INLINE int samebits_known(const samebits_broadcast *c, const void *const *sources,
                                   void *out, uint8_t operation, uint8_t source, uint8_t form,
                                   uint8_t type, int32_t upper) {
    samebits_rescale r = c->rescale;
    if (c->count != 2 || c->operation != operation || c->sources[0].type != source ||
        c->sources[1].type != source || r.form != form || r.type != type ||
        samebits_upper(&r) != upper) {
        return 0;
    }
    r.form = form;
    r.type = type;
    r.channels = 1;
    samebits_sums32(c, sources, out, operation, 2, source, upper, r);
    return 1;
}

/* Sums and products of tensors of one shape in 32 bits, or as above; 0 for all others. */
static int samebits_elements(const samebits_broadcast *c, const void *const *sources, void *out) {
    const samebits_rescale r = c->rescale; /* no store changes it */
    int32_t k;
    if (c->shape.rank != 1 || c->operation > SAMEBITS_MULTIPLY || r.channels > 1) return 0;
    for (k = 0; k < c->count; k++) {
        if (c->sources[k].strides[0] != 1) return 0;
    }
    if (c->wide) return samebits_sums64(c, sources, out);
    if (samebits_elements8(c, sources, out)) return 1;
    if (!samebits_has_vector(&r)) return 0;
    if (samebits_known(c, sources, out, SAMEBITS_SUM, SAMEBITS_INT32, SAMEBITS_PRODUCT,
                       SAMEBITS_INT16, 1) ||
        samebits_known(c, sources, out, SAMEBITS_SUM, SAMEBITS_INT32, SAMEBITS_SHIFT,
                       SAMEBITS_INT16, 0) ||
        samebits_known(c, sources, out, SAMEBITS_MULTIPLY, SAMEBITS_INT16, SAMEBITS_STORE,
                       SAMEBITS_INT32, 0) ||
        samebits_known(c, sources, out, SAMEBITS_MULTIPLY, SAMEBITS_INT16, SAMEBITS_TIES,
                       SAMEBITS_INT8, 1)) {
        return 1;
    }
    if (samebits_upper(&r)) {
        samebits_sums32(c, sources, out, c->operation, c->count, SAMEBITS_INT64, 1, r);
    } else {
        samebits_sums32(c, sources, out, c->operation, c->count, SAMEBITS_INT64, 0, r);
    }
    return 1;
}
#endif

void samebits_run_broadcast(const samebits_broadcast *c, const void *const *sources, void *out) {
    const int32_t last = c->shape.rank - 1, inner = c->shape.shape[last];
    const int gate = samebits_is_gate(c, last);
    int32_t index[SAMEBITS_MAX_RANK] = {0}, starts[SAMEBITS_MAX_SOURCES] = {0};
    int32_t flat = 0, axis, k;
#ifdef SAMEBITS_AVX512
    if (samebits_elements(c, sources, out)) return;
#else
    if (samebits_pair(c, sources, out)) return;
#endif
    do {
        int32_t i = 0;
        if (gate) {
            samebits_gated(c, (const int8_t *)sources[0] + starts[0], c->sources[0].strides[last],
                           (const int8_t *)sources[1] + starts[1], c->sources[1].strides[last],
                           inner, (int8_t *)out + flat);
            for (k = 0; k < 2; k++) starts[k] += inner * c->sources[k].strides[last];
            flat += inner;
            i = inner;
        }
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
/* table[at], 16 times; tables of up to 64 numbers are looked up in registers. */
SAMEBITS_INLINE __m512i samebits_lookup(const int32_t *table, const int32_t size, __m512i at) {
    __m512i low, high;
    if (size > 64) return _mm512_i32gather_epi32(at, table, 4);
    low = _mm512_loadu_si512(table);
    if (size == 16) return _mm512_permutexvar_epi32(at, low);
    low = _mm512_permutex2var_epi32(low, at, _mm512_loadu_si512(table + 16));
    if (size == 32) return low;
    high = _mm512_permutex2var_epi32(_mm512_loadu_si512(table + 32), at,
                                     _mm512_loadu_si512(table + 48));
    return _mm512_mask_mov_epi32(low, _mm512_test_epi32_mask(at, _mm512_set1_epi32(32)), high);
}

/* v * r >> shift, to 32 bits: of 64-bit products, or of 32 bits. */
SAMEBITS_INLINE __m512i samebits_scaled(__m512i v, __m512i r, int32_t shift, const int32_t short_) {
    __m512i even, odd;
    if (short_) return _mm512_sra_epi32(_mm512_mullo_epi32(v, r), _mm_cvtsi32_si128(shift));
    even = _mm512_mul_epi32(v, r);
    odd = _mm512_mul_epi32(_mm512_srli_epi64(v, 32), _mm512_srli_epi64(r, 32));
    even = _mm512_srl_epi64(even, _mm_cvtsi32_si128(shift));
    odd = _mm512_sll_epi64(odd, _mm_cvtsi32_si128(32 - shift));
    return _mm512_mask_mov_epi32(even, 0xaaaa, odd);
}

/* Codes of 16 codes less the middle one of their type, by a table of `segments`. */
SAMEBITS_INLINE __m512i samebits_cubic16(const samebits_cubic *c, __m512i code,
                                         const int32_t segments, const int32_t short_) {
    const __m512i u =
        c->mirrored ? _mm512_min_epi32(_mm512_abs_epi32(code), _mm512_set1_epi32(32767))
                    : _mm512_add_epi32(code, _mm512_set1_epi32(32768));
    const __m512i at = _mm512_srl_epi32(u, _mm_cvtsi32_si128(c->bits));
    const __m512i r = _mm512_and_si512(u, _mm512_set1_epi32(((int32_t)1 << c->bits) - 1));
    __m512i k[4], v;
    int32_t n;
    for (n = 0; n < 4; n++) k[n] = samebits_lookup(c->coefficients + n * segments, segments, at);
    v = _mm512_add_epi32(samebits_scaled(k[3], r, c->shift3, short_), k[2]);
    v = _mm512_add_epi32(samebits_scaled(v, r, c->shift2, short_), k[1]);
    v = _mm512_add_epi32(samebits_scaled(v, r, c->shift1, 0), k[0]);
    v = _mm512_add_epi32(v, _mm512_set1_epi32((int32_t)1 << (c->shift0 - 1)));
    v = _mm512_sra_epi32(v, _mm_cvtsi32_si128(c->shift0));
    if (c->mirrored) {
        v = _mm512_mask_sub_epi32(v, _mm512_movepi32_mask(code), _mm512_set1_epi32(c->mirror), v);
    }
    return _mm512_min_epi32(_mm512_max_epi32(v, _mm512_set1_epi32(c->low)),
                            _mm512_set1_epi32(c->high));
}

/* 16-bit codes to codes of 8 or 16 bits. */
SAMEBITS_INLINE void samebits_cubics(const samebits_cubic *parameters, const void *x, void *out,
                                     const int32_t segments, const int32_t short_) {
    const samebits_cubic c = *parameters; /* no store changes it */
    const __m512i middle = _mm512_set1_epi32(c.type == SAMEBITS_INT16 ? 0 : 32768);
    int32_t i;
    for (i = 0; i < c.size; i += 16) {
        const __mmask16 mask = samebits_first(c.size - i);
        const __m512i code = _mm512_sub_epi32(samebits_load16(c.type, x, i, mask), middle);
        samebits_store16(c.out_type, out, i, mask, samebits_cubic16(&c, code, segments, short_));
    }
}
#endif

void samebits_run_cubic(const samebits_cubic *c, const void *x, void *out) {
    const int64_t half = (int64_t)1 << (c->shift0 - 1);
    int32_t i;
#ifdef SAMEBITS_AVX512
    if (c->narrow && c->out_type <= SAMEBITS_UINT16) {
        if (c->segments == 64 && c->narrow == 2) {
            samebits_cubics(c, x, out, 64, 1);
        } else if (c->segments == 16 && c->narrow == 2) {
            samebits_cubics(c, x, out, 16, 1);
        } else {
            samebits_cubics(c, x, out, c->segments, 0);
        }
        return;
    }
#else
    if (samebits_narrow_cubic(c, x, out)) return;
#endif
    for (i = 0; i < c->size; i++) {
        const int32_t code = samebits_index(x, c->type, i) - 32768;
        int32_t u = code + 32768, r;
        const int32_t *k;
        int64_t v;
        if (c->mirrored) u = SAMEBITS_MIN(code < 0 ? -code : code, 32767);
        k = c->coefficients + (u >> c->bits);
        r = u & (((int32_t)1 << c->bits) - 1);
        if (c->narrow == 2) {
            int32_t w = samebits_floor32(k[3 * c->segments] * r, c->shift3) + k[2 * c->segments];
            v = samebits_floor32(w * r, c->shift2) + k[c->segments];
        } else {
            v = samebits_floor64((int64_t)k[3 * c->segments] * r, c->shift3) + k[2 * c->segments];
            v = samebits_floor64(v * r, c->shift2) + k[c->segments];
        }
        v = samebits_floor64(v * r, c->shift1) + k[0];
        v = samebits_floor64(v + half, c->shift0);
        if (c->mirrored && code < 0) v = c->mirror - v;
        samebits_put(out, c->out_type, i, samebits_clamp64(v, c->low, c->high));
    }
}

void samebits_run_lines(const samebits_lines *c, const void *x, void *out) {
    const int32_t half = ((int32_t)1 << c->left) >> 1, rest = ((int32_t)1 << c->bits) - 1;
    int32_t i;
    for (i = 0; i < c->size; i++) {
        const int32_t code = samebits_index(x, c->type, i) - 32768, below = code < 0;
        int32_t w = code + 32768, at, v;
        if (c->mirrored) {
            w = ((below ? -code : code) * c->factor + half - (below && half)) >> c->left;
        }
        at = SAMEBITS_MIN(w >> c->bits, c->last);
        v = (int32_t)c->heights[at] << c->bits;
        if (at < c->last) v += (w & rest) * ((int32_t)c->heights[at + 1] - c->heights[at]);
        v = ((v + (((int32_t)1 << c->shift) >> 1)) >> c->shift) - c->offset;
        v = SAMEBITS_MIN(v, c->top);
        samebits_put(out, c->out_type, i, c->mirrored && below ? c->mirror - v : v);
    }
}
