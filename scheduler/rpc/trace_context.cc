#include "scheduler/rpc/trace_context.h"

#include <algorithm>

namespace quire {
namespace {

constexpr size_t kLengthOfVersion0 = 55;

bool IsHex(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
  });
}

bool IsId(std::string_view text) {
  return IsHex(text) && text.find_first_not_of('0') != std::string_view::npos;
}

}  // namespace

std::optional<TraceContext> ParseTraceParent(std::string_view header) {
  if (header.size() < kLengthOfVersion0) {
    return std::nullopt;
  }
  const std::string_view version = header.substr(0, 2);
  const std::string_view trace_id = header.substr(3, 32);
  const std::string_view parent_id = header.substr(36, 16);
  const std::string_view flags = header.substr(53, 2);
  const std::string_view rest = header.substr(kLengthOfVersion0);
  const bool has_dashes = header[2] == '-' && header[35] == '-' && header[52] == '-';
  const bool may_have_rest = version != "00" && rest.starts_with('-');
  if (!IsHex(version) || version == "ff" || !IsId(trace_id) || !IsId(parent_id) || !IsHex(flags) ||
      !has_dashes || (!rest.empty() && !may_have_rest)) {
    return std::nullopt;
  }
  return TraceContext{.trace_id = std::string(trace_id), .parent_id = std::string(parent_id)};
}

}  // namespace quire
