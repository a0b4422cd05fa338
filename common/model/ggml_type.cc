#include "common/model/ggml_type.h"

#include <array>

#include "common/base/check.h"

namespace quire {
namespace {

// Ascending by number. Q8_1 and Q8_K are ggml's forms of activations; they are in no file.
constexpr std::array<GgmlTypeInfo, 34> kTypes = {{
    {GgmlType::kF32, "F32", 1, 4},
    {GgmlType::kF16, "F16", 1, 2},
    {GgmlType::kQ4_0, "Q4_0", 32, 18},
    {GgmlType::kQ4_1, "Q4_1", 32, 20},
    {GgmlType::kQ5_0, "Q5_0", 32, 22},
    {GgmlType::kQ5_1, "Q5_1", 32, 24},
    {GgmlType::kQ8_0, "Q8_0", 32, 34},
    {GgmlType::kQ8_1, "Q8_1", 32, 36},
    {GgmlType::kQ2K, "Q2_K", 256, 84},
    {GgmlType::kQ3K, "Q3_K", 256, 110},
    {GgmlType::kQ4K, "Q4_K", 256, 144},
    {GgmlType::kQ5K, "Q5_K", 256, 176},
    {GgmlType::kQ6K, "Q6_K", 256, 210},
    {GgmlType::kQ8K, "Q8_K", 256, 292},
    {GgmlType::kIq2Xxs, "IQ2_XXS", 256, 66},
    {GgmlType::kIq2Xs, "IQ2_XS", 256, 74},
    {GgmlType::kIq3Xxs, "IQ3_XXS", 256, 98},
    {GgmlType::kIq1S, "IQ1_S", 256, 50},
    {GgmlType::kIq4Nl, "IQ4_NL", 32, 18},
    {GgmlType::kIq3S, "IQ3_S", 256, 110},
    {GgmlType::kIq2S, "IQ2_S", 256, 82},
    {GgmlType::kIq4Xs, "IQ4_XS", 256, 136},
    {GgmlType::kI8, "I8", 1, 1},
    {GgmlType::kI16, "I16", 1, 2},
    {GgmlType::kI32, "I32", 1, 4},
    {GgmlType::kI64, "I64", 1, 8},
    {GgmlType::kF64, "F64", 1, 8},
    {GgmlType::kIq1M, "IQ1_M", 256, 56},
    {GgmlType::kBF16, "BF16", 1, 2},
    {GgmlType::kTq1_0, "TQ1_0", 256, 54},
    {GgmlType::kTq2_0, "TQ2_0", 256, 66},
    {GgmlType::kMxfp4, "MXFP4", 32, 17},
    {GgmlType::kNvfp4, "NVFP4", 64, 36},
    {GgmlType::kQ1_0, "Q1_0", 128, 18},
}};

struct RemovedType {
  uint32_t number;
  std::string_view name;
};

constexpr std::array<RemovedType, 8> kRemovedTypes = {{
    {4, "Q4_2"},
    {5, "Q4_3"},
    {31, "Q4_0_4_4"},
    {32, "Q4_0_4_8"},
    {33, "Q4_0_8_8"},
    {36, "IQ4_NL_4_4"},
    {37, "IQ4_NL_4_8"},
    {38, "IQ4_NL_8_8"},
}};

const GgmlTypeInfo* FindType(uint32_t number) {
  for (const GgmlTypeInfo& info : kTypes) {
    if (static_cast<uint32_t>(info.type) == number) {
      return &info;
    }
  }
  return nullptr;
}

}  // namespace

const GgmlTypeInfo& InfoOf(GgmlType type) {
  const GgmlTypeInfo* info = FindType(static_cast<uint32_t>(type));
  QUIRE_CHECK(info != nullptr);
  return *info;
}

std::string_view NameOf(GgmlType type) { return InfoOf(type).name; }

std::optional<GgmlType> GgmlTypeFromNumber(uint32_t number) {
  const GgmlTypeInfo* info = FindType(number);
  return info == nullptr ? std::nullopt : std::optional<GgmlType>(info->type);
}

std::string_view RemovedGgmlType(uint32_t number) {
  for (const RemovedType& removed : kRemovedTypes) {
    if (removed.number == number) {
      return removed.name;
    }
  }
  return "";
}

}  // namespace quire
