#include "worker/model/weight_loader.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/base/math.h"
#include "common/base/status_macros.h"
#include "kernels/api/dequantize.h"
#include "worker/model/matrix_rows.h"
#include "worker/model/read_ahead.h"

namespace quire {
namespace {

// Calls fn with ranges of a tensor's rows: first the q rows of each head, then the k rows of each
// head, then the v rows of each head. REQUIRES: the rows are stored as [heads, 3, head_dim]. If
// heads is 0, the rows are not interleaved, and fn is called once, with all rows.
template <typename T, typename Fn>
void ForEachInQkvOrder(std::span<const T> rows, int32_t heads, const Fn& fn) {
  if (heads == 0) {
    fn(rows);
    return;
  }
  const size_t size = rows.size() / (size_t{3} * static_cast<size_t>(heads));
  for (size_t third = 0; third < 3; ++third) {
    for (size_t head = 0; head < static_cast<size_t>(heads); ++head) {
      fn(rows.subspan((3 * head + third) * size, size));
    }
  }
}

// Returns the tensors that go through the read-ahead buffer, in order. If the backend packs while
// reading, matrices bypass the buffer, and tables are read directly into their final memory.
std::vector<TensorGroup> GroupsReadAhead(const WeightLayout& layout, const KernelBackend& backend) {
  std::vector<TensorGroup> groups = TensorGroups(layout);
  if (backend.packs_while_reading()) {
    std::erase_if(groups, [](const TensorGroup& group) {
      return group.size() == 1 && group.front().use == TensorUse::kTable;
    });
    for (TensorGroup& group : groups) {
      std::erase_if(group, [](const TensorShape& t) { return t.use == TensorUse::kPacked; });
    }
  }
  return groups;
}

// Returns the bytes that the layer's matrices take when they are packed.
int64_t PackedBytes(const LinearLayout& layout,
                    const TensorSource& source,
                    const KernelBackend& backend) {
  std::vector<MatrixView> parts;
  for (const TensorShape& tensor : GroupOf(layout)) {
    if (tensor.rows > 0) {
      parts.push_back(PartOf(tensor, source.format(tensor.name)));
    }
  }
  return backend.PackedBytes({.parts = parts,
                              .num_segments = layout.num_segments,
                              .is_quantizable = layout.is_quantizable});
}

// Returns the matrices that the backend reads from the file while it packs them; none if q, k and v
// are interleaved.
TensorGroup PackedMatricesOf(const LinearLayout& layout) {
  TensorGroup matrices = GroupOf(layout);
  std::erase_if(matrices, [](const TensorShape& t) { return t.use != TensorUse::kPacked; });
  return matrices;
}

// Loads tensors, group by group in the order of TensorGroups, into the memory of a backend.
class WeightReader {
 public:
  WeightReader(const TensorSource& source,
               ReadAhead& files,
               KernelBackend& backend,
               const LoadProgressFn& progress)
      : source_(source), files_(files), backend_(backend), progress_(progress) {
    state_.tensors_total = source.num_tensors();
    state_.bytes_total = source.num_bytes();
  }

  absl::Status Read(const TableLayout& layout, TableWeights& table) {
    const MatrixView view = Describe(layout, table);
    bytes_ += view.rows * RowBytes(view);
    if (backend_.packs_while_reading()) {
      return ReadInPlace(GroupOf(layout), table.data);
    }
    QUIRE_ASSIGN_OR_RETURN(const Tensors tensors, Next());
    return table.data.Assign<std::byte>(backend_, tensors[0]);
  }

  // Reads the token table of a tied model, whose output matrix is the same matrix. A backend that
  // packs while reading looks tokens up in the packed matrix, so no unpacked table is kept.
  absl::Status ReadTied(const TableLayout& layout,
                        TableWeights& table,
                        std::unique_ptr<PackedLinear>& packed) {
    MatrixView view = Describe(layout, table);
    if (backend_.packs_while_reading()) {
      const MatrixRows rows(source_, GroupOf(layout), [this](int64_t bytes) { Report(bytes); });
      QUIRE_RETURN_IF_ERROR(
          Pack({.parts = std::span(&view, 1), .bias = {}, .reader = &rows}, packed));
      CountRead(rows.matrices());
      return absl::OkStatus();
    }
    bytes_ += view.rows * RowBytes(view);
    QUIRE_ASSIGN_OR_RETURN(const Tensors tensors, Next());
    QUIRE_RETURN_IF_ERROR(table.data.Assign<std::byte>(backend_, tensors[0]));
    view.data = tensors[0].data();
    return Pack({.parts = std::span(&view, 1), .bias = {}}, packed);
  }

