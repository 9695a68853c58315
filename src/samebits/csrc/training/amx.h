/* Products of matrices in tiles of bytes, for processors with Intel's AMX (amx.c). */
#ifndef SAMEBITS_AMX_H
#define SAMEBITS_AMX_H

#include "conv.h"

#if (defined(__AMX_INT8__) || defined(__AMXINT8__)) && defined(__AVX512BW__) && defined(__linux__)
#define SAMEBITS_AMX 1

/* Whether these kernels take a convolution: one tap, stride 1, no padding, no groups, at least as
 * many pixels in all images, channels that fill tiles and whose sums fit, and no more weights than
 * a copy of their gradients should have; and whether the system lets this process use tiles. */
int samebits_amx_takes(const Conv *s, int64_t pixels);

/* Pixels from which on packing weights for forward products, and sums for their gradients, pays. */
#define SAMEBITS_AMX_PIXELS 128

/* What samebits_conv, samebits_conv_input_grad and samebits_conv_weight_grad (conv.c,
 * conv_weight.c) compute of such a convolution. */
int64_t samebits_amx_conv(const Conv *s, const int8_t *x, const int8_t *w, int32_t *out,
                          int threads);
int64_t samebits_amx_input_grad(const Conv *s, const int16_t *g, const int8_t *w, void *dx,
                                int wide, int threads);
int64_t samebits_amx_weight_grad(const Conv *s, const void *g, int width, const int8_t *x,
                                 void *dw, int wide, int threads);
#endif

#endif
