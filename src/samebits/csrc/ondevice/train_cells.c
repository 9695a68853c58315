/* Layers of recurrent cells in one direction, forward through time (5).
 *
 * What a step computes inside is computed again in the backward pass; states alone are kept. Sums
 * have 64 bits at an exponent that follows from those of their terms, so that nothing but what
 * becomes codes is measured first. Rows are [n][steps][...], states [steps][n][units]. */
#include "train_cells.h"

#include "train_dots.h"

#define ARGUMENT_EXPONENT (-12)

/* --- what a step is given --------------------------------------------------------------------- */

static void *taken(uint8_t **room, int32_t bytes) {
    void *own = *room;
    *room += (bytes + 7) / 8 * 8;
    return own;
}

Steps samebits_train_steps(const samebits_cells *s, const int8_t *x, void *room, int back) {
    const int32_t cells = s->n * s->units, gates = gates_of(s) * cells;
    uint8_t *at = (uint8_t *)room;
    Steps v = {.s = s, .x = x, .cells = cells};
    v.sums = (int64_t *)taken(&at, 8 * cells);
    v.gates = (int16_t *)taken(&at, 2 * gates);
    v.m = (int16_t *)taken(&at, 2 * cells);
    if (!back) return v;
    v.back = (int64_t *)taken(&at, 8 * cells);
    v.kept = (int32_t *)taken(&at, 4 * cells);
    v.ds = (int16_t *)taken(&at, 2 * cells);
    v.d = (int16_t *)taken(&at, 2 * cells);
    return v;
}

void samebits_train_step_to(Steps *v, int32_t place, const int8_t *h, int32_t e_h,
                            const int16_t *states, const int32_t *e_states) {
    const samebits_cells *s = v->s;
    const int32_t past = place ? step_at(s, place - 1) : 0;
    v->t = step_at(s, place);
    v->before = NULL, v->h = NULL, v->e_before = EXPONENT_MIN;
    v->e_h = s->kind == SAMEBITS_TRAIN_LSTM ? HIDDEN_EXPONENT : EXPONENT_MIN;
    if (!place) return;
    v->h = h, v->e_h = e_h, v->e_before = e_states[past];
    v->before = states + past * v->cells;
}

/* --- gates ------------------------------------------------------------------------------------ */

int32_t samebits_train_looked_up(const samebits_curve *c, int is_tanh, int64_t v, int32_t e) {
    const int32_t by = SAMEBITS_MIN(e - ARGUMENT_EXPONENT, 15), most = 32767;
    int32_t z, at, k, low, size;
    if (by > 0) v = samebits_clamp64(v, -most, most);
    z = (int32_t)samebits_clamp64(down64(v, -by), -most, most);
    size = magnitude32(z), at = size / SAMEBITS_TRAIN_LINE, k = size % SAMEBITS_TRAIN_LINE;
    low = c->ends[at];
    low += ((c->ends[at + 1] - low) * k + SAMEBITS_TRAIN_LINE / 2) / SAMEBITS_TRAIN_LINE;
    low += (c->off[size >> 2] >> 2 * (size & 3) & 3) - 1;
    if (z >= 0) return low;
    return is_tanh ? -low : 32768 - low;
}

/* Gate values of the sums, at an exponent. */
static void look(Steps *v, int32_t gate, int is_tanh, int32_t e) {
    int16_t *out = v->gates + gate * v->cells;
    int32_t i;
    for (i = 0; i < v->cells; i++)
        out[i] = (int16_t)samebits_train_looked_up(v->s->curves + is_tanh, is_tanh, v->sums[i], e);
}

/* Products of a row with up to ROWS rows of a weight; 0 without a row. */
static void products(const int8_t *row, const int8_t *w, int32_t k, int32_t count, int32_t *sum) {
    const Window window = {row, w, 0, 0, k, 1, k};
    int32_t l;
    if (row && count == ROWS) {
        window_sums(&window, ROWS, sum);
        return;
    }
    for (l = 0; l < count; l++) sum[l] = row ? dot8(row, w + l * k, k) : 0;
}

static int32_t bias_exponent(const samebits_parameter *b) {
    return b ? b->s->e_w - 15 : -(1 << 20);
}

static int64_t bias_at(const samebits_parameter *b, int32_t o, int32_t e) {
    return b ? down64(joint_at(b, o), e - bias_exponent(b)) : 0;
}

/* The sums of a gate: of the product of x and its bias, of that of h and its bias. Without the
 * latter those of m, which a gate of a GRU lets in, stand in the place of products of h. Returns
 * their exponent. */
