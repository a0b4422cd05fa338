// KvWindows gives each sequence a window: an address range, divided into places as long as a block.
// The sequence's blocks are mapped to the window's first places, in order. A place "shows" a block
// of the pool if the block is mapped to it.
//
// Several blocks with consecutive ids can share a page, the smallest range that a system maps. Then
// a place is as long as a page and shows a whole page. Comments below call such a page a "block"
// too. Public parameters name and count real blocks. A sequence can be shown only if each run of
// blocks_per_page of its blocks fills a page in order. Otherwise Show returns false, as if no
// mapping were left.
//
// The end of a sequence unmaps nothing. For the window's next sequence, a block is mapped only if
// its place does not show it yet (deferred reclamation). Blocks can be mapped ahead, on a separate
// thread while a step runs. These are the block that a sequence probably gets next, and the
// probable first blocks of the next new sequence. The window that this new sequence probably gets
// is the spare window. If a guess was wrong, Show maps the right block to the place.
//
// If the system allows no more mappings, windows without a sequence are unmapped, the spare window
// last. If that does not suffice, Show returns false, and the step's attention reads block tables
// instead of windows.
//
// Thread safety: one caller at a time (the executor thread).
// Invariants:    a place shows nothing or a block of the pool; a window shows the first
//                Window::num_shown blocks of its sequence in order, except null blocks.
// Cost:          per step O(new blocks), and one system call for each run of consecutive block ids.
// Source:        vAttention, Prabhu et al. 2024, sections 5.3 and 6.2.
#ifndef QUIRE_WORKER_KV_CACHE_KV_WINDOWS_H_
#define QUIRE_WORKER_KV_CACHE_KV_WINDOWS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"

#include "common/base/ids.h"
#include "kernels/api/kernel_backend.h"
#include "worker/kv_cache/place_mapper.h"

namespace quire {

// Numbers of places (block-sized parts of windows), counted since the windows were created.
struct WindowCounts {
  int64_t num_found = 0;         // already had the needed block, left by an earlier sequence
  int64_t num_mapped = 0;        // mapped by Show, while its caller waited
  int64_t num_mapped_ahead = 0;  // had the needed block, mapped ahead by StartAhead
  int64_t num_taken_down = 0;    // unmapped because max_mapped() was reached
};

class KvWindows {
 public:
  // Unmaps all places. num_windows: number of sequence handles. window_blocks: upper bound on the
  // blocks of a sequence. blocks_per_page: number of KV blocks in one block of `memory`. The
  // backend and the memory must outlive the windows. REQUIRES: memory has num_windows *
  // ceil(window_blocks / blocks_per_page) places. Errors: those of WindowMemory::Unmap.
  static absl::StatusOr<std::unique_ptr<KvWindows>> Create(KernelBackend& backend,
                                                           WindowMemory& memory,
                                                           int32_t num_windows,
                                                           int32_t window_blocks,
                                                           int32_t blocks_per_page = 1);
  KvWindows(const KvWindows&) = delete;
  KvWindows& operator=(const KvWindows&) = delete;

  // Gives the handle's window to a new sequence, even if another sequence still has the window.
  // Show maps the new sequence's blocks.
  void Begin(SequenceHandle handle);
  void End(SequenceHandle handle);

  // Maps these blocks, except null blocks, to the first places of the sequence's window. Returns
  // false if not all can be mapped; some of the first ones may then be mapped. REQUIRES: block_ids
  // begins with the block_ids of the sequence's previous Show, if there was one.
  bool Show(SequenceHandle handle, std::span<const BlockId> block_ids);

  // Notes this block as the sequence's probable next one, to be mapped before it is needed.
  // Ignored if the mapping would exceed max_mapped().
  void Expect(SequenceHandle handle, BlockId block);
  // Makes the handle's window the spare window. Notes these blocks as the probable first blocks of
  // the window's next sequence, to be mapped before they are needed. Notes no block if the mappings
  // would exceed max_mapped(), or if the blocks do not fill pages in order. If a sequence still has
  // the window, that sequence's next Show maps its own blocks again. REQUIRES: no operation reads
  // the window before the next Show of its handle.
  void ExpectBeginning(SequenceHandle handle, std::span<const BlockId> block_ids);
  // Starts mapping the blocks given to Expect and ExpectBeginning, on a separate thread. Without
  // this call the next Show maps these blocks and waits.
  void StartAhead();

