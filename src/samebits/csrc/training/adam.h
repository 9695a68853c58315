/* The formulas of Adam for an element (docs/spec/training.md, section 4). */
#ifndef SAMEBITS_ADAM_H
#define SAMEBITS_ADAM_H

#include "samebits_integer.h"

/* The first moment m, and the square of the second one's root s, by a gradient g. */
SAMEBITS_INLINE double adam_first(double beta, double rest, double m, double g) {
    return beta * m + rest * g;
}

SAMEBITS_INLINE double adam_second(double beta, double rest, double s, double g) {
    return beta * (s * s) + rest * (g * g);
}

/* The direction without decay, by both as they are stored. */
SAMEBITS_INLINE double adam_quotient(double m, double s, double c1, double c2, double eps) {
    return m / c1 / (s / c2 + eps);
}

#endif
