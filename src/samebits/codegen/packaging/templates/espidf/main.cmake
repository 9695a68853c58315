idf_component_register(SRCS "selftest.c" PRIV_REQUIRES @model@)
