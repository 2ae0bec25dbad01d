# SPDX-License-Identifier: Apache-2.0
# Imported targets for the torch that the Python interpreter imports:
#   torch_libs::torch_cpu      headers, libtorch_cpu and libc10; never a library of one vendor
#   torch_libs::torch_python   the same, plus libtorch_python, pybind11 and Python's headers
# find_package(Torch) is not used: in a vendor's build of torch it looks for the vendor's toolkit and links its libraries.

find_package(Python 3.10 REQUIRED COMPONENTS Interpreter Development.Module)

execute_process(
  COMMAND "${Python_EXECUTABLE}" "${CMAKE_CURRENT_LIST_DIR}/query_torch.py"
  OUTPUT_VARIABLE query
  ERROR_VARIABLE query_error
  OUTPUT_STRIP_TRAILING_WHITESPACE
  RESULT_VARIABLE query_result)
if(NOT query_result EQUAL 0)
  message(FATAL_ERROR "torch cannot be imported by ${Python_EXECUTABLE}. Install it first; torch_fl is built for the "
    "torch that is installed.\n${query_error}")
endif()
list(GET query 0 TorchLibs_VERSION)
list(GET query 1 torch_folder)
list(GET query 2 torch_cxx11_abi)
list(GET query 3 python_suffix)
message(STATUS "torch ${TorchLibs_VERSION} in ${torch_folder}")

set(TorchLibs_PYTHON_SUFFIX "${python_suffix}")
cmake_path(GET torch_folder PARENT_PATH TorchLibs_SITE)
set(torch_include "${torch_folder}/include")
set(torch_lib "${torch_folder}/lib")

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(TorchLibs REQUIRED_VARS torch_include torch_lib VERSION_VAR TorchLibs_VERSION)

add_library(torch_libs::torch_cpu INTERFACE IMPORTED)
target_include_directories(torch_libs::torch_cpu SYSTEM INTERFACE
  "${torch_include}" "${torch_include}/torch/csrc/api/include")
target_compile_definitions(torch_libs::torch_cpu INTERFACE "_GLIBCXX_USE_CXX11_ABI=${torch_cxx11_abi}")
target_link_libraries(torch_libs::torch_cpu INTERFACE "${torch_lib}/libtorch_cpu.so" "${torch_lib}/libc10.so")

add_library(torch_libs::torch_python INTERFACE IMPORTED)
target_include_directories(torch_libs::torch_python SYSTEM INTERFACE ${Python_INCLUDE_DIRS})
target_link_libraries(torch_libs::torch_python INTERFACE torch_libs::torch_cpu "${torch_lib}/libtorch_python.so")
