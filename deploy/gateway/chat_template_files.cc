#include "deploy/gateway/chat_template_files.h"

#include <filesystem>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "common/base/error.h"
#include "common/base/read_file.h"
#include "common/base/status_macros.h"
#include "common/base/string_view.h"
#include "common/model/gguf_file.h"
#include "common/model/gguf_special_tokens.h"
#include "common/model/model_file.h"
#include "common/model/model_path.h"

namespace quire {
namespace {

constexpr char kDefaultTemplate[] = "default";
constexpr int64_t kMaxTemplateBytes = 1 << 20;
constexpr int64_t kMaxConfigBytes = 64 << 20;  // added_tokens_decoder may be long
constexpr size_t kMaxNamedTemplates = 64;
constexpr std::string_view kSpecialTokens[] = {
    "bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"};
constexpr char kAdditional[] = "additional_special_tokens";
constexpr std::string_view kGgufTemplateKey = "tokenizer.chat_template";

// Returns the path of a file in the model folder, or nullopt if the folder has no such file.
absl::StatusOr<std::optional<std::string>> FindFile(const std::string& model_dir,
                                                    const std::string& name) {
  absl::StatusOr<std::string> path = ResolveModelFile(model_dir, name);
  if (absl::IsNotFound(path.status())) {
    return std::nullopt;
  }
  if (!path.ok()) {
    return Error(path.status().code(),
                 ReasonOf(path.status()),
                 absl::StrCat(model_dir, "/", name, ": ", path.status().message()));
  }
  return std::optional<std::string>(*std::move(path));
}

// Reads a JSON file of the model folder. Returns an empty object if the folder has no such file.
absl::StatusOr<Json> ReadConfig(const std::string& model_dir, const std::string& name) {
  QUIRE_ASSIGN_OR_RETURN(const auto path, FindFile(model_dir, name));
  if (!path.has_value()) {
    return Json::object();
  }
  QUIRE_ASSIGN_OR_RETURN(Json config, ParseJsonFile(*path, kMaxConfigBytes));
  return config.is_object() ? std::move(config) : Json::object();
}

// Returns the text of a token, which is a string or an object {"content": TEXT, ...}. Returns
// nullopt for any other value.
std::optional<std::string> TokenOf(const Json& value) {
  if (value.is_string()) {
    return value.get<std::string>();
  }
  if (value.is_object() && value.contains("content") && value["content"].is_string()) {
    return value["content"].get<std::string>();
  }
  return std::nullopt;
}

void AddSpecialTokens(const Json& config, OrderedJson& tokens) {
  for (const std::string_view name : kSpecialTokens) {
    const std::string key(name);
    if (config.contains(key) && !tokens.contains(key)) {
      if (std::optional<std::string> token = TokenOf(config[key])) {
        tokens[key] = *std::move(token);
      }
    }
  }
  if (!config.contains(kAdditional) || !config[kAdditional].is_array() ||
      tokens.contains(kAdditional)) {
    return;
  }
  OrderedJson additional = OrderedJson::array();
  for (const Json& each : config[kAdditional]) {
    if (std::optional<std::string> token = TokenOf(each)) {
      additional.push_back(*std::move(token));
    }
  }
  tokens[kAdditional] = std::move(additional);
}

absl::Status AddNamedTemplates(const Json& list, ChatTemplates& templates) {
  if (list.size() > kMaxNamedTemplates) {
    return InvalidArgument("CHAT_TEMPLATE", "tokenizer_config.json: too many chat templates");
  }
  for (const Json& each : list) {
    const bool is_valid = each.is_object() && each.contains("name") && each["name"].is_string() &&
                          each.contains("template") && each["template"].is_string();
    if (!is_valid) {
      return InvalidArgument("CHAT_TEMPLATE",
                             "tokenizer_config.json: chat_template: must be a text or a list of "
                             "objects with name and template");
    }
    templates.sources[each["name"].get<std::string>()] = each["template"].get<std::string>();
  }
  return absl::OkStatus();
}

// Adds each additional_chat_templates/NAME.jinja as the template NAME.
absl::Status AddTemplateFiles(const std::string& model_dir, ChatTemplates& templates) {
  const std::string folder = "additional_chat_templates";
  std::error_code error;
  for (const auto& entry :
       std::filesystem::directory_iterator(std::filesystem::path(model_dir) / folder, error)) {
    const std::filesystem::path file = entry.path().filename();
    if (file.extension() != ".jinja") {
      continue;
    }
    if (templates.sources.size() > kMaxNamedTemplates) {
      return InvalidArgument("CHAT_TEMPLATE", absl::StrCat(folder, ": too many chat templates"));
    }
    QUIRE_ASSIGN_OR_RETURN(const auto path, FindFile(model_dir, folder + "/" + file.string()));
    if (path.has_value()) {
      QUIRE_ASSIGN_OR_RETURN(templates.sources[file.stem().string()],
                             ReadFile(*path, kMaxTemplateBytes));
    }
  }
  return absl::OkStatus();
}

// Adds the text of each special token that the GGUF vocabulary has.
absl::Status AddSpecialTokens(const GgufMetadata& metadata, OrderedJson& tokens) {
  QUIRE_ASSIGN_OR_RETURN(const GgufSpecialTokens special, ReadGgufSpecialTokens(metadata));
  QUIRE_ASSIGN_OR_RETURN(const std::vector<std::string_view> texts,
                         metadata.GetStrings(kGgufTokensKey));
  struct Field {
    const char* name;
    std::optional<TokenId> id;
  };
  for (const Field& field : {Field{"bos_token", special.bos},
                             Field{"eos_token", special.eos},
                             Field{"unk_token", special.unk},
                             Field{"sep_token", special.sep},
                             Field{"pad_token", special.pad},
                             Field{"cls_token", special.cls},
                             Field{"mask_token", special.mask}}) {
    if (field.id.has_value()) {
      tokens[field.name] = std::string(texts[static_cast<size_t>(*field.id)]);
    }
  }
  return absl::OkStatus();
}

// Adds the template that `key` holds, under `name`. Does nothing if the key is missing.
absl::Status AddTemplate(const GgufMetadata& metadata,
                         std::string_view key,
                         const std::string& name,
                         ChatTemplates& templates) {
  const absl::StatusOr<std::string_view> text = metadata.GetString(key);
  if (absl::IsNotFound(text.status())) {
    return absl::OkStatus();
  }
  QUIRE_RETURN_IF_ERROR(text.status());
  if (text->size() > kMaxTemplateBytes) {
    return metadata.KeyError(
        key,
        absl::StrCat("must have at most ", kMaxTemplateBytes, " bytes (got ", text->size(), ")"));
  }
  templates.sources[name] = std::string(*text);
  return absl::OkStatus();
}

absl::StatusOr<ChatTemplates> LoadFromGguf(const std::string& path, bool without_templates) {
  QUIRE_ASSIGN_OR_RETURN(const GgufFile file, GgufFile::Open(path));
  const GgufMetadata& metadata = file.metadata();
  ChatTemplates templates;
  QUIRE_RETURN_IF_ERROR(AddSpecialTokens(metadata, templates.special_tokens));
  if (without_templates) {
    return templates;
  }
  QUIRE_RETURN_IF_ERROR(AddTemplate(metadata, kGgufTemplateKey, kDefaultTemplate, templates));
  const std::string prefix = absl::StrCat(ToAbsl(kGgufTemplateKey), ".");
  for (const auto& [key, value] : metadata.values()) {
    if (!key.starts_with(prefix)) {
      continue;
    }
    if (templates.sources.size() > kMaxNamedTemplates) {
      return metadata.KeyError(key, "too many chat templates");
    }
    QUIRE_RETURN_IF_ERROR(AddTemplate(metadata, key, key.substr(prefix.size()), templates));
  }
  return templates;
}

}  // namespace

absl::StatusOr<ChatTemplates> LoadChatTemplates(const std::string& model_path,
                                                const std::string& template_file) {
  ChatTemplates templates;
  if (IsGgufPath(model_path)) {
    QUIRE_ASSIGN_OR_RETURN(templates, LoadFromGguf(model_path, !template_file.empty()));
    if (!template_file.empty()) {
      QUIRE_ASSIGN_OR_RETURN(templates.sources[kDefaultTemplate],
                             ReadFile(template_file, kMaxTemplateBytes));
    }
    return templates;
  }
  QUIRE_ASSIGN_OR_RETURN(const Json config, ReadConfig(model_path, "tokenizer_config.json"));
  AddSpecialTokens(config, templates.special_tokens);
  QUIRE_ASSIGN_OR_RETURN(const Json token_map, ReadConfig(model_path, "special_tokens_map.json"));
  AddSpecialTokens(token_map, templates.special_tokens);
  if (!template_file.empty()) {
    QUIRE_ASSIGN_OR_RETURN(templates.sources[kDefaultTemplate],
                           ReadFile(template_file, kMaxTemplateBytes));
    return templates;
  }
  QUIRE_ASSIGN_OR_RETURN(const auto file, FindFile(model_path, "chat_template.jinja"));
  if (file.has_value()) {
    QUIRE_ASSIGN_OR_RETURN(templates.sources[kDefaultTemplate], ReadFile(*file, kMaxTemplateBytes));
    QUIRE_RETURN_IF_ERROR(AddTemplateFiles(model_path, templates));
    return templates;
  }
  const auto entry = config.find("chat_template");
  if (entry != config.end() && entry->is_string()) {
    templates.sources[kDefaultTemplate] = entry->get<std::string>();
  } else if (entry != config.end() && entry->is_array()) {
    QUIRE_RETURN_IF_ERROR(AddNamedTemplates(*entry, templates));
  }
  return templates;
}

}  // namespace quire
