#include "deploy/gateway/template/value.h"

#include <algorithm>

#include "deploy/gateway/template/operators.h"
#include "deploy/gateway/template/unicode.h"

namespace quire {
namespace {

// Bounds Object::depth, because destructors and other functions recurse into nested values.
constexpr int kMaxValueDepth = 100;
// Bytes that the allocator adds to an object.
constexpr size_t kAllocatorBytes = 16;

bool CheckDepth(Heap& heap, int depth) {
  return depth <= kMaxValueDepth ||
         heap.budget().Fail("TEMPLATE_LIMIT", "template: a value is nested too deep");
}

// Returns the bytes that the ranges take outside of `ranges` itself.
size_t BytesOf(const ClientRanges& ranges) {
  return ranges.size() > 1 ? ranges.capacity() * sizeof(ByteRange) + kAllocatorBytes : 0;
}

ClientRanges WholeOf(size_t size, bool is_client) {
  return is_client && size > 0 ? ClientRanges{{0, size}} : ClientRanges();
}

}  // namespace

Object::Object(Heap& heap, size_t bytes, int nesting)
    : depth(nesting), heap_(heap), bytes_(bytes + kAllocatorBytes) {
  heap.budget().Charge(bytes_);
  CheckDepth(heap, depth);
}

Object::~Object() { heap_.budget().Release(bytes_); }

bool Object::Grow(size_t bytes) {
  bytes_ += bytes;
  return heap_.budget().Charge(bytes);
}

std::string_view Value::text() const { return as<String>().text; }

String::String(Heap& heap, std::string owned_text, ClientRanges ranges)
    : Object(heap, sizeof(*this) + owned_text.size() + BytesOf(ranges), 0),
      owned(std::move(owned_text)),
      text(owned),
      client_ranges(std::move(ranges)) {}

String::String(Heap& heap, std::string_view borrowed, bool is_client)
    : Object(heap, sizeof(*this), 0),
      text(borrowed),
      client_ranges(WholeOf(borrowed.size(), is_client)) {}

std::span<const ByteRange> String::RangesIn(size_t begin, size_t end) const {
  const auto first = std::partition_point(
      client_ranges.begin(), client_ranges.end(), [=](const auto& r) { return r.end <= begin; });
  const auto last = std::partition_point(
      first, client_ranges.end(), [=](const auto& r) { return r.begin < end; });
  return {first, last};
}

bool String::HasClientText(size_t begin, size_t end) const { return !RangesIn(begin, end).empty(); }

int64_t String::length() {
  if (length_ < 0) {
    heap().budget().SpendOnText(text.size());
    length_ = NumCodePoints(text);
  }
  return length_;
}

bool List::Append(Value value) {
  depth = std::max(depth, value.depth() + 1);
  // Charges two values for one, because a growing vector doubles, and holds old and new memory
  // while it copies.
  if (!Grow(2 * sizeof(Value)) || !CheckDepth(heap(), depth)) {
    return false;
  }
  items.push_back(std::move(value));
  return true;
}

Value* Dict::Find(const Value& key) {
  heap().budget().Spend(static_cast<int64_t>(items.size() / 8));
  for (auto& [name, value] : items) {
    if (Equal(heap(), name, key)) {
      return &value;
    }
  }
  return nullptr;
}

Value* Dict::Find(std::string_view key) {
  heap().budget().Spend(static_cast<int64_t>(items.size() / 8));
  for (auto& [name, value] : items) {
    if (name.is_string() && name.text() == key) {
      return &value;
    }
  }
  return nullptr;
}

bool Dict::Set(Value key, Value value) {
  if (Value* const place = Find(key)) {
    if (!is_namespace) {
      depth = std::max(depth, value.depth() + 1);
    }
    *place = std::move(value);
    return CheckDepth(heap(), depth);
  }
  return Add(std::move(key), std::move(value));
}

bool Dict::Add(Value key, Value value) {
  if (!is_namespace) {
    depth = std::max({depth, value.depth() + 1, key.depth() + 1});
  }
  if (!Grow(4 * sizeof(Value)) || !CheckDepth(heap(), depth)) {
    return false;
  }
  items.emplace_back(std::move(key), std::move(value));
  return true;
}

View::View(Heap& heap, Value of, ViewOf parts)
    : Object(heap, sizeof(*this), of.depth() + 1), dict(std::move(of)), what(parts) {}

Heap::~Heap() {
  for (Value& value : kept_) {
    value.object()->Clear();
  }
}

Value Heap::Str(std::string text, bool is_client) {
  ClientRanges ranges = WholeOf(text.size(), is_client);
  return New<String>(Kind::kString, std::move(text), std::move(ranges));
}

Value Heap::Part(const Value& string, size_t begin, size_t end) {
  const std::span<const ByteRange> whole = string.as<String>().RangesIn(begin, end);
  budget_.Spend(static_cast<int64_t>(whole.size()));
  ClientRanges ranges;
  ranges.reserve(whole.size());
  for (const ByteRange& range : whole) {
    ranges.push_back({std::max(range.begin, begin) - begin, std::min(range.end, end) - begin});
  }
  return New<String>(
      Kind::kString, std::string(string.text().substr(begin, end - begin)), std::move(ranges));
}

bool TextBuilder::AppendBytes(std::string_view text) {
  // Charges three bytes for one, because a growing string doubles, and holds the old and the new
  // memory while it copies.
  const size_t bytes = 3 * text.size();
  if (!heap_.budget().SpendOnText(text.size()) || !heap_.budget().Charge(bytes)) {
    return false;
  }
  charged_ += bytes;
  text_.append(text);
  return true;
}

// Marks the bytes [begin, end) as the client's. REQUIRES: they are the last bytes of the text.
bool TextBuilder::AddRange(size_t begin, size_t end) {
  if (!ranges_.empty() && ranges_.back().end == begin) {
    ranges_.back().end = end;
    return true;
  }
  const size_t bytes = 3 * sizeof(ByteRange);  // three for one, as in AppendBytes
  if (!heap_.budget().Spend() || !heap_.budget().Charge(bytes)) {
    return false;
  }
  charged_ += bytes;
  ranges_.push_back({begin, end});
  return true;
}

bool TextBuilder::AppendMarked(std::string_view text, bool is_client) {
  const size_t at = text_.size();
  const bool is_marked = (is_client || marks_all_) && !text.empty();
  return AppendBytes(text) && (!is_marked || AddRange(at, text_.size()));
}

bool TextBuilder::Append(const Value& string, size_t begin, size_t end) {
  const auto& source = string.as<String>();
  end = std::min(end, source.text.size());
  const std::string_view part = source.text.substr(begin, end - begin);
  if (marks_all_ || !source.has_client_text()) {
    return AppendOwn(part);
  }
  const size_t at = text_.size();
  bool fits = AppendBytes(part);
  for (const ByteRange& range : source.RangesIn(begin, end)) {
    fits = fits && AddRange(at + std::max(range.begin, begin) - begin,
                            at + std::min(range.end, end) - begin);
  }
  return fits;
}

void TextBuilder::ReleaseAll() {
  heap_.budget().Release(charged_);
  charged_ = 0;
  text_.shrink_to_fit();
  ranges_.shrink_to_fit();
}

Value TextBuilder::TakeValue() {
  ReleaseAll();
  return heap_.New<String>(Kind::kString, std::move(text_), std::move(ranges_));
}

RenderedPrompt TextBuilder::TakePrompt() {
  ReleaseAll();
  return {std::move(text_), std::vector<ByteRange>(ranges_.begin(), ranges_.end())};
}

std::string_view TypeName(const Value& value) {
  switch (value.kind()) {
    case Kind::kMissing:
    case Kind::kUndefined:
      return "Undefined";
    case Kind::kNone:
      return "NoneType";
    case Kind::kBool:
      return "bool";
    case Kind::kInt:
      return "int";
    case Kind::kFloat:
      return "float";
    case Kind::kString:
      return value.as<String>().is_markup ? "Markup" : "str";
    case Kind::kList:
      return "list";
    case Kind::kTuple:
      return "tuple";
    case Kind::kDict:
      return "dict";
    case Kind::kNamespace:
      return "Namespace";
    case Kind::kRange:
      return "range";
    case Kind::kView:
      return "view";
    case Kind::kIterator:
      return "generator";
    case Kind::kFunction:
      return "function";
    case Kind::kLoop:
      return "LoopContext";
    case Kind::kScope:
      return "scope";
  }
  return "";
}

std::string UndefinedMessage(const Value& value) {
  return value.object() == nullptr ? "value is undefined" : value.as<UndefinedValue>().message;
}

}  // namespace quire
