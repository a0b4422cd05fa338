#include "kernels/collective/communicator.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

#include "common/base/clock.h"
#include "common/base/error.h"

namespace quire {
namespace {

constexpr int32_t kNobody = -1;

absl::Status Broken(const std::string& rule) {
  return Error(absl::StatusCode::kUnavailable, "GROUP_BROKEN", rule);
}

absl::Status OfRank(int32_t rank, const absl::Status& status) {
  return Error(status.code(),
               ReasonOf(status),
               "rank " + std::to_string(rank) + ": " + std::string(status.message()));
}

}  // namespace

template <typename T, typename Fn>
void Communicator::MergeWithAll(std::span<T> data, const Fn& fn) {
  for (size_t k = 0; k < links_.size(); ++k) {
    const bool is_lower = rank_ < Partner(k);
    const auto merge = [&](size_t offset, std::span<const std::byte> piece) {
      const size_t count = piece.size() / sizeof(T);
      T* own = data.data() + offset / sizeof(T);
      const T* other = reinterpret_cast<const T*>(piece.data());
      if (is_lower) {
        std::transform(own, own + count, other, own, fn);
      } else {
        std::transform(other, other + count, own, own, fn);
      }
    };
    if (!Run(k, [&](PeerLink& link) { return link.Merge(std::as_bytes(data), merge); })) {
      return;
    }
  }
}

Communicator::Communicator(int32_t rank,
                           std::vector<PeerLink> links,
                           std::shared_ptr<std::atomic<int32_t>> waits_for_rank)
    : rank_(rank), links_(std::move(links)), waits_for_rank_(std::move(waits_for_rank)) {}

void Communicator::AllReduce(std::span<float> data) {
  MergeWithAll(data, [](float low, float high) { return low + high; });
}

void Communicator::AllReduceBits(std::span<uint32_t> data) {
  MergeWithAll(data, [](uint32_t low, uint32_t high) { return low | high; });
}

// Gathers along a binomial tree. In round k, a rank whose number has bit k set sends all its parts
// to the rank that is 2^k lower, and is done. Each remaining rank receives the parts of 2^k ranks.
// Each part is [num_rows, width].
void Communicator::Gather(int64_t num_rows,
                          std::span<const int64_t> widths,
                          const float* part,
                          float* whole) {
  const auto elements = [&](int32_t begin, int32_t end) {
    const auto run = widths.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
    return num_rows * std::accumulate(run.begin(), run.end(), int64_t{0});
  };
  auto* parts =
      reinterpret_cast<float*>(Scratch(static_cast<size_t>(elements(0, size())) * sizeof(float)));
  std::copy_n(part, elements(rank_, rank_ + 1), parts);
  for (size_t k = 0; k < links_.size(); ++k) {
    const int32_t run = int32_t{1} << k;
    const int64_t held = elements(rank_, rank_ + run);
    if ((rank_ & run) != 0) {
      static_cast<void>(
          Exchange(k, std::as_bytes(std::span(parts, static_cast<size_t>(held))), {}));
      return;
    }
    const auto coming = static_cast<size_t>(elements(rank_ + run, rank_ + 2 * run));
    if (!Exchange(k, {}, std::as_writable_bytes(std::span(parts + held, coming)))) {
      return;
    }
  }
  for (int64_t row = 0; row < num_rows; ++row) {
    const float* from = parts;
    for (const int64_t width : widths) {
      whole = std::copy_n(from + row * width, width, whole);
      from += num_rows * width;
    }
  }
}

void Communicator::Broadcast(std::span<std::byte> data) {
  for (size_t k = 0; k < links_.size(); ++k) {
    const int32_t run = int32_t{1} << k;
    if (rank_ < run) {
      if (!Exchange(k, data, {})) {
        return;
      }
    } else if (rank_ < 2 * run && !Exchange(k, {}, data)) {
      return;
    }
  }
}

bool Communicator::Exchange(size_t k, std::span<const std::byte> out, std::span<std::byte> in) {
  return Run(k, [&](PeerLink& link) { return link.Exchange(out, in); });
}

bool Communicator::Run(size_t k, absl::FunctionRef<absl::Status(PeerLink&)> operation) {
  if (!status().ok()) {
    return false;
  }
  WaitFor(Partner(k));
  const Instant begin = SteadyNow();
  const absl::Status status = operation(links_[k]);
  busy_nanos_ += SteadyNow() - begin;
  WaitFor(kNobody);
  if (!status.ok()) {
    Break(OfRank(Partner(k), status));
  }
  return status.ok();
}

bool Communicator::CheckLinks() {
  for (size_t k = 0; k < links_.size(); ++k) {
    if (links_[k].has_ended()) {
      Break(OfRank(Partner(k), Broken("the other end has closed")));
    }
  }
  return status().ok();
}

void Communicator::SetWaiting(bool waits) { WaitFor(waits ? (rank_ + 1) % size() : kNobody); }

void Communicator::WaitFor(int32_t rank) {
  if (waits_for_rank_ != nullptr) {
    waits_for_rank_->store(rank, std::memory_order_relaxed);
  }
}

void Communicator::Abort() { Break(Broken("group: aborted")); }

void Communicator::Break(const absl::Status& reason) {
  {
    const MutexLock lock(mutex_);
    if (status_.ok()) {
      status_ = reason;
    }
  }
  for (const PeerLink& link : links_) {
    link.Abort();
  }
}

absl::Status Communicator::status() const {
  const MutexLock lock(mutex_);
  return status_;
}

std::byte* Communicator::Scratch(size_t bytes) {
  if (scratch_.size() < bytes) {
    scratch_.resize(bytes);
  }
  return scratch_.data();
}

}  // namespace quire
