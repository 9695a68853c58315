/* @model@ computes the right codes with the kernels that it was generated for, and no others. */
#include "samebits/samebits_kernels_version.h"

#ifndef @kernels_macro@
#error "@model@ needs samebits_kernels @kernels@: generate all models with one version of samebits"
#endif

typedef int @model@_kernels_version; /* C has no empty files */
