void model_reset(model_state_t *state);
static void model_step(const model_t *net, model_state_t *state, const model_input0_t *input0,
                       model_output0_t *output0);
static void model_steps(const model_t *net, model_state_t *state, int32_t steps,
                        const model_input0_t *input0, model_output0_t *output0);
#endif

static const samebits_source model_p0[2] = {
    {
        .strides = {1},
        .factor = 1,
        .type = 0},
    {
        .strides = {1},
        .factor = 2,
        .type = 0}};

static const samebits_broadcast model_p1 = {
    .shape = {
        .rank = 1,
        .shape = {5}},
    .sources = model_p0,
    .count = 2,
    .offset = 0,
    .operation = 0,
    .wide = 0,
    .rescale = {
        .multipliers = 0,
        .shifts = model_w0,
        .channels = 1,
        .count = 0,
        .zero = 0,
        .low = -128,
        .high = 127,
        .form = 1,
        .type = 0}};

static const samebits_source model_p2[1] = {
    {
        .strides = {1},
        .factor = 70000,
        .type = 0}};

static const samebits_broadcast model_p3 = {
    .shape = {
        .rank = 1,
        .shape = {5}},
    .sources = model_p2,
    .count = 1,
    .offset = 1,
    .operation = 0,
    .wide = 0,
    .rescale = {
        .multipliers = 0,
        .shifts = 0,
        .channels = 1,
        .count = 0,
        .zero = 0,
        .low = 0,
        .high = 0,
        .form = 0,
        .type = 4}};

static const samebits_source model_p4[3] = {
    {
        .strides = {1},
        .factor = 1,
        .type = 0},
    {
        .strides = {1},
        .factor = 1,
        .type = 0},
    {
        .strides = {1},
        .factor = 1,
        .type = 4}};

static const samebits_broadcast model_p5 = {
    .shape = {
        .rank = 1,
        .shape = {5}},
    .sources = model_p4,
    .count = 3,
    .offset = 0,
    .operation = 0,
    .wide = 0,
    .rescale = {
        .multipliers = 0,
        .shifts = 0,
        .channels = 1,
        .count = 0,
        .zero = 0,
        .low = 0,
        .high = 0,
        .form = 0,
        .type = 5}};

#ifdef SAMEBITS_TRACE
#define MODEL_LAYER(index, codes, count, width) \
    model_trace(index, codes, count, width);
#else
#define MODEL_LAYER(index, codes, count, width)
#endif

void model_init(model_t *net, void *arena) {
    net->arena = (uint8_t *)arena;
    net->kernels = &samebits_kernels_0;
}

void model_run(const model_t *net, const model_input0_t *input0, const model_input1_t *input1,
               const model_input2_t *input2, model_output0_t *output0, model_output1_t *output1,
               model_output2_t *output2) {
    (void)net;
    (void)input2;
    {
        const void *sources[2];
        sources[0] = input1;
        sources[1] = input0;
        samebits_run_broadcast(&model_p1, sources, output1);
    }
    MODEL_LAYER(0u, output1, 5u, 1u)
    {
        const void *sources[1];
        sources[0] = input0;
        samebits_run_broadcast(&model_p3, sources, output2);
    }
    MODEL_LAYER(1u, output2, 5u, 4u)
    {
        const void *sources[3];
        sources[0] = input0;
        sources[1] = output1;
        sources[2] = output2;
        samebits_run_broadcast(&model_p5, sources, output0);
    }
    MODEL_LAYER(2u, output0, 5u, 8u)
}

int model_selftest(const model_t *net, model_input0_t *input0, model_input1_t *input1,
                   model_input2_t *input2, model_output0_t *output0, model_output1_t *output1,
                   model_output2_t *output2) {
    const uint64_t expected = ((uint64_t)0xe5616bc5u << 32) | 0x4e4a4b69u;
    uint64_t hash = SAMEBITS_HASH;
    samebits_random(input0, 1, 1, MODEL_INPUT0_SIZE, 0);
    samebits_random(input1, 1, 1, MODEL_INPUT1_SIZE, 1);
    samebits_random(input2, 4, 1, MODEL_INPUT2_SIZE, 2);
    model_run(net, input0, input1, input2, output0, output1, output2);
    hash = samebits_hash(hash, output0, 8, MODEL_OUTPUT0_SIZE);
    hash = samebits_hash(hash, output1, 1, MODEL_OUTPUT1_SIZE);
    hash = samebits_hash(hash, output2, 4, MODEL_OUTPUT2_SIZE);
    return hash != expected;
}

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

