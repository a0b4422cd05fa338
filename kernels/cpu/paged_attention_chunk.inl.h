// ViewBlocks and PackBlocks provide the keys and values of one chunk. A slot is a position of the
// chunk; a slot is wanted if a row of the task attends to it. ViewBlocks points into the KV blocks.
// This works only if the slots of each vector lie inside one block. Otherwise, or if many rows read
// the chunk, PackBlocks copies keys and values into panels in the format of the Products policy.
// Scales are gathered separately, because they multiply scores and weights, not elements. The
// functions are templates over a Simd struct S or a Products policy P, and the stored type T.
#ifndef QUIRE_KERNELS_CPU_PAGED_ATTENTION_CHUNK_INL_H_
#define QUIRE_KERNELS_CPU_PAGED_ATTENTION_CHUNK_INL_H_

#include <cstdint>

#include "kernels/api/attention.h"
#include "kernels/cpu/paged_attention_tile.inl.h"

namespace quire {
namespace {

// The keys and values of one sequence for one layer and KV head. They lie in the blocks of a block
// table, or in consecutive blocks.
template <typename T>
struct ContextBlocks {
  const T* base;
  const KvCacheLayout* layout;
  const BlockId* table;  // null: the blocks are consecutive, from base on
  int32_t layer;
  int32_t kv_head;
  int32_t num_blocks;  // blocks that hold positions of the context

