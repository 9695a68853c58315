cmake_minimum_required(VERSION 3.16)
get_filename_component(EXTRA_COMPONENT_DIRS ${CMAKE_CURRENT_LIST_DIR}/../../components ABSOLUTE)
include($ENV{IDF_PATH}/tools/cmake/project.cmake)
project(@model@_selftest)
