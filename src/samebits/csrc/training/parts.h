/* Kernels that those of other files call. */
#ifndef SAMEBITS_PARTS_H
#define SAMEBITS_PARTS_H

#include <stdint.h>

#include "conv.h"

/* One addend of `samebits_add_grad`: codes of 16 or 32 bits, and the exponent that scales them. */
typedef struct {
    const void *codes;
    int64_t width, by;
} Addend;

int64_t samebits_max_i8(const int8_t *v, int64_t n, int threads);
int64_t samebits_max_i16(const int16_t *v, int64_t n, int threads);
int64_t samebits_max_i32(const int32_t *v, int64_t n, int threads);
int64_t samebits_max_i64(const int64_t *v, int64_t n, int threads);
void samebits_scale_i32_i8(const int32_t *v, int64_t n, int64_t by, int8_t *out, int threads);
void samebits_scale_i32_i16(const int32_t *v, int64_t n, int64_t by, int16_t *out, int threads);
void samebits_scale_i32_i32(const int32_t *v, int64_t n, int64_t by, int32_t *out, int threads);
void samebits_scale_i64_i8(const int64_t *v, int64_t n, int64_t by, int8_t *out, int threads);
void samebits_scale_i64_i16(const int64_t *v, int64_t n, int64_t by, int16_t *out, int threads);
void samebits_scale_i64_i32(const int64_t *v, int64_t n, int64_t by, int32_t *out, int threads);
void samebits_largest(const void *v, int type, int64_t n, int64_t *largest, int threads);
int samebits_requantize(const void *acc, int type, int64_t n, const int64_t *largest,
                        const int64_t *exponent, int bits, void *codes, int to, int64_t *own,
                        int threads);
void samebits_shorten(const void *acc, int type, int64_t n, const int64_t *largest,
                      const int64_t *exponent, int32_t *codes, int64_t *own, int threads);
int samebits_products(const Conv *s, const int8_t *x, const int8_t *w, int32_t *out,
                      int64_t *largest, int threads);
int64_t samebits_add_grad(const Addend *parts, int64_t count, int64_t n, int32_t *out,
                          int64_t *own, int threads);
int64_t samebits_product(const int8_t *x, const int8_t *w, int64_t n, int64_t co, int64_t ci,
                         int32_t *out, int threads);
int64_t samebits_conv(const Conv *s, const int8_t *x, const int8_t *w, int32_t *out, int threads);
int64_t samebits_depthwise(const Conv *s, const int8_t *x, const int8_t *w, int32_t *out,
                           int threads);
int64_t samebits_reach(const int8_t *w, int64_t groups, int64_t outer, int64_t c);
int64_t samebits_conv_input_grad(const Conv *s, const int16_t *g, const int8_t *w, void *dx,
                                 int wide, int threads);
int64_t samebits_depthwise_input_grad(const Conv *s, const int16_t *g, const int8_t *w,
                                      int32_t *dx, int threads);
int64_t samebits_conv_weight_grad(const Conv *s, const void *g, int width, const int8_t *x,
                                  void *dw, int wide, int threads);
int64_t samebits_depthwise_weight_grad(const Conv *s, const void *g, int width, const int8_t *x,
                                       int64_t *dw, int threads);

#endif
