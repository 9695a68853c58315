/* Integer inference kernels: C99, no floating point, no allocation, no recursion.
 *
 * Every function computes one operator of the integer graph exactly; sums wrap modulo 2**32 or
 * 2**64 on the way and are proved to fit at the end. Parameters are constant data. */
#ifndef SAMEBITS_KERNELS_H
#define SAMEBITS_KERNELS_H

#include "samebits.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Types of codes. */
#define SAMEBITS_INT8 0
#define SAMEBITS_UINT8 1
#define SAMEBITS_INT16 2
#define SAMEBITS_UINT16 3
#define SAMEBITS_INT32 4
#define SAMEBITS_INT64 5

/* How an accumulator becomes a code: y = min(max(f(acc) + zero, low), high). Shifts are at least 1
 * and round half to even, but for SAMEBITS_DOUBLED and SAMEBITS_HALVES. From SAMEBITS_WIDE on the
 * accumulator is taken as 64 bits. */
#define SAMEBITS_STORE 0        /* y = acc, nothing else */
#define SAMEBITS_SHIFT 1        /* acc >> s in 32 bits */
#define SAMEBITS_NARROW 2       /* acc * m >> s in 32 bits, int32_t m */
#define SAMEBITS_PRODUCT 3      /* acc * m >> s, 32 by 32 to 64 bits, int32_t m */
#define SAMEBITS_TIES 4         /* the same, and ties of acc * p / q; int64_t m, p, q a channel */
#define SAMEBITS_THRESHOLDS32 5 /* low + how many of `count` ascending int32_t are <= acc */
#define SAMEBITS_WORDS 6        /* acc * m >> 64 + s, half up; two words a channel, one s */
#define SAMEBITS_DOUBLED 7      /* acc * m >> 31 half up, then >> s half away; |acc| < 2**30 */
#define SAMEBITS_WIDE 8         /* acc * m >> s in 64 bits, int64_t m */
#define SAMEBITS_LONG 9         /* acc * m >> s in 128 bits, int64_t m */
#define SAMEBITS_DIVIDE 10      /* acc * p / q in 64 bits, int64_t p, q for every channel */
#define SAMEBITS_THRESHOLDS64 11 /* thresholds of int64_t */
#define SAMEBITS_HALVES 12 /* (acc * m + 2**(s - 1) + d) >> s, -d where acc < 0; int32_t m, d */

typedef struct {
    const void *multipliers; /* or thresholds, [channels][count] */
    const uint8_t *shifts;
    int32_t channels; /* 1, or the length of the last axis */
    int32_t count;
    int32_t zero, low, high;
    uint8_t form, type; /* type: of the codes that are stored */
} samebits_rescale;

/* Convolution, also of one row of pixels (linear) and of the phases of a transposed one.
 * A kernel row is read as `runs` runs of `length` codes that lie side by side. */
typedef struct {
    int32_t batch, height, width, channels;
    int32_t out_height, out_width, out_channels;
    int32_t groups, kernel_height, kernel_width;
    int32_t stride_y, stride_x, pad_top, pad_left, dilation_y, dilation_x;
    int32_t pad_code;
    int32_t runs, length;
    int32_t tile; /* output pixels per filled band of the scratch memory */
    int32_t out_batch, out_row, out_pixel, out_start; /* in elements */
    int32_t block; /* conv16: products that a 32-bit sum holds */
    uint8_t type, w_type; /* of x and, conv16, of the weights: int8 or int16 */
    const void *weights;
    const void *bias; /* int32_t (8 bits) or int64_t (16 bits), of x - least code of its type */
    samebits_rescale rescale;
} samebits_conv;

/* Rows of `depth` codes times weights [outputs][padded], to sums (linear_sums.c). */
typedef struct {
    int32_t rows, depth, padded, outputs;
    const void *weights, *bias;
} samebits_linear_sums;

/* A convolution in place (rolling.c), in units of one row, or of `chunk` pixels. row: bytes of the
 * outputs of a unit; total: of all. */
typedef struct {
    samebits_conv conv;
    int32_t units, chunk, delay, row, total;
} samebits_rolled;

/* Any types, weights in the order [O, KH, KW, C / groups] that need not be constant. */
typedef struct {
    int32_t batch, height, width, channels;
    int32_t out_height, out_width, out_channels;
    int32_t groups, kernel_height, kernel_width;
    int32_t stride_y, stride_x, pad_top, pad_left, dilation_y, dilation_x;
    int32_t pad_code; /* conv_transpose: the zero that is subtracted from x */
    uint8_t x_type, w_type, b_type, transposed;
    samebits_rescale rescale;
} samebits_conv_any;

