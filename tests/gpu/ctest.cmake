# What CTest runs of this folder without a GPU: the script's refusal and its bookkeeping, and
# benchmarks and served models in tiny sizes on the emulated kernels. Included by tests/CMakeLists.txt; the
# CMakeLists.txt beside it is a project of its own.

add_test(NAME gpu_script_test COMMAND ${CMAKE_CURRENT_LIST_DIR}/script_test.sh)
set_tests_properties(gpu_script_test PROPERTIES LABELS integration TIMEOUT 240)

set(gpu_bench_sources
    attention_batch.cc attention_in_turn.cc bench.cc bench_bits.cc bench_ceilings.cc bench_copies.cc
    bench_decode.cc bench_device_emulated.cc bench_gemm.cc bench_kernels.cu bench_loads.cc
    bench_main.cc bench_memory.cc bench_prefill.cc bench_report.cc bench_sampling.cc
    bench_windows.cc decode_scratch.cc load_kernels.cu peer_library.cc
    prefill_scratch.cc)
list(TRANSFORM gpu_bench_sources PREPEND ${CMAKE_CURRENT_LIST_DIR}/)
set_source_files_properties(
  ${CMAKE_CURRENT_LIST_DIR}/bench_kernels.cu ${CMAKE_CURRENT_LIST_DIR}/load_kernels.cu
  PROPERTIES LANGUAGE CXX COMPILE_OPTIONS "-xc++")
add_executable(gpu_bench_rehearsal ${gpu_bench_sources})
target_link_libraries(gpu_bench_rehearsal PRIVATE quire::kernels_emulated ${CMAKE_DL_LIBS})
target_compile_options(gpu_bench_rehearsal PRIVATE -O2)
quire_warnings(gpu_bench_rehearsal)
add_library(gpu_plain_peer MODULE ${CMAKE_CURRENT_LIST_DIR}/plain_peer.cc)
target_include_directories(gpu_plain_peer PRIVATE ${PROJECT_SOURCE_DIR})
quire_warnings(gpu_plain_peer)
add_dependencies(gpu_bench_rehearsal gpu_plain_peer)
add_test(NAME gpu_bench_rehearsal
         COMMAND gpu_bench_rehearsal --rehearse --peers=$<TARGET_FILE:gpu_plain_peer>)
set_tests_properties(gpu_bench_rehearsal PROPERTIES LABELS integration TIMEOUT 300
                                                    FAIL_REGULAR_EXPRESSION "outputs are wrong")
add_test(NAME gpu_bench_profile_rehearsal
         COMMAND gpu_bench_rehearsal --rehearse --profile --only=decode --decode-kernels=lines
                 "--case=4/2 heads of 64, block 16, 2 x 300")
set_tests_properties(gpu_bench_profile_rehearsal PROPERTIES LABELS integration TIMEOUT 60
                                                            PASS_REGULAR_EXPRESSION "\n1 figures, 0 wrong")

find_package(Python3 COMPONENTS Interpreter REQUIRED)
add_test(NAME gpu_scripts_test
         COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_LIST_DIR}/scripts_test.py)
set_tests_properties(gpu_scripts_test PROPERTIES LABELS integration TIMEOUT 60)

# The scripts that drive servers, in tiny sizes on the emulated kernels. Sanitizers have the tests of
# the programs themselves.
if(QUIRE_SANITIZER)
  return()
endif()
set(gpu_small_cache "--kv-cache-memory-bytes 64MiB")
set(gpu_bundled_model ${PROJECT_SOURCE_DIR}/deploy/model)
function(gpu_script_rehearsal name script)
  set(bin ${PROJECT_BINARY_DIR}/bin)
  add_test(
    NAME gpu_${name}_rehearsal
    COMMAND
      ${Python3_EXECUTABLE} ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/${script} --bin ${bin} --lib ${bin}
      --library-path ${bin} --device emu --device-flags ${gpu_small_cache} --limit-seconds 280
      --json ${CMAKE_CURRENT_BINARY_DIR}/gpu_${name}_rehearsal.json ${ARGN})
  set_tests_properties(gpu_${name}_rehearsal PROPERTIES LABELS integration TIMEOUT 300)
endfunction()
gpu_script_rehearsal(served served_test.py --model ${gpu_bundled_model} --prompts 2 --tokens 8
                     --bench-prompts 2)
gpu_script_rehearsal(company company_test.py --model ${gpu_bundled_model} --requests 24 --prompts 6
                     --longest-prompt 40 --concurrency 4 --step-tokens 32)
gpu_script_rehearsal(large large_model_bench.py --shape tiny --batch 4 --context 20 --tokens 100)
gpu_script_rehearsal(transformers transformers_peer.py --shape tiny --requests 6 --context 20
                     --tokens 16)
