/* Exact integer convolution: forward, and the gradient of the input.
 *
 * Activations and gradients are NHWC, weights OHWI, all dense. Every function is a sum of integer
 * products without rounding (docs/spec/training.md, sections 5 and 7), so threads, tiles and
 * instruction sets cannot change a bit of it. Both are one product: every output pixel is a sum
 * over taps of (a row of the zero-padded image) x (weights), which the register tile of tile.h
 * computes for MR pixels and NR channels at a time.
 *
 * Where there are products of bytes (tile.h), the forward pass takes x + LIFT, which has no sign,
 * and begins every sum with -LIFT times that of the weights.
 *
 * Bounds: a forward sum has at most 2**16 products of 8 bits (MAX_PRODUCTS of kernels/geometry.py),
 * so it stays below 2**30, and with bytes up to 255 in place of x below 2**31. For gradients of 16
 * bits the caller proves that 32 bits hold every sum (samebits_reach in pointwise.c) or asks for
 * `wide` ones: 64 bits, to which the tile is flushed every FLUSH_PAIRS pairs.
 *
 * The input gradient with a stride s: input row i gets output row (i + pad - a * dil) / s from tap
 * a where s divides it. Rows with the same (i + pad) % s meet the same taps, so each residue of
 * both axes is a convolution of stride 1 with a part of the taps; no zeros are multiplied. */
#include "amx.h"
#include "conv.h"
#include "tile.h"

/* One dense grid of output pixels, each a sum over taps of (row of the padded image) x (weights):
 * the whole forward pass is one grid; the input gradient has one per residue of the stride. */
typedef struct {
    int64_t rows, cols;         /* grid of output pixels */
    int64_t out_base, out_row, out_col;  /* output pixel index = base + i * row + j * col */
    int64_t in_base, in_row, in_col;     /* padded-image element offset, likewise */
    int64_t pixel, words;       /* codes of a padded pixel; words that a tap reads */
    int64_t taps;
    int64_t *tap_offset;        /* padded-image element offset of each tap */
    int64_t *tap_weight;        /* index of the tap in the weights (kh * KW + kw) */
    int bytes;                  /* codes of the image and the weights have 8 bits, not 16 */
    void *packed;               /* [panel][tap][word][NR] words of 2 or 4 codes */
    int32_t *start;             /* of every column, what its sums begin with */
} Grid;

/* Copies channels [c0, c0 + c) of one NHWC image, widened or lifted, into an image padded with
 * zeros. */
static void pad_image(const void *src, int width, int64_t h, int64_t w, int64_t c_all, int64_t c0,
                      int64_t c, int64_t cp, int64_t top, int64_t left, int64_t wp, void *dst) {
    if (c == c_all && c == cp) c *= w, c_all *= w, w = 1; /* a row is one run */
    for (int64_t i = 0; i < h; i++)
        for (int64_t j = 0; j < w; j++) {
            int64_t d = ((i + top) * wp + j + left) * cp, s = (i * w + j) * c_all + c0;
            if (width == 16)
                memcpy((int16_t *)dst + d, (const int16_t *)src + s, (size_t)c * 2);
            else
                samebits_row((const int8_t *)src + s, c, (char *)dst + d * SIZE);
        }
}

/* acc += the sums over all taps of MR rows of the image that begin at `base`. */
SAMEBITS_INLINE void all_taps(Acc *acc, const Grid *g, const char *const base[MR], const char *b,
                              int vecs, int bytes) {
    for (int64_t t = 0; t < g->taps; t++, b += g->words * 4 * NR) {
        const void *rows[MR];
        for (int i = 0; i < MR; i++) rows[i] = base[i] + g->tap_offset[t] * (bytes ? 1 : 2);
        acc_rows(acc, rows, b, g->words, vecs, bytes);
    }
}

