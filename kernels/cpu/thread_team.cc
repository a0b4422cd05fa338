#include "kernels/cpu/thread_team.h"

#include <chrono>
#include <limits>
#include <new>

#include "common/base/check.h"
#include "common/base/cpu_pause.h"
#include "common/base/math.h"

namespace quire {
namespace {

constexpr size_t kScratchAlignment = 64;

// Waits until `value` is no longer `old`. Spins first, then sleeps.
void WaitWhile(const std::atomic<uint32_t>& value, uint32_t old) {
  constexpr int kPausesPerClockRead = 16;
  const auto give_up = std::chrono::steady_clock::now() +  //
                       std::chrono::microseconds(ThreadTeam::kSpinMicros);
  do {
    for (int i = 0; i < kPausesPerClockRead; ++i) {
      if (value.load(std::memory_order_acquire) != old) {
        return;
      }
      CpuPause();
    }
  } while (std::chrono::steady_clock::now() < give_up);
  value.wait(old, std::memory_order_acquire);
}

}  // namespace

struct alignas(64) ThreadTeam::ScratchBuffer {
  struct Free {
    void operator()(std::byte* p) const {
      ::operator delete[](p, std::align_val_t{kScratchAlignment});
    }
  };
  // Returns null if there is no memory. If the buffer grows, its contents are lost.
  std::byte* Reserve(size_t wanted) {
    if (bytes < wanted) {
      bytes = 0;
      memory.reset();  // frees the old memory first, since old and new might not fit together
      const size_t rounded = RoundUp(wanted, size_t{4096});
      memory.reset(static_cast<std::byte*>(
          ::operator new[](rounded, std::align_val_t{kScratchAlignment}, std::nothrow)));
      bytes = memory == nullptr ? 0 : rounded;
    }
    return memory.get();
  }

  std::unique_ptr<std::byte, Free> memory;
  size_t bytes = 0;
};

ThreadTeam::ThreadTeam(int num_threads)
    : num_threads_(num_threads),
      scratch_(std::make_unique<ScratchBuffer[]>(static_cast<size_t>(num_threads) + 1)) {
  QUIRE_CHECK(num_threads >= 1 && num_threads <= kMaxThreads);
  threads_.reserve(static_cast<size_t>(num_threads - 1));
  for (int thread = 1; thread < num_threads; ++thread) {
    threads_.emplace_back([this, thread] { WorkerLoop(thread); });
  }
}

ThreadTeam::~ThreadTeam() {
  stopping_.store(true, std::memory_order_relaxed);
  job_.fetch_add(1, std::memory_order_release);
  job_.notify_all();
  for (std::thread& thread : threads_) {
    thread.join();
  }
}

void* ThreadTeam::Scratch(int thread, size_t bytes) {
  std::byte* const memory = scratch_[static_cast<size_t>(thread)].Reserve(bytes);
  // Ends the process if memory is lacking, since operations return no errors.
  QUIRE_CHECK(memory != nullptr || bytes == 0);
  return memory;
}

bool ThreadTeam::ReserveScratch(size_t bytes) {
  for (int thread = 0; thread < num_threads_; ++thread) {
    if (bytes > 0 && scratch_[static_cast<size_t>(thread)].Reserve(bytes) == nullptr) {
      return false;
    }
  }
  return true;
}

void ThreadTeam::RunTasks(int64_t num_tasks, TaskFunction function, const void* context) {
  QUIRE_CHECK(num_tasks < std::numeric_limits<uint32_t>::max());
  const uint32_t job = job_.load(std::memory_order_relaxed) + 1;
  function_ = function;
  context_ = context;
  num_tasks_ = static_cast<uint32_t>(num_tasks);
  unfinished_.store(num_tasks_, std::memory_order_relaxed);
  ticket_.store(uint64_t{job} << 32 | num_tasks_, std::memory_order_release);
  job_.store(job, std::memory_order_release);
  job_.notify_all();

  WorkOnTasks(0);
  WaitForTasks();
}

void ThreadTeam::WorkOnTasks(int thread) {
  uint64_t ticket = ticket_.load(std::memory_order_acquire);
  while (static_cast<uint32_t>(ticket) != 0) {
    if (!ticket_.compare_exchange_weak(
            ticket, ticket - 1, std::memory_order_acq_rel, std::memory_order_acquire)) {
      continue;
    }
    function_(context_, num_tasks_ - static_cast<uint32_t>(ticket), thread);
    if (unfinished_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
      unfinished_.notify_one();
    }
    ticket = ticket_.load(std::memory_order_acquire);
  }
}

void ThreadTeam::WaitForTasks() {
  uint32_t unfinished = unfinished_.load(std::memory_order_acquire);
  while (unfinished != 0) {
    WaitWhile(unfinished_, unfinished);
    unfinished = unfinished_.load(std::memory_order_acquire);
  }
}

void ThreadTeam::WorkerLoop(int thread) {
  uint32_t seen = 0;
  while (true) {
    WaitWhile(job_, seen);
    seen = job_.load(std::memory_order_acquire);
    if (stopping_.load(std::memory_order_relaxed)) {
      return;
    }
    WorkOnTasks(thread);
  }
}

}  // namespace quire
