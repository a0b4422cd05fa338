// LoopsOverContent tells whether a template takes contents of messages as lists of parts:
//
//     {% for message in messages %}{% for part in message['content'] %}
//
// The rule is the one by which vLLM detects the content format. The outer loop is over `messages`,
// or over a variable that the template sets to `messages`, to a slice of it or to a filtered list
// of it. The inner loop must name the content directly, not by another variable or a macro.
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
