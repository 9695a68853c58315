/* Integers of several exponents (docs/spec/training.md, 12.1): an exponent for every row, for every
 * channel of a row, or for every element. */
#include <stdlib.h>
#include <string.h>

#include "exponent.h"
#include "parallel.h"
#include "real.h"
#include "rows.h"

/* --- sums of exponents ----------------------------------------------------------------------- */

#define MOST_AXES 8

/* out = a + sign * b, of exponents. layout: of each of `axes` axes its size, and its steps in a and
 * in b, 0 where one of them is repeated; out is dense. */
void samebits_exponent_sum(const int64_t *a, const int64_t *b, int64_t sign, int64_t *out,
                           int64_t axes, const int64_t *layout) {
    int64_t index[MOST_AXES] = {0};
    const int64_t *last = layout + 3 * (axes - 1);
    for (;;) {
        for (int64_t i = 0; i < last[0]; i++) *out++ = a[i * last[1]] + sign * b[i * last[2]];
        int64_t axis = axes - 2;
        for (; axis >= 0; axis--) {
            const int64_t *own = layout + 3 * axis;
            a += own[1];
            b += own[2];
            if (++index[axis] < own[0]) break;
            a -= own[0] * own[1];
            b -= own[0] * own[2];
            index[axis] = 0;
        }
        if (axis < 0) return;
    }
}

/* --- scaling --------------------------------------------------------------------------------- */

/* Codes of integers at one exponent (`scaled`), and at exponents by element (`each`), in integers
 * of `math` bits. */