static int32_t sum_gate(Steps *v, int32_t gate, int of_x, int of_h) {
    const samebits_cells *s = v->s;
    const int32_t units = s->units, h_row = s->steps * units;
    const int32_t e_x = v->e_x + s->w_ih->s->e_w;
    const int32_t e_h = of_h ? v->e_h + s->w_hh->s->e_w : v->e_m + GATE_EXPONENT;
    int32_t e = e_h + 30, k, n, l, count;
    if (of_x) e = SAMEBITS_MAX(e, e_x + 30);
    if (of_x) e = SAMEBITS_MAX(e, bias_exponent(s->b_ih) + 23);
    if (of_h) e = SAMEBITS_MAX(e, bias_exponent(s->b_hh) + 23);
    e -= SUM_BITS;
    for (k = 0; k < units; k += count) {
        const int32_t o = gate * units + k;
        int64_t bias[ROWS];
        count = SAMEBITS_MIN(ROWS, units - k);
        for (l = 0; l < count; l++)
            bias[l] = (of_x ? bias_at(s->b_ih, o + l, e) : 0) +
                      (of_h ? bias_at(s->b_hh, o + l, e) : 0);
        for (n = 0; n < s->n; n++) {
            const int8_t *x = v->x + (n * s->steps + v->t) * s->inputs;
            const int32_t at = n * units + k;
            int32_t own[ROWS], other[ROWS];
            for (l = 0; l < count; l++) own[l] = other[l] = 0;
            if (of_x) products(x, s->w_ih->w + o * s->inputs, s->inputs, count, own);
            if (of_h)
                products(v->h ? v->h + n * h_row : NULL, s->w_hh->w + o * units, units, count,
                         other);
            else
                for (l = 0; l < count; l++) other[l] = v->gates[at + l] * v->m[at + l];
            for (l = 0; l < count; l++)
                v->sums[at + l] = bias[l] + down64(other[l], e - e_h) +
                                  (of_x ? down64(own[l], e - e_x) : 0);
        }
    }
    return e;
}

static int64_t largest_sum(const Steps *v) {
    int64_t top = 0;
    int32_t i;
    for (i = 0; i < v->cells; i++) {
        const int64_t size = samebits_magnitude64(v->sums[i]);
        top = SAMEBITS_MAX(top, size);
    }
    return top;
}

int samebits_train_round_sums(const Steps *v, int32_t e, int16_t *out, int32_t *e_out) {
    const int32_t shift = narrowed(largest_sum(v), 16, &e);
    int32_t i;
    for (i = 0; i < v->cells; i++) out[i] = (int16_t)down64(v->sums[i], shift);
    *e_out = e;
    return in_range(e);
}

int samebits_train_open(Steps *v) {
    const int32_t kind = v->s->kind, gates = gates_of(v->s);
    int32_t gate, i, status;
    for (gate = 0; gate < gates; gate++) {
        if (kind == SAMEBITS_TRAIN_GRU && gate == 2) {
            const int32_t e = sum_gate(v, gate, 0, 1);
            if ((status = samebits_train_round_sums(v, e, v->m, &v->e_m))) return status;
            look(v, gate, 1, sum_gate(v, gate, 1, 0));
            continue;
        }
        v->e_sums = sum_gate(v, gate, 1, 1);
        if (kind != SAMEBITS_TRAIN_RECTIFIED)
            look(v, gate, kind == SAMEBITS_TRAIN_TANH || gate == 2, v->e_sums);
    }
    for (i = 0; kind == SAMEBITS_TRAIN_RECTIFIED && i < v->cells; i++) {
        v->gates[i] = v->sums[i] > 0;
        v->sums[i] = SAMEBITS_MAX(v->sums[i], 0);
    }
    return SAMEBITS_TRAIN_OK;
}

/* --- forward ---------------------------------------------------------------------------------- */

/* What of the state before it and of this step becomes the state: f * c + i * g, or z * s +
 * (1 - z) * n. */
static void mix(Steps *v) {
    const int is_gru = v->s->kind == SAMEBITS_TRAIN_GRU;
    const int32_t kept = v->e_before + GATE_EXPONENT, made = 2 * GATE_EXPONENT;
    const int32_t e = SAMEBITS_MAX(kept, made) + 30 - SUM_BITS;
    const int16_t *gate = v->gates + v->cells, *part = v->gates, *new = gate + v->cells;
    int32_t i;
    for (i = 0; i < v->cells; i++) {
        const int64_t own = (is_gru ? ONE - gate[i] : part[i]) * new[i];
        v->sums[i] = down64(own, e - made);
        if (v->before) v->sums[i] += down64((int64_t)gate[i] * v->before[i], e - kept);
    }
    v->e_sums = e;
}

/* Sums in 8 bits, as rows of h. */
static int put_hidden(const Steps *v, int8_t *h, int32_t e, int32_t *e_h) {
    const int32_t units = v->s->units, shift = narrowed(largest_sum(v), 8, &e);
    int32_t n, k, i = 0;
    for (n = 0; n < v->s->n; n++, h += v->s->steps * units)
        for (k = 0; k < units; k++, i++) h[k] = (int8_t)down64(v->sums[i], shift);
    *e_h = e;
    return in_range(e);
}

