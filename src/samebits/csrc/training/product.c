/* The exact product of a few rows with a matrix of weights, for linear layers at small batches
 * (docs/spec/training.md, section 5). What takes the time is the weights' way through memory, so
 * each is read once and no packed copy of them is made, but for tiles of bytes (amx.c), which
 * pay where rows are not so few. At most 2**16 products of 8 bits a sum:
 * below 2**30. */
#include "amx.h"
#include "conv.h"
#include "tile.h"

/* out [n][m] = x [n][k] * w [m][k]^T. Weights are the rows of the tile and are read once, as they
 * lie; the few input rows are what is packed. Returns max |out| or -1. */
int64_t samebits_product(const int8_t *x, const int8_t *w, int64_t n, int64_t m, int64_t k,
                         int32_t *out, int threads) {
#ifdef SAMEBITS_AMX
    Conv s = {.n = 1, .h = 1, .w = n, .ci = k, .oh = 1, .ow = n, .co = m, .kh = 1, .kw = 1,
              .stride_h = 1, .stride_w = 1, .dil_h = 1, .dil_w = 1, .groups = 1};
    if (samebits_amx_takes(&s, SAMEBITS_AMX_PIXELS))
        return samebits_amx_conv(&s, x, w, out, crew(&s, threads));
#endif
    int64_t words = (k + CODES - 1) / CODES, panels = (n + NR - 1) / NR;
    int64_t blocks = (m + MR - 1) / MR, largest = 0;
    int32_t *packed = scratch(panels * words * NR * 4), *start = scratch(panels * NR * 4);
    int failed = 0;
    if (!packed || !start) {
        free(packed), free(start);
        return -1;
    }
    memset(packed, 0, (size_t)(panels * words * NR * 4));
    memset(start, 0, (size_t)(panels * NR * 4));
    for (int64_t r = 0; r < n; r++)
        start[r] = samebits_column(x + r * k, k, packed + r / NR * words * NR + r % NR);
#pragma omp parallel num_threads(threads) reduction(max : largest) reduction(| : failed)
    {
        char *own = scratch(MR * words * 4);
        failed = !own;
        if (own) memset(own, 0, (size_t)(MR * words * 4));
#pragma omp for schedule(static)
        for (int64_t block = 0; block < blocks; block++) {
            if (!own) continue;
            int64_t rows_here = SAMEBITS_MIN(MR, m - block * MR);
            const void *rows[MR];
            for (int64_t i = 0; i < MR; i++) {
                int64_t row = block * MR + SAMEBITS_MIN(i, rows_here - 1);
                samebits_row(w + row * k, k, own + i * words * 4);
                rows[i] = own + i * words * 4;
            }
            for (int64_t panel = 0; panel < panels; panel++) {
                int64_t cols = SAMEBITS_MIN(NR, n - panel * NR);
                const int32_t *b = packed + panel * words * NR;
                int32_t tile[MR][NR], top = 0;
                Acc acc;
                acc_begin(&acc, start + panel * NR);
                if (cols > LANES)
                    acc_rows(&acc, rows, b, words, 2, SAMEBITS_BYTES);
                else
                    acc_rows(&acc, rows, b, words, 1, SAMEBITS_BYTES);
                acc_store(&acc, tile);
                for (int64_t j = 0; j < cols; j++) {
                    int32_t *o = out + (panel * NR + j) * m + block * MR;
                    for (int64_t i = 0; i < rows_here; i++) {
                        int32_t v = tile[i][j], a = v < 0 ? -v : v;
                        o[i] = v;
                        top = a > top ? a : top;
                    }
                }
                largest = SAMEBITS_MAX(largest, top);
            }
        }
        free(own);
    }
    free(packed), free(start);
    return failed ? -1 : largest;
}
