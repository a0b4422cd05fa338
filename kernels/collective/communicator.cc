#include "kernels/collective/communicator.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

#include "common/base/error.h"

namespace quire {
template <typename T, typename Fn>
void Communicator::MergeWithAll(std::span<T> data, const Fn& fn) {
  const std::span<T> other(reinterpret_cast<T*>(Scratch(data.size_bytes())), data.size());
  for (size_t k = 0; k < links_.size(); ++k) {
    if (!Exchange(k, std::as_bytes(data), std::as_writable_bytes(other))) {
      return;
    }
    const bool is_lower = rank_ < Partner(k);
    const std::span<T> low = is_lower ? data : other;
    const std::span<T> high = is_lower ? other : data;
    for (size_t i = 0; i < data.size(); ++i) {
      data[i] = fn(low[i], high[i]);
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

// A rank holds the parts of a growing run of ranks, each [num_rows, width], one after another,
// until it hands them down.
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
  if (!status().ok()) {
    return false;
  }
  const auto wait_for = [this](int32_t rank) {
    if (waits_for_rank_ != nullptr) {
      waits_for_rank_->store(rank, std::memory_order_relaxed);
    }
  };
  wait_for(Partner(k));
  const absl::Status status = links_[k].Exchange(out, in);
  wait_for(-1);
  if (status.ok()) {
    return true;
  }
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (status_.ok()) {
      status_ = Error(status.code(),
                      ReasonOf(status),
                      "rank " + std::to_string(Partner(k)) + ": " + std::string(status.message()));
    }
  }
  Abort();
  return false;
}

void Communicator::Abort() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (status_.ok()) {
      status_ = Error(absl::StatusCode::kUnavailable, "GROUP_BROKEN", "group: aborted");
    }
  }
  for (const PeerLink& link : links_) {
    link.Abort();
  }
}

absl::Status Communicator::status() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return status_;
}

std::byte* Communicator::Scratch(size_t bytes) {
  if (scratch_.size() < bytes) {
    scratch_.resize(bytes);
  }
  return scratch_.data();
}

}  // namespace quire
