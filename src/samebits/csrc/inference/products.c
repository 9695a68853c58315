/* --- products, pools, reductions ---------------------------------------------------------------
 *
 * Matrix products of two tensors, maxima and sums of windows, reductions, softmax, argmax.
 *
 * Bounds: products sum up modulo 2**32, or in 64 bits where the lowering says `wide`; it has proved
 * that the end fits. Windows are summed in 32 bits along a row of at most 2**15 codes of 16 bits,
 * in 64 beyond. Softmax looks exp of differences up in a table (its entries: docs/spec/graph.md,
 * section 4) and rounds one exact ratio a code. */

#include "samebits_vector.h"

/* The next element of an odometer over `shape`; 0 when it starts again. `a` and `b` are offsets. */
static int32_t samebits_next(const samebits_shape *shape, int32_t *index, const int32_t *strides_a,
                             int32_t *a, const int32_t *strides_b, int32_t *b) {
    int32_t axis;
    for (axis = shape->rank - 1; axis >= 0; axis--) {
        index[axis]++;
        *a += strides_a[axis];
        *b += strides_b[axis];
        if (index[axis] < shape->shape[axis]) return 1;
        *a -= index[axis] * strides_a[axis];
        *b -= index[axis] * strides_b[axis];
        index[axis] = 0;
    }
    return 0;
}

void samebits_run_matmul(const samebits_matmul *c, const void *a, const void *b, void *out) {
    int32_t index[SAMEBITS_MAX_RANK] = {0};
    int32_t at_a = 0, at_b = 0, flat = 0, row, column, k, n, i, channel;
#if SAMEBITS_SMALL
    const int32_t rows8 = !c->wide && c->a_type == SAMEBITS_INT8 && c->b_type == SAMEBITS_INT8 &&
                          c->a_zero < 1 << 14 && c->a_zero > -(1 << 14);
#endif
    do {
        for (row = 0; row < c->rows; row++) {
            for (column = 0; column < c->columns; column += n, flat += n) {
                n = SAMEBITS_MIN(c->columns - column, SAMEBITS_CHUNK);
                channel = c->rescale.channels > 1 ? column : 0;
#if SAMEBITS_SMALL
                if (rows8) {
                    int32_t acc[SAMEBITS_CHUNK];
                    samebits_row8(c, (const int8_t *)a + at_a + row * c->depth,
                                  (const int8_t *)b + at_b + column, n, acc);
                    samebits_finish32(&c->rescale, channel, n, acc, out, flat);
                    continue;
                }
#endif
                if (c->wide) {
                    int64_t acc[SAMEBITS_CHUNK] = {0}, term[SAMEBITS_CHUNK];
                    for (k = 0; k < c->depth; k++) {
                        const int64_t v =
                            samebits_get(a, c->a_type, at_a + row * c->depth + k) - c->a_zero;
                        samebits_load64(b, c->b_type, at_b + k * c->columns + column, 1, n, term);
                        for (i = 0; i < n; i++) acc[i] += v * (term[i] - c->b_zero);
                    }
                    samebits_finish64(&c->rescale, channel, n, acc, out, flat);
                } else {
                    uint32_t sum[SAMEBITS_CHUNK] = {0};
                    int32_t acc[SAMEBITS_CHUNK];
                    for (k = 0; k < c->depth; k++) {
                        const uint32_t v = (uint32_t)(int32_t)(
                            samebits_get(a, c->a_type, at_a + row * c->depth + k) - c->a_zero);
                        samebits_load32(b, c->b_type, at_b + k * c->columns + column, 1, n, acc);
                        for (i = 0; i < n; i++) sum[i] += v * (uint32_t)(acc[i] - c->b_zero);
                    }
                    for (i = 0; i < n; i++) acc[i] = samebits_signed32(sum[i]);
                    samebits_finish32(&c->rescale, channel, n, acc, out, flat);
                }
            }
        }
    } while (samebits_next(&c->leading, index, c->a_strides, &at_a, c->b_strides, &at_b));
}

/* The taps of a window that lie inside: from *first to before *last. */
static void samebits_inside(int32_t start, int32_t dilation, int32_t kernel, int32_t size,
                            int32_t *first, int32_t *last) {
    *first = start < 0 ? (-start + dilation - 1) / dilation : 0;
    *last = start < size ? SAMEBITS_MIN((size - 1 - start) / dilation + 1, kernel) : 0;
}

