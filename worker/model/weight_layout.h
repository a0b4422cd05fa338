// WeightLayout lists the tensors that a model of a given configuration has, by their names in
// Hugging Face transformers, and how they are fused. The rows of q, k and v are concatenated in one
// linear layer, and so are the rows of gate and up. BLOOM's files interleave q, k and v head by
// head in one tensor; loading reorders these rows. SliceFor returns the rows and columns that one
// rank of several holds.
//
// Thread safety: a value type.
// Shapes:        for each part p, a linear layer reads <p.name>.weight [p.rows, cols] and, with
//                has_bias, <p.name>.bias [p.rows]. A rank reads only its held slices.
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

// The part of one dimension that a rank holds: a range of indices.
struct Slice {
  int64_t begin = 0;
  int64_t count = 0;

  friend bool operator==(const Slice&, const Slice&) = default;
};

// Returns the slice of a rank that holds the whole dimension.
inline Slice Whole(int64_t size) { return {.begin = 0, .count = size}; }

struct LinearPart {
  std::string name;  // without ".weight"
  int64_t rows = 0;
  Slice held = Whole(rows);  // rows that this rank holds
  // If > 0, a head has this number of rows, and the file stores them in pairs: rows i and i +
  // paired_head_rows / 2 of the head are its rows 2 i and 2 i + 1 in the file. RoPE rotates such a
  // pair together.
  int32_t paired_head_rows = 0;
};

struct LinearLayout {
  std::vector<LinearPart> parts = {};
  int64_t cols = 0;
  Slice held = Whole(cols);  // columns that this rank holds
  bool has_bias = false;
  // True if the layer has a bias and its outputs are summed over several ranks. The bias must then
  // be added only once: to the sum, or to the first rank's product before the sum
  // (KernelBackend::adds_bias_to_sums).
  bool bias_is_apart = false;
  // If > 0, the layer has one part, whose held rows are [interleaved_heads, 3, head_dim]: q, k and
  // v of the first head, then q, k and v of the second head, and so on.
  int32_t interleaved_heads = 0;
  int64_t num_segments = 1;  // segments of each sum over the columns (kernels/api/dense.h)
  // True for the matrices of layers; false for project_in, project_out and lm_head.
  bool is_quantizable = false;
};

// Reads <name>.weight [width] if has_weight, and <name>.bias [width] if has_bias.
struct NormLayout {
  std::string name;
  int64_t width = 0;
  bool has_weight = true;
  bool has_bias = false;
};

// Reads <name>.weight [rows, width].
struct TableLayout {
  std::string name;
  int64_t rows = 0;
  int64_t width = 0;
  Slice held = Whole(rows);  // rows that this rank holds
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
  LinearLayout lm_head;                     // if tied, its part has the name of the token table

  bool is_tied() const { return lm_head.parts.front().name == token_table.name; }
};

// The use of a tensor decides how the tensor can be read.
enum class TensorUse : uint8_t {
  kWhole,   // read whole, then converted or reordered
  kTable,   // kept in memory as in the file
  kPacked,  // packed row by row, in the order of the file
};

// A tensor of the files, and the part of it that this rank reads. The tensor is a matrix [rows,
// cols] or a vector [cols].
struct TensorShape {
  std::string name;
  int64_t rows = 0;  // 0: a vector
  int64_t cols = 0;
  Slice held_rows = Whole(std::max<int64_t>(rows, 1));
  Slice held_cols = Whole(cols);
  TensorUse use = TensorUse::kWhole;
  int32_t paired_head_rows = 0;  // as in LinearPart; for a bias, elements of a head

  // Elements of the held part.
  int64_t num_elements() const { return held_rows.count * held_cols.count; }
};

// The tensors of one part of the model: a linear layer's weights, each followed by its bias; a
// norm's weight and bias; or a table.
using TensorGroup = std::vector<TensorShape>;

// Returns all groups in loading order. A tied lm_head is left out, since it is the token table.
std::vector<TensorGroup> TensorGroups(const WeightLayout& layout);

// Returns pointers to all linear layers in `layout`, a tied lm_head included.
std::vector<const LinearLayout*> LinearLayers(const WeightLayout& layout);

// Returns the group of one linear layer or table.
TensorGroup GroupOf(const LinearLayout& linear);
TensorGroup GroupOf(const TableLayout& table);

// Returns the layout of a whole model. Every name except lm_head begins with `prefix`, which is one
// of NamePrefixes.
WeightLayout MakeWeightLayout(const ModelConfig& config, std::string_view prefix);

// Returns the part of a whole layout that a rank holds.
WeightLayout SliceFor(const RankShare& share, const ModelConfig& config, WeightLayout whole);

// Returns the prefixes under which checkpoints of this architecture are published, most usual
// first.
std::vector<std::string> NamePrefixes(const ModelConfig& config);

// Returns true for a tensor that published files contain although it has no effect. Such a tensor
// is a buffer of old transformers versions, the output matrix of a model that uses its embedding
// instead, or the RoPE factors of a GGUF file, which the configuration already has.
bool IsHarmlessExtra(const ModelConfig& config, std::string_view name);

// Returns true for a tensor of a part of the model that is not served: an image or audio tower, or
// the layers of multi-token prediction.
bool IsLeftOut(const ModelConfig& config, std::string_view name);

}  // namespace quire

#endif  // QUIRE_WORKER_MODEL_WEIGHT_LAYOUT_H_