  absl::Status Read(const NormLayout& layout, NormWeights& norm) {
    QUIRE_ASSIGN_OR_RETURN(const Tensors tensors, Next());
    if (!layout.has_weight) {
      const std::vector<float> ones(static_cast<size_t>(layout.width), 1.0F);
      QUIRE_RETURN_IF_ERROR(norm.weight.Assign<float>(backend_, ones));
    } else {
      QUIRE_RETURN_IF_ERROR(Assign(layout.name + ".weight", tensors.front(), norm.weight));
    }
    return layout.has_bias ? Assign(layout.name + ".bias", tensors.back(), norm.bias)
                           : absl::OkStatus();
  }

  absl::Status Read(const NormLayout& layout, DeviceBuffer& weight) {
    QUIRE_ASSIGN_OR_RETURN(const Tensors tensors, Next());
    return Assign(layout.name + ".weight", tensors.front(), weight);
  }

  // If layout.bias_is_apart and the backend adds biases to sums, stores the bias in `bias_apart`.
  absl::Status Read(const LinearLayout& layout,
                    std::unique_ptr<PackedLinear>& packed,
                    DeviceBuffer* bias_apart = nullptr) {
    QUIRE_ASSIGN_OR_RETURN(const Tensors tensors, Next());
    const MatrixRows rows(
        source_, PackedMatricesOf(layout), [this](int64_t bytes) { Report(bytes); });
    const bool is_read_now = backend_.packs_while_reading() && !rows.matrices().empty();
    std::vector<MatrixView> views;
    std::vector<float> bias;
    size_t next = 0;
    for (const LinearPart& part : layout.parts) {
      AddViews(layout, part, is_read_now ? nullptr : &tensors[next++], views);
      if (layout.has_bias) {
        const std::vector<float> values = Floats(part.name + ".bias", tensors[next++]);
        ForEachInQkvOrder(
            std::span(values), layout.interleaved_heads, [&](std::span<const float> some) {
              bias.insert(bias.end(), some.begin(), some.end());
            });
      }
    }
    if (layout.bias_is_apart && backend_.adds_bias_to_sums()) {
      QUIRE_RETURN_IF_ERROR(Assign(bias, *bias_apart));
      bias.clear();
    } else if (layout.bias_is_apart && layout.held.begin > 0) {
      bias.clear();  // the first rank's product adds the bias
    }
    QUIRE_RETURN_IF_ERROR(Pack({.parts = views,
                                .bias = bias,
                                .num_segments = layout.num_segments,
                                .is_quantizable = layout.is_quantizable,
                                .reader = is_read_now ? &rows : nullptr},
                               packed));
    if (is_read_now) {
      CountRead(rows.matrices());
    }
    return absl::OkStatus();
  }

  absl::Status Pack(const LinearSource& source, std::unique_ptr<PackedLinear>& packed) {
    QUIRE_ASSIGN_OR_RETURN(packed, backend_.PackLinear(source));
    bytes_ += packed->bytes();
    return absl::OkStatus();
  }

  // Reports that loading is complete. Sets the counts to the totals, because the totals include
  // extra tensors, which are never read.
  void Finish() {
    state_.tensors_done = state_.tensors_total;
    state_.bytes_done = state_.bytes_total;
    Report();
  }

  int64_t bytes() const { return bytes_; }

 private:
  using Tensors = std::vector<std::span<const std::byte>>;

  absl::StatusOr<Tensors> Next() {
    QUIRE_ASSIGN_OR_RETURN(Tensors tensors, files_.Next([this](int64_t bytes) { Report(bytes); }));
    for (const std::span<const std::byte> tensor : tensors) {
      ++state_.tensors_done;
      state_.bytes_done += static_cast<int64_t>(tensor.size());
    }
    Report();
    return tensors;
  }

