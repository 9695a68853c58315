/* Every operation of binary64 is rounded once, in the order written: no compiler may contract a
 * product and a sum. The first header of all files that compute with such numbers. */
#ifndef SAMEBITS_TRAIN_EXACT_H
#define SAMEBITS_TRAIN_EXACT_H

#ifdef __FAST_MATH__
#error "samebits: compile without -ffast-math, which changes what is computed"
#endif

#if defined(__clang__)
#pragma STDC FP_CONTRACT OFF
#elif defined(__GNUC__)
#pragma GCC optimize("fp-contract=off")
#endif

#endif
