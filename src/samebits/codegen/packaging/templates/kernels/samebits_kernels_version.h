/* The version of these kernels, for models that are compiled elsewhere and have to fit it. */
#ifndef SAMEBITS_KERNELS_VERSION_H
#define SAMEBITS_KERNELS_VERSION_H

#define @kernels_macro@ 1

#endif
