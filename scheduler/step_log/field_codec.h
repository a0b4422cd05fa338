// The field codec writes values to bytes and reads them back, field by field, in the order of
// FieldsOf (logged_fields.h). Get reads what Put has written to a ByteWriter. Put with a HashWriter
// makes a digest. AddLayout adds the types of all fields to a hash, which is called the layout:
// builds with different lists of fields have different layouts.
//
// Thread safety: free functions, safe from any thread.
// Errors:        Get makes the reader fail if a number is out of its type's range.
// Cost:          O(bytes). A vector that Get fills takes at most a few times as much memory as its
//                encoded bytes.
#ifndef QUIRE_SCHEDULER_STEP_LOG_FIELD_CODEC_H_
#define QUIRE_SCHEDULER_STEP_LOG_FIELD_CODEC_H_

#include <bit>
#include <concepts>
#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "common/base/fold_hash.h"
#include "common/base/strong_id.h"
#include "scheduler/step_log/byte_stream.h"
#include "scheduler/step_log/logged_fields.h"

namespace quire {

namespace field_codec_internal {

template <typename T>
inline constexpr bool kIsVector = false;
template <typename T>
inline constexpr bool kIsVector<std::vector<T>> = true;

template <typename T>
inline constexpr bool kIsOptional = false;
template <typename T>
inline constexpr bool kIsOptional<std::optional<T>> = true;

template <typename T>
inline constexpr bool kIsStrongId = false;
template <typename Tag, typename Rep>
inline constexpr bool kIsStrongId<StrongId<Tag, Rep>> = true;

template <typename T>
inline constexpr bool kIsPair = false;
template <typename A, typename B>
inline constexpr bool kIsPair<std::pair<A, B>> = true;

// Returns references to the fields of a struct or a pair.
template <typename T>
auto Parts(T& value) {
  if constexpr (kIsPair<std::remove_const_t<T>>) {
    return std::tie(value.first, value.second);
  } else if constexpr (std::is_empty_v<T>) {
    return std::tie();
  } else {
    return FieldsOf(value);
  }
}

}  // namespace field_codec_internal

// Out is a ByteWriter or a HashWriter.
template <typename T, typename Out>
void Put(const T& value, Out& out) {
  using namespace field_codec_internal;  // NOLINT(google-build-using-namespace)
  if constexpr (std::is_enum_v<T>) {
    out.Varint(static_cast<uint64_t>(value));
  } else if constexpr (std::unsigned_integral<T>) {  // includes bool
    out.Varint(value);
  } else if constexpr (std::signed_integral<T>) {
    out.Zigzag(value);
  } else if constexpr (std::same_as<T, float>) {
    out.Fixed32(std::bit_cast<uint32_t>(value));
  } else if constexpr (std::same_as<T, double>) {
    out.Fixed64(std::bit_cast<uint64_t>(value));
  } else if constexpr (kIsStrongId<T>) {
    Put(value.value(), out);
  } else if constexpr (std::same_as<T, std::string>) {
    out.Varint(value.size());
    out.Raw(value);
  } else if constexpr (kIsVector<T>) {
    out.Varint(value.size());
    for (const auto& element : value) {
      Put(element, out);
    }
  } else if constexpr (kIsOptional<T>) {
    out.Varint(value.has_value() ? 1 : 0);
    if (value.has_value()) {
      Put(*value, out);
    }
  } else {
    std::apply([&out](const auto&... fields) { (Put(fields, out), ...); }, Parts(value));
  }
}

namespace field_codec_internal {

// Returns `number` as a T. If T cannot hold the number, makes `in` fail.
template <typename T, typename Wide>
T Narrow(Wide number, ByteReader& in) {
  if (!std::in_range<T>(number)) {
    in.Fail();
    return {};
  }
  return static_cast<T>(number);
}

}  // namespace field_codec_internal

// REQUIRES: value is default-constructed.
template <typename T>
void Get(ByteReader& in, T& value) {
  using namespace field_codec_internal;  // NOLINT(google-build-using-namespace)
  if constexpr (std::same_as<T, bool>) {
    value = Narrow<uint8_t>(in.Varint(), in) != 0;
  } else if constexpr (std::is_enum_v<T>) {
    const uint64_t number = in.Varint();
    if (number > static_cast<uint64_t>(LastOf(T{}))) {
      in.Fail();
    } else {
      value = static_cast<T>(number);
    }
  } else if constexpr (std::unsigned_integral<T>) {
    value = Narrow<T>(in.Varint(), in);
  } else if constexpr (std::signed_integral<T>) {
    value = Narrow<T>(in.Zigzag(), in);
  } else if constexpr (std::same_as<T, float>) {
    value = std::bit_cast<float>(in.Fixed32());
  } else if constexpr (std::same_as<T, double>) {
    value = std::bit_cast<double>(in.Fixed64());
  } else if constexpr (kIsStrongId<T>) {
    auto number = value.value();
    Get(in, number);
    value = T(number);
  } else if constexpr (std::same_as<T, std::string>) {
    value = in.Raw(in.Varint());
  } else if constexpr (kIsVector<T>) {
    // The vector grows as its elements are read, else a forged element count could exhaust memory.
    for (uint64_t left = in.Varint(); left > 0 && in.ok(); --left) {
      Get(in, value.emplace_back());
    }
  } else if constexpr (kIsOptional<T>) {
    if (in.Varint() != 0) {
      Get(in, value.emplace());
    }
  } else {
    std::apply([&in](auto&... fields) { (Get(in, fields), ...); }, Parts(value));
  }
}

template <typename T>
void AddLayout(const T& value, FoldHash& layout) {
  using namespace field_codec_internal;  // NOLINT(google-build-using-namespace)
  if constexpr (std::is_enum_v<T>) {
    layout.AddBytes("enum");
    layout.Add(static_cast<uint64_t>(LastOf(value)));
  } else if constexpr (std::is_arithmetic_v<T>) {
    layout.AddBytes(std::floating_point<T> ? "float" : std::signed_integral<T> ? "int" : "uint");
    layout.Add(sizeof(T));
  } else if constexpr (kIsStrongId<T>) {
    AddLayout(value.value(), layout);
  } else if constexpr (std::same_as<T, std::string>) {
    layout.AddBytes("string");
  } else if constexpr (kIsVector<T> || kIsOptional<T>) {
    layout.AddBytes(kIsVector<T> ? "vector" : "optional");
    AddLayout(typename T::value_type{}, layout);
  } else {
    layout.AddBytes("{");
    std::apply([&layout](const auto&... fields) { (AddLayout(fields, layout), ...); },
               Parts(value));
    layout.AddBytes("}");
  }
}

}  // namespace quire

#endif  // QUIRE_SCHEDULER_STEP_LOG_FIELD_CODEC_H_
