/* Sums of two tensors (5), and of the gradients of a value with several uses (1.3). */
#include "train_scalars.h"

#define ROOM 22 /* bits by which a term of 8 bits may be shifted to the left (5) */

/* A term of a sum: codes, their exponent, and whether some are not 0. */
typedef struct {
    const int8_t *codes;
    int32_t e, live;
} Term;

static Term term_of(const int8_t *codes, int32_t e, int32_t n) {
    Term t = {codes, e, 0};
    int32_t i;
    for (i = 0; i < n && !t.live; i++) t.live = codes[i] != 0;
    return t;
}

/* The exponent of the sums: the smaller one, if that leaves the other term its room. */
static int32_t common(const Term *a, const Term *b) {
    const int32_t low = SAMEBITS_MIN(a->e, b->e), high = SAMEBITS_MAX(a->e, b->e);
    if (!a->live || !b->live) return a->live ? a->e : b->e;
    return SAMEBITS_MAX(low, high - ROOM);
}

SAMEBITS_INLINE int32_t added(const Term *a, int32_t by_a, const Term *b, int32_t by_b, int32_t i) {
    return down32(a->codes[i], by_a) + down32(b->codes[i], by_b);
}

int samebits_train_add(int32_t n, const int8_t *a, int32_t e_a, const int8_t *b, int32_t e_b,
                       int8_t *y, int32_t *e_y, int32_t clamp, uint8_t *mask) {
    const Term first = term_of(a, e_a, n), second = term_of(b, e_b, n);
    int32_t e = common(&first, &second), limit = limit_of(clamp, e), top = 0, shift, i;
    const int32_t by_a = first.live ? e - e_a : 0, by_b = second.live ? e - e_b : 0;
    for (i = 0; i < n; i++) {
        const int32_t sum = clamped(added(&first, by_a, &second, by_b, i), clamp, limit);
        const int32_t size = magnitude32(sum);
        top = SAMEBITS_MAX(top, size);
    }
    shift = narrowed(top, 8, &e);
    for (i = 0; i < n; i++) {
        const int32_t sum = added(&first, by_a, &second, by_b, i);
        y[i] = (int8_t)down32(clamped(sum, clamp, limit), shift);
        if (mask) mask_put(mask, i, passes(sum, limit));
    }
    *e_y = e;
    return in_range(e);
}

static int is_live(const samebits_gradient *g, int32_t n) {
    int32_t i;
    for (i = 0; i < n; i++)
        if (gradient_at(g, i)) return 1;
    return 0;
}

void samebits_train_resolve(const samebits_gradient *parts, int32_t count, int32_t n, int32_t *out,
                            int32_t *e_out) {
    int32_t e = 4 * EXPONENT_MIN, any = 0, shift = 0, pass, i, k;
    int64_t top = 0;
    for (k = 0; k < count; k++)
        if (is_live(parts + k, n)) e = any ? SAMEBITS_MAX(e, parts[k].e) : parts[k].e, any = 1;
    for (pass = 0; pass < 2; pass++) {
        for (i = 0; i < n; i++) {
            int64_t sum = 0;
            /* A part that is all zeros may have a larger exponent. */
            for (k = 0; k < count; k++)
                if (parts[k].e <= e) sum += down64(gradient_at(parts + k, i), e - parts[k].e);
            if (pass) {
                out[i] = (int32_t)down64(sum, shift);
            } else {
                const int64_t size = samebits_magnitude64(sum);
                top = SAMEBITS_MAX(top, size);
            }
        }
        if (!pass) *e_out = e, shift = shortened(top, e_out);
    }
}
