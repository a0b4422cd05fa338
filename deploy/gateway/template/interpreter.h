// Interpreter runs a parsed template once, with the result of the Python function that jinja2
// compiles from it.
//
// Thread safety: not thread-safe; one for each rendering. The tree is only read.
// Errors:        kept in the Heap's Budget.
#ifndef QUIRE_DEPLOY_GATEWAY_TEMPLATE_INTERPRETER_H_
#define QUIRE_DEPLOY_GATEWAY_TEMPLATE_INTERPRETER_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/civil_time.h"

#include "deploy/gateway/template/ast.h"
#include "deploy/gateway/template/rendered_prompt.h"
#include "deploy/gateway/template/value.h"

namespace quire {

// The variables of one call of a function. A macro keeps alive the scope that defines the macro.
struct Scope : Object {
  Scope(Heap& heap, Value of, int num_slots)
      : Object(heap, sizeof(*this) + static_cast<size_t>(num_slots) * sizeof(Value), 0),
        parent(std::move(of)),
        slots(static_cast<size_t>(num_slots), Value::Missing()) {}
  void Clear() override { slots.clear(); }
  Value parent;  // scope of the enclosing function; Undefined in the outermost one
  std::vector<Value> slots;
  bool is_kept = false;
};

class Interpreter {
 public:
  // `variables` is a dict. REQUIRES: the tree and the heap outlive the interpreter.
  Interpreter(Heap& heap, Value variables, absl::CivilSecond now)
      : heap_(heap), budget_(heap.budget()), variables_(std::move(variables)), now_(now) {}

  // Renders the template. The result counts only if the budget is ok.
  RenderedPrompt Run(const Node& root);

 private:
  // The effect of a statement on the loop around it.
  enum class Flow : uint8_t { kNext, kBreak, kContinue };

  // Statements (interpreter.cc).
  Flow RunAll(const std::vector<NodePtr>& nodes);
  Flow RunStatement(const Node& node);
  Flow RunIf(const Node& node);
  Flow RunFor(const Node& node);
  Flow RunSetBlock(const Node& node);
  Flow RunFilterBlock(const Node& node);
  Flow RunWith(const Node& node);
  void RunCallBlock(const Node& node);
  void Output(const Value& value);
  void BeginFrame(const FrameLoads& loads);
  void EndFrame(const FrameLoads& loads);
  Value& At(const Place& place) const;
  void Assign(const Node& target, Value value);
  NextItem Filtered(const Node& node, NextItem source);
  Value MakeMacro(const Node& node);
  Value CallMacro(const Node& node, const Value& scope, Arguments& arguments);
  void BindMacro(const Node& node, Arguments& arguments);

  // Expressions (evaluate.cc).
  Value Evaluate(const Node& node);
  Value EvaluateOperands(const Node& node);
  Value Name(const Node& node);
  Value Sequence(const Node& node);
  Value DictOf(const Node& node);
  Value Concat(const Node& node);
  Value Comparison(const Node& node);
  bool Holds(CompareOp op, const Value& a, const Value& b);
  Value Call(const Node& node, Value caller);
  Value FilterOrTest(const Node& node, Value input);
  Value FilterBlockText(const Node& filter, Value text);
  bool EvaluateArguments(const Node& node, Arguments& arguments);
  Value CallValue(const Value& callee, Arguments& arguments);

  Heap& heap_;
  Budget& budget_;
  const Value variables_;
  const absl::CivilSecond now_;
  Value scope_value_;  // keeps `scope_` alive
  Scope* scope_ = nullptr;
  TextBuilder* out_ = nullptr;
};

}  // namespace quire

#endif  // QUIRE_DEPLOY_GATEWAY_TEMPLATE_INTERPRETER_H_
