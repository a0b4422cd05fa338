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

// A link is none: whoever made it chooses where it leads.
bool IsOwnFolder(const std::string& path) {
  struct stat found = {};
  return ::lstat(path.c_str(), &found) == 0 && S_ISDIR(found.st_mode) &&
         found.st_uid == ::geteuid() && (found.st_mode & ~(mode_t{S_IFMT} | kOwnerOnly)) == 0;
}

}  // namespace

absl::StatusOr<Address> DefaultWorkerAddress() {
  const char* runtime = std::getenv("XDG_RUNTIME_DIR");  // NOLINT(concurrency-mt-unsafe)
  const std::string folder = runtime != nullptr && *runtime == '/'
                                 ? absl::StrCat(runtime, "/quire")
                                 : absl::StrCat("/tmp/quire-", ::geteuid());
  static_cast<void>(::mkdir(folder.c_str(), kOwnerOnly));  // it may be there
  if (!IsOwnFolder(folder)) {
    return Error(absl::StatusCode::kFailedPrecondition,
                 "ADDRESS",
                 absl::StrCat(folder, ": must be a folder that nobody else may enter"));
  }
  return Address{.unix_path = folder + "/worker.sock", .host = "", .port = 0};
}

}  // namespace quire
