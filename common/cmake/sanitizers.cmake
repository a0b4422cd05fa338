# QUIRE_BUILD_FUZZERS: instruments every target for libFuzzer's coverage.
if(QUIRE_BUILD_FUZZERS)
  if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    message(FATAL_ERROR "QUIRE_BUILD_FUZZERS needs clang: cmake --preset cpu-fuzz")
  endif()
  add_compile_options(-fsanitize=fuzzer-no-link)
  add_link_options(-fsanitize=fuzzer-no-link)
endif()
# QUIRE_SANITIZER ("address,undefined" or "thread"): instruments every target. A sanitizer's report
# ends the test.
if(QUIRE_SANITIZER)
  add_compile_options(-fsanitize=${QUIRE_SANITIZER} -fno-omit-frame-pointer -g)
  add_link_options(-fsanitize=${QUIRE_SANITIZER})
  if(QUIRE_SANITIZER MATCHES "undefined")
    add_compile_options(-fno-sanitize-recover=all)
  endif()
endif()
