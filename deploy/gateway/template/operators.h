// Python's operators on values: truth, equality, order, arithmetic, containment, iteration,
// subscripts. Integers have 64 bits; an overflow fails instead of growing.
//
// Thread safety: one thread at a time for each Heap.
// Errors:        an operation that raises in Python, or exceeds a limit, fails the rendering. Its
//                result is then Undefined or false.
#ifndef QUIRE_DEPLOY_GATEWAY_TEMPLATE_OPERATORS_H_
#define QUIRE_DEPLOY_GATEWAY_TEMPLATE_OPERATORS_H_

#include <cstdint>
#include <optional>
#include <string_view>

#include "deploy/gateway/template/value.h"

namespace quire {

bool IsTrue(const Value& value);

// a == b.
bool Equal(Heap& heap, const Value& a, const Value& b);

// a < b.
bool Less(Heap& heap, const Value& a, const Value& b);

// item in container.
bool Contains(Heap& heap, const Value& container, const Value& item);

// True if the value can be a key of a dict. Fails the rendering for a list, a dict, a view, or a
// tuple with one of them.
bool CheckHashable(Heap& heap, const Value& value);

enum class BinaryOp : uint8_t { kAdd, kSub, kMul, kDiv, kFloorDiv, kMod, kPow };

Value Binary(Heap& heap, BinaryOp op, const Value& a, const Value& b);
Value Negate(Heap& heap, const Value& value);
Value Plus(Heap& heap, const Value& value);

// Returns len(value), or nullopt if the type has no length. Never fails.
std::optional<int64_t> LengthOf(const Value& value);

// Returns the item of a list, tuple, range or string. REQUIRES: 0 <= index < length.
Value ItemAt(Heap& heap, const Value& sequence, int64_t index);

bool IsIterable(const Value& value);

// Returns iter(value). Fails if the value cannot be iterated. The returned function keeps the value
// alive.
NextItem Iterate(Heap& heap, const Value& value);

// Returns list(value), or tuple(value) if `kind` is kTuple.
Value ToList(Heap& heap, const Value& value, Kind kind = Kind::kList);

// Returns value[start:stop:step]. A bound that is none or missing is left out.
Value Slice(
    Heap& heap, const Value& value, const Value& start, const Value& stop, const Value& step);

// GetAttribute and GetItem are getattr and getitem of jinja2's ImmutableSandboxedEnvironment.
Value GetAttribute(Heap& heap, const Value& value, std::string_view name);
Value GetItem(Heap& heap, const Value& value, const Value& key);

}  // namespace quire

#endif  // QUIRE_DEPLOY_GATEWAY_TEMPLATE_OPERATORS_H_