/* A window: `rows` times `columns` codes of every channel, `down` and `right` codes apart. */
typedef struct {
    int32_t channels, rows, columns, down, right;
} samebits_maxima;

#if defined(__ARM_FEATURE_MVE) && defined(__GNUC__)
/* A vector of channels at a time, of the last those only that there are. */
#define SAMEBITS_MAX_VECTORS(T, V, lanes, some_of, load, larger, store)                            \
    for (; i < m->channels; i += lanes) {                                                          \
        const mve_pred16_t some = some_of((uint32_t)(m->channels - i));                            \
        const T *row = from + i;                                                                   \
        V best = load(row, some);                                                                  \
        for (p = 0; p < m->rows; p++, row += m->down) {                                            \
            const T *at = row;                                                                     \
            for (q = 0; q < m->columns; q++, at += m->right) {                                     \
                best = larger(best, load(at, some));                                               \
            }                                                                                      \
        }                                                                                          \
        store(to + i, best, some);                                                                 \
    }
#define SAMEBITS_MAX_INT8                                                                          \
    SAMEBITS_MAX_VECTORS(int8_t, int8x16_t, 16, vctp8q, vldrbq_z_s8, vmaxq_s8, vstrbq_p_s8)
#define SAMEBITS_MAX_UINT8                                                                         \
    SAMEBITS_MAX_VECTORS(uint8_t, uint8x16_t, 16, vctp8q, vldrbq_z_u8, vmaxq_u8, vstrbq_p_u8)
#elif defined(__ARM_FEATURE_DSP) && defined(__GNUC__)
/* Four channels at a time: the flags of a difference of bytes choose the larger. */
#define SAMEBITS_MAX_WORDS(T, difference)                                                          \
    for (; i + 4 <= m->channels; i += 4) {                                                         \
        const T *row = from + i;                                                                   \
        uint32_t best, four;                                                                       \
        __builtin_memcpy(&best, row, 4);                                                           \
        for (p = 0; p < m->rows; p++, row += m->down) {                                            \
            const T *at = row;                                                                     \
            for (q = 0; q < m->columns; q++, at += m->right) {                                     \
                __builtin_memcpy(&four, at, 4);                                                    \
                __asm__(difference " r12, %0, %1\n\tsel %0, %0, %1"                                \
                        : "+r"(best)                                                               \
                        : "r"(four)                                                                \
                        : "r12", "cc");                                                            \
            }                                                                                      \
        }                                                                                          \
        __builtin_memcpy(to + i, &best, 4);                                                        \
    }
#define SAMEBITS_MAX_INT8 SAMEBITS_MAX_WORDS(int8_t, "ssub8")
#define SAMEBITS_MAX_UINT8 SAMEBITS_MAX_WORDS(uint8_t, "usub8")
#else
#define SAMEBITS_MAX_INT8
#define SAMEBITS_MAX_UINT8
#endif

/* The maxima of a window; vectors: of as many channels as there are ways for. */
#define SAMEBITS_MAX_OF(name, T, vectors)                                                          \
    static void name(const samebits_maxima *m, const T *from, T *to) {                             \
        int32_t i = 0, p, q;                                                                       \
        vectors                                                                                    \
        for (; i < m->channels; i++) {                                                             \
            const T *row = from + i;                                                               \
            T best = *row;                                                                         \
            for (p = 0; p < m->rows; p++, row += m->down) {                                        \
                const T *at = row;                                                                 \
                for (q = 0; q < m->columns; q++, at += m->right) best = SAMEBITS_MAX(best, *at);   \
            }                                                                                      \
            to[i] = best;                                                                          \
        }                                                                                          \
    }
SAMEBITS_MAX_OF(samebits_max_int8, int8_t, SAMEBITS_MAX_INT8)
SAMEBITS_MAX_OF(samebits_max_uint8, uint8_t, SAMEBITS_MAX_UINT8)
SAMEBITS_MAX_OF(samebits_max_int16, samebits_i16, )
SAMEBITS_MAX_OF(samebits_max_uint16, samebits_u16, )

