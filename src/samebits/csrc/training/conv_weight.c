/* The gradient of the weights of an exact integer convolution: dw = sum over output pixels of
 * g * patch of x, a matrix product whose inner dimension is the pixels of the whole batch
 * (docs/spec/training.md, section 7; the tile is that of tile.h).
 *
 * The two pixels of a pair lie at one place of two images (or of the two halves of one), so that
 * pairs of x serve all taps as they lie: a tap reads a run of them. Rows are packed once, and where
 * a tap steps over pixels, each residue of its step by itself. An x of few channels is packed as
 * whole patches instead, which then have one tap.
 *
 * A gradient of 32 bits is g = high * 2**16 + low with both halves in int16 (|g| <= Q32, of which
 * the high half has at most 2**15 - 1): each is a row of the tile, and the two are put together in
 * 64 bits.
 *
 * Bounds: CHUNK pairs of int16 * int8 fit in 32 bits (tile.h); at most 2**24 products of 32 by 8
 * bits, below 2**62, are summed in 64 (MAX_SUMMED of kernels/geometry.py). Where `wide` is 0 the
 * caller has bounded the sums of 16-bit gradients by 2**31. */
#include "amx.h"
#include "conv.h"
#include "tile.h"

#define CHUNK FLUSH_PAIRS    /* pairs of pixels; their x for a tile stays in the first cache */
#define CACHED (1 << 18)     /* bytes of gradients that stay in the next one */

typedef struct {
    const int8_t *x;
    const void *g;
    int width, wide;
    void *dw;
} Operands;

/* One group's product: rows are halves of gradients, columns the channels of all taps. */
typedef struct {
    Conv s;
    int64_t c0, o0, cg, og;          /* the group's first channels, and how many */
    int64_t kh, kw, c, parts, units; /* taps; channels of one, in parts of LANES; parts of all */
    int64_t image2, row2, col2;      /* from the first output pixel of a pair to the second */
    int64_t high, wide, all;         /* rows of pairs of an image, pairs of one; rows of all */
    int64_t lines, pairs;            /* of a chunk: rows, pairs of one */
    int64_t stride, run, phases;     /* steps of a tap; pairs of a packed run, runs of a row */
    int64_t rows, codes;             /* of x: packed rows, codes of a chunk */
    int64_t halves, blocks, block;   /* of a gradient; tiles, and the codes of one */
    int64_t across;                  /* pixels of a row of x under a chunk's row of pairs */
    int whole;                       /* patches are packed whole */
} Product;

static Product product_of(const Conv *given, int width) {
    Conv s = *given;
    if (s.kh * s.kw == 1 && s.stride_h * s.stride_w == 1 && !s.pad_h && !s.pad_w)
        s.w = s.ow = s.n * s.h * s.w, s.n = s.h = s.oh = 1; /* all pixels are one row */
    Product p = {.s = s, .cg = s.ci / s.groups, .og = s.co / s.groups};
    p.whole = p.cg < LANES;
    p.kh = p.whole ? 1 : s.kh, p.kw = p.whole ? 1 : s.kw;
    p.c = p.whole ? s.kh * s.kw * p.cg : p.cg;
    p.parts = (p.c + LANES - 1) / LANES, p.units = p.kh * p.kw * p.parts;
    p.high = s.oh, p.wide = s.ow;
    if (s.n > 1)
        p.image2 = 1;
    else if (s.ow > 1)
        p.col2 = p.wide = (s.ow + 1) / 2;
    else
        p.row2 = p.high = (s.oh + 1) / 2;
    p.all = (s.n + 1) / 2 * p.high;
    p.pairs = SAMEBITS_MIN(p.wide, CHUNK), p.lines = SAMEBITS_MIN(CHUNK / p.pairs, p.all);
    int64_t reach = (p.kw - 1) * s.dil_w;
    p.stride = p.whole ? 1 : s.stride_w, p.phases = SAMEBITS_MIN(reach + 1, p.stride);
    p.run = p.pairs + reach / p.stride, p.rows = p.lines * p.kh;
    p.across = (p.pairs - 1) * s.stride_w + (s.kw - 1) * s.dil_w + 1;
    p.codes = p.parts * p.phases * p.rows * p.run * 2 * LANES;
    p.halves = width / 16, p.blocks = (p.og * p.halves + MR - 1) / MR;
    p.block = (p.lines * p.pairs + 2) * MR * 2; /* two more: tiles begin in different sets */
    return p;
}

