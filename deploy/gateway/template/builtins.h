// The filters, tests, methods and functions that chat templates may use. Each does the same as in
// jinja2 or Python. A name that is missing here fails the rendering.
//
// Thread safety: one thread at a time for each Heap.
// Errors:        an operation that raises in Python fails the rendering; its result is Undefined.
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
  // Names of the parameters after positional[0], separated by spaces. '?' marks an optional
  // parameter, '_' a parameter without a name. "*": `run` reads all arguments itself.
  std::string_view parameters;
  // positional[0] is the value or the method's object. The parameters follow in order;
  // Value::Missing() stands for a parameter that was not given.
  Value (*run)(Heap&, Arguments&);
};

// Binds the arguments to the parameters, and runs the builtin.
Value CallBuiltin(Heap& heap, const Builtin& builtin, Arguments& arguments);

// As CallBuiltin, for a method: positional[0] is the object. If a string is marked safe, the
// strings that its methods return are marked safe too.
Value CallMethod(Heap& heap, const Builtin& method, Arguments& arguments);

// FindFilter, FindTest and FindMethod return null if the name is unknown.
const Builtin* FindFilter(std::string_view name);
const Builtin* FindTest(std::string_view name);
const Builtin* FindMethod(const Value& value, std::string_view name);

std::span<const Builtin> StringMethods();
std::span<const Builtin> StringFilters();
std::span<const Builtin> SequenceFilters();

// Returns a global function by name, or nullopt. `now` is the time that strftime_now formats.
std::optional<Value> FindGlobal(Heap& heap, std::string_view name, absl::CivilSecond now);

// Returns the value of an optional argument, or `otherwise` if it was not given.
bool BoolOr(const Value& value, bool otherwise);
// As BoolOr. Fails the rendering if the argument is no integer.
int64_t IntegerOr(Heap& heap, const Value& value, int64_t otherwise);

// Helpers that string filters share with string methods.
Value StripText(Heap& heap, const Value& value, const Value& characters, bool left, bool right);
Value ReplaceText(Heap& heap,
                  const Value& value,
                  std::string_view old_part,
                  const Value& new_part,
                  int64_t count);
Value SplitLines(Heap& heap, const Value& value, bool keep_ends);

}  // namespace quire

#endif  // QUIRE_DEPLOY_GATEWAY_TEMPLATE_BUILTINS_H_