void samebits_run_max_pool(const samebits_pool *c, const void *x, void *out) {
    samebits_maxima m;
    int32_t n, oy, ox, target = 0;
    m.channels = c->channels;
    m.right = c->dilation_x * c->channels;
    m.down = c->dilation_y * c->width * c->channels;
    for (n = 0; n < c->batch; n++) {
        for (oy = 0; oy < c->out_height; oy++) {
            const int32_t top = oy * c->stride_y - c->pad_top;
            int32_t p0, p1;
            samebits_inside(top, c->dilation_y, c->kernel_height, c->height, &p0, &p1);
            m.rows = p1 - p0;
            for (ox = 0; ox < c->out_width; ox++, target += c->channels) {
                const int32_t left = ox * c->stride_x - c->pad_left;
                const int32_t y = top + p0 * c->dilation_y;
                int32_t q0, q1, source;
                samebits_inside(left, c->dilation_x, c->kernel_width, c->width, &q0, &q1);
                m.columns = q1 - q0;
                source = (n * c->height + y) * c->width + left + q0 * c->dilation_x;
                source *= c->channels;
                switch (c->type) {
                case SAMEBITS_INT8:
                    samebits_max_int8(&m, (const int8_t *)x + source, (int8_t *)out + target);
                    break;
                case SAMEBITS_UINT8:
                    samebits_max_uint8(&m, (const uint8_t *)x + source, (uint8_t *)out + target);
                    break;
                case SAMEBITS_INT16:
                    samebits_max_int16(&m, (const samebits_i16 *)x + source,
                                       (samebits_i16 *)out + target);
                    break;
                default:
                    samebits_max_uint16(&m, (const samebits_u16 *)x + source,
                                        (samebits_u16 *)out + target);
                }
            }
        }
    }
}

/* sum[i]: of a window of `rows` times `columns` codes of each of n channels. */
static void samebits_add_window(const samebits_pool *c, const int8_t *x, int32_t rows,
                                int32_t columns, int32_t n, int32_t *sum) {
    const int32_t right = c->dilation_x * c->channels;
    const int32_t down = c->dilation_y * c->width * c->channels;
    int32_t i = 0, p, q;
#if defined(__ARM_FEATURE_MVE) && defined(__GNUC__)
    for (; i + 4 <= n; i += 4) {
        int32x4_t all = vdupq_n_s32(0);
        for (p = 0; p < rows; p++) {
            const int8_t *at = x + i + p * down;
            for (q = 0; q < columns; q++, at += right) all = vaddq_s32(all, vldrbq_s32(at));
        }
        vstrwq_s32(sum + i, all);
    }
#endif
    for (; i < n; i++) {
        int32_t all = 0;
        for (p = 0; p < rows; p++) {
            const int8_t *at = x + i + p * down;
            for (q = 0; q < columns; q++, at += right) all += *at;
        }
        sum[i] = all;
    }
}

void samebits_run_sum_pool(const samebits_pool *c, const void *x, void *out) {
    const int32_t narrow = c->rescale.form < SAMEBITS_WIDE && c->kernel_height <= 1 << 8 &&
                           c->rescale.type != SAMEBITS_INT64;
    int32_t n, oy, ox, p, q, i, channel, count, target = 0;
    for (n = 0; n < c->batch; n++) {
        for (oy = 0; oy < c->out_height; oy++) {
            for (ox = 0; ox < c->out_width; ox++) {
                const int32_t top = oy * c->stride_y - c->pad_top;
                const int32_t left = ox * c->stride_x - c->pad_left;
                int32_t p0, p1, q0, q1;
                int64_t taps, factor;
                samebits_inside(top, c->dilation_y, c->kernel_height, c->height, &p0, &p1);
                samebits_inside(left, c->dilation_x, c->kernel_width, c->width, &q0, &q1);
                taps = (int64_t)(p1 - p0) * (q1 - q0);
                factor = c->balance ? c->balance / taps : 1;
                for (channel = 0; channel < c->channels; channel += count, target += count) {
                    const int32_t own = c->rescale.channels > 1 ? channel : 0;
                    int64_t acc[SAMEBITS_CHUNK];
                    int32_t sum[SAMEBITS_CHUNK] = {0}, term[SAMEBITS_CHUNK];
                    count = SAMEBITS_MIN(c->channels - channel, SAMEBITS_CHUNK);
                    if (c->type == SAMEBITS_INT8 && narrow) {
                        const int8_t *row = (const int8_t *)x + channel;
                        row += ((n * c->height + top + p0 * c->dilation_y) * c->width + left +
                                q0 * c->dilation_x) * c->channels;
                        samebits_add_window(c, row, p1 - p0, q1 - q0, count, sum);
                        for (i = 0; i < count; i++) {
                            const uint32_t acc32 = (uint32_t)sum[i] - (uint32_t)(taps * c->zero);
                            sum[i] = samebits_signed32(acc32 * (uint32_t)factor);
                        }
                        samebits_finish32(&c->rescale, own, count, sum, out, target);
                        continue;
                    }
                    for (i = 0; i < count; i++) acc[i] = -taps * c->zero;
                    for (p = p0; p < p1; p++) {
                        for (q = q0; q < q1; q++) {
                            const int32_t y = top + p * c->dilation_y, z = left + q * c->dilation_x;
                            const int32_t from =
                                ((n * c->height + y) * c->width + z) * c->channels + channel;
                            samebits_load32(x, c->type, from, 1, count, term);
                            for (i = 0; i < count; i++) sum[i] += term[i];
                        }
                        for (i = 0; i < count; i++) { /* a row of at most 2**15 codes fits */
                            acc[i] += sum[i];
                            sum[i] = 0;
                        }
                    }
                    for (i = 0; i < count; i++) acc[i] *= factor;
                    samebits_finish64(&c->rescale, own, count, acc, out, target);
                }
            }
        }
    }
}