  // Sets the table's type and size. Returns a view without data.
  MatrixView Describe(const TableLayout& layout, TableWeights& table) const {
    table.format = source_.format(layout.name + ".weight");
    table.rows = layout.held.count;
    table.width = layout.width;
    return {.data = nullptr, .format = table.format, .rows = table.rows, .cols = table.width};
  }

  // Reads the group's only tensor on several threads, into memory that `buffer` then owns.
  absl::Status ReadInPlace(const TensorGroup& group, DeviceBuffer& buffer) {
    QUIRE_ASSIGN_OR_RETURN(const std::unique_ptr<ReadAhead> read,
                           ReadAhead::Start(source_, {group}, backend_, /*min_ring_bytes=*/0));
    QUIRE_RETURN_IF_ERROR(read->Next([this](int64_t bytes) { Report(bytes); }).status());
    buffer.Take(read->TakeBuffer());
    CountRead(group);
    return absl::OkStatus();
  }

  void CountRead(const TensorGroup& tensors) {
    for (const TensorShape& tensor : tensors) {
      ++state_.tensors_done;
      state_.bytes_done += BytesOf(tensor, source_);
    }
    Report();
  }

  // Adds the views of a part's matrix. matrix: bytes of the part's matrix, or null if the backend
  // reads the bytes while it packs them; then adds one view without data.
  void AddViews(const LinearLayout& layout,
                const LinearPart& part,
                const std::span<const std::byte>* matrix,
                std::vector<MatrixView>& views) const {
    MatrixView view =
        PartOf({.name = "", .rows = part.rows, .held_rows = part.held, .held_cols = layout.held},
               source_.format(part.name + ".weight"));
    if (matrix == nullptr) {
      views.push_back(view);
      return;
    }
    ForEachInQkvOrder(*matrix, layout.interleaved_heads, [&](std::span<const std::byte> rows) {
      view.data = rows.data();
      view.rows = static_cast<int64_t>(rows.size()) / RowBytes(view);
      views.push_back(view);
    });
  }

  // Converts F32, F16 or BF16 to fp32, in which norms and biases are kept.
  std::vector<float> Floats(const std::string& name, std::span<const std::byte> raw) const {
    const WeightFormat format = source_.format(name);
    std::vector<float> values(raw.size() / static_cast<size_t>(InfoOf(format).block_bytes));
    Dequantize(format, raw, values);
    return values;
  }

  absl::Status Assign(const std::string& name, std::span<const std::byte> raw, DeviceBuffer& out) {
    return Assign(Floats(name, raw), out);
  }

  absl::Status Assign(const std::vector<float>& values, DeviceBuffer& out) {
    bytes_ += static_cast<int64_t>(values.size() * sizeof(float));
    return out.Assign<float>(backend_, values);
  }

  // bytes_under_way: bytes read of the current group, which state_ does not include yet.
  void Report(int64_t bytes_under_way = 0) const {
    if (progress_) {
      LoadProgress told = state_;
      told.bytes_done += bytes_under_way;
      progress_(told);
    }
  }

