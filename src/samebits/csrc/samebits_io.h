/* Codes to and from little-endian bytes, and their hash, on machines of any byte order. */
#ifndef SAMEBITS_IO_H
#define SAMEBITS_IO_H

#include <stdint.h>

#if defined(__GNUC__)
typedef uint16_t __attribute__((may_alias)) samebits_io16;
typedef uint32_t __attribute__((may_alias)) samebits_io32;
typedef uint64_t __attribute__((may_alias)) samebits_io64;
#else
typedef uint16_t samebits_io16;
typedef uint32_t samebits_io32;
typedef uint64_t samebits_io64;
#endif

/* Code i of `width` bytes as an unsigned number: two's complement, zero-extended. */
static inline uint64_t samebits_io_get(const void *codes, uint32_t width, uint32_t i) {
    switch (width) {
    case 1: return ((const uint8_t *)codes)[i];
    case 2: return ((const samebits_io16 *)codes)[i];
    case 4: return ((const samebits_io32 *)codes)[i];
    default: return ((const samebits_io64 *)codes)[i];
    }
}

static inline void samebits_io_put(void *codes, uint32_t width, uint32_t i, uint64_t v) {
    switch (width) {
    case 1: ((uint8_t *)codes)[i] = (uint8_t)v; break;
    case 2: ((samebits_io16 *)codes)[i] = (uint16_t)v; break;
    case 4: ((samebits_io32 *)codes)[i] = (uint32_t)v; break;
    default: ((samebits_io64 *)codes)[i] = v; break;
    }
}

/* Byte b (0 the lowest) of code i. */
static inline uint8_t samebits_io_byte(const void *codes, uint32_t width, uint32_t i, uint32_t b) {
    return (uint8_t)(samebits_io_get(codes, width, i) >> (8u * b) & 0xffu);
}

/* count * width little-endian bytes from the codes. */
static inline void samebits_encode(const void *codes, uint32_t width, uint32_t count,
                                   uint8_t *bytes) {
    uint32_t i, b;
    for (i = 0; i < count; i++) {
        for (b = 0; b < width; b++) *bytes++ = samebits_io_byte(codes, width, i, b);
    }
}

/* The codes from count * width little-endian bytes. */
static inline void samebits_decode(const uint8_t *bytes, uint32_t width, uint32_t count,
                                   void *codes) {
    uint32_t i, b;
    for (i = 0; i < count; i++) {
        uint64_t v = 0;
        for (b = 0; b < width; b++) v |= (uint64_t)*bytes++ << (8u * b);
        samebits_io_put(codes, width, i, v);
    }
}

/* 64-bit FNV-1a (Fowler, Noll, Vo) of the little-endian bytes of the codes, from the hash of those
 * before. */
static inline uint64_t samebits_fnv1a_from(uint64_t hash, const void *codes, uint32_t width,
                                           uint32_t count) {
    const uint64_t prime = ((uint64_t)0x100u << 32) | 0x1b3u;
    uint32_t i, b;
    for (i = 0; i < count; i++) {
        for (b = 0; b < width; b++) hash = (hash ^ samebits_io_byte(codes, width, i, b)) * prime;
    }
    return hash;
}

/* The same of these codes alone. */
static inline uint64_t samebits_fnv1a(const void *codes, uint32_t width, uint32_t count) {
    return samebits_fnv1a_from(((uint64_t)0xcbf29ce4u << 32) | 0x84222325u, codes, width, count);
}

#endif