/* Rows of h as a state. */
static void get_hidden(const Steps *v, const int8_t *h, int16_t *state) {
    const int32_t units = v->s->units;
    int32_t n, k;
    for (n = 0; n < v->s->n; n++, h += v->s->steps * units)
        for (k = 0; k < units; k++) *state++ = h[k];
}

int samebits_train_hidden(Steps *v, const int16_t *state, int32_t e, int8_t *h, int32_t *e_h) {
    int32_t i;
    for (i = 0; i < v->cells; i++) v->sums[i] = state[i];
    return put_hidden(v, h, e, e_h);
}

/* o * tanh(c) */
static void gated_hidden(const Steps *v, const int16_t *c, int32_t e, int8_t *h) {
    const int32_t units = v->s->units;
    const int16_t *o = v->gates + 3 * v->cells;
    int32_t n, k, i = 0;
    for (n = 0; n < v->s->n; n++, h += v->s->steps * units)
        for (k = 0; k < units; k++, i++) {
            const int32_t u = samebits_train_looked_up(v->s->curves + 1, 1, c[i], e);
            const int32_t shift = HIDDEN_EXPONENT - 2 * GATE_EXPONENT;
            h[k] = (int8_t)samebits_clamp32(samebits_round32(o[i] * u, shift), -Q8, Q8);
        }
}

/* Codes of all steps, `width` a row, at the largest exponent of those that are not all zero. */
static int32_t live_exponent(const samebits_cells *s, int32_t width, const void *codes, int bits,
                             const int32_t *e) {
    int32_t top = EXPONENT_MIN, any = 0, n, t, i;
    for (t = 0; t < s->steps; t++) {
        int32_t live = any && e[t] <= top;
        for (n = 0; n < s->n && !live; n++)
            for (i = 0; i < width && !live; i++) {
                const int32_t at = (n * s->steps + t) * width + i;
                const int32_t own = bits == 8 ? ((const int8_t *)codes)[at]
                                              : ((const int32_t *)codes)[at];
                if (own) live = any = 1, top = e[t];
            }
    }
    return top;
}

int32_t samebits_train_joined(const samebits_cells *s, int32_t width, void *codes, int bits,
                              const int32_t *e) {
    const int32_t top = live_exponent(s, width, codes, bits, e);
    int32_t n, t, i;
    for (n = 0; n < s->n; n++)
        for (t = 0; t < s->steps; t++) {
            const int32_t at = (n * s->steps + t) * width, shift = top - e[t];
            for (i = at; shift > 0 && i < at + width; i++) {
                if (bits == 8)
                    ((int8_t *)codes)[i] = (int8_t)down32(((int8_t *)codes)[i], shift);
                else
                    ((int32_t *)codes)[i] = (int32_t)down64(((int32_t *)codes)[i], shift);
            }
        }
    return top;
}

int samebits_train_recurrence(const samebits_cells *s, const int8_t *x, const int32_t *e_x,
                              int32_t of_steps, void *room, int16_t *states, int32_t *e_steps,
                              int8_t *h, int32_t *e_h, int32_t to_steps) {
    Steps v = samebits_train_steps(s, x, room, 0);
    int32_t *own = e_steps + s->steps, place, status, i;
    for (place = 0; place < s->steps; place++) {
        const int32_t past = place ? step_at(s, place - 1) : 0, t = step_at(s, place);
        int8_t *to = h + t * s->units;
        int16_t *state = states + t * v.cells;
        samebits_train_step_to(&v, place, h + past * s->units, own[past], states, e_steps);
        v.e_x = e_x[of_steps ? t : 0];
        if ((status = samebits_train_open(&v)) != SAMEBITS_TRAIN_OK) return status;
        own[t] = HIDDEN_EXPONENT;
        if (s->kind < SAMEBITS_TRAIN_TANH) {
            mix(&v);
            status = samebits_train_round_sums(&v, v.e_sums, state, e_steps + t);
            if (s->kind == SAMEBITS_TRAIN_LSTM)
                gated_hidden(&v, state, e_steps[t], to);
            else if (status == SAMEBITS_TRAIN_OK)
                status = samebits_train_hidden(&v, state, e_steps[t], to, own + t);
        } else {
            for (i = 0; s->kind == SAMEBITS_TRAIN_TANH && i < v.cells; i++)
                v.sums[i] = v.gates[i], v.e_sums = GATE_EXPONENT;
            status = put_hidden(&v, to, v.e_sums, own + t);
            get_hidden(&v, to, state);
            e_steps[t] = own[t];
        }
        if (status != SAMEBITS_TRAIN_OK) return status;
    }
    if (to_steps)
        memcpy(e_h, own, (size_t)s->steps * sizeof *own);
    else
        *e_h = s->kind == SAMEBITS_TRAIN_LSTM ? HIDDEN_EXPONENT
                                              : samebits_train_joined(s, s->units, h, 8, own);
    return SAMEBITS_TRAIN_OK;
}
