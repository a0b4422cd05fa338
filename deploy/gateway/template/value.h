// Value is a Python value of a rendering: a number, or a counted reference to an Object that is
// charged to the rendering's Budget while it lives. Lists and dicts do not change once a template
// sees them. Namespaces and variables do change, so they may form cycles, which Heap breaks at the
// end.
//
// Thread safety: not thread-safe; values belong to one rendering.
// Errors:        a function that fails tells the Budget and returns Undefined.
#ifndef QUIRE_DEPLOY_GATEWAY_TEMPLATE_VALUE_H_
#define QUIRE_DEPLOY_GATEWAY_TEMPLATE_VALUE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"

#include "common/base/byte_range.h"
#include "deploy/gateway/template/budget.h"
#include "deploy/gateway/template/cat.h"
#include "deploy/gateway/template/rendered_prompt.h"

namespace quire {

enum class Kind : uint8_t {
  kMissing,  // a variable without a value, or an argument that was not given
  kUndefined,
  kNone,
  kBool,
  kInt,
  kFloat,
  kString,
  kList,
  kTuple,
  kDict,
  kNamespace,
  kRange,
  kView,      // what dict.items(), keys() and values() return
  kIterator,  // a generator: gives each item once
  kFunction,
  kLoop,
  kScope,  // the variables of a macro call; never seen by a template
};

class Heap;

// The base of all values on the heap. `depth` counts nested containers. It is bounded, because
// destructors and other functions recurse into nested values.
class Object {
 public:
  Object(Heap& heap, size_t bytes, int nesting);
  virtual ~Object();
  Object(const Object&) = delete;
  Object& operator=(const Object&) = delete;

  // Charges more bytes, until the object dies. Returns false if these bytes exceed the Budget.
  bool Grow(size_t bytes);
  // Drops all references to other values.
  virtual void Clear() {}
  Heap& heap() const { return heap_; }

  int depth;
  int num_references = 0;

 private:
  Heap& heap_;
  size_t bytes_;
};

class Value {
 public:
  Value() : kind_(Kind::kUndefined), int_value(0) {}
  Value(Kind kind, Object* object) : kind_(kind), is_object_(true), pointer(object) {
    ++pointer->num_references;
  }
  Value(const Value& other)
      : kind_(other.kind_), is_object_(other.is_object_), int_value(other.int_value) {
    if (is_object_) {
      ++pointer->num_references;
    }
  }
  Value(Value&& other) noexcept { Steal(other); }
  Value& operator=(Value other) noexcept {
    Drop();
    Steal(other);
    return *this;
  }
  ~Value() { Drop(); }

  static Value Missing() { return Scalar(Kind::kMissing, 0); }
  static Value None() { return Scalar(Kind::kNone, 0); }
  static Value Bool(bool value) { return Scalar(Kind::kBool, value ? 1 : 0); }
  static Value Int(int64_t value) { return Scalar(Kind::kInt, value); }
  static Value Float(double value) {
    Value result = Scalar(Kind::kFloat, 0);
    result.float_value = value;
    return result;
  }

  Kind kind() const { return kind_; }
  bool is(Kind kind) const { return kind_ == kind; }
  bool is_missing() const { return kind_ == Kind::kMissing; }
  bool is_undefined() const { return kind_ == Kind::kUndefined; }
  bool is_integer() const { return kind_ == Kind::kInt || kind_ == Kind::kBool; }
  bool is_number() const { return is_integer() || kind_ == Kind::kFloat; }
  bool is_string() const { return kind_ == Kind::kString; }
  bool is_sequence() const { return kind_ == Kind::kList || kind_ == Kind::kTuple; }
  // REQUIRES: is_integer().
  int64_t integer() const { return int_value; }
  // REQUIRES: is_number().
  double number() const {
    return kind_ == Kind::kFloat ? float_value : static_cast<double>(int_value);
  }
  Object* object() const { return is_object_ ? pointer : nullptr; }
  int depth() const { return is_object_ ? pointer->depth : 0; }
  template <class T>
  T& as() const {
    return static_cast<T&>(*pointer);
  }
  // REQUIRES: is_string().
  std::string_view text() const;

