#include "deploy/gateway/template/loop.h"

#include <utility>

#include "deploy/gateway/template/operators.h"

namespace quire {

Loop::Loop(Heap& heap, int source_depth, NextItem next, std::optional<int64_t> known_length)
    : Object(heap, sizeof(*this) + 64, source_depth + 1),
      next_(std::move(next)),
      length_(known_length) {}

bool Loop::Advance(Value* item) {
  if (!after_.is_missing()) {
    *item = std::exchange(after_, Value::Missing());
  } else if (!next_(item)) {
    return false;
  }
  ++index0_;
  before_ = std::exchange(current_, *item);
  return heap().budget().ok();
}

int64_t Loop::length() {
  if (!length_.has_value()) {
    Value rest = heap().New<List>(Kind::kList);
    Value item;
    while (next_(&item) && rest.as<List>().Append(std::move(item))) {
    }
    const auto num_left = static_cast<int64_t>(rest.as<List>().items.size());
    next_ = Iterate(heap(), rest);
    length_ = num_left + index0_ + 1 + (after_.is_missing() ? 0 : 1);
  }
  return *length_;
}

const Value& Loop::Peek() {
  if (after_.is_missing() && !next_(&after_)) {
    after_ = Value::Missing();
  }
  return after_;
}

Value Loop::Changed(Arguments& arguments) {
  Value values = heap().New<List>(Kind::kTuple);
  for (Value& value : arguments.positional) {
    values.as<List>().Append(std::move(value));
  }
  const bool changed = last_changed_.is_missing() || !Equal(heap(), last_changed_, values);
  last_changed_ = std::move(values);
  return Value::Bool(changed);
}

std::optional<Value> Loop::Attribute(const Value& self, std::string_view name) {
  if (name == "index") {
    return Value::Int(index0_ + 1);
  }
  if (name == "index0") {
    return Value::Int(index0_);
  }
  if (name == "revindex") {
    return Value::Int(length() - index0_);
  }
  if (name == "revindex0") {
    return Value::Int(length() - index0_ - 1);
  }
  if (name == "first") {
    return Value::Bool(index0_ == 0);
  }
  if (name == "last") {
    return Value::Bool(Peek().is_missing());
  }
  if (name == "length") {
    return Value::Int(length());
  }
  if (name == "depth") {
    return Value::Int(1);
  }
  if (name == "depth0") {
    return Value::Int(0);
  }
  if (name == "previtem") {
    return index0_ == 0 ? heap().Undefined("there is no previous item") : before_;
  }
  if (name == "nextitem") {
    return Peek().is_missing() ? heap().Undefined("there is no next item") : after_;
  }
  if (name == "cycle") {
    return heap().New<Function>(Kind::kFunction, "cycle", depth, [self](Arguments& arguments) {
      auto& items = arguments.positional;
      Loop& loop = self.as<Loop>();
      if (items.empty() || !arguments.named.empty()) {
        return loop.heap().Fail("loop.cycle takes items by position");
      }
      return items[static_cast<size_t>(loop.index0_) % items.size()];
    });
  }
  if (name == "changed") {
    return heap().New<Function>(Kind::kFunction, "changed", depth, [self](Arguments& arguments) {
      Loop& loop = self.as<Loop>();
      return arguments.named.empty() ? loop.Changed(arguments)
                                     : loop.heap().Fail("loop.changed takes values by position");
    });
  }
  return std::nullopt;
}

void Loop::Clear() {
  next_ = nullptr;
  before_ = current_ = after_ = last_changed_ = Value();
}

}  // namespace quire
