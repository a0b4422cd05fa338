// WeightLayout says which tensors a model of a given configuration consists of, under the names
// that Hugging Face transformers gives them, and how they are put together: q, k and v (gate and
// up) stand one above the other in one linear layer. Where a file has q, k and v as one tensor that
// goes from head to head (BLOOM), they are sorted as they are loaded. SliceFor says which rows and
// columns of them one rank of several holds.
//
// Thread safety: a value type.
// Shapes:        a linear layer of `parts` p and `cols` c reads <p.name>.weight [p.rows, c] and,
//                with has_bias, <p.name>.bias [p.rows]; of both, the slices that are given.
#ifndef QUIRE_WORKER_MODEL_WEIGHT_LAYOUT_H_
#define QUIRE_WORKER_MODEL_WEIGHT_LAYOUT_H_

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/model/model_config.h"
#include "common/model/rank_share.h"
#include "kernels/api/dense.h"

namespace quire {

// Which indices of a dimension are held.
struct Slice {
  int64_t begin = 0;
  int64_t count = 0;

  friend bool operator==(const Slice&, const Slice&) = default;
};

// A dimension that is held whole.
inline Slice Whole(int64_t size) { return {.begin = 0, .count = size}; }

struct LinearPart {
  std::string name;  // without ".weight"
  int64_t rows = 0;
  Slice held = Whole(rows);  // of the rows
};

struct LinearLayout {
  std::vector<LinearPart> parts = {};
  int64_t cols = 0;
  Slice held = Whole(cols);  // of the columns
  bool has_bias = false;
  // The bias is added once: to the sum over all ranks, or by the first one's product (see
  // KernelBackend::adds_bias_to_sums).
  bool bias_is_apart = false;
  // > 0: the held rows of the one part are [interleaved_heads, 3, head_dim]: q, k and v of the
  // first head, of the second, ...
  int32_t interleaved_heads = 0;
  int64_t num_segments = 1;     // of the sum, see dense.h
  bool is_quantizable = false;  // a layer's; not what stands before and after the layers
};

// <name>.weight [width] and, for LayerNorm, <name>.bias [width].
struct NormLayout {
  std::string name;
  int64_t width = 0;
  bool has_weight = true;
  bool has_bias = false;
};

// <name>.weight [rows, width].
struct TableLayout {
  std::string name;
  int64_t rows = 0;
  int64_t width = 0;
  Slice held = Whole(rows);  // of the rows
};

struct LayerLayout {
  std::string attention;  // name of the attention module
  NormLayout attention_norm;
  LinearLayout qkv;
  std::optional<NormLayout> q_norm;
  std::optional<NormLayout> k_norm;
  LinearLayout attention_out;
  NormLayout mlp_norm;
  LinearLayout mlp_in;  // gate and up, or fc1
  LinearLayout mlp_out;
};

struct WeightLayout {
  TableLayout token_table;
  std::optional<TableLayout> position_table;
  std::optional<LinearLayout> project_in;  // embedding_dim -> hidden_size
  std::optional<NormLayout> embedding_norm;
  std::vector<LayerLayout> layers;
  std::optional<NormLayout> final_norm;
  std::optional<LinearLayout> project_out;  // hidden_size -> embedding_dim
  LinearLayout lm_head;                     // parts name the token table when tied

  bool is_tied() const { return lm_head.parts.front().name == token_table.name; }
};

// What becomes of a tensor, which decides how it may be read.
enum class TensorUse : uint8_t {
  kWhole,   // it is read whole, and then looked at
  kTable,   // it is kept as it is
  kPacked,  // rows of it are packed, each as it is
};

// A tensor of the files, [rows, cols] or a vector [cols], and the part of it that is read.
struct TensorShape {
  std::string name;
  int64_t rows = 0;  // 0: a vector
  int64_t cols = 0;
  Slice held_rows = Whole(std::max<int64_t>(rows, 1));
  Slice held_cols = Whole(cols);
  TensorUse use = TensorUse::kWhole;

  // Of the part.
  int64_t num_elements() const { return held_rows.count * held_cols.count; }
};

// The tensors that one part of the model is made of: a linear layer's weights, each followed by its
// bias; a norm's weight and bias; a table.
using TensorGroup = std::vector<TensorShape>;

// All groups, in the order in which they are loaded. A tied lm_head is not among them.
std::vector<TensorGroup> TensorGroups(const WeightLayout& layout);

// All that are there, a tied lm_head among them. They point into the layout.
std::vector<const LinearLayout*> LinearLayers(const WeightLayout& layout);

// That of one layer, or table.
TensorGroup GroupOf(const LinearLayout& linear);
TensorGroup GroupOf(const TableLayout& table);

// `prefix` goes before every name but lm_head ("model.", "model.decoder.", "decoder.",
// "transformer.", "").
WeightLayout MakeWeightLayout(const ModelConfig& config, std::string_view prefix);

// The part of a whole layout that a rank holds.
WeightLayout SliceFor(const RankShare& share, const ModelConfig& config, WeightLayout whole);

// The prefixes under which checkpoints of this architecture are published, the usual one first.
std::vector<std::string> NamePrefixes(const ModelConfig& config);

// A tensor that published files carry beside the weights and that decides nothing: buffers of old
// transformers versions, and the output matrix of a model that ties it to the embedding.
bool IsHarmlessExtra(const ModelConfig& config, std::string_view name);

}  // namespace quire

#endif  // QUIRE_WORKER_MODEL_WEIGHT_LAYOUT_H_
