// KvWindows gives each sequence a window: a range of places in which its blocks are shown one
// behind the other. What a window shows follows from the block table that the worker has anyway.
//
// Nothing is taken down when a sequence ends. The next one that gets the window finds what is shown
// there, and only places that hold another block than its own are mapped anew (deferred
// reclamation). A block that is likely to come next can be mapped ahead, on a thread of its own
// beside the running step; where it came otherwise, the place is mapped anew like any other.
//
// Where the system allows no more mappings, windows without a sequence are taken down; where that
// does not help, Show says no, and the step reads through block tables.
//
// Thread safety: one caller at a time (the executor thread).
// Invariants:    a place shows nothing or a block of the pool; of a window with a sequence the
//                first num_shown places show the sequence's blocks, but for null blocks.
// Cost:          a step costs O(new blocks) and a call into the system for each run of them.
// Source:        vAttention, Prabhu et al. 2024, sections 5.3 and 6.2.
#ifndef QUIRE_WORKER_KV_CACHE_KV_WINDOWS_H_
#define QUIRE_WORKER_KV_CACHE_KV_WINDOWS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"

#include "common/base/ids.h"
#include "kernels/api/kernel_backend.h"
#include "worker/kv_cache/place_mapper.h"

namespace quire {

// Since the windows were made, in places.
struct WindowCounts {
  int64_t num_found = 0;         // showed what was wanted, from a sequence before
  int64_t num_mapped = 0;        // on the caller's path
  int64_t num_mapped_ahead = 0;  // and wanted later
  int64_t num_taken_down = 0;
};

class KvWindows {
 public:
  // num_windows: sequence handles; window_blocks: the most blocks of a sequence. All places show
  // nothing. The backend and the memory, which has a place for each block of each window, outlive
  // the windows. Errors: those of WindowMemory::Unmap.
  static absl::StatusOr<std::unique_ptr<KvWindows>> Create(KernelBackend& backend,
                                                           WindowMemory& memory,
                                                           int32_t num_windows,
                                                           int32_t window_blocks);
  KvWindows(const KvWindows&) = delete;
  KvWindows& operator=(const KvWindows&) = delete;

  // A sequence begins: nothing of its window is known to be its own. One that has the window
  // already is forgotten.
  void Begin(SequenceHandle handle);
  void End(SequenceHandle handle);

  // The window shows these blocks, which begin with those of the last call since Begin; null blocks
  // show anything or nothing. False: there is no room, and the window shows less.
  bool Show(SequenceHandle handle, std::span<const BlockId> block_ids);

  // The block behind those that are shown is likely to be this one. Where there is no room it is
  // left out.
  void Expect(SequenceHandle handle, BlockId block);
  // What was expected is mapped from now on, beside what the caller does next. Without it the next
  // Show waits for that.
  void StartAhead();

  int64_t FirstPlace(SequenceHandle handle) const { return int64_t{handle} * window_blocks_; }
  // Places that show something.
  int64_t num_mapped() const { return num_mapped_; }
  int64_t max_mapped() const { return memory_.max_mapped_places(); }
  const WindowCounts& counts() const { return counts_; }

 private:
  struct Window {
    int32_t num_shown = 0;   // blocks of its sequence
    int32_t num_mapped = 0;  // places that show something
    int32_t ahead = -1;      // a place that was mapped ahead and not wanted yet
    bool is_used = false;
  };

  KvWindows(KernelBackend& backend,
            WindowMemory& memory,
            int32_t num_windows,
            int32_t window_blocks);

  // Whether the place shows the block, or need show none; counts what was found.
  bool IsFound(SequenceHandle handle, int32_t index, BlockId block);
  // The block and its neighbours from the place on.
  bool Map(SequenceHandle handle, int32_t index, BlockId block, int32_t count);
  // How many of the places show nothing.
  int64_t NumEmpty(SequenceHandle handle, int32_t index, int32_t count) const;
  bool MakeRoomFor(int64_t num_places);
  bool TakeDown(SequenceHandle handle);
  void AwaitAhead();
  // A place shows another block from now on; null: nothing.
  void Note(SequenceHandle handle, int32_t index, BlockId block);
  BlockId ShownAt(SequenceHandle handle, int32_t index) const {
    return shown_[static_cast<size_t>(FirstPlace(handle) + index)];
  }

  WindowMemory& memory_;
  const int32_t window_blocks_;
  std::vector<Window> windows_;  // by handle
  std::vector<BlockId> shown_;   // by place; null: nothing
  int64_t num_mapped_ = 0;
  WindowCounts counts_;

  std::vector<MapOrder> ahead_;  // expected, or under way
  bool is_ahead_under_way_ = false;
  PlaceMapper mapper_;
};

}  // namespace quire

#endif  // QUIRE_WORKER_KV_CACHE_KV_WINDOWS_H_
