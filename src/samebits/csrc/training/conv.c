/* Exact integer convolution, forward and both gradients; a matrix product is the 1x1 case.
 *
 * Activations and gradients are NHWC, weights OHWI, all dense. Every function is a sum of integer
 * products without rounding (docs/spec/training.md, sections 5 and 7), so threads, tiles and
 * instruction sets cannot change a bit of it.
 */
#include "conv.h"
#include "tile.h"

/* --- gather product: forward and input gradient ------------------------------------------- */

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
        int64_t n = min64(NR, columns - panel * NR);
        for (int64_t p = 0; p < pixels; p += MR) {
            const int16_t *base[MR], *rows[MR];
            int64_t where[MR], m = min64(MR, pixels - p);
            for (int i = 0; i < MR; i++) {
                int64_t q = min64(p + i, pixels - 1), r = q / g->cols, c = q % g->cols;
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
                    largest = max64(largest, top);
                }
            } else {
                int64_t sum[MR][NR], held = 0;
                memset(sum, 0, sizeof sum);
                for (int64_t t = 0; t < g->taps; t++)
                    for (int64_t k = 0; k < pairs;) {
                        int64_t take = min64(pairs - k, FLUSH_PAIRS);
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
                        largest = max64(largest, v < 0 ? -v : v);
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
    int64_t splits = n >= threads ? 1 : min64(panels, (threads + n - 1) / n);
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
                    largest = max64(largest, m);
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
        int64_t n = min64(NR, og - panel * NR);
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
        int64_t n = min64(NR, cg - panel * NR);
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

/* out [n][m] = x [n][k] * w [m][k]^T. Weights are the rows of the tile and are read once, as they
 * lie; the few input rows are what is packed. Returns max |out| or -1. */
int64_t samebits_product(const int8_t *x, const int8_t *w, int64_t n, int64_t m, int64_t k,
                         int32_t *out, int threads) {
    int64_t pairs = (k + 1) / 2, panels = (n + NR - 1) / NR, blocks = (m + MR - 1) / MR;
    int64_t largest = 0;
    int16_t *packed = scratch(panels * pairs * 2 * NR * 2);
    int failed = 0;
    if (!packed) return -1;
    memset(packed, 0, (size_t)(panels * pairs * 2 * NR) * 2);
    for (int64_t r = 0; r < n; r++) {
        int16_t *column = packed + r / NR * pairs * 2 * NR + r % NR * 2;
        for (int64_t i = 0; i < k; i++) column[i / 2 * 2 * NR + i % 2] = x[r * k + i];
    }
#pragma omp parallel num_threads(threads) reduction(max : largest) reduction(| : failed)
    {
        int16_t *wide = scratch(MR * pairs * 2 * 2);
        if (!wide) failed = 1;
#pragma omp for schedule(static)
        for (int64_t block = 0; block < blocks; block++) {
            if (!wide) continue;
            int64_t rows_here = min64(MR, m - block * MR);
            const int16_t *rows[MR];
            for (int64_t i = 0; i < MR; i++) {
                int16_t *row = wide + min64(i, rows_here - 1) * pairs * 2;
                const int8_t *src = w + (block * MR + min64(i, rows_here - 1)) * k;
                for (int64_t j = 0; j < k; j++) row[j] = src[j];
                if (k & 1) row[k] = 0;
                rows[i] = row;
            }
            for (int64_t panel = 0; panel < panels; panel++) {
                int64_t cols = min64(NR, n - panel * NR);
                const int16_t *b = packed + panel * pairs * 2 * NR;
                int32_t tile[MR][NR], top = 0;
                Acc acc;
                acc_clear(&acc);
                if (cols > LANES)
                    acc_rows(&acc, rows, b, pairs, 2);
                else
                    acc_rows(&acc, rows, b, pairs, 1);
                acc_store(&acc, tile);
                for (int64_t j = 0; j < cols; j++) {
                    int32_t *o = out + (panel * NR + j) * m + block * MR;
                    for (int64_t i = 0; i < rows_here; i++) {
                        int32_t v = tile[i][j], a = v < 0 ? -v : v;
                        o[i] = v;
                        top = a > top ? a : top;
                    }
                }
                largest = max64(largest, top);
            }
        }
        free(wide);
    }
    free(packed);
    return failed ? -1 : largest;
}

/* out (int32) = conv(x, w). Returns max |out|, or -1 when memory ran out. */
int64_t samebits_conv(const Conv *s, const int8_t *x, const int8_t *w, int32_t *out, int threads) {
    threads = crew(s, threads);
    int64_t cg = s->ci / s->groups, og = s->co / s->groups, cp = round_up(cg, 2), largest = 0;
    int64_t hp = max64(s->h + s->pad_h, (s->oh - 1) * s->stride_h + (s->kh - 1) * s->dil_h + 1);
    int64_t wp = max64(s->w + s->pad_w, (s->ow - 1) * s->stride_w + (s->kw - 1) * s->dil_w + 1);
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
        largest = max64(largest, m);
    }
    return largest;
}

/* dx = transposed conv(g, w); int64 when `wide`, else int32 (the caller has bounded the sums).
 * With a stride dx must be zeroed by the caller (pixels no window reaches). Returns max |dx| or -1. */
int64_t samebits_conv_input_grad(const Conv *s, const int16_t *g16, const int8_t *w, void *dx,
                                 int wide, int threads) {
    threads = crew(s, threads);
    int64_t cg = s->ci / s->groups, og = s->co / s->groups, cp = round_up(og, 2), largest = 0;
    /* Input row ih = stride * t + r - pad gets output rows t - u from taps kh*dil = stride*u + r. */
    int64_t up = (s->kh - 1) * s->dil_h / s->stride_h, left = (s->kw - 1) * s->dil_w / s->stride_w;
    int64_t hp = up + max64(s->oh, (s->h - 1 + s->pad_h) / s->stride_h + 1);
    int64_t wp = left + max64(s->ow, (s->w - 1 + s->pad_w) / s->stride_w + 1);
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
                        taps += a * s->dil_h % s->stride_h == rh && b * s->dil_w % s->stride_w == rw;
                /* t runs over 0 <= stride * t + r - pad < h */
                int64_t t0 = max64(0, (s->pad_h - rh + s->stride_h - 1) / s->stride_h);
                int64_t l0 = max64(0, (s->pad_w - rw + s->stride_w - 1) / s->stride_w);
                int64_t i0 = s->stride_h * t0 + rh - s->pad_h, j0 = s->stride_w * l0 + rw - s->pad_w;
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
        largest = m < 0 ? -1 : max64(largest, m);
    }
    free(grids);
    return largest;
}

