// ReadChatPrompt reads what a client says in a chat, and shapes it as vLLM 0.11 does before Hugging
// Face's apply_chat_template, and then as that of transformers 5 does: contents are strings or
// lists of parts, arguments of tool calls are objects, tools have all fields, members that are null
// are dropped. Where the two differ:
// - A content that is null or absent is empty, as in vLLM. transformers drops the member.
// - The reasoning has three names. vLLM passes `reasoning` and `reasoning_content`, transformers
//   adds `thinking`. transformers also reads `thinking` from a client, which vLLM and we drop.
//
// Thread safety: a free function, safe from any thread.
#ifndef QUIRE_DEPLOY_GATEWAY_OPENAI_CHAT_PROMPT_H_
#define QUIRE_DEPLOY_GATEWAY_OPENAI_CHAT_PROMPT_H_

#include <cstdint>

#include "common/json/json.h"
#include "deploy/gateway/openai/json_fields.h"

namespace quire {

// The form of messages' contents: strings, with a line end between parts; or lists of parts
// {"type": "text", "text": ...}, for a template that loops over them.
enum class ContentFormat : uint8_t { kString, kParts };

// NOLINTNEXTLINE(bugprone-exception-escape): clang-tidy takes the moves of OrderedJson for throwing
struct ChatPrompt {
  // The variables of the chat template: messages, tools, documents, add_generation_prompt, and the
  // members of chat_template_kwargs. tools and documents are null if the client sent none. Nested
  // at most 128 deep: arguments of tool calls are JSON of their own.
  OrderedJson variables;
  // True: the prompt ends with the content of the last message, which the answer continues.
  bool continues_final_message = false;

  // REQUIRES: ReadChatPrompt returned this without an error.
  const OrderedJson& messages() const { return variables["messages"]; }
};

// Reads messages, tools, tool_choice, documents, add_generation_prompt, continue_final_message and
// chat_template_kwargs. Moves values out of the body. Errors are kept in `fields`; the result then
// has no meaning. Tools are refused unless tool_choice is "none".
ChatPrompt ReadChatPrompt(JsonFields& fields, ContentFormat format);

}  // namespace quire

#endif  // QUIRE_DEPLOY_GATEWAY_OPENAI_CHAT_PROMPT_H_
