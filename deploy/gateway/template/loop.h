// Loop is the variable `loop` of a running for statement, like jinja2's LoopContext. It takes an
// item from the iterator early only if the template reads an attribute that needs the item.
//
// Thread safety: not thread-safe; belongs to one rendering.
#ifndef QUIRE_DEPLOY_GATEWAY_TEMPLATE_LOOP_H_
#define QUIRE_DEPLOY_GATEWAY_TEMPLATE_LOOP_H_

#include <cstdint>
#include <optional>
#include <string_view>

#include "deploy/gateway/template/value.h"

namespace quire {

class Loop : public Object {
 public:
  // `known_length` is nullopt if the iterable has no length.
  Loop(Heap& heap, int source_depth, NextItem next, std::optional<int64_t> known_length);

  // Takes the next item. Returns false at the end.
  bool Advance(Value* item);
  int64_t length();
  // Returns loop.NAME, or nullopt if a loop has no such attribute.
  std::optional<Value> Attribute(const Value& self, std::string_view name);
  void Clear() override;

 private:
  // Returns the item after the current one, or missing at the end.
  const Value& Peek();
  Value Changed(Arguments& arguments);

  NextItem next_;
  std::optional<int64_t> length_;
  int64_t index0_ = -1;
  Value before_ = Value::Missing(), current_ = Value::Missing(), after_ = Value::Missing();
  Value last_changed_ = Value::Missing();
};

}  // namespace quire

#endif  // QUIRE_DEPLOY_GATEWAY_TEMPLATE_LOOP_H_
