#include "deploy/gateway/chat_model.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

#include "common/base/error.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/model/model_file.h"
#include "common/model/model_path.h"
#include "deploy/gateway/chat_template_files.h"
#include "deploy/gateway/template/unicode.h"
#include "scheduler/text/text_budget.h"

namespace quire {
namespace {

constexpr char kDefaultName[] = "default";
constexpr char kToolUse[] = "tool_use";

// Appended to the last message's content, so that the end of the content can be found in the
// rendered prompt, as in transformers. If the template trims contents, the tag's final blank is
// missing there.
constexpr std::string_view kFinalMessageTag = "CONTINUE_FINAL_MESSAGE_TAG ";

absl::Status NoTag() {
  return InvalidArgument("CONTINUE_FINAL_MESSAGE",
                         "continue_final_message: the chat template does not write the content of "
                         "the last message");
}

// Appends the tag to the last message's content. Returns false if the content has no text.
bool AddTag(OrderedJson& variables) {
  OrderedJson& content = variables["messages"].back()["content"];
  if (content.is_string()) {
    content.get_ref<std::string&>() += kFinalMessageTag;
    return true;
  }
  const bool has_text_part = content.is_array() && !content.empty() && content.back().is_object() &&
                             content.back().contains("text") && content.back()["text"].is_string();
  if (has_text_part) {
    content.back()["text"].get_ref<std::string&>() += kFinalMessageTag;
  }
  return has_text_part;
}

// Cuts the prompt where the tag begins. If the tag's final blank is missing, the template trims
// contents, so white space before the tag is cut too.
absl::Status CutAtTag(RenderedPrompt& prompt) {
  const std::string_view tag = kFinalMessageTag;
  const size_t place = prompt.text.rfind(tag.substr(0, tag.size() - 1));
  if (place == std::string::npos) {
    return NoTag();
  }
  const bool is_trimmed = prompt.text.compare(place, tag.size(), tag) != 0;
  prompt.text.resize(place);
  if (is_trimmed) {
    prompt.text.resize(StripRight(prompt.text, IsPythonSpace).size());
  }
  while (!prompt.client_text.empty() && prompt.client_text.back().end > prompt.text.size()) {
    ByteRange& last = prompt.client_text.back();
    last.end = prompt.text.size();
    if (last.begin >= last.end) {
      prompt.client_text.pop_back();
    }
  }
  return absl::OkStatus();
}

absl::Status CheckSize(std::string_view text) {
  return text.size() <= kMaxPromptBytes ? absl::OkStatus()
                                        : InvalidArgument("PROMPT_BYTES",
                                                          absl::StrCat("prompt: is too long (got ",
                                                                       text.size(),
                                                                       " bytes, limit ",
                                                                       kMaxPromptBytes,
                                                                       ")"));
}

absl::Status ReadError(const absl::Status& status, std::string_view file) {
  return Error(status.code(),
               ReasonOf(status),
               absl::StrCat(absl::string_view(file.data(), file.size()), ": ", status.message()));
}

}  // namespace

absl::StatusOr<std::unique_ptr<ChatModel>> ChatModel::Load(const Source& source) {
  std::unique_ptr<ChatModel> model(new ChatModel());
  model->allows_special_tokens_ = source.allows_special_tokens;
  // A folder without config.json is probably no model, so it is refused. The file is not read here.
  if (!IsGgufPath(source.model_path)) {
    if (const auto config = ResolveModelFile(source.model_path, "config.json"); !config.ok()) {
      return ReadError(config.status(), source.model_path + "/config.json");
    }
  }
  QUIRE_ASSIGN_OR_RETURN(model->tokenizer_, Tokenizer::LoadOfModel(source.model_path));
  QUIRE_ASSIGN_OR_RETURN(ChatTemplates files,
                         LoadChatTemplates(source.model_path, source.template_file));
  model->special_tokens_ = std::move(files.special_tokens);
  for (const auto& [name, text] : files.sources) {
    absl::StatusOr<ChatTemplate> parsed = ChatTemplate::Parse(text);
    if (!parsed.ok() && !source.template_file.empty()) {
      return ReadError(parsed.status(), source.template_file);
    }
    if (!parsed.ok()) {
      LogWarning("a chat template of the model cannot be used; chats that need it are refused",
                 {{"template", name}, {"cause", std::string(parsed.status().message())}});
    }
    if (name == kDefaultName && parsed.ok() && parsed->loops_over_content()) {
      model->content_format_ = ContentFormat::kParts;
    }
    model->templates_.emplace(name, std::move(parsed));
  }
  return model;
}

// Returns the template "tool_use" for a chat with tools if the model has this template, as in
// transformers. Otherwise returns the template "default".
absl::StatusOr<const ChatTemplate*> ChatModel::Find(const OrderedJson& variables) const {
  auto found = templates_.end();
  if (const auto tools = variables.find("tools"); tools != variables.end() && !tools->is_null()) {
    found = templates_.find(kToolUse);
  }
  if (found == templates_.end()) {
    found = templates_.find(kDefaultName);
  }
  if (found == templates_.end()) {
    return Error(absl::StatusCode::kFailedPrecondition,
                 "NO_CHAT_TEMPLATE",
                 "messages: the model has no chat template; the server needs --chat-template");
  }
  if (!found->second.ok()) {
    return Error(absl::StatusCode::kFailedPrecondition,
                 "NO_CHAT_TEMPLATE",
                 "messages: the chat template of the model cannot be parsed; the server needs "
                 "--chat-template");
  }
  return &*found->second;
}

absl::StatusOr<RenderedPrompt> ChatModel::Render(ChatPrompt chat) const {
  QUIRE_ASSIGN_OR_RETURN(const ChatTemplate* chat_template, Find(chat.variables));
  if (chat.continues_final_message && !AddTag(chat.variables)) {
    return NoTag();
  }
  const absl::CivilSecond now = absl::ToCivilSecond(absl::Now(), absl::LocalTimeZone());
  QUIRE_ASSIGN_OR_RETURN(
      RenderedPrompt prompt,
      chat_template->Render(chat.variables, special_tokens_, TemplateLimits(), now));
  if (chat.continues_final_message) {
    QUIRE_RETURN_IF_ERROR(CutAtTag(prompt));
  }
  return prompt;
}

absl::StatusOr<std::vector<TokenId>> ChatModel::Encode(const RenderedPrompt& prompt,
                                                       bool add_special_tokens) const {
  QUIRE_ASSIGN_OR_RETURN(const Tokenizer* const tokenizer, this->tokenizer());
  QUIRE_RETURN_IF_ERROR(CheckSize(prompt.text));
  TextBudget budget(prompt.text.size());
  return tokenizer->Encode(
      prompt.text,
      add_special_tokens,
      /*parse_special=*/true,
      allows_special_tokens_ ? std::span<const ByteRange>() : prompt.client_text,
      &budget);
}

absl::StatusOr<std::vector<TokenId>> ChatModel::Encode(std::string_view text,
                                                       bool add_special_tokens,
                                                       bool parse_special) const {
  QUIRE_ASSIGN_OR_RETURN(const Tokenizer* const tokenizer, this->tokenizer());
  QUIRE_RETURN_IF_ERROR(CheckSize(text));
  return tokenizer->Encode(text, add_special_tokens, parse_special);
}

absl::StatusOr<const Tokenizer*> ChatModel::tokenizer() const {
  if (tokenizer_ == nullptr) {
    return Error(absl::StatusCode::kFailedPrecondition,
                 "NO_TOKENIZER",
                 "prompt: the model has no tokenizer; send token ids, and no echo");
  }
  return tokenizer_.get();
}

}  // namespace quire