  // Index of the window's first place among the places of all windows.
  int64_t FirstPlace(SequenceHandle handle) const { return int64_t{handle} * window_pages_; }
  // FirstPlace in units of KV blocks (PagedAttentionParams::first_places).
  int64_t FirstBlockPlace(SequenceHandle handle) const {
    return FirstPlace(handle) * blocks_per_page_;
  }
  // Number of mapped places, over all windows.
  int64_t num_mapped() const { return num_mapped_; }
  // Upper bound on num_mapped() (WindowMemory::max_mapped_places).
  int64_t max_mapped() const { return memory_.max_mapped_places(); }
  const WindowCounts& counts() const { return counts_; }

 private:
  struct Window {
    // The sequence's first num_shown blocks (not pages) are mapped, except null blocks.
    int32_t num_shown = 0;
    int32_t num_mapped = 0;  // mapped places, also those with blocks of an earlier sequence
    bool is_used = false;
  };

  KvWindows(KernelBackend& backend,
            WindowMemory& memory,
            int32_t num_windows,
            int32_t window_pages,
            int32_t blocks_per_page);

  // Divides block_ids into runs of blocks_per_page_, and fills pages_ with the page of each run;
  // kNullBlockId if a run has only null blocks. Returns false if a run does not fill its page in
  // order, or lies in page 0. Page 0 has the null block and is never shown, so kNullBlockId (0) can
  // stand for no page.
  bool FindPages(std::span<const BlockId> block_ids);
  // Returns true if `page` is kNullBlockId (no page), or if place `index` of the window shows
  // `page`. A place that shows `page` is also counted: as mapped ahead if StartAhead mapped it,
  // else as found.
  bool IsFound(SequenceHandle handle, int32_t index, BlockId page);
  // Maps `count` consecutive pages, beginning with `page`, to the window's places from `index` on.
  // Returns false if max_mapped() would be exceeded or the system refuses.
  bool Map(SequenceHandle handle, int32_t index, BlockId page, int32_t count);
  // Returns how many of the window's `count` places from `index` on have no mapped block.
  int64_t NumEmpty(SequenceHandle handle, int32_t index, int32_t count) const;
  bool HasRoomFor(int64_t num_places) const {
    return num_mapped_ + num_places <= memory_.max_mapped_places();
  }
  bool MakeRoomFor(int64_t num_places);
  bool TakeDown(SequenceHandle handle);
  // Unmaps all places of the window, unless a sequence has the window. Returns false if the system
  // refuses.
  bool TakeDownUnused(SequenceHandle handle);
  // Adds a run of pages to the mappings that StartAhead starts.
  void MapAhead(SequenceHandle handle, int32_t index, BlockId page, int32_t count);
  void AwaitAhead();
  // Records that `page` is mapped to place `index` of the window; kNullBlockId: no page is.
  void Note(SequenceHandle handle, int32_t index, BlockId page);
  BlockId ShownAt(SequenceHandle handle, int32_t index) const {
    return shown_[static_cast<size_t>(FirstPlace(handle) + index)];
  }

  WindowMemory& memory_;
  const int32_t window_pages_;
  const int32_t blocks_per_page_;
  std::vector<Window> windows_;  // by handle
  std::vector<BlockId> shown_;   // by place: the page that is mapped to it; null block: none
  std::vector<bool> is_ahead_;   // by place: mapped by StartAhead, and not needed since
  std::optional<SequenceHandle> spare_;  // the spare window's handle
  int64_t num_mapped_ = 0;
  WindowCounts counts_;
  std::vector<BlockId> pages_;  // scratch of FindPages

  std::vector<MapOrder> ahead_;  // noted mappings: not started, or running on mapper_
  bool is_ahead_under_way_ = false;
  PlaceMapper mapper_;
};

}  // namespace quire

#endif  // QUIRE_WORKER_KV_CACHE_KV_WINDOWS_H_
