/* Exact integer products in tiles of bytes (Intel AMX: "Intel Architecture Instruction Set
 * Extensions Programming Reference", chapter 3), for linear layers and convolutions of one tap:
 * forward, and both gradients (docs/spec/training.md, sections 5 and 7).
 *
 * An instruction multiplies 16 rows of 64 bytes by 64 rows of 16 columns. Activations and weights
 * are bytes. A gradient of 16 or 32 bits is cut into bytes, g = sum of plane[i] * 2**(8 * i), all
 * unsigned but the highest, and so a sum of products is a sum of those of its planes, shifted.
 *
 * Bounds: |x|, |w| <= 127 and a byte is at most 255, so that 2**16 products stay below 255 * 127 *
 * 2**16 < 2**31. More channels are not taken; sums over pixels are added up in 64 bits. */
#include "amx.h"

#ifdef SAMEBITS_AMX
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#define SIDE 32              /* rows and columns of a block: two tiles by two */
#define DEPTH 64             /* bytes of a row of a tile */
#define PANEL (SIDE * DEPTH) /* bytes of two tiles */
#define SUMS_MAX (1 << 22)   /* sums of a weight gradient, which are kept in 64 bits */
#define SUMMED (1 << 16)     /* products of a byte that 32 bits hold */
#define CHUNK_MAX (1 << 14)  /* rows whose weight gradients are summed in 32 bits */
#define PACKED (3 << 19)     /* bytes of packed rows that stay in the second-level cache */

/* What tiles read is in memory: gcc's functions for them do not say that they read it. */
#define WRITTEN __asm__ volatile("" ::: "memory")

enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18 };

static int permitted(void) {
    static int known; /* 1: no, 2: yes; two threads may ask at once and hear the same */
    int found = __atomic_load_n(&known, __ATOMIC_RELAXED);
    if (!found) {
        found = syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) ? 1 : 2;
        __atomic_store_n(&known, found, __ATOMIC_RELAXED);
    }
    return found == 2;
}

int samebits_amx_takes(const Conv *s, int64_t pixels) {
    int point = s->kh == 1 && s->kw == 1 && s->stride_h == 1 && s->stride_w == 1 && !s->pad_h &&
                !s->pad_w && s->groups == 1 && s->oh == s->h && s->ow == s->w;
    int64_t most = SAMEBITS_MAX(s->ci, s->co), least = SAMEBITS_MIN(s->ci, s->co);
    return point && least >= SIDE / 2 && most <= SUMMED && least * most <= SUMS_MAX &&
           s->n * s->h * s->w >= pixels && permitted();
}

/* Tiles of this thread: 8 of 16 rows of 64 bytes. */
static void tiles_on(void) {
    struct {
        uint8_t palette, start, reserved[14];
        uint16_t bytes[16];
        uint8_t rows[16];
    } config = {.palette = 1};
    for (int i = 0; i < 8; i++) config.bytes[i] = DEPTH, config.rows[i] = 16;
    WRITTEN;
    _tile_loadconfig(&config);
}

/* sum [SIDE][SIDE] = panel a x panel b over `depth` steps of 64 bytes. A step of `a` is two tiles
 * [16 rows][64], one of `b` two tiles [16 quads of rows][16 columns][4]. */
#define BLOCK(name, dot)                                                                       \
    static void name(const int8_t *a, const int8_t *b, int64_t depth, int32_t *sum) {          \
        WRITTEN;                                                                               \
        _tile_zero(0);                                                                         \
        _tile_zero(1);                                                                         \
        _tile_zero(2);                                                                         \
        _tile_zero(3);                                                                         \
        for (int64_t k = 0; k < depth; k++, a += PANEL, b += PANEL) {                          \
            _tile_loadd(4, a, DEPTH);                                                          \
            _tile_loadd(5, a + PANEL / 2, DEPTH);                                              \
            _tile_loadd(6, b, DEPTH);                                                          \
            _tile_loadd(7, b + PANEL / 2, DEPTH);                                              \
            dot(0, 4, 6);                                                                      \
            dot(1, 4, 7);                                                                      \
            dot(2, 5, 6);                                                                      \
            dot(3, 5, 7);                                                                      \
        }                                                                                      \
        _tile_stored(0, sum, SIDE * 4);                                                        \
        _tile_stored(1, sum + 16, SIDE * 4);                                                   \
        _tile_stored(2, sum + 16 * SIDE, SIDE * 4);                                            \
        _tile_stored(3, sum + 16 * SIDE + 16, SIDE * 4);                                       \
    }
