/* The cell of an LSTM, element by element. Section numbers: docs/spec/training.md.
 * Rows are samples of 4H gates (i, f, g, o) or H states; `table` is sigmoid, then tanh.
 *
 * Bounds: gates and states are codes of 16 bits, below 2**15, so that a product of two of them with
 * 2**30 - u * u stays below 2**60; shifts bring two such terms to an exponent at which their sum
 * fits (section 3, combine). Vectors come from the compiler: arguments are computed in loops
 * without branches, lookups follow in loops of their own. */
#include "parallel.h"
#include "shift.h"

#define Q_GATE 32767
#define ONE ((int64_t)1 << 15)
#define ONE_SQUARED ((int64_t)1 << 30)

/* sat(v, limit) of the specification: codes are symmetric. */
SAMEBITS_INLINE int64_t clamp(int64_t v, int64_t limit) {
    return samebits_clamp64(v, -limit, limit);
}

/* sat(rne(v * 2**exponent), limit); `s` is of an exponent of at most 15: more saturates as much. */
SAMEBITS_INLINE int64_t saturate(int64_t v, Shift s, int64_t limit) {
    if (s.left) v = clamp(v, limit);
    return clamp(scale64(v, s), limit);
}

static Shift saturating(int64_t exponent) { return shift_by(exponent > 15 ? 15 : exponent); }

/* --- forward (5) ---------------------------------------------------------------------------- */

/* One gate of one row: arguments first, so that this loop vectorises, then the lookups. */
#define BLOCK 256

SAMEBITS_INLINE void gate_row(const int32_t *restrict x, const int32_t *restrict h,
                              const int64_t *restrict bias, int64_t units, Shift sx, Shift sh,
                              Shift sz, const int16_t *restrict entry, int16_t *restrict out) {
    int32_t z[BLOCK];
    for (int64_t k = 0; k < units; k += BLOCK) {
        int64_t len = units - k < BLOCK ? units - k : BLOCK;
        for (int64_t i = 0; i < len; i++) {
            int64_t a = scale64(x[k + i], sx);
            if (h) a += scale64(h[k + i], sh);
            if (bias) a += bias[k + i];
            z[i] = (int32_t)saturate(a, sz, Q_GATE);
        }
        for (int64_t i = 0; i < len; i++) out[k + i] = entry[z[i]];
    }
}

static void gates_range(const int32_t *restrict x, const int32_t *restrict h,
                        const int64_t *restrict bias, int64_t rows, int64_t units, Shift sx,
                        Shift sh, Shift sz, const int16_t *restrict table,
                        int16_t *restrict out) {
    for (int64_t r = 0; r < 4 * rows; r++) {
        const int16_t *entry = table + (r % 4 == 2 ? 2 * Q_GATE + 1 : 0) + Q_GATE;
        int64_t at = r * units;
        gate_row(x + at, h ? h + at : h, bias ? bias + r % 4 * units : bias, units, sx, sh, sz,
                 entry, out + at);
    }
}

/* Steps 1 and 2: `h` and `bias` may be NULL. */
void samebits_lstm_gates(const int32_t *x, const int32_t *h, const int64_t *bias, int64_t rows,
                         int64_t units, int64_t shift_x, int64_t shift_h, int64_t shift_z,
                         const int16_t *table, int16_t *out, int threads) {
    Shift sx = shift_by(shift_x), sh = shift_by(shift_h), sz = saturating(shift_z);
    int64_t c = 4 * units;
    PARALLEL(rows, rows * c,
             gates_range(x + lo * c, h ? h + lo * c : h, bias, len, units, sx, sh, sz, table,
                         out + lo * c))
}

/* Step 3 before its rounding: f * c + i * g, each shifted; `c` may be NULL. Returns the largest
 * magnitude. */
int64_t samebits_lstm_state(const int16_t *restrict gates, const int16_t *restrict c, int64_t rows,
                            int64_t units, int64_t shift_c, int64_t shift_g,
                            int64_t *restrict out) {
    Shift sc = shift_by(shift_c), sg = shift_by(shift_g);
    int64_t top = 0;
    for (int64_t r = 0; r < rows; r++, gates += 4 * units)
        for (int64_t k = 0; k < units; k++) {
            int64_t at = r * units + k;
            int64_t a = scale64((int64_t)gates[k] * gates[2 * units + k], sg);
            if (c) a += scale64((int64_t)gates[units + k] * c[at], sc);
            out[at] = a;
            a = samebits_magnitude64(a);
            top = SAMEBITS_MAX(top, a);
        }
    return top;
}

/* Step 4. */
void samebits_lstm_hidden(const int16_t *restrict gates, const int16_t *restrict c, int64_t rows,
                          int64_t units, int64_t shift, const int16_t *restrict table,
                          int8_t *restrict out) {
    const int16_t *tanh = table + 2 * Q_GATE + 1 + Q_GATE;
    Shift su = saturating(shift), down = shift_by(-23);
    for (int64_t r = 0; r < rows; r++, gates += 4 * units)
        for (int64_t k = 0; k < units; k++) {
            int64_t u = tanh[saturate(c[r * units + k], su, Q_GATE)];
            out[r * units + k] = (int8_t)clamp(scale64(gates[3 * units + k] * u, down), 127);
        }
}

