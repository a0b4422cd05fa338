#include "worker/kv_cache/available_memory.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <sstream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

#include "common/base/string_view.h"

namespace quire {
namespace {

// Empty when the file cannot be read.
std::string ReadText(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::optional<int64_t> ParseBytes(absl::string_view text) {
  int64_t value = 0;
  bool is_number = absl::SimpleAtoi(text, &value) && value >= 0;
  return is_number ? std::optional<int64_t>(value) : std::nullopt;
}

// Nothing counts as without limit.
std::optional<int64_t> Least(std::optional<int64_t> a, std::optional<int64_t> b) {
  if (a.has_value() && b.has_value()) {
    return std::min(*a, *b);
  }
  return a.has_value() ? a : b;
}

// Where this process's control group of version 2 lies, or "".
std::string CgroupDirectory() {
  std::string membership = ReadText("/proc/self/cgroup");
  for (absl::string_view line : absl::StrSplit(membership, '\n')) {
    if (absl::ConsumePrefix(&line, "0::")) {
      return "/sys/fs/cgroup" + std::string(line);
    }
  }
  return "";
}

}  // namespace

std::optional<int64_t> ParseMeminfo(std::string_view meminfo, std::string_view field) {
  const std::string begin = std::string(field) + ":";
  for (absl::string_view line : absl::StrSplit(ToAbsl(meminfo), '\n')) {
    if (!absl::ConsumePrefix(&line, begin)) {
      continue;
    }
    absl::ConsumeSuffix(&line, " kB");
    auto kibibytes = ParseBytes(line);
    if (!kibibytes.has_value() || *kibibytes > std::numeric_limits<int64_t>::max() / 1024) {
      return std::nullopt;
    }
    return *kibibytes * 1024;
  }
  return std::nullopt;
}

std::optional<int64_t> ParseCgroupHeadroom(std::string_view max, std::string_view current) {
  auto limit = ParseBytes(ToAbsl(max));
  auto used = ParseBytes(ToAbsl(current));
  if (!limit.has_value() || !used.has_value()) {
    return std::nullopt;
  }
  return std::max<int64_t>(0, *limit - *used);
}

std::optional<int64_t> AvailableMemoryBytes() {
  std::string cgroup = CgroupDirectory();
  return Least(
      ParseMeminfo(ReadText("/proc/meminfo"), "MemAvailable"),
      ParseCgroupHeadroom(ReadText(cgroup + "/memory.max"), ReadText(cgroup + "/memory.current")));
}

std::optional<int64_t> TotalMemoryBytes() {
  return Least(ParseMeminfo(ReadText("/proc/meminfo"), "MemTotal"),
               ParseCgroupHeadroom(ReadText(CgroupDirectory() + "/memory.max"), /*current=*/"0"));
}

}  // namespace quire