BLOCK(block_ss, _tile_dpbssd) /* signed x signed */
BLOCK(block_us, _tile_dpbusd) /* unsigned x signed */
BLOCK(block_su, _tile_dpbsud) /* signed x unsigned */

/* Where row r and byte k of a panel lie: of `a`, and of quads of rows in `b`. */
static inline int64_t in_a(int64_t r, int64_t k) {
    return k / DEPTH * PANEL + r * DEPTH + k % DEPTH;
}
static inline int64_t in_b(int64_t quad, int64_t column) {
    return quad / 16 * PANEL + column / 16 * (PANEL / 2) + quad % 16 * DEPTH + column % 16 * 4;
}

static inline uint32_t four(uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
    return (a & 255) | (b & 255) << 8 | (c & 255) << 16 | d << 24;
}

/* Where a panel is not filled, at the end of the sums, one of the two that meet is 0: that of
 * weights, and that of turned inputs. Sums of rows and columns that are missing are not used. */

/* Rows [0, n) of bytes, each of k, as a panel of `a`. */
static void pack_rows(const int8_t *v, int64_t n, int64_t k, int8_t *to) {
    for (int64_t r = 0; r < n; r++)
        for (int64_t at = 0; at < k; at += DEPTH)
            memcpy(to + in_a(r, at), v + r * k + at, (size_t)SAMEBITS_MIN(DEPTH, k - at));
}

/* The two planes of rows of 16 bits as panels of `a`: low bytes, and high ones behind them. */
static void pack_halves(const int16_t *v, int64_t n, int64_t k, int8_t *to) {
    int64_t size = round_up(k, DEPTH) * SIDE;
    for (int64_t r = 0; r < n; r++)
        for (int64_t at = 0; at < k; at += DEPTH) {
            const int16_t *restrict row = v + r * k + at;
            int8_t *restrict low = to + in_a(r, at), *restrict high = low + size;
            int64_t take = SAMEBITS_MIN(DEPTH, k - at);
            for (int64_t i = 0; i < take; i++)
                low[i] = (int8_t)row[i], high[i] = (int8_t)(row[i] >> 8);
        }
}

/* Rows [0, n) of weights [..][k], as columns of a panel of `b`. */
static void pack_columns(const int8_t *w, int64_t n, int64_t k, int8_t *to) {
    memset(to, 0, (size_t)(round_up(k, DEPTH) * SIDE));
    for (int64_t j = 0; j < n; j++)
        for (int64_t at = 0; at < k; at += 4)
            memcpy(to + in_b(at / 4, j), w + j * k + at, (size_t)SAMEBITS_MIN(4, k - at));
}

/* Bytes of rows [p, p + 4) of a matrix [rows][ld], n columns of it, side by side; rows from `rows`
 * on are 0. */
static void quads_of(const int8_t *v, int64_t p, int64_t rows, int64_t ld, int64_t n,
                     uint32_t out[SIDE]) {
    static const int8_t none[SIDE];
    const int8_t *r[4];
    for (int i = 0; i < 4; i++) r[i] = p + i < rows ? v + (p + i) * ld : none;
    for (int64_t j = 0; j < n; j++)
        out[j] = four((uint8_t)r[0][j], (uint8_t)r[1][j], (uint8_t)r[2][j], (uint8_t)r[3][j]);
}

