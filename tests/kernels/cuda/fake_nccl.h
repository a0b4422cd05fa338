// FakeNccl is a library with the functions of NCCL that Quire uses. Its ranks are threads of one
// process, and its devices are emulated. Tests on the CPU use it to check the code that calls NCCL.
//
// It is as strict as the real library may be. Every call leaves the communicator in progress until
// its state was asked for twice, and only then is an operation on its stream. A caller's mistake is
// recorded, and the call fails. An operation in a graph takes part in a new collective at each
// launch of the graph. The mistakes: an unknown or ended communicator; a call while another is in
// progress; ranks that differ in order, kind, count or type of their operations; a second rank of
// one number.
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
  // Puts an operation on a stream of the emulated devices. It reads or writes `memory`, and runs
  // when is_ready returns true. Returns 0 or an error.
  using Enqueue = int (*)(void* stream,
                          const void* memory,
                          std::function<bool()> is_ready,
                          std::function<int()> run);
  Enqueue enqueue = nullptr;
  // Whether operations on the stream are being recorded in a graph.
  bool (*is_recording)(void* stream) = nullptr;

  // The library's properties.
  std::atomic<bool> connects = true;      // else a communicator stays in progress
  std::atomic<int> operations_left = -1;  // then none of any rank ends any more; -1: no limit
  std::atomic<int> failing_rank = -1;     // its communicator has an asynchronous error
  std::atomic<bool> aborts = true;        // else an end hangs

  // Counts of the calls that were made.
  std::atomic<int> num_connected = 0;
  std::atomic<int> num_ended = 0;
  std::atomic<int> num_operations = 0;
  std::atomic<int> most_under_way = 0;  // operations on all streams

  // Takes the callers' mistakes since the last call.
  std::vector<std::string> (*take_mistakes)() = nullptr;
};

// The library exports a function of this name and type.
inline constexpr char kFakeNcclSymbol[] = "quire_fake_nccl";
using FakeNcclFunction = FakeNccl* (*)();

}  // namespace quire::gpu

#endif  // QUIRE_TESTS_KERNELS_CUDA_FAKE_NCCL_H_