/* Pairs of n codes. */
SAMEBITS_INLINE void interleave(const int8_t *restrict a, const int8_t *restrict b, int64_t n,
                                int16_t *restrict out) {
    for (int64_t j = 0; j < n; j++) out[2 * j] = a[j], out[2 * j + 1] = b[j];
}

/* Where in x the first image of a row of pairs begins, and its output row. */
static int64_t image_of(const Product *p, int64_t line, int64_t *row) {
    *row = line % p->high;
    return line / p->high * (1 + p->image2);
}

/* The row that tap row a of the pairs of one output row reads, from pair `from` on, to
 * [part][phase][p->rows][run][LANES][2]. zeros: p->c of them. */
static void pack_row(const Product *p, const int8_t *x, int64_t line, int64_t a, int64_t from,
                     const int8_t *zeros, int16_t *out) {
    const Conv *s = &p->s;
    int64_t i, image = image_of(p, line, &i), run = p->run * 2 * LANES;
    for (int64_t phase = 0; phase < p->phases; phase++)
        for (int64_t k = 0; k < p->run; k++) {
            const int8_t *src[2] = {zeros, zeros};
            for (int64_t h = 0; h < 2 && image + h * p->image2 < s->n; h++) {
                int64_t row = (i + h * p->row2) * s->stride_h - s->pad_h + a * s->dil_h;
                int64_t col = (from + k + h * p->col2) * s->stride_w - s->pad_w + phase;
                if (row >= 0 && row < s->h && col >= 0 && col < s->w)
                    src[h] = x + (((image + h * p->image2) * s->h + row) * s->w + col) * s->ci +
                             p->c0;
            }
            for (int64_t part = 0; part < p->parts; part++, src[0] += LANES, src[1] += LANES) {
                int16_t *d = out + (part * p->phases + phase) * p->rows * run + k * 2 * LANES;
                if (p->c - part * LANES >= LANES)
                    interleave(src[0], src[1], LANES, d);
                else
                    interleave(src[0], src[1], p->c - part * LANES, d);
            }
        }
}

/* Pairs of codes, in fours: reads and writes up to three more. */
static inline void copy(int16_t *to, const int16_t *from, int64_t n) {
    for (int64_t k = 0; k < n; k += 4) memcpy(to + 2 * k, from + 2 * k, 16);
}

/* The whole patches of the pairs of one output row, to [part][p->rows][run][LANES][2]. own: room
 * for the pairs of a patch, then for those of the rows that patches are made of. */
static void pack_patches(const Product *p, const int8_t *x, int64_t line, int64_t from,
                         int16_t *own, int16_t *out) {
    const Conv *s = &p->s;
    int64_t i, image = image_of(p, line, &i), width = p->across * p->cg;
    int64_t run = s->dil_w == 1 ? s->kw : 1;
    int16_t *rows = own + round_up(p->c + 4, LANES) * 2;
    memset(own, 0, (size_t)((rows - own) * 2 + (s->kh * width + 3) * 4)); /* copy: three more */
    for (int64_t a = 0; a < s->kh; a++) {
        const int8_t *src[2] = {NULL, NULL};
        int64_t lo[2] = {0, 0}, hi[2] = {0, 0};
        int16_t *d = rows + a * width * 2;
        for (int64_t h = 0; h < 2 && image + h * p->image2 < s->n; h++) {
            int64_t row = (i + h * p->row2) * s->stride_h - s->pad_h + a * s->dil_h;
            int64_t left = (from + h * p->col2) * s->stride_w - s->pad_w;
            if (row < 0 || row >= s->h) continue;
            lo[h] = SAMEBITS_MAX(0, -left);
            hi[h] = SAMEBITS_MIN(s->w - left, p->across);
            src[h] = x + (((image + h * p->image2) * s->h + row) * s->w + left) * s->ci + p->c0;
        }
        if (src[0] && src[1] && lo[0] == lo[1] && hi[0] == hi[1] && s->groups == 1)
            interleave(src[0] + lo[0] * p->cg, src[1] + lo[0] * p->cg,
                       SAMEBITS_MAX(0, hi[0] - lo[0]) * p->cg, d + lo[0] * p->cg * 2);
        else
            for (int64_t h = 0; h < 2; h++)
                for (int64_t col = lo[h]; src[h] && col < hi[h]; col++)
                    for (int64_t c = 0; c < p->cg; c++)
                        d[(col * p->cg + c) * 2 + h] = src[h][col * s->ci + c];
    }
    for (int64_t k = 0; k < p->pairs; k++) {
        int16_t *d = own;
        for (int64_t a = 0; a < s->kh; a++)
            for (int64_t b = 0; b < s->kw; b += run, d += run * p->cg * 2)
                copy(d, rows + (a * width + (k * s->stride_w + b * s->dil_w) * p->cg) * 2,
                     run * p->cg);
        for (int64_t part = 0; part < p->parts; part++)
            memcpy(out + (part * p->rows * p->run + k) * 2 * LANES, own + part * 2 * LANES,
                   LANES * 4);
    }
}

