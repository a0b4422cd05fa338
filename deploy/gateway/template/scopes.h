// ResolveScopes gives every variable of a template a place, by the rules of jinja2's compiler: it
// turns a template into Python functions, whose local variables are the template's variables.
//
// - The template, each macro and each call block is a function. Its scope has slots.
// - for, with, set blocks and filter blocks have a frame of variables of their own within a
//   function; if has none.
// - A frame's variables get their first values when it begins (Load): a name that is assigned
//   anywhere in the frame, and known outside, begins as a copy of the outer variable.
// - Frames side by side at one level share the slots of equal names.
//
// Thread safety: free function, safe from any thread.
// Cost:          linear in the tree, times the depth of nested frames; each branch of an if copies
//                the names of its frame.
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
