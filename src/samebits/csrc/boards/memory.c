/* The functions that a compiler may call on its own in a program without a C library (GCC manual,
   "Standards": memcpy, memmove, memset and memcmp). */
#include <stddef.h>
#include <stdint.h>

void *memcpy(void *restrict to, const void *restrict from, size_t size);
void *memmove(void *to, const void *from, size_t size);
void *memset(void *to, int byte, size_t size);
int memcmp(const void *a, const void *b, size_t size);

void *memcpy(void *restrict to, const void *restrict from, size_t size)
{
    uint8_t *target = to;
    const uint8_t *source = from;

    while (size--) {
        *target++ = *source++;
    }
    return to;
}

void *memmove(void *to, const void *from, size_t size)
{
    uint8_t *target = to;
    const uint8_t *source = from;

    if ((uintptr_t)to <= (uintptr_t)from) {
        return memcpy(to, from, size);
    }
    while (size--) {
        target[size] = source[size];
    }
    return to;
}

void *memset(void *to, int byte, size_t size)
{
    uint8_t *target = to;

    while (size--) {
        *target++ = (uint8_t)byte;
    }
    return to;
}

int memcmp(const void *a, const void *b, size_t size)
{
    const uint8_t *left = a;
    const uint8_t *right = b;

    for (; size--; ++left, ++right) {
        if (*left != *right) {
            return *left < *right ? -1 : 1;
        }
    }
    return 0;
}
