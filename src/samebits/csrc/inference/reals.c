/* --- real numbers to codes and back ------------------------------------------------------------
 *
 * What a caller needs around a model: binary32 numbers are taken apart and put together by their
 * bits, so that a processor without a float unit needs no library for it, and nobody rounds twice.
 * The definition in Python: samebits.verification.inputs. */

#include "samebits_vector.h"

typedef union {
    float real;
    uint32_t bits;
} samebits_binary32;

int32_t samebits_code(float x, uint32_t m, int32_t e, int32_t zero, int32_t low, int32_t high) {
    samebits_binary32 given;
    uint32_t exponent, negative;
    uint64_t n, whole;
    int64_t code;
    int32_t t; /* x / scale = n / m * 2**t */
    given.real = x;
    exponent = given.bits >> 23 & 0xffu;
    negative = given.bits >> 31;
    n = given.bits & 0x7fffffu;
    if (exponent == 0xffu) {
        if (n != 0) return samebits_clamp32(zero, low, high);
        return negative ? low : high;
    }
    if (exponent != 0) n |= 0x800000u;
    t = (exponent ? (int32_t)exponent : 1) - 150 - e;
    while (t > 0 && n != 0) { /* n < 2**63: from 2**62 on n / m is beyond all codes */
        if (n >> 62) return negative ? low : high;
        n <<= 1;
        t--;
    }
    if (t >= 0) {
        const uint64_t rest = n % m, other = m - rest;
        whole = n / m;
        whole += rest > other || (rest == other && (whole & 1u));
    } else if (t < -32) { /* n < 2**24: less than 2**-9 */
        whole = 0;
    } else {
        const uint64_t quotient = n / m, half = (uint64_t)1 << (-t - 1);
        const uint64_t rest = quotient & (half + half - 1);
        whole = quotient >> -t;
        whole += rest > half || (rest == half && (n % m != 0 || (whole & 1u)));
    }
    if (whole >> 32) return negative ? low : high;
    code = negative ? -(int64_t)whole : (int64_t)whole;
    return (int32_t)samebits_clamp64(code + zero, low, high);
}

float samebits_real(int32_t code, uint32_t m, int32_t e, int32_t zero) {
    const int64_t centred = (int64_t)code - zero;
    uint64_t n = (uint64_t)samebits_magnitude64(centred) * m; /* < 2**33 * 2**31 */
    int32_t drop = 0, least; /* bits that are rounded away */
    samebits_binary32 found;
    if (n == 0) return 0;
    while (n >> drop > 0xffffffu) drop++;
    least = -149 - e; /* the last place of the least numbers */
    if (drop < least) drop = least;
    if (drop > 0) {
        if (drop > 63) {
            /* below half of the least number, but for n of 64 bits and one more dropped */
            n = drop == 64 && n > (uint64_t)1 << 63;
        } else {
            const uint64_t half = (uint64_t)1 << (drop - 1), rest = n & (half + half - 1);
            n >>= drop;
            n += rest > half || (rest == half && (n & 1u));
        }
        e += drop;
    }
    while (n != 0 && n < 0x800000u && e > -149) {
        n <<= 1;
        e--;
    }
    if (n >> 24) { /* the rounding carried */
        n >>= 1;
        e++;
    }
    if (e > 104) {
        found.bits = 0x7f800000u; /* beyond binary32 */
    } else if (n >> 23) {
        found.bits = (uint32_t)(e + 150) << 23 | (uint32_t)(n & 0x7fffffu);
    } else {
        found.bits = (uint32_t)n;
    }
    if (centred < 0) found.bits |= 0x80000000u;
    return found.real;
}