  const TensorSource& source_;
  ReadAhead& files_;
  KernelBackend& backend_;
  const LoadProgressFn& progress_;
  LoadProgress state_;
  int64_t bytes_ = 0;
};

absl::Status ReadLayer(WeightReader& reader, const LayerLayout& layout, LayerWeights& layer) {
  QUIRE_RETURN_IF_ERROR(reader.Read(layout.attention_norm, layer.attention_norm));
  QUIRE_RETURN_IF_ERROR(reader.Read(layout.qkv, layer.qkv));
  if (layout.q_norm.has_value()) {
    QUIRE_RETURN_IF_ERROR(reader.Read(*layout.q_norm, layer.q_norm));
  }
  if (layout.k_norm.has_value()) {
    QUIRE_RETURN_IF_ERROR(reader.Read(*layout.k_norm, layer.k_norm));
  }
  QUIRE_RETURN_IF_ERROR(
      reader.Read(layout.attention_out, layer.attention_out, &layer.attention_out_bias));
  QUIRE_RETURN_IF_ERROR(reader.Read(layout.mlp_norm, layer.mlp_norm));
  QUIRE_RETURN_IF_ERROR(reader.Read(layout.mlp_in, layer.mlp_in));
  return reader.Read(layout.mlp_out, layer.mlp_out, &layer.mlp_out_bias);
}

}  // namespace

int64_t LoadedBytes(const WeightLayout& layout,
                    const TensorSource& source,
                    const KernelBackend& backend) {
  int64_t bytes = 0;
  if (layout.is_tied() && backend.packs_while_reading()) {
    bytes -=
        BytesOf(GroupOf(layout.token_table).front(), source);  // the unpacked table is not kept
  }
  for (const TensorGroup& group : TensorGroups(layout)) {
    for (const TensorShape& tensor : group) {
      const bool is_vector = tensor.rows == 0;
      if (is_vector || tensor.use == TensorUse::kTable) {
        bytes +=
            is_vector ? tensor.num_elements() * int64_t{sizeof(float)} : BytesOf(tensor, source);
      }
    }
  }
  for (const LinearLayout* linear : LinearLayers(layout)) {
    const int64_t packed_bytes = PackedBytes(*linear, source, backend);
    bytes = CheckedAdd(bytes, packed_bytes).value_or(std::numeric_limits<int64_t>::max());
  }
  int64_t read_ahead = 0;
  int64_t largest_group = 0;
  for (const TensorGroup& group : GroupsReadAhead(layout, backend)) {
    int64_t group_bytes = 0;
    for (const TensorShape& tensor : group) {
      group_bytes += BytesOf(tensor, source);
    }
    largest_group = std::max(largest_group, group_bytes);
    read_ahead += group_bytes;
  }
  const int64_t ring_bytes =
      std::min(read_ahead, std::max(largest_group, ReadAhead::kMinRingBytes));
  return CheckedAdd(bytes, ring_bytes).value_or(std::numeric_limits<int64_t>::max());
}

absl::StatusOr<DecoderWeights> LoadWeights(const WeightLayout& layout,
                                           const TensorSource& source,
                                           KernelBackend& backend,
                                           const LoadProgressFn& progress) {
  QUIRE_ASSIGN_OR_RETURN(const std::unique_ptr<ReadAhead> files,
                         ReadAhead::Start(source, GroupsReadAhead(layout, backend), backend));
  WeightReader reader(source, *files, backend, progress);
  DecoderWeights weights;
  if (layout.is_tied()) {
    QUIRE_RETURN_IF_ERROR(
        reader.ReadTied(layout.token_table, weights.token_table, weights.lm_head));
  } else {
    QUIRE_RETURN_IF_ERROR(reader.Read(layout.token_table, weights.token_table));
  }
  if (layout.position_table.has_value()) {
    QUIRE_RETURN_IF_ERROR(reader.Read(*layout.position_table, weights.position_table));
  }
  if (layout.project_in.has_value()) {
    QUIRE_RETURN_IF_ERROR(reader.Read(*layout.project_in, weights.project_in));
    QUIRE_RETURN_IF_ERROR(reader.Read(*layout.project_out, weights.project_out));
  }
  if (layout.embedding_norm.has_value()) {
    QUIRE_RETURN_IF_ERROR(reader.Read(*layout.embedding_norm, weights.embedding_norm));
  }
  for (const LayerLayout& layer : layout.layers) {
    QUIRE_RETURN_IF_ERROR(ReadLayer(reader, layer, weights.layers.emplace_back()));
  }
  if (layout.final_norm.has_value()) {
    QUIRE_RETURN_IF_ERROR(reader.Read(*layout.final_norm, weights.final_norm));
  }
  if (!layout.is_tied()) {
    QUIRE_RETURN_IF_ERROR(reader.Read(layout.lm_head, weights.lm_head));
  }
  reader.Finish();
  weights.bytes = reader.bytes();
  weights.sum = source.weights_sum();
  return weights;
}

}  // namespace quire
