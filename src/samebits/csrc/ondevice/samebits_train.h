/* A training step on a device: the operations that generated C calls, one for every instruction.
 *
 * The arithmetic is docs/spec/training.md, whose sections stand in brackets. Integers, and binary64
 * for the scalars of batch norms, the rate and the loss alone; no allocation, no recursion, no
 * libm, no variable outside the caller's memory. Images are [n, h, w, c], weights [o, kh, kw, i].
 *
 * The exponent of a result follows from the largest magnitude of all its sums, so that an operation
 * keeps its wide sums, where it is given room, or computes them twice. */
#ifndef SAMEBITS_TRAIN_H
#define SAMEBITS_TRAIN_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct samebits_optimizer;

/* What every function of a generated package returns. But for SAMEBITS_TRAIN_OK the state is what
 * it was before the call, every byte. */
enum {
    SAMEBITS_TRAIN_OK = 0,
    SAMEBITS_TRAIN_RANGE = 1,  /* an exponent might leave its range: training diverged */
    SAMEBITS_TRAIN_LABEL = 2,  /* a label is not below the number of classes */
    SAMEBITS_TRAIN_COUNT = 3,  /* samples: less than 1 (2 with batch norms), or above the batch */
    SAMEBITS_TRAIN_INPUT = 4,  /* an input is not finite */
    SAMEBITS_TRAIN_ARENA = 5,  /* the arena is too small, or its address no multiple of 8 */
    SAMEBITS_TRAIN_STATE = 6,  /* a saved state of another network, cut short, or damaged */
    SAMEBITS_TRAIN_RATE = 7    /* a learning rate that is negative or not finite */
};

/* What a step does with its updates: prove by bounds that none can fail, and make them; compute all
 * that can fail, and make none; make them. */
enum { SAMEBITS_TRAIN_PROVE, SAMEBITS_TRAIN_CHECK, SAMEBITS_TRAIN_COMMIT, SAMEBITS_TRAIN_MEASURE };

/* The exponents of a parameter: of W (2), of V with its largest code (1.4; 0 without a V), or of M
 * and S. */
typedef struct {
    int32_t e_w, e_v, top_v, e_root;
} samebits_scale;

/* A parameter (2) in the arena with its moments, V, or M and S, or none; and its number among those
 * of the optimizer. */
typedef struct {
    int8_t *w;
    int16_t *a, *v, *root;
    samebits_scale *s;
    int32_t n;
    uint32_t index;
} samebits_parameter;

/* m * 2**x (3); m is 0 where the term is left out. */
typedef struct {
    int32_t m, x;
} samebits_coefficient;

/* The constants of Adam (4): rest is 1 - beta, and one of the two decays is 0. */
typedef struct {
    double beta1, rest1, beta2, rest2, eps, coupled, decoupled;
} samebits_adam;

/* Clipping (4): limits, 0 where there is none; the sum of squares in units of 4**-640, and the
 * factor of all gradients, whose m is 0 where their norm is within the limit. */
#define SAMEBITS_TRAIN_SQUARES 80
typedef struct samebits_clip samebits_clip;
typedef struct samebits_update samebits_update;
struct samebits_clip {
    void (*clip)(samebits_update *d, int64_t *top, int32_t *e);
    double value, norm;
    samebits_coefficient factor;
    uint32_t squares[SAMEBITS_TRAIN_SQUARES];
};

/* What an optimizer does with the gradient of a parameter, which it may see several times.
 *
 * sure:     whether no exponent can leave its range by a gradient below 2**reach
 * start:    before the first pass
 * elements: those from i on, in order
 * again:    what follows a pass; whether there is another */
typedef struct {
    int (*sure)(const samebits_parameter *p, const struct samebits_optimizer *o, int32_t reach);
    void (*start)(samebits_update *d);
    void (*elements)(samebits_update *d, int32_t i, const int32_t *g, int32_t count);
    int (*again)(samebits_update *d);
} samebits_rule;

/* SGD with momentum; without, and Nesterov's; Adam and AdamW. */
extern const samebits_rule samebits_train_sgd, samebits_train_plain, samebits_train_adam;

/* An optimizer (4) in one step, and whether it makes updates. adam: or NULL, with the divisors c1
 * and sqrt(c2). clip: or NULL. */
typedef struct samebits_optimizer {
    const samebits_rule *rule;
    samebits_coefficient rate, momentum, decay;
    const samebits_adam *adam;
    samebits_clip *clip;
    double c1, c2;
    uint32_t seed, step;
    int32_t nesterov, mode;
} samebits_optimizer;

/* A learning rate of a schedule, from a step on. */
typedef struct {
    uint32_t step;
    samebits_coefficient rate;
} samebits_rate;

