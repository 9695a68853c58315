/* Harness. Codes are raw little-endian bytes, all inputs of a sample one after the other.
 *
 *   default            samples from standard input until its end, outputs to standard output
 *   -DSAMEBITS_TRACE   instead of outputs, for every sample and layer: index, FNV-1a hash, count
 *   -DSAMEBITS_TRACE=2 and the codes in hexadecimal
 *   -DSAMEBITS_TEST    runs model_vectors.h and prints how many outputs differ */
#include <stdio.h>

#include "../model.h"
#include "../samebits/samebits_io.h"

MODEL_INSTANCE(net);
static model_input0_t input0[MODEL_INPUT0_SIZE];
static model_input1_t input1[MODEL_INPUT1_SIZE];
static model_output0_t output0[MODEL_OUTPUT0_SIZE];
static model_output1_t output1[MODEL_OUTPUT1_SIZE];
#ifndef SAMEBITS_TEST
static uint8_t staging[48];
#endif

#ifdef SAMEBITS_TRACE
void model_trace(uint32_t layer, const void *codes, uint32_t count, uint32_t width) {
    const uint64_t hash = samebits_fnv1a(codes, width, count);
    printf("%lu %08lx%08lx %lu", (unsigned long)layer, (unsigned long)(hash >> 32),
           (unsigned long)(hash & 0xffffffffu), (unsigned long)count);
#if SAMEBITS_TRACE == 2
    {
        uint32_t i, b;
        putchar(' ');
        for (i = 0; i < count; i++) {
            for (b = 0; b < width; b++) {
                printf("%02x", (unsigned)samebits_io_byte(codes, width, i, b));
            }
        }
    }
#endif
    putchar('\n');
}
#endif

#ifdef SAMEBITS_TEST
#include "model_vectors.h"

int main(void) {
    unsigned long differ = (unsigned long)model_selftest(&net, input0, input1, output0, output1), total = 1;
    uint32_t sample, i;
    for (sample = 0; sample < MODEL_SAMPLES; sample++) {
        model_run(&net, model_test_input0 + sample * MODEL_INPUT0_SIZE,
                  model_test_input1 + sample * MODEL_INPUT1_SIZE, output0, output1);
        for (i = 0; i < MODEL_OUTPUT0_SIZE; i++, total++) {
            differ += output0[i] != model_test_output0[sample * MODEL_OUTPUT0_SIZE + i];
        }
        for (i = 0; i < MODEL_OUTPUT1_SIZE; i++, total++) {
            differ += output1[i] != model_test_output1[sample * MODEL_OUTPUT1_SIZE + i];
        }
    }
    printf("%lu of %lu outputs differ\n", differ, total);
    return differ != 0;
}
#else
/* One tensor from standard input: 1, or 0 at the end of the file, or -1 where it ends inside. */
static int read_codes(uint8_t *bytes, uint32_t width, uint32_t count, void *codes) {
    const size_t wanted = (size_t)width * count, found = fread(bytes, 1, wanted, stdin);
    if (found != wanted) return found == 0 ? 0 : -1;
    samebits_decode(bytes, width, count, codes);
    return 1;
}

#ifndef SAMEBITS_TRACE
static int write_codes(const void *codes, uint32_t width, uint32_t count, uint8_t *bytes) {
    const size_t wanted = (size_t)width * count;
    samebits_encode(codes, width, count, bytes);
    return fwrite(bytes, 1, wanted, stdout) == wanted;
}
#endif

int main(void) {
    for (;;) {
        const int state = read_codes(staging, 1, MODEL_INPUT0_SIZE, input0);
        if (state != 1) return state < 0 ? 2 : 0;
        if (read_codes(staging, 1, MODEL_INPUT1_SIZE, input1) != 1) return 2;
        model_run(&net, input0, input1, output0, output1);
#ifndef SAMEBITS_TRACE
        if (!write_codes(output0, 1, MODEL_OUTPUT0_SIZE, staging)) return 2;
        if (!write_codes(output1, 4, MODEL_OUTPUT1_SIZE, staging)) return 2;
#endif
    }
}
#endif
