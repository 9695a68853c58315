/* An integer model. Codes of inputs and outputs; all memory is static. */
#ifndef MODEL_H
#define MODEL_H

#include <stdint.h>

typedef int8_t model_input0_t;
#define MODEL_INPUT0_SIZE 32
typedef uint8_t model_input1_t;
#define MODEL_INPUT1_SIZE 48
typedef int8_t model_output0_t;
#define MODEL_OUTPUT0_SIZE 48
typedef int32_t model_output1_t;
#define MODEL_OUTPUT1_SIZE 3
#define MODEL_INPUTS 2
#define MODEL_OUTPUTS 2
#define MODEL_ARENA_BYTES 48
#define MODEL_SCRATCH_BYTES 56
#define MODEL_LAYERS 4

#ifdef SAMEBITS_TRACE
/* Called after every layer: `count` codes of `width` bytes, in this machine's order. */
void samebits_trace(uint32_t layer, const void *codes, uint32_t count, uint32_t width);
#endif

/* Not reentrant: the arena is static. Outputs must not overlap inputs. */
void model_run(const model_input0_t *input0, const model_input1_t *input1,
               model_output0_t *output0, model_output1_t *output1);

#endif