/* Convolution of int8 codes with packed weights (codegen/lowering/packed.py), codes rounded by the
 * upper words of products (codegen/lowering/high.py) or, doubled, twice (lowering/doubled.py).
 *
 * stream: for each block of `lanes` output channels their biases, their weights and their
 * multipliers. Doubled, each multiplier has a shift behind it, which lacks the number `shift` of
 * the bits to be shifted; where that is 0 all shifts lie behind all multipliers, and are negative.
 * Weights: [steps][lanes][step] as words of four, the first lowest; of two lanes, halfwords
 * 256 * first + second, those of codes 0 and 2 and those of 1 and 3 of each four in a word
 * (packed_dsp.c); their first bias is then 256 * first + second too, but for long sums. Groups have
 * a stream of `part` words each, one behind the other. */
typedef struct {
    const int32_t *stream;
    int32_t width, out_width;
    int32_t tile; /* output pixels whose codes are gathered at a time; 0: x is used as it is */
    int32_t wide; /* bytes of the scratch memory for widened codes */
    int32_t part;
    int16_t batch, height, channels, out_height, out_channels;
    int16_t kernel_height, kernel_width, stride_y, stride_x, pad_top, pad_left;
    int16_t dilation_y, dilation_x, groups;
    int16_t rows; /* of the image that a window spans */
    int16_t repeat; /* depthwise: channels that are made of each of x; `channels` counts these */
    int16_t steps, pad_code, zero, low, high;
    uint8_t banded; /* rows of x are copied to the scratch memory before they are used */
    uint8_t long_sums; /* two lanes: sums of the first need more than 24 bits */
    uint8_t lanes, step, upper, shift;
    uint8_t doubled; /* rounded twice; `upper` is then not used */
} samebits_packed;

/* The same of int16 codes and int8 weights, sums of 32 bits. In `window`, channels and step count
 * bytes, two a code; its stream holds weights alone: two lanes tap by tap, of more lanes as above.
 * bias: one a channel, and so the multipliers. fast: the form is SAMEBITS_WORDS to all of int16. */
typedef struct {
    samebits_packed window;
    const int32_t *bias;
    samebits_rescale rescale;
    uint8_t fast;
} samebits_packed16;

#define SAMEBITS_MAX_RANK 8

/* Element (i0, .., i[rank - 1]) of `shape` lies at sum i * strides. */
typedef struct {
    int32_t rank;
    int32_t shape[SAMEBITS_MAX_RANK];
} samebits_shape;

typedef struct {
    int32_t strides[SAMEBITS_MAX_RANK];
    int64_t factor; /* sum: of this term; others: the zero that is subtracted */
    uint8_t type;
} samebits_source;

#define SAMEBITS_SUM 0
#define SAMEBITS_MULTIPLY 1
#define SAMEBITS_MAXIMUM 2
#define SAMEBITS_MINIMUM 3

typedef struct {
    samebits_shape shape;
    const samebits_source *sources;
    int32_t count;
    int64_t offset;
    uint8_t operation, wide; /* wide: 64-bit sums */
    samebits_rescale rescale;
} samebits_broadcast;

/* The code of a and b: floor((a * factor_a + b * factor_b + offset) / 2**shift), clamped. */
typedef struct {
    int32_t size, factor_a, factor_b, offset, shift, low, high;
} samebits_add8;

typedef struct {
    int32_t size, channels;
    const void *factors, *offsets; /* [channels], int32_t or (wide) int64_t */
    uint8_t type, wide;
    samebits_rescale rescale;
} samebits_affine;

typedef struct {
    int32_t size;
    uint8_t type;
    samebits_rescale rescale;
} samebits_requantize;

typedef struct {
    int32_t size;
    int64_t low, high;
    uint8_t type;
} samebits_clip;

typedef struct {
    int32_t size, channels; /* channels: 1, or rows of the table */
    const void *table;
    uint8_t type, out_type;
} samebits_table;

/* A 16-bit table as a piecewise cubic: src/samebits/tables/cubic.py has the arithmetic. */
typedef struct {
    int32_t size;
    const int32_t *coefficients; /* [4][segments], c0 to c3 */
    int32_t segments, low, high, mirror;
    uint8_t mirrored, bits, shift0, shift1, shift2, shift3, type, out_type;
    uint8_t narrow; /* all sums fit in 32 bits; 2: the products with c3 and c2 too */
} samebits_cubic;

/* A 16-bit table as straight lines: src/samebits/tables/lines.py has the arithmetic. */
typedef struct {
    int32_t size;
    const uint16_t *heights; /* [last + 1] */
    int32_t last, factor, offset, top, mirror;
    uint8_t mirrored, left, bits, shift, type, out_type;
} samebits_lines;