/* Tiles of one grid, panels [p0, p1). `wide`: 64-bit sums, flushed before 32 bits can overflow. */
static int64_t run_grid(const Grid *g, const void *image, int64_t columns, int64_t p0, int64_t p1,
                        int wide, void *out, int64_t ldo, int64_t col0) {
    int64_t largest = 0, pixels = g->rows * g->cols, words = g->words, size = g->bytes ? 1 : 2;
    int64_t panel_size = g->taps * words * 4 * NR;
    for (int64_t panel = p0; panel < p1; panel++) {
        const char *b0 = (const char *)g->packed + panel * panel_size;
        int64_t n = SAMEBITS_MIN(NR, columns - panel * NR);
        for (int64_t p = 0; p < pixels; p += MR) {
            const char *base[MR], *b = b0;
            int64_t where[MR], m = SAMEBITS_MIN(MR, pixels - p);
            for (int i = 0; i < MR; i++) {
                int64_t q = SAMEBITS_MIN(p + i, pixels - 1), r = q / g->cols, c = q % g->cols;
                base[i] = (const char *)image + (g->in_base + r * g->in_row + c * g->in_col) * size;
                where[i] = g->out_base + r * g->out_row + c * g->out_col;
            }
            Acc acc;
            if (!wide) {
                acc_begin(&acc, g->start + panel * NR);
                if (SAMEBITS_BYTES && g->bytes && n > LANES)
                    all_taps(&acc, g, base, b, 2, 1);
                else if (SAMEBITS_BYTES && g->bytes)
                    all_taps(&acc, g, base, b, 1, 1);
                else if (n > LANES)
                    all_taps(&acc, g, base, b, 2, 0);
                else
                    all_taps(&acc, g, base, b, 1, 0);
                int32_t tile[MR][NR];
                acc_store(&acc, tile);
                for (int64_t i = 0; i < m; i++) {
                    int32_t *o = (int32_t *)out + where[i] * ldo + col0 + panel * NR;
                    int32_t top = 0;
                    for (int64_t j = 0; j < n; j++) {
                        int32_t v = tile[i][j], a = v < 0 ? -v : v;
                        o[j] = v;
                        top = a > top ? a : top;
                    }
                    largest = SAMEBITS_MAX(largest, top);
                }
            } else {
                int64_t sum[MR][NR], held = 0;
                memset(sum, 0, sizeof sum);
                acc_clear(&acc);
                for (int64_t t = 0; t < g->taps; t++)
                    for (int64_t k = 0; k < words;) {
                        int64_t take = SAMEBITS_MIN(words - k, FLUSH_PAIRS);
                        const void *rows[MR];
                        if (held + take > FLUSH_PAIRS) {
                            acc_flush(&acc, sum);
                            acc_clear(&acc);
                            held = 0;
                        }
                        for (int i = 0; i < MR; i++)
                            rows[i] = base[i] + g->tap_offset[t] * 2 + 4 * k;
                        if (n > LANES)
                            acc_rows(&acc, rows, b, take, 2, 0);
                        else
                            acc_rows(&acc, rows, b, take, 1, 0);
                        b += take * 4 * NR;
                        k += take;
                        held += take;
                    }
                acc_flush(&acc, sum);
                for (int64_t i = 0; i < m; i++) {
                    int64_t *o = (int64_t *)out + where[i] * ldo + col0 + panel * NR;
                    for (int64_t j = 0; j < n; j++) {
                        int64_t v = sum[i][j];
                        o[j] = v;
                        largest = SAMEBITS_MAX(largest, v < 0 ? -v : v);
                    }
                }
            }
        }
    }
    return largest;
}

/* Runs all grids over all images; `src` is [n][h][w][c_all], 8 or 16 bits. Returns max |out|. */
static int64_t gather_product(Grid *grids, int grid_count, const void *src, int width, int64_t n,
                              int64_t h, int64_t w, int64_t c_all, int64_t c0, int64_t c,
                              int64_t top, int64_t left, int64_t hp, int64_t wp, int64_t columns,
                              int wide, void *out, int64_t out_pixels, int64_t ldo, int64_t col0,
                              int threads) {
    if (!grid_count) return 0; /* no window reaches a pixel */
    int bytes = grids[0].bytes, zero = bytes ? LIFT : 0;
    int64_t cp = grids[0].pixel, panels = (columns + NR - 1) / NR, largest = 0;
    int64_t image = hp * wp * cp * (bytes ? 1 : 2), step = wide ? 8 : 4;
    int64_t splits = n >= threads ? 1 : SAMEBITS_MIN(panels, (threads + n - 1) / n);
    int64_t tasks = n * splits;
    int failed = 0;
#pragma omp parallel num_threads(threads) reduction(max : largest) reduction(| : failed)
    {
        void *padded = scratch(image);
        failed = !padded;
        if (padded) memset(padded, zero, (size_t)image);
        int64_t filled = -1;
#pragma omp for schedule(dynamic, 1)
        for (int64_t task = 0; task < tasks; task++) {
            int64_t i = task / splits, s = task % splits;
            if (!padded) continue;
            if (filled != i)
                pad_image((const char *)src + i * h * w * c_all * (width / 8), width, h, w, c_all,
                          c0, c, cp, top, left, wp, padded);
            filled = i;
            for (int g = 0; g < grid_count; g++) {
                int64_t m = run_grid(&grids[g], padded, columns, panels * s / splits,
                                     panels * (s + 1) / splits, wide,
                                     (char *)out + i * out_pixels * ldo * step, ldo, col0);
                largest = SAMEBITS_MAX(largest, m);
            }
        }
        free(padded);
    }
    return failed ? -1 : largest;
}

