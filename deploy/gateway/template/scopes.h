// ResolveScopes gives every variable of a template a place, by the rules of jinja2's compiler. This
// compiler turns a template into Python functions whose local variables are those of the template.
//
// - The template, each macro and each call block is a function. The function's Scope holds the
//   slots of the function's variables.
// - Within a function, each `for`, `with`, set block and filter block has a frame of variables of
//   its own. An `if` has no frame.
// - A variable gets its first value when its frame begins (Load). A name that is assigned anywhere
//   in the frame, and is known outside, begins as a copy of the outer variable.
// - If frames of a function have the same level, their variables of the same name share a slot.
//
// Thread safety: free function, safe from any thread.
// Cost:          linear in the tree, times the depth of nested frames. The names that are new in a
//                branch of an `if` are copied once more.
#ifndef QUIRE_DEPLOY_GATEWAY_TEMPLATE_SCOPES_H_
#define QUIRE_DEPLOY_GATEWAY_TEMPLATE_SCOPES_H_

#include "absl/status/status.h"

#include "deploy/gateway/template/ast.h"

namespace quire {

// Fills in the places and loads of the tree. Errors: TemplateSyntaxError for what jinja2 refuses to
// compile.
absl::Status ResolveScopes(Node& root);

}  // namespace quire

#endif  // QUIRE_DEPLOY_GATEWAY_TEMPLATE_SCOPES_H_