/* A convolution, of groups of channels; a linear layer is one of images [1, 1, c]. */
typedef struct {
    int32_t n, h, w, c, oh, ow, o, kh, kw, stride_y, stride_x, pad_y, pad_x, groups;
} samebits_conv;

/* Windows of kh by kw that do not overlap, and lie in the image. */
typedef struct {
    int32_t n, h, w, c, oh, ow, kh, kw;
} samebits_pool;

/* bits: of the input, 8 or 16. running: by running statistics, which are no function of it. */
typedef struct {
    int32_t rows, c, bits;
    double eps, momentum;
    int32_t running;
} samebits_norm;

/* What the backward pass of a batch norm and its running statistics need of a channel. */
typedef struct {
    double centre, inv, a, spread;
} samebits_channel;

/* Words below the threshold drop their element; the others are multiplied by the scale. */
typedef struct {
    int32_t n;
    uint32_t threshold, site;
    samebits_coefficient scale;
} samebits_dropout;

/* A gradient: codes of 16 or 32 bits, and their exponent.
 *
 * It may follow from others, so that its own codes, of 32 bits, are computed channel by channel
 * where they are read, and never stored. pool, where: behind a max pool `codes` are those of its
 * output; or NULL. lines, z: of a batch norm (samebits_train_norm_gradient), which comes after the
 * pool; or NULL. */
typedef struct {
    const void *codes;
    int32_t width, e;
    const samebits_pool *pool;
    const uint8_t *where;
    const int64_t *lines;
    const int8_t *z;
} samebits_gradient;

/* A code of a gradient, and where the number lies that it meets. */
typedef struct {
    int32_t g, x;
} samebits_meeting;

/* Magnitudes of gradients are at most 2**reach; `sure` while no exponent can leave its range. */
typedef struct {
    int32_t reach, sure;
} samebits_bounds;

/* --- forward --------------------------------------------------------------------------------- */

int samebits_train_quantize(const float *in, int32_t n, int8_t *out, int32_t *e);
/* Each of `rows` by itself. */
int samebits_train_quantize_rows(const float *in, int32_t rows, int32_t n, int8_t *out, int32_t *e);

/* What becomes of exact sums before they are rounded (5): as they are, those of a ReLU, of a ReLU6.
 *
 * A mask of n elements has (n + 7) / 8 bytes: bit i % 8 of byte i / 8 is set where the gradient of
 * element i passes, by the integer that was clamped; NULL: no gradient comes here. */
enum { SAMEBITS_TRAIN_PLAIN, SAMEBITS_TRAIN_RELU, SAMEBITS_TRAIN_RELU6 };

/* Outputs of 8 or 16 bits, or the logits, of 32. bias: or NULL. sums: room for all, which y may be
 * the first part of; NULL: they are computed twice. */
int samebits_train_products(const samebits_conv *s, const int8_t *x, int32_t e_x,
                            const samebits_parameter *w, const samebits_parameter *bias,
                            int32_t *sums, void *y, int32_t bits, int32_t *e_y, int32_t clamp,
                            uint8_t *mask);
int samebits_train_logits(const samebits_conv *s, const int8_t *x, int32_t e_x,
                          const samebits_parameter *w, const samebits_parameter *bias, int32_t *z,
                          int32_t *e_z);

/* By the statistics of this shard, or by the running ones; `saved` keeps them. y may lie where z of
 * 8 bits does. room: 2 numbers a channel. */
int samebits_train_norm(const samebits_norm *s, const void *z, int32_t e_z,
                        const samebits_parameter *gamma, const samebits_parameter *beta,
                        samebits_channel *saved, int32_t *room, int8_t *y, int32_t *e_y,
                        int32_t clamp, uint8_t *mask);
int samebits_train_norm_run(const samebits_norm *s, const void *z, int32_t e_z,
                            const samebits_parameter *gamma, const samebits_parameter *beta,
                            const double *mean, const double *var, samebits_channel *saved,
                            int32_t *room, int8_t *y, int32_t *e_y, int32_t clamp,
                            uint8_t *mask);

/* Products in 16 bits and their batch norm by running statistics: they are computed twice, and what
 * lies between is never stored. There is no mask: no gradient comes here. */
int samebits_train_products_norm(const samebits_conv *s, const int8_t *x, int32_t e_x,
                                 const samebits_parameter *w, const samebits_parameter *bias,
                                 const samebits_norm *norm, const samebits_parameter *gamma,
                                 const samebits_parameter *beta, const double *mean,
                                 const double *var, samebits_channel *saved, int32_t *room,
                                 int8_t *y, int32_t *e_y, int32_t clamp, uint8_t *mask);