#define SCALED(from, to, math, shift, make, apply)                                             \
    static void scaled_##from##_##to##_##math(const void *from_v, int64_t n, int64_t by,       \
                                              void *to_v) {                                    \
        const int##from##_t *restrict v = from_v;                                              \
        int##to##_t *restrict out = to_v;                                                      \
        shift s = make(by);                                                                    \
        for (int64_t k = 0; k < n; k++) out[k] = (int##to##_t)apply(v[k], s);                  \
    }                                                                                          \
    static void each_##from##_##to##_##math(const void *from_v, int64_t n, const void *by_v,   \
                                            void *to_v) {                                      \
        const int##from##_t *restrict v = from_v;                                              \
        const int##math##_t *restrict by = by_v;                                               \
        int##to##_t *restrict out = to_v;                                                      \
        for (int64_t k = 0; k < n; k++) out[k] = (int##to##_t)scale_each##math(v[k], by[k]);   \
    }
#define NEAR(from, to) SCALED(from, to, 32, Shift32, shift32_by, scale32)
#define FAR(from, to) SCALED(from, to, 64, Shift, shift_by, scale64)
NEAR(8, 8) NEAR(16, 8) NEAR(16, 16) NEAR(16, 32) NEAR(32, 8) NEAR(32, 16) NEAR(32, 32)
FAR(8, 8) FAR(16, 8) FAR(16, 16) FAR(16, 32) FAR(32, 8) FAR(32, 16) FAR(32, 32)
FAR(64, 8) FAR(64, 16) FAR(64, 32) FAR(32, 64) FAR(64, 64)

typedef void Scaler(const void *, int64_t, int64_t, void *);
typedef void EachScaler(const void *, int64_t, const void *, void *);

/* How integers of a type become codes of another: in 32 bits where these hold what rounding adds,
 * which shifts of at most MOST_RIGHT do. */
typedef struct {
    Scaler *near, *far;
    EachScaler *each_near, *each_far;
    int64_t width, size; /* bytes */
} Scaling;

#define MOST_RIGHT 24
#define BOTH(from, to)                                                                         \
    {scaled_##from##_##to##_32, scaled_##from##_##to##_64, each_##from##_##to##_32,            \
     each_##from##_##to##_64, from / 8, to / 8}
#define FAR_ALONE(from, to) {NULL, scaled_##from##_##to##_64, NULL, each_##from##_##to##_64,   \
                             from / 8, to / 8}

static Scaling scaling_of(int type, int to) {
    static const Scaling known[] = {BOTH(8, 8),        BOTH(16, 8),       BOTH(16, 16),
                                    BOTH(16, 32),
                                    BOTH(32, 8),       BOTH(32, 16),      BOTH(32, 32),
                                    FAR_ALONE(64, 8),  FAR_ALONE(64, 16), FAR_ALONE(64, 32),
                                    FAR_ALONE(32, 64), FAR_ALONE(64, 64)};
    int at = 0;
    while (known[at].width != type / 8 || known[at].size != to / 8) at++;
    return known[at];
}

static void scaled(Scaling s, const char *v, int64_t n, int64_t by, char *out) {
    /* Only zeros are shifted to the left by more than fits. */
    if (s.near && by >= -MOST_RIGHT)
        s.near(v, n, SAMEBITS_MIN(by, 31), out);
    else
        s.far(v, n, SAMEBITS_MIN(by, 62), out);
}

/* Whether exponents, or rows, differ along the last axis. */
SAMEBITS_INLINE int varies(const Rows *s) { return s->step_c || s->row_c; }

/* How many of the b axis' places share the exponents and rows of the last axis. */
SAMEBITS_INLINE int64_t group_of(const Rows *s) {
    return !varies(s) || s->step_b || s->row_b ? 1 : s->b;
}

/* The shifts of the last axis' places from their exponents to those of their rows; the smallest, or
 * 0. */
static int64_t shifts_of(const Rows *s, const int64_t *restrict from, int64_t beside,
                         const int64_t *restrict to, int64_t *restrict by) {
    int64_t least = 0, c = s->c;
    if (s->step_c == 1 && !s->row_c) {
        beside -= to ? *to : 0;
        for (int64_t k = 0; k < c; k++) by[k] = from[k] + beside;
    } else {
        for (int64_t k = 0; k < c; k++)
            by[k] = from[k * s->step_c] + beside - (to ? to[k * s->row_c] : 0);
    }
    for (int64_t k = 0; k < c; k++) least = SAMEBITS_MIN(least, by[k]);
    return least;
}

/* Codes of the places [lo, lo + len) of the first axis: rne(v * 2**(e - own)); own: NULL: 0. by:
 * room for 2 * c numbers. */
static void scale_range(const Rows *s, Scaling how, const char *v, const int64_t *e,
                        int64_t beside, const int64_t *own, char *out, int64_t lo, int64_t len,
                        int64_t *by) {
    int64_t c = s->c, group = group_of(s), in = c * how.width, of = c * how.size;
    int32_t *narrow = (int32_t *)(by + c);
    v += lo * s->b * in, out += lo * s->b * of;
    for (int64_t i = lo; i < lo + len; i++)
        for (int64_t j = 0; j < s->b; j += group) {
            const int64_t *from = e + i * s->step_a + j * s->step_b;
            const int64_t *to = own ? own + i * s->row_a + j * s->row_b : NULL;
            int64_t least = 0;
            if (!varies(s)) {
                scaled(how, v, c, *from + beside - (to ? *to : 0), out);
                v += in, out += of;
                continue;
            }
            least = shifts_of(s, from, beside, to, by);
            int is_near = how.near && least >= -MOST_RIGHT;
            if (is_near)
                for (int64_t k = 0; k < c; k++) narrow[k] = (int32_t)SAMEBITS_MIN(by[k], 31);
            for (int64_t r = 0; r < group; r++, v += in, out += of)
                if (is_near)
                    how.each_near(v, c, narrow, out);
                else
                    how.each_far(v, c, by, out);
        }
}

static int scale_all(const Rows *s, const void *v, int type, const int64_t *e, int64_t beside,
                     const int64_t *own, void *out, int to, int threads) {
    Scaling how = scaling_of(type, to);
    int failed = 0;
#pragma omp parallel num_threads(TEAM(s->a *s->b *s->c)) reduction(| : failed)
    {
        int64_t *by = malloc((size_t)(2 * s->c) * sizeof *by);
        SHARE(s->a)
        if (!by)
            failed = 1;
        else
            scale_range(s, how, v, e, beside, own, out, lo, len, by);
        free(by);
    }
    return failed ? NO_MEMORY : FINE;
}

/* out = rne(v * 2**e), int64, of integers of 32 or 64 bits, |v| <= 2**62; where v is not 0, left
 * shifts fit. */
int samebits_scale_rows(const Rows *s, const void *v, int type, const int64_t *e, int64_t *out,
                        int threads) {
    return scale_all(s, v, type, e, 0, NULL, out, 64, threads);
}

/* --- choice of exponents --------------------------------------------------------------------- */

/* What is known of a row: the largest |v| * 2**e, as a number that is larger where that is, and the
 * lowest and the highest e where v is not 0. */
typedef struct {
    int64_t key, low, high;
} End;

#define NO_KEY INT64_MIN

/* Above 32 bits, the exponent of the power of two above top * 2**e; the 32 first bits of top. The
 * limits of codes, times 2, plus 1, have no more. */
SAMEBITS_INLINE int64_t key_of(int64_t top, int64_t e) {
    int64_t length = bit_length(top);
    uint64_t first = (uint64_t)top << (64 - length) >> 32;
    return (e + length) * ((int64_t)1 << 32) + (int64_t)first;
}

/* The smallest exponent at which the number of a key fits codes of `bits`: with the limit Q, which
 * is odd, it does not where twice of it is 2 * Q + 1 or more. */
SAMEBITS_INLINE int64_t fit_of(int64_t key, int bits) {
    uint64_t first = (uint64_t)key & UINT32_MAX, limit = 2 * (uint64_t)code_max(bits) + 1;
    return (key >> 32) - bits + 1 + (first >= limit << (32 - bits));
}

SAMEBITS_INLINE void see(End *own, int64_t top, int64_t e) {
    if (!top) return;
    int64_t key = key_of(top, e);
    own->key = SAMEBITS_MAX(own->key, key);
    own->low = SAMEBITS_MIN(own->low, e);
    own->high = SAMEBITS_MAX(own->high, e);
}

/* The places of one row, which have exponents each, of integers of 8 to 32 bits. As numbers of
 * binary64, which are exact, their order is that of their bits, and a product with a power of two
 * adds to the exponent among these; 0 is no such number. */
#define SEE_PLACES(type)                                                                       \
    static void see_places##type(End *own, const int##type##_t *restrict top,                  \
                                 const int64_t *restrict e, int64_t beside, int64_t c) {       \
        int64_t most = NO_KEY, low = INT64_MAX, high = INT64_MIN, far = 0;                     \
        for (int64_t k = 0; k < c; k++) far |= e[k] + 1024;                                    \
        for (int64_t k = 0; far >> 11 && k < c; k++) see(own, top[k], e[k] + beside);          \
        if (far >> 11) return; /* the bits do not hold these exponents */                      \
        for (int64_t k = 0; k < c; k++) {                                                      \
            int64_t real = bits_of((double)top[k]) + e[k] * ((int64_t)1 << 52);                \
            int64_t is_live = -(int64_t)(top[k] != 0);                                         \
            real = (real & is_live) | (NO_KEY & ~is_live);                                     \
            int64_t least = (e[k] & is_live) | (INT64_MAX & ~is_live);                         \
            int64_t largest = (e[k] & is_live) | (INT64_MIN & ~is_live);                       \
            most = SAMEBITS_MAX(most, real);                                                   \
            low = SAMEBITS_MIN(low, least);                                                    \
            high = SAMEBITS_MAX(high, largest);                                                \
        }                                                                                      \
        if (high == INT64_MIN) return;                                                         \
        int64_t first = ((int64_t)1 << 31) | (most & (((int64_t)1 << 52) - 1)) >> 21;          \
        most = ((most >> 52) + beside - 1022) * ((int64_t)1 << 32) + first;                    \
        own->key = SAMEBITS_MAX(own->key, most);                                               \
        own->low = SAMEBITS_MIN(own->low, low + beside);                                       \
        own->high = SAMEBITS_MAX(own->high, high + beside);                                    \
    }
