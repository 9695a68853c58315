/* Block sums of bytes for hashes: NH of J. Black, S. Halevi, H. Krawczyk, T. Krovetz, P. Rogaway,
 * "UMAC: Fast and Secure Message Authentication", CRYPTO 1999, its pairs half a block apart. */
#include <string.h>

#include "parallel.h"

#define HALF 512 /* 32-bit words */
#define BLOCK (2 * HALF * (int64_t)sizeof(uint32_t))

/* sum of (word[j] + key[j]) * (word[HALF + j] + key[HALF + j]), the sums modulo 2**32, the total
 * modulo 2**64; words are little-endian, bytes after the last are zeros. */
static uint64_t block_sum(const uint8_t *bytes, int64_t n, const uint32_t *restrict key) {
    uint32_t word[2 * HALF];
    uint64_t total = 0;
    if (n < BLOCK) memset(word, 0, sizeof word);
    memcpy(word, bytes, (size_t)(n < BLOCK ? n : BLOCK));
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    for (int j = 0; j < 2 * HALF; j++) word[j] = __builtin_bswap32(word[j]);
#endif
    for (int j = 0; j < HALF; j++)
        total += (uint64_t)(uint32_t)(word[j] + key[j]) *
                 (uint32_t)(word[HALF + j] + key[HALF + j]);
    return total;
}

static void block_sums_range(const uint8_t *bytes, int64_t n, int64_t first, int64_t blocks,
                             const uint32_t *key, uint64_t *restrict out) {
    for (int64_t i = first; i < first + blocks; i++)
        out[i] = block_sum(bytes + i * BLOCK, n - i * BLOCK, key);
}

void samebits_block_sums(const uint8_t *bytes, int64_t n, const uint32_t *key, uint64_t *out,
                         int threads) {
    int64_t blocks = (n + BLOCK - 1) / BLOCK;
    PARALLEL(blocks, n, block_sums_range(bytes, n, lo, len, key, out))
}
