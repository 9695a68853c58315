/* --- sums of 32 bits to codes of 8, 16 at a time: what AVX2 and NEON share -----------------------
 *
 * samebits_scale16 and samebits_codes16 are those of codes_avx2.c or codes_neon.c. */

#include "samebits_vector.h"

#if defined(SAMEBITS_AVX2) || defined(SAMEBITS_NEON)
/* The requantizations to 8 bits that are here. */
static int samebits_has_codes16(const samebits_rescale *r) {
    const int32_t *m = (const int32_t *)r->multipliers;
    int32_t i, all = r->type <= SAMEBITS_UINT8 && r->zero <= 32000 && r->zero >= -32000;
    if (r->form == SAMEBITS_DOUBLED) return all && samebits_shifted(r);
    all = all && r->form >= SAMEBITS_SHIFT && r->form <= SAMEBITS_PRODUCT;
    for (i = 0; all && i < r->channels; i++) {
        const int32_t factor = r->form == SAMEBITS_SHIFT ? 1 : m[i], s = r->shifts[i];
        if (factor != 0) { /* odd, and less than a quarter of 2**s */
            all = (factor & 1) && s >= 2 && (s >= 33 || (int64_t)factor < (int64_t)1 << (s - 2));
        }
    }
    return all;
}

/* n bytes, each changed by the bits of `flip`. */
SAMEBITS_INLINE void samebits_changed(const uint8_t *from, int32_t n, uint8_t flip, uint8_t *to) {
    int32_t i;
    for (i = 0; i < n; i++) to[i] = from[i] ^ flip;
}
#endif
