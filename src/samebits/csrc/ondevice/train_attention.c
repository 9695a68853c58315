/* Products of activations, and the softmax between them (14). */
#include "powers.h"
#include "samebits_bytes.h"
#include "samebits_train_sequences.h"
#include "train_scalars.h"

/* --- one exponent for integers of several (12.1) ---------------------------------------------- */

/* least: the smallest exponent of what is not 0; most: the smallest one at which all fits. */
typedef struct {
    int32_t any, least, most;
} Joint;

static void joins(Joint *t, int64_t top, int32_t e, int bits) {
    const int32_t fits = top ? e + (int32_t)fit_by(top, bits) : 0;
    if (!top) return;
    t->most = t->any ? SAMEBITS_MAX(t->most, fits) : fits;
    t->least = t->any ? SAMEBITS_MIN(t->least, e) : e;
    t->any = 1;
}

static int32_t joint_exponent(const Joint *t, int bits) {
    if (!t->any) return EXPONENT_MIN;
    return SAMEBITS_MAX(t->most, bits == 32 ? t->least : EXPONENT_MIN);
}

/* v at the joint exponent; 0 may have any exponent. */
static int64_t joined(int64_t v, int32_t by) { return v ? down64(v, by) : 0; }

/* --- matrices --------------------------------------------------------------------------------- */

SAMEBITS_INLINE int32_t at_matrix(const samebits_strides *s, int32_t n, int32_t head) {
    return n * s->sample + head * s->head;
}

/* The exponent of a vector of a. */
SAMEBITS_INLINE int32_t vector_exponent(const int32_t *e, int32_t several, int32_t i) {
    return several ? e[i] : *e;
}

int samebits_train_matrices(const samebits_matrices *s, const int8_t *a, const int32_t *e_a,
                            const int8_t *b, int32_t e_b, int32_t *y, int32_t *e_y) {
    Joint joint = {0, 0, 0};
    int32_t pass, n, head, i, j, k;
    for (pass = 0; pass < 2; pass++) {
        int32_t vector = 0;
        for (n = 0; n < s->n; n++)
            for (head = 0; head < s->heads; head++)
                for (i = 0; i < s->rows; i++, vector++) {
                    const int8_t *u = a + at_matrix(&s->a, n, head) + i * s->a.row;
                    const int32_t e = vector_exponent(e_a, s->vectors, vector) + e_b;
                    int32_t *to = y + at_matrix(&s->y, n, head) + i * s->y.row, top = 0;
                    for (j = 0; j < s->columns; j++) {
                        const int8_t *v = b + at_matrix(&s->b, n, head) + j * s->b.row;
                        int32_t sum = 0, size;
                        if (pass) {
                            to[j * s->y.column] = (int32_t)joined(to[j * s->y.column], *e_y - e);
                            continue;
                        }
                        for (k = 0; k < s->terms; k++)
                            sum += u[k * s->a.column] * v[k * s->b.column];
                        to[j * s->y.column] = sum, size = magnitude32(sum);
                        top = SAMEBITS_MAX(top, size);
                    }
                    if (!pass) joins(&joint, top, e, 32);
                }
        if (!pass) *e_y = joint_exponent(&joint, 32);
        if (!s->vectors) break;
    }
    return SAMEBITS_TRAIN_OK;
}

int samebits_train_matrices_a(const samebits_matrices *s, const int16_t *g, int32_t e_g,
                              const int8_t *b, int32_t e_b, int16_t *da, int32_t *e_da) {
    int64_t top = 0;
    int32_t e = e_g + e_b, shift = 0, pass, n, head, i, j, k;
    for (pass = 0; pass < 2; pass++) {
        for (n = 0; n < s->n; n++)
            for (head = 0; head < s->heads; head++)
                for (i = 0; i < s->rows; i++)
                    for (k = 0; k < s->terms; k++) {
                        const int16_t *u = g + at_matrix(&s->y, n, head) + i * s->y.row;
                        const int8_t *v = b + at_matrix(&s->b, n, head) + k * s->b.column;
                        int64_t sum = 0;
                        for (j = 0; j < s->columns; j++)
                            sum += (int32_t)u[j * s->y.column] * v[j * s->b.row];
                        if (pass)
                            da[at_matrix(&s->a, n, head) + i * s->a.row + k * s->a.column] =
                                (int16_t)down64(sum, shift);
                        sum = samebits_magnitude64(sum);
                        top = SAMEBITS_MAX(top, sum);
                    }
        if (!pass) shift = narrowed(top, 16, &e);
    }
    *e_da = e;
    return in_range(e);
}

/* The exponent at which a gradient meets the vectors of a matrix of a, in 32 bits. */
static int32_t meeting_exponent(const samebits_matrices *s, const samebits_gradient *g,
                                const int32_t *e_a, int32_t first) {
    Joint joint = {0, 0, 0};
    int32_t i, j;
    for (i = 0; i < s->rows; i++) {
        int64_t top = 0;
        for (j = 0; j < s->columns; j++) {
            const int64_t v = gradient_at(g, first + i * s->y.row + j * s->y.column);
            const int64_t size = samebits_magnitude64(v);
            top = SAMEBITS_MAX(top, size);
        }
        joins(&joint, top, g->e + e_a[i], 32);
    }
    return joint.any ? joint.most : EXPONENT_MIN;
}

