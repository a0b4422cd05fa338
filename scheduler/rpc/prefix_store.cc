#include "scheduler/rpc/prefix_store.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <span>
#include <system_error>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"

#include "common/base/error.h"
#include "common/base/log.h"
#include "common/base/read_file.h"
#include "common/base/sip_hash.h"
#include "common/base/status_macros.h"
#include "common/base/string_view.h"

#include <sys/stat.h>

namespace quire {
namespace {

constexpr std::string_view kTitle = "quire pinned prefixes 1 ";
constexpr size_t kHashDigits = 32;
// Upper bound on the file's size, so that a wrong file cannot fill memory. All prefixes that can be
// pinned take far less.
constexpr int64_t kMaxFileBytes = int64_t{1} << 30;

absl::Status Damaged(std::string_view what) {
  return Error(absl::StatusCode::kDataLoss, "PREFIX_FILE", what);
}

absl::Status Failed(
    std::string_view what,
    const std::string& path,
    const std::string& why = std::error_code(errno, std::generic_category()).message()) {
  return Error(absl::StatusCode::kFailedPrecondition,
               "PREFIX_FILE",
               absl::StrCat("pinned-prefixes-file: cannot ", ToAbsl(what), " ", path, ": ", why));
}

// Resolves a symbolic link, so that saving replaces the file and keeps the link.
std::string TargetOf(const std::string& path) {
  std::error_code error;
  const std::filesystem::path target = std::filesystem::canonical(path, error);
  return error ? path : target.string();
}

// The hash detects accidental damage only, so its key need not be secret.
std::string HashOf(std::string_view body) {
  const Hash128 hash = SipHash128({}, std::as_bytes(std::span(body)));
  return absl::StrFormat("%016x%016x", hash.high, hash.low);
}

std::string LineOf(const SavedPrefix& prefix) {
  std::string line = prefix.cache_salt.empty() ? "-" : absl::BytesToHexString(prefix.cache_salt);
  for (TokenId id : prefix.token_ids) {
    absl::StrAppend(&line, " ", id);
  }
  return line;
}

absl::StatusOr<SavedPrefix> ParseLine(absl::string_view line) {
  const std::vector<absl::string_view> words = absl::StrSplit(line, ' ');
  SavedPrefix prefix;
  if (words[0] != "-") {
    prefix.cache_salt = absl::HexStringToBytes(words[0]);
  }
  for (size_t i = 1; i < words.size(); ++i) {
    if (!absl::SimpleAtoi(words[i], &prefix.token_ids.emplace_back())) {
      return Damaged("a token id is not a number");
    }
  }
  // HexStringToBytes does not check the digits of the salt, but wrong digits fail this comparison.
  if (prefix.token_ids.empty() || LineOf(prefix) != ToStd(line)) {
    return Damaged("a line is malformed");
  }
  return prefix;
}

// Returns nullopt if there is no such file. Refuses a pipe, because reading it would block, and a
// device, because reading it could go on forever.
absl::StatusOr<std::optional<std::string>> ReadFile(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0) {
    return errno == ENOENT ? absl::StatusOr<std::optional<std::string>>(std::nullopt)
                           : Failed("read", path);
  }
  const std::unique_ptr<FILE, int (*)(FILE*)> file(::fdopen(fd, "rb"), &std::fclose);
  struct stat info = {};
  if (::fstat(fd, &info) != 0) {
    return Failed("read", path);
  }
  if (!S_ISREG(info.st_mode) || info.st_size > kMaxFileBytes) {
    return Failed("read", path, "it is not a file of pinned prefixes");
  }
  std::string text(static_cast<size_t>(info.st_size), '\0');
  text.resize(std::fread(text.data(), 1, text.size(), file.get()));
  if (std::ferror(file.get()) != 0) {
    return Failed("read", path);
  }
  return text;
}

bool WriteAll(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t size = ::write(fd, bytes.data(), bytes.size());
    if (size < 0 && errno != EINTR) {
      return false;
    }
    bytes.remove_prefix(size < 0 ? 0 : static_cast<size_t>(size));
  }
  return true;
}

// Writes and syncs bytes, then closes fd in any case. Keeps the errno of the write or sync.
bool WriteAndClose(int fd, std::string_view bytes) {
  const bool is_written = WriteAll(fd, bytes) && ::fsync(fd) == 0;
  const int error = errno;
  ::close(fd);
  errno = error;
  return is_written;
}

// Syncs the folder of `path`, because a rename is durable only after its folder has been synced.
bool SyncFolderOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  return fd >= 0 && WriteAndClose(fd, "");
}

std::string FileOf(std::string_view body) {
  return absl::StrCat(ToAbsl(kTitle), HashOf(body), "\n", ToAbsl(body));
}

absl::Status ReplaceFile(const std::string& path, std::string_view text) {
  const std::string temporary = absl::StrCat(path, ".new");
  ::unlink(temporary.c_str());  // a crash may have left this file, with another mode
  const int fd =
      ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, S_IRUSR | S_IWUSR);
  const bool is_replaced = fd >= 0 && WriteAndClose(fd, text) &&
                           std::rename(temporary.c_str(), path.c_str()) == 0 && SyncFolderOf(path);
  return is_replaced ? absl::OkStatus() : Failed("write", path);
}

}  // namespace

std::string EncodePrefixes(const std::vector<SavedPrefix>& prefixes) {
  std::string body;
  for (const SavedPrefix& prefix : prefixes) {
    absl::StrAppend(&body, LineOf(prefix), "\n");
  }
  return FileOf(body);
}

