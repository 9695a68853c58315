idf_component_register(
  SRCS
    @model_sources@
  INCLUDE_DIRS "."
  REQUIRES samebits_kernels)
