// ChatModel holds the model's tokenizer, and the chat templates that turn messages into a prompt.
// In a rendered chat, the name of a special token becomes that token only where the template wrote
// it. In a client's message it stays plain text, so a message cannot forge turns of the chat.
//
// Thread safety: immutable after Load; any number of threads may use it at once.
// Errors:        those of ChatTemplate::Render; those of Tokenizer::Encode; kInvalidArgument
//                CONTINUE_FINAL_MESSAGE; kInvalidArgument PROMPT_BYTES for a text above
//                kMaxPromptBytes; kFailedPrecondition NO_TOKENIZER, NO_CHAT_TEMPLATE.
#ifndef QUIRE_DEPLOY_GATEWAY_CHAT_MODEL_H_
#define QUIRE_DEPLOY_GATEWAY_CHAT_MODEL_H_

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

#include "common/base/ids.h"
#include "common/json/json.h"
#include "deploy/gateway/openai/chat_prompt.h"
#include "deploy/gateway/template/chat_template.h"
#include "deploy/gateway/template/rendered_prompt.h"
#include "scheduler/text/tokenizer.h"

namespace quire {

inline constexpr size_t kMaxPromptBytes = 1 << 20;  // the same bound as in the scheduler

class ChatModel {
 public:
  struct Source {
    std::string model_path;              // a directory or a GGUF file
    std::string template_file;           // empty: the model's own templates
    bool allows_special_tokens = false;  // true: clients' messages may name special tokens
  };

  // Also loads a model without tokenizer or chat templates; functions that need the missing part
  // then fail. If a template of the model cannot be parsed, logs a warning, and chats that need
  // this template are refused. Errors: those of ResolveModelFile for config.json; those of
  // LoadChatTemplates; those of Tokenizer::LoadOfModel; kInvalidArgument TEMPLATE_SYNTAX if
  // template_file cannot be parsed.
  static absl::StatusOr<std::unique_ptr<ChatModel>> Load(const Source& source);

  // Returns the prompt of a chat. Cost: bounded by TemplateLimits.
  absl::StatusOr<RenderedPrompt> Render(ChatPrompt chat) const;

  // Returns the tokens of a rendered chat.
  absl::StatusOr<std::vector<TokenId>> Encode(const RenderedPrompt& prompt,
                                              bool add_special_tokens) const;
  // Returns the tokens of a text that is not a chat.
  absl::StatusOr<std::vector<TokenId>> Encode(std::string_view text,
                                              bool add_special_tokens,
                                              bool parse_special) const;

  // Returns the form in which the default template reads message contents: a string, or parts.
  ContentFormat content_format() const { return content_format_; }

  absl::StatusOr<const Tokenizer*> tokenizer() const;
  uint64_t tokenizer_digest() const {
    return tokenizer_ == nullptr ? 0 : tokenizer_->file_digest();
  }

 private:
  // NOLINTNEXTLINE(bugprone-exception-escape): clang-tidy takes OrderedJson for throwing
  ChatModel() = default;

  absl::StatusOr<const ChatTemplate*> Find(const OrderedJson& variables) const;

  std::unique_ptr<Tokenizer> tokenizer_;                           // null: the model has none
  std::map<std::string, absl::StatusOr<ChatTemplate>> templates_;  // by name
  OrderedJson special_tokens_;
  bool allows_special_tokens_ = false;
  ContentFormat content_format_ = ContentFormat::kString;
};

}  // namespace quire

#endif  // QUIRE_DEPLOY_GATEWAY_CHAT_MODEL_H_
