"""The realisation of the kernels for CUDA devices, in Triton: int8 products, one rounding each.

`realisation.Triton` launches the kernels of `products`, `rounding`, `norms` and `losses`; exponents
and largest magnitudes are numbers in the device's memory (`numbers`), so that no operation waits.
"""
