idf_component_register(
  SRCS
    @kernel_sources@
  INCLUDE_DIRS ".")