/* Sums, maxima or minima of n kept elements, `step` apart, over all reduced ones. */
static void samebits_fold(const samebits_reduce *c, const void *x, int32_t start, int32_t step,
                          int32_t n, int64_t *acc) {
    int32_t index[SAMEBITS_MAX_RANK] = {0};
    int64_t term[SAMEBITS_CHUNK];
    int32_t at = 0, unused = 0, i, first = 1;
    do {
        samebits_load64(x, c->type, start + at, step, n, term);
        if (c->operation == SAMEBITS_REDUCE_SUM) {
            for (i = 0; i < n; i++) acc[i] = (first ? 0 : acc[i]) + (term[i] - c->zero);
        } else if (c->operation == SAMEBITS_REDUCE_MAX) {
            for (i = 0; i < n; i++) acc[i] = first ? term[i] : SAMEBITS_MAX(acc[i], term[i]);
        } else {
            for (i = 0; i < n; i++) acc[i] = first ? term[i] : SAMEBITS_MIN(acc[i], term[i]);
        }
        first = 0;
    } while (samebits_next(&c->reduced, index, c->reduced_strides, &at, c->reduced_strides,
                           &unused));
}

void samebits_run_reduce(const samebits_reduce *c, const void *x, void *out) {
    const int32_t last = c->kept.rank - 1, inner = c->kept.shape[last];
    const int32_t step = c->kept_strides[last];
    int32_t index[SAMEBITS_MAX_RANK] = {0};
    int32_t at = 0, unused = 0, flat = 0, i, n, channel;
    samebits_shape outer = c->kept;
    outer.rank = last;
    do {
        for (i = 0; i < inner; i += n, flat += n) {
            int64_t acc[SAMEBITS_CHUNK];
            n = samebits_chunk(&c->rescale, flat, inner - i, &channel);
            samebits_fold(c, x, at + i * step, step, n, acc);
            samebits_finish64(&c->rescale, channel, n, acc, out, flat);
        }
    } while (samebits_next(&outer, index, c->kept_strides, &at, c->kept_strides, &unused));
}

/* The row of x from `start` on; `mask`, unless 0, says from `at` on which places count. */
static void samebits_softmax_row(const samebits_softmax *c, const void *x, int32_t start,
                                 const void *mask, int32_t at, void *out) {
    int64_t largest = INT64_MIN, sum = 0;
    int32_t i;
    for (i = 0; i < c->columns; i++) {
        if (mask && !samebits_get(mask, c->mask_type, at + i * c->mask_step)) continue;
        largest = SAMEBITS_MAX(largest, samebits_get(x, c->type, start + i));
    }
    for (i = 0; i < c->columns; i++) {
        if (mask && !samebits_get(mask, c->mask_type, at + i * c->mask_step)) continue;
        sum += c->table[largest - samebits_get(x, c->type, start + i)];
    }
    for (i = 0; i < c->columns; i++) {
        int64_t code = 0;
        if (!mask || samebits_get(mask, c->mask_type, at + i * c->mask_step)) {
            const int64_t power = c->table[largest - samebits_get(x, c->type, start + i)];
            code = samebits_quotient(power * c->numerator, sum * c->denominator);
        }
        samebits_put(out, c->out_type, start + i,
                     samebits_clamp64(code + c->zero, c->low, c->high));
    }
}

