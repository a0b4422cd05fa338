// KvCaches holds the same tokens in every layout that the bench compares, and computes a decode
// step of attention from each. One more sequence, the guest, has windows and no tokens: its windows
// are mapped and forked while the clock runs.
//
// Blocks are scattered over the pool. All layouts give the same bits except kPlainHeads. It reads
// the memory of kPlain in another order: other numbers, the same work.
//
// Thread safety: one caller at a time.
// Cost:          memory: the cache four times, 64 KiB a token in fp32 and half as much in bf16.
#ifndef QUIRE_TESTS_BENCH_KV_CACHES_H_
#define QUIRE_TESTS_BENCH_KV_CACHES_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/api/attention.h"
#include "kernels/api/device_memory.h"
#include "kernels/api/kernel_backend.h"
#include "kernels/api/window_memory.h"
#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/thread_team.h"
#include "tests/bench/contiguous_attention.h"
#include "tests/bench/layer_windows.h"

namespace quire {

enum class KvLayout {
  kPagedHuge,     // blocks in huge pages, by block table
  kPagedFile,     // blocks in a file of memory, by block table
  kBlockWindows,  // the same blocks, one behind the other in windows, by the same kernel
  kLayerWindows,  // windows for each layer, by the contiguous kernel
  kPlain,         // an array for each sequence and layer in huge pages, [token][head]
  kPlainHeads,    // the same as [head][token]
};
inline constexpr int kNumKvLayouts = 6;

// The shape of 'small', a Llama of 254 M parameters.
struct KvCachesShape {
  int32_t batch = 1;
  int32_t context = 0;
  int32_t block_size_tokens = 16;
  DType dtype = DType::kBF16;

  static constexpr int32_t kNumLayers = 16;
  static constexpr int32_t kNumHeads = 16;
  static constexpr int32_t kNumKvHeads = 8;
  static constexpr int32_t kHeadDim = 64;

  int32_t blocks_per_seq() const { return (context + block_size_tokens - 1) / block_size_tokens; }
  LayerWindowsShape layer_windows() const;
};

class KvCaches {
 public:
  // REQUIRES: the backend has a contiguous kernel for the table and the type, and memory for the
  // caches.
  KvCaches(const KvCachesShape& shape,
           KernelBackend& backend,
           const KernelTable& table,
           ThreadTeam& team);
  KvCaches(const KvCaches&) = delete;
  KvCaches& operator=(const KvCaches&) = delete;

  // Returns false for kLayerWindows if its mappings are beyond Linux's limit.
  bool has(KvLayout layout) const {
    return layout != KvLayout::kLayerWindows || layer_windows_ != nullptr;
  }
  // Mappings of the sequences, without the guest, while their windows are full.
  int64_t num_mappings(KvLayout layout) const;

  // Computes attention of one token of each sequence, through all layers.
  void Step(KvLayout layout);
  // The output of the last layer of the last step.
  const std::vector<float>& out() const { return out_; }

  // Builds the kernel's tables as a worker does (worker/runtime/batch_builder.cc): the block
  // tables, the windows' first places, or pointers for each layer.
  void BuildTables(KvLayout layout);

  // Makes `block` the guest's block `index`. REQUIRES: a layout with blocks.
  void MapGuest(KvLayout layout, int32_t index, BlockId block) {
    MapGuest(layout, index, block, 1);
  }
  // Maps a run of `count` neighbouring blocks.
  void MapGuest(KvLayout layout, int32_t index, BlockId block, int32_t count);
  // Copies the block's contents to the spare block.
  void CopyToSpare(KvLayout layout, BlockId block);
  BlockId BlockOf(int32_t seq, int32_t index) const {
    return block_ids_[static_cast<size_t>(seq)][static_cast<size_t>(index)];
  }
  BlockId spare_block() const { return num_blocks_ - 1; }

  const KvCachesShape& shape() const { return shape_; }
  // Bytes of a block in the pools, a multiple of the page size.
  int64_t block_bytes() const { return layout_.block_bytes(); }

 private:
  void ChooseBlocks();
  void WriteTokens();
  void WriteToken(int32_t seq, int32_t position);
  // Writes the key or value of one head into the pools.
  void WriteHead(int64_t element, int64_t dim_stride, const std::byte* numbers);
  void MapWindows();
  void StepPaged(KvLayout layout);
  void StepContiguous(KvLayout layout);
  // Elements of kPlain that lie before the keys, or values, of a sequence.
  int64_t PlainOffset(int32_t layer, LayerWindows::Kind kind, int32_t seq) const;
  const std::byte* ContiguousArray(KvLayout layout,
                                   int32_t layer,
                                   LayerWindows::Kind kind,
                                   int32_t seq) const;

  const KvCachesShape shape_;
  const KernelTable& table_;
  ThreadTeam& team_;
  const ContiguousAttention contiguous_;
  const KvCacheLayout layout_;
  const int32_t num_blocks_;      // null block, those of the sequences, a spare one
  const int64_t padded_context_;  // tokens of a sequence in kPlain

  std::unique_ptr<DeviceMemory> huge_pool_;
  std::unique_ptr<WindowMemory> block_windows_;  // the file's pool, and windows onto it
  std::unique_ptr<LayerWindows> layer_windows_;  // null: too many mappings
  std::unique_ptr<DeviceMemory> plain_;

  std::vector<std::vector<BlockId>> block_ids_;  // of each sequence
  std::vector<BlockId> guest_ids_;
  std::vector<std::byte> numbers_;  // of which heads of keys and values are pieces

  std::vector<float> q_;
  std::vector<float> out_;
  std::vector<int32_t> query_start_;
  std::vector<int32_t> seq_lens_;
  std::vector<BlockId> block_tables_;  // [batch, blocks_per_seq]
  std::vector<int64_t> first_places_;  // [batch]
  std::vector<const void*> keys_;      // [layers, batch]
  std::vector<const void*> values_;    // [layers, batch]
};

}  // namespace quire

#endif  // QUIRE_TESTS_BENCH_KV_CACHES_H_