static inline int16_t low_half(int32_t g) { return (int16_t)(uint16_t)(uint32_t)g; }
static inline int16_t high_half(int32_t g) { return (int16_t)((g - low_half(g)) >> 16); }

static void pairs16(const int16_t *restrict a, const int16_t *restrict b, int64_t n,
                    int16_t *restrict out) {
    for (int64_t i = 0; i < n; i++) out[2 * i] = a[i], out[2 * i + 1] = b[i];
}

static void pairs32(const int32_t *restrict a, const int32_t *restrict b, int64_t n,
                    int16_t *restrict out) {
    for (int64_t i = 0; i < n; i++) {
        out[4 * i] = low_half(a[i]), out[4 * i + 1] = low_half(b[i]);
        out[4 * i + 2] = high_half(a[i]), out[4 * i + 3] = high_half(b[i]);
    }
}

/* The gradients of the pairs of one row to [block][at + pair][MR][2]. zeros: p->og of 32 bits; own:
 * room for a pair of all blocks. */
static void pack_gradient(const Product *p, const Operands *o, int64_t line, int64_t from,
                          int64_t at, const void *zeros, int16_t *own, int16_t *out) {
    const Conv *s = &p->s;
    int64_t i, image = image_of(p, line, &i), size = o->width / 8;
    int64_t second = ((p->image2 * s->oh + p->row2) * s->ow + p->col2) * s->co * size;
    for (int64_t k = 0; k < SAMEBITS_MIN(p->pairs, p->wide - from); k++) {
        int64_t j = from + k, pixel = (image * s->oh + i) * s->ow + j;
        const void *a = (const char *)o->g + (pixel * s->co + p->o0) * size;
        const void *b = (const char *)a + second;
        if (image + p->image2 >= s->n || i + p->row2 >= s->oh || j + p->col2 >= s->ow) b = zeros;
        if (o->width == 16)
            pairs16(a, b, p->og, own);
        else
            pairs32(a, b, p->og, own);
        for (int64_t block = 0; block < p->blocks; block++)
            memcpy(out + block * p->block + (at + k) * MR * 2, own + block * MR * 2, MR * 4);
    }
}

/* Adds what a chunk has of a channel's gradient to n columns of it, or begins with that; tops:
 * the largest magnitudes of each of LANES columns. `halves` and where it can `n` are constants. */
#define ADD(name, type)                                                                        \
    SAMEBITS_INLINE void name(const int32_t (*half)[NR], int64_t halves, int64_t at,           \
                              int64_t n, int first, type *restrict out,                        \
                              int64_t *restrict tops) {                                        \
        for (int64_t j = 0; j < n; j++) {                                                      \
            int64_t v = (first ? 0 : out[j]) + (int64_t)half[0][at + j];                       \
            if (halves > 1) v += (int64_t)half[1][at + j] * 65536;                             \
            int64_t size = v < 0 ? -v : v;                                                     \
            out[j] = (type)v;                                                                  \
            tops[j] = SAMEBITS_MAX(size, tops[j]);                                             \
        }                                                                                      \
    }
ADD(add32, int32_t)
ADD(add64, int64_t)

