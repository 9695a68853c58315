/* Codes and their one exponent (docs/spec/training.md, 1): kernels that find exponents and largest
 * magnitudes, and leave them in memory for those that read them, so that a whole step can run
 * without a caller between its kernels. A function that returns an int returns a `Status`. */
#include <stdlib.h>
#include <string.h>

#include "exponent.h"
#include "parallel.h"
#include "parts.h"
#include "rows.h"

/* Codes of `bits` bits of `type` bits each, one after the other. */
static int64_t largest_of(const void *v, int type, int64_t n, int threads) {
    if (type == 8) return samebits_max_i8(v, n, threads);
    if (type == 16) return samebits_max_i16(v, n, threads);
    if (type == 32) return samebits_max_i32(v, n, threads);
    return samebits_max_i64(v, n, threads);
}

/* max|v| of integers of 8 to 64 bits. */
void samebits_largest(const void *v, int type, int64_t n, int64_t *largest, int threads) {
    *largest = largest_of(v, type, n, threads);
}

static int64_t read_integer(const void *v, int type, int64_t at) {
    return type == 8    ? ((const int8_t *)v)[at]
           : type == 16 ? ((const int16_t *)v)[at]
           : type == 32 ? ((const int32_t *)v)[at]
                        : ((const int64_t *)v)[at];
}

static void write_integer(void *v, int type, int64_t at, int64_t value) {
    if (type == 8)
        ((int8_t *)v)[at] = (int8_t)value;
    else if (type == 16)
        ((int16_t *)v)[at] = (int16_t)value;
    else if (type == 32)
        ((int32_t *)v)[at] = (int32_t)value;
    else
        ((int64_t *)v)[at] = value;
}

#define MOST_RIGHT 24 /* bits by which 32-bit rounding of magnitudes up to Q32 can shift right */

/* rne(v * 2**by) of integers of 32 or 64 bits, as codes of 8 to 32. */
static void scale(const void *v, int type, int64_t n, int64_t by, void *out, int to, int threads) {
    if (type == 32 && by < -MOST_RIGHT)
        for (int64_t i = 0; i < n; i++)
            write_integer(out, to, i, scale64(((const int32_t *)v)[i], shift_by(by)));
    else if (type == 32 && to == 8)
        samebits_scale_i32_i8(v, n, by, out, threads);
    else if (type == 32 && to == 16)
        samebits_scale_i32_i16(v, n, by, out, threads);
    else if (type == 32)
        samebits_scale_i32_i32(v, n, by, out, threads);
    else if (to == 8)
        samebits_scale_i64_i8(v, n, by, out, threads);
    else if (to == 16)
        samebits_scale_i64_i16(v, n, by, out, threads);
    else
        samebits_scale_i64_i32(v, n, by, out, threads);
}

/* acc * 2**exponent as codes of `bits` bits, of which `largest` = max|acc| decides the exponent
 * (1.1). acc: integers of 32 or 64 bits; codes of `to` bits in memory. OUT_OF_RANGE: `own` is the
 * exponent that it would have. */
int samebits_requantize(const void *acc, int type, int64_t n, const int64_t *largest,
                        const int64_t *exponent, int bits, void *codes, int to, int64_t *own,
                        int threads) {
    int64_t top = *largest;
    if (top == 0) {
        memset(codes, 0, (size_t)(n * (to / 8)));
        *own = EXPONENT_MIN;
        return FINE;
    }
    int64_t by = requantize_by(top, *exponent, bits);
    *own = *exponent + by;
    if (*own > EXPONENT_MAX) return OUT_OF_RANGE;
    scale(acc, type, n, -by, codes, to, threads);
    return FINE;
}

/* acc * 2**exponent as codes of 32 bits, shifted right only as far as they must be (1.2). */
void samebits_shorten(const void *acc, int type, int64_t n, const int64_t *largest,
                      const int64_t *exponent, int32_t *codes, int64_t *own, int threads) {
    int64_t by = shorten_by(*largest);
    *own = *largest == 0 ? EXPONENT_MIN : *exponent + by;
    scale(acc, type, n, -by, codes, 32, threads);
}

