/* Exact integer convolution: forward, and the gradient of the input.
 *
 * Activations and gradients are NHWC, weights OHWI, all dense. Every function is a sum of integer
 * products without rounding (docs/spec/training.md, sections 5 and 7), so threads, tiles and
 * instruction sets cannot change a bit of it. Both are one product: every output pixel is a sum
 * over taps of (a row of the zero-padded image) x (weights), which the register tile of tile.h
 * computes for MR pixels and NR channels at a time.
 *
 * Bounds: a forward sum has at most 2**16 products of 8 bits (MAX_PRODUCTS of kernels/geometry.py),
 * so it stays below 2**30. For gradients of 16 bits the caller proves that 32 bits hold every sum
 * (samebits_reach in pointwise.c) or asks for `wide` ones: 64 bits, to which the tile is flushed
 * every FLUSH_PAIRS pairs.
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
    int64_t taps;
    int64_t *tap_offset;        /* padded-image element offset of each tap */
    int64_t *tap_weight;        /* index of the tap in the weights (kh * KW + kw) */
    int16_t *packed;            /* [panel][tap][pair][NR][2] */
} Grid;

/* Copies channels [c0, c0 + c) of one NHWC image, widened, into a zeroed padded image. */
static void pad_image(const void *src, int width, int64_t h, int64_t w, int64_t c_all, int64_t c0,
                      int64_t c, int64_t cp, int64_t top, int64_t left, int64_t wp, int16_t *dst) {
    for (int64_t i = 0; i < h; i++)
        for (int64_t j = 0; j < w; j++) {
            int16_t *d = dst + ((i + top) * wp + j + left) * cp;
            int64_t s = (i * w + j) * c_all + c0;
            if (width == 8) {
                const int8_t *p = (const int8_t *)src + s;
                for (int64_t k = 0; k < c; k++) d[k] = p[k];
            } else {
                memcpy(d, (const int16_t *)src + s, (size_t)c * 2);
            }
        }
}