 private:
  static Value Scalar(Kind kind, int64_t value) {
    Value result;
    result.kind_ = kind;
    result.int_value = value;
    return result;
  }
  void Steal(Value& other) noexcept {
    kind_ = other.kind_;
    is_object_ = std::exchange(other.is_object_, false);
    int_value = other.int_value;
    other.kind_ = Kind::kUndefined;
  }
  void Drop() noexcept {
    if (is_object_ && --pointer->num_references == 0) {
      delete pointer;
    }
  }

  Kind kind_;
  bool is_object_ = false;
  union {
    int64_t int_value;
    double float_value;
    Object* pointer;
  };
};

// An undefined value whose use fails with `message`.
struct UndefinedValue : Object {
  UndefinedValue(Heap& heap, std::string why)
      : Object(heap, sizeof(*this) + why.size(), 0), message(std::move(why)) {}
  std::string message;
};

// Sorted ranges that are not empty and do not touch. Most strings have one range or none.
using ClientRanges = absl::InlinedVector<ByteRange, 1>;

// A string knows which of its bytes came from the client. No mark is lost, because text enters a
// new string in three ways only:
// - Heap::Part and TextBuilder::Append copy the marks with the bytes.
// - Text computed from text (escapes, letter case, formats) is marked like its source. In doubt all
//   of it is marked.
// - Text from the template or from this code has no mark. Nor have numbers, punctuation and `null`
//   in the text of a client's value.
// Value::text() drops the marks, so it is for reading only, not for building strings.
struct String : Object {
  String(Heap& heap, std::string owned_text, ClientRanges ranges);
  // REQUIRES: the text outlives the rendering.
  String(Heap& heap, std::string_view borrowed, bool is_client);
  // Length in code points.
  int64_t length();
  bool is_ascii() { return length() == static_cast<int64_t>(text.size()); }
  // True if a byte of [begin, end) came from the client.
  bool HasClientText(size_t begin, size_t end) const;
  bool has_client_text() const { return !client_ranges.empty(); }
  // Returns the ranges that overlap [begin, end).
  std::span<const ByteRange> RangesIn(size_t begin, size_t end) const;

  std::string owned;
  std::string_view text;  // a view of `owned`, the template, or the JSON of the variables
  ClientRanges client_ranges;
  bool is_markup = false;

 private:
  int64_t length_ = -1;
};

struct List : Object {
  explicit List(Heap& heap) : Object(heap, sizeof(*this), 1) {}
  bool Append(Value value);
  std::vector<Value> items;
};

// A dict or a namespace. Look-ups are linear, because dicts of conversations are small. Each
// look-up spends steps of the Budget.
struct Dict : Object {
  explicit Dict(Heap& heap) : Object(heap, sizeof(*this), 1) {}
  // Returns the value of the key, or null if the dict lacks the key.
  Value* Find(const Value& key);
  Value* Find(std::string_view key);
  bool Set(Value key, Value value);
  // Adds a key. REQUIRES: the dict does not have the key.
  bool Add(Value key, Value value);
  void Clear() override { items.clear(); }
  std::vector<std::pair<Value, Value>> items;
  bool is_namespace = false;
};

struct Range : Object {
  Range(Heap& heap, int64_t first, int64_t end, int64_t increment, int64_t count)
      : Object(heap, sizeof(*this), 1), start(first), stop(end), step(increment), length(count) {}
  int64_t start, stop, step, length;
};

enum class ViewOf : uint8_t { kItems, kKeys, kValues };

struct View : Object {
  View(Heap& heap, Value of, ViewOf parts);
  Value dict;
  ViewOf what;
};

// Stores the next item in the argument. Returns false at the end, or if the rendering has failed.
using NextItem = std::function<bool(Value*)>;

struct Iterator : Object {
  Iterator(Heap& heap, int source_depth, NextItem next_item)
      : Object(heap, sizeof(*this) + 64, source_depth + 1), next(std::move(next_item)) {}
  void Clear() override { next = nullptr; }
  NextItem next;
};

struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<Value, Value>> named;  // the names are strings
};

