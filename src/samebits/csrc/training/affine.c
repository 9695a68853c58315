/* Sums that take a few operations an element, the multiply-adds of batch norm and those of two
 * tensors (docs/spec/training.md, 5): they are computed where they are used, and rounded at once,
 * behind a clamp where one follows (mask.h). A loss takes the integers themselves. Channels are
 * last. */
#include <string.h>

#include "mask.h"
#include "parallel.h"
#include "parts.h"

/* Of elements of two operands, or of one and numbers of its channel: the sum, in 32 bits. */
typedef struct {
    const int8_t *a, *b;  /* of an addition, each shifted */
    const int16_t *wide;  /* of a multiply-add, in the place of a where codes have 16 bits */
    const int32_t *m, *k; /* of a multiply-add a * m + k, [c] */
    int64_t c;
    Shift32 by_a, by_b;
} Operands;

#define MULTIPLY_ADDS(name, type)                                                              \
    static void name(const type *restrict a, const Operands *o, int64_t at, int64_t n,         \
                     int32_t *restrict out) {                                                  \
        for (int64_t channel = at % o->c, i = 0; i < n; channel = 0) {                         \
            int64_t end = SAMEBITS_MIN(n, i + o->c - channel);                                 \
            const int32_t *restrict m = o->m + channel - i, *restrict k = o->k + channel - i;  \
            for (; i < end; i++) out[i] = a[i] * m[i] + k[i];                                  \
        }                                                                                      \
    }
MULTIPLY_ADDS(multiply_adds8, int8_t)
MULTIPLY_ADDS(multiply_adds16, int16_t)

static void sums_of(const Operands *o, int64_t at, int64_t n, int32_t *restrict out) {
    if (o->wide) {
        multiply_adds16(o->wide + at, o, at, n, out);
    } else if (o->m) {
        multiply_adds8(o->a + at, o, at, n, out);
    } else {
        const int8_t *restrict a = o->a + at, *restrict b = o->b + at;
        for (int64_t i = 0; i < n; i++) out[i] = scale32(a[i], o->by_a) + scale32(b[i], o->by_b);
    }
}

/* The largest magnitude of sums, and the largest sum above 0. */
static void ends_of(const Operands *o, int64_t at, int64_t n, int64_t *ends) {
    int32_t sums[MASK_BLOCK], low = 0, high = 0;
    for (int64_t end = at + n; at < end; at += MASK_BLOCK) {
        int64_t size = SAMEBITS_MIN(end - at, MASK_BLOCK);
        sums_of(o, at, size, sums);
        for (int64_t i = 0; i < size; i++) {
            low = SAMEBITS_MIN(low, sums[i]);
            high = SAMEBITS_MAX(high, sums[i]);
        }
    }
    ends[0] = SAMEBITS_MAX(-(int64_t)low, high);
    ends[1] = high;
}

static void exact_range(const Operands *o, int64_t at, int64_t n, int32_t *out) {
    sums_of(o, at, n, out + at);
}

/* How sums are rounded: to which codes, and where a clamp comes first. */
typedef struct {
    Shift32 near; /* where what rounding adds fits 32 bits */
    Shift far;
    int is_near;
    int32_t limit;
    int64_t mask_at;
    uint8_t *mask; /* NULL: no clamp */
    int8_t *codes;
} Rounding;

static void rounded_range(const Operands *o, int64_t at, int64_t n, const Rounding *r) {
    int32_t sums[MASK_BLOCK];
    uint8_t flags[MASK_BLOCK];
    for (int64_t end = at + n; at < end; at += MASK_BLOCK) {
        int64_t size = SAMEBITS_MIN(end - at, MASK_BLOCK);
        int8_t *restrict codes = r->codes + at;
        sums_of(o, at, size, sums);
        if (r->mask) {
            int32_t limit = r->limit;
            for (int64_t i = 0; i < size; i++) {
                flags[i] = (sums[i] > 0) & (sums[i] < limit);
                sums[i] = SAMEBITS_MAX(sums[i], 0);
                sums[i] = SAMEBITS_MIN(sums[i], limit);
            }
            write_mask(flags, size, r->mask_at + at, r->mask);
        }
        Shift32 near = r->near;
        Shift far = r->far;
        if (r->is_near)
            for (int64_t i = 0; i < size; i++) codes[i] = (int8_t)scale32(sums[i], near);
        else
            for (int64_t i = 0; i < size; i++) codes[i] = (int8_t)scale64(sums[i], far);
    }
}

/* One row of n sums at an exponent as codes of `bits`; ends: `ends_of` them. */
static int rounded(const Operands *o, int64_t n, int64_t exponent, const int64_t *ends,
                   int64_t clip, int bits, int8_t *codes, int64_t *own, uint8_t *mask,
                   int64_t mask_at, int threads) {
    int64_t limit = mask ? limit_at(clip, exponent) : INT64_MAX;
    int64_t top = mask ? SAMEBITS_MIN(ends[1], limit) : ends[0], by = 0;
    *own = EXPONENT_MIN;
    if (top) {
        by = requantize_by(top, exponent, bits);
        *own = exponent + by;
        if (*own > EXPONENT_MAX) return OUT_OF_RANGE;
    } else if (!mask) {
        memset(codes, 0, (size_t)n);
        return FINE;
    }
    Rounding r = {shift32_by(-by), shift_by(-by), by <= 30, 0, mask_at, mask, codes};
    r.limit = (int32_t)SAMEBITS_MIN(limit, INT32_MAX);
    PARALLEL_MASK(n, mask_at, n, rounded_range(o, lo, len, &r))
    return FINE;
}