/* a[.., rows, depth] times b[.., depth, columns], leading axes broadcast. */
typedef struct {
    samebits_shape leading;
    int32_t a_strides[SAMEBITS_MAX_RANK], b_strides[SAMEBITS_MAX_RANK];
    int32_t rows, depth, columns;
    int32_t a_zero, b_zero;
    uint8_t a_type, b_type, wide;
    samebits_rescale rescale;
} samebits_matmul;

typedef struct {
    int32_t batch, height, width, channels, out_height, out_width;
    int32_t kernel_height, kernel_width;
    int32_t stride_y, stride_x, pad_top, pad_left, dilation_y, dilation_x;
    int32_t zero;
    int64_t balance; /* 0, or the common multiple of the counts */
    uint8_t type;
    samebits_rescale rescale;
} samebits_pool;

#define SAMEBITS_REDUCE_SUM 0
#define SAMEBITS_REDUCE_MAX 1
#define SAMEBITS_REDUCE_MIN 2

/* kept: the axes that remain, in order, with their strides in x; reduced: the others. */
typedef struct {
    samebits_shape kept, reduced;
    int32_t kept_strides[SAMEBITS_MAX_RANK], reduced_strides[SAMEBITS_MAX_RANK];
    int32_t zero;
    uint8_t operation, type;
    samebits_rescale rescale;
} samebits_reduce;

/* Rows of x `strides` apart, those of the mask `mask_strides`. Of shares in fixed point the
 * numerator is the number of bits of a code, and there is no mask. */
typedef struct {
    samebits_shape leading;
    int32_t strides[SAMEBITS_MAX_RANK], mask_strides[SAMEBITS_MAX_RANK];
    int32_t mask_step, columns;
    const int32_t *table;
    int64_t numerator, denominator, zero, low, high;
    uint8_t type, out_type, mask_type;
} samebits_softmax;

/* a * numerator / (b * denominator), rounded; b counts as 1 where it is less. */
typedef struct {
    samebits_shape shape;
    int32_t a_strides[SAMEBITS_MAX_RANK], b_strides[SAMEBITS_MAX_RANK];
    int64_t numerator, denominator, zero, low, high;
    uint8_t a_type, b_type, out_type;
} samebits_divide;

/* sqrt(x * factor / (4 * divisor)), rounded; x counts as 0 where it is less. */
typedef struct {
    int32_t size;
    int64_t factor;
    int32_t divisor, zero, low, high;
    uint8_t type, out_type;
} samebits_roots;

/* A vector: `places` runs of channels / groups elements, in each of `samples`. */
typedef struct {
    int32_t samples, places, channels, groups;
    const int32_t *factors; /* [channels] */
    const int64_t *terms;
    int64_t epsilon;
    int32_t x_zero, zero, low, high;
    uint8_t centered, shift, type, out_type;
} samebits_normalize;

typedef struct {
    int32_t outer, count, inner;
    uint8_t type;
} samebits_argmax;

/* Minus step * (distance from the greatest code) + unit * (log2 of the sum of the powers). */
typedef struct {
    int32_t rows, columns;
    const int32_t *table;
    int64_t step, unit, zero, low, high;
    uint8_t shift, type, out_type;
} samebits_log_softmax;

/* The k greatest or least of every line, or (places) where they lie. */
typedef struct {
    int32_t outer, count, inner, k;
    uint8_t largest, places, type;
} samebits_top_k;

/* Output row r reads the rows[r][row_taps] of x, each times its weight; columns likewise. */
typedef struct {
    int32_t batch, height, width, channels, out_height, out_width;
    int32_t row_taps, column_taps;
    const int32_t *rows, *columns;
    const void *row_weights, *column_weights; /* int32_t or (wide) int64_t */
    int32_t zero;
    uint8_t type, wide;
    samebits_rescale rescale;
} samebits_resample;

/* Tables of decision trees; trees.c says how they are walked. */
typedef struct {
    int32_t rows, features, targets, trees, branches, width;
    const void *roots, *links; /* [trees], [branches][2]: uint16_t or int32_t */
    const uint16_t *feature;   /* [branches] */
    const void *thresholds;    /* [branches], of the type of x */
    const void *starts;        /* [leaves]: the first target of each */
    const void *weights;       /* [leaves][width] */
    uint8_t type, link_type, start_type, weight_type;
    samebits_rescale rescale;
} samebits_trees;

typedef struct {
    samebits_shape shape;
    int32_t from[SAMEBITS_MAX_RANK], to[SAMEBITS_MAX_RANK]; /* strides */
    int32_t from_start, to_start;
    uint8_t width; /* bytes of an element */
} samebits_copy;

typedef struct {
    int32_t size;
    int64_t code;
    uint8_t type;
} samebits_fill;

typedef struct {
    int32_t outer, source, count, inner; /* inner: bytes */
    const int32_t *indices;
} samebits_gather;

