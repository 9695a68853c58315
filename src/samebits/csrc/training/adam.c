/* Moments and directions of Adam (docs/spec/training.md, section 4), element by element in binary64
 * and in the order written there: every operation is rounded once, none is contracted. */
#include "adam.h"
#include "optimizer.h"
#include "parallel.h"

typedef struct {
    double first, root;
} Moments;

SAMEBITS_INLINE Moments adam_moments(const AdamTerms *t, int64_t i) {
    double g = t->g[i] * t->scale_g;
    g = g + t->coupled * (joint(t->w[i], t->a[i]) * t->scale_a); /* + 0 without decay */
    double m = moment_value(1, t->first[i], t->base_first);
    double s = moment_value(1, t->root[i], t->base_root);
    double v = adam_second(t->beta2, t->rest2, s, g);
    return (Moments){adam_first(t->beta1, t->rest1, m, g), __builtin_sqrt(v)};
}

/* The end of the row of element i, or of the range; sets scale_a for the elements before it. */
SAMEBITS_INLINE int64_t row_end(AdamTerms *t, int64_t i, int64_t end) {
    if (!t->rows) return end;
    int64_t row = i / t->row_size;
    t->scale_a = power_of_two(t->rows[row]);
    return SAMEBITS_MIN(end, (row + 1) * t->row_size);
}

static void adam_tops_range(AdamTerms t, int64_t lo, int64_t n, int64_t *tops) {
    int64_t first = 0, root = 0;
    for (int64_t from = lo, to; from < lo + n; from = to) {
        to = row_end(&t, from, lo + n);
        for (int64_t i = from; i < to; i++) {
            Moments now = adam_moments(&t, i);
            int64_t m = magnitude_bits(now.first), s = magnitude_bits(now.root);
            first = SAMEBITS_MAX(first, m);
            root = SAMEBITS_MAX(root, s);
        }
    }
    tops[0] = first;
    tops[1] = root;
}

/* The bits of the largest first moment and root of the second, of an update not yet made. */
void samebits_adam_tops(const AdamTerms *t, int64_t n, int64_t *tops, int threads) {
    PARALLEL_MAX_TWO(n, n, tops, adam_tops_range(*t, lo, len, most))
}

SAMEBITS_INLINE void adam_store_range(AdamTerms t, const Draw *draw, int64_t lo, int64_t n,
                                      int random) {
    t.g += lo, t.w += lo, t.a += lo, t.first += lo, t.root += lo;
    FOR_BLOCKS(b, draw, lo, n) {
        const Bits *bits = b.bits;
        for (int64_t from = b.from, to; from < b.to; from = to) {
            to = row_end(&t, lo + from, lo + b.to) - lo;
#pragma GCC ivdep
            for (int64_t i = from; i < to; i++) {
                Moments now = adam_moments(&t, i);
                uint32_t w = bits[i - b.from];
                int64_t m = random ? added_random(w) : added_nearest(now.first);
                int64_t s = random ? added_random(root_bits(w)) : added_nearest(now.root);
                t.first[i] = moment_code(now.first, t.bias_first, m);
                t.root[i] = moment_code(now.root, t.bias_root, s);
            }
        }
    }
}

static void adam_store_random(AdamTerms t, const Draw *draw, int64_t lo, int64_t n) {
    adam_store_range(t, draw, lo, n, 1);
}

static void adam_store_nearest(AdamTerms t, const Draw *draw, int64_t lo, int64_t n) {
    adam_store_range(t, draw, lo, n, 0);
}

/* Writes the moments. */
void samebits_adam_store(const AdamTerms *t, const Draw *draw, int64_t n, int threads) {
    void (*const store)(AdamTerms, const Draw *, int64_t, int64_t) =
        draw->on ? adam_store_random : adam_store_nearest;
    PARALLEL(n, n, store(*t, draw, lo, len))
}

SAMEBITS_INLINE double adam_step(const AdamTerms *t, int64_t i) {
    double m = moment_value(1, t->first[i], t->base_first);
    double s = moment_value(1, t->root[i], t->base_root);
    double p = adam_quotient(m, s, t->c1, t->c2, t->eps);
    return p + t->decoupled * (joint(t->w[i], t->a[i]) * t->scale_a);
}

static int64_t adam_direction_range(AdamTerms t, int64_t lo, int64_t n, int64_t bias,
                                    int16_t *out) {
    int64_t top = 0;
    for (int64_t from = lo, to; from < lo + n; from = to) {
        to = row_end(&t, from, lo + n);
        if (out) {
#pragma GCC ivdep
            for (int64_t i = from; i < to; i++) {
                double p = adam_step(&t, i);
                out[i] = moment_code(p, bias, added_nearest(p));
            }
        } else {
            for (int64_t i = from; i < to; i++) {
                int64_t bits = magnitude_bits(adam_step(&t, i));
                top = SAMEBITS_MAX(top, bits);
            }
        }
    }
    return top;
}

/* From the moments as they are stored: the bits of the largest |p| (out == NULL), or its codes. */
int64_t samebits_adam_direction(const AdamTerms *t, int64_t n, int64_t bias, int16_t *out,
                                int threads) {
    int64_t top = 0;
    PARALLEL_MAX(n, n, top, adam_direction_range(*t, lo, len, bias, out))
    return top;
}
