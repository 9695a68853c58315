/* --- convolution: panels of 16 channels, what AVX2 and NEON share --------------------------------
 *
 * Their tiles are those of panel_avx2.c and panel_neon.c. */

#include "samebits_vector.h"

#if defined(SAMEBITS_AVX2) || defined(SAMEBITS_NEON)
#define SAMEBITS_PANEL 16
#define samebits_has_panel samebits_has_codes16
#define samebits_flipped samebits_changed

typedef struct {
    samebits_window window;
    samebits_scale16 scale;
    const int8_t *weights;
    int32_t lanes;
} samebits_panel;
#endif
