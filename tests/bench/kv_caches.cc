#include "tests/bench/kv_caches.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>
#include <utility>

#include "common/base/check.h"
#include "common/base/math.h"
#include "common/base/splitmix64.h"

namespace quire {
namespace {

using Kind = LayerWindows::Kind;
using Shape = KvCachesShape;

constexpr int32_t kReadAhead = 16;     // tokens that a contiguous kernel may read beyond the last
constexpr int32_t kNumNumbers = 8192;  // different ones; heads begin at any of them

KvCacheLayout LayoutOf(const KvCachesShape& shape, int64_t page_bytes) {
  return PadBlocks(DimMajorKeys({.num_layers = Shape::kNumLayers,
                                 .num_kv_heads = Shape::kNumKvHeads,
                                 .head_dim = Shape::kHeadDim,
                                 .block_size_tokens = shape.block_size_tokens,
                                 .dtype = shape.dtype}),
                   page_bytes);
}

std::unique_ptr<DeviceMemory> HugePages(KernelBackend& backend, int64_t bytes) {
  auto memory = backend.Allocate(bytes);
  QUIRE_CHECK(memory.ok());
  return *std::move(memory);
}

std::unique_ptr<WindowMemory> MakeWindows(KernelBackend& backend, const WindowShape& shape) {
  auto windows = backend.AllocateWindows(shape);
  QUIRE_CHECK(windows.ok());
  return *std::move(windows);
}

std::unique_ptr<LayerWindows> MakeLayerWindows(const LayerWindowsShape& shape) {
  if (NumMappings(shape) > MaxWindowMappings()) {
    return nullptr;
  }
  auto windows = LayerWindows::Create(shape);
  QUIRE_CHECK(windows.ok());
  return *std::move(windows);
}

// In [-1, 1), as they are stored.
std::vector<std::byte> MakeNumbers(DType dtype) {
  const auto element_bytes = static_cast<size_t>(SizeOf(dtype));
  std::vector<std::byte> numbers(size_t{kNumNumbers + Shape::kHeadDim} * element_bytes);
  uint64_t state = 1;
  for (size_t at = 0; at < numbers.size(); at += element_bytes) {
    const auto number = static_cast<float>(static_cast<int64_t>(SplitMix64(state) % 256) - 128);
    uint32_t bits = std::bit_cast<uint32_t>(number / 128.0F);
    bits = dtype == DType::kF32 ? bits : bits >> 16;
    std::memcpy(numbers.data() + at, &bits, element_bytes);
  }
  return numbers;
}

}  // namespace

LayerWindowsShape KvCachesShape::layer_windows() const {
  return {.num_layers = kNumLayers,
          .block_size_tokens = block_size_tokens,
          .token_bytes = int64_t{kNumKvHeads} * kHeadDim * SizeOf(dtype),
          .num_blocks = int64_t{batch} * blocks_per_seq() + 2,
          .num_seqs = int64_t{batch} + 1,
          .blocks_per_seq = blocks_per_seq()};
}

KvCaches::KvCaches(const KvCachesShape& shape,
                   KernelBackend& backend,
                   const KernelTable& table,
                   ThreadTeam& team)
    : shape_(shape),
      table_(table),
      team_(team),
      contiguous_(FindContiguousAttention(table.isa, shape.dtype)),
      layout_(LayoutOf(shape, backend.window_page_bytes())),
      num_blocks_(shape.batch * shape.blocks_per_seq() + 2),
      padded_context_(RoundUp(shape.context, kReadAhead)),
      huge_pool_(HugePages(backend, layout_.block_bytes() * num_blocks_)),
      block_windows_(
          MakeWindows(backend,
                      {.block_bytes = layout_.block_bytes(),
                       .num_blocks = num_blocks_,
                       .num_places = (int64_t{shape.batch} + 1) * shape.blocks_per_seq()})),
      layer_windows_(MakeLayerWindows(shape.layer_windows())),
      plain_(
          HugePages(backend, PlainOffset(Shape::kNumLayers, Kind::kKeys, 0) * SizeOf(shape.dtype))),
      guest_ids_(static_cast<size_t>(shape.blocks_per_seq())),
      numbers_(MakeNumbers(shape.dtype)) {
  QUIRE_CHECK(contiguous_ != nullptr);
  ChooseBlocks();
  WriteTokens();
  MapWindows();
  const int64_t width = int64_t{Shape::kNumHeads} * Shape::kHeadDim;
  for (int64_t i = 0; i < width * shape.batch; ++i) {
    q_.push_back(static_cast<float>(i * 37 % 251 - 125) / 125.0F);
  }
  out_.resize(q_.size());
  query_start_.resize(static_cast<size_t>(shape.batch) + 1);
  std::iota(query_start_.begin(), query_start_.end(), 0);
  seq_lens_.assign(static_cast<size_t>(shape.batch), shape.context);
}

void KvCaches::ChooseBlocks() {
  std::vector<BlockId> blocks(static_cast<size_t>(num_blocks_ - 2));
  std::iota(blocks.begin(), blocks.end(), kNullBlockId + 1);
  uint64_t state = 2;
  for (size_t i = blocks.size() - 1; i > 0; --i) {
    std::swap(blocks[i], blocks[SplitMix64(state) % (i + 1)]);
  }
  for (int32_t seq = 0; seq < shape_.batch; ++seq) {
    const auto begin = blocks.begin() + int64_t{seq} * shape_.blocks_per_seq();
    block_ids_.emplace_back(begin, begin + shape_.blocks_per_seq());
  }
}

void KvCaches::WriteTokens() {
  for (int32_t seq = 0; seq < shape_.batch; ++seq) {
    for (int32_t position = 0; position < shape_.context; ++position) {
      WriteToken(seq, position);
    }
  }
}

void KvCaches::WriteToken(int32_t seq, int32_t position) {
  const int64_t element_bytes = SizeOf(shape_.dtype);
  const auto head_bytes = static_cast<size_t>(Shape::kHeadDim * element_bytes);
  const int64_t token_elements = int64_t{Shape::kNumKvHeads} * Shape::kHeadDim;
  const BlockId block = BlockOf(seq, position / shape_.block_size_tokens);
  const int64_t slot = position % shape_.block_size_tokens;
  auto* const plain = static_cast<std::byte*>(plain_->data());
  uint64_t state = static_cast<uint64_t>(seq) << 32 | static_cast<uint64_t>(position);
  for (int32_t i = 0; i < 2 * Shape::kNumLayers * Shape::kNumKvHeads; ++i) {
    const int32_t head = i % Shape::kNumKvHeads;
    const int32_t layer = i / Shape::kNumKvHeads / 2;
    const bool is_key = i / Shape::kNumKvHeads % 2 == 0;
    const Kind kind = is_key ? Kind::kKeys : Kind::kValues;
    const auto first = static_cast<int64_t>(SplitMix64(state) % kNumNumbers);
    const std::byte* numbers = numbers_.data() + first * element_bytes;
    const int64_t in_token = int64_t{head} * Shape::kHeadDim;
    const int64_t in_plain = PlainOffset(layer, kind, seq) + position * token_elements + in_token;
    std::memcpy(plain + in_plain * element_bytes, numbers, head_bytes);
    if (layer_windows_ != nullptr) {
      const int64_t in_page = slot * token_elements + in_token;
      std::memcpy(
          layer_windows_->Page(block, layer, kind) + in_page * element_bytes, numbers, head_bytes);
    }
    if (is_key) {
      WriteHead(layout_.KeyOffset(block, layer, head) + slot * layout_.key_slot_stride,
                layout_.key_dim_stride,
                numbers);
    } else {
      WriteHead(
          layout_.ValueOffset(block, layer, head) + slot * layout_.value_slot_stride, 1, numbers);
    }
  }
}

void KvCaches::WriteHead(int64_t element, int64_t dim_stride, const std::byte* numbers) {
  const int64_t element_bytes = SizeOf(shape_.dtype);
  for (std::byte* pool : {static_cast<std::byte*>(huge_pool_->data()),
                          static_cast<std::byte*>(block_windows_->pool())}) {
    std::byte* to = pool + element * element_bytes;
    for (int64_t d = 0; d < Shape::kHeadDim; ++d) {
      std::memcpy(to + d * dim_stride * element_bytes,
                  numbers + d * element_bytes,
                  static_cast<size_t>(element_bytes));
    }
  }
}

void KvCaches::MapWindows() {
  for (int32_t seq = 0; seq <= shape_.batch; ++seq) {
    for (int32_t index = 0; index < shape_.blocks_per_seq(); ++index) {
      const BlockId block = BlockOf(seq % shape_.batch, index);
      const int64_t place = int64_t{seq} * shape_.blocks_per_seq() + index;
      QUIRE_CHECK(block_windows_->Map(place, block, 1).ok());
      if (layer_windows_ != nullptr) {
        QUIRE_CHECK(layer_windows_->Map(seq, index, block).ok());
      }
    }
  }
}

int64_t KvCaches::num_mappings(KvLayout layout) const {
  switch (layout) {
    case KvLayout::kBlockWindows:
      return int64_t{shape_.batch} * shape_.blocks_per_seq();
    case KvLayout::kLayerWindows:
      return NumMappings(shape_.layer_windows()) / (shape_.batch + 1) * shape_.batch;
    default:
      return 1;
  }
}

void KvCaches::Step(KvLayout layout) {
  if (layout == KvLayout::kPagedHuge || layout == KvLayout::kPagedFile ||
      layout == KvLayout::kBlockWindows) {
    StepPaged(layout);
  } else {
    StepContiguous(layout);
  }
}

void KvCaches::StepPaged(KvLayout layout) {
  const bool has_windows = layout == KvLayout::kBlockWindows;
  PagedAttentionParams params = {
      .num_seqs = shape_.batch,
      .num_heads = Shape::kNumHeads,
      .q = q_.data(),
      .q_row_stride = int64_t{Shape::kNumHeads} * Shape::kHeadDim,
      .out = out_.data(),
      .scale = 0.125F,
      .query_start = query_start_.data(),
      .seq_lens = seq_lens_.data(),
      .block_tables = has_windows ? nullptr : block_tables_.data(),
      .max_blocks_per_seq = has_windows ? 0 : shape_.blocks_per_seq(),
      .first_places = has_windows ? first_places_.data() : nullptr,
      .cache = {layout == KvLayout::kPagedHuge ? huge_pool_->data() : block_windows_->pool(),
                num_blocks_,
                layout_,
                has_windows ? block_windows_->windows() : nullptr}};
  for (int32_t layer = 0; layer < Shape::kNumLayers; ++layer) {
    params.layer = layer;
    table_.paged_attention(params, team_);
  }
}

void KvCaches::StepContiguous(KvLayout layout) {
  const bool by_head = layout == KvLayout::kPlainHeads;
  ContiguousAttentionParams params = {
      .num_seqs = shape_.batch,
      .num_heads = Shape::kNumHeads,
      .num_kv_heads = Shape::kNumKvHeads,
      .head_dim = Shape::kHeadDim,
      .q = q_.data(),
      .q_row_stride = int64_t{Shape::kNumHeads} * Shape::kHeadDim,
      .out = out_.data(),
      .scale = 0.125F,
      .seq_lens = seq_lens_.data(),
      .token_stride = int64_t{Shape::kHeadDim} * (by_head ? 1 : Shape::kNumKvHeads),
      .head_stride = Shape::kHeadDim * (by_head ? padded_context_ : 1)};
  for (int32_t layer = 0; layer < Shape::kNumLayers; ++layer) {
    params.keys = keys_.data() + int64_t{layer} * shape_.batch;
    params.values = values_.data() + int64_t{layer} * shape_.batch;
    contiguous_(params, team_);
  }
}

void KvCaches::BuildTables(KvLayout layout) {
  if (layout == KvLayout::kPagedHuge || layout == KvLayout::kPagedFile) {
    const auto stride = static_cast<size_t>(shape_.blocks_per_seq());
    block_tables_.assign(static_cast<size_t>(shape_.batch) * stride, kNullBlockId);
    for (size_t seq = 0; seq < block_ids_.size(); ++seq) {
      std::copy_n(block_ids_[seq].data(), stride, block_tables_.data() + seq * stride);
    }
    return;
  }
  if (layout == KvLayout::kBlockWindows) {
    first_places_.clear();
    for (int64_t seq = 0; seq < shape_.batch; ++seq) {
      first_places_.push_back(seq * shape_.blocks_per_seq());
    }
    return;
  }
  keys_.clear();
  values_.clear();
  for (int32_t layer = 0; layer < Shape::kNumLayers; ++layer) {
    for (int32_t seq = 0; seq < shape_.batch; ++seq) {
      keys_.push_back(ContiguousArray(layout, layer, Kind::kKeys, seq));
      values_.push_back(ContiguousArray(layout, layer, Kind::kValues, seq));
    }
  }
}

int64_t KvCaches::PlainOffset(int32_t layer, Kind kind, int32_t seq) const {
  const int64_t row = int64_t{2} * layer + (kind == Kind::kValues ? 1 : 0);
  return (row * shape_.batch + seq) * padded_context_ * Shape::kNumKvHeads * Shape::kHeadDim;
}

const std::byte* KvCaches::ContiguousArray(KvLayout layout,
                                           int32_t layer,
                                           Kind kind,
                                           int32_t seq) const {
  if (layout == KvLayout::kLayerWindows) {
    return layer_windows_->Window(seq, layer, kind);
  }
  return static_cast<const std::byte*>(plain_->data()) +
         PlainOffset(layer, kind, seq) * SizeOf(shape_.dtype);
}

void KvCaches::MapGuest(KvLayout layout, int32_t index, BlockId block, int32_t count) {
  switch (layout) {
    case KvLayout::kBlockWindows: {
      const int64_t place = int64_t{shape_.batch} * shape_.blocks_per_seq() + index;
      QUIRE_CHECK(block_windows_->Map(place, block, count).ok());
      break;
    }
    case KvLayout::kLayerWindows:
      QUIRE_CHECK(layer_windows_->Map(shape_.batch, index, block, count).ok());
      break;
    default:
      std::iota(guest_ids_.begin() + index, guest_ids_.begin() + index + count, block);
  }
}

void KvCaches::CopyToSpare(KvLayout layout, BlockId block) {
  if (layout == KvLayout::kLayerWindows) {
    for (int32_t layer = 0; layer < Shape::kNumLayers; ++layer) {
      for (const Kind kind : {Kind::kKeys, Kind::kValues}) {
        std::memcpy(layer_windows_->Page(spare_block(), layer, kind),
                    layer_windows_->Page(block, layer, kind),
                    static_cast<size_t>(layer_windows_->shape().page_bytes()));
      }
    }
    return;
  }
  auto* pool = static_cast<std::byte*>(layout == KvLayout::kPagedHuge ? huge_pool_->data()
                                                                      : block_windows_->pool());
  const int64_t bytes = layout_.block_bytes();
  std::memcpy(pool + spare_block() * bytes, pool + block * bytes, static_cast<size_t>(bytes));
}

}  // namespace quire