#ifdef SAMEBITS_DEBUG
void model_init_checked(model_t *net, void *arena, size_t room) {
    SAMEBITS_ASSERT(net != 0, "net is null");
    SAMEBITS_ASSERT(arena != 0, "arena is null");
    SAMEBITS_ASSERT((uintptr_t)arena % MODEL_ARENA_ALIGNMENT == 0,
                    "arena is not at a multiple of 8 bytes");
    SAMEBITS_ASSERT(room >= MODEL_ARENA_BYTES, "arena is shorter than MODEL_ARENA_BYTES");
    model_init(net, arena);
}

void model_run_checked(const model_t *net, const model_input0_t *input0,
                       const model_input1_t *input1, const model_input2_t *input2,
                       model_output0_t *output0, model_output1_t *output1,
                       model_output2_t *output2) {
    SAMEBITS_ASSERT(net != 0, "net is null");
    SAMEBITS_ASSERT(net->kernels == &samebits_kernels_0,
                    "net was not made by MODEL_INSTANCE or model_init");
    SAMEBITS_ASSERT(input0 != 0, "input0 is null");
    SAMEBITS_ASSERT(input1 != 0, "input1 is null");
    SAMEBITS_ASSERT(input2 != 0, "input2 is null");
    SAMEBITS_ASSERT(SAMEBITS_SUITS(input2, 4), "input2 is not aligned for codes of 4 bytes");
    SAMEBITS_ASSERT(output0 != 0, "output0 is null");
    SAMEBITS_ASSERT(SAMEBITS_SUITS(output0, 8), "output0 is not aligned for codes of 8 bytes");
    SAMEBITS_ASSERT(output1 != 0, "output1 is null");
    SAMEBITS_ASSERT(output2 != 0, "output2 is null");
    SAMEBITS_ASSERT(SAMEBITS_SUITS(output2, 4), "output2 is not aligned for codes of 4 bytes");
    {
        const samebits_memory memory[] = {
            {net->arena, MODEL_ARENA_BYTES},
            {input0, sizeof *input0 * MODEL_INPUT0_SIZE},
            {input1, sizeof *input1 * MODEL_INPUT1_SIZE},
            {input2, sizeof *input2 * MODEL_INPUT2_SIZE},
            {output0, sizeof *output0 * MODEL_OUTPUT0_SIZE},
            {output1, sizeof *output1 * MODEL_OUTPUT1_SIZE},
            {output2, sizeof *output2 * MODEL_OUTPUT2_SIZE}};
        SAMEBITS_ASSERT(samebits_apart(memory, 1, 1), "input0 overlaps the arena");
        SAMEBITS_ASSERT(samebits_apart(memory, 2, 1), "input1 overlaps the arena");
        SAMEBITS_ASSERT(samebits_apart(memory, 3, 1), "input2 overlaps the arena");
        SAMEBITS_ASSERT(samebits_apart(memory, 4, 4),
                        "output0 overlaps the arena or another argument");
        SAMEBITS_ASSERT(samebits_apart(memory, 5, 5),
                        "output1 overlaps the arena or another argument");
        SAMEBITS_ASSERT(samebits_apart(memory, 6, 6),
                        "output2 overlaps the arena or another argument");
    }
    model_run(net, input0, input1, input2, output0, output1, output2);
}

int model_selftest_checked(const model_t *net, model_input0_t *input0, model_input1_t *input1,
                           model_input2_t *input2, model_output0_t *output0,
                           model_output1_t *output1, model_output2_t *output2) {
    SAMEBITS_ASSERT(net != 0, "net is null");
    SAMEBITS_ASSERT(net->kernels == &samebits_kernels_0,
                    "net was not made by MODEL_INSTANCE or model_init");
    SAMEBITS_ASSERT(input0 != 0, "input0 is null");
    SAMEBITS_ASSERT(input1 != 0, "input1 is null");
    SAMEBITS_ASSERT(input2 != 0, "input2 is null");
    SAMEBITS_ASSERT(SAMEBITS_SUITS(input2, 4), "input2 is not aligned for codes of 4 bytes");
    SAMEBITS_ASSERT(output0 != 0, "output0 is null");
    SAMEBITS_ASSERT(SAMEBITS_SUITS(output0, 8), "output0 is not aligned for codes of 8 bytes");
    SAMEBITS_ASSERT(output1 != 0, "output1 is null");
    SAMEBITS_ASSERT(output2 != 0, "output2 is null");
    SAMEBITS_ASSERT(SAMEBITS_SUITS(output2, 4), "output2 is not aligned for codes of 4 bytes");
    {
        const samebits_memory memory[] = {
            {net->arena, MODEL_ARENA_BYTES},
            {input0, sizeof *input0 * MODEL_INPUT0_SIZE},
            {input1, sizeof *input1 * MODEL_INPUT1_SIZE},
            {input2, sizeof *input2 * MODEL_INPUT2_SIZE},
            {output0, sizeof *output0 * MODEL_OUTPUT0_SIZE},
            {output1, sizeof *output1 * MODEL_OUTPUT1_SIZE},
            {output2, sizeof *output2 * MODEL_OUTPUT2_SIZE}};
        SAMEBITS_ASSERT(samebits_apart(memory, 1, 1), "input0 overlaps the arena");
        SAMEBITS_ASSERT(samebits_apart(memory, 2, 2),
                        "input1 overlaps the arena or another argument");
        SAMEBITS_ASSERT(samebits_apart(memory, 3, 3),
                        "input2 overlaps the arena or another argument");
        SAMEBITS_ASSERT(samebits_apart(memory, 4, 4),
                        "output0 overlaps the arena or another argument");
        SAMEBITS_ASSERT(samebits_apart(memory, 5, 5),
                        "output1 overlaps the arena or another argument");
        SAMEBITS_ASSERT(samebits_apart(memory, 6, 6),
                        "output2 overlaps the arena or another argument");
    }
    return model_selftest(net, input0, input1, input2, output0, output1, output2);
}