/* Columns [0, n) of a matrix of bytes [rows][ld]: as columns of a panel of `b`. */
static void pack_quads(const int8_t *v, int64_t rows, int64_t ld, int64_t n, int8_t *to) {
    memset(to, 0, (size_t)(round_up(rows, DEPTH) * SIDE));
    for (int64_t p = 0; p < rows; p += 4) {
        uint32_t quad[SIDE] = {0};
        quads_of(v, p, rows, ld, n, quad);
        memcpy(to + in_b(p / 4, 0), quad, 64);
        memcpy(to + in_b(p / 4, 16), quad + 16, 64);
    }
}

/* The same columns as rows of a panel of `a`: turned by 4 bytes at a time. */
static void pack_turned(const int8_t *v, int64_t rows, int64_t ld, int64_t n, int8_t *to) {
    memset(to, 0, (size_t)(round_up(rows, DEPTH) * SIDE));
    for (int64_t p = 0; p < rows; p += 4) {
        uint32_t quad[SIDE] = {0};
        quads_of(v, p, rows, ld, n, quad);
        for (int64_t i = 0; i < n; i++) memcpy(to + in_a(i, p), quad + i, 4);
    }
}

/* The planes of n columns of a gradient [rows][ld] of 16 or 32 bits, each as columns of a panel of
 * `b`; planes are `plane` bytes apart. */
#define PACK_PLANES(name, type, planes)                                                        \
    static void name(const type *g, int64_t rows, int64_t ld, int64_t n, int64_t plane,        \
                     int8_t *to) {                                                             \
        static const type none[SIDE];                                                          \
        for (int64_t p = 0; p < rows; p += 4) {                                                \
            const type *r[4];                                                                  \
            uint32_t quad[planes][SIDE] = {{0}};                                               \
            for (int i = 0; i < 4; i++) r[i] = p + i < rows ? g + (p + i) * ld : none;         \
            for (int64_t j = 0; j < n; j++) {                                                  \
                uint32_t a = (uint32_t)r[0][j], b = (uint32_t)r[1][j];                         \
                uint32_t c = (uint32_t)r[2][j], d = (uint32_t)r[3][j];                         \
                for (int i = 0; i < planes; i++)                                               \
                    quad[i][j] = four(a >> 8 * i, b >> 8 * i, c >> 8 * i, d >> 8 * i);         \
            }                                                                                  \
            for (int i = 0; i < planes; i++) {                                                 \
                memcpy(to + i * plane + in_b(p / 4, 0), quad[i], 64);                          \
                memcpy(to + i * plane + in_b(p / 4, 16), quad[i] + 16, 64);                    \
            }                                                                                  \
        }                                                                                      \
    }
PACK_PLANES(pack_planes16, int16_t, 2)
PACK_PLANES(pack_planes32, int32_t, 4)

/* Panels of `b` for all columns: weights [co][ci] as they multiply inputs, or gradients. */
static int8_t *packed_weights(const int8_t *w, int64_t co, int64_t ci, int forward, int threads) {
    int64_t columns = forward ? co : ci, depth = round_up(forward ? ci : co, DEPTH);
    int64_t panels = (columns + SIDE - 1) / SIDE;
    int8_t *packed = scratch(panels * depth * SIDE);
    if (!packed) return NULL;
#pragma omp parallel for num_threads(threads)
    for (int64_t i = 0; i < panels; i++) {
        int64_t n = SAMEBITS_MIN(SIDE, columns - i * SIDE);
        if (forward)
            pack_columns(w + i * SIDE * ci, n, ci, packed + i * depth * SIDE);
        else
            pack_quads(w + i * SIDE, co, ci, n, packed + i * depth * SIDE);
    }
    return packed;
}

/* Writes m rows and n columns of a block into out [..][ld]; the largest magnitude. */
#define STORE(name, type)                                                                      \
    static int64_t name(const type *restrict sum, int64_t m, int64_t n, type *restrict out,    \
                        int64_t ld) {                                                          \
        type top = 0;                                                                          \
        for (int64_t i = 0; i < m; i++)                                                        \
            for (int64_t j = 0; j < n; j++) {                                                  \
                type v = sum[i * SIDE + j], a = v < 0 ? -v : v;                                \
                out[i * ld + j] = v;                                                           \
                top = SAMEBITS_MAX(top, a);                                                    \
            }                                                                                  \
        return top;                                                                            \
    }
