#include <algorithm>
#include <utility>

#include "deploy/gateway/template/cat.h"
#include "deploy/gateway/template/interpreter.h"
#include "deploy/gateway/template/operators.h"
#include "deploy/gateway/template/python_text.h"

namespace quire {

Value Interpreter::Evaluate(const Node& node) {
  const DepthGuard guard(budget_);
  if (!guard.ok() || !budget_.Spend()) {
    return Value();
  }
  switch (node.kind) {
    case NodeKind::kNone:
      return Value::None();
    case NodeKind::kBool:
      return Value::Bool(node.integer != 0);
    case NodeKind::kInt:
      return Value::Int(node.integer);
    case NodeKind::kFloat:
      return Value::Float(node.number);
    case NodeKind::kString:
      return heap_.Literal(node.text);
    case NodeKind::kName:
      return Name(node);
    case NodeKind::kTuple:
    case NodeKind::kList:
      return Sequence(node);
    case NodeKind::kDict:
      return DictOf(node);
    case NodeKind::kAnd: {
      Value left = Evaluate(*node.parts[0]);
      return IsTrue(left) ? Evaluate(*node.parts[1]) : left;
    }
    case NodeKind::kOr: {
      Value left = Evaluate(*node.parts[0]);
      return IsTrue(left) ? left : Evaluate(*node.parts[1]);
    }
    case NodeKind::kCondition:
      if (IsTrue(Evaluate(*node.parts[1]))) {
        return Evaluate(*node.parts[0]);
      }
      return node.parts[2] != nullptr
                 ? Evaluate(*node.parts[2])
                 : heap_.Undefined("the inline if-expression evaluated to false and has no else");
    default:
      return EvaluateOperands(node);
  }
}

// Evaluates the kinds of expressions that Evaluate does not handle itself.
Value Interpreter::EvaluateOperands(const Node& node) {
  switch (node.kind) {
    case NodeKind::kConcat:
      return Concat(node);
    case NodeKind::kCompare:
      return Comparison(node);
    case NodeKind::kCall:
      return Call(node, Value::Missing());
    case NodeKind::kFilter:
    case NodeKind::kTest:
      return FilterOrTest(node, Evaluate(*node.parts[0]));
    default:
      break;
  }
  const Value first = Evaluate(*node.parts[0]);
  if (!budget_.ok()) {
    return Value();
  }
  switch (node.kind) {
    case NodeKind::kNot:
      return Value::Bool(!IsTrue(first));
    case NodeKind::kNegate:
      return Negate(heap_, first);
    case NodeKind::kPlus:
      return Plus(heap_, first);
    case NodeKind::kBinary:
      return Binary(heap_, static_cast<BinaryOp>(node.integer), first, Evaluate(*node.parts[1]));
    case NodeKind::kAttribute:
      return GetAttribute(heap_, first, node.text);
    case NodeKind::kItem:
      return GetItem(heap_, first, Evaluate(*node.parts[1]));
    default: {  // kSlice
      Value bounds[3] = {Value::None(), Value::None(), Value::None()};
      for (size_t i = 1; i < node.parts.size(); ++i) {
        if (node.parts[i] != nullptr) {
          bounds[i - 1] = Evaluate(*node.parts[i]);
        }
      }
      return Slice(heap_, first, bounds[0], bounds[1], bounds[2]);
    }
  }
}

Value Interpreter::Name(const Node& node) {
  const Value& value = At(node.place);
  return value.is_missing() ? heap_.Undefined(Cat("'", node.text, "' is undefined")) : value;
}

Value Interpreter::Sequence(const Node& node) {
  Value result = heap_.New<List>(node.kind == NodeKind::kList ? Kind::kList : Kind::kTuple);
  for (const NodePtr& part : node.parts) {
    if (!result.as<List>().Append(Evaluate(*part))) {
      break;
    }
  }
  return result;
}

Value Interpreter::DictOf(const Node& node) {
  Value result = heap_.New<Dict>(Kind::kDict);
  for (size_t i = 0; i < node.parts.size() && budget_.ok(); i += 2) {
    Value key = Evaluate(*node.parts[i]);
    Value value = Evaluate(*node.parts[i + 1]);
    if (CheckHashable(heap_, key)) {
      result.as<Dict>().Set(std::move(key), std::move(value));
    }
  }
  return result;
}

Value Interpreter::Concat(const Node& node) {
  TextBuilder builder(heap_);
  std::vector<Value> values;
  values.reserve(node.parts.size());
  for (const NodePtr& part : node.parts) {
    values.push_back(Evaluate(*part));
  }
  for (const Value& value : values) {
    if (!budget_.ok() || !AppendText(heap_, value, builder)) {
      return Value();
    }
  }
  return builder.TakeValue();
}

bool Interpreter::Holds(CompareOp op, const Value& a, const Value& b) {
  switch (op) {
    case CompareOp::kEq:
      return Equal(heap_, a, b);
    case CompareOp::kNe:
      return !Equal(heap_, a, b);
    case CompareOp::kLt:
      return Less(heap_, a, b);
    case CompareOp::kLe:
      return Less(heap_, a, b) || Equal(heap_, a, b);
    case CompareOp::kGt:
      return Less(heap_, b, a);
    case CompareOp::kGe:
      return Less(heap_, b, a) || Equal(heap_, a, b);
    case CompareOp::kIn:
      return Contains(heap_, b, a);
    case CompareOp::kNotIn:
      return !Contains(heap_, b, a);
  }
  return false;
}

// In a < b < c each operand is evaluated at most once. Operands after a false comparison are not
// evaluated.
Value Interpreter::Comparison(const Node& node) {
  Value left = Evaluate(*node.parts[0]);
  for (size_t i = 0; i < node.compare.size() && budget_.ok(); ++i) {
    Value right = Evaluate(*node.parts[i + 1]);
    if (!budget_.ok() || !Holds(node.compare[i], left, right)) {
      return Value::Bool(false);
    }
    left = std::move(right);
  }
  return Value::Bool(true);
}

bool Interpreter::EvaluateArguments(const Node& node, Arguments& arguments) {
  for (const NodePtr& argument : node.arguments) {
    arguments.positional.push_back(Evaluate(*argument));
  }
  for (const auto& [name, argument] : node.named) {
    arguments.named.emplace_back(heap_.Literal(name), Evaluate(*argument));
  }
  if (node.more_arguments != nullptr) {
    const Value more = ToList(heap_, Evaluate(*node.more_arguments));
    const auto& items = more.as<List>().items;
    arguments.positional.insert(arguments.positional.end(), items.begin(), items.end());
  }
  if (node.more_named != nullptr) {
    const Value more = Evaluate(*node.more_named);
    if (!more.is(Kind::kDict)) {
      heap_.Fail("the argument after ** must be a mapping");
      return false;
    }
    for (const auto& item : more.as<Dict>().items) {
      const bool is_new =
          item.first.is_string() &&
          std::none_of(arguments.named.begin(), arguments.named.end(), [&item](const auto& other) {
            return other.first.text() == item.first.text();
          });
      if (!is_new || !budget_.Spend(static_cast<int64_t>(arguments.named.size()))) {
        heap_.Fail("keywords must be strings, each given once");
        return false;
      }
      arguments.named.emplace_back(item.first, item.second);
    }
  }
  return budget_.ok();
}

Value Interpreter::Call(const Node& node, Value caller) {
  const Node& callee = *node.parts[0];
  Arguments arguments;
  const Builtin* method = nullptr;
  Value function;
  if (callee.kind == NodeKind::kAttribute) {
    function = Evaluate(*callee.parts[0]);
    method = FindMethod(function, callee.text);
    if (method != nullptr) {
      arguments.positional.push_back(function);
    } else if (budget_.ok()) {
      function = GetAttribute(heap_, function, callee.text);
    }
  } else {
    function = Evaluate(callee);
  }
  if (!budget_.ok() || !EvaluateArguments(node, arguments)) {
    return Value();
  }
  if (!caller.is_missing()) {
    arguments.named.emplace_back(heap_.Literal("caller"), std::move(caller));
  }
  return method != nullptr ? CallMethod(heap_, *method, arguments) : CallValue(function, arguments);
}

Value Interpreter::CallValue(const Value& callee, Arguments& arguments) {
  if (callee.is_undefined()) {
    return heap_.Fail(UndefinedMessage(callee));
  }
  if (!callee.is(Kind::kFunction)) {
    return heap_.Fail(Cat("'", TypeName(callee), "' object is not callable"));
  }
  const DepthGuard guard(budget_);
  return guard.ok() ? callee.as<Function>().body(arguments) : Value();
}

// Applies the filters of a filter block. The innermost filter takes the block's text.
Value Interpreter::FilterBlockText(const Node& filter, Value text) {
  const Node* const inner = filter.parts[0].get();
  return FilterOrTest(
      filter, inner == nullptr ? std::move(text) : FilterBlockText(*inner, std::move(text)));
}

Value Interpreter::FilterOrTest(const Node& node, Value input) {
  Arguments arguments;
  arguments.positional.push_back(std::move(input));
  if (node.builtin == nullptr) {
    return heap_.Fail(Cat("unknown filter or test '", node.text, "'"));
  }
  if (!budget_.ok() || !EvaluateArguments(node, arguments)) {
    return Value();
  }
  return CallBuiltin(heap_, *node.builtin, arguments);
}

}  // namespace quire