  BlockId Block(int32_t index) const { return table == nullptr ? index : table[index]; }
  const T* Keys(int32_t index) const {
    return base + layout->KeyOffset(Block(index), layer, kv_head);
  }
  const T* Values(int32_t index) const {
    return base + layout->ValueOffset(Block(index), layer, kv_head);
  }
};

// Calls fn(index, in_block, slots) for each block that holds wanted slots of the chunk. `index` is
// the block's index in the context. `slots` are the wanted slots in this block, counted from the
// chunk's first position. `in_block` is the first of these slots, counted from the block's first
// position.
template <typename Fn>
void ForEachBlock(int32_t chunk_position, SlotRange wanted, int32_t block_size, const Fn& fn) {
  int32_t index = (chunk_position + wanted.begin) / block_size;
  int32_t in_block = (chunk_position + wanted.begin) % block_size;
  for (int32_t slot = wanted.begin; slot < wanted.end; ++index, in_block = 0) {
    const int32_t left_in_block = block_size - in_block;
    const int32_t left = wanted.end - slot;
    const int32_t n = left < left_in_block ? left : left_in_block;
    fn(index, in_block, SlotRange{slot, slot + n});
    slot += n;
  }
}

// Copies the scales of the wanted slots to two arrays of kAttentionChunkTokens floats, by slot.
template <typename T>
void GatherScales(const ContextBlocks<T>& context,
                  int32_t chunk_position,
                  SlotRange wanted,
                  float* key_scales,
                  float* value_scales) {
  const KvCacheLayout& layout = *context.layout;
  ForEachBlock(chunk_position,
               wanted,
               layout.block_size_tokens,
               [&](int32_t index, int32_t in_block, SlotRange slots) {
                 const T* head = context.Keys(index);
                 const auto* of_keys =
                     reinterpret_cast<const float*>(head + layout.key_scale_offset) + in_block;
                 const auto* of_values =
                     reinterpret_cast<const float*>(head + layout.value_scale_offset) + in_block;
                 for (int32_t slot = slots.begin; slot < slots.end; ++slot) {
                   key_scales[slot] = of_keys[slot - slots.begin];
                   value_scales[slot] = of_values[slot - slots.begin];
                 }
               });
}

// Makes a view of the blocks themselves, without copies. REQUIRES: block_size % S::kLanes == 0. A
// vector of keys may include slots that were never written. The scores of such slots are garbage,
// which softmax drops.
template <typename S, typename T>
void ViewBlocks(const ContextBlocks<T>& context,
                int32_t chunk_position,
                SlotRange wanted,
                ChunkView<S, T>* view) {
  const KvCacheLayout& layout = *context.layout;
  const int32_t block_size = layout.block_size_tokens;
  const int64_t slot_elements = layout.head_dim;
  view->first_position = chunk_position;
  view->key_dim_stride = layout.key_dim_stride;
  view->value_slot_stride = layout.value_slot_stride;
  view->num_segments = 0;
  ForEachBlock(
      chunk_position, wanted, block_size, [&](int32_t index, int32_t in_block, SlotRange slots) {
        const T* keys = context.Keys(index);
        const T* values = context.Values(index);
        const int32_t group_begin = slots.begin / S::kLanes;
        for (int32_t group = group_begin; group * S::kLanes < slots.end; ++group) {
          const int32_t slot = group * S::kLanes - slots.begin + in_block;
          view->keys[group] = keys + slot;
          view->prefetch[group] = values + slot * slot_elements;
        }
        // While this block's values are multiplied by weights, keys of the next chunk are
        // prefetched.
        const int32_t ahead = (chunk_position + slots.begin + kAttentionChunkTokens) / block_size;
        const T* next = ahead < context.num_blocks ? context.Keys(ahead) : values;
        view->segments[view->num_segments++] = {values + in_block * slot_elements,
                                                next + in_block * slot_elements,
                                                slots.begin,
                                                slots.end};
      });
}

// Called before a block's keys are packed. Prefetches the block's values, which are packed later,
// and the keys of the block that lies kAttentionChunkTokens positions later.
template <typename T>
void FetchSoon(const ContextBlocks<T>& context, int32_t index, SlotRange slots) {
  const KvCacheLayout& layout = *context.layout;
  const int32_t ahead = index + kAttentionChunkTokens / layout.block_size_tokens;
  const auto* values = reinterpret_cast<const char*>(context.Values(index));
  const auto* keys =
      reinterpret_cast<const char*>(ahead < context.num_blocks ? context.Keys(ahead) : nullptr);
  const int64_t bytes = int64_t{slots.end - slots.begin} * layout.head_dim * int64_t{sizeof(T)};
  for (int64_t at = 0; at < bytes; at += kCacheLine) {
    __builtin_prefetch(values + at, 0, 2);
    if (keys != nullptr) {
      __builtin_prefetch(keys + at, 0, 2);
    }
  }
}

// Copies the wanted keys and values into panels, in elements of P::kGroup numbers.
//   key_panel    [slots / kLanes][P::KeySteps(head_dim)][kLanes]: an element holds kGroup dims of
//                one slot's key
//   value_panel  [slots / kGroup][head_dim], or the order of P::PackValues: an element holds one
//                dim of the values of kGroup slots
template <typename P, typename T>
void PackBlocks(const ContextBlocks<T>& context,
                int32_t chunk_position,
                SlotRange wanted,
                typename P::Panel* key_panel,
                typename P::Panel* value_panel,
                ChunkView<typename P::Simd, typename P::Panel>* view) {
  constexpr int kLanes = P::Simd::kLanes;
  const KvCacheLayout& layout = *context.layout;
  const int32_t head_dim = layout.head_dim;
  const int64_t group_elements = int64_t{P::KeySteps(head_dim)} * kLanes;
  view->first_position = chunk_position;
  view->key_dim_stride = kLanes;
  view->value_slot_stride = head_dim;
  view->num_segments = 1;
  view->segments[0] = {value_panel + int64_t{wanted.begin / P::kGroup} * head_dim,
                       nullptr,
                       wanted.begin,
                       wanted.end};
  for (int32_t group = wanted.begin / kLanes; group * kLanes < wanted.end; ++group) {
    view->keys[group] = key_panel + group * group_elements;
    view->prefetch[group] = nullptr;
  }
  const T* values_of[kAttentionChunkTokens];  // set for wanted slots only
  ForEachBlock(chunk_position,
               wanted,
               layout.block_size_tokens,
               [&](int32_t index, int32_t in_block, SlotRange slots) {
                 const T* keys = context.Keys(index) + in_block;
                 const T* values = context.Values(index) + in_block * layout.value_slot_stride;
                 if constexpr (P::kHasRowTiles) {
                   FetchSoon(context, index, slots);
                 }
                 for (int32_t slot = slots.begin; slot < slots.end;) {
                   const int32_t lane = slot % kLanes;
                   const int32_t left = slots.end - slot;
                   const int32_t n = left < kLanes - lane ? left : kLanes - lane;
                   P::PackKeys(keys + (slot - slots.begin),
                               layout.key_dim_stride,
                               head_dim,
                               n,
                               key_panel + slot / kLanes * group_elements + lane);
                   slot += n;
                 }
                 for (int32_t slot = slots.begin; slot < slots.end; ++slot) {
                   values_of[slot] = values + (slot - slots.begin) * layout.value_slot_stride;
                 }
               });
  P::PackValues(values_of, wanted, head_dim, value_panel);
}

}  // namespace
}  // namespace quire

#endif  // QUIRE_KERNELS_CPU_PAGED_ATTENTION_CHUNK_INL_H_
