// How Python writes values: str(), repr() and json.dumps().
//
// Thread safety: free functions for one rendering.
// Errors:        a value without a text that is the same in every run (a generator, a method), or
//                one that JSON has not, fails the rendering.
#ifndef QUIRE_DEPLOY_GATEWAY_TEMPLATE_PYTHON_TEXT_H_
#define QUIRE_DEPLOY_GATEWAY_TEMPLATE_PYTHON_TEXT_H_

#include <string>

#include "deploy/gateway/template/value.h"

namespace quire {

// repr(value) of a float: the shortest digits that identify it.
std::string FloatText(double value);

// Appends str(value).
bool AppendText(Heap& heap, const Value& value, TextBuilder& out);
// Appends repr(value).
bool AppendRepr(Heap& heap, const Value& value, TextBuilder& out);

// str(value). Returns the value itself if it is a string.
Value ToText(Heap& heap, const Value& value);

struct JsonStyle {
  bool ensure_ascii = false;
  bool sort_keys = false;
  bool has_indent = false;
  Value indent;  // the three are strings, `indent` only if has_indent
  Value item_separator, key_separator;
};

// json.dumps(value).
Value ToJson(Heap& heap, const Value& value, const JsonStyle& style);

}  // namespace quire

#endif  // QUIRE_DEPLOY_GATEWAY_TEMPLATE_PYTHON_TEXT_H_
