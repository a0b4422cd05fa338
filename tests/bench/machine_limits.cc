#include "tests/bench/machine_limits.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <thread>
#include <vector>

namespace quire {
namespace {

constexpr int kPasses = 40;  // short ones: the best, which nothing disturbed, counts

template <typename Fn>
double SecondsOfBestPass(int num_threads, const Fn& fn) {
  double best = 1e30;
  for (int pass = 0; pass < kPasses; ++pass) {
    const auto start = std::chrono::steady_clock::now();
    std::vector<std::thread> threads;
    for (int thread = 1; thread < num_threads; ++thread) {
      threads.emplace_back([&fn, thread] { fn(thread); });
    }
    fn(0);
    for (std::thread& thread : threads) {
      thread.join();
    }
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
    best = std::min(best, taken.count());
  }
  return best;
}

#if defined(__x86_64__)

// Enough independent chains for any latency, and one register more for each factor.
#define QUIRE_FMA_LOOP(Vec, kChains, constraint, fma)                 \
  Vec chains[kChains] = {};                                           \
  Vec factor = {};                                                    \
  for (int64_t i = 0; i < steps; ++i) {                               \
    for (Vec & chain : chains) {                                      \
      asm volatile(fma : "+" constraint(chain) : constraint(factor)); \
    }                                                                 \
  }

using Vec512 = float __attribute__((vector_size(64)));
using Vec256 = float __attribute__((vector_size(32)));

__attribute__((target("avx512f"))) int64_t RunFma512(int64_t steps) {
  QUIRE_FMA_LOOP(Vec512, 24, "v", "vfmadd231ps %1, %1, %0")
  return steps * 24 * 16 * 2;
}

__attribute__((target("avx2,fma"))) int64_t RunFma256(int64_t steps) {
  QUIRE_FMA_LOOP(Vec256, 12, "x", "vfmadd231ps %1, %1, %0")
  return steps * 12 * 8 * 2;
}

#undef QUIRE_FMA_LOOP

int64_t RunFma(int64_t steps) {
  if (__builtin_cpu_supports("avx512f")) {
    return RunFma512(steps);
  }
  return __builtin_cpu_supports("fma") ? RunFma256(steps) : 0;
}

#else

int64_t RunFma(int64_t /*steps*/) { return 0; }

#endif

template <typename Fn>
double Cached(std::map<int, double>* values, int num_threads, const Fn& measure) {
  const auto [value, is_new] = values->try_emplace(num_threads, 0.0);
  if (is_new) {
    value->second = measure(num_threads);
  }
  return value->second;
}

}  // namespace

double MeasureFmaPeak(int num_threads) {
  constexpr int64_t kSteps = 100'000;
  std::vector<int64_t> operations(static_cast<size_t>(num_threads));
  const double seconds = SecondsOfBestPass(
      num_threads, [&](int thread) { operations[static_cast<size_t>(thread)] = RunFma(kSteps); });
  double total = 0.0;
  for (const int64_t count : operations) {
    total += static_cast<double>(count);
  }
  return total / seconds;
}

double MeasureMemoryRead(int num_threads) {
  constexpr size_t kWords = size_t{32} << 20;  // 256 MiB
  const std::vector<uint64_t> memory(kWords, 1);
  std::vector<uint64_t> sums(static_cast<size_t>(num_threads) * 8);
  const double seconds = SecondsOfBestPass(num_threads, [&](int thread) {
    const size_t share = kWords / static_cast<size_t>(num_threads);
    const uint64_t* begin = memory.data() + static_cast<size_t>(thread) * share;
    uint64_t sum = 0;
    for (size_t i = 0; i < share; ++i) {
      sum += begin[i];
    }
    sums[static_cast<size_t>(thread) * 8] = sum;
  });
  return sums[0] == 0 ? 0.0 : static_cast<double>(kWords * sizeof(uint64_t)) / seconds;
}

double CachedFmaPeak(int num_threads) {
  static std::map<int, double> values;
  return Cached(&values, num_threads, MeasureFmaPeak);
}

double CachedMemoryRead(int num_threads) {
  static std::map<int, double> values;
  return Cached(&values, num_threads, MeasureMemoryRead);
}

}  // namespace quire
