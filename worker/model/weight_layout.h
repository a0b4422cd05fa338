// WeightLayout says which tensors a model of a given configuration consists of, under the names
// that Hugging Face transformers gives them, and how they are put together: q, k and v (gate and
// up) stand one above the other in one linear layer. Where a file has q, k and v as one tensor that
// goes from head to head (BLOOM), they are sorted as they are loaded.
//
// Thread safety: a value type.
// Shapes:        a linear layer of `parts` p and `cols` c reads <p.name>.weight [p.rows, c] and,
//                with has_bias, <p.name>.bias [p.rows].
#ifndef QUIRE_WORKER_MODEL_WEIGHT_LAYOUT_H_
#define QUIRE_WORKER_MODEL_WEIGHT_LAYOUT_H_

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/model/model_config.h"
#include "kernels/api/dense.h"

namespace quire {

struct LinearPart {
  std::string name;  // without ".weight"
  int64_t rows = 0;
};

struct LinearLayout {
  std::vector<LinearPart> parts = {};
  int64_t cols = 0;
  bool has_bias = false;
  // > 0: the rows of the one part are [interleaved_heads, 3, head_dim]: q, k and v of the first
  // head, of the second, ...
  int32_t interleaved_heads = 0;
  Reduction reduction = Reduction::kSequential;
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

// A tensor of the files: [rows, cols], or a vector [cols].
struct TensorShape {
  std::string name;
  int64_t rows = 0;  // 0: a vector
  int64_t cols = 0;

  int64_t num_elements() const { return std::max<int64_t>(rows, 1) * cols; }
};

// The tensors that one part of the model is made of: a linear layer's weights, each followed by its
// bias; a norm's weight and bias; a table.
using TensorGroup = std::vector<TensorShape>;

// All groups, in the order in which they are loaded. A tied lm_head is not among them.
std::vector<TensorGroup> TensorGroups(const WeightLayout& layout);

// `prefix` goes before every name but lm_head ("model.", "model.decoder.", "decoder.",
// "transformer.", "").
WeightLayout MakeWeightLayout(const ModelConfig& config, std::string_view prefix);

// The prefixes under which checkpoints of this architecture are published, the usual one first.
std::vector<std::string> NamePrefixes(const ModelConfig& config);

// A tensor that published files carry beside the weights and that decides nothing: buffers of old
// transformers versions, and the output matrix of a model that ties it to the embedding.
bool IsHarmlessExtra(const ModelConfig& config, std::string_view name);

}  // namespace quire

#endif  // QUIRE_WORKER_MODEL_WEIGHT_LAYOUT_H_