/* Forward weights of one group: column j is output channel o0 + j, words run over the n codes of
 * a tap. */
static void pack_forward(const Conv *s, const int8_t *w, int64_t o0, int64_t n, int64_t og,
                         Grid *g, int threads) {
    int64_t row = s->kh * s->kw * (s->ci / s->groups);
#pragma omp parallel for num_threads(threads)
    for (int64_t j = 0; j < og; j++) {
        int32_t *column = (int32_t *)g->packed + j / NR * g->taps * g->words * NR + j % NR;
        for (int64_t t = 0; t < g->taps; t++)
            g->start[j] += samebits_column(w + (o0 + j) * row + t * n, n,
                                           column + t * g->words * NR);
    }
}

/* Input-gradient weights of one group: column j is input channel j, pairs run over co. */
static void pack_transposed(const Conv *s, const int8_t *w, int64_t o0, int64_t cg, int64_t og,
                            Grid *g, int threads) {
    int64_t pairs = (og + 1) / 2, all = s->kh * s->kw, panels = (cg + NR - 1) / NR;
#pragma omp parallel for num_threads(threads)
    for (int64_t panel = 0; panel < panels; panel++) {
        int64_t n = SAMEBITS_MIN(NR, cg - panel * NR);
        for (int64_t t = 0; t < g->taps; t++) {
            int16_t *d = (int16_t *)g->packed + (panel * g->taps + t) * pairs * 2 * NR;
            for (int64_t k = 0; k < pairs; k++, d += 2 * NR) {
                const int8_t *a = w + ((o0 + 2 * k) * all + g->tap_weight[t]) * cg + panel * NR;
                const int8_t *b = a + all * cg;
                if (2 * k + 1 < og)
                    for (int64_t j = 0; j < n; j++) d[2 * j] = a[j], d[2 * j + 1] = b[j];
                else
                    for (int64_t j = 0; j < n; j++) d[2 * j] = a[j], d[2 * j + 1] = 0;
            }
        }
    }
}

static int alloc_grid(Grid *g, int64_t taps, int64_t words, int64_t columns) {
    int64_t panels = (columns + NR - 1) / NR, bytes = panels * taps * words * 4 * NR;
    g->taps = taps, g->words = words;
    g->tap_offset = calloc((size_t)taps + 1, 8);
    g->tap_weight = calloc((size_t)taps + 1, 8);
    g->packed = scratch(bytes);
    g->start = calloc((size_t)(panels * NR), 4);
    if (!g->tap_offset || !g->tap_weight || !g->packed || !g->start) return 0;
    memset(g->packed, 0, (size_t)bytes);
    return 1;
}

static void free_grid(Grid *g) {
    free(g->tap_offset);
    free(g->tap_weight);
    free(g->packed);
    free(g->start);
}

/* out (int32) = conv(x, w). Returns max |out|, or -1 when memory ran out. */
int64_t samebits_conv(const Conv *s, const int8_t *x, const int8_t *w, int32_t *out, int threads) {
    threads = crew(s, threads);
#ifdef SAMEBITS_AMX
    if (samebits_amx_takes(s, SAMEBITS_AMX_PIXELS)) return samebits_amx_conv(s, x, w, out, threads);
#endif
    int64_t cg = s->ci / s->groups, og = s->co / s->groups, largest = 0;
    int64_t last_h = (s->oh - 1) * s->stride_h + (s->kh - 1) * s->dil_h;
    int64_t last_w = (s->ow - 1) * s->stride_w + (s->kw - 1) * s->dil_w;
    int64_t hp = SAMEBITS_MAX(s->h + s->pad_h, last_h + 1);
    int64_t wp = SAMEBITS_MAX(s->w + s->pad_w, last_w + 1);
    int64_t run = s->dil_w == 1 ? s->kw : 1; /* taps of a row that lie side by side are one */
    for (int64_t group = 0; group < s->groups; group++) {
        Grid g = {.rows = s->oh, .cols = s->ow, .out_row = s->ow, .out_col = 1,
                  .in_row = s->stride_h * wp * cg, .in_col = s->stride_w * cg,
                  .pixel = cg, .bytes = SAMEBITS_BYTES};
        int64_t m = -1, n = run * cg;
        if (alloc_grid(&g, s->kh * s->kw / run, (n + CODES - 1) / CODES, og)) {
            for (int64_t t = 0; t < g.taps; t++) {
                int64_t a = t * run / s->kw, b = t * run % s->kw;
                g.tap_offset[t] = (a * s->dil_h * wp + b * s->dil_w) * cg;
            }
            pack_forward(s, w, group * og, n, og, &g, threads);
            m = gather_product(&g, 1, x, 8, s->n, s->h, s->w, s->ci, group * cg, cg, s->pad_h,
                               s->pad_w, hp, wp, og, 0, out, s->oh * s->ow, s->co, group * og,
                               threads);
        }
        free_grid(&g);
        if (m < 0) return -1;
        largest = SAMEBITS_MAX(largest, m);
    }
    return largest;
}