/* The same by computed indices: below 0 from the end, then held inside. */
typedef struct {
    int32_t outer, source, count, inner; /* inner: bytes */
    uint8_t type; /* of the indices */
} samebits_take;

/* x with rows of `update` written along an axis, from a place of its own for each sample, modulo
 * the size of the axis. out may be x. */
typedef struct {
    int32_t samples, outer, size, count, inner; /* inner: bytes */
    uint8_t type;                               /* of the places */
} samebits_scatter;

/* The next token of a language model: docs/spec/sampling.md. k: candidates; m * 2**-q: 2**-16
 * octaves of a code of the logits, for one temperature. */
typedef struct {
    int32_t k;
    uint32_t m;
    uint8_t q;
} samebits_sampling;

void samebits_run_conv8(const samebits_conv *c, const void *x, void *out, void *scratch);
void samebits_run_depthwise8(const samebits_conv *c, const void *x, void *out, void *scratch);
void samebits_run_conv8_rolling(const samebits_rolled *c, const void *x, void *out, void *scratch);
void samebits_run_depthwise8_rolling(const samebits_rolled *c, const void *x, void *out,
                                     void *scratch);
void samebits_run_linear_sums(const samebits_linear_sums *c, const void *x, void *out,
                              void *scratch);
void samebits_run_conv8_packed(const samebits_packed *c, const void *x, void *out, void *scratch);
void samebits_run_linear8_packed(const samebits_packed *c, const void *x, void *out, void *scratch);
void samebits_run_depthwise8_packed(const samebits_packed *c, const void *x, void *out,
                                    void *scratch);
void samebits_run_conv16_packed(const samebits_packed16 *c, const void *x, void *out,
                                void *scratch);
void samebits_run_linear16_packed(const samebits_packed16 *c, const void *x, void *out,
                                  void *scratch);
void samebits_run_depthwise16_packed(const samebits_packed16 *c, const void *x, void *out,
                                     void *scratch);
void samebits_run_conv16(const samebits_conv *c, const void *x, void *out, void *scratch);
void samebits_run_conv_any(const samebits_conv_any *c, const void *x, const void *w, const void *b,
                           void *out);
void samebits_run_matmul(const samebits_matmul *c, const void *a, const void *b, void *out);
void samebits_run_broadcast(const samebits_broadcast *c, const void *const *sources, void *out);
void samebits_run_add8(const samebits_add8 *c, const void *x, const void *y, void *out);
void samebits_run_affine(const samebits_affine *c, const void *x, void *out);
void samebits_run_requantize(const samebits_requantize *c, const void *x, void *out);
void samebits_run_clip(const samebits_clip *c, const void *x, void *out);
void samebits_run_table(const samebits_table *c, const void *x, void *out);
void samebits_run_cubic(const samebits_cubic *c, const void *x, void *out);
void samebits_run_lines(const samebits_lines *c, const void *x, void *out);
void samebits_run_max_pool(const samebits_pool *c, const void *x, void *out);
void samebits_run_sum_pool(const samebits_pool *c, const void *x, void *out);
void samebits_run_reduce(const samebits_reduce *c, const void *x, void *out);
void samebits_run_fixed_softmax(const samebits_softmax *c, const void *x, void *out);
void samebits_run_softmax(const samebits_softmax *c, const void *x, void *out);
void samebits_run_masked_softmax(const samebits_softmax *c, const void *x, const void *mask,
                                 void *out);
void samebits_run_divide(const samebits_divide *c, const void *a, const void *b, void *out);
void samebits_run_root(const samebits_roots *c, const void *x, void *out);
void samebits_run_normalize(const samebits_normalize *c, const void *x, void *out);
void samebits_run_argmax(const samebits_argmax *c, const void *x, void *out);
void samebits_run_log_softmax(const samebits_log_softmax *c, const void *x, void *out);
void samebits_run_top_k(const samebits_top_k *c, const void *x, void *out);
void samebits_run_resample(const samebits_resample *c, const void *x, void *out);
void samebits_run_tree_ensemble(const samebits_trees *c, const void *x, void *out);
void samebits_run_copy(const samebits_copy *c, const void *x, void *out);
void samebits_run_fill(const samebits_fill *c, void *out);
void samebits_run_gather(const samebits_gather *c, const void *x, void *out);
void samebits_run_take(const samebits_take *c, const void *x, const void *indices, void *out);
void samebits_run_scatter(const samebits_scatter *c, const void *x, const void *update,
                          const void *starts, void *out);
/* The token that follows logits[n] of a type (SAMEBITS_INT32 ...), the step-th that is drawn. */
int32_t samebits_sample(const samebits_sampling *s, const void *logits, uint8_t type, int32_t n,
                        uint64_t seed, uint32_t step);

#ifdef __cplusplus
}
#endif

#endif
