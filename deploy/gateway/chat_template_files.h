// LoadChatTemplates reads a model's chat templates, and the special tokens that templates may name.
// It looks in the same files as Hugging Face transformers, or in the metadata of a GGUF file.
//
// Thread safety: a free function, safe from any thread.
// Errors:        those of ResolveModelFile, except kNotFound; those of ParseJsonFile; those of
//                ReadFile; those of GgufFile::Open and GgufMetadata; kInvalidArgument
//                CHAT_TEMPLATE. The messages name the file.
#ifndef QUIRE_DEPLOY_GATEWAY_CHAT_TEMPLATE_FILES_H_
#define QUIRE_DEPLOY_GATEWAY_CHAT_TEMPLATE_FILES_H_

#include <map>
#include <string>

#include "absl/status/statusor.h"

#include "common/json/json.h"

namespace quire {

struct ChatTemplates {
  // Texts of the templates by name; the main template is "default". Empty: the model has no
  // template.
  std::map<std::string, std::string> sources;
  // Variables for each rendering: bos_token, eos_token, ..., additional_special_tokens.
  OrderedJson special_tokens = OrderedJson::object();
};

// If chat_template.jinja exists, reads it and additional_chat_templates/NAME.jinja. Otherwise reads
// `chat_template` of tokenizer_config.json: a text, or a list of {name, template}. From a GGUF
// file, reads tokenizer.chat_template and tokenizer.chat_template.NAME. If `template_file` is not
// empty, reads only this file, as the default template.
absl::StatusOr<ChatTemplates> LoadChatTemplates(const std::string& model_path,
                                                const std::string& template_file);

}  // namespace quire

#endif  // QUIRE_DEPLOY_GATEWAY_CHAT_TEMPLATE_FILES_H_
