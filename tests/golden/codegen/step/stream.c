void model_reset(model_state_t *state) {
    int32_t i;
    for (i = 0; i < 5; i++) state->state0[i] = 5;
    for (i = 0; i < 5; i++) state->state1[i] = 4;
    for (i = 0; i < 3; i++) state->unused[i] = 0;
}

void model_step(const model_t *net, model_state_t *state, const model_input0_t *input0,
                model_output0_t *output0) {
    model_run(net, input0, state->state0, state->state1, output0, state->state0,
              (model_output2_t *)(void *)(net->arena + 0));
    samebits_copy_bytes(net->arena + 0, state->state1, 20u);
}

void model_steps(const model_t *net, model_state_t *state, int32_t steps,
                 const model_input0_t *input0, model_output0_t *output0) {
    for (; steps > 0; steps--) {
        model_step(net, state, input0, output0);
        input0 += MODEL_INPUT0_SIZE;
        output0 += MODEL_OUTPUT0_SIZE;
    }
}
