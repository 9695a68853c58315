typedef struct {
    model_input2_t state1[5];
    model_input1_t state0[5];
    uint8_t unused[3]; /* 0 */
#ifdef SAMEBITS_DEBUG
    uint8_t mark[8]; /* model_reset has written the state */
#endif
} model_state_t;

/* The state before the first step. */
void model_reset(model_state_t *state);

/* One step: model_run on the state, which becomes that of the next step. */
void model_step(const model_t *net, model_state_t *state, const model_input0_t *input0,
                model_output0_t *output0);

/* `steps` steps, 0 or more: inputs and outputs of each lie one after the other. */
void model_steps(const model_t *net, model_state_t *state, int32_t steps,
                 const model_input0_t *input0, model_output0_t *output0);

/* The code nearest to a real number, ties to even. */
static inline model_input1_t model_input1_code(float real) {
    return (model_input1_t)samebits_code(real, MODEL_INPUT1_SCALE_M, MODEL_INPUT1_SCALE_E,
                                         MODEL_INPUT1_ZERO, -128, 127);
}

/* The code nearest to a real number, ties to even. */
static inline model_input2_t model_input2_code(float real) {
    return (model_input2_t)samebits_code(real, MODEL_INPUT2_SCALE_M, MODEL_INPUT2_SCALE_E,
                                         MODEL_INPUT2_ZERO, INT32_MIN, 2147483647);
}

/* The real number of a code, rounded once to binary32. */
static inline float model_output1_real(model_output1_t code) {
    return samebits_real(code, MODEL_OUTPUT1_SCALE_M, MODEL_OUTPUT1_SCALE_E, MODEL_OUTPUT1_ZERO);
}

/* The real number of a code, rounded once to binary32. */
static inline float model_output2_real(model_output2_t code) {
    return samebits_real(code, MODEL_OUTPUT2_SCALE_M, MODEL_OUTPUT2_SCALE_E, MODEL_OUTPUT2_ZERO);
}

#ifdef __cplusplus
}
#endif

#endif