SEE_PLACES(8)
SEE_PLACES(16)
SEE_PLACES(32)

static void see_places64(End *own, const int64_t *top, const int64_t *e, int64_t beside,
                         int64_t c) {
    for (int64_t k = 0; k < c; k++) see(own, top[k], e[k] + beside);
}

#define SEE_ROWS(type)                                                                         \
    static int64_t top##type(const int##type##_t *restrict v, int64_t n) {                     \
        int##type##_t top = 0;                                                                 \
        for (int64_t k = 0; k < n; k++) {                                                      \
            int##type##_t size = (int##type##_t)(v[k] < 0 ? -v[k] : v[k]);                     \
            top = SAMEBITS_MAX(top, size);                                                     \
        }                                                                                      \
        return top;                                                                            \
    }                                                                                          \
    static void tops##type(const int##type##_t *restrict v, int64_t c,                         \
                           int##type##_t *restrict top) {                                      \
        for (int64_t k = 0; k < c; k++) {                                                      \
            int##type##_t size = (int##type##_t)(v[k] < 0 ? -v[k] : v[k]);                     \
            top[k] = SAMEBITS_MAX(top[k], size);                                               \
        }                                                                                      \
    }                                                                                          \
    static void see_range##type(const Rows *s, const int##type##_t *v, const int64_t *e,       \
                                int64_t beside, End *ends, int64_t lo, int64_t len,            \
                                int##type##_t *top) {                                          \
        int64_t c = s->c, group = group_of(s);                                                 \
        v += lo * s->b * c;                                                                    \
        for (int64_t i = lo; i < lo + len; i++)                                                \
            for (int64_t j = 0; j < s->b; j += group) {                                        \
                const int64_t *from = e + i * s->step_a + j * s->step_b;                       \
                End *own = ends + i * s->row_a + j * s->row_b;                                 \
                if (!varies(s)) {                                                              \
                    see(own, top##type(v, c), *from + beside);                                 \
                    v += c;                                                                    \
                    continue;                                                                  \
                }                                                                              \
                memset(top, 0, (size_t)c * sizeof *top);                                       \
                for (int64_t r = 0; r < group; r++, v += c) tops##type(v, c, top);             \
                if (s->step_c == 1 && !s->row_c) {                                             \
                    see_places##type(own, top, from, beside, c);                               \
                    continue;                                                                  \
                }                                                                              \
                for (int64_t k = 0; k < c; k++)                                                \
                    see(own + k * s->row_c, top[k], from[k * s->step_c] + beside);             \
            }                                                                                  \
    }