/* The exponent of sums of 32 bits that are their own codes (1.2). OUT_OF_RANGE: above Q32. */
int samebits_short(const int64_t *largest, const int64_t *exponent, int64_t *own) {
    *own = *largest == 0 ? EXPONENT_MIN : *exponent;
    return shorten_by(*largest) ? OUT_OF_RANGE : FINE;
}

#define TIMES(name, from, to)                                                                  \
    static void name(const from *restrict v, int64_t n, int64_t m, Shift s, to *restrict out) { \
        for (int64_t i = 0; i < n; i++) out[i] = (to)scale64(v[i] * m, s);                     \
    }
TIMES(times_8_8, int8_t, int8_t)
TIMES(times_16_32, int16_t, int32_t)
TIMES(times_32_32, int32_t, int32_t)

/* One row of `samebits_times`. */
static int times(const void *v, int type, int64_t n, int64_t m, const int64_t *exponent, int bits,
                 void *codes, int64_t *own, int threads) {
    int64_t top = largest_of(v, type, n, threads) * samebits_magnitude64(m);
    int64_t by = type == 8 && top ? requantize_by(top, *exponent, bits) : shorten_by(top);
    *own = top ? *exponent + by : EXPONENT_MIN;
    if (type == 8 && *own > EXPONENT_MAX) return OUT_OF_RANGE;
    Shift s = shift_by(-by);
    if (type == 8) {
        PARALLEL(n, n, times_8_8((const int8_t *)v + lo, len, m, s, (int8_t *)codes + lo))
    } else if (type == 16) {
        PARALLEL(n, n, times_16_32((const int16_t *)v + lo, len, m, s, (int32_t *)codes + lo))
    } else {
        PARALLEL(n, n, times_32_32((const int32_t *)v + lo, len, m, s, (int32_t *)codes + lo))
    }
    return FINE;
}

/* v * m * 2**exponent of rows of n codes as codes of 8 bits or fewer (1.1) of codes of 8, or of 32
 * (1.2) of those of 16 or 32; |v * m| < 2**62. found: an exponent above 127. */
int samebits_times(const void *v, int type, int64_t rows, int64_t n, int64_t m,
                   const int64_t *exponents, int bits, void *codes, int64_t *own, int64_t *found,
                   int threads) {
    int64_t in = n * (type / 8), out = type == 8 ? n : 4 * n;
    int status;
    int64_t unfit;
    EACH_ROW(rows, n, status, unfit,
             times((const char *)v + r * in, type, n, m, exponents + r, bits,
                   (char *)codes + r * out, own + r, crew))
    if (status != FINE) *found = own[unfit];
    return status;
}

/* Codes of 8 bits of several tensors at the largest exponent among those that are not all zeros.
 * parts: of each the address of its codes, their number, the address of its exponent, and where its
 * codes are to be written. */
void samebits_align(const int64_t *parts, int64_t count, int64_t *own, int threads) {
    *own = EXPONENT_MIN;
    int live = 0;
    for (const int64_t *p = parts; p < parts + 4 * count; p += 4) {
        int64_t exponent = *(const int64_t *)(intptr_t)p[2];
        const void *codes = (const void *)(intptr_t)p[0];
        if ((live && exponent <= *own) || !largest_of(codes, 8, p[1], threads))
            continue;
        *own = exponent;
        live = 1;
    }
    for (const int64_t *p = parts; p < parts + 4 * count; p += 4) {
        int64_t by = *(const int64_t *)(intptr_t)p[2] - *own;
        const int8_t *v = (const int8_t *)(intptr_t)p[0];
        int8_t *out = (int8_t *)(intptr_t)p[3];
        Shift s = shift_by(SAMEBITS_MIN(by, 0));
        PARALLEL(p[1], p[1], times_8_8(v + lo, len, 1, s, out + lo))
    }
}