/* Tiles of one grid, panels [p0, p1). `wide`: 64-bit sums, flushed before 32 bits can overflow. */
static int64_t run_grid(const Grid *g, const int16_t *image, int64_t pairs, int64_t columns,
                        int64_t p0, int64_t p1, int wide, void *out, int64_t ldo, int64_t col0) {
    int64_t largest = 0, pixels = g->rows * g->cols;
    int64_t panel_size = g->taps * pairs * 2 * NR;
    for (int64_t panel = p0; panel < p1; panel++) {
        const int16_t *b0 = g->packed + panel * panel_size;
        int64_t n = SAMEBITS_MIN(NR, columns - panel * NR);
        for (int64_t p = 0; p < pixels; p += MR) {
            const int16_t *base[MR], *rows[MR];
            int64_t where[MR], m = SAMEBITS_MIN(MR, pixels - p);
            for (int i = 0; i < MR; i++) {
                int64_t q = SAMEBITS_MIN(p + i, pixels - 1), r = q / g->cols, c = q % g->cols;
                base[i] = image + g->in_base + r * g->in_row + c * g->in_col;
                where[i] = g->out_base + r * g->out_row + c * g->out_col;
            }
            Acc acc;
            acc_clear(&acc);
            const int16_t *b = b0;
            if (!wide) {
                for (int64_t t = 0; t < g->taps; t++, b += pairs * 2 * NR) {
                    for (int i = 0; i < MR; i++) rows[i] = base[i] + g->tap_offset[t];
                    if (n > LANES)
                        acc_rows(&acc, rows, b, pairs, 2);
                    else
                        acc_rows(&acc, rows, b, pairs, 1);
                }
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
                for (int64_t t = 0; t < g->taps; t++)
                    for (int64_t k = 0; k < pairs;) {
                        int64_t take = SAMEBITS_MIN(pairs - k, FLUSH_PAIRS);
                        if (held + take > FLUSH_PAIRS) {
                            acc_flush(&acc, sum, 0);
                            acc_clear(&acc);
                            held = 0;
                        }
                        for (int i = 0; i < MR; i++) rows[i] = base[i] + g->tap_offset[t] + 2 * k;
                        if (n > LANES)
                            acc_rows(&acc, rows, b, take, 2);
                        else
                            acc_rows(&acc, rows, b, take, 1);
                        b += take * 2 * NR;
                        k += take;
                        held += take;
                    }
                acc_flush(&acc, sum, 0);
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
    int64_t cp = round_up(c, 2), panels = (columns + NR - 1) / NR, largest = 0;
    int64_t image = hp * wp * cp, step = wide ? 8 : 4;
    int64_t splits = n >= threads ? 1 : SAMEBITS_MIN(panels, (threads + n - 1) / n);
    int64_t tasks = n * splits;
    int failed = 0;
#pragma omp parallel num_threads(threads) reduction(max : largest) reduction(| : failed)
    {
        int16_t *padded = scratch(image * 2);
        if (!padded) {
            failed = 1;
        } else {
            memset(padded, 0, (size_t)image * 2);
            int64_t filled = -1;
#pragma omp for schedule(dynamic, 1)
            for (int64_t task = 0; task < tasks; task++) {
                int64_t i = task / splits, s = task % splits;
                if (filled != i)
                    pad_image((const char *)src + i * h * w * c_all * (width / 8), width, h, w,
                              c_all, c0, c, cp, top, left, wp, padded);
                filled = i;
                for (int g = 0; g < grid_count; g++) {
                    int64_t m = run_grid(&grids[g], padded, cp / 2, columns, panels * s / splits,
                                         panels * (s + 1) / splits, wide,
                                         (char *)out + i * out_pixels * ldo * step, ldo, col0);
                    largest = SAMEBITS_MAX(largest, m);
                }
            }
            free(padded);
        }
    }
    return failed ? -1 : largest;
}

/* Forward weights of one group: column j is output channel o0 + j, pairs run over ci. */
static void pack_forward(const Conv *s, const int8_t *w, int64_t o0, int64_t cg, int64_t og,
                         Grid *g, int threads) {
    int64_t pairs = (cg + 1) / 2, taps = s->kh * s->kw, panels = (og + NR - 1) / NR;
#pragma omp parallel for num_threads(threads)
    for (int64_t panel = 0; panel < panels; panel++) {
        int64_t n = SAMEBITS_MIN(NR, og - panel * NR);
        for (int64_t t = 0; t < taps; t++) {
            int16_t *d = g->packed + (panel * taps + t) * pairs * 2 * NR;
            const int8_t *src = w + ((o0 + panel * NR) * taps + t) * cg;
            for (int64_t j = 0; j < n; j++) {
                const int8_t *row = src + j * taps * cg;
                int16_t *column = d + 2 * j;
                for (int64_t k = 0; k < cg / 2; k++) {
                    column[k * 2 * NR] = row[2 * k];
                    column[k * 2 * NR + 1] = row[2 * k + 1];
                }
                if (cg & 1) {
                    column[(pairs - 1) * 2 * NR] = row[cg - 1];
                    column[(pairs - 1) * 2 * NR + 1] = 0;
                }
            }
        }
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
            int16_t *d = g->packed + (panel * g->taps + t) * pairs * 2 * NR;
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

static int alloc_grid(Grid *g, int64_t taps, int64_t pairs, int64_t columns) {
    int64_t bytes = (columns + NR - 1) / NR * taps * pairs * 2 * NR * 2;
    g->taps = taps;
    g->tap_offset = calloc((size_t)taps + 1, 8);
    g->tap_weight = calloc((size_t)taps + 1, 8);
    g->packed = scratch(bytes);
    if (!g->tap_offset || !g->tap_weight || !g->packed) return 0;
    memset(g->packed, 0, (size_t)bytes);
    return 1;
}

static void free_grid(Grid *g) {
    free(g->tap_offset);
    free(g->tap_weight);
    free(g->packed);
}

/* out (int32) = conv(x, w). Returns max |out|, or -1 when memory ran out. */
int64_t samebits_conv(const Conv *s, const int8_t *x, const int8_t *w, int32_t *out, int threads) {
    threads = crew(s, threads);
#ifdef SAMEBITS_AMX
    if (samebits_amx_takes(s, SAMEBITS_AMX_PIXELS)) return samebits_amx_conv(s, x, w, out, threads);
#endif
    int64_t cg = s->ci / s->groups, og = s->co / s->groups, cp = round_up(cg, 2), largest = 0;
    int64_t last_h = (s->oh - 1) * s->stride_h + (s->kh - 1) * s->dil_h;
    int64_t last_w = (s->ow - 1) * s->stride_w + (s->kw - 1) * s->dil_w;
    int64_t hp = SAMEBITS_MAX(s->h + s->pad_h, last_h + 1);
    int64_t wp = SAMEBITS_MAX(s->w + s->pad_w, last_w + 1);
    for (int64_t group = 0; group < s->groups; group++) {
        Grid g = {.rows = s->oh, .cols = s->ow, .out_row = s->ow, .out_col = 1,
                  .in_row = s->stride_h * wp * cp, .in_col = s->stride_w * cp};
        int64_t m = -1;
        if (alloc_grid(&g, s->kh * s->kw, cp / 2, og)) {
            for (int64_t t = 0; t < g.taps; t++)
                g.tap_offset[t] = (t / s->kw * s->dil_h * wp + t % s->kw * s->dil_w) * cp;
            pack_forward(s, w, group * og, cg, og, &g, threads);
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
                            .in_row = wp * cp, .in_col = cp};
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
