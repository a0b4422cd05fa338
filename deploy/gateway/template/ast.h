// Node is a statement or an expression of a parsed template. ResolveScopes (scopes.h) fills in the
// places of variables.
//
// Thread safety: a parsed template does not change, so any thread may read it.
#ifndef QUIRE_DEPLOY_GATEWAY_TEMPLATE_AST_H_
#define QUIRE_DEPLOY_GATEWAY_TEMPLATE_AST_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "deploy/gateway/template/builtins.h"

namespace quire {

enum class NodeKind : uint8_t {
  // Expressions. `parts` holds the operands.
  kNone,
  kBool,
  kInt,
  kFloat,
  kString,
  kName,          // a variable that is read
  kTarget,        // a variable that is assigned
  kParameter,     // of a macro, or of `with`
  kNamespaceRef,  // name.text, as a target
  kTuple,
  kList,
  kDict,       // keys and values in turn
  kAttribute,  // parts[0].text
  kItem,       // parts[0][parts[1]]
  kSlice,      // parts[0][parts[1]:parts[2]:parts[3]], null for a bound that is left out
  kCall,       // parts[0](...)
  kFilter,     // parts[0] | text(...); parts[0] is null in a block's innermost filter
  kTest,       // parts[0] is text(...)
  kNot,
  kNegate,
  kPlus,
  kAnd,
  kOr,
  kBinary,
  kConcat,
  kCompare,    // `compare` holds the operators between parts
  kCondition,  // parts[0] if parts[1] else parts[2]; the last may be null
  // Statements.
  kTemplate,
  kData,         // text
  kOutput,       // parts
  kIf,           // parts[0], body, branches (elif), otherwise
  kFor,          // parts: target, iterable, test or null; body, otherwise
  kSet,          // parts: target, value
  kSetBlock,     // parts: target, filter or null; body
  kMacro,        // text is its name; parameters, defaults, body
  kCallBlock,    // parts[0]: the call, null for `generation`; parameters, defaults, body
  kFilterBlock,  // parts[0]; body
  kWith,         // parameters (targets), parts (values), body
  kBreak,
  kContinue,
};

enum class CompareOp : uint8_t { kEq, kNe, kLt, kLe, kGt, kGe, kIn, kNotIn };

// The place of a variable: slot `slot` of a function's Scope. hops: 0 for the function that runs, 1
// for the function around it, and so on.
struct Place {
  int hops = 0;
  int slot = 0;
};

// The first value of a variable, set when the variable's frame begins.
struct Load {
  enum class Kind : uint8_t { kParameter, kResolve, kAlias, kUndefined };
  Kind kind = Kind::kUndefined;
  int slot = 0;
  std::string name;  // kResolve: looked up among the template's variables
  Place from;        // kAlias
};
using FrameLoads = std::vector<Load>;

struct Node;
using NodePtr = std::unique_ptr<Node>;

struct Node {
  NodeKind kind;
  int line = 0;
  int depth = 1;  // of the tree that this node roots
  std::string text;
  int64_t integer = 0;  // kInt, kBool; kBinary: the BinaryOp
  double number = 0;
  std::vector<NodePtr> parts;
  std::vector<CompareOp> compare;

  // Arguments of a call, filter or test. The called function or the filtered value is parts[0].
  std::vector<NodePtr> arguments;
  std::vector<std::pair<std::string, NodePtr>> named;
  NodePtr more_arguments, more_named;  // *x, **x
  const Builtin* builtin = nullptr;    // of a filter or test; null if its name is unknown

  std::vector<NodePtr> parameters, defaults;
  std::vector<NodePtr> body, branches, otherwise;

  // ResolveScopes sets the members below.
  Place place;                          // of a name, target, parameter, macro or namespace
  FrameLoads loads;                     // of the body's frame
  FrameLoads otherwise_loads;           // of the frame of a for statement's else
  FrameLoads test_loads;                // of the frame of a for statement's test
  NodePtr test_target;                  // the for statement's target in the test's frame
  int num_slots = 0;                    // of a macro's or the template's function
  bool has_loop = false;                // the for statement's body reads `loop`
  Place loop, caller, kwargs, varargs;  // slots of special variables
  bool has_caller = false, has_kwargs = false, has_varargs = false;
};

}  // namespace quire

#endif  // QUIRE_DEPLOY_GATEWAY_TEMPLATE_AST_H_
