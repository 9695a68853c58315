/* --- convolutions in place -----------------------------------------------------------------------
 *
 * A convolution written over its input, row by row (or a few pixels of a 1x1 window at a time): an
 * output row waits in a ring of `delay` + 1 rows until no later row reads what it overwrites, which
 * codegen/rolling.py has proved. The kernel of a row is that of the whole, on a copy of its
 * parameters: its window begins `unit` strides further down. */

#include "samebits_vector.h"

#define SAMEBITS_ROLLING(NAME, TYPE, PART)                                                         \
    void NAME##_rolling(const TYPE *c, const void *x, void *out, void *scratch) {                  \
        uint8_t *ring = (uint8_t *)scratch, *to = (uint8_t *)out;                                  \
        uint8_t *work = ring + ((c->delay + 1) * c->row + 7) / 8 * 8;                              \
        int32_t unit, done = 0, next = 0, last = 0;                                                \
        for (unit = 0; unit < c->units + c->delay; unit++) {                                       \
            if (unit < c->units) {                                                                 \
                const uint8_t *from = (const uint8_t *)x;                                          \
                PART part = c->conv;                                                               \
                if (c->chunk) {                                                                    \
                    from += unit * c->chunk * part.channels;                                       \
                    part.width = SAMEBITS_MIN(c->chunk, part.width - unit * c->chunk);             \
                    part.out_width = part.width;                                                   \
                } else {                                                                           \
                    part.out_height = 1;                                                           \
                    part.pad_top -= unit * part.stride_y;                                          \
                }                                                                                  \
                NAME(&part, from, ring + next * c->row, work);                                     \
                next = next == c->delay ? 0 : next + 1;                                            \
            }                                                                                      \
            if (unit >= c->delay) {                                                                \
                const int32_t count = SAMEBITS_MIN(c->row, c->total - done);                       \
                samebits_row(ring + last * c->row, count, to + done);                              \
                done += count;                                                                     \
                last = last == c->delay ? 0 : last + 1;                                            \
            }                                                                                      \
        }                                                                                          \
    }

SAMEBITS_ROLLING(samebits_run_conv8, samebits_rolled, samebits_conv)
SAMEBITS_ROLLING(samebits_run_depthwise8, samebits_rolled, samebits_conv)
