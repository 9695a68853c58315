#ifndef MODEL_CONSTANTS_H
#define MODEL_CONSTANTS_H

#include "model.h"

extern const int8_t model_w0[124];
extern const int32_t model_w1[3];
extern const int32_t model_w2[3];
extern const uint8_t model_w3[3];
extern const int32_t model_w4[1];
extern const uint8_t model_w5[1];
extern const int8_t model_t0[256];

#endif
