// FindTextTower finds the language model inside a multimodal model (a wrapper), for example
// LlavaForConditionalGeneration. It knows only wrappers that compute a text prompt exactly as a
// served family does. Other wrappers are refused as unknown architectures.
//
// Thread safety: any thread; one caller at a time for each reader.
// Errors:        kInvalidArgument, reason CONFIG, message "config.json: field: rule".
#ifndef QUIRE_COMMON_MODEL_TEXT_TOWER_H_
#define QUIRE_COMMON_MODEL_TEXT_TOWER_H_

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

#include "common/json/json.h"
#include "common/model/config_reader.h"

namespace quire {

// NOLINTNEXTLINE(bugprone-exception-escape): Json's move is noexcept in effect
struct TextTower {
  std::string architecture;  // architecture of the language model: "LlamaForCausalLM", ...
  Json config;               // config.json of the language model alone
  std::string prefix;        // precedes field names in messages: "text_config.", or "" without it
};

// Returns the architectures of wrappers, sorted.
std::vector<std::string_view> TextTowerArchitectures();

// Returns nullopt if the architecture is not a known wrapper. Published files have some fields
// (token ids, dtype, quantization) either in text_config or at the outer level: the outer field
// counts if text_config lacks the field. Embeddings are tied if either level says so. REQUIRES:
// `json` is an object, and `reader` reads it.
absl::StatusOr<std::optional<TextTower>> FindTextTower(const Json& json,
                                                       const std::string& architecture,
                                                       ConfigReader& reader);

}  // namespace quire

#endif  // QUIRE_COMMON_MODEL_TEXT_TOWER_H_