static const uint8_t model_mark[8] = {0xe5, 0x61, 0x6b, 0xc5, 0x4e, 0x4a, 0x4b, 0x69};

void model_reset_checked(model_state_t *state) {
    SAMEBITS_ASSERT(state != 0, "state is null");
    SAMEBITS_ASSERT(SAMEBITS_SUITS(state, 4), "state is not aligned for codes of 4 bytes");
    model_reset(state);
    samebits_copy_bytes(model_mark, state->mark, 8);
}

void model_step_checked(const model_t *net, model_state_t *state, const model_input0_t *input0,
                        model_output0_t *output0) {
    SAMEBITS_ASSERT(net != 0, "net is null");
    SAMEBITS_ASSERT(net->kernels == &samebits_kernels_0,
                    "net was not made by MODEL_INSTANCE or model_init");
    SAMEBITS_ASSERT(state != 0, "state is null");
    SAMEBITS_ASSERT(SAMEBITS_SUITS(state, 4), "state is not aligned for codes of 4 bytes");
    SAMEBITS_ASSERT(samebits_marked(state->mark, model_mark),
                    "state was not written by model_reset");
    SAMEBITS_ASSERT(input0 != 0, "input0 is null");
    SAMEBITS_ASSERT(output0 != 0, "output0 is null");
    SAMEBITS_ASSERT(SAMEBITS_SUITS(output0, 8), "output0 is not aligned for codes of 8 bytes");
    {
        const samebits_memory memory[] = {
            {net->arena, MODEL_ARENA_BYTES},
            {state, sizeof *state},
            {input0, sizeof *input0 * MODEL_INPUT0_SIZE},
            {output0, sizeof *output0 * MODEL_OUTPUT0_SIZE}};
        SAMEBITS_ASSERT(samebits_apart(memory, 1, 1), "state overlaps the arena");
        SAMEBITS_ASSERT(samebits_apart(memory, 2, 2), "input0 overlaps the arena or the state");
        SAMEBITS_ASSERT(samebits_apart(memory, 3, 3),
                        "output0 overlaps the arena or the state or another argument");
    }
    model_step(net, state, input0, output0);
}

void model_steps_checked(const model_t *net, model_state_t *state, int32_t steps,
                         const model_input0_t *input0, model_output0_t *output0) {
    SAMEBITS_ASSERT(steps >= 0, "steps is negative");
    SAMEBITS_ASSERT(net != 0, "net is null");
    SAMEBITS_ASSERT(net->kernels == &samebits_kernels_0,
                    "net was not made by MODEL_INSTANCE or model_init");
    SAMEBITS_ASSERT(state != 0, "state is null");
    SAMEBITS_ASSERT(SAMEBITS_SUITS(state, 4), "state is not aligned for codes of 4 bytes");
    SAMEBITS_ASSERT(samebits_marked(state->mark, model_mark),
                    "state was not written by model_reset");
    SAMEBITS_ASSERT(input0 != 0, "input0 is null");
    SAMEBITS_ASSERT(output0 != 0, "output0 is null");
    SAMEBITS_ASSERT(SAMEBITS_SUITS(output0, 8), "output0 is not aligned for codes of 8 bytes");
    {
        const samebits_memory memory[] = {
            {net->arena, MODEL_ARENA_BYTES},
            {state, sizeof *state},
            {input0, sizeof *input0 * MODEL_INPUT0_SIZE * (size_t)steps},
            {output0, sizeof *output0 * MODEL_OUTPUT0_SIZE * (size_t)steps}};
        SAMEBITS_ASSERT(samebits_apart(memory, 1, 1), "state overlaps the arena");
        SAMEBITS_ASSERT(samebits_apart(memory, 2, 2), "input0 overlaps the arena or the state");
        SAMEBITS_ASSERT(samebits_apart(memory, 3, 3),
                        "output0 overlaps the arena or the state or another argument");
    }
    model_steps(net, state, steps, input0, output0);
}
#endif
