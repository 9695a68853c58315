/* --- known answers -----------------------------------------------------------------------------
 *
 * Inputs from a counter and the hash of outputs: with them model_selftest computes on a device what
 * was computed when the model was generated. Philox4x32-10: Salmon, Moraes, Dror, Shaw, "Parallel
 * Random Numbers: As Easy as 1, 2, 3", SC 2011; FNV-1a: Fowler, Noll, Vo. */

#include "samebits_io.h"
#include "samebits_vector.h"

static void samebits_rounds(uint32_t words[4], uint32_t k0, uint32_t k1) {
    uint32_t a = words[0], b = words[1], c = words[2], d = words[3], round;
    for (round = 0; round < 10; round++) {
        const uint64_t p = (uint64_t)0xD2511F53u * a, q = (uint64_t)0xCD9E8D57u * c;
        a = (uint32_t)(q >> 32) ^ b ^ k0;
        b = (uint32_t)(q & 0xffffffffu);
        c = (uint32_t)(p >> 32) ^ d ^ k1;
        d = (uint32_t)(p & 0xffffffffu);
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    words[0] = a;
    words[1] = b;
    words[2] = c;
    words[3] = d;
}

void samebits_philox(uint32_t index, uint32_t stream, uint32_t words[4]) {
    words[0] = index;
    words[1] = words[2] = words[3] = 0;
    samebits_rounds(words, stream, 0);
}

void samebits_random(void *codes, uint32_t width, int32_t is_signed, uint32_t count,
                     uint32_t stream) {
    const uint64_t least = is_signed ? (uint64_t)1 << (8 * width - 1) : 0; /* its negative */
    uint32_t words[4] = {0, 0, 0, 0}, i;
    for (i = 0; i < count; i++) {
        if (i % 4 == 0) samebits_philox(i / 4, stream, words);
        samebits_io_put(codes, width, i, words[i % 4] - least);
    }
}

uint64_t samebits_hash(uint64_t hash, const void *codes, uint32_t width, uint32_t count) {
    return samebits_fnv1a_from(hash, codes, width, count);
}
