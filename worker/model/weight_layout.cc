#include "worker/model/weight_layout.h"

#include <algorithm>
#include <array>

#include "absl/strings/str_cat.h"

#include "common/base/string_view.h"
#include "common/model/gguf_config.h"

namespace quire {
namespace {

constexpr std::string_view kOpt = "OPTForCausalLM";
constexpr std::string_view kBloom = "BloomForCausalLM";
constexpr std::string_view kOldTowerPrefix = "language_model.model.";

// Names of the modules outside the layers, and the text before a layer's number ("layers." in
// layers.7).
struct ModelNames {
  std::string_view token_table = "embed_tokens";
  std::string_view embedding_norm = "";
  std::string_view layers = "layers.";
  std::string_view final_norm = "norm";
};

ModelNames ModelNamesFor(const ModelConfig& config) {
  if (config.architecture == kOpt) {
    return {.final_norm = "final_layer_norm"};
  }
  if (config.architecture == kBloom) {
    return {.token_table = "word_embeddings",
            .embedding_norm = "word_embeddings_layernorm",
            .layers = "h.",
            .final_norm = "ln_f"};
  }
  return {};
}

// Names of a layer's modules, without the layer's prefix.
struct LayerNames {
  std::string_view attention_norm;
  std::vector<std::string_view> qkv;  // a single name if one tensor interleaves q, k and v
  std::string_view attention_out;
  std::string_view mlp_norm;
  std::vector<std::string_view> mlp_in;
  std::string_view mlp_out;
};

LayerNames LayerNamesFor(const ModelConfig& config) {
  const std::vector<std::string_view> qkv = {
      "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"};
  if (config.architecture == kBloom) {
    return {.attention_norm = "input_layernorm",
            .qkv = {"self_attention.query_key_value"},
            .attention_out = "self_attention.dense",
            .mlp_norm = "post_attention_layernorm",
            .mlp_in = {"mlp.dense_h_to_4h"},
            .mlp_out = "mlp.dense_4h_to_h"};
  }
  if (config.architecture == kOpt) {
    return {.attention_norm = "self_attn_layer_norm",
            .qkv = qkv,
            .attention_out = "self_attn.out_proj",
            .mlp_norm = "final_layer_norm",
            .mlp_in = {"fc1"},
            .mlp_out = "fc2"};
  }
  return {.attention_norm = "input_layernorm",
          .qkv = qkv,
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

// Returns the layout of a layer whose input dimension is split over ranks. The layer sums over this
// dimension in the order of a fixed tree, whatever the number of ranks (kernels/api/dense.h).
LinearLayout RowParallel(std::string name, int64_t rows, int64_t cols, bool has_bias) {
  return {.parts = {{std::move(name), rows}},
          .cols = cols,
          .has_bias = has_bias,
          .num_segments = cols % kTreeSegments == 0 ? kTreeSegments : 1,
          .is_quantizable = true};
}

LayerLayout Layer(const ModelConfig& config, const std::string& prefix) {
  const LayerNames names = LayerNamesFor(config);
  const int64_t q_width = int64_t{config.num_heads} * config.head_dim;
  const int64_t kv_width = int64_t{config.num_kv_heads} * config.head_dim;
  auto named = [&prefix](std::string_view name) { return absl::StrCat(prefix, ToAbsl(name)); };
  LayerLayout layer;
  layer.attention = named(names.attention_out.substr(0, names.attention_out.find('.')));
  layer.attention_norm = Norm(config, named(names.attention_norm));
  layer.qkv = {.cols = config.hidden_size, .has_bias = config.qkv_bias, .is_quantizable = true};
  if (names.qkv.size() == 1) {
    layer.qkv.parts = {{named(names.qkv[0]), q_width + 2 * kv_width}};
    layer.qkv.interleaved_heads = config.num_heads;
  } else {
    layer.qkv.parts = {{named(names.qkv[0]), q_width},
                       {named(names.qkv[1]), kv_width},
                       {named(names.qkv[2]), kv_width}};
  }
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
  const ModelNames names = ModelNamesFor(config);
  WeightLayout layout;
  layout.token_table = {named(names.token_table), config.vocab_size, config.embedding_dim};
  if (!config.rope.has_value() && !config.alibi) {
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
  if (config.embedding_norm) {
    layout.embedding_norm = Norm(config, named(names.embedding_norm));
  }
  for (int32_t i = 0; i < config.num_layers; ++i) {
    layout.layers.push_back(Layer(config, named(absl::StrCat(ToAbsl(names.layers), i, "."))));
  }
  if (config.final_norm) {
    layout.final_norm = Norm(config, named(names.final_norm));
  }
  // transformers 4 saved the output matrix of a text tower under the name of the tower.
  const std::string_view head =
      prefix == kOldTowerPrefix ? "language_model.lm_head" : std::string_view("lm_head");
  layout.lm_head = {
      .parts = {{config.tie_word_embeddings ? layout.token_table.name : std::string(head),
                 config.vocab_size}},
      .cols = config.embedding_dim};
  return layout;
}

namespace {

// Returns the rows or columns of the items in `range`. An item (a head, token or input) has `width`
// consecutive rows or columns.
Slice Times(const IndexRange& range, int64_t width) {
  return {.begin = range.begin * width, .count = range.count * width};
}

// Keeps only the columns of this rank's inputs: the inputs in `range`, each `width` columns wide.
// The layer's outputs must then be summed over the ranks.
void SliceRowParallel(const RankShare& share,
                      const IndexRange& range,
                      int64_t width,
                      LinearLayout* linear) {
  linear->held = Times(range, width);
  linear->num_segments = kTreeSegments / share.size;
  linear->bias_is_apart = linear->has_bias;
}

void SliceLayer(const RankShare& share, int64_t head_dim, LayerLayout* layer) {
  std::vector<LinearPart>& qkv = layer->qkv.parts;
  if (qkv.size() == 1) {
    qkv[0].held = Times(share.heads, 3 * head_dim);
    layer->qkv.interleaved_heads = share.heads.count;
  } else {
    qkv[0].held = Times(share.heads, head_dim);
    qkv[1].held = Times(share.kv_heads, head_dim);
    qkv[2].held = Times(share.kv_heads, head_dim);
  }
  SliceRowParallel(share, share.heads, head_dim, &layer->attention_out);
  for (LinearPart& part : layer->mlp_in.parts) {
    part.held = Times(share.intermediate, 1);
  }
  SliceRowParallel(share, share.intermediate, 1, &layer->mlp_out);
}

}  // namespace

WeightLayout SliceFor(const RankShare& share, const ModelConfig& config, WeightLayout whole) {
  if (share.is_whole()) {
    return whole;
  }
  whole.token_table.held = Times(share.vocab, 1);
  whole.lm_head.parts.front().held = Times(share.vocab, 1);
  for (LayerLayout& layer : whole.layers) {
    SliceLayer(share, config.head_dim, &layer);
  }
  return whole;
}

namespace {

// Prefixes of the image and audio modules of a model, without "model.".
constexpr std::array<std::string_view, 9> kOtherTowers = {"audio_tower.",
                                                          "connector.",
                                                          "embed_audio.",
                                                          "embed_vision.",
                                                          "image_newline",
                                                          "multi_modal_projector.",
                                                          "vision_model.",
                                                          "vision_tower.",
                                                          "visual."};

}  // namespace

std::vector<std::string> NamePrefixes(const ModelConfig& config) {
  if (config.architecture == kOpt) {
    return {"model.decoder.", "decoder."};
  }
  if (config.architecture == kBloom) {
    return {"transformer.", ""};
  }
  if (config.is_text_tower) {
    return {std::string(kOldTowerPrefix), "model.language_model.", "model.text_model.", "model."};
  }
  return {"model."};
}

bool IsHarmlessExtra(const ModelConfig& config, std::string_view name) {
  if (name.ends_with(".rotary_emb.inv_freq") || name.ends_with("decoder.version")) {
    return true;
  }
  if (name == kGgufRopeFactors) {
    return config.rope.has_value() && config.rope->scaling == RopeScalingKind::kFactors;
  }
  return config.tie_word_embeddings &&
         (name == "lm_head.weight" || name == "language_model.lm_head.weight");
}

bool IsLeftOut(const ModelConfig& config, std::string_view name) {
  if (name.starts_with("mtp.")) {
    return true;
  }
  if (!config.is_text_tower) {
    return false;
  }
  if (name.starts_with("model.")) {
    name.remove_prefix(std::string_view("model.").size());
  }
  return std::any_of(kOtherTowers.begin(), kOtherTowers.end(), [&](std::string_view tower) {
    return name.starts_with(tower);
  });
}

TensorGroup GroupOf(const TableLayout& table) {
  return {{.name = table.name + ".weight",
           .rows = table.rows,
           .cols = table.width,
           .held_rows = table.held,
           .use = TensorUse::kTable}};
}

TensorGroup GroupOf(const LinearLayout& linear) {
  TensorGroup group;
  for (const LinearPart& part : linear.parts) {
    group.push_back({.name = part.name + ".weight",
                     .rows = part.rows,
                     .cols = linear.cols,
                     .held_rows = part.held,
                     .held_cols = linear.held,
                     .use = linear.interleaved_heads == 0 ? TensorUse::kPacked : TensorUse::kWhole,
                     .paired_head_rows = part.paired_head_rows});
    if (linear.has_bias) {
      group.push_back({.name = part.name + ".bias",
                       .cols = part.rows,
                       .held_cols = part.held,
                       .paired_head_rows = part.paired_head_rows});
    }
  }
  return group;
}

namespace {

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
  if (layout.embedding_norm.has_value()) {
    groups.push_back(GroupOf(*layout.embedding_norm));
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

std::vector<const LinearLayout*> LinearLayers(const WeightLayout& layout) {
  std::vector<const LinearLayout*> linears = {&layout.lm_head};
  for (const auto* linear : {&layout.project_in, &layout.project_out}) {
    if (linear->has_value()) {
      linears.push_back(&**linear);
    }
  }
  for (const LayerLayout& layer : layout.layers) {
    linears.insert(linears.end(),
                   {&layer.qkv, &layer.attention_out, &layer.mlp_in, &layer.mlp_out});
  }
  return linears;
}

}  // namespace quire
