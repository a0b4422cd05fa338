#include "tests/bench/layer_windows.h"

#include <limits>

#include "absl/strings/str_cat.h"

#include "common/base/error.h"
#include "common/base/status_macros.h"
#include "kernels/api/host_windows.h"

namespace quire {

int64_t NumMappings(const LayerWindowsShape& shape) {
  return shape.num_seqs * shape.pages_per_block() * (shape.blocks_per_seq + 1);
}

// Windows of whole blocks leave the same reserve (kernels/api/host_windows.cc).
int64_t MaxWindowMappings() {
  constexpr int64_t kReservedMappings = 4096;
  return MaxMappings() - kReservedMappings;
}

absl::StatusOr<std::unique_ptr<LayerWindows>> LayerWindows::Create(const LayerWindowsShape& shape) {
  if (NumMappings(shape) > MaxWindowMappings()) {
    return Error(absl::StatusCode::kResourceExhausted,
                 "MAPPINGS",
                 absl::StrCat("layer-major windows: ",
                              NumMappings(shape),
                              " mappings, of ",
                              MaxWindowMappings(),
                              " that vm.max_map_count allows"));
  }
  const int64_t num_pages = shape.num_blocks * shape.pages_per_block();
  if (num_pages > std::numeric_limits<BlockId>::max()) {
    return Error(absl::StatusCode::kResourceExhausted, "MAPPINGS", "layer-major windows: pages");
  }
  QUIRE_ASSIGN_OR_RETURN(std::unique_ptr<WindowMemory> memory,
                         MakeHostWindows({.block_bytes = shape.page_bytes(),
                                          .num_blocks = num_pages,
                                          .num_places = shape.num_seqs * shape.pages_per_block() *
                                                        shape.blocks_per_seq}));
  return std::unique_ptr<LayerWindows>(new LayerWindows(shape, std::move(memory)));
}

template <typename Fn>
absl::Status LayerWindows::ForEachRow(int64_t seq, const Fn& fn) {
  for (int32_t layer = 0; layer < shape_.num_layers; ++layer) {
    for (const Kind kind : {Kind::kKeys, Kind::kValues}) {
      QUIRE_RETURN_IF_ERROR(fn(PlaceOf(seq, layer, kind), PageOf(0, layer, kind)));
    }
  }
  return absl::OkStatus();
}

absl::Status LayerWindows::Map(int64_t seq, int64_t index, BlockId block, int64_t count) {
  return ForEachRow(seq, [&](int64_t place, int64_t page) {
    return memory_->Map(place + index, static_cast<BlockId>(page + block), count);
  });
}

absl::Status LayerWindows::Unmap(int64_t seq, int64_t index, int64_t count) {
  return ForEachRow(
      seq, [&](int64_t place, int64_t /*page*/) { return memory_->Unmap(place + index, count); });
}

}  // namespace quire
