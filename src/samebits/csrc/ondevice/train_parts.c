/* Elements of a tensor in other places. */
#include "samebits_bytes.h"
#include "samebits_train.h"

void samebits_train_part(const void *x, int32_t rows, int32_t whole, int32_t first, int32_t part,
                         void *y) {
    const uint8_t *from = (const uint8_t *)x + first;
    uint8_t *to = (uint8_t *)y;
    for (; rows > 0; rows--, from += whole, to += part) memcpy(to, from, (size_t)part);
}

void samebits_train_part_gradient(const void *g, int32_t rows, int32_t whole, int32_t first,
                                  int32_t part, void *dx) {
    const uint8_t *from = (const uint8_t *)g;
    uint8_t *to = (uint8_t *)dx;
    memset(to, 0, (size_t)(rows * whole));
    for (; rows > 0; rows--, from += part, to += whole) memcpy(to + first, from, (size_t)part);
}
