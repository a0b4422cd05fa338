// ReadChatPrompt reads a client's chat, and converts it in two steps, as vLLM 0.11 does: first
// vLLM's own conversion, then apply_chat_template of Hugging Face transformers 5. Contents become
// strings or lists of parts, arguments of tool calls become objects, tools get all fields, and
// members that are null are dropped. Where vLLM and transformers differ:
// - A content that is null or absent becomes empty, as in vLLM. transformers drops the member.
// - The reasoning gets three names: `reasoning` and `reasoning_content`, as in vLLM, and
//   `thinking`, as in transformers. transformers also reads `thinking` from a client, which vLLM
//   and Quire drop.
//
// Thread safety: a free function, safe from any thread.
#ifndef QUIRE_DEPLOY_GATEWAY_OPENAI_CHAT_PROMPT_H_
#define QUIRE_DEPLOY_GATEWAY_OPENAI_CHAT_PROMPT_H_

#include <cstdint>

#include "common/json/json.h"
#include "deploy/gateway/openai/json_fields.h"

namespace quire {

// The form of messages' contents. kString: a string, with a line end between parts. kParts: a list
// of parts {"type": "text", "text": ...}, for a template that loops over parts.
enum class ContentFormat : uint8_t { kString, kParts };

// NOLINTNEXTLINE(bugprone-exception-escape): clang-tidy takes the moves of OrderedJson for throwing
struct ChatPrompt {
  // The variables of the chat template: messages, tools, documents, add_generation_prompt, and the
  // members of chat_template_kwargs. tools and documents are null if the client sent none. The body
  // has at most 64 levels of nesting. Arguments of tool calls are JSON texts with 64 levels of
  // their own, so the variables have at most 128.
  OrderedJson variables;
  // True: the prompt ends with the content of the last message, which the answer continues.
  bool continues_final_message = false;

  // REQUIRES: ReadChatPrompt returned this without an error.
  const OrderedJson& messages() const { return variables["messages"]; }
};

// Reads messages, tools, tool_choice, documents, add_generation_prompt, continue_final_message and
// chat_template_kwargs. Moves values out of the body. Fails on tools unless tool_choice is "none".
// Keeps errors in `fields`; the result then has no meaning.
ChatPrompt ReadChatPrompt(JsonFields& fields, ContentFormat format);

}  // namespace quire

#endif  // QUIRE_DEPLOY_GATEWAY_OPENAI_CHAT_PROMPT_H_
