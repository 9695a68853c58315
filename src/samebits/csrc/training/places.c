/* Elements that are kept, chosen or added at other places (docs/spec/training.md, 5, 7 and 14). */
#include <string.h>

#include "exponent.h"
#include "parallel.h"
#include "philox.h"

#define COUNTERS 512 /* of four words each, that are drawn at a time */

/* Whether words lo to lo + n - 1 of a draw are at least `least`. */
static void kept(const uint32_t draw[5], int64_t least, int64_t lo, int64_t n, uint8_t *out) {
    uint32_t words[4][COUNTERS];
    for (int64_t at = lo / 4; at < (lo + n + 3) / 4; at += COUNTERS) {
        const int64_t count = SAMEBITS_MIN(COUNTERS, (lo + n + 3) / 4 - at);
        for (int64_t i = 0; i < count; i++) {
            words[0][i] = (uint32_t)(at + i);
            for (int j = 1; j < 4; j++) words[j][i] = draw[1 + j];
        }
        philox(words[0], words[1], words[2], words[3], draw[0], draw[1], count);
        const int64_t end = SAMEBITS_MIN(4 * (at + count), lo + n);
        for (int64_t i = SAMEBITS_MAX(4 * at, lo); i < end; i++)
            out[i - lo] = words[i & 3][i / 4 - at] >= least;
    }
}

/* Whether the first n words of a draw are at least `least` (training.md 5). draw: the addresses of
 * k0, k1, step, shard, call, of which 32 bits count. */
void samebits_kept(int64_t n, int64_t least, const int64_t *draw, uint8_t *out, int threads) {
    uint32_t own[5];
    for (int i = 0; i < 5; i++) own[i] = (uint32_t) * (const int64_t *)(intptr_t)draw[i];
    PARALLEL(n, n, kept(own, least, lo, len, out + lo))
}

#define WHERE(name, type)                                                                      \
    static void name(const uint8_t *restrict mask, const type *restrict v, int64_t n,          \
                     type *restrict out) {                                                     \
        for (int64_t i = 0; i < n; i++) out[i] = (type)(mask[i] ? v[i] : 0);                   \
    }
WHERE(where8, int8_t)
WHERE(where16, int16_t)
WHERE(where32, int32_t)

/* Codes of `type` bits where a mask is true, else 0. */
void samebits_where(const uint8_t *mask, const void *v, int type, int64_t n, void *out,
                    int threads) {
    if (type == 8) {
        PARALLEL(n, n, where8(mask + lo, (const int8_t *)v + lo, len, (int8_t *)out + lo))
    } else if (type == 16) {
        PARALLEL(n, n, where16(mask + lo, (const int16_t *)v + lo, len, (int16_t *)out + lo))
    } else {
        PARALLEL(n, n, where32(mask + lo, (const int32_t *)v + lo, len, (int32_t *)out + lo))
    }
}

/* Whether all indices are in [0, count): else OUT_OF_RANGE. */
int samebits_are_below(const int64_t *index, int64_t n, int64_t count) {
    int64_t wrong = 0;
    for (int64_t i = 0; i < n; i++) wrong |= index[i] < 0 || index[i] >= count;
    return wrong ? OUT_OF_RANGE : FINE;
}

/* v [outer][size][inner], elements of so many bytes, at n indices of its middle axis. */
int samebits_chosen(const void *v, int64_t outer, int64_t size, int64_t inner, int64_t bytes,
                    const int64_t *index, int64_t n, void *out) {
    if (samebits_are_below(index, n, size) != FINE) return OUT_OF_RANGE;
    size_t run = (size_t)(inner * bytes);
    for (int64_t o = 0; o < outer; o++)
        for (int64_t i = 0; i < n; i++)
            memcpy((char *)out + (size_t)(o * n + i) * run,
                   (const char *)v + (size_t)(o * size + index[i]) * run, run);
    return FINE;
}

/* Adds v [outer][n][inner] to sums [outer][size][inner] at n indices of their middle axis. */
int samebits_added_at(int64_t *sums, int64_t outer, int64_t size, int64_t inner,
                      const int64_t *index, int64_t n, const int64_t *v) {
    if (samebits_are_below(index, n, size) != FINE) return OUT_OF_RANGE;
    for (int64_t o = 0; o < outer; o++)
        for (int64_t i = 0; i < n; i++, v += inner) {
            int64_t *to = sums + (o * size + index[i]) * inner;
            for (int64_t j = 0; j < inner; j++) to[j] += v[j];
        }
    return FINE;
}
