/* By this header the Arduino builder finds the library. */
#ifndef SAMEBITS_LIBRARY_H
#define SAMEBITS_LIBRARY_H

#include "samebits/samebits.h"

#endif