/* Of the codes of `width` bits from `at` on. */
static Operands affine_operands(const void *z, int width, int64_t at, const int32_t *m,
                                const int32_t *b, int64_t c) {
    Operands o = {NULL, NULL, NULL, m, b, c, shift32_by(0), shift32_by(0)};
    if (width == 16)
        o.wide = (const int16_t *)z + at;
    else
        o.a = (const int8_t *)z + at;
    return o;
}

/* The multiply-adds z * m + b of z [samples][rows][c] of `width` bits, 8 or 16, at exponents,
 * |z * m + b| <= 2**30 + 2**15, as codes of `bits`. m, b [samples][c]; ends [samples][2]: the
 * largest magnitude of a sample's, and its largest above 0. mask: NULL, or of all elements, which
 * are clamped (clip: mask.h). found: the exponent that is too large. */
int samebits_affine(const void *z, int width, int64_t samples, int64_t rows, int64_t c,
                    const int32_t *m, const int32_t *b, const int64_t *exponents,
                    const int64_t *ends, int64_t clip, int bits, int8_t *y, int64_t *e_y,
                    uint8_t *mask, int64_t *found, int threads) {
    int64_t size = rows * c;
    if (mask) clear_mask(mask, samples * size);
    for (int64_t i = 0; i < samples; i++) {
        Operands o = affine_operands(z, width, i * size, m + i * c, b + i * c, c);
        int status = rounded(&o, size, exponents[i], ends + 2 * i, clip, bits, y + i * size,
                             e_y + i, mask, i * size, threads);
        *found = e_y[i];
        if (status != FINE) return status;
    }
    return FINE;
}

/* The multiply-adds of `samebits_affine` themselves. */
void samebits_affine_sums(const void *z, int width, int64_t samples, int64_t rows, int64_t c,
                          const int32_t *m, const int32_t *b, int32_t *out, int threads) {
    int64_t size = rows * c;
    for (int64_t i = 0; i < samples; i++) {
        Operands o = affine_operands(z, width, i * size, m + i * c, b + i * c, c);
        PARALLEL(size, size, exact_range(&o, lo, len, out + i * size))
    }
}

static int is_live(const int8_t *v, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        if (v[i]) return 1;
    return 0;
}

/* The operands of a + b of n codes at *exponent: the smaller of theirs, or 22 less than the larger
 * one, so that sums stay below 2**30; exponents of zeros do not count. */
static Operands added_operands(const int8_t *a, int64_t e_a, const int8_t *b, int64_t e_b,
                               int64_t n, int64_t *exponent) {
    if (!is_live(a, n)) e_a = e_b;
    if (!is_live(b, n)) e_b = e_a;
    int64_t least = SAMEBITS_MIN(e_a, e_b), most = SAMEBITS_MAX(e_a, e_b);
    *exponent = SAMEBITS_MAX(least, most - 22);
    Operands o = {a, b, NULL, NULL, NULL, 0, shift32_by(0), shift32_by(0)};
    o.by_a = shift32_by(e_a - *exponent);
    o.by_b = shift32_by(e_b - *exponent);
    return o;
}

static int added(const int8_t *a, int64_t e_a, const int8_t *b, int64_t e_b, int64_t n,
                 int64_t clip, int bits, int8_t *y, int64_t *e_y, uint8_t *mask, int64_t mask_at,
                 int threads) {
    int64_t exponent, ends[2];
    Operands o = added_operands(a, e_a, b, e_b, n, &exponent);
    PARALLEL_MAX_TWO(n, n, ends, ends_of(&o, lo, len, most))
    return rounded(&o, n, exponent, ends, clip, bits, y, e_y, mask, mask_at, threads);
}

/* a * 2**e_a + b * 2**e_b of rows of n codes as codes of `bits`, a pass for the largest sum and one
 * that writes. own_a, own_b: whether rows have exponents of their own there. mask: NULL, or of all
 * elements, whose sums are clamped (clip: mask.h). */
int samebits_add(const int8_t *a, const int64_t *e_a, int own_a, const int8_t *b,
                 const int64_t *e_b, int own_b, int64_t rows, int64_t n, int64_t clip, int bits,
                 int8_t *y, int64_t *e_y, uint8_t *mask, int64_t *found, int threads) {
    int status;
    int64_t unfit;
    if (mask) clear_mask(mask, rows * n);
    if (mask && n & 7 && rows > 1) threads = 1; /* rows share a byte */
    EACH_ROW(rows, n, status, unfit,
             added(a + r * n, e_a[own_a ? r : 0], b + r * n, e_b[own_b ? r : 0], n, clip, bits,
                   y + r * n, e_y + r, mask, r * n, crew))
    if (status != FINE) *found = e_y[unfit];
    return status;
}

/* The sums of `samebits_add` themselves, of 32 bits, and their exponents; top: the largest
 * magnitude in the first row. */
void samebits_added(const int8_t *a, const int64_t *e_a, int own_a, const int8_t *b,
                    const int64_t *e_b, int own_b, int64_t rows, int64_t n, int32_t *out,
                    int64_t *exponents, int64_t *top, int threads) {
    for (int64_t r = 0; r < rows; r++) {
        Operands o = added_operands(a + r * n, e_a[own_a ? r : 0], b + r * n, e_b[own_b ? r : 0],
                                    n, exponents + r);
        PARALLEL(n, n, exact_range(&o, lo, len, out + r * n))
    }
    *top = rows ? samebits_max_i32(out, n, threads) : 0;
}