/* What a batch norm does with an input, of whose channels `room` has the smallest and the largest
 * code: factor and term of every channel, in their place, and how sums become codes. */
typedef struct {
    int32_t clamp, limit, shift;
} samebits_rounding;
int samebits_train_norm_scale(const samebits_norm *s, int32_t e_z, const samebits_parameter *gamma,
                              const samebits_parameter *beta, const double *mean, const double *var,
                              samebits_channel *saved, int32_t *room, int32_t clamp,
                              samebits_rounding *rounding, int32_t *e_y);

/* The input of 16 bits in 8, which the gradient reads. */
int samebits_train_norm_codes(const samebits_norm *s, const int16_t *z, int32_t e_z, int8_t *out,
                              int32_t *e_out);

/* A ReLU of codes, in their place. */
void samebits_train_relu(int8_t *x, int32_t n, int32_t e, int32_t clamp, uint8_t *mask);

/* where: the place of the first maximum in its window, and SAMEBITS_TRAIN_STOPPED where the mask of
 * a ReLU before it (or NULL) lets no gradient pass there; NULL: no gradient comes here. */
#define SAMEBITS_TRAIN_STOPPED 128
void samebits_train_max_pool(const samebits_pool *s, const int8_t *x, const uint8_t *mask,
                             int8_t *y, uint8_t *where);
int samebits_train_average(const samebits_pool *s, const int8_t *x, int32_t e, int32_t *sums,
                           int8_t *y, int32_t *e_y);
/* y may lie where a or b does. */
int samebits_train_add(int32_t n, const int8_t *a, int32_t e_a, const int8_t *b, int32_t e_b,
                       int8_t *y, int32_t *e_y, int32_t clamp, uint8_t *mask);
int samebits_train_dropout(const samebits_dropout *s, const samebits_optimizer *o, const int8_t *x,
                           int32_t e_x, int8_t *y, int32_t *e_y);

/* Elements in other places: of each of `rows`, `part` bytes of `whole`, from `first` on; and such
 * parts of a gradient, with zeros around them. */
void samebits_train_part(const void *x, int32_t rows, int32_t whole, int32_t first, int32_t part,
                         void *y);
void samebits_train_part_gradient(const void *g, int32_t rows, int32_t whole, int32_t first,
                                  int32_t part, void *dx);

/* The gradient of the logits [n][c], of 32 bits. tables: T1, then T2, 256 numbers each. */
void samebits_train_cross_entropy(const int32_t *z, int32_t n, int32_t c, int32_t e,
                                  const uint8_t *labels, const int64_t *tables, int64_t *row,
                                  int32_t *g, int32_t *e_g, double *loss);

/* --- backward -------------------------------------------------------------------------------- */

/* The gradient of a value with several uses, of their gradients, where one of which out may lie. */
void samebits_train_resolve(const samebits_gradient *parts, int32_t count, int32_t n, int32_t *out,
                            int32_t *e_out);
/* Channel k of a gradient [rows][c]. A `column` of other functions has room for one channel. */
void samebits_train_column(const samebits_gradient *g, int32_t rows, int32_t c, int32_t k,
                           int32_t *out);
/* All codes of a gradient, where those of one behind a batch norm may lie, if they have 32 bits;
 * and in 16 bits. */
void samebits_train_settle(samebits_gradient g, int32_t rows, int32_t c, int32_t *column,
                           int32_t *out);
int samebits_train_narrow(samebits_gradient g, int32_t rows, int32_t c, int32_t *column,
                          int16_t *out, int32_t *e_out);
/* sums: room for all where each fits 32 bits, which dx may be the first part of; NULL: they are
 * computed twice. */
int samebits_train_input_gradient(const samebits_conv *s, const int16_t *g, int32_t e_g,
                                  const samebits_parameter *w, int32_t *sums, int16_t *dx,
                                  int32_t *e_dx);
void samebits_train_relu_gradient(void *g, int32_t width, const uint8_t *mask, int32_t n);
void samebits_train_average_gradient(const samebits_pool *s, samebits_gradient g, int32_t *dx,
                                     int32_t *e_dx);
void samebits_train_dropout_gradient(const samebits_dropout *s, const samebits_optimizer *o,
                                     samebits_gradient g, int32_t *out, int32_t *e_out);

/* Updates of gamma and beta; NULL: not of this one. Where e_dz is not NULL, the exponent of the
 * gradient of z, and its lines in `room`: three integers of every channel, a, slope and offset,
 * then the shift of rne((a * g + slope * z + offset) * 2**-shift), and the largest of these codes.
 * room: one number, and 4 a channel; codes: one. */