int samebits_train_matrices_b(const samebits_matrices *s, samebits_gradient g, const int8_t *a,
                              const int32_t *e_a, int16_t *db, int32_t *e_db) {
    Joint joint = {0, 0, 0};
    int32_t pass, n, head, i, j, k;
    for (pass = 0; pass < 2; pass++) {
        const int32_t *own = e_a;
        for (n = 0; n < s->n; n++)
            for (head = 0; head < s->heads; head++, own += s->vectors ? s->rows : 0) {
                const int32_t first = at_matrix(&s->y, n, head);
                const int32_t e = s->vectors ? meeting_exponent(s, &g, own, first) : g.e + *e_a;
                const int8_t *u = a + at_matrix(&s->a, n, head);
                int64_t top = 0;
                for (j = 0; j < s->columns; j++)
                    for (k = 0; k < s->terms; k++) {
                        int64_t sum = 0;
                        for (i = 0; i < s->rows; i++) {
                            int64_t t = gradient_at(&g, first + i * s->y.row + j * s->y.column);
                            if (s->vectors) t = joined(t, e - g.e - own[i]);
                            sum += t * u[i * s->a.row + k * s->a.column];
                        }
                        if (pass)
                            db[at_matrix(&s->b, n, head) + j * s->b.row + k * s->b.column] =
                                (int16_t)joined(sum, *e_db - e);
                        sum = samebits_magnitude64(sum);
                        top = SAMEBITS_MAX(top, sum);
                    }
                if (!pass) joins(&joint, top, e, 16);
            }
        if (!pass) *e_db = joint_exponent(&joint, 16);
    }
    return in_range(*e_db);
}

/* --- numbers ---------------------------------------------------------------------------------- */

void samebits_train_times(samebits_gradient x, int32_t n, samebits_coefficient m, int32_t *y,
                          int32_t *e_y) {
    int64_t top = 0;
    int32_t i, shift;
    for (i = 0; i < n; i++) {
        const int64_t size = samebits_magnitude64((int64_t)gradient_at(&x, i) * m.m);
        top = SAMEBITS_MAX(top, size);
    }
    *e_y = x.e + m.x;
    shift = shortened(top, e_y);
    for (i = 0; i < n; i++) y[i] = (int32_t)down64((int64_t)gradient_at(&x, i) * m.m, shift);
}

int samebits_train_codes(const int32_t *x, int32_t n, int32_t e, int8_t *y, int32_t *e_y) {
    int32_t top = 0, shift, i;
    for (i = 0; i < n; i++) {
        const int32_t size = magnitude32(x[i]);
        top = SAMEBITS_MAX(top, size);
    }
    shift = narrowed(top, 8, &e);
    for (i = 0; i < n; i++) y[i] = (int8_t)down64(x[i], shift);
    *e_y = e;
    return in_range(e);
}

/* --- softmax ---------------------------------------------------------------------------------- */

void samebits_train_softmax(const int32_t *z, int32_t vectors, int32_t c, int32_t e,
                            const int64_t *tables, int64_t *row, int8_t *y, int32_t *e_y) {
    int32_t r, j;
    for (r = 0; r < vectors; r++, z += c, y += c) {
        int32_t top = z[0], shift;
        int64_t sum, most;
        for (j = 1; j < c; j++) top = SAMEBITS_MAX(top, z[j]);
        sum = powers(z, c, top, e, tables, tables + 256, row);
        for (j = 0, most = 0; j < c; j++) {
            row[j] = samebits_quotient(row[j] * ((int64_t)1 << 30), sum);
            most = SAMEBITS_MAX(most, row[j]);
        }
        e_y[r] = -30, shift = narrowed(most, 8, e_y + r);
        for (j = 0; j < c; j++) y[j] = (int8_t)down64(row[j], shift);
    }
}

int samebits_train_softmax_gradient(const int16_t *g, int32_t e_g, const int8_t *y,
                                    const int32_t *e_y, int32_t vectors, int32_t c, int32_t *dz,
                                    int32_t *e_dz) {
    Joint joint = {0, 0, 0};
    int32_t pass, r, j;
    for (pass = 0; pass < 2; pass++) {
        for (r = 0; r < vectors; r++) {
            const int16_t *own = g + r * c;
            const int8_t *from = y + r * c;
            int32_t sum = 0, e = e_g, shift;
            int64_t dot = 0, top = 0;
            for (j = 0; j < c; j++) sum += from[j], dot += (int32_t)own[j] * from[j];
            for (j = 0; j < c; j++) {
                const int64_t size = samebits_magnitude64((int64_t)sum * own[j] - dot);
                top = SAMEBITS_MAX(top, size);
            }
            shift = narrowed(top, 16, &e);
            if (e > EXPONENT_MAX) return SAMEBITS_TRAIN_RANGE;
            e += 2 * e_y[r];
            for (j = 0, top = 0; j < c; j++) {
                const int64_t t = down64((int64_t)sum * own[j] - dot, shift) * from[j];
                const int64_t size = samebits_magnitude64(t);
                top = SAMEBITS_MAX(top, size);
                if (pass) dz[r * c + j] = (int32_t)joined(t, *e_dz - e);
            }
            if (!pass) joins(&joint, top, e, 32);
        }
        if (!pass) *e_dz = joint_exponent(&joint, 32);
    }
    return SAMEBITS_TRAIN_OK;
}