absl::StatusOr<std::vector<SavedPrefix>> DecodePrefixes(std::string_view text) {
  const size_t head_size = kTitle.size() + kHashDigits + 1;
  if (!text.starts_with(kTitle) || text.size() < head_size || text[head_size - 1] != '\n') {
    return Damaged("it is not a file of pinned prefixes");
  }
  const std::string_view body = text.substr(head_size);
  if (text.substr(kTitle.size(), kHashDigits) != HashOf(body)) {
    return Damaged("its checksum does not match its contents");
  }
  std::vector<SavedPrefix> prefixes;
  for (absl::string_view line : absl::StrSplit(ToAbsl(body), '\n', absl::SkipEmpty())) {
    QUIRE_ASSIGN_OR_RETURN(SavedPrefix prefix, ParseLine(line));
    if (prefixes.size() == kMaxSavedPrefixes) {
      return Damaged(absl::StrCat("it holds too many prefixes (limit ", kMaxSavedPrefixes, ")"));
    }
    prefixes.push_back(std::move(prefix));
  }
  return prefixes;
}

PrefixStore::PrefixStore(std::string path) : path_(std::move(path)), thread_([this] { Run(); }) {}

PrefixStore::~PrefixStore() {
  {
    const MutexLock lock(mutex_);
    is_closing_ = true;
    changed_.NotifyOne();
  }
  thread_.join();
}

std::unique_ptr<PrefixStore> PrefixStore::Open(const std::string& path) {
  std::unique_ptr<PrefixStore> store(new PrefixStore(TargetOf(path)));
  store->unusable_ = store->Load();
  return store;
}

absl::Status PrefixStore::Load() {
  QUIRE_ASSIGN_OR_RETURN(const std::optional<std::string> text, ReadFile(path_));
  if (!text.has_value()) {
    return absl::OkStatus();
  }
  absl::StatusOr<std::vector<SavedPrefix>> prefixes = DecodePrefixes(*text);
  if (!prefixes.ok()) {
    const std::string aside = absl::StrCat(path_, ".damaged");
    LogWarning("the file of pinned prefixes is damaged, so it is renamed and no prefix is pinned",
               {{"cause", std::string(prefixes.status().message())}, {"now", aside}});
    return std::rename(path_.c_str(), aside.c_str()) == 0 ? absl::OkStatus()
                                                          : Failed("rename", path_);
  }
  const MutexLock lock(mutex_);
  for (SavedPrefix& prefix : *prefixes) {
    entries_.push_back(
        {.prefix = std::make_shared<const SavedPrefix>(std::move(prefix)), .id = std::nullopt});
  }
  return absl::OkStatus();
}

std::vector<SavedPrefix> PrefixStore::prefixes() const {
  std::vector<SavedPrefix> prefixes;
  for (const auto& prefix : Snapshot()) {
    prefixes.push_back(*prefix);
  }
  return prefixes;
}

// Copies only pointers under the lock, since the loop takes this lock too. Callers copy the tokens
// after the lock is released.
std::vector<std::shared_ptr<const SavedPrefix>> PrefixStore::Snapshot() const {
  const MutexLock lock(mutex_);
  std::vector<std::shared_ptr<const SavedPrefix>> prefixes;
  prefixes.reserve(entries_.size());
  for (const Entry& entry : entries_) {
    prefixes.push_back(entry.prefix);
  }
  return prefixes;
}

void PrefixStore::OnPinned(RequestId id, const SavedPrefix& prefix) {
  const MutexLock lock(mutex_);
  const auto known =
      std::ranges::find_if(entries_, [&](const Entry& entry) { return *entry.prefix == prefix; });
  if (known == entries_.end()) {
    entries_.push_back({.prefix = std::make_shared<const SavedPrefix>(prefix), .id = id});
  } else {
    known->id = id;
  }
}

void PrefixStore::OnUnpinned(RequestId id) {
  const MutexLock lock(mutex_);
  std::erase_if(entries_, [id](const Entry& entry) { return entry.id == id; });
}

void PrefixStore::Forget(const SavedPrefix& prefix) {
  const MutexLock lock(mutex_);
  std::erase_if(entries_, [&prefix](const Entry& entry) { return *entry.prefix == prefix; });
}

absl::Status PrefixStore::Save() {
  QUIRE_RETURN_IF_ERROR(unusable_);
  const MutexLock lock(save_mutex_);
  const std::vector<std::shared_ptr<const SavedPrefix>> all = Snapshot();
  if (all.size() > kMaxSavedPrefixes) {
    return Failed("write", path_, "it would hold too many prefixes that could not be pinned");
  }
  std::string body;
  for (const auto& prefix : all) {
    absl::StrAppend(&body, LineOf(*prefix), "\n");
  }
  return ReplaceFile(path_, FileOf(body));
}

void PrefixStore::SaveLater(DoneFn done) {
  {
    const MutexLock lock(mutex_);
    if (waiting_.size() < kMaxSavedPrefixes) {
      waiting_.push_back(std::move(done));
      changed_.NotifyOne();
      return;
    }
  }
  done(Error(absl::StatusCode::kResourceExhausted,
             "QUEUE_FULL",
             "server: too many changes of pinned prefixes wait for the disk"));
}

bool PrefixStore::is_idle() const {
  const MutexLock lock(mutex_);
  return waiting_.empty() && !is_saving_;
}

void PrefixStore::Run() {
  for (;;) {
    std::vector<DoneFn> calls;
    {
      const MutexLock lock(mutex_);
      is_saving_ = false;
      while (waiting_.empty() && !is_closing_) {
        changed_.Wait(mutex_);
      }
      if (waiting_.empty()) {
        return;
      }
      is_saving_ = true;
      calls.swap(waiting_);
    }
    const absl::Status saved = Save();
    for (const DoneFn& done : calls) {
      done(saved);
    }
  }
}

}  // namespace quire
