#include "common/json/json.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <unordered_set>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"

#include "common/base/error.h"
#include "common/base/status_macros.h"

#include <sys/stat.h>

namespace quire {
namespace {

// Watches the parser's events for what nlohmann accepts and we do not: duplicate keys and depth.
class StrictRules {
 public:
  explicit StrictRules(int max_depth) : max_depth_(max_depth) {}

  // Returns true always: values are never dropped, the verdict is read from error().
  bool Observe(Json::parse_event_t event, const Json& parsed) {
    if (!error_.empty()) {
      return true;  // the first fault is the one to report
    }
    switch (event) {
      case Json::parse_event_t::object_start:
      case Json::parse_event_t::array_start:
        if (keys_.size() >= static_cast<size_t>(max_depth_)) {
          error_ = "nested too deep";
        } else {
          keys_.emplace_back();
        }
        break;
      case Json::parse_event_t::object_end:
      case Json::parse_event_t::array_end:
        keys_.pop_back();
        break;
      case Json::parse_event_t::key:
        if (!keys_.back().insert(parsed.get<std::string>()).second) {
          error_ = "duplicate key";
        }
        break;
      case Json::parse_event_t::value:
        break;
    }
    return true;
  }

  const std::string& error() const { return error_; }

 private:
  int max_depth_;
  std::vector<std::unordered_set<std::string>> keys_;
  std::string error_;
};

}  // namespace

absl::StatusOr<Json> ParseJson(std::string_view text, int max_depth) {
  StrictRules rules(max_depth);
  try {
    Json json = Json::parse(
        text.begin(), text.end(), [&rules](int, Json::parse_event_t event, Json& parsed) {
          return rules.Observe(event, parsed);
        });
    if (!rules.error().empty()) {
      return InvalidArgument("JSON", absl::StrCat("JSON: ", rules.error()));
    }
    return json;
  } catch (const Json::parse_error& e) {
    return InvalidArgument("JSON", absl::StrCat("JSON: not valid at byte ", e.byte));
  } catch (const Json::exception& e) {
    return InvalidArgument("JSON", absl::StrCat("JSON: not valid (rule ", e.id, ")"));
  }
}

absl::StatusOr<std::string> ReadFile(const std::string& path, int64_t max_bytes) {
  // O_NONBLOCK: opening a FIFO must not wait for a writer. It has no effect on regular files.
  int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) {
    return Error(errno == ENOENT ? absl::StatusCode::kNotFound : absl::StatusCode::kInvalidArgument,
                 "FILE",
                 absl::StrCat(path, ": cannot be opened (errno ", errno, ")"));
  }
  absl::Cleanup close_file = [fd] { ::close(fd); };
  struct stat info = {};
  if (::fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
    return InvalidArgument("FILE", absl::StrCat(path, ": is not a regular file"));
  }
  if (info.st_size > max_bytes) {
    return InvalidArgument(
        "FILE",
        absl::StrCat(path, ": too large (got ", info.st_size, " bytes, limit ", max_bytes, ")"));
  }
  std::string text(static_cast<size_t>(info.st_size), '\0');
  size_t done = 0;
  while (done < text.size()) {
    ssize_t n = ::read(fd, text.data() + done, text.size() - done);
    if (n < 0 && errno == EINTR) {
      continue;
    }
    if (n <= 0) {
      return InvalidArgument("FILE", absl::StrCat(path, ": shrank while being read"));
    }
    done += static_cast<size_t>(n);
  }
  return text;
}

absl::StatusOr<Json> ParseJsonFile(const std::string& path, int64_t max_bytes) {
  QUIRE_ASSIGN_OR_RETURN(std::string text, ReadFile(path, max_bytes));
  absl::StatusOr<Json> json = ParseJson(text);
  if (!json.ok()) {
    return InvalidArgument("JSON", absl::StrCat(path, ": ", json.status().message()));
  }
  return json;
}

}  // namespace quire
