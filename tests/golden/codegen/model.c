#include "model.h"

#include "model_constants.h"
#include "samebits/samebits_kernels.h"

#ifdef SAMEBITS_DEBUG
#include "samebits/samebits_debug.h"
/* The functions proper; those that check their arguments are at the end. */
#undef model_init
#undef model_run
#undef model_selftest
static void model_init(model_t *net, void *arena);
static void model_run(const model_t *net, const model_input0_t *input0,
                      const model_input1_t *input1, model_output0_t *output0,
                      model_output1_t *output1);
static int model_selftest(const model_t *net, model_input0_t *input0, model_input1_t *input1,
                          model_output0_t *output0, model_output1_t *output1);
#endif

static const samebits_conv model_p0 = {
    .batch = 1,
    .height = 4,
    .width = 4,
    .channels = 2,
    .out_height = 4,
    .out_width = 4,
    .out_channels = 3,
    .groups = 1,
    .kernel_height = 3,
    .kernel_width = 3,
    .stride_y = 1,
    .stride_x = 1,
    .pad_top = 1,
    .pad_left = 1,
    .dilation_y = 1,
    .dilation_x = 1,
    .pad_code = 3,
    .runs = 1,
    .length = 6,
    .tile = 4,
    .out_batch = 48,
    .out_row = 12,
    .out_pixel = 3,
    .out_start = 0,
    .block = 0,
    .type = 0,
    .w_type = 0,
    .weights = model_w0,
    .bias = model_w1,
    .rescale = {
        .multipliers = model_w2,
        .shifts = model_w3,
        .channels = 3,
        .count = 0,
        .zero = -4,
        .low = -128,
        .high = 127,
        .form = 3,
        .type = 0}};

static const samebits_table model_p1 = {
    .size = 48,
    .channels = 1,
    .table = model_t0,
    .type = 0,
    .out_type = 0};

static const samebits_source model_p2[2] = {
    {
        .strides = {1},
        .factor = 3,
        .type = 0},
    {
        .strides = {1},
        .factor = -1,
        .type = 1}};

static const samebits_broadcast model_p3 = {
    .shape = {
        .rank = 1,
        .shape = {48}},
    .sources = model_p2,
    .count = 2,
    .offset = 7,
    .operation = 0,
    .wide = 0,
    .rescale = {
        .multipliers = model_w4,
        .shifts = model_w5,
        .channels = 1,
        .count = 0,
        .zero = 0,
        .low = -128,
        .high = 127,
        .form = 2,
        .type = 0}};

static const samebits_reduce model_p4 = {
    .kept = {
        .rank = 1,
        .shape = {3}},
    .reduced = {
        .rank = 1,
        .shape = {16}},
    .kept_strides = {1},
    .reduced_strides = {3},
    .zero = 0,
    .operation = 0,
    .type = 0,
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
               model_output0_t *output0, model_output1_t *output1) {
    samebits_run_conv8(&model_p0, input0, net->arena + 56, net->arena + 0);
    MODEL_LAYER(0u, net->arena + 56, 48u, 1u)
    samebits_run_table(&model_p1, net->arena + 56, net->arena + 56);
    MODEL_LAYER(1u, net->arena + 56, 48u, 1u)
    {
        const void *sources[2];
        sources[0] = net->arena + 56;
        sources[1] = input1;
        samebits_run_broadcast(&model_p3, sources, output0);
    }
    MODEL_LAYER(2u, output0, 48u, 1u)
    samebits_run_reduce(&model_p4, output0, output1);
    MODEL_LAYER(3u, output1, 3u, 4u)
}

