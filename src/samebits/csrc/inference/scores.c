/* --- scores ------------------------------------------------------------------------------------
 *
 * Rows as logarithms of their shares, and the greatest or least codes of a line. */

#include "samebits_vector.h"

/* log2 v in 24 fraction bits, v from 1 to 2**62: a bit is whether the square of the mantissa, in
 * 2**-30, has reached 2 (docs/spec/graph.md, 3.2). */
static int64_t samebits_logarithm(int64_t v) {
    int64_t mantissa, fraction = 0, bit;
    int32_t whole = 0, i;
    while (whole < 62 && v >> (whole + 1)) whole++;
    mantissa = whole <= 30 ? v << (30 - whole) : v >> (whole - 30);
    for (i = 0; i < 24; i++) {
        mantissa = mantissa * mantissa >> 30;
        bit = mantissa >> 31;
        mantissa >>= bit;
        fraction = 2 * fraction + bit;
    }
    return ((int64_t)whole << 24) + fraction;
}

void samebits_run_log_softmax(const samebits_log_softmax *c, const void *x, void *out) {
    int32_t row, i, start = 0;
    for (row = 0; row < c->rows; row++, start += c->columns) {
        int64_t largest = samebits_get(x, c->type, start), sum = 0, level;
        for (i = 1; i < c->columns; i++) {
            largest = SAMEBITS_MAX(largest, samebits_get(x, c->type, start + i));
        }
        for (i = 0; i < c->columns; i++) {
            sum += c->table[largest - samebits_get(x, c->type, start + i)];
        }
        level = samebits_logarithm(SAMEBITS_MAX(sum, 1)) - ((int64_t)24 << 24);
        for (i = 0; i < c->columns; i++) {
            const int64_t below = largest - samebits_get(x, c->type, start + i);
            const int64_t y = samebits_round64(-(below * c->step + level * c->unit), c->shift);
            samebits_put(out, c->out_type, start + i,
                         samebits_clamp64(y + c->zero, c->low, c->high));
        }
    }
}

/* The next place of a line: of those behind (last, at) in the order, the first. Codes are compared
 * with the sign that makes the wanted ones greater; of equals the lower place is first. */
static int32_t samebits_next_place(const samebits_top_k *c, const void *x, int32_t start,
                                   int64_t last, int32_t at) {
    int64_t best = 0;
    int32_t place = -1, i;
    for (i = 0; i < c->count; i++) {
        int64_t v = samebits_get(x, c->type, start + i * c->inner);
        if (!c->largest) v = -v;
        if (at >= 0 && (v > last || (v == last && i <= at))) continue;
        if (place < 0 || v > best) {
            best = v;
            place = i;
        }
    }
    return place;
}

void samebits_run_top_k(const samebits_top_k *c, const void *x, void *out) {
    int32_t outer, inner, rank;
    for (outer = 0; outer < c->outer; outer++) {
        for (inner = 0; inner < c->inner; inner++) {
            const int32_t start = outer * c->count * c->inner + inner;
            int64_t last = 0, code;
            int32_t at = -1;
            for (rank = 0; rank < c->k; rank++) {
                at = samebits_next_place(c, x, start, last, at);
                code = samebits_get(x, c->type, start + at * c->inner);
                last = c->largest ? code : -code;
                samebits_put(out, c->places ? SAMEBITS_INT64 : c->type,
                             (outer * c->k + rank) * c->inner + inner, c->places ? at : code);
            }
        }
    }
}