/* --- backward (7) --------------------------------------------------------------------------- */

#define GRADIENT_SUM(name, gradient, product)                                                  \
    static int64_t name(const gradient *restrict g, const product *restrict back, int64_t n,   \
                        Shift sg, Shift sb, int64_t *restrict out) {                           \
        int64_t top = 0;                                                                       \
        for (int64_t i = 0; i < n; i++) {                                                      \
            int64_t a = scale64(g[i], sg);                                                     \
            if (back) a += scale64(back[i], sb);                                               \
            out[i] = a;                                                                        \
            a = samebits_magnitude64(a);                                                       \
            top = SAMEBITS_MAX(top, a);                                                        \
        }                                                                                      \
        return top;                                                                            \
    }
GRADIENT_SUM(sum_16_32, int16_t, int32_t)
GRADIENT_SUM(sum_16_64, int16_t, int64_t)
GRADIENT_SUM(sum_32_32, int32_t, int32_t)
GRADIENT_SUM(sum_32_64, int32_t, int64_t)

/* Step 1 before its rounding: widths of `g` 16 or 32, of `back` 32 or 64; `back` may be NULL. */
int64_t samebits_lstm_hidden_grad(const void *g, int width_g, const void *back, int width_back,
                                  int64_t n, int64_t shift_g, int64_t shift_back, int64_t *out) {
    Shift sg = shift_by(shift_g), sb = shift_by(shift_back);
    if (width_g == 16)
        return width_back == 64 ? sum_16_64(g, back, n, sg, sb, out)
                                : sum_16_32(g, back, n, sg, sb, out);
    return width_back == 64 ? sum_32_64(g, back, n, sg, sb, out)
                            : sum_32_32(g, back, n, sg, sb, out);
}

/* Step 2 before its rounding; `dc` and `after` (gates) of the next step may be NULL. */
int64_t samebits_lstm_state_grad(const int16_t *restrict dh, const int16_t *restrict gates,
                                 const int16_t *restrict c, int64_t rows, int64_t units,
                                 int64_t shift, const int16_t *restrict table,
                                 const int16_t *restrict dc, const int16_t *restrict after,
                                 int64_t shift_h, int64_t shift_c, int64_t *restrict out) {
    const int16_t *tanh = table + 2 * Q_GATE + 1 + Q_GATE;
    Shift su = saturating(shift), sh = shift_by(shift_h), sc = shift_by(shift_c);
    int64_t top = 0;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t k = 0; k < units; k++) {
            int64_t at = r * units + k, row = 4 * r * units + k;
            int64_t u = tanh[saturate(c[at], su, Q_GATE)];
            int64_t a = (int64_t)dh[at] * gates[row + 3 * units] * (ONE_SQUARED - u * u);
            a = scale64(a, sh);
            if (dc) a += scale64((int64_t)dc[at] * after[row + units], sc);
            out[at] = a;
            a = samebits_magnitude64(a);
            top = SAMEBITS_MAX(top, a);
        }
    return top;
}

/* Step 3 before its rounding; `before` (c of the step before) may be NULL. */
int64_t samebits_lstm_gate_grads(const int16_t *restrict dh, const int16_t *restrict dc,
                                 const int16_t *restrict gates, const int16_t *restrict c,
                                 int64_t rows, int64_t units, int64_t shift,
                                 const int16_t *restrict table, const int16_t *restrict before,
                                 int64_t shift_i, int64_t shift_f, int64_t shift_g, int64_t shift_o,
                                 int64_t *restrict out) {
    const int16_t *tanh = table + 2 * Q_GATE + 1 + Q_GATE;
    Shift su = saturating(shift), si = shift_by(shift_i), sf = shift_by(shift_f);
    Shift sg = shift_by(shift_g), so = shift_by(shift_o);
    int64_t top = 0;
    for (int64_t r = 0; r < rows; r++, gates += 4 * units, out += 4 * units)
        for (int64_t k = 0; k < units; k++) {
            int64_t at = r * units + k, u = tanh[saturate(c[at], su, Q_GATE)];
            int64_t i = gates[k], f = gates[units + k], g = gates[2 * units + k];
            int64_t o = gates[3 * units + k], past = before ? before[at] : 0;
            int64_t di = scale64(dc[at] * g * (i * (ONE - i)), si);
            int64_t df = scale64(dc[at] * past * (f * (ONE - f)), sf);
            int64_t dg = scale64(dc[at] * i * (ONE_SQUARED - g * g), sg);
            int64_t d_o = scale64(dh[at] * u * (o * (ONE - o)), so);
            out[k] = di;
            out[units + k] = df;
            out[2 * units + k] = dg;
            out[3 * units + k] = d_o;
            di = SAMEBITS_MAX(samebits_magnitude64(di), samebits_magnitude64(df));
            dg = SAMEBITS_MAX(samebits_magnitude64(dg), samebits_magnitude64(d_o));
            di = SAMEBITS_MAX(di, dg);
            top = SAMEBITS_MAX(top, di);
        }
    return top;
}
