#include "deploy/gateway/template/interpreter.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "deploy/gateway/template/cat.h"
#include "deploy/gateway/template/loop.h"
#include "deploy/gateway/template/operators.h"
#include "deploy/gateway/template/python_text.h"

namespace quire {

RenderedPrompt Interpreter::Run(const Node& root) {
  TextBuilder out(heap_);
  out_ = &out;
  scope_value_ = heap_.New<Scope>(Kind::kScope, Value(), root.num_slots);
  scope_ = &scope_value_.as<Scope>();
  BeginFrame(root.loads);
  RunAll(root.body);
  out_ = nullptr;
  if (out.size() > static_cast<size_t>(budget_.limits().max_output_bytes)) {
    budget_.Fail("TEMPLATE_LIMIT", "template: too much output");
  }
  return out.TakePrompt();
}

Interpreter::Flow Interpreter::RunAll(const std::vector<NodePtr>& nodes) {
  for (const NodePtr& node : nodes) {
    const Flow flow = RunStatement(*node);
    if (flow != Flow::kNext || !budget_.ok()) {
      return flow;
    }
  }
  return Flow::kNext;
}

Interpreter::Flow Interpreter::RunStatement(const Node& node) {
  const DepthGuard guard(budget_);
  if (!guard.ok() || !budget_.Spend()) {
    return Flow::kNext;
  }
  budget_.set_line(node.line);
  switch (node.kind) {
    case NodeKind::kOutput:
      for (const NodePtr& part : node.parts) {
        if (part->kind == NodeKind::kData) {
          out_->AppendOwn(part->text);
        } else {
          budget_.set_line(part->line);
          Output(Evaluate(*part));
        }
      }
      return Flow::kNext;
    case NodeKind::kIf:
      return RunIf(node);
    case NodeKind::kFor:
      return RunFor(node);
    case NodeKind::kSet:
      Assign(*node.parts[0], Evaluate(*node.parts[1]));
      return Flow::kNext;
    case NodeKind::kSetBlock:
      return RunSetBlock(node);
    case NodeKind::kMacro:
      At(node.place) = MakeMacro(node);
      return Flow::kNext;
    case NodeKind::kCallBlock:
      RunCallBlock(node);
      return Flow::kNext;
    case NodeKind::kFilterBlock:
      return RunFilterBlock(node);
    case NodeKind::kWith:
      return RunWith(node);
    case NodeKind::kBreak:
      return Flow::kBreak;
    case NodeKind::kContinue:
      return Flow::kContinue;
    default:
      return Flow::kNext;
  }
}

void Interpreter::Output(const Value& value) {
  if (budget_.ok()) {
    AppendText(heap_, value, *out_);
  }
}

Interpreter::Flow Interpreter::RunIf(const Node& node) {
  if (IsTrue(Evaluate(*node.parts[0]))) {
    return RunAll(node.body);
  }
  for (const NodePtr& branch : node.branches) {
    if (IsTrue(Evaluate(*branch->parts[0]))) {
      return RunAll(branch->body);
    }
  }
  return RunAll(node.otherwise);
}

Value& Interpreter::At(const Place& place) const {
  Scope* scope = scope_;
  for (int i = 0; i < place.hops; ++i) {
    scope = &scope->parent.as<Scope>();
  }
  return scope->slots[static_cast<size_t>(place.slot)];
}

void Interpreter::BeginFrame(const FrameLoads& loads) {
  budget_.Spend(static_cast<int64_t>(loads.size()));
  for (const Load& load : loads) {
    Value& value = scope_->slots[static_cast<size_t>(load.slot)];
    switch (load.kind) {
      case Load::Kind::kParameter:
        break;
      case Load::Kind::kUndefined:
        value = Value::Missing();
        break;
      case Load::Kind::kAlias:
        value = At(load.from);
        break;
      case Load::Kind::kResolve: {
        const Value* const given = variables_.as<Dict>().Find(load.name);
        value = given != nullptr ? *given
                                 : FindGlobal(heap_, load.name, now_).value_or(Value::Missing());
      }
    }
  }
}

void Interpreter::EndFrame(const FrameLoads& loads) {
  for (const Load& load : loads) {
    scope_->slots[static_cast<size_t>(load.slot)] = Value::Missing();
  }
}

void Interpreter::Assign(const Node& target, Value value) {
  if (target.kind == NodeKind::kNamespaceRef) {
    const Value space = Evaluate(*target.parts[0]);
    if (!space.is(Kind::kNamespace)) {
      heap_.Fail("cannot assign attribute on non-namespace object");
    } else if (target.text.starts_with('_')) {
      heap_.Fail("a namespace stores no names that begin with an underscore");
    } else {
      auto& attributes = space.as<Dict>();
      Value* const place = attributes.Find(target.text);
      place != nullptr ? void(*place = std::move(value))
                       : void(attributes.Add(heap_.Literal(target.text), std::move(value)));
    }
    return;
  }
  if (target.kind != NodeKind::kTuple) {
    At(target.place) = std::move(value);
    return;
  }
  const NextItem next = Iterate(heap_, value);
  std::vector<Value> items;
  Value item;
  while (items.size() <= target.parts.size() && next(&item)) {
    items.push_back(std::move(item));
  }
  if (items.size() != target.parts.size()) {
    heap_.Fail("the number of values to unpack is another than that of the names");
    return;
  }
  for (size_t i = 0; i < items.size(); ++i) {
    Assign(*target.parts[i], std::move(items[i]));
  }
}

// Returns the items for which the for statement's test holds. The test runs when the loop takes an
// item.
NextItem Interpreter::Filtered(const Node& node, NextItem source) {
  // If a template keeps the loop in a variable, the scope holds the iterator and the iterator holds
  // the scope. The heap breaks this cycle.
  if (!std::exchange(scope_->is_kept, true)) {
    heap_.Keep(scope_value_);
  }
  return [this, &node, source = std::move(source), scope = scope_value_, is_begun = false](
             Value* item) mutable {
    if (scope.as<Scope>().slots.empty()) {
      return false;
    }
    Scope* const outer = std::exchange(scope_, &scope.as<Scope>());
    const Value outer_value = std::exchange(scope_value_, scope);
    if (!std::exchange(is_begun, true)) {
      BeginFrame(node.test_loads);
    }
    bool is_found = false;
    while (!is_found && source(item) && budget_.ok()) {
      Assign(*node.test_target, *item);
      is_found = IsTrue(Evaluate(*node.parts[2]));
    }
    scope_ = outer;
    scope_value_ = outer_value;
    return is_found && budget_.ok();
  };
}

Interpreter::Flow Interpreter::RunFor(const Node& node) {
  const Value iterable = Evaluate(*node.parts[1]);
  if (!budget_.ok()) {
    return Flow::kNext;
  }
  NextItem next = Iterate(heap_, iterable);
  std::optional<int64_t> length = LengthOf(iterable);
  if (node.parts[2] != nullptr) {
    next = Filtered(node, std::move(next));
    length = std::nullopt;
  }
  Value loop;
  if (node.has_loop) {
    loop = heap_.New<Loop>(Kind::kLoop, iterable.depth(), std::move(next), length);
    next = [loop](Value* item) { return loop.as<Loop>().Advance(item); };
  }
  bool has_completed = false;
  Value item;
  while (next(&item) && budget_.Spend()) {
    Assign(*node.parts[0], std::exchange(item, Value()));
    if (node.has_loop) {
      At(node.loop) = loop;
    }
    BeginFrame(node.loads);
    const Flow flow = RunAll(node.body);
    if (flow == Flow::kBreak) {
      break;
    }
    // An iteration that `continue` ends does not count as completed, so `else` may still run, as in
    // jinja2.
    has_completed = has_completed || flow == Flow::kNext;
  }
  EndFrame(node.loads);
  if (has_completed || !budget_.ok()) {
    return Flow::kNext;
  }
  BeginFrame(node.otherwise_loads);
  const Flow flow = RunAll(node.otherwise);
  EndFrame(node.otherwise_loads);
  return flow;
}

Interpreter::Flow Interpreter::RunSetBlock(const Node& node) {
  BeginFrame(node.loads);
  TextBuilder block(heap_);
  TextBuilder* const outer = std::exchange(out_, &block);
  const Flow flow = RunAll(node.body);
  out_ = outer;
  if (flow == Flow::kNext) {
    Value text = block.TakeValue();
    const Node* const filter = node.parts[1].get();
    Assign(*node.parts[0],
           filter == nullptr ? std::move(text) : FilterBlockText(*filter, std::move(text)));
    EndFrame(node.loads);
  }
  return flow;
}

Interpreter::Flow Interpreter::RunFilterBlock(const Node& node) {
  BeginFrame(node.loads);
  TextBuilder block(heap_);
  TextBuilder* const outer = std::exchange(out_, &block);
  const Flow flow = RunAll(node.body);
  out_ = outer;
  if (flow == Flow::kNext) {
    Output(FilterBlockText(*node.parts[0], block.TakeValue()));
    EndFrame(node.loads);
  }
  return flow;
}

Interpreter::Flow Interpreter::RunWith(const Node& node) {
  BeginFrame(node.loads);
  for (size_t i = 0; i < node.parts.size(); ++i) {
    Assign(*node.parameters[i], Evaluate(*node.parts[i]));
  }
  const Flow flow = RunAll(node.body);
  if (flow == Flow::kNext) {
    EndFrame(node.loads);
  }
  return flow;
}

void Interpreter::RunCallBlock(const Node& node) {
  const Value caller = MakeMacro(node);
  if (node.parts[0] != nullptr) {
    Output(Call(*node.parts[0], caller));
    return;
  }
  Arguments none;
  Output(caller.as<Function>().body(none));
}

Value Interpreter::MakeMacro(const Node& node) {
  // The scope may hold the macro, and the macro holds the scope. The heap breaks this cycle.
  if (!std::exchange(scope_->is_kept, true)) {
    heap_.Keep(scope_value_);
  }
  return heap_.New<Function>(Kind::kFunction,
                             Cat("macro ", node.text),
                             0,
                             [this, &node, scope = scope_value_](Arguments& arguments) {
                               return CallMacro(node, scope, arguments);
                             });
}

Value Interpreter::CallMacro(const Node& node, const Value& scope, Arguments& arguments) {
  const DepthGuard guard(budget_);
  if (!guard.ok() || !budget_.Spend()) {
    return Value();
  }
  TextBuilder text(heap_);
  TextBuilder* const outer_out = std::exchange(out_, &text);
  const Value outer_value =
      std::exchange(scope_value_, heap_.New<Scope>(Kind::kScope, scope, node.num_slots));
  Scope* const outer = std::exchange(scope_, &scope_value_.as<Scope>());
  BindMacro(node, arguments);
  if (budget_.ok()) {
    RunAll(node.body);
  }
  scope_ = outer;
  scope_value_ = outer_value;
  out_ = outer_out;
  return text.TakeValue();
}

// Binds arguments as jinja2's Macro does. Parameters without an argument get their defaults.
void Interpreter::BindMacro(const Node& node, Arguments& arguments) {
  const auto take_named = [&arguments](std::string_view name) {
    const auto found = std::find_if(arguments.named.begin(),
                                    arguments.named.end(),
                                    [name](const auto& each) { return each.first.text() == name; });
    Value value = Value::Missing();
    if (found != arguments.named.end()) {
      value = std::move(found->second);
      arguments.named.erase(found);
    }
    return value;
  };
  auto& positional = arguments.positional;
  const size_t num_parameters = node.parameters.size();
  bool is_caller_bound = false;
  for (size_t i = 0; i < num_parameters; ++i) {
    const Node& parameter = *node.parameters[i];
    is_caller_bound = is_caller_bound || parameter.text == "caller";
    At(parameter.place) = i < positional.size() ? positional[i] : take_named(parameter.text);
  }
  if (node.has_caller && !is_caller_bound) {
    Value caller = take_named("caller");
    const bool is_given = !caller.is_missing() && !caller.is(Kind::kNone);
    At(node.caller) = is_given ? std::move(caller) : heap_.Undefined("No caller defined");
  }
  if (node.has_kwargs) {
    At(node.kwargs) = heap_.New<Dict>(Kind::kDict);
    for (auto& [name, value] : arguments.named) {
      At(node.kwargs).as<Dict>().Add(name, std::move(value));
    }
  } else if (!arguments.named.empty()) {
    heap_.Fail(Cat("the macro takes no keyword argument '", arguments.named[0].first.text(), "'"));
  }
  if (node.has_varargs) {
    At(node.varargs) = heap_.New<List>(Kind::kTuple);
    for (size_t i = num_parameters; i < positional.size(); ++i) {
      At(node.varargs).as<List>().Append(positional[i]);
    }
  } else if (positional.size() > num_parameters) {
    heap_.Fail("the macro takes fewer arguments");
  }
  BeginFrame(node.loads);
  const size_t num_plain = num_parameters - node.defaults.size();
  for (size_t i = 0; i < num_parameters; ++i) {
    Value& value = At(node.parameters[i]->place);
    if (value.is_missing()) {
      Value otherwise =
          i < num_plain
              ? heap_.Undefined(Cat("parameter '", node.parameters[i]->text, "' was not provided"))
              : Evaluate(*node.defaults[i - num_plain]);
      At(node.parameters[i]->place) = std::move(otherwise);
    }
  }
}

}  // namespace quire
