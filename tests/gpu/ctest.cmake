# What CTest runs of this folder without a GPU: the script's refusal and its bookkeeping, and the
# benchmarks in tiny sizes on the emulated kernels. Included by tests/CMakeLists.txt; the
# CMakeLists.txt beside it is a project of its own.

add_test(NAME gpu_script_test COMMAND ${CMAKE_CURRENT_LIST_DIR}/script_test.sh)
set_tests_properties(gpu_script_test PROPERTIES LABELS integration TIMEOUT 120)

set(gpu_bench_sources
    attention_batch.cc bench.cc bench_attention.cc bench_bits.cc bench_ceilings.cc bench_copies.cc
    bench_device_emulated.cc bench_gemm.cc bench_kernels.cu bench_main.cc bench_memory.cc
    bench_report.cc bench_sampling.cc)
list(TRANSFORM gpu_bench_sources PREPEND ${CMAKE_CURRENT_LIST_DIR}/)
set_source_files_properties(
  ${CMAKE_CURRENT_LIST_DIR}/bench_kernels.cu PROPERTIES LANGUAGE CXX COMPILE_OPTIONS "-xc++")
add_executable(gpu_bench_rehearsal ${gpu_bench_sources})
target_link_libraries(gpu_bench_rehearsal PRIVATE quire::kernels_emulated)
target_compile_options(gpu_bench_rehearsal PRIVATE -O2)
quire_warnings(gpu_bench_rehearsal)
add_test(NAME gpu_bench_rehearsal COMMAND gpu_bench_rehearsal --rehearse)
set_tests_properties(gpu_bench_rehearsal PROPERTIES LABELS integration TIMEOUT 300)
