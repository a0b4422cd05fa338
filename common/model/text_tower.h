// FindTextTower finds the language model inside a model that also sees or hears, for example
// LlavaForConditionalGeneration. Only models are known whose text computation is that of a served
// family, if a prompt is text. Other wrappers are refused by name.
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
  std::string architecture;  // of the family that computes the text: "LlamaForCausalLM", ...
  Json config;               // config.json of the language model alone
  std::string prefix;        // of fields in messages: "text_config.", or "" if config.json is flat
};

// Returns the architectures of wrappers, sorted.
std::vector<std::string_view> TextTowerArchitectures();

// Returns nullopt if the architecture is no wrapper. Fields that published files have at either
// level (token ids, stored type, quantization) are taken from config.json if text_config lacks
// them. Embeddings are tied if either level says so. REQUIRES: `json` is an object, and `reader`
// reads it.
absl::StatusOr<std::optional<TextTower>> FindTextTower(const Json& json,
                                                       const std::string& architecture,
                                                       ConfigReader& reader);

}  // namespace quire

#endif  // QUIRE_COMMON_MODEL_TEXT_TOWER_H_