/* --- weight gradient ------------------------------------------------------------------------ */

static inline int16_t low_half(int32_t g) { return (int16_t)(uint16_t)(uint32_t)g; }
static inline int16_t high_half(int32_t g) { return (int16_t)((g - low_half(g)) >> 16); }

/* Packs gradient pixels [p0, p0 + count) as [block of MR channels][pair][MR][2]. */
static void pack_gradient(const void *g, int width, int high, int64_t co, int64_t c0, int64_t og,
                          int64_t p0, int64_t count, int64_t block, int64_t pairs, int16_t *dst) {
    int64_t m = min64(MR, og - block * MR), first = c0 + block * MR;
    int16_t *d = dst + block * pairs * 2 * MR;
    memset(d, 0, (size_t)(pairs * 2 * MR) * 2);
    for (int64_t p = 0; p < count; p++) {
        int16_t *row = d + p / 2 * 2 * MR + p % 2;
        if (width == 16) {
            const int16_t *src = (const int16_t *)g + (p0 + p) * co + first;
            for (int64_t i = 0; i < m; i++) row[2 * i] = src[i];
        } else {
            const int32_t *src = (const int32_t *)g + (p0 + p) * co + first;
            if (high)
                for (int64_t i = 0; i < m; i++) row[2 * i] = high_half(src[i]);
            else
                for (int64_t i = 0; i < m; i++) row[2 * i] = low_half(src[i]);
        }
    }
}

/* Packs columns [k0, k0 + n) of the patches that outputs [p0, p0 + count) read; a column is a (tap,
 * input channel) pair in OHWI order, so that a panel of few channels spans several taps. */
static void pack_input(const Conv *s, const int8_t *x, int64_t c0, int64_t cg, int64_t k0, int64_t n,
                       int64_t p0, int64_t count, int16_t *dst) {
    static const int8_t zeros[NR];
    int64_t pixels = s->oh * s->ow;
    if (n < NR) memset(dst, 0, (size_t)((count + 1) / 2 * 2 * NR) * sizeof *dst);
    for (int64_t p = 0; p < count; p += 2, dst += 2 * NR) {
        int64_t image[2], row[2], col[2];
        for (int64_t h = 0; h < 2; h++) {
            int64_t q = p0 + min64(p + h, count - 1), r = q % pixels;
            image[h] = q / pixels;
            row[h] = r / s->ow * s->stride_h - s->pad_h;
            col[h] = r % s->ow * s->stride_w - s->pad_w;
        }
        for (int64_t k = k0; k < k0 + n;) {
            int64_t t = k / cg, c = k % cg, take = min64(cg - c, k0 + n - k);
            const int8_t *src[2] = {zeros, zeros};
            for (int64_t h = 0; h < 2 && p + h < count; h++) {
                int64_t i = row[h] + t / s->kw * s->dil_h, j = col[h] + t % s->kw * s->dil_w;
                if (i >= 0 && i < s->h && j >= 0 && j < s->w)
                    src[h] = x + ((image[h] * s->h + i) * s->w + j) * s->ci + c0 + c;
            }
            int16_t *d = dst + 2 * (k - k0);
            k += take;
            for (; take >= 16; take -= 16, d += 32, src[0] += 16, src[1] += 16)
                for (int64_t j = 0; j < 16; j++) d[2 * j] = src[0][j], d[2 * j + 1] = src[1][j];
            for (int64_t j = 0; j < take; j++) d[2 * j] = src[0][j], d[2 * j + 1] = src[1][j];
        }
    }
}

