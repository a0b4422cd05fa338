// The filters, tests, methods and functions of chat templates: jinja2's and Python's, where they
// behave the same. A name that is not here fails instead of doing something else.
//
// Thread safety: tables that never change; functions for one rendering.
// Errors:        what raises in Python fails the rendering, and the result is Undefined.
#ifndef QUIRE_DEPLOY_GATEWAY_TEMPLATE_BUILTINS_H_
#define QUIRE_DEPLOY_GATEWAY_TEMPLATE_BUILTINS_H_

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "absl/time/civil_time.h"

#include "deploy/gateway/template/value.h"

namespace quire {

struct Builtin {
  std::string_view name;
  // Names of parameters after the value, separated by spaces. '?' marks an optional one, '_' one
  // without a name. "*": `run` reads all arguments itself.
  std::string_view parameters;
  // positional[0] is the value; the others follow in order, missing if they were not given.
  Value (*run)(Heap&, Arguments&);
};

// Binds the arguments to the parameters, and runs.
Value CallBuiltin(Heap& heap, const Builtin& builtin, Arguments& arguments);

// The same for a method: positional[0] is the object. A method of a string that is marked safe
// returns strings that are.
Value CallMethod(Heap& heap, const Builtin& method, Arguments& arguments);

// Each returns null if there is no such thing.
const Builtin* FindFilter(std::string_view name);
const Builtin* FindTest(std::string_view name);
const Builtin* FindMethod(const Value& value, std::string_view name);

std::span<const Builtin> StringMethods();
std::span<const Builtin> StringFilters();
std::span<const Builtin> SequenceFilters();

// Returns a global function by name, or nullopt. `now` is what strftime_now writes.
std::optional<Value> FindGlobal(Heap& heap, std::string_view name, absl::CivilSecond now);

// An optional argument: its value, or `otherwise` if it was not given.
bool BoolOr(const Value& value, bool otherwise);
// Fails if it is no integer.
int64_t IntegerOr(Heap& heap, const Value& value, int64_t otherwise);

// Helpers that string filters share with string methods.
Value StripText(Heap& heap, const Value& value, const Value& characters, bool left, bool right);
Value ReplaceText(Heap& heap,
                  const Value& value,
                  std::string_view old_part,
                  const Value& new_part,
                  int64_t count);
// The lines of a string.
Value SplitLines(Heap& heap, const Value& value, bool keep_ends);

}  // namespace quire

#endif  // QUIRE_DEPLOY_GATEWAY_TEMPLATE_BUILTINS_H_