/* The same for m channels of a tile. */
SAMEBITS_INLINE void add_part(const Product *p, const int32_t (*sums)[NR], int64_t halves,
                              int64_t m, int64_t at, int64_t n, int first, int wide, int64_t to,
                              void *dw, int64_t *tops) {
    int64_t columns = p->kh * p->kw * p->c;
    for (int64_t i = 0; i < m; i++, to += columns, sums += halves)
        if (!wide)
            add32(sums, halves, at, n, first, (int32_t *)dw + to, tops);
        else if (n == LANES)
            add64(sums, halves, at, LANES, first, (int64_t *)dw + to, tops);
        else
            add64(sums, halves, at, n, first, (int64_t *)dw + to, tops);
}

/* The rooms of one call. */
typedef struct {
    int16_t *gradients; /* [block][pair][MR][2] */
    int16_t *patches;   /* packed rows of x */
    int64_t *place;     /* [line][tap row]: its packed row */
    int64_t *from;      /* of a packed row, the line * taps + tap row that packs it */
} Rooms;

/* Finds the rows that lines [first, first + count) read, each once. Returns how many. */
static int64_t place_rows(const Product *p, const Rooms *r, int64_t first, int64_t count) {
    const Conv *s = &p->s;
    int64_t used = 0;
    for (int64_t line = 0; line < count; line++)
        for (int64_t a = 0; a < p->kh; a++) {
            int64_t above = SAMEBITS_MIN((first + line) % p->high, line), at = line * p->kh + a;
            r->place[at] = -1;
            for (int64_t up = 1; up <= above && r->place[at] < 0; up++) {
                int64_t rows = a * s->dil_h + up * s->stride_h, tap = rows / s->dil_h;
                if (tap >= p->kh) break;
                if (rows % s->dil_h == 0) r->place[at] = r->place[at - up * p->kh + tap - a];
            }
            if (r->place[at] < 0) r->from[used] = at, r->place[at] = used++;
        }
    return used;
}

/* One tile: the products of a block of gradients with two parts of the columns, over all lines. */
static int64_t tile(const Product *p, const Rooms *r, const Operands *o, int64_t block,
                    int64_t unit, int64_t lines, int64_t pairs, int first) {
    int64_t columns = p->kh * p->kw * p->c, run = p->run * 2 * LANES, row[2] = {0, 0};
    int64_t vecs = SAMEBITS_MIN(2, p->units - unit), largest = 0, tops[LANES] = {0};
    int64_t per = MR / p->halves, m = SAMEBITS_MIN(per, p->og - block * per), size = 4 << o->wide;
    int64_t to[2], n[2]; /* where the tile's first channel has each part of the columns */
    const int16_t *part[2] = {r->patches, r->patches};
    for (int64_t v = 0; v < vecs; v++) {
        int64_t tap = (unit + v) / p->parts, at = (unit + v) % p->parts, c = at * LANES;
        int64_t reach = tap % p->kw * p->s.dil_w;
        row[v] = tap / p->kw;
        part[v] += (at * p->phases + reach % p->stride) * p->rows * run;
        part[v] += reach / p->stride * 2 * LANES;
        to[v] = (p->o0 + block * per) * columns + tap * p->c + c;
        n[v] = SAMEBITS_MIN(LANES, p->c - c);
        for (int64_t i = 0; i < m; i++) /* what the sums will be added to comes meanwhile */
            for (int64_t byte = 0; byte < LANES * size; byte += 64)
                __builtin_prefetch((char *)o->dw + (to[v] + i * columns) * size + byte, 1);
    }
    const int16_t *a = r->gradients + block * p->block;
    int32_t sums[MR][NR];
    Acc acc;
    acc_clear(&acc);
    for (int64_t line = 0; line < lines; line++, a += p->pairs * MR * 2) {
        const int64_t *place = r->place + line * p->kh;
        const int16_t *b0 = part[0] + place[row[0]] * run, *b1 = part[1] + place[row[1]] * run;
        if (vecs > 1)
            acc_panel(&acc, a, b0, b1, pairs, 2);
        else
            acc_panel(&acc, a, b0, b0, pairs, 1);
    }
    acc_store(&acc, sums);
    for (int64_t v = 0; v < vecs; v++)
        if (p->halves == 2)
            add_part(p, sums, 2, m, v * LANES, n[v], first, o->wide, to[v], o->dw, tops);
        else
            add_part(p, sums, 1, m, v * LANES, n[v], first, o->wide, to[v], o->dw, tops);
    for (int64_t j = 0; j < LANES; j++) largest = SAMEBITS_MAX(largest, tops[j]);
    return largest;
}

