/* The gradient of the weights of an exact integer convolution: dw = sum over output pixels of
 * g * patch of x, a matrix product whose inner dimension is the pixels of the whole batch
 * (docs/spec/training.md, section 7; the tile is that of tile.h).
 *
 * Chunks of pixels are packed (gradients once, patches per panel of columns) so that both operands
 * stay in the cache. A gradient of 32 bits is g = high * 2**16 + low with both halves in int16: two
 * products of 16-bit operands, the first shifted by 16 when it is flushed to 64 bits.
 *
 * Bounds: FLUSH_PAIRS pairs of int16 * int8 fit in 32 bits (tile.h); at most 2**24 products of 32
 * by 8 bits, below 2**62, are summed in 64 (MAX_SUMMED of kernels/geometry.py). Where `wide` is 0
 * the caller has bounded the sums of 16-bit gradients by 2**31. */
#include "amx.h"
#include "conv.h"
#include "tile.h"

static inline int16_t low_half(int32_t g) { return (int16_t)(uint16_t)(uint32_t)g; }
static inline int16_t high_half(int32_t g) { return (int16_t)((g - low_half(g)) >> 16); }

/* Packs gradient pixels [p0, p0 + count) as [block of MR channels][pair][MR][2]. */
static void pack_gradient(const void *g, int width, int high, int64_t co, int64_t c0, int64_t og,
                          int64_t p0, int64_t count, int64_t block, int64_t pairs, int16_t *dst) {
    int64_t m = SAMEBITS_MIN(MR, og - block * MR), first = c0 + block * MR;
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
static void pack_input(const Conv *s, const int8_t *x, int64_t c0, int64_t cg, int64_t k0,
                       int64_t n, int64_t p0, int64_t count, int16_t *dst) {
    static const int8_t zeros[NR];
    int64_t pixels = s->oh * s->ow;
    if (n < NR) memset(dst, 0, (size_t)((count + 1) / 2 * 2 * NR) * sizeof *dst);
    for (int64_t p = 0; p < count; p += 2, dst += 2 * NR) {
        int64_t image[2], row[2], col[2];
        for (int64_t h = 0; h < 2; h++) {
            int64_t q = p0 + SAMEBITS_MIN(p + h, count - 1), r = q % pixels;
            image[h] = q / pixels;
            row[h] = r / s->ow * s->stride_h - s->pad_h;
            col[h] = r % s->ow * s->stride_w - s->pad_w;
        }
        for (int64_t k = k0; k < k0 + n;) {
            int64_t t = k / cg, c = k % cg, take = SAMEBITS_MIN(cg - c, k0 + n - k);
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
#ifdef SAMEBITS_AMX
    if (samebits_amx_takes(s, SAMEBITS_AMX_PIXELS))
        return samebits_amx_weight_grad(s, g, width, x, dw, wide, threads);
#endif
    int64_t cg = s->ci / s->groups, og = s->co / s->groups, columns = s->kh * s->kw * cg;
    int64_t total = s->n * s->oh * s->ow, blocks = (og + MR - 1) / MR;
    int64_t panels = (columns + NR - 1) / NR;
    int halves = width == 32 ? 2 : 1, failed = 0;
    /* A chunk of pixels whose packed gradient stays near 1 MiB. */
    int64_t chunk = SAMEBITS_MAX(512, ((int64_t)1 << 19) / (blocks * MR * halves) / 512 * 512);
    chunk = SAMEBITS_MIN(chunk, round_up(total, 2));
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
                int64_t count = SAMEBITS_MIN(chunk, total - p0), pairs = (count + 1) / 2;
                int last = p0 + count == total;
#pragma omp for schedule(static)
                for (int64_t i = 0; i < blocks * halves; i++)
                    pack_gradient(g, width, i >= blocks, s->co, group * og, og, p0, count,
                                  i % blocks, pairs, packed + i / blocks * size);
#pragma omp for schedule(dynamic, 1)
                for (int64_t panel = 0; panel < panels; panel++) {
                    int64_t n = SAMEBITS_MIN(NR, columns - panel * NR);
                    if (!b) continue;
                    pack_input(s, x, group * cg, cg, panel * NR, n, p0, count, b);
                    for (int64_t block = 0; block < blocks; block++) {
                        int64_t m = SAMEBITS_MIN(MR, og - block * MR);
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
                                if (last) largest = SAMEBITS_MAX(largest, top);
                            }
                            continue;
                        }
                        int64_t sum[MR][NR];
                        memset(sum, 0, sizeof sum);
                        for (int half = 0; half < halves; half++) {
                            const int16_t *a = packed + half * size + block * pairs * 2 * MR;
                            for (int64_t k = 0; k < pairs; k += FLUSH_PAIRS) {
                                acc_clear(&acc);
                                int64_t take = SAMEBITS_MIN(FLUSH_PAIRS, pairs - k);
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
                            if (last) largest = SAMEBITS_MAX(largest, top);
                        }
                    }
                }
            }
        free(b);
    }
    free(packed);
    return failed ? -1 : largest;
}