/* One row of `samebits_resolve`; by of the sides: their exponents. */
static void resolve(Addend *sides, int64_t count, int64_t n, int32_t *codes, int64_t *own,
                    int threads) {
    int64_t least = INT64_MAX, live = INT64_MIN;
    for (int64_t i = 0; i < count; i++) least = SAMEBITS_MIN(sides[i].by, least);
    /* The exponents decide alone, but for parts that are all zeros, which must not count. */
    for (int64_t i = 0; i < count; i++)
        if (sides[i].by > live &&
            (sides[i].by == least ||
             largest_of(sides[i].codes, (int)sides[i].width, n, threads) > 0))
            live = sides[i].by;
    for (int64_t i = 0; i < count; i++) /* above 0 of zeros alone */
        sides[i].by = SAMEBITS_MIN(sides[i].by - live, 0);
    int64_t by, top = samebits_add_grad(sides, count, n, codes, &by, threads);
    *own = top == 0 ? EXPONENT_MIN : live + by;
}

/* The sum of parts of a gradient, in rows of n codes, aligned to the largest exponent among those
 * that are not zero there, as codes of 32 bits (1.3). parts: of each the address of its codes,
 * their type (16 or 32 bits), the address of its exponents, and whether every row has one. */
int samebits_resolve(const int64_t *parts, int64_t count, int64_t rows, int64_t n, int32_t *codes,
                     int64_t *own, int threads) {
    Addend *sides = malloc((size_t)count * sizeof *sides);
    if (!sides) return NO_MEMORY;
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t i = 0; i < count; i++) {
            const int64_t *p = parts + 4 * i, *exponents = (const int64_t *)(intptr_t)p[2];
            const char *of_row = (const char *)(intptr_t)p[0] + r * n * (p[1] / 8);
            sides[i] = (Addend){of_row, p[1], exponents[p[3] ? r : 0]};
        }
        resolve(sides, count, n, codes + r * n, own + r, threads);
    }
    free(sides);
    return FINE;
}

/* Integers from a place on of a part of `samebits_stacked`, at an exponent; NULL: all are zero. */
typedef struct {
    const char *v;
    int type;
    int64_t exponent;
} Side;

static Side side_of(const int64_t *part, int64_t at, int64_t n, int64_t row, int threads) {
    const char *v = (const char *)(intptr_t)part[0] + at * (part[1] / 8);
    int is_live = largest_of(v, (int)part[1], n, threads) > 0;
    int64_t exponent = ((const int64_t *)(intptr_t)part[2])[row];
    return (Side){is_live ? v : NULL, (int)part[1], exponent};
}

/* n integers from the place `at` of `codes` on: the side's at an exponent, shifted to the left by
 * `room` at most. */
static void put_side(Side s, int64_t n, int64_t exponent, int64_t room, void *codes, int to,
                     int64_t at) {
    Shift by = shift_by(SAMEBITS_MIN(s.exponent - exponent, room));
    for (int64_t i = 0; i < n; i++)
        write_integer(codes, to, at + i, s.v ? scale64(read_integer(s.v, s.type, i), by) : 0);
}

/* Codes of parts of n integers each, one after the other as codes of `to` bits, at the largest
 * exponent of those that are not all zero, less `room`; those further below are rounded. parts: as
 * in `samebits_resolve`, but of 8 to 32 bits. rows: of each part, which have exponents of their own
 * there and in the result; 0: all have one. */
void samebits_stacked(const int64_t *parts, int64_t count, int64_t n, int64_t rows, int64_t room,
                      void *codes, int to, int64_t *own, int threads) {
    int64_t top = INT64_MIN, of_row = rows ? n / rows : 0;
    for (int64_t k = 0; k < count && !rows; k++) {
        Side s = side_of(parts + 3 * k, 0, n, 0, threads);
        if (s.v) top = SAMEBITS_MAX(top, s.exponent);
    }
    if (!rows) *own = top == INT64_MIN ? EXPONENT_MIN : top - room;
    for (int64_t k = 0; k < count; k++) {
        if (!rows) {
            Side s = side_of(parts + 3 * k, 0, n, 0, threads);
            put_side(s, n, *own, room, codes, to, k * n);
        }
        for (int64_t r = 0; r < rows; r++, own++) {
            Side s = side_of(parts + 3 * k, r * of_row, of_row, r, threads);
            *own = s.v ? s.exponent - room : EXPONENT_MIN;
            put_side(s, of_row, *own, room, codes, to, k * n + r * of_row);
        }
    }
}

