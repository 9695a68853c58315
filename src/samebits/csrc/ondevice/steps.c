/* A program of training steps, for tests of a package on this machine, other processors and boards
 * (ondevice/check.py). It reads numbers of 32 bits, little-endian: the number of steps, the step to
 * trace and the instruction of it to show (from 0; any other number: none); of each step the rate,
 * the number of samples, their labels and inputs. It writes of each the status, the loss and the
 * checksum of the state, at the end the state; of a traced step every instruction with the hash of
 * the arena behind it, of that to show the arena. */
#include "steps.h"

#include "samebits_bytes.h"

#ifdef SAMEBITS_BOARD
#include "harness.h"

static int32_t input_file, output_file;

static void transfer(uint32_t operation, int32_t file, const void *data, uint32_t size) {
    const void *block[3];
    block[0] = (const void *)(uintptr_t)file, block[1] = data;
    block[2] = (const void *)(uintptr_t)size;
    if (size && semihost(operation, block) != 0)
        samebits_exit(operation == SYS_READ ? EXIT_SHORT_INPUT : EXIT_NO_OUTPUT);
}

static int32_t opened(const char *name, uint32_t length, uint32_t mode) {
    const void *block[3];
    int32_t file;
    block[0] = name, block[1] = (const void *)(uintptr_t)mode;
    block[2] = (const void *)(uintptr_t)length;
    file = semihost(SYS_OPEN, block);
    if (file < 0) samebits_exit(EXIT_NO_FILE);
    return file;
}

static void take(void *to, size_t size) { transfer(SYS_READ, input_file, to, (uint32_t)size); }
static void give(const void *from, size_t size) {
    transfer(SYS_WRITE, output_file, from, (uint32_t)size);
}
#else
#include <stdio.h>
#include <stdlib.h>

static void take(void *to, size_t size) {
    if (fread(to, 1, size, stdin) != size) exit(4);
}
static void give(const void *from, size_t size) {
    if (fwrite(from, 1, size, stdout) != size) exit(5);
}
#endif

static uint64_t arena[STEPS_ARENA / 8 + 1];
static float inputs[STEPS_BATCH * STEPS_INPUTS];
static uint8_t labels[STEPS_BATCH], state[STEPS_STATE];
static uint32_t step, traced, shown, marks;

static uint32_t word(void) {
    uint8_t b[4] = {0};
    take(b, sizeof b);
    return b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
}

static void put(uint32_t v) {
    uint8_t b[4];
    b[0] = (uint8_t)v, b[1] = (uint8_t)(v >> 8), b[2] = (uint8_t)(v >> 16);
    b[3] = (uint8_t)(v >> 24);
    give(b, sizeof b);
}

static void put_real(double v) {
    uint64_t bits;
    memcpy(&bits, &v, sizeof bits);
    put((uint32_t)bits), put((uint32_t)(bits >> 32));
}

/* Instruction i is done. */
void steps_mark(int i, const uint8_t *bytes) {
    uint64_t hash = 14695981039346656037u;
    uint32_t k;
    if (i < 0 || step != traced) return;
    for (k = 0; k < STEPS_ARENA; k++) hash = (hash ^ bytes[k]) * 1099511628211u;
    put((uint32_t)i), put((uint32_t)hash), put((uint32_t)(hash >> 32));
    if (marks++ == shown) give(bytes, STEPS_ARENA);
}

static int trained(void) {
    steps_net net;
    const uint32_t steps = word();
    uint32_t count, i;
    traced = word(), shown = word();
    if (steps_init(&net, arena, sizeof arena)) return 9;
    for (step = 0; step < steps; step++) {
        uint64_t bits = word();
        double rate;
        int status;
        bits |= (uint64_t)word() << 32;
        memcpy(&rate, &bits, sizeof rate);
        count = word();
        if (count > STEPS_BATCH) return 9;
        take(labels, count);
        for (i = 0; i < count * STEPS_INPUTS; i++) {
            const uint32_t own = word();
            memcpy(&inputs[i], &own, sizeof own);
        }
        status = steps_set_rate(&net, rate);
        if (!status) status = steps_train_step(&net, inputs, labels, (int32_t)count);
        if (steps_state_save(&net, state, sizeof state)) return 9;
        put((uint32_t)status), put_real(net.loss);
        give(state + 16, 8);
        if (status) break;
    }
    give(state, sizeof state);
    return 0;
}

#ifdef SAMEBITS_BOARD
int samebits_main(void) {
    input_file = opened("input.bin", 9, 1);
    output_file = opened("output.bin", 10, 5);
    return trained();
}
#else
int main(void) { return trained(); }
#endif
