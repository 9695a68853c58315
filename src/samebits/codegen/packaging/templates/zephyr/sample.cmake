cmake_minimum_required(VERSION 3.20.0)
# The module is this package; a workspace whose manifest names it needs no such line.
get_filename_component(@model@_module ${CMAKE_CURRENT_LIST_DIR}/../.. ABSOLUTE)
list(APPEND EXTRA_ZEPHYR_MODULES ${@model@_module})
find_package(Zephyr REQUIRED HINTS $ENV{ZEPHYR_BASE})
project(@model@_selftest LANGUAGES C)
target_sources(app PRIVATE src/main.c)