/* --- products (5 and 7) ---------------------------------------------------------------------- */

static int is_depthwise(const Conv *s) {
    return s->groups > 1 && s->groups == s->ci && s->groups == s->co;
}

/* The sums of a convolution, or of the matrix product that is one of a single row of pixels. */
int samebits_products(const Conv *s, const int8_t *x, const int8_t *w, int32_t *out,
                      int64_t *largest, int threads) {
    int plain = s->n == 1 && s->h == 1 && s->kh == 1 && s->kw == 1 && s->groups == 1 &&
                s->pad_h == 0 && s->pad_w == 0 && s->w == s->ow && s->w <= 2 * s->co;
    if (plain)
        *largest = samebits_product(x, w, s->w, s->co, s->ci, out, threads);
    else if (is_depthwise(s))
        *largest = samebits_depthwise(s, x, w, out, threads);
    else
        *largest = samebits_conv(s, x, w, out, threads);
    return *largest < 0 ? NO_MEMORY : FINE;
}

/* The input gradient of a 16-bit gradient g as codes of `bits` bits in int16, in `rows` rows, each
 * with an exponent of sums and one of codes. sums: room for them, 8 bytes each; they have 32 bits
 * where weights and gradient tell that none can leave those. */
int samebits_input_gradient(const Conv *s, const int16_t *g, const int8_t *w,
                            const int64_t *exponents, int64_t rows, int bits, void *sums,
                            int16_t *codes, int64_t *own, int64_t *highest, int threads) {
    int64_t n = s->n * s->h * s->w * s->ci, columns = s->ci / s->groups, largest;
    int64_t of_w = s->co * columns * s->kh * s->kw, of_g = s->n * s->oh * s->ow * s->co;
    int wide = 0;
    if (is_depthwise(s)) {
        memset(sums, 0, (size_t)n * 4);
        largest = samebits_depthwise_input_grad(s, g, w, sums, threads);
    } else {
        /* Every sum is at most max|g| times the sum of |w| that meets one input channel. */
        int64_t reach = samebits_reach(w, s->groups, of_w / (s->groups * columns), columns);
        if (reach < 0) return NO_MEMORY;
        wide = samebits_max_i16(g, of_g, threads) * reach > Q32;
        if (s->stride_h != 1 || s->stride_w != 1) memset(sums, 0, (size_t)n * (wide ? 8 : 4));
        largest = samebits_conv_input_grad(s, g, w, sums, wide, threads);
    }
    if (largest < 0) return NO_MEMORY;
    int type = wide ? 64 : 32;
    if (rows > 1) {
        const Rows each = {.a = rows, .b = 1, .c = n / rows, .step_a = 1, .row_a = 1};
        const int64_t none = 0;
        return samebits_requantize_rows(&each, sums, type, exponents, &none, bits, LIMITED, codes,
                                        16, own, highest, threads);
    }
    int status = samebits_requantize(sums, type, n, &largest, exponents, bits, codes, 16, own,
                                     threads);
    *highest = *own;
    return status;
}

/* The weight gradient's sums of g (`type` bits, 16 or 32), of 32 bits or, wide, of 64. */
int samebits_weight_gradient(const Conv *s, const void *g, int type, const int8_t *x, void *sums,
                             int wide, int64_t *largest, int threads) {
    if (is_depthwise(s)) {
        memset(sums, 0, (size_t)(s->co * s->kh * s->kw) * 8);
        *largest = samebits_depthwise_weight_grad(s, g, type, x, sums, threads);
    } else {
        *largest = samebits_conv_weight_grad(s, g, type, x, sums, wide, threads);
    }
    return *largest < 0 ? NO_MEMORY : FINE;
}

/* --- memory ---------------------------------------------------------------------------------- */

/* Zeros. */
void samebits_zeros(void *to, int64_t bytes) { memset(to, 0, (size_t)bytes); }

