// LoopsOverContent tells whether a template takes contents of messages as lists of parts:
//
//     {% for message in messages %}{% for part in message['content'] %}
//
// The rule is that of vLLM's content format: names that the template gives to the messages, and to
// slices and filtered lists of them, count; contents that pass through variables and macros do not.
//
// Thread safety: a free function, safe from any thread.
// Cost:          n log n in the nodes.
#ifndef QUIRE_DEPLOY_GATEWAY_TEMPLATE_CONTENT_LOOP_H_
#define QUIRE_DEPLOY_GATEWAY_TEMPLATE_CONTENT_LOOP_H_

#include "deploy/gateway/template/ast.h"

namespace quire {

bool LoopsOverContent(const Node& root);

}  // namespace quire

#endif  // QUIRE_DEPLOY_GATEWAY_TEMPLATE_CONTENT_LOOP_H_
