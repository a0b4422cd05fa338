// LayerWindows is the layer-major layout of vAttention: a sequence has a range of addresses for the
// keys and another for the values of each layer, in which a token follows the one before it. Any
// kernel for contiguous caches can read them. A place of a range shows a page: the keys or the
// values of one layer, of all KV heads, of the tokens of one block.
//
// So a block is 2 * num_layers pages and a sequence that gets one takes as many calls, where
// windows of whole blocks (worker/kv_cache/kv_windows.h) take one. Pages of a layer are neighbours
// in the pool where their blocks are, so that a run of blocks takes as many calls as a single one.
//
// Thread safety: as WindowMemory.
// Shapes:        a page is [block_size_tokens, token_bytes].
// Source:        vAttention, Prabhu et al. 2024, sections 5.1 and 5.3.
#ifndef QUIRE_TESTS_BENCH_LAYER_WINDOWS_H_
#define QUIRE_TESTS_BENCH_LAYER_WINDOWS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "common/base/ids.h"
#include "kernels/api/window_memory.h"

namespace quire {

struct LayerWindowsShape {
  int32_t num_layers = 0;
  int32_t block_size_tokens = 0;
  int64_t token_bytes =
      0;  // keys, or values, of a token in one layer; a page is whole system pages
  int64_t num_blocks = 0;
  int64_t num_seqs = 0;
  int64_t blocks_per_seq = 0;

  int64_t pages_per_block() const { return int64_t{2} * num_layers; }
  int64_t page_bytes() const { return block_size_tokens * token_bytes; }
};

// The most mappings that Linux can count: one for each place, and one more for the rest of each
// range. That many exist if every place shows a page and no two neighbours merge.
int64_t NumMappings(const LayerWindowsShape& shape);

// The limit of mappings, less a reserve for the rest of the process.
int64_t MaxWindowMappings();

class LayerWindows {
 public:
  enum class Kind { kKeys, kValues };

  // All places show nothing. Errors: kResourceExhausted, reason MAPPINGS, before anything is
  // mapped, where all places together are more than Linux allows; reason MEMORY.
  static absl::StatusOr<std::unique_ptr<LayerWindows>> Create(const LayerWindowsShape& shape);

  // Address at which a page is written.
  std::byte* Page(BlockId block, int32_t layer, Kind kind) const {
    return Bytes(memory_->pool(), PageOf(block, layer, kind));
  }
  // Address at which the tokens of a sequence are read, from token 0 on.
  const std::byte* Window(int64_t seq, int32_t layer, Kind kind) const {
    return Bytes(memory_->windows(), PlaceOf(seq, layer, kind));
  }

  // Tokens of these blocks follow those of the first `index` blocks of the sequence, in all layers:
  // 2 * num_layers calls. Errors: those of WindowMemory::Map.
  absl::Status Map(int64_t seq, int64_t index, BlockId block, int64_t count = 1);
  absl::Status Unmap(int64_t seq, int64_t index, int64_t count);

  const LayerWindowsShape& shape() const { return shape_; }

 private:
  LayerWindows(const LayerWindowsShape& shape, std::unique_ptr<WindowMemory> memory)
      : shape_(shape), memory_(std::move(memory)) {}

  int64_t Row(int32_t layer, Kind kind) const {
    return int64_t{2} * layer + (kind == Kind::kValues ? 1 : 0);
  }
  int64_t PageOf(BlockId block, int32_t layer, Kind kind) const {
    return Row(layer, kind) * shape_.num_blocks + block;
  }
  int64_t PlaceOf(int64_t seq, int32_t layer, Kind kind) const {
    return (seq * shape_.pages_per_block() + Row(layer, kind)) * shape_.blocks_per_seq;
  }
  std::byte* Bytes(void* base, int64_t page) const {
    return static_cast<std::byte*>(base) + page * shape_.page_bytes();
  }
  // Calls fn(row's first place, row's first page) for each layer's keys and values.
  template <typename Fn>
  absl::Status ForEachRow(int64_t seq, const Fn& fn);

  const LayerWindowsShape shape_;
  const std::unique_ptr<WindowMemory> memory_;
};

}  // namespace quire

#endif  // QUIRE_TESTS_BENCH_LAYER_WINDOWS_H_