/* dw (OHWI) = sum over pixels of g * x; g has 16 or 32 bits. dw is int64, or int32 when the caller
 * has bounded the sums (16-bit gradients only). Returns max |dw| or -1. */
int64_t samebits_conv_weight_grad(const Conv *s, const void *g, int width, const int8_t *x,
                                  void *dw, int wide, int threads) {
    threads = crew(s, threads);
    int64_t cg = s->ci / s->groups, og = s->co / s->groups, columns = s->kh * s->kw * cg;
    int64_t total = s->n * s->oh * s->ow, blocks = (og + MR - 1) / MR;
    int64_t panels = (columns + NR - 1) / NR;
    int halves = width == 32 ? 2 : 1, failed = 0;
    /* A chunk of pixels whose packed gradient stays near 1 MiB. */
    int64_t chunk = max64(512, ((int64_t)1 << 19) / (blocks * MR * halves) / 512 * 512);
    chunk = min64(chunk, round_up(total, 2));
    int64_t size = blocks * chunk * MR;
    int16_t *packed = scratch(size * halves * 2);
    if (!packed) return -1;
    int64_t largest = 0;
#pragma omp parallel num_threads(threads) reduction(max : largest) reduction(| : failed)
    {
        int16_t *b = scratch(chunk * NR * 2);
        if (!b) failed = 1;
        for (int64_t group = 0; group < s->groups; group++)
            for (int64_t p0 = 0; p0 < total; p0 += chunk) {
                int64_t count = min64(chunk, total - p0), pairs = (count + 1) / 2;
                int last = p0 + count == total;
#pragma omp for schedule(static)
                for (int64_t i = 0; i < blocks * halves; i++)
                    pack_gradient(g, width, i >= blocks, s->co, group * og, og, p0, count,
                                  i % blocks, pairs, packed + i / blocks * size);
#pragma omp for schedule(dynamic, 1)
                for (int64_t panel = 0; panel < panels; panel++) {
                    int64_t n = min64(NR, columns - panel * NR);
                    if (!b) continue;
                    pack_input(s, x, group * cg, cg, panel * NR, n, p0, count, b);
                    for (int64_t block = 0; block < blocks; block++) {
                        int64_t m = min64(MR, og - block * MR);
                        int64_t at = (group * og + block * MR) * columns + panel * NR;
                        Acc acc;
                        if (!wide) {
                            int32_t tile[MR][NR];
                            acc_clear(&acc);
                            acc_panel(&acc, packed + block * pairs * 2 * MR, b, pairs, 2);
                            acc_store(&acc, tile);
                            for (int64_t i = 0; i < m; i++) {
                                int32_t *o = (int32_t *)dw + at + i * columns, top = 0;
                                if (p0)
                                    for (int64_t j = 0; j < n; j++) tile[i][j] += o[j];
                                for (int64_t j = 0; j < n; j++) {
                                    int32_t v = tile[i][j], a = v < 0 ? -v : v;
                                    o[j] = v;
                                    top = a > top ? a : top;
                                }
                                if (last) largest = max64(largest, top);
                            }
                            continue;
                        }
                        int64_t sum[MR][NR];
                        memset(sum, 0, sizeof sum);
                        for (int half = 0; half < halves; half++) {
                            const int16_t *a = packed + half * size + block * pairs * 2 * MR;
                            for (int64_t k = 0; k < pairs; k += FLUSH_PAIRS) {
                                acc_clear(&acc);
                                int64_t take = min64(FLUSH_PAIRS, pairs - k);
                                if (n > LANES)
                                    acc_panel(&acc, a + k * 2 * MR, b + k * 2 * NR, take, 2);
                                else
                                    acc_panel(&acc, a + k * 2 * MR, b + k * 2 * NR, take, 1);
                                acc_flush(&acc, sum, 16 * half);
                            }
                        }
                        for (int64_t i = 0; i < m; i++) {
                            int64_t *o = (int64_t *)dw + at + i * columns, top = 0;
                            if (p0)
                                for (int64_t j = 0; j < n; j++) sum[i][j] += o[j];
                            for (int64_t j = 0; j < n; j++) {
                                int64_t v = sum[i][j], a = v < 0 ? -v : v;
                                o[j] = v;
                                top = a > top ? a : top;
                            }
                            if (last) largest = max64(largest, top);
                        }
                    }
                }
            }
        free(b);
    }
    free(packed);
    return failed ? -1 : largest;
}
