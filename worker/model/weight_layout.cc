#include "worker/model/weight_layout.h"

#include "absl/strings/str_cat.h"

#include "common/base/string_view.h"

namespace quire {
namespace {

constexpr std::string_view kOpt = "OPTForCausalLM";

// The names of the modules of a layer, after "layers.<i>.".
struct LayerNames {
  std::string_view attention_norm;
  std::string_view attention_out;
  std::string_view mlp_norm;
  std::vector<std::string_view> mlp_in;
  std::string_view mlp_out;
};

LayerNames NamesFor(const ModelConfig& config) {
  if (config.architecture == kOpt) {
    return {.attention_norm = "self_attn_layer_norm",
            .attention_out = "self_attn.out_proj",
            .mlp_norm = "final_layer_norm",
            .mlp_in = {"fc1"},
            .mlp_out = "fc2"};
  }
  return {.attention_norm = "input_layernorm",
          .attention_out = "self_attn.o_proj",
          .mlp_norm = "post_attention_layernorm",
          .mlp_in = {"mlp.gate_proj", "mlp.up_proj"},
          .mlp_out = "mlp.down_proj"};
}

NormLayout Norm(const ModelConfig& config, std::string name) {
  return {.name = std::move(name),
          .width = config.hidden_size,
          .has_weight = config.norm_affine,
          .has_bias = config.norm_affine && config.norm == NormKind::kLayerNorm};
}

// A layer whose input dimension tensor parallelism splits: its sum is a fixed tree, see dense.h.
LinearLayout RowParallel(std::string name, int64_t rows, int64_t cols, bool has_bias) {
  return {.parts = {{std::move(name), rows}},
          .cols = cols,
          .has_bias = has_bias,
          .reduction = cols % 8 == 0 ? Reduction::kTree8 : Reduction::kSequential,
          .is_quantizable = true};
}

LayerLayout Layer(const ModelConfig& config, const std::string& prefix) {
  const LayerNames names = NamesFor(config);
  const int64_t q_width = int64_t{config.num_heads} * config.head_dim;
  const int64_t kv_width = int64_t{config.num_kv_heads} * config.head_dim;
  auto named = [&prefix](std::string_view name) { return absl::StrCat(prefix, ToAbsl(name)); };
  LayerLayout layer;
  layer.attention_norm = Norm(config, named(names.attention_norm));
  layer.qkv = {.parts = {{named("self_attn.q_proj"), q_width},
                         {named("self_attn.k_proj"), kv_width},
                         {named("self_attn.v_proj"), kv_width}},
               .cols = config.hidden_size,
               .has_bias = config.qkv_bias,
               .is_quantizable = true};
  if (config.qk_norm) {
    layer.q_norm = NormLayout{.name = named("self_attn.q_norm"), .width = config.head_dim};
    layer.k_norm = NormLayout{.name = named("self_attn.k_norm"), .width = config.head_dim};
  }
  layer.attention_out = RowParallel(
      named(names.attention_out), config.hidden_size, q_width, config.attention_out_bias);
  layer.mlp_norm = Norm(config, named(names.mlp_norm));
  layer.mlp_in = {.cols = config.hidden_size, .has_bias = config.mlp_bias, .is_quantizable = true};
  for (std::string_view name : names.mlp_in) {
    layer.mlp_in.parts.push_back({named(name), config.intermediate_size});
  }
  layer.mlp_out = RowParallel(
      named(names.mlp_out), config.hidden_size, config.intermediate_size, config.mlp_bias);
  return layer;
}

}  // namespace

WeightLayout MakeWeightLayout(const ModelConfig& config, std::string_view prefix) {
  auto named = [prefix](std::string_view name) {
    return absl::StrCat(ToAbsl(prefix), ToAbsl(name));
  };
  const bool is_opt = config.architecture == kOpt;
  WeightLayout layout;
  layout.token_table = {named("embed_tokens"), config.vocab_size, config.embedding_dim};
  if (!config.rope.has_value()) {
    layout.position_table = {
        named("embed_positions"),
        int64_t{config.max_position_embeddings} + config.learned_position_offset,
        config.hidden_size};
  }
  if (config.embedding_dim != config.hidden_size) {
    layout.project_in = LinearLayout{.parts = {{named("project_in"), config.hidden_size}},
                                     .cols = config.embedding_dim};
    layout.project_out = LinearLayout{.parts = {{named("project_out"), config.embedding_dim}},
                                      .cols = config.hidden_size};
  }
  for (int32_t i = 0; i < config.num_layers; ++i) {
    layout.layers.push_back(Layer(config, named(absl::StrCat("layers.", i, "."))));
  }
  if (config.final_norm) {
    layout.final_norm = Norm(config, named(is_opt ? "final_layer_norm" : "norm"));
  }
  layout.lm_head = {.parts = {{config.tie_word_embeddings ? layout.token_table.name : "lm_head",
                               config.vocab_size}},
                    .cols = config.embedding_dim};
  return layout;
}

std::vector<std::string> NamePrefixes(const ModelConfig& config) {
  if (config.architecture == kOpt) {
    return {"model.decoder.", "decoder."};
  }
  return {"model."};
}

bool IsHarmlessExtra(const ModelConfig& config, std::string_view name) {
  if (name.ends_with(".rotary_emb.inv_freq") || name.ends_with("decoder.version")) {
    return true;
  }
  return config.tie_word_embeddings && name == "lm_head.weight";
}

namespace {

TensorGroup GroupOf(const TableLayout& table) {
  return {{.name = table.name + ".weight", .rows = table.rows, .cols = table.width}};
}

TensorGroup GroupOf(const NormLayout& norm) {
  TensorGroup group;
  if (norm.has_weight) {
    group.push_back({.name = norm.name + ".weight", .cols = norm.width});
  }
  if (norm.has_bias) {
    group.push_back({.name = norm.name + ".bias", .cols = norm.width});
  }
  return group;
}

TensorGroup GroupOf(const LinearLayout& linear) {
  TensorGroup group;
  for (const LinearPart& part : linear.parts) {
    group.push_back({.name = part.name + ".weight", .rows = part.rows, .cols = linear.cols});
    if (linear.has_bias) {
      group.push_back({.name = part.name + ".bias", .cols = part.rows});
    }
  }
  return group;
}

void AddGroups(const LayerLayout& layer, std::vector<TensorGroup>* groups) {
  groups->push_back(GroupOf(layer.attention_norm));
  groups->push_back(GroupOf(layer.qkv));
  for (const auto* norm : {&layer.q_norm, &layer.k_norm}) {
    if (norm->has_value()) {
      groups->push_back(GroupOf(**norm));
    }
  }
  groups->push_back(GroupOf(layer.attention_out));
  groups->push_back(GroupOf(layer.mlp_norm));
  groups->push_back(GroupOf(layer.mlp_in));
  groups->push_back(GroupOf(layer.mlp_out));
}

}  // namespace

std::vector<TensorGroup> TensorGroups(const WeightLayout& layout) {
  std::vector<TensorGroup> groups = {GroupOf(layout.token_table)};
  if (layout.position_table.has_value()) {
    groups.push_back(GroupOf(*layout.position_table));
  }
  for (const auto* linear : {&layout.project_in, &layout.project_out}) {
    if (linear->has_value()) {
      groups.push_back(GroupOf(**linear));
    }
  }
  for (const LayerLayout& layer : layout.layers) {
    AddGroups(layer, &groups);
  }
  if (layout.final_norm.has_value()) {
    groups.push_back(GroupOf(*layout.final_norm));
  }
  if (!layout.is_tied()) {
    groups.push_back(GroupOf(layout.lm_head));
  }
  return groups;
}

}  // namespace quire
