/* What a model's functions check of their arguments where SAMEBITS_DEBUG is defined; no other build
 * includes this file.
 *
 * A call that breaks what the model's header says of its arguments ends in SAMEBITS_ASSERT, which
 * is assert unless you define another, such as one that halts where there is no assert.h. */
#ifndef SAMEBITS_DEBUG_H
#define SAMEBITS_DEBUG_H

#include <stddef.h>
#include <stdint.h>

#ifndef SAMEBITS_ASSERT
#ifdef NDEBUG
#error "SAMEBITS_DEBUG with NDEBUG would check nothing: leave one out, or define SAMEBITS_ASSERT"
#endif
#include <assert.h>
#define SAMEBITS_ASSERT(condition, message) assert((condition) && message)
#endif

/* Whether an address suits codes of a width of 2, 4 or 8 bytes on this machine. */
typedef struct {
    char before;
    int16_t code;
} samebits_place2;
typedef struct {
    char before;
    int32_t code;
} samebits_place4;
typedef struct {
    char before;
    int64_t code;
} samebits_place8;
#define SAMEBITS_SUITS(pointer, width)                                                             \
    ((uintptr_t)(const void *)(pointer) % offsetof(samebits_place##width, code) == 0)

typedef struct {
    const void *first;
    size_t bytes;
} samebits_memory;

/* Whether memory[index] shares no byte with one of the first `others`. */
static inline int samebits_apart(const samebits_memory *memory, int32_t index, int32_t others) {
    const uintptr_t first = (uintptr_t)memory[index].first;
    int32_t i;
    for (i = 0; i < others; i++) {
        const uintptr_t other = (uintptr_t)memory[i].first;
        if (first < other ? other - first < memory[index].bytes : first - other < memory[i].bytes) {
            return 0;
        }
    }
    return 1;
}

/* Whether a state holds the mark of its model. */
static inline int samebits_marked(const uint8_t *found, const uint8_t *mark) {
    int32_t i;
    for (i = 0; i < 8; i++) {
        if (found[i] != mark[i]) return 0;
    }
    return 1;
}

#endif
