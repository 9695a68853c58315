#ifndef MODEL_TABLES_H
#define MODEL_TABLES_H

#include <stdint.h>

/* Loads of whole vectors stay within cache lines. */
#if defined(__GNUC__) && defined(__AVX512F__)
#define MODEL_ALIGNED __attribute__((aligned(64)))
#else
#define MODEL_ALIGNED
#endif

extern const int8_t model_t0[124];
extern const int32_t model_t1[3];
extern const int32_t model_t2[3];
extern const uint8_t model_t3[3];
extern const int8_t model_t4[256];
extern const int32_t model_t5[1];
extern const uint8_t model_t6[1];

#endif
