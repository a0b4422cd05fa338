// PrefixStore keeps the pinned prefixes in a file, so that they outlive the scheduler. The file is
// replaced as a whole (temporary file, fsync, rename): it holds what was pinned before a change or
// after it, whatever dies in between. It has prompts in plain token ids: mode 0600.
//
// What is in the file is pinned again when the first workers are ready. What they refuse then (the
// pool has become too small for it) stays in the file, for another start.
//
//   quire pinned prefixes 1 <SipHash of the rest, 32 hexadecimal digits>
//   <cache salt in hexadecimal digits, or -> <token id> <token id> ...          one line a prefix
//
// Trouble with the file never keeps a scheduler from serving: it may be one that streams wait for.
//
// Thread safety: safe from any thread. Open, Save and the destructor wait for the disk; all else
//                takes a lock that is held for O(prefixes) steps, whatever their length.
// Errors:        kFailedPrecondition PREFIX_FILE: the file cannot be read or written.
#ifndef QUIRE_SCHEDULER_RPC_PREFIX_STORE_H_
#define QUIRE_SCHEDULER_RPC_PREFIX_STORE_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "common/base/ids.h"
#include "common/base/mutex.h"

namespace quire {

struct SavedPrefix {
  std::vector<TokenId> token_ids;
  std::string cache_salt;

  friend bool operator==(const SavedPrefix&, const SavedPrefix&) = default;
};

// Far above what can be pinned: what is refused at a start stays in the file.
inline constexpr size_t kMaxSavedPrefixes = 4096;

// The text of the file, and back. Errors: kDataLoss PREFIX_FILE, with what is wrong; so are more
// than kMaxSavedPrefixes.
std::string EncodePrefixes(const std::vector<SavedPrefix>& prefixes);
absl::StatusOr<std::vector<SavedPrefix>> DecodePrefixes(std::string_view text);

class PrefixStore {
 public:
  // Reads the file, if there is one. A damaged file is set aside as PATH.damaged. One that cannot
  // be read is left alone: nothing is pinned from it, and every Save fails.
  static std::unique_ptr<PrefixStore> Open(const std::string& path);

  // Saves for the calls of SaveLater that wait.
  ~PrefixStore();
  PrefixStore(const PrefixStore&) = delete;
  PrefixStore& operator=(const PrefixStore&) = delete;

  std::vector<SavedPrefix> prefixes() const;

  // In memory: the prefix is pinned under this id, no longer pinned. Known ones are not doubled.
  void OnPinned(RequestId id, const SavedPrefix& prefix);
  void OnUnpinned(RequestId id);
  void Forget(const SavedPrefix& prefix);  // unpinned before its id was known

  // Writes what is pinned now; on return it is on the disk. More than can be read are not written.
  absl::Status Save();

  // The same on the store's own thread, which then calls `done`. Calls that come while it writes
  // share the next write. Calls `done` at once, with RESOURCE_EXHAUSTED QUEUE_FULL, if
  // kMaxSavedPrefixes calls wait.
  using DoneFn = std::function<void(const absl::Status& status)>;
  void SaveLater(DoneFn done);
  // All calls of SaveLater are done.
  bool is_idle() const;

 private:
  struct Entry {
    std::shared_ptr<const SavedPrefix> prefix;
    std::optional<RequestId> id;  // none: of a scheduler before this one, not pinned again yet
  };

  explicit PrefixStore(std::string path);

  absl::Status Load();
  std::vector<std::shared_ptr<const SavedPrefix>> Snapshot() const;
  void Run();

  const std::string path_;
  absl::Status unusable_;  // why nothing may be written; set before the store is shared
  Mutex save_mutex_;       // one write at a time, the latest state last
  mutable Mutex mutex_;
  CondVar changed_;
  std::vector<Entry> entries_ ABSL_GUARDED_BY(mutex_);
  std::vector<DoneFn> waiting_ ABSL_GUARDED_BY(mutex_);  // calls that the next write answers
  bool is_saving_ ABSL_GUARDED_BY(mutex_) = false;       // for calls of SaveLater
  bool is_closing_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: it uses the rest
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_RPC_PREFIX_STORE_H_