int samebits_train_norm_gradient(const samebits_norm *s, samebits_gradient g, const int8_t *z,
                                 int32_t e_z, samebits_parameter *gamma, samebits_parameter *beta,
                                 const samebits_channel *saved, const samebits_optimizer *o,
                                 int32_t *column, double *room, int32_t *codes, int32_t *e_dz);

/* --- updates --------------------------------------------------------------------------------- */

/* The gradient of a weight, of which no element is stored, and its update; of a bias; of a
 * parameter whose gradient of 32 bits lies in memory. sums: room for all; NULL: they are computed
 * for every pass. table: room by which DSP extension and Helium are faster, for the codes of x, two
 * images a word, and for two numbers of 16 bits a meeting; or NULL. room: of a weight for one
 * channel, of a bias one number an output. */
int samebits_train_weight_step(const samebits_conv *s, const int8_t *x, int32_t e_x,
                               samebits_gradient g, int32_t *column, samebits_meeting *room,
                               int64_t *sums, void *table, samebits_parameter *w,
                               const samebits_optimizer *o);
int samebits_train_bias_step(samebits_gradient g, int32_t rows, int32_t *column, int64_t *room,
                             samebits_parameter *bias, const samebits_optimizer *o);
/* The same of a factor of the codes x, of the exponent e_x. */
int samebits_train_factor_step(samebits_gradient g, const int8_t *x, int32_t e_x, int32_t rows,
                               int32_t *column, int64_t *room, samebits_parameter *gamma,
                               const samebits_optimizer *o);
int samebits_train_vector_step(samebits_parameter *p, const samebits_optimizer *o, const int32_t *g,
                               int32_t e_g);

/* Running statistics move by those of this shard. */
void samebits_train_running(const samebits_norm *s, const samebits_channel *saved, int32_t e_z,
                            double *mean, double *var);

/* --- bounds: along the backward pass, before anything changes -------------------------------- */

/* Of the update of a weight, of a bias; of the gradient of the input. */
void samebits_train_bound_weight(samebits_bounds *b, const samebits_conv *s, int32_t e_x,
                                 const samebits_parameter *w, const samebits_optimizer *o);
void samebits_train_bound_bias(samebits_bounds *b, const samebits_conv *s,
                               const samebits_parameter *bias, const samebits_optimizer *o);
void samebits_train_bound_input(samebits_bounds *b, const samebits_conv *s,
                                const samebits_parameter *w);
/* gamma, beta: NULL where they are not trained. */
void samebits_train_bound_norm(samebits_bounds *b, const samebits_norm *s,
                               const samebits_parameter *gamma, const samebits_parameter *beta,
                               const samebits_channel *saved, const samebits_optimizer *o);
void samebits_train_bound_dropout(samebits_bounds *b, const samebits_dropout *s);

/* A gradient is added to those of its value so far, whose bound is `held`. */
void samebits_train_bound_sum(samebits_bounds *b, int32_t *held);

/* --- state ----------------------------------------------------------------------------------- */

/* `count` numbers of `size` bytes at an offset of the arena, in the order of the saved bytes. */
typedef struct {
    uint32_t offset, count, size;
} samebits_region;

#define SAMEBITS_TRAIN_HEADER 24 /* magic, network, step, checksum */

/* regions: W, A and the moments of every parameter, then running statistics and the powers of
 * Adam's betas, then one of count 0. The exponents of parameters come first in the bytes. */
int samebits_train_save(const uint8_t *arena, const samebits_region *regions,
                        const samebits_parameter *p, int32_t parameters, int32_t moments,
                        uint32_t network, uint32_t step, uint8_t *to);
int samebits_train_load(uint8_t *arena, const samebits_region *regions, samebits_parameter *p,
                        int32_t parameters, int32_t moments, uint32_t network, uint32_t *step,
                        const uint8_t *from, size_t size);

/* The divisors of a step of Adam, by the powers of its betas up to now; the powers after it. */
void samebits_train_adam_start(samebits_optimizer *o, const double *powers);
void samebits_train_adam_end(const samebits_adam *adam, double *powers);

/* For the first of two walks of a step: nothing is measured yet. After it: the factor. */
void samebits_train_clip_start(samebits_clip *c, double value, double norm);
void samebits_train_clip_end(samebits_clip *c);

/* The rate of a step by a schedule of `count` entries, of which the first is for step 0. */
samebits_coefficient samebits_train_scheduled(const samebits_rate *schedule, int32_t count,
                                              uint32_t step);

/* coef(rate) (3). Returns SAMEBITS_TRAIN_RATE for a negative number, and one that is not finite. */
int samebits_train_rate(double rate, samebits_coefficient *out);

#ifdef __cplusplus
}
#endif

#endif
