#include "worker/kv_cache/available_memory.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <sstream>
#include <string_view>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

#include "common/base/string_view.h"

namespace quire {
namespace {

// Paths and field names of one version of control groups.
struct CgroupFiles {
  const char* directory;   // mount point of the groups
  const char* membership;  // text before the group's path in a line of /proc/self/cgroup
  const char* limit;
  const char* usage;
  const char* droppable[2];  // fields of memory.stat that count droppable file pages
};
constexpr CgroupFiles kCgroupFiles[] = {
    {"/sys/fs/cgroup", "0::", "memory.max", "memory.current", {"inactive_file", "active_file"}},
    {"/sys/fs/cgroup/memory",
     ":memory:",
     "memory.limit_in_bytes",
     "memory.usage_in_bytes",
     {"total_inactive_file", "total_active_file"}}};

enum class Which : uint8_t { kAvailable, kTotal };

// Returns "" if the file cannot be read.
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

// Returns the number after `name` on the first line that begins with `name`.
std::optional<int64_t> FieldOf(absl::string_view text, absl::string_view name) {
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    if (absl::ConsumePrefix(&line, name)) {
      absl::ConsumeSuffix(&line, " kB");
      return ParseBytes(line);
    }
  }
  return std::nullopt;
}

// Returns the lesser value; nullopt counts as no limit.
std::optional<int64_t> Least(std::optional<int64_t> a, std::optional<int64_t> b) {
  if (a.has_value() && b.has_value()) {
    return std::min(*a, *b);
  }
  return a.has_value() ? a : b;
}

std::optional<int64_t> MachineBytes(const std::string& root, Which which) {
  const auto kibibytes = FieldOf(ReadText(root + "/proc/meminfo"),
                                 which == Which::kTotal ? "MemTotal:" : "MemAvailable:");
  if (!kibibytes.has_value() || *kibibytes > std::numeric_limits<int64_t>::max() / 1024) {
    return std::nullopt;
  }
  return *kibibytes * 1024;
}

std::optional<int64_t> GroupBytes(const std::string& group, const CgroupFiles& files, Which which) {
  const auto limit = ParseBytes(ReadText(group + "/" + files.limit));  // nullopt: "max", no limit
  if (!limit.has_value() || which == Which::kTotal) {
    return limit;
  }
  const auto used = ParseBytes(ReadText(group + "/" + files.usage));
  if (!used.has_value()) {
    return std::nullopt;
  }
  const std::string stat = ReadText(group + "/memory.stat");
  int64_t droppable = 0;
  for (const char* field : files.droppable) {
    droppable += FieldOf(stat, std::string(field) + " ").value_or(0);
  }
  return std::max<int64_t>(0, *limit - std::max<int64_t>(0, *used - droppable));
}

// Returns the path of this process's control group, "" if there is none. A line of
// /proc/self/cgroup is "4:memory:/path" or "5:cpu,memory:/path" in version 1, and "0::/path" in
// version 2.
std::string GroupPath(const std::string& root, const CgroupFiles& files) {
  const std::string text = ReadText(root + "/proc/self/cgroup");
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    const size_t place = line.find(files.membership);
    if (place != absl::string_view::npos) {
      return std::string(line.substr(place + std::string_view(files.membership).size()));
    }
  }
  return "";
}

// Returns the least GroupBytes of this process's group and its ancestors, since any of these groups
// may have the tightest limit. The group at the mount point is read too. In a container the mount
// point is often the container's own group, while /proc/self/cgroup gives the path on the host.
std::optional<int64_t> LeastGroupBytes(const std::string& root,
                                       const CgroupFiles& files,
                                       Which which) {
  const std::string top = root + files.directory;
  std::optional<int64_t> least = GroupBytes(top, files, which);
  std::string path = GroupPath(root, files);
  while (path.size() > 1) {
    least = Least(least, GroupBytes(top + path, files, which));
    path.resize(path.rfind('/'));
  }
  return least;
}

std::optional<int64_t> MemoryBytes(const std::string& root, Which which) {
  std::optional<int64_t> least = MachineBytes(root, which);
  for (const CgroupFiles& files : kCgroupFiles) {
    least = Least(least, LeastGroupBytes(root, files, which));
  }
  return least;
}

}  // namespace

std::optional<int64_t> AvailableMemoryBytes(const std::string& root) {
  return MemoryBytes(root, Which::kAvailable);
}

std::optional<int64_t> TotalMemoryBytes(const std::string& root) {
  return MemoryBytes(root, Which::kTotal);
}

}  // namespace quire
