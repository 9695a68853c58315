/* --- interpolation -----------------------------------------------------------------------------
 *
 * Every output is a sum of a few rows times a few columns of the image, of the weights of its row
 * and of its column. Where the sums are proved to fit in 32 bits, so do they modulo 2**32. */

#include "samebits_vector.h"

static void samebits_resample32(const samebits_resample *c, const void *x, int32_t start,
                                const int32_t *rows, const int32_t *columns, int32_t n,
                                int32_t *acc) {
    const int32_t *w = (const int32_t *)c->row_weights + (rows - c->rows);
    const int32_t *v = (const int32_t *)c->column_weights + (columns - c->columns);
    int32_t term[SAMEBITS_CHUNK], p, q, i;
    for (i = 0; i < n; i++) acc[i] = 0;
    for (p = 0; p < c->row_taps; p++) {
        for (q = 0; q < c->column_taps; q++) {
            const uint32_t weight = (uint32_t)w[p] * (uint32_t)v[q];
            if (!weight) continue;
            samebits_load32(x, c->type, start + (rows[p] * c->width + columns[q]) * c->channels, 1,
                            n, term);
            for (i = 0; i < n; i++) {
                acc[i] = (int32_t)((uint32_t)acc[i] + weight * (uint32_t)(term[i] - c->zero));
            }
        }
    }
}

static void samebits_resample64(const samebits_resample *c, const void *x, int32_t start,
                                const int32_t *rows, const int32_t *columns, int32_t n,
                                int64_t *acc) {
    const samebits_i64 *w = (const samebits_i64 *)c->row_weights + (rows - c->rows);
    const samebits_i64 *v = (const samebits_i64 *)c->column_weights + (columns - c->columns);
    int64_t term[SAMEBITS_CHUNK];
    int32_t p, q, i;
    for (i = 0; i < n; i++) acc[i] = 0;
    for (p = 0; p < c->row_taps; p++) {
        for (q = 0; q < c->column_taps; q++) {
            const uint64_t weight = (uint64_t)w[p] * (uint64_t)v[q];
            if (!weight) continue;
            samebits_load64(x, c->type, start + (rows[p] * c->width + columns[q]) * c->channels, 1,
                            n, term);
            for (i = 0; i < n; i++) {
                acc[i] = (int64_t)((uint64_t)acc[i] + weight * (uint64_t)(term[i] - c->zero));
            }
        }
    }
}

/* The channels of the output pixel (row, column) of the image that begins at x[start]. */
static void samebits_resample_pixel(const samebits_resample *c, const void *x, int32_t start,
                                    int32_t row, int32_t column, void *out, int32_t to) {
    const int32_t *rows = c->rows + row * c->row_taps;
    const int32_t *columns = c->columns + column * c->column_taps;
    int32_t i, n;
    for (i = 0; i < c->channels; i += n) {
        const int32_t channel = c->rescale.channels > 1 ? i : 0;
        n = SAMEBITS_MIN(c->channels - i, SAMEBITS_CHUNK);
        if (c->wide) {
            int64_t acc[SAMEBITS_CHUNK];
            samebits_resample64(c, x, start + i, rows, columns, n, acc);
            samebits_finish64(&c->rescale, channel, n, acc, out, to + i);
        } else {
            int32_t acc[SAMEBITS_CHUNK];
            samebits_resample32(c, x, start + i, rows, columns, n, acc);
            samebits_finish32(&c->rescale, channel, n, acc, out, to + i);
        }
    }
}

void samebits_run_resample(const samebits_resample *c, const void *x, void *out) {
    int32_t sample, row, column, to = 0;
    for (sample = 0; sample < c->batch; sample++) {
        const int32_t start = sample * c->height * c->width * c->channels;
        for (row = 0; row < c->out_height; row++) {
            for (column = 0; column < c->out_width; column++, to += c->channels) {
                samebits_resample_pixel(c, x, start, row, column, out, to);
            }
        }
    }
}
