/* The harness of a bare-metal board: every sample of input.bin through the model to output.bin.

   counts.bin: the ticks of each sample. totals.bin, written last: the ticks of an empty measurement
   and the most bytes of stack used. trace.bin (with SAMEBITS_TRACE): per layer its index, its
   number of codes and the hash of docs/spec/graph.md, section 7, low word first. With
   SAMEBITS_PROFILE too, counts.bin has before the ticks of each sample those of its layers (see
   layer_ticks), and there is no trace. All are 32-bit words, little-endian, as the processor is. */
#include "../samebits_io.h"
#include "harness.h"
#include "samebits_glue.h"
#include "timer.h"

static int32_t file_open(const char *name, uint32_t length, uint32_t mode)
{
    const void *block[3];

    block[0] = name;
    block[1] = (const void *)(uintptr_t)mode;
    block[2] = (const void *)(uintptr_t)length;
    return semihost(SYS_OPEN, block);
}

/* The number of bytes not transferred. */
static uint32_t transfer(uint32_t operation, int32_t file, void *data, uint32_t bytes)
{
    uint32_t block[3];

    block[0] = (uint32_t)file;
    block[1] = (uint32_t)(uintptr_t)data;
    block[2] = bytes;
    return (uint32_t)semihost(operation, block);
}

#define OPEN_READ 1u  /* "rb" */
#define OPEN_WRITE 5u /* "wb" */
#define OPEN(name, mode) file_open(name, (uint32_t)sizeof(name) - 1u, mode)

#if defined(SAMEBITS_PROFILE)
static uint32_t layer_ticks[LAYER_COUNT + 2]; /* of each layer; then of the hook itself, and of what
                                                 comes after the last layer */

void samebits_trace(uint32_t layer, const void *codes, uint32_t count, uint32_t width)
{
    layer_ticks[layer] = timer_read();
    (void)codes;
    (void)count;
    (void)width;
    timer_reset();
}
#elif defined(SAMEBITS_TRACE)
static int32_t trace_file;
static int trace_failed;

void samebits_trace(uint32_t layer, const void *codes, uint32_t count, uint32_t width)
{
    const uint64_t hash = samebits_fnv1a(codes, width, count);
    uint32_t record[4];

    record[0] = layer;
    record[1] = count;
    record[2] = (uint32_t)(hash & UINT32_C(0xFFFFFFFF));
    record[3] = (uint32_t)(hash >> 32);
    if (transfer(SYS_WRITE, trace_file, record, sizeof record) != 0) {
        trace_failed = 1;
    }
}
#endif

/* Bytes of stack that were used at some time, and not the paint below them. */
static uint32_t stack_used(void)
{
    const uintptr_t end = (uintptr_t)__stack_end; /* of the same memory, as only the linker knows */
    const uint32_t *word = __stack_start;

    while ((uintptr_t)word < end && *word == STACK_PAINT) {
        ++word;
    }
    return (uint32_t)(end - (uintptr_t)word);
}

#if defined(SAMEBITS_PROFILE)
static void hook_twice(void)
{
    samebits_trace(LAYER_COUNT, inputs[0].data, 0, 1);
    samebits_trace(LAYER_COUNT, inputs[0].data, 0, 1);
}
#endif

static void nothing(void)
{
}

/* Neither inlined nor cloned: every measurement is of the same instructions around the call. */
__attribute__((noinline, noclone)) static uint32_t measure(void (*function)(void))
{
    timer_reset();
    function();
    return timer_read();
}

int samebits_main(void)
{
    const int32_t input = OPEN("input.bin", OPEN_READ);
    const int32_t output = OPEN("output.bin", OPEN_WRITE);
    const int32_t counts = OPEN("counts.bin", OPEN_WRITE);
    const int32_t totals = OPEN("totals.bin", OPEN_WRITE);
    uint32_t ticks;
    uint32_t total[2];
    uint32_t i;

    if (input == -1 || output == -1 || counts == -1 || totals == -1) {
        return EXIT_NO_FILE;
    }
#if defined(SAMEBITS_TRACE) && !defined(SAMEBITS_PROFILE)
    trace_file = OPEN("trace.bin", OPEN_WRITE);
    if (trace_file == -1) {
        return EXIT_NO_FILE;
    }
#endif
    total[0] = measure(nothing);
    for (;;) {
        for (i = 0; i < INPUT_COUNT; ++i) {
            const uint32_t missing = transfer(SYS_READ, input, inputs[i].data, inputs[i].bytes);

            if (i == 0 && missing == inputs[i].bytes) {
                total[1] = stack_used();
                if (total[1] == (uint32_t)((uintptr_t)__stack_end - (uintptr_t)__stack_start)) {
                    return EXIT_STACK_OVERFLOW;
                }
                return transfer(SYS_WRITE, totals, total, sizeof total) ? EXIT_NO_OUTPUT
                                                                        : EXIT_DONE;
            }
            if (missing != 0) {
                return EXIT_SHORT_INPUT;
            }
        }
#if defined(SAMEBITS_PROFILE)
        layer_ticks[LAYER_COUNT + 1] = measure(run_model);
        ticks = measure(hook_twice);
        if (transfer(SYS_WRITE, counts, layer_ticks, sizeof layer_ticks) != 0) {
            return EXIT_NO_OUTPUT;
        }
#else
        ticks = measure(run_model);
#endif
        for (i = 0; i < OUTPUT_COUNT; ++i) {
            if (transfer(SYS_WRITE, output, outputs[i].data, outputs[i].bytes) != 0) {
                return EXIT_NO_OUTPUT;
            }
        }
        if (transfer(SYS_WRITE, counts, &ticks, sizeof ticks) != 0) {
            return EXIT_NO_OUTPUT;
        }
#if defined(SAMEBITS_TRACE) && !defined(SAMEBITS_PROFILE)
        if (trace_failed) {
            return EXIT_NO_OUTPUT;
        }
#endif
    }
}