/* dw (OHWI) = sum over pixels of g * x; g has 16 or 32 bits. dw is int64, or int32 when the caller
 * has bounded the sums (16-bit gradients only). Returns max |dw| or -1. */
int64_t samebits_conv_weight_grad(const Conv *s, const void *g, int width, const int8_t *x,
                                  void *dw, int wide, int threads) {
    threads = crew(s, threads);
#ifdef SAMEBITS_AMX
    if (samebits_amx_takes(s, SAMEBITS_AMX_PIXELS))
        return samebits_amx_weight_grad(s, g, width, x, dw, wide, threads);
#endif
    Product p = product_of(s, width);
    Operands o = {x, g, width, wide, dw};
    int64_t step = SAMEBITS_MAX(1, CACHED / (p.block * 2)), steps = (p.blocks + step - 1) / step;
    int64_t panels = (p.units + 1) / 2, zeros = round_up(SAMEBITS_MAX(p.c, p.og * 4), 64);
    int64_t room = p.blocks * MR * 4;
    if (p.whole)
        room = SAMEBITS_MAX(room, (p.c + 4 + LANES + s->kh * p.across * p.cg) * 4);
    int64_t largest = 0, used = 0;
    Rooms r = {.gradients = scratch(p.blocks * p.block * 2), .patches = scratch(p.codes * 2),
               .place = scratch(p.rows * 8), .from = scratch(p.rows * 8)};
    int failed = !r.gradients || !r.patches || !r.place || !r.from;
    if (failed) goto end;
    memset(r.patches, 0, (size_t)p.codes * 2);
#pragma omp parallel num_threads(threads) reduction(max : largest) reduction(| : failed)
    {
        char *none = scratch(zeros + room);
        int16_t *own = none ? (int16_t *)(none + zeros) : NULL;
        failed = !none;
        if (none) memset(none, 0, (size_t)(zeros + room));
        for (int64_t group = 0; group < s->groups; group++)
            for (int64_t first = 0; first < p.all; first += p.lines)
                for (int64_t from = 0; from < p.wide; from += p.pairs) {
                    int64_t lines = SAMEBITS_MIN(p.lines, p.all - first);
                    int64_t pairs = SAMEBITS_MIN(p.pairs, p.wide - from);
                    int begins = !first && !from;
                    int ends = first + lines == p.all && from + pairs == p.wide;
#pragma omp barrier
#pragma omp single
                    {
                        p.c0 = group * p.cg, p.o0 = group * p.og;
                        used = place_rows(&p, &r, first, lines);
                    }
#pragma omp for schedule(static) nowait
                    for (int64_t i = 0; i < used; i++)
                        if (none && p.whole)
                            pack_patches(&p, x, first + i, from, own,
                                         r.patches + i * p.run * 2 * LANES);
                        else if (none)
                            pack_row(&p, x, first + r.from[i] / p.kh, r.from[i] % p.kh, from,
                                     (int8_t *)none, r.patches + i * p.run * 2 * LANES);
#pragma omp for schedule(static)
                    for (int64_t i = 0; i < lines; i++)
                        if (none)
                            pack_gradient(&p, &o, first + i, from, i * p.pairs, none, own,
                                          r.gradients);
#pragma omp for schedule(dynamic, 1)
                    for (int64_t i = 0; i < steps * panels; i++) {
                        int64_t b = i / panels * step, end = SAMEBITS_MIN(b + step, p.blocks);
                        for (; none && b < end; b++) {
                            int64_t top = tile(&p, &r, &o, b, i % panels * 2, lines, pairs, begins);
                            if (ends) largest = SAMEBITS_MAX(largest, top);
                        }
                    }
                }
        free(none);
    }
end:
    free(r.gradients), free(r.patches), free(r.place), free(r.from);
    return failed ? -1 : largest;
}