#define MOST_AXES 8

/* The places of elements of two tensors of one shape. layout: of each of `axes` axes but the last
 * its size and its steps in both, in elements. */
typedef struct {
    int64_t axes, a, b, index[MOST_AXES];
    const int64_t *layout;
} Walk;

/* To the next row of the last axis; 0 after the last one. */
static int next_row(Walk *w) {
    for (int64_t axis = w->axes - 2; axis >= 0; axis--) {
        const int64_t *own = w->layout + 3 * axis;
        w->a += own[1];
        w->b += own[2];
        if (++w->index[axis] < own[0]) return 1;
        w->a -= own[1] * own[0];
        w->b -= own[2] * own[0];
        w->index[axis] = 0;
    }
    return 0;
}

/* Rows of the same integers of one type, of the sizes and steps of `last`. */
#define COPY_ROW(name, type)                                                                   \
    static void name(const type *restrict from, type *restrict to, const int64_t *last) {      \
        for (int64_t i = 0; i < last[0]; i++) to[i * last[2]] = from[i * last[1]];             \
    }
COPY_ROW(copy8, int8_t)
COPY_ROW(copy16, int16_t)
COPY_ROW(copy32, int32_t)
COPY_ROW(copy64, int64_t)

static void copy_row(const char *from, int type, char *to, int of, const int64_t *last) {
    if (type == of && last[1] == 1 && last[2] == 1)
        memcpy(to, from, (size_t)(last[0] * (type / 8)));
    else if (type == of && type == 8)
        copy8((const int8_t *)from, (int8_t *)to, last);
    else if (type == of && type == 16)
        copy16((const int16_t *)from, (int16_t *)to, last);
    else if (type == of && type == 32)
        copy32((const int32_t *)from, (int32_t *)to, last);
    else if (type == of)
        copy64((const int64_t *)from, (int64_t *)to, last);
    else
        for (int64_t i = 0; i < last[0]; i++)
            write_integer(to, of, i * last[2], read_integer(from, type, i * last[1]));
}

/* The same integers in another order, or as another type. layout: of each of `axes` axes its size,
 * its step in `from` and its step in `to`, in elements; no size is 0. */
void samebits_copy(const void *from, int type, void *to, int of, int64_t axes,
                   const int64_t *layout) {
    Walk w = {.axes = axes, .layout = layout};
    do
        copy_row((const char *)from + w.a * (type / 8), type, (char *)to + w.b * (of / 8), of,
                 layout + 3 * (axes - 1));
    while (next_row(&w));
}

#define ADD_ROW(name, type)                                                                    \
    static void name(const type *restrict from, int64_t *restrict to, const int64_t *last) {   \
        if (last[2] == 0) {                                                                    \
            int64_t sum = 0;                                                                   \
            for (int64_t i = 0; i < last[0]; i++) sum += from[i * last[1]];                    \
            *to += sum;                                                                        \
        } else {                                                                               \
            for (int64_t i = 0; i < last[0]; i++) to[i * last[2]] += from[i * last[1]];        \
        }                                                                                      \
    }
ADD_ROW(add_row16, int16_t)
ADD_ROW(add_row32, int32_t)
ADD_ROW(add_row64, int64_t)

/* Exact sums of a gradient of `type` bits over the axes whose step in `to` [n] is 0, and their
 * largest magnitude. layout: as above. */
void samebits_sums(const void *from, int type, int64_t *to, int64_t n, int64_t axes,
                   const int64_t *layout, int64_t *largest, int threads) {
    Walk w = {.axes = axes, .layout = layout};
    memset(to, 0, (size_t)n * sizeof *to);
    do
        if (type == 16)
            add_row16((const int16_t *)from + w.a, to + w.b, layout + 3 * (axes - 1));
        else if (type == 64)
            add_row64((const int64_t *)from + w.a, to + w.b, layout + 3 * (axes - 1));
        else
            add_row32((const int32_t *)from + w.a, to + w.b, layout + 3 * (axes - 1));
    while (next_row(&w));
    *largest = samebits_max_i64(to, n, threads);
}
