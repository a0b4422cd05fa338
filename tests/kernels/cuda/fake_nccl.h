// FakeNccl is a library with the functions of NCCL that we use, for ranks that are threads of one
// process and devices that are emulated: what surrounds the library is tested on the CPU with it.
//
// It is as hard to please as the real one may be: every call leaves the communicator in progress
// until its state was asked for twice, and only then is an operation on its stream. What no caller
// may do is kept as a mistake, and the call fails: an unknown or ended communicator, a call while
// another is in progress, ranks that differ in order, kind, count or type of their operations, a
// second rank of one number.
//
// Thread safety: any thread.
#ifndef QUIRE_TESTS_KERNELS_CUDA_FAKE_NCCL_H_
#define QUIRE_TESTS_KERNELS_CUDA_FAKE_NCCL_H_

#include <atomic>
#include <functional>
#include <string>
#include <vector>

namespace quire::gpu {

struct FakeNccl {
  // Puts an operation on a stream of the emulated devices that reads or writes `memory` and is run
  // when is_ready says so. 0 or an error.
  using Enqueue = int (*)(void* stream,
                          const void* memory,
                          std::function<bool()> is_ready,
                          std::function<int()> run);
  Enqueue enqueue = nullptr;

  // What it is like.
  std::atomic<bool> connects = true;      // else a communicator stays in progress
  std::atomic<int> operations_left = -1;  // then none of any rank ends any more; -1: no limit
  std::atomic<int> failing_rank = -1;     // its communicator has an asynchronous error
  std::atomic<bool> aborts = true;        // else an end hangs

  // What was asked of it.
  std::atomic<int> num_connected = 0;
  std::atomic<int> num_ended = 0;
  std::atomic<int> num_operations = 0;
  std::atomic<int> most_under_way = 0;  // operations on all streams

  // Callers' mistakes since the last call.
  std::vector<std::string> (*take_mistakes)() = nullptr;
};

// What the library exports: a function of this name and type.
inline constexpr char kFakeNcclSymbol[] = "quire_fake_nccl";
using FakeNcclFunction = FakeNccl* (*)();

}  // namespace quire::gpu

#endif  // QUIRE_TESTS_KERNELS_CUDA_FAKE_NCCL_H_