STORE(store32, int32_t)
STORE(store64, int64_t)

/* out [rows][columns] = v [rows][k] x b, v of 8 or 16 bits; b as packed_weights gives it. */
static int64_t rows_times(const void *v, int width, int64_t rows, int64_t k, const int8_t *b,
                          int64_t columns, void *out, int wide, int threads) {
    int64_t depth = round_up(k, DEPTH), size = depth * SIDE, largest = 0;
    int64_t blocks = (rows + SIDE - 1) / SIDE;
    int failed = 0;
#pragma omp parallel num_threads(threads) reduction(max : largest) reduction(| : failed)
    {
        int8_t *a = scratch(2 * size);
        if (!a) failed = 1;
        tiles_on();
#pragma omp for schedule(static)
        for (int64_t block = 0; block < blocks; block++) {
            if (!a) continue;
            int64_t r = block * SIDE, m = SAMEBITS_MIN(SIDE, rows - r);
            if (width == 8)
                pack_rows((const int8_t *)v + r * k, m, k, a);
            else
                pack_halves((const int16_t *)v + r * k, m, k, a);
            for (int64_t c = 0; c < columns; c += SIDE) {
                int32_t low[SIDE * SIDE], high[SIDE * SIDE];
                int64_t n = SAMEBITS_MIN(SIDE, columns - c), at = r * columns + c, top;
                const int8_t *panel = b + c / SIDE * size;
                if (width == 8) {
                    block_ss(a, panel, depth / DEPTH, low);
                    top = store32(low, m, n, (int32_t *)out + at, columns);
                } else {
                    block_us(a, panel, depth / DEPTH, low);
                    block_ss(a + size, panel, depth / DEPTH, high);
                    if (wide) {
                        int64_t sum[SIDE * SIDE];
                        for (int i = 0; i < SIDE * SIDE; i++)
                            sum[i] = (int64_t)high[i] * 256 + low[i];
                        top = store64(sum, m, n, (int64_t *)out + at, columns);
                    } else {
                        for (int i = 0; i < SIDE * SIDE; i++) /* the sum fits, its parts may not */
                            low[i] = (int32_t)((uint32_t)high[i] * 256 + (uint32_t)low[i]);
                        top = store32(low, m, n, (int32_t *)out + at, columns);
                    }
                }
                largest = SAMEBITS_MAX(largest, top);
            }
        }
        _tile_release();
        free(a);
    }
    return failed ? -1 : largest;
}

int64_t samebits_amx_conv(const Conv *s, const int8_t *x, const int8_t *w, int32_t *out,
                          int threads) {
    int8_t *b = packed_weights(w, s->co, s->ci, 1, threads);
    int64_t rows = s->n * s->h * s->w;
    int64_t top = b ? rows_times(x, 8, rows, s->ci, b, s->co, out, 0, threads) : -1;
    free(b);
    return top;
}

int64_t samebits_amx_input_grad(const Conv *s, const int16_t *g, const int8_t *w, void *dx,
                                int wide, int threads) {
    int8_t *b = packed_weights(w, s->co, s->ci, 0, threads);
    int64_t rows = s->n * s->h * s->w;
    int64_t top = b ? rows_times(g, 16, rows, s->co, b, s->ci, dx, wide, threads) : -1;
    free(b);
    return top;
}