struct Function : Object {
  using Body = std::function<Value(Arguments&)>;
  Function(Heap& heap, std::string called, int self_depth, Body code)
      : Object(heap, sizeof(*this) + 64, self_depth + 1),
        name(std::move(called)),
        body(std::move(code)) {}
  std::string name;  // with "macro " before a macro's name
  Body body;
};

// Makes values. REQUIRES: the heap outlives every value of the rendering, except values given to
// Keep and values that they hold.
class Heap {
 public:
  explicit Heap(Budget& budget) : budget_(budget) {}
  ~Heap();
  Heap(const Heap&) = delete;
  Heap& operator=(const Heap&) = delete;

  Budget& budget() { return budget_; }

  // Makes an object, which the returned Value and its copies own.
  template <class T, class... A>
  Value New(Kind kind, A&&... arguments) {
    return Value(kind, new T(*this, std::forward<A>(arguments)...));
  }
  // Makes a string. Either all of its bytes are the client's, or none are.
  Value Str(std::string text, bool is_client);
  // As Str, without a copy. REQUIRES: the text outlives the rendering.
  Value Borrowed(std::string_view text, bool is_client) {
    return New<String>(Kind::kString, text, is_client);
  }
  Value Literal(std::string_view text) { return Borrowed(text, /*is_client=*/false); }
  // Makes a string of the bytes [begin, end) of `string`, with their marks.
  Value Part(const Value& string, size_t begin, size_t end);
  Value Undefined(std::string message) {
    return New<UndefinedValue>(Kind::kUndefined, std::move(message));
  }
  // Keeps an object that may be part of a cycle, and clears it when the heap is destroyed.
  void Keep(Value value) { kept_.push_back(std::move(value)); }
  // Fails the rendering. Returns Undefined.
  Value Fail(std::string_view message) {
    budget_.Fail("TEMPLATE", Cat("template: ", message));
    return Value();
  }

 private:
  Budget& budget_;
  std::vector<Value> kept_;
};

// Builds a text, and charges the text's bytes and marked ranges to the Budget as it grows.
class TextBuilder {
 public:
  explicit TextBuilder(Heap& heap) : heap_(heap) {}
  ~TextBuilder() { heap_.budget().Release(charged_); }
  TextBuilder(const TextBuilder&) = delete;
  TextBuilder& operator=(const TextBuilder&) = delete;

  // Appends the bytes [begin, end) of a string, with their marks.
  bool Append(const Value& string, size_t begin = 0, size_t end = std::string_view::npos);
  // Appends text from the template or from this code, not from the client.
  bool AppendOwn(std::string_view text) { return AppendMarked(text, false); }
  bool AppendMarked(std::string_view text, bool is_client);
  // While true, all appended text is marked as the client's.
  void set_marks_all(bool marks_all) { marks_all_ = marks_all; }
  size_t size() const { return text_.size(); }
  RenderedPrompt TakePrompt();
  Value TakeValue();

 private:
  bool AppendBytes(std::string_view text);
  bool AddRange(size_t begin, size_t end);
  void ReleaseAll();

  Heap& heap_;
  std::string text_;
  ClientRanges ranges_;
  bool marks_all_ = false;
  size_t charged_ = 0;
};

// The name of the value's type, as Python's type(value).__name__.
std::string_view TypeName(const Value& value);

std::string UndefinedMessage(const Value& value);

}  // namespace quire

#endif  // QUIRE_DEPLOY_GATEWAY_TEMPLATE_VALUE_H_
