/* memcpy, memset and memcmp, which a program without a C library has to have as well (GCC manual,
 * "Standards"), but for the header that declares them. */
#ifndef SAMEBITS_BYTES_H
#define SAMEBITS_BYTES_H

#if !defined(__STDC_HOSTED__) || __STDC_HOSTED__
#include <string.h>
#else
#include <stddef.h>
void *memcpy(void *restrict to, const void *restrict from, size_t size);
void *memset(void *to, int byte, size_t size);
int memcmp(const void *a, const void *b, size_t size);
#endif

/* A few bytes, whose number is known: a load and a store, without a C library, too. */
#if defined(__GNUC__)
#define SAMEBITS_COPY __builtin_memcpy
#else
#define SAMEBITS_COPY memcpy
#endif

#endif
