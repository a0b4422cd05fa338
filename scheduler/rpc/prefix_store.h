// PrefixStore keeps the pinned prefixes in a file, so that they outlive the scheduler. A save
// replaces the whole file (temporary file, fsync, rename), so a crash leaves the file as it was
// before the save or after it. The file holds prompts as plain token ids, hence its mode 0600.
//
// Saved prefixes are pinned again when the first workers are ready. A prefix that is refused then,
// because the pool has become too small, stays in the file for the next start.
//
//   quire pinned prefixes 1 <SipHash of the rest, 32 hexadecimal digits>
//   <cache salt in hexadecimal digits> <token id> <token id> ...
//
// The file has one line like the second for each prefix. An empty cache salt is written as "-".
//
// A bad file never stops a scheduler from serving, since clients with broken streams may be waiting
// for this scheduler.
//
// Thread safety: safe from any thread. Open, Save and the destructor wait for the disk; the other
//                methods hold a lock for O(number of prefixes), however long the prefixes are.
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

// Upper bound on prefixes in the file. Far above the number of prefixes that can be pinned at once,
// because the file also keeps prefixes that could not be pinned again after a restart.
inline constexpr size_t kMaxSavedPrefixes = 4096;

// Returns the text of a prefix file that holds `prefixes`.
std::string EncodePrefixes(const std::vector<SavedPrefix>& prefixes);
// Parses the text of a prefix file. Errors: kDataLoss PREFIX_FILE if the text is damaged or holds
// more than kMaxSavedPrefixes.
absl::StatusOr<std::vector<SavedPrefix>> DecodePrefixes(std::string_view text);

class PrefixStore {
 public:
  // Reads the file, if there is one. A damaged file is renamed to PATH.damaged. An unreadable file
  // is left alone: nothing is pinned from it, and every Save fails.
  static std::unique_ptr<PrefixStore> Open(const std::string& path);

  // If calls of SaveLater wait, saves once more and answers them.
  ~PrefixStore();
  PrefixStore(const PrefixStore&) = delete;
  PrefixStore& operator=(const PrefixStore&) = delete;

  std::vector<SavedPrefix> prefixes() const;

  // The next three methods change the prefixes in memory only; Save writes the prefixes to the
  // file.
  void OnPinned(RequestId id, const SavedPrefix& prefix);  // replaces the id of a known prefix
  void OnUnpinned(RequestId id);
  void Forget(const SavedPrefix& prefix);  // for a prefix whose id is unknown

  // Writes the current prefixes to the file; they are on disk when Save returns. Fails if there are
  // more than kMaxSavedPrefixes, since Open would refuse such a file.
  absl::Status Save();

  // Saves on the store's thread, which then calls `done`. Calls that arrive during a write share
  // the next write. If kMaxSavedPrefixes calls wait already, `done` is called at once, with
  // RESOURCE_EXHAUSTED QUEUE_FULL.
  using DoneFn = std::function<void(const absl::Status& status)>;
  void SaveLater(DoneFn done);
  // Returns true if every call of SaveLater is done.
  bool is_idle() const;

 private:
  struct Entry {
    std::shared_ptr<const SavedPrefix> prefix;
    std::optional<RequestId> id;  // nullopt: saved by an earlier scheduler, not pinned again yet
  };

  explicit PrefixStore(std::string path);

  absl::Status Load();
  std::vector<std::shared_ptr<const SavedPrefix>> Snapshot() const;
  void Run();

  const std::string path_;
  // If not OK, the reason why the file must not be written. Set before the store is shared.
  absl::Status unusable_;
  Mutex save_mutex_;  // held during a write, so that an older write cannot replace a newer one
  mutable Mutex mutex_;
  CondVar changed_;
  std::vector<Entry> entries_ ABSL_GUARDED_BY(mutex_);
  std::vector<DoneFn> waiting_ ABSL_GUARDED_BY(mutex_);  // calls that the next write answers
  bool is_saving_ ABSL_GUARDED_BY(mutex_) = false;       // a save for SaveLater is running
  bool is_closing_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // declared last, since it uses the other members
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_RPC_PREFIX_STORE_H_