/* dx = transposed conv(g, w); int64 when `wide`, else int32 (the caller has bounded the sums).
 * With a stride dx must be zeroed by the caller (pixels no window reaches). Returns max |dx|, or -1
 * when memory ran out. */
int64_t samebits_conv_input_grad(const Conv *s, const int16_t *g16, const int8_t *w, void *dx,
                                 int wide, int threads) {
    threads = crew(s, threads);
#ifdef SAMEBITS_AMX
    if (samebits_amx_takes(s, 1)) return samebits_amx_input_grad(s, g16, w, dx, wide, threads);
#endif
    int64_t cg = s->ci / s->groups, og = s->co / s->groups, cp = round_up(og, 2), largest = 0;
    /* Input row stride * t + r - pad gets output row t - u from tap a: a * dil = stride * u + r. */
    int64_t up = (s->kh - 1) * s->dil_h / s->stride_h, left = (s->kw - 1) * s->dil_w / s->stride_w;
    int64_t hp = up + SAMEBITS_MAX(s->oh, (s->h - 1 + s->pad_h) / s->stride_h + 1);
    int64_t wp = left + SAMEBITS_MAX(s->ow, (s->w - 1 + s->pad_w) / s->stride_w + 1);
    int64_t classes = s->stride_h * s->stride_w;
    Grid *grids = calloc((size_t)classes, sizeof *grids);
    if (!grids) return -1;
    for (int64_t group = 0; group < s->groups && largest >= 0; group++) {
        int used = 0, ok = 1;
        for (int64_t rh = 0; rh < s->stride_h && ok; rh++)
            for (int64_t rw = 0; rw < s->stride_w && ok; rw++) {
                int64_t taps = 0;
                for (int64_t a = 0; a < s->kh; a++)
                    for (int64_t b = 0; b < s->kw; b++)
                        taps += a * s->dil_h % s->stride_h == rh &&
                                b * s->dil_w % s->stride_w == rw;
                /* t runs over 0 <= stride * t + r - pad < h */
                int64_t t0 = SAMEBITS_MAX(0, (s->pad_h - rh + s->stride_h - 1) / s->stride_h);
                int64_t l0 = SAMEBITS_MAX(0, (s->pad_w - rw + s->stride_w - 1) / s->stride_w);
                int64_t i0 = s->stride_h * t0 + rh - s->pad_h;
                int64_t j0 = s->stride_w * l0 + rw - s->pad_w;
                if (!taps || i0 >= s->h || j0 >= s->w) continue;
                Grid *g = &grids[used];
                *g = (Grid){.rows = (s->h - 1 - i0) / s->stride_h + 1,
                            .cols = (s->w - 1 - j0) / s->stride_w + 1,
                            .out_base = i0 * s->w + j0, .out_row = s->stride_h * s->w,
                            .out_col = s->stride_w, .in_base = ((t0 + up) * wp + l0 + left) * cp,
                            .in_row = wp * cp, .in_col = cp, .pixel = cp};
                used++;
                ok = alloc_grid(g, taps, cp / 2, cg);
                if (!ok) break;
                int64_t t = 0;
                for (int64_t a = 0; a < s->kh; a++)
                    for (int64_t b = 0; b < s->kw; b++) {
                        if (a * s->dil_h % s->stride_h != rh || b * s->dil_w % s->stride_w != rw)
                            continue;
                        g->tap_offset[t] = -(a * s->dil_h / s->stride_h * wp +
                                             b * s->dil_w / s->stride_w) * cp;
                        g->tap_weight[t++] = a * s->kw + b;
                    }
                pack_transposed(s, w, group * og, cg, og, g, threads);
            }
        int64_t m = -1;
        if (ok)
            m = gather_product(grids, used, g16, 16, s->n, s->oh, s->ow, s->co, group * og, og, up,
                               left, hp, wp, cg, wide, dx, s->h * s->w, s->ci, group * cg, threads);
        for (int i = 0; i < used; i++) free_grid(&grids[i]);
        largest = m < 0 ? -1 : SAMEBITS_MAX(largest, m);
    }
    free(grids);
    return largest;
}
