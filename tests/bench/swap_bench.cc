// How fast the CPU worker swaps: blocks scattered over the pool to host blocks and back through
// BlockMover, beside memcpy of as many bytes in one piece by as many threads, in memory of the same
// kind, measured in turns in the same run. The best of several passes each. Blocks are those of a
// model with 16 layers and 8 KV heads of 64 in bf16: 32 KiB a token.
//
//   swap_bench [threads]
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "common/base/clock.h"
#include "kernels/cpu/cpu_backend.h"
#include "tests/support/random.h"
#include "worker/kv_cache/block_mover.h"
#include "worker/kv_cache/kv_cache_storage.h"

namespace quire {
namespace {

constexpr int32_t kPoolTokens = 8192;
constexpr int32_t kSwappedTokens = 4096;  // 128 MiB, in no cache
constexpr int kPasses = 60;

// Every page of it is real memory.
std::unique_ptr<DeviceMemory> Buffer(KernelBackend& backend, int64_t bytes) {
  auto memory = backend.AllocateHost(bytes);
  QUIRE_CHECK(memory.ok());
  std::memset((*memory)->data(), 1, static_cast<size_t>(bytes));
  return *std::move(memory);
}

void CopyInShares(void* to, const void* from, int64_t bytes, int num_threads) {
  const auto size = static_cast<size_t>(bytes);
  const size_t share = size / static_cast<size_t>(num_threads);
  const auto copy = [&](int thread) {
    const size_t begin = share * static_cast<size_t>(thread);
    const size_t end = thread + 1 == num_threads ? size : begin + share;
    std::memcpy(
        static_cast<char*>(to) + begin, static_cast<const char*>(from) + begin, end - begin);
  };
  std::vector<std::thread> threads;
  for (int thread = 1; thread < num_threads; ++thread) {
    threads.emplace_back(copy, thread);
  }
  copy(0);
  for (std::thread& thread : threads) {
    thread.join();
  }
}

template <typename Fn>
void KeepBest(double* best_seconds, const Fn& fn) {
  const Instant begin = SteadyNow();
  fn();
  const double seconds = static_cast<double>(SteadyNow() - begin) / double{kNanosPerSecond};
  *best_seconds = std::min(*best_seconds, seconds);
}

std::vector<int32_t> Shuffled(int32_t first, int32_t count, Random& random) {
  std::vector<int32_t> numbers(static_cast<size_t>(count));
  std::iota(numbers.begin(), numbers.end(), first);
  for (int32_t i = count - 1; i > 0; --i) {
    std::swap(numbers[static_cast<size_t>(i)], numbers[static_cast<size_t>(random.Below(i + 1))]);
  }
  return numbers;
}

void Run(KernelBackend& backend, int num_threads, int32_t block_size_tokens) {
  const int32_t num_blocks = kPoolTokens / block_size_tokens + 1;
  const int32_t num_swapped = kSwappedTokens / block_size_tokens;
  const KvCacheLayout layout = DimMajorKeys({.num_layers = 16,
                                             .num_kv_heads = 8,
                                             .head_dim = 64,
                                             .block_size_tokens = block_size_tokens,
                                             .dtype = DType::kBF16});
  auto storage = KvCacheStorage::Create(backend, layout, num_blocks);
  QUIRE_CHECK(storage.ok());
  const KvCacheView& pool = (*storage)->view();
  std::memset(pool.base, 1, static_cast<size_t>(layout.block_bytes() * num_blocks));
  auto mover = BlockMover::Create(backend, pool, num_swapped);
  QUIRE_CHECK(mover.ok());
  const int64_t bytes = layout.block_bytes() * num_swapped;
  const std::unique_ptr<DeviceMemory> from = Buffer(backend, bytes);
  const std::unique_ptr<DeviceMemory> to = Buffer(backend, bytes);

  Random random(1);
  const std::vector<int32_t> blocks = Shuffled(1, num_blocks - 1, random);
  const std::vector<int32_t> host_blocks = Shuffled(0, num_swapped, random);
  std::vector<BlockSwapOut> swap_outs;
  std::vector<BlockSwapIn> swap_ins;
  for (size_t i = 0; i < host_blocks.size(); ++i) {
    swap_outs.push_back({.block = blocks[i], .host_block = host_blocks[i]});
    swap_ins.push_back({.block = blocks[i], .host_block = host_blocks[i]});
  }
  double copy_s = 1e30;
  double out_s = 1e30;
  double in_s = 1e30;
  uint64_t step_id = 0;
  for (int pass = 0; pass < kPasses; ++pass) {
    KeepBest(&copy_s, [&] { CopyInShares(to->data(), from->data(), bytes, num_threads); });
    KeepBest(&out_s, [&] {
      (*mover)->SwapOut(swap_outs, ++step_id);
      (*mover)->FinishSwaps();
    });
    for (BlockSwapIn& swap : swap_ins) {
      swap.generation = step_id;
    }
    KeepBest(&in_s, [&] {
      QUIRE_CHECK((*mover)->SwapIn(swap_ins, ++step_id).empty());
      (*mover)->FinishSwaps();
    });
  }
  const double gigabytes = static_cast<double>(bytes) / 1e9;
  std::printf("%10d %12lld %10.2f %10.2f %10.2f %8.2f %8.2f\n",
              block_size_tokens,
              static_cast<long long>(layout.block_bytes()),
              gigabytes / copy_s,
              gigabytes / out_s,
              gigabytes / in_s,
              copy_s / out_s,
              copy_s / in_s);
}

}  // namespace
}  // namespace quire

int main(int argc, char** argv) {
  const int num_threads = argc > 1 ? std::atoi(argv[1]) : 1;
  auto backend = quire::CreateCpuBackend({.num_threads = num_threads});
  if (num_threads < 1 || !backend.ok()) {
    std::fprintf(stderr, "threads: at least 1\n");
    return 1;
  }
  std::printf("%d threads, GB/s, and what part of memcpy\n", num_threads);
  std::printf("block size  block bytes     memcpy   swap out    swap in      out       in\n");
  for (const int32_t block_size_tokens : {1, 4, 16, 64, 256}) {
    quire::Run(**backend, num_threads, block_size_tokens);
  }
  return 0;
}