/* sums [ci][co] += inputs, turned, x gradients, of one chunk whose panels are packed. */
static void add_chunk(const int8_t *a, const int8_t *b, int64_t steps, int planes, int64_t plane,
                      int64_t m, int64_t co, int64_t *restrict sums) {
    for (int64_t c = 0; c < co; c += SIDE) {
        const int8_t *panel = b + c / SIDE * steps * PANEL;
        int64_t n = SAMEBITS_MIN(SIDE, co - c);
        int32_t sum[4][SIDE * SIDE];
        for (int i = 0; i + 1 < planes; i++) block_su(a, panel + i * plane, steps, sum[i]);
        block_ss(a, panel + (planes - 1) * plane, steps, sum[planes - 1]);
        for (int64_t r = 0; r < m; r++) {
            int64_t *restrict to = sums + r * co + c;
            const int32_t *p = sum[0] + r * SIDE, *q = sum[1] + r * SIDE;
            const int32_t *u = sum[2] + r * SIDE, *v = sum[3] + r * SIDE;
            for (int64_t j = 0; j < n; j++) to[j] += p[j] + (int64_t)q[j] * 256;
            for (int64_t j = 0; planes == 4 && j < n; j++)
                to[j] += (int64_t)u[j] * 65536 + (int64_t)v[j] * 16777216;
        }
    }
}

int64_t samebits_amx_weight_grad(const Conv *s, const void *g, int width, const int8_t *x,
                                 void *dw, int wide, int threads) {
    int64_t rows = s->n * s->h * s->w, ci = s->ci, co = s->co, largest = 0;
    int64_t of_x = (ci + SIDE - 1) / SIDE, of_g = (co + SIDE - 1) / SIDE;
    int planes = width / 8;
    int64_t chunk = PACKED / ((of_x + of_g * planes) * SIDE) / DEPTH * DEPTH;
    chunk = SAMEBITS_MIN(SAMEBITS_MAX(chunk, 4 * DEPTH), CHUNK_MAX);
    chunk = SAMEBITS_MIN(chunk, round_up(rows, DEPTH));
    int64_t plane = of_g * chunk * SIDE;
    int8_t *a = scratch(of_x * chunk * SIDE), *b = scratch(planes * plane);
    int64_t *sums = calloc((size_t)(ci * co), sizeof *sums);
    if (!a || !b || !sums) {
        free(a), free(b), free(sums);
        return -1;
    }
#pragma omp parallel num_threads(threads) reduction(max : largest)
    {
        tiles_on();
        for (int64_t p = 0; p < rows; p += chunk) {
            int64_t count = SAMEBITS_MIN(chunk, rows - p), steps = (count + DEPTH - 1) / DEPTH;
#pragma omp for schedule(static)
            for (int64_t i = 0; i < of_x + of_g; i++) {
                int64_t c = (i < of_x ? i : i - of_x) * SIDE;
                int64_t n = SAMEBITS_MIN(SIDE, (i < of_x ? ci : co) - c);
                int8_t *to = (i < of_x ? a : b) + c * steps * DEPTH;
                if (i < of_x)
                    pack_turned(x + p * ci + c, count, ci, n, to);
                else if (width == 16)
                    pack_planes16((const int16_t *)g + p * co + c, count, co, n, plane, to);
                else
                    pack_planes32((const int32_t *)g + p * co + c, count, co, n, plane, to);
            }
#pragma omp for schedule(static)
            for (int64_t i = 0; i < of_x; i++)
                add_chunk(a + i * steps * PANEL, b, steps, planes, plane,
                          SAMEBITS_MIN(SIDE, ci - i * SIDE), co, sums + i * SIDE * co);
        }
#pragma omp for schedule(static)
        for (int64_t block = 0; block < (co + 7) / 8; block++) /* 8 sums of a line of the cache */
            for (int64_t c = 0; c < ci; c++)
                for (int64_t o = block * 8; o < SAMEBITS_MIN(co, block * 8 + 8); o++) {
                    int64_t v = sums[c * co + o];
                    if (wide)
                        ((int64_t *)dw)[o * ci + c] = v;
                    else
                        ((int32_t *)dw)[o * ci + c] = (int32_t)v;
                    largest = SAMEBITS_MAX(largest, v < 0 ? -v : v);
                }
        _tile_release();
    }
    free(a), free(b), free(sums);
    return largest;
}
#endif
