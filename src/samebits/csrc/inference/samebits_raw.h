/* Raw rows of a table to the codes of a network's input, in whole numbers: docs/spec/tables.md,
 * section 5. binary64 numbers are taken apart by their bits; nothing is computed in floating point.
 * Written for the C of a model that has <prefix>_predict. */
#ifndef SAMEBITS_RAW_H
#define SAMEBITS_RAW_H

#include "samebits.h"
#include "samebits_integer.h"
#include "samebits_io.h"

#define SAMEBITS_RAW_WORDS 16 /* of 32 bits, of a number at most */

typedef char samebits_raw_is_binary64[sizeof(double) == 8 ? 1 : -1];

/* The columns of a row, and the codes that their values get. */
typedef struct {
    uint32_t columns;         /* of a row */
    uint32_t words;           /* of each of `numbers` */
    int32_t mean;             /* whether a NaN counts as the mean, or as none of the words */
    const uint8_t *categories; /* words that each column knows; 0: it holds numbers */
    const int16_t *exponents; /* b, of each column */
    const uint32_t *numbers;  /* of each column of numbers 65535 * H - C, and H << 17 */
    uint32_t m;               /* the input's scale, m * 2**e, and range */
    int32_t e, zero, low, high;
    uint32_t width; /* bytes of a code of the input */
} samebits_raw;

/* a += b, both of n words, lowest first; the carry. */
static inline uint32_t samebits_raw_add(uint32_t *a, const uint32_t *b, uint32_t n) {
    uint64_t sum = 0;
    uint32_t i;
    for (i = 0; i < n; i++) {
        sum += (uint64_t)a[i] + b[i];
        a[i] = (uint32_t)(sum & 0xffffffffu);
        sum >>= 32;
    }
    return (uint32_t)sum;
}

/* Whether a >= b, both without a sign. */
static inline int samebits_raw_reaches(const uint32_t *a, const uint32_t *b, uint32_t n) {
    while (n-- > 0) {
        if (a[n] != b[n]) return a[n] > b[n];
    }
    return 1;
}

/* a -= b, where a >= b. */
static inline void samebits_raw_subtract(uint32_t *a, const uint32_t *b, uint32_t n) {
    uint32_t borrow = 0, i;
    for (i = 0; i < n; i++) {
        const uint64_t less = (uint64_t)b[i] + borrow;
        borrow = a[i] < less;
        a[i] = (uint32_t)(((uint64_t)a[i] - less) & 0xffffffffu);
    }
}

static inline void samebits_raw_halve(uint32_t *a, uint32_t n) {
    uint32_t i;
    for (i = 0; i < n; i++) a[i] = a[i] >> 1 | (i + 1 < n ? a[i + 1] << 31 : 0u);
}

/* floor(x / 2**b) in n words of two's complement, of the bits of a finite x. Gives 1 where x is a
 * multiple of 2**b, else 0; -2 and 2 for what is so far below and above 0 that no word is kept. */
static inline int samebits_raw_floor(uint64_t bits, int32_t b, uint32_t *words, uint32_t n) {
    const uint32_t exponent = (uint32_t)(bits >> 52) & 0x7ffu;
    const int negative = (int)(bits >> 63);
    uint64_t m = bits & (((uint64_t)1 << 52) - 1u);
    int32_t shift, length = 0;
    uint32_t i, carry;
    int whole = 1;
    if (exponent != 0) m |= (uint64_t)1 << 52;
    shift = (int32_t)(exponent ? exponent : 1u) - 1075 - b;
    for (i = 0; i < n; i++) words[i] = 0;
    if (m == 0) return 1;
    while (length < 64 && m >> length) length++;
    if (length + shift > (int32_t)(32 * n) - 2) return negative ? -2 : 2;
    if (shift < 0) {
        const uint64_t kept = shift > -64 ? m >> -shift : 0;
        whole = shift > -64 && (kept << -shift) == m;
        m = kept;
        shift = 0;
    }
    for (i = 0; i < 64; i += 32) { /* two words, each moved by less than a word */
        const uint64_t part = ((m >> i) & 0xffffffffu) << (shift & 31);
        const uint32_t at = (uint32_t)(shift >> 5) + i / 32;
        if (at < n) words[at] |= (uint32_t)(part & 0xffffffffu);
        if (at + 1 < n) words[at + 1] |= (uint32_t)(part >> 32);
    }
    if (negative) { /* -m, or below it where something was cut off */
        carry = (uint32_t)whole;
        for (i = 0; i < n; i++) {
            words[i] = ~words[i] + carry;
            carry = carry && words[i] == 0;
        }
    }
    return whole;
}

/* The code of a finite number of a column, -32767..32767. numbers: 65535 * H - C, and H << 17. */
static inline int32_t samebits_raw_code(uint64_t bits, int32_t b, const uint32_t *numbers,
                                        uint32_t n) {
    uint32_t rest[SAMEBITS_RAW_WORDS], step[SAMEBITS_RAW_WORDS], i;
    int32_t k = 0, code;
    int32_t bit;
    const int whole = samebits_raw_floor(bits, b, rest, n);
    uint32_t left = 0;
    if (whole == 2) return 32767;
    if (whole == -2) return -32767;
    (void)samebits_raw_add(rest, numbers, n);
    if (rest[n - 1] >> 31) return -32767;
    for (i = 0; i < n; i++) step[i] = numbers[n + i];
    if (samebits_raw_reaches(rest, step, n)) return 32767;
    for (bit = 15; bit >= 0; bit--) {
        samebits_raw_halve(step, n);
        if (samebits_raw_reaches(rest, step, n)) {
            samebits_raw_subtract(rest, step, n);
            k |= (int32_t)1 << bit;
        }
    }
    for (i = 0; i < n; i++) left |= rest[i];
    code = k - 32767;
    if (whole && left == 0 && (k & 1) == 0) code--; /* a tie, and the code is odd */
    return samebits_clamp32(code, -32767, 32767);
}

static inline void samebits_raw_put(const samebits_raw *row, void *input, uint32_t at,
                                    int32_t code) {
    const int32_t found =
        samebits_code((float)code, row->m, row->e + 12, row->zero, row->low, row->high);
    samebits_io_put(input, row->width, at, (uint64_t)(int64_t)found);
}

/* The input of a row: 0, or the column, counted from 1, that has no valid value. */
static inline int samebits_raw_row(const samebits_raw *row, const double *values, void *input) {
    const uint32_t *numbers = row->numbers;
    uint32_t c, i, at = 0;
    for (c = 0; c < row->columns; c++) {
        const uint32_t known = row->categories[c];
        union {
            double value;
            uint64_t bits;
        } given;
        uint64_t size;
        given.value = values[c];
        size = given.bits & (((uint64_t)1 << 63) - 1u);
        if (size > (uint64_t)0x7ff << 52 && row->mean) {
            for (i = 0; i < (known ? known : 1u); i++) samebits_raw_put(row, input, at++, 0);
        } else if (size >= (uint64_t)(1023 + 500) << 52) {
            return (int)c + 1;
        } else if (known) {
            uint32_t place[1];
            const int whole = samebits_raw_floor(given.bits, 0, place, 1);
            if (whole != 1 || place[0] >= known) return (int)c + 1;
            for (i = 0; i < known; i++) {
                samebits_raw_put(row, input, at++, i == place[0] ? 4096 : 0);
            }
        } else {
            samebits_raw_put(row, input, at++,
                             samebits_raw_code(given.bits, row->exponents[c], numbers, row->words));
        }
        if (known == 0) numbers += 2 * row->words;
    }
    return 0;
}

#endif
