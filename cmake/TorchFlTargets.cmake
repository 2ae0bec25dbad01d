# SPDX-License-Identifier: Apache-2.0
# What all targets share: language level, warnings, the layout of the build tree, and a function for drivers.
#
# The build tree has the layout of the installed package, so both find their drivers the same way:
#   torch_fl/_C.*.so   torch_fl/lib/*.so   torch_fl/lib/drivers/libtorch_fl_driver_<name>.so

set(CMAKE_C_STANDARD 11)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_PLATFORM_NO_VERSIONED_SONAME ON)

# -g1 keeps line numbers in back-traces without the size of full debug information.
set(CMAKE_C_FLAGS_RELEASE "-O2 -g1")
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -g1")
set(CMAKE_C_FLAGS_DEBUG "-O0 -g")
set(CMAKE_CXX_FLAGS_DEBUG "-O0 -g")

set(TORCH_FL_PACKAGE_DIR "${CMAKE_BINARY_DIR}/torch_fl")
set(TORCH_FL_LIB_DIR "${TORCH_FL_PACKAGE_DIR}/lib")
set(TORCH_FL_DRIVER_DIR "${TORCH_FL_LIB_DIR}/drivers")

# Flags for our own code; link it PRIVATE. Foreign headers come in as SYSTEM and are not judged by it.
add_library(torch_fl_flags INTERFACE)
target_compile_options(torch_fl_flags INTERFACE -Wall -Wextra -Werror)
if(TORCH_FL_SANITIZE)
  add_compile_options("-fsanitize=${TORCH_FL_SANITIZE}" -fno-sanitize-recover=all -fno-omit-frame-pointer)
  add_link_options("-fsanitize=${TORCH_FL_SANITIZE}")
endif()

# Where a library that belongs to the package lies, built and installed alike. `folder` is relative to torch_fl/.
function(torch_fl_place target folder)
  set_target_properties(${target} PROPERTIES
    LIBRARY_OUTPUT_DIRECTORY "${TORCH_FL_PACKAGE_DIR}/${folder}"
    BUILD_WITH_INSTALL_RPATH ON
    INSTALL_RPATH "$ORIGIN;$ORIGIN/lib")
  install(TARGETS ${target} LIBRARY DESTINATION "torch_fl/${folder}")
endfunction()

# torch_fl_add_driver(<name> SOURCES <file>...)
# Makes torch_fl/lib/drivers/libtorch_fl_driver_<name>.so, target torch_fl_driver_<name>. A driver sees driver.h, its own
# folder and drivers/sdk; it exports its entry symbol only.
function(torch_fl_add_driver name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES")
  find_package(Threads REQUIRED)
  set(target "torch_fl_driver_${name}")
  add_library(${target} MODULE ${arg_SOURCES})
  target_include_directories(${target} PRIVATE "${PROJECT_SOURCE_DIR}/include" "${PROJECT_SOURCE_DIR}/drivers")
  target_link_libraries(${target} PRIVATE torch_fl_flags Threads::Threads ${CMAKE_DL_LIBS})
  set_target_properties(${target} PROPERTIES
    C_VISIBILITY_PRESET hidden CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
  torch_fl_place(${target} lib/drivers)
endfunction()
