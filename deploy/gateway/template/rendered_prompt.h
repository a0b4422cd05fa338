// RenderedPrompt is the text of a rendered template, and which of its bytes a client wrote. The
// tokenizer reads a client's bytes as plain text, so that a message cannot forge a turn of the
// chat.
//
// Thread safety: plain data.
#ifndef QUIRE_DEPLOY_GATEWAY_TEMPLATE_RENDERED_PROMPT_H_
#define QUIRE_DEPLOY_GATEWAY_TEMPLATE_RENDERED_PROMPT_H_

#include <string>
#include <vector>

#include "common/base/byte_range.h"

namespace quire {

struct RenderedPrompt {
  std::string text;
  std::vector<ByteRange> client_text;
};

}  // namespace quire

#endif  // QUIRE_DEPLOY_GATEWAY_TEMPLATE_RENDERED_PROMPT_H_
