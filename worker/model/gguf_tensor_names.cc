#include "worker/model/gguf_tensor_names.h"

#include <array>
#include <span>

#include "absl/strings/str_cat.h"

#include "common/base/string_view.h"

namespace quire {
namespace {

struct NamePair {
  std::string_view gguf;
  std::string_view hugging_face;
};

// Modules outside the layers.
constexpr std::array<NamePair, 3> kModelNames = {{
    {"token_embd", "model.embed_tokens"},
    {"output_norm", "model.norm"},
    {"output", "lm_head"},
}};

// Text before a layer's number.
constexpr NamePair kLayers = {"blk.", "model.layers."};

// Names of a layer's modules, without kLayers, the layer's number and a dot.
constexpr std::array<NamePair, 11> kLayerNames = {{
    {"attn_norm", "input_layernorm"},
    {"attn_q", "self_attn.q_proj"},
    {"attn_k", "self_attn.k_proj"},
    {"attn_v", "self_attn.v_proj"},
    {"attn_output", "self_attn.o_proj"},
    {"attn_q_norm", "self_attn.q_norm"},
    {"attn_k_norm", "self_attn.k_norm"},
    {"ffn_norm", "post_attention_layernorm"},
    {"ffn_gate", "mlp.gate_proj"},
    {"ffn_up", "mlp.up_proj"},
    {"ffn_down", "mlp.down_proj"},
}};

using Side = std::string_view NamePair::*;

// Returns the module's name on side `to`, or nullopt if no pair has `module` on side `from`.
std::optional<std::string_view> OtherName(std::span<const NamePair> pairs,
                                          std::string_view module,
                                          Side from,
                                          Side to) {
  for (const NamePair& pair : pairs) {
    if (pair.*from == module) {
      return pair.*to;
    }
  }
  return std::nullopt;
}

std::optional<std::string> Translate(std::string_view name, Side from, Side to) {
  const size_t last_dot = name.rfind('.');
  const std::string_view module = name.substr(0, last_dot);
  const std::string_view kind = name.substr(module.size());
  if (kind != ".weight" && kind != ".bias") {
    return std::nullopt;
  }
  if (!module.starts_with(kLayers.*from)) {
    const auto other = OtherName(kModelNames, module, from, to);
    return other ? std::optional(absl::StrCat(ToAbsl(*other), ToAbsl(kind))) : std::nullopt;
  }
  const std::string_view in_layers = module.substr((kLayers.*from).size());
  const size_t digits = in_layers.find_first_not_of("0123456789");
  if (digits == 0 || digits == std::string_view::npos || in_layers[digits] != '.') {
    return std::nullopt;
  }
  const auto other = OtherName(kLayerNames, in_layers.substr(digits + 1), from, to);
  if (!other) {
    return std::nullopt;
  }
  return absl::StrCat(
      ToAbsl(kLayers.*to), ToAbsl(in_layers.substr(0, digits + 1)), ToAbsl(*other), ToAbsl(kind));
}

}  // namespace

std::optional<std::string> HuggingFaceNameOf(std::string_view gguf_name) {
  return Translate(gguf_name, &NamePair::gguf, &NamePair::hugging_face);
}

std::optional<std::string> GgufNameOf(std::string_view hugging_face_name) {
  return Translate(hugging_face_name, &NamePair::hugging_face, &NamePair::gguf);
}

}  // namespace quire
