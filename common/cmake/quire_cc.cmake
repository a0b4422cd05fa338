# quire_cc_library, quire_cc_binary, quire_cc_test and quire_cc_benchmark define a target by one
# list of sources and one list of dependencies. A library may use only the libraries in its DEPS,
# and DEPS follow the layer table in tests/tools/check_layers.py.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()

# Forbids the compiler to fuse a multiplication and an addition, so that results have the same bits
# under every compiler. Kernels request fused operations by intrinsics.
add_compile_options(-ffp-contract=off)
# Hardening: memory errors end the process. tests/tools/check_programs.py verifies the programs.
add_compile_options(-fstack-protector-strong -fstack-clash-protection)
if(CMAKE_SYSTEM_PROCESSOR STREQUAL "x86_64")
  add_compile_options(-fcf-protection)
endif()
# _FORTIFY_SOURCE works only in optimized code.
if(NOT CMAKE_BUILD_TYPE STREQUAL "Debug" AND NOT QUIRE_SANITIZER)
  add_compile_definitions(_FORTIFY_SOURCE=2 _GLIBCXX_ASSERTIONS)
endif()
add_link_options(-Wl,-z,relro,-z,now)

find_program(QUIRE_CCACHE ccache)
if(QUIRE_CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${QUIRE_CCACHE})
  set(CMAKE_C_COMPILER_LAUNCHER ${QUIRE_CCACHE})
endif()
find_program(QUIRE_MOLD mold)
if(QUIRE_MOLD)
  add_link_options(-fuse-ld=mold)
endif()

function(quire_warnings target)
  # -Wno-missing-field-initializers: our designated initializers leave fields at their defaults.
  target_compile_options(
    ${target} PRIVATE -Wall -Wextra -Wshadow -Wconversion -Wno-missing-field-initializers)
  if(QUIRE_WERROR)
    target_compile_options(${target} PRIVATE -Werror)
  endif()
  if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    # gcc's -Wconversion leaves out sign conversions in C++, so clang's must leave them out too.
    target_compile_options(${target} PRIVATE -Wthread-safety -Wno-sign-conversion)
  endif()
endfunction()

# quire_cc_library(NAME common_base HDRS a.h SRCS a.cc DEPS absl::status)
function(quire_cc_library)
  cmake_parse_arguments(ARG "" "NAME" "HDRS;SRCS;DEPS" ${ARGN})
  set(target quire_${ARG_NAME})
  if(ARG_SRCS)
    add_library(${target} STATIC ${ARG_SRCS} ${ARG_HDRS})
    target_include_directories(${target} PUBLIC ${PROJECT_SOURCE_DIR})
    target_link_libraries(${target} PUBLIC ${ARG_DEPS})
    quire_warnings(${target})
  else()
    add_library(${target} INTERFACE)
    target_include_directories(${target} INTERFACE ${PROJECT_SOURCE_DIR})
    target_link_libraries(${target} INTERFACE ${ARG_DEPS})
  endif()
  add_library(quire::${ARG_NAME} ALIAS ${target})
endfunction()

# quire_cc_binary(NAME quire_worker SRCS main.cc DEPS ...): an executable in <build>/bin.
function(quire_cc_binary)
  cmake_parse_arguments(ARG "" "NAME" "SRCS;DEPS" ${ARGN})
  add_executable(${ARG_NAME} ${ARG_SRCS})
  target_link_libraries(${ARG_NAME} PRIVATE ${ARG_DEPS})
  set_target_properties(${ARG_NAME} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)
  quire_warnings(${ARG_NAME})
endfunction()

# Makes the target use precompiled headers. Nearly every test includes these headers; without a
# compiler cache, the headers take a fifth of the tests' compile time. quire_test_headers is an
# executable, because its compiler flags must equal those of a test.
function(quire_precompile_test_headers target)
  if(QUIRE_CCACHE)
    return()
  endif()
  if(NOT TARGET quire_test_headers)
    file(CONFIGURE OUTPUT test_headers.cc CONTENT "int main() {}\n")
    add_executable(quire_test_headers EXCLUDE_FROM_ALL ${CMAKE_CURRENT_BINARY_DIR}/test_headers.cc)
    target_link_libraries(quire_test_headers PRIVATE GTest::gmock)
    target_compile_options(quire_test_headers PRIVATE -pthread $<$<CONFIG:Release>:-O1>)
    target_precompile_headers(
      quire_test_headers
      PRIVATE
        <algorithm>
        <chrono>
        <cmath>
        <cstdint>
        <cstring>
        <filesystem>
        <fstream>
        <functional>
        <map>
        <memory>
        <optional>
        <random>
        <set>
        <span>
        <string>
        <thread>
        <utility>
        <variant>
        <vector>
        <gmock/gmock.h>
        <gtest/gtest.h>)
  endif()
  target_precompile_headers(${target} REUSE_FROM quire_test_headers)
  # With a precompiled <string>, gcc 12 sometimes warns that std::string + "x" copies out of bounds.
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_compile_options(${target} PRIVATE -Wno-array-bounds -Wno-restrict -Wno-stringop-overflow)
  endif()
endfunction()

# Each target builds all tests of one label, for the sanitizer builds.
add_custom_target(unit_tests)
add_custom_target(tsan_tests)

# quire_cc_test(NAME block_pool_test SRCS ... DEPS ... LABELS unit): one executable and one test of
# CTest. LABELS defaults to unit. A test runs in the source tree, where it finds golden files.
function(quire_cc_test)
  cmake_parse_arguments(ARG "" "NAME;TIMEOUT" "SRCS;DEPS;LABELS" ${ARGN})
  add_executable(${ARG_NAME} ${ARG_SRCS})
  target_link_libraries(${ARG_NAME} PRIVATE ${ARG_DEPS} GTest::gmock GTest::gtest_main)
  quire_warnings(${ARG_NAME})
  # Tests compute little themselves, so -O1 is enough; it saves a third of their compile time.
  target_compile_options(${ARG_NAME} PRIVATE -pthread $<$<CONFIG:Release>:-O1>)
  quire_precompile_test_headers(${ARG_NAME})
  add_test(NAME ${ARG_NAME} COMMAND ${ARG_NAME} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  if(NOT ARG_LABELS)
    set(ARG_LABELS unit)
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  if(QUIRE_SANITIZER)
    math(EXPR ARG_TIMEOUT "${ARG_TIMEOUT} * 4")
  endif()
  set_tests_properties(${ARG_NAME} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT ${ARG_TIMEOUT})
  foreach(label unit tsan)
    if(label IN_LIST ARG_LABELS)
      add_dependencies(${label}_tests ${ARG_NAME})
    endif()
  endforeach()
endfunction()

# quire_cc_benchmark(NAME gemm_bench SRCS ... DEPS ...): an executable in <build>/bench, which no
# test runs.
function(quire_cc_benchmark)
  cmake_parse_arguments(ARG "" "NAME" "SRCS;DEPS" ${ARGN})
  add_executable(${ARG_NAME} ${ARG_SRCS})
  target_link_libraries(${ARG_NAME} PRIVATE ${ARG_DEPS} benchmark::benchmark)
  set_target_properties(${ARG_NAME} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bench)
  quire_warnings(${ARG_NAME})
endfunction()
