#include "common/wire/worker_address.h"

#include <unistd.h>

#include <cstdlib>
#include <string>

#include "absl/strings/str_cat.h"

#include "common/base/error.h"

#include <sys/stat.h>

namespace quire {
namespace {

constexpr mode_t kOwnerOnly = 0700;

// Returns true for a folder that this user owns and no other user may enter. Returns false for a
// symbolic link, because another user may have chosen its target.
bool IsOwnFolder(const std::string& path) {
  struct stat found = {};
  return ::lstat(path.c_str(), &found) == 0 && S_ISDIR(found.st_mode) &&
         found.st_uid == ::geteuid() && (found.st_mode & ~(mode_t{S_IFMT} | kOwnerOnly)) == 0;
}

}  // namespace

std::optional<std::string> RuntimeFolder(std::string_view path_below) {
  const char* runtime = std::getenv("XDG_RUNTIME_DIR");  // NOLINT(concurrency-mt-unsafe)
  if (runtime == nullptr || *runtime != '/' ||
      std::string_view(runtime).size() + path_below.size() > kMaxUnixPathBytes) {
    return std::nullopt;
  }
  return runtime;
}

absl::StatusOr<Address> DefaultWorkerAddress() {
  const std::optional<std::string> runtime = RuntimeFolder("/quire/worker.sock.ranks");
  const std::string folder = runtime.has_value() ? absl::StrCat(*runtime, "/quire")
                                                 : absl::StrCat("/tmp/quire-", ::geteuid());
  static_cast<void>(::mkdir(folder.c_str(), kOwnerOnly));  // the folder may exist already
  if (!IsOwnFolder(folder)) {
    return Error(absl::StatusCode::kFailedPrecondition,
                 "ADDRESS",
                 absl::StrCat(folder,
                              ": must be a folder that belongs to this user and that others cannot "
                              "enter (chmod 700)"));
  }
  return Address{.unix_path = folder + "/worker.sock", .host = "", .port = 0};
}

}  // namespace quire
