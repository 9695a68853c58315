/* An integer model. Codes of inputs and outputs; all memory is static. */
#ifndef MODEL_H
#define MODEL_H

#include <stdint.h>

typedef int8_t model_input0_t;
#define MODEL_INPUT0_SIZE 5
typedef int8_t model_input1_t;
#define MODEL_INPUT1_SIZE 5
typedef int32_t model_input2_t;
#define MODEL_INPUT2_SIZE 5
typedef int64_t model_output0_t;
#define MODEL_OUTPUT0_SIZE 5
typedef int8_t model_output1_t;
#define MODEL_OUTPUT1_SIZE 5
typedef int32_t model_output2_t;
#define MODEL_OUTPUT2_SIZE 5
#define MODEL_INPUTS 3
#define MODEL_OUTPUTS 3
#define MODEL_ARENA_BYTES 0
#define MODEL_SCRATCH_BYTES 0
#define MODEL_LAYERS 3

#ifdef SAMEBITS_TRACE
/* Called after every layer: `count` codes of `width` bytes, in this machine's order. */
void samebits_trace(uint32_t layer, const void *codes, uint32_t count, uint32_t width);
#endif

/* Not reentrant: the arena is static. Outputs must not overlap inputs. */
void model_run(const model_input0_t *input0, const model_input1_t *input1,
               const model_input2_t *input2, model_output0_t *output0, model_output1_t *output1,
               model_output2_t *output2);

/* What is carried from step to step: codes of every state, the wider ones first, without
 * padding. Its bytes may be stored, and copied back to go on from there. */
typedef struct {
    model_input2_t state1[5];
    model_input1_t state0[5];
    uint8_t unused[3]; /* 0 */
} model_state_t;

/* The state before the first step. */
void model_reset(model_state_t *state);

/* One step: model_run on the state, which becomes that of the next step. */
void model_step(model_state_t *state, const model_input0_t *input0, model_output0_t *output0);

/* `steps` steps: inputs and outputs of each lie one after the other. */
void model_steps(model_state_t *state, int32_t steps, const model_input0_t *input0,
                 model_output0_t *output0);

#endif
