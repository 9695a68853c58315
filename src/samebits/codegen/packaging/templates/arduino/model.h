/* The header of the library @model@. */
#ifndef @MODEL@_LIBRARY_H
#define @MODEL@_LIBRARY_H

/* The Arduino builder looks for a library by the headers in the root of its src alone:
 * "samebits/samebits.h" would not make it find samebits_kernels, this header does. */
#include <samebits_library.h>

#include "@model@/@model@.h"

#endif
