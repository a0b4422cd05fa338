// Python's texts of values: str(), repr() and json.dumps().
//
// Thread safety: one thread at a time for each Heap.
// Errors:        a value fails the rendering if its text in Python differs from run to run (a
//                generator, a method), or if JSON has no such type.
#ifndef QUIRE_DEPLOY_GATEWAY_TEMPLATE_PYTHON_TEXT_H_
#define QUIRE_DEPLOY_GATEWAY_TEMPLATE_PYTHON_TEXT_H_

#include <string>

#include "deploy/gateway/template/value.h"

namespace quire {

// Returns repr(value) of a float: the fewest digits that identify it.
std::string FloatText(double value);

// Appends str(value).
bool AppendText(Heap& heap, const Value& value, TextBuilder& out);
// Appends repr(value).
bool AppendRepr(Heap& heap, const Value& value, TextBuilder& out);

// Returns str(value), which is the value itself if it is a string.
Value ToText(Heap& heap, const Value& value);

struct JsonStyle {
  bool ensure_ascii = false;
  bool sort_keys = false;
  bool has_indent = false;
  Value indent;                         // a string if has_indent, else unused
  Value item_separator, key_separator;  // strings
};

// Returns json.dumps(value).
Value ToJson(Heap& heap, const Value& value, const JsonStyle& style);

}  // namespace quire

#endif  // QUIRE_DEPLOY_GATEWAY_TEMPLATE_PYTHON_TEXT_H_
