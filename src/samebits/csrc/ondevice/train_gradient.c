/* Gradients channel by channel, stored or not. */
#include "samebits_bytes.h"
#include "train_scalars.h"

/* Windows do not overlap, so that each code goes to one place, and `shorten` leaves it as it is. */
static void behind_pool(const samebits_gradient *g, int32_t k, int32_t *out) {
    const samebits_pool *s = g->pool;
    int32_t n, i, j, at = k;
    memset(out, 0, (size_t)(s->n * s->h * s->w) * sizeof *out);
    for (n = 0; n < s->n; n++, out += s->h * s->w)
        for (i = 0; i < s->oh; i++)
            for (j = 0; j < s->ow; j++, at += s->c) {
                const int32_t t = g->where[at];
                if (t >= SAMEBITS_TRAIN_STOPPED) continue;
                out[(i * s->kh + t / s->kw) * s->w + j * s->kw + t % s->kw] = gradient_at(g, at);
            }
}

static void stored(const samebits_gradient *g, int32_t rows, int32_t c, int32_t k, int32_t *out) {
    const int16_t *words = (const int16_t *)g->codes + k;
    const int32_t *longs = (const int32_t *)g->codes + k, *end = out + rows;
    if (g->width == 16)
        for (; out < end; words += c) *out++ = *words;
    else
        for (; out < end; longs += c) *out++ = *longs;
}

/* Codes a * g + slope * z + offset in the place of g. */
static void behind_norm(const samebits_gradient *g, int32_t rows, int32_t c, int32_t k,
                        int32_t *out) {
    const int32_t a = (int32_t)g->lines[k], shift = (int32_t)g->lines[3 * c];
    const int64_t slope = g->lines[c + k], offset = g->lines[2 * c + k];
    const int32_t *end = out + rows;
    const int8_t *z = g->z + k;
    if (shift > 0 && shift < 32) { /* `into32`, whose constants stay in registers */
        const uint32_t below = ((uint32_t)1 << (shift - 1)) - 1u;
        for (; out < end; out++, z += c) {
            const uint64_t v = (uint64_t)((int64_t)a * *out + slope * *z + offset);
            const uint64_t t = v + (below + ((uint32_t)v >> shift & 1u));
            *out = samebits_signed32((uint32_t)t >> shift | (uint32_t)(t >> 32) << (32 - shift));
        }
        return;
    }
    for (; out < end; out++, z += c)
        *out = (int32_t)down64((int64_t)a * *out + slope * *z + offset, shift);
}

void samebits_train_column(const samebits_gradient *g, int32_t rows, int32_t c, int32_t k,
                           int32_t *out) {
    if (g->pool)
        behind_pool(g, k, out);
    else
        stored(g, rows, c, k, out);
    if (g->lines) behind_norm(g, rows, c, k, out);
}

void samebits_train_settle(samebits_gradient g, int32_t rows, int32_t c, int32_t *column,
                           int32_t *out) {
    int32_t k, r;
    for (k = 0; k < c; k++) {
        samebits_train_column(&g, rows, c, k, column);
        for (r = 0; r < rows; r++) out[r * c + k] = column[r];
    }
}

int samebits_train_narrow(samebits_gradient g, int32_t rows, int32_t c, int32_t *column,
                          int16_t *out, int32_t *e_out) {
    int32_t top = 0, e = g.e, shift = 0, pass = 0, k, r;
    if (g.lines) top = (int32_t)g.lines[3 * c + 1], shift = narrowed(top, 16, &e), pass = 1;
    for (; pass < 2; pass++) {
        for (k = 0; k < c; k++) {
            samebits_train_column(&g, rows, c, k, column);
            for (r = 0; r < rows; r++) {
                const int32_t size = magnitude32(column[r]);
                if (pass)
                    out[r * c + k] = (int16_t)into32(column[r], shift);
                else
                    top = SAMEBITS_MAX(top, size);
            }
        }
        if (!pass) shift = narrowed(top, 16, &e);
    }
    *e_out = e;
    return in_range(e);
}