void samebits_run_masked_softmax(const samebits_softmax *c, const void *x, const void *mask,
                                 void *out) {
    int32_t index[SAMEBITS_MAX_RANK] = {0};
    int32_t start = 0, at = 0;
    do {
        samebits_softmax_row(c, x, start, mask, at, out);
    } while (samebits_next(&c->leading, index, c->strides, &start, c->mask_strides, &at));
}

void samebits_run_softmax(const samebits_softmax *c, const void *x, void *out) {
    samebits_run_masked_softmax(c, x, 0, out);
}

/* a * b / 2**31, halves up. */
static int64_t samebits_high_product(int64_t a, int64_t b) {
    return samebits_floor64(a * b + (1 << 30), 31);
}

/* 1 / total, and the shift by which its products with powers become codes: docs/spec/tflite.md. */
static int64_t samebits_fixed_share(int64_t total, int32_t bits, int32_t *right) {
    int32_t length = 20, i;
    int64_t half, x;
    while (total >> length) length++;
    *right = 11 + length - bits;
    half = ((int64_t)((uint64_t)total << (32 - length))) >> 1;
    x = samebits_high_product(half, -1010580540) + 1515870810;
    for (i = 0; i < 3; i++) {
        x += 4 * samebits_high_product(x, (1 << 29) - samebits_high_product(half, x));
    }
    return SAMEBITS_MIN(2 * x, INT32_MAX);
}

void samebits_run_fixed_softmax(const samebits_softmax *c, const void *x, void *out) {
    const int32_t bits = (int32_t)c->numerator;
    int32_t index[SAMEBITS_MAX_RANK] = {0};
    int32_t start = 0, unused = 0, right, i;
    do {
        int64_t largest = INT64_MIN, total = 0, share;
        for (i = 0; i < c->columns; i++) {
            largest = SAMEBITS_MAX(largest, samebits_get(x, c->type, start + i));
        }
        for (i = 0; i < c->columns; i++) {
            const int64_t power = c->table[largest - samebits_get(x, c->type, start + i)];
            total += (power + 2048) >> 12;
        }
        share = samebits_fixed_share(total, bits, &right);
        for (i = 0; i < c->columns; i++) {
            const int64_t power = c->table[largest - samebits_get(x, c->type, start + i)];
            const int64_t code = samebits_high_product(share, power);
            samebits_put(out, c->out_type, start + i,
                         samebits_clamp64(((code + ((int64_t)1 << right >> 1)) >> right) + c->zero,
                                          c->low, c->high));
        }
    } while (samebits_next(&c->leading, index, c->strides, &start, c->strides, &unused));
}

void samebits_run_divide(const samebits_divide *c, const void *a, const void *b, void *out) {
    int32_t index[SAMEBITS_MAX_RANK] = {0};
    int32_t at_a = 0, at_b = 0, flat = 0;
    do {
        const int64_t divisor = SAMEBITS_MAX(samebits_get(b, c->b_type, at_b), 1);
        const int64_t code = samebits_quotient(samebits_get(a, c->a_type, at_a) * c->numerator,
                                               divisor * c->denominator);
        samebits_put(out, c->out_type, flat++,
                     samebits_clamp64(code + c->zero, c->low, c->high));
    } while (samebits_next(&c->shape, index, c->a_strides, &at_a, c->b_strides, &at_b));
}

void samebits_run_argmax(const samebits_argmax *c, const void *x, void *out) {
    int32_t outer, inner, i;
    for (outer = 0; outer < c->outer; outer++) {
        for (inner = 0; inner < c->inner; inner++) {
            const int32_t start = outer * c->count * c->inner + inner;
            int64_t largest = samebits_get(x, c->type, start);
            int32_t at = 0;
            for (i = 1; i < c->count; i++) {
                const int64_t v = samebits_get(x, c->type, start + i * c->inner);
                if (v > largest) {
                    largest = v;
                    at = i;
                }
            }
            samebits_put(out, SAMEBITS_INT64, outer * c->inner + inner, at);
        }
    }
}