int model_selftest(const model_t *net, model_input0_t *input0, model_input1_t *input1,
                   model_output0_t *output0, model_output1_t *output1) {
    const uint64_t expected = ((uint64_t)0xf5908143u << 32) | 0x89c7c3d6u;
    uint64_t hash = SAMEBITS_HASH;
    samebits_random(input0, 1, 1, MODEL_INPUT0_SIZE, 0);
    samebits_random(input1, 1, 0, MODEL_INPUT1_SIZE, 1);
    model_run(net, input0, input1, output0, output1);
    hash = samebits_hash(hash, output0, 1, MODEL_OUTPUT0_SIZE);
    hash = samebits_hash(hash, output1, 4, MODEL_OUTPUT1_SIZE);
    return hash != expected;
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
                       const model_input1_t *input1, model_output0_t *output0,
                       model_output1_t *output1) {
    SAMEBITS_ASSERT(net != 0, "net is null");
    SAMEBITS_ASSERT(net->kernels == &samebits_kernels_0,
                    "net was not made by MODEL_INSTANCE or model_init");
    SAMEBITS_ASSERT(input0 != 0, "input0 is null");
    SAMEBITS_ASSERT(input1 != 0, "input1 is null");
    SAMEBITS_ASSERT(output0 != 0, "output0 is null");
    SAMEBITS_ASSERT(output1 != 0, "output1 is null");
    SAMEBITS_ASSERT(SAMEBITS_SUITS(output1, 4), "output1 is not aligned for codes of 4 bytes");
    {
        const samebits_memory memory[] = {
            {net->arena, MODEL_ARENA_BYTES},
            {input0, sizeof *input0 * MODEL_INPUT0_SIZE},
            {input1, sizeof *input1 * MODEL_INPUT1_SIZE},
            {output0, sizeof *output0 * MODEL_OUTPUT0_SIZE},
            {output1, sizeof *output1 * MODEL_OUTPUT1_SIZE}};
        SAMEBITS_ASSERT(samebits_apart(memory, 1, 1), "input0 overlaps the arena");
        SAMEBITS_ASSERT(samebits_apart(memory, 2, 1), "input1 overlaps the arena");
        SAMEBITS_ASSERT(samebits_apart(memory, 3, 3),
                        "output0 overlaps the arena or another argument");
        SAMEBITS_ASSERT(samebits_apart(memory, 4, 4),
                        "output1 overlaps the arena or another argument");
    }
    model_run(net, input0, input1, output0, output1);
}

int model_selftest_checked(const model_t *net, model_input0_t *input0, model_input1_t *input1,
                           model_output0_t *output0, model_output1_t *output1) {
    SAMEBITS_ASSERT(net != 0, "net is null");
    SAMEBITS_ASSERT(net->kernels == &samebits_kernels_0,
                    "net was not made by MODEL_INSTANCE or model_init");
    SAMEBITS_ASSERT(input0 != 0, "input0 is null");
    SAMEBITS_ASSERT(input1 != 0, "input1 is null");
    SAMEBITS_ASSERT(output0 != 0, "output0 is null");
    SAMEBITS_ASSERT(output1 != 0, "output1 is null");
    SAMEBITS_ASSERT(SAMEBITS_SUITS(output1, 4), "output1 is not aligned for codes of 4 bytes");
    {
        const samebits_memory memory[] = {
            {net->arena, MODEL_ARENA_BYTES},
            {input0, sizeof *input0 * MODEL_INPUT0_SIZE},
            {input1, sizeof *input1 * MODEL_INPUT1_SIZE},
            {output0, sizeof *output0 * MODEL_OUTPUT0_SIZE},
            {output1, sizeof *output1 * MODEL_OUTPUT1_SIZE}};
        SAMEBITS_ASSERT(samebits_apart(memory, 1, 1), "input0 overlaps the arena");
        SAMEBITS_ASSERT(samebits_apart(memory, 2, 2),
                        "input1 overlaps the arena or another argument");
        SAMEBITS_ASSERT(samebits_apart(memory, 3, 3),
                        "output0 overlaps the arena or another argument");
        SAMEBITS_ASSERT(samebits_apart(memory, 4, 4),
                        "output1 overlaps the arena or another argument");
    }
    return model_selftest(net, input0, input1, output0, output1);
}
#endif
