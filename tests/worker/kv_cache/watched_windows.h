// WatchedWindows is a WindowMemory that records every Map call, and so knows from its own record
// which block each place shows. A test can give it a limit, or make it fail or forget a mapping.
//
// With another memory below, each mapping that is neither failed nor forgotten happens there as
// well. Without one, the pool and the places are addresses that must not be read or written.
//
// Thread safety: as WindowMemory. A reader of the record must have waited for the mapping threads.
#ifndef QUIRE_TESTS_WORKER_KV_CACHE_WATCHED_WINDOWS_H_
#define QUIRE_TESTS_WORKER_KV_CACHE_WATCHED_WINDOWS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/error.h"
#include "kernels/api/window_memory.h"

namespace quire {

class WatchedWindows : public WindowMemory {
 public:
  struct MapCall {
    int64_t place = 0;
    BlockId block = kNullBlockId;
    int64_t count = 0;
    std::thread::id thread = {};
  };
  enum class Fate : uint8_t { kDone, kFails, kForgotten };
  // Decides the fate of a Map call. `shows`: whether the call's first place shows a block before.
  using Judge = std::function<Fate(const MapCall& call, bool shows)>;

  explicit WatchedWindows(const WindowShape& shape)
      : WindowMemory(shape, nullptr, nullptr), shown_(NumPlaces(shape), kNullBlockId) {}
  explicit WatchedWindows(WindowMemory& below)
      : WindowMemory(below.shape(), below.pool(), below.windows()),
        below_(&below),
        shown_(NumPlaces(below.shape()), kNullBlockId),
        limit_(below.max_mapped_places()) {}

  void LimitTo(int64_t num_places) { limit_ = num_places; }
  void JudgeBy(Judge judge) { judge_ = std::move(judge); }

  // The block that the place shows; the null block if it shows none.
  BlockId ShownAt(int64_t place) const { return shown_[static_cast<size_t>(place)]; }
  int64_t num_shown() const {
    return static_cast<int64_t>(shown_.size()) -
           std::count(shown_.begin(), shown_.end(), kNullBlockId);
  }
  // The calls of Map since the last call of this function.
  std::vector<MapCall> TakeMapCalls() { return std::exchange(map_calls_, {}); }

  int64_t max_mapped_places() const override { return limit_; }

  absl::Status Map(int64_t place, BlockId block, int64_t count) override {
    const MapCall call = {
        .place = place, .block = block, .count = count, .thread = std::this_thread::get_id()};
    map_calls_.push_back(call);
    const Fate fate = judge_ ? judge_(call, ShownAt(place) != kNullBlockId) : Fate::kDone;
    if (fate == Fate::kForgotten) {
      return absl::OkStatus();
    }
    if (fate == Fate::kFails) {
      absl::Status unmapped = Unmap(place, count);
      return unmapped.ok()
                 ? Error(absl::StatusCode::kResourceExhausted, "MEMORY", "windows: on purpose")
                 : unmapped;
    }
    for (int64_t i = 0; i < count; ++i) {
      shown_[static_cast<size_t>(place + i)] = static_cast<BlockId>(block + i);
    }
    return below_ == nullptr ? absl::OkStatus() : below_->Map(place, block, count);
  }

  absl::Status Unmap(int64_t place, int64_t count) override {
    std::fill_n(shown_.begin() + place, count, kNullBlockId);
    return below_ == nullptr ? absl::OkStatus() : below_->Unmap(place, count);
  }

  absl::Status Clear() override { return below_ == nullptr ? absl::OkStatus() : below_->Clear(); }

 private:
  static size_t NumPlaces(const WindowShape& shape) {
    return static_cast<size_t>(shape.num_places);
  }

  WindowMemory* const below_ = nullptr;
  std::vector<BlockId> shown_;  // by place
  std::vector<MapCall> map_calls_;
  int64_t limit_ = std::numeric_limits<int64_t>::max();
  Judge judge_;
};

}  // namespace quire

#endif  // QUIRE_TESTS_WORKER_KV_CACHE_WATCHED_WINDOWS_H_