SEE_ROWS(8)
SEE_ROWS(16)
SEE_ROWS(32)
SEE_ROWS(64)

static int64_t rows_of(const Rows *s) {
    return (s->row_a ? s->a : 1) * (s->row_b ? s->b : 1) * (s->row_c ? s->c : 1);
}

static void start(End *ends, int64_t n) {
    for (int64_t r = 0; r < n; r++) ends[r] = (End){NO_KEY, INT64_MAX, INT64_MIN};
}

/* The ends of all rows. Those that places of the first axis share are found by each thread. */
static int find_ends(const Rows *s, const void *v, int type, const int64_t *e, int64_t beside,
                     End *ends, int threads) {
    int64_t rows = rows_of(s);
    int failed = 0;
    start(ends, rows);
#pragma omp parallel num_threads(TEAM(s->a *s->b *s->c)) reduction(| : failed)
    {
        SHARE(s->a)
        int shared = !s->row_a && team > 1;
        int64_t *top = malloc((size_t)s->c * sizeof *top);
        End *own = shared ? malloc((size_t)rows * sizeof *own) : ends;
        if (!top || !own) {
            failed = 1;
        } else {
            if (shared) start(own, rows);
            if (type == 8)
                see_range8(s, v, e, beside, own, lo, len, (int8_t *)top);
            else if (type == 16)
                see_range16(s, v, e, beside, own, lo, len, (int16_t *)top);
            else if (type == 32)
                see_range32(s, v, e, beside, own, lo, len, (int32_t *)top);
            else
                see_range64(s, v, e, beside, own, lo, len, top);
            if (shared) {
#pragma omp critical
                for (int64_t r = 0; r < rows; r++) {
                    ends[r].key = SAMEBITS_MAX(ends[r].key, own[r].key);
                    ends[r].low = SAMEBITS_MIN(ends[r].low, own[r].low);
                    ends[r].high = SAMEBITS_MAX(ends[r].high, own[r].high);
                }
            }
        }
        if (shared) free(own);
        free(top);
    }
    return failed ? NO_MEMORY : FINE;
}

static int64_t exponent_of(End end, int bits, int kind) {
    if (end.key == NO_KEY) return EXPONENT_MIN;
    if (kind == ALIGNED) return end.high;
    int64_t fit = fit_of(end.key, bits);
    if (kind == SHORTENED) return SAMEBITS_MAX(fit, end.low);
    return kind == LIMITED ? SAMEBITS_MAX(fit, EXPONENT_MIN) : fit;
}

/* Whether all elements of every row have one exponent, which goes to `own`. */
static int are_of_rows(const Rows *s, const int64_t *e, int64_t *own) {
    for (int64_t r = 0; r < rows_of(s); r++) own[r] = INT64_MIN;
    for (int64_t i = 0; i < s->a; i++)
        for (int64_t j = 0; j < s->b; j++) {
            const int64_t *from = e + i * s->step_a + j * s->step_b;
            int64_t *row = own + i * s->row_a + j * s->row_b;
            for (int64_t k = 0; k < (varies(s) ? s->c : 1); k++) {
                int64_t *at = row + k * s->row_c;
                if (*at == INT64_MIN) *at = from[k * s->step_c];
                if (*at != from[k * s->step_c]) return 0;
            }
        }
    return 1;
}

/* v, integers of 8 to 64 bits, as codes of `bits` bits in memory of `to`; own: the exponent of
 * every row. beside: is added to all exponents; highest: the largest of the result. */
int samebits_requantize_rows(const Rows *s, const void *v, int type, const int64_t *exponents,
                             const int64_t *beside, int bits, int kind, void *codes, int to,
                             int64_t *own, int64_t *highest, int threads) {
    int64_t rows = rows_of(s);
    if (kind == MOVED) {
        if (are_of_rows(s, exponents, own))
            return scale_all(s, v, type, exponents, 0, own, codes, to, threads);
        kind = ALIGNED;
    }
    End *ends = malloc((size_t)rows * sizeof *ends);
    if (!ends) return NO_MEMORY;
    int status = find_ends(s, v, type, exponents, *beside, ends, threads);
    *highest = EXPONENT_MIN;
    for (int64_t r = 0; r < rows; r++) {
        own[r] = exponent_of(ends[r], bits, kind);
        *highest = SAMEBITS_MAX(*highest, own[r]);
    }
    free(ends);
    if (status != FINE) return status;
    if (kind == LIMITED && *highest > EXPONENT_MAX) return OUT_OF_RANGE;
    return scale_all(s, v, type, exponents, *beside, own, codes, to, threads);
}
