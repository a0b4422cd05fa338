// StripCache keeps the most recently used strips of quantized matrices. A backend reads a matrix in
// pieces of a few rows on several threads; with the cache, the pieces of one strip need one read of
// the file.
//
// Thread safety: Get is safe from any thread. One thread loads a strip; other threads that need
//                the same strip wait.
// Cost:          keeps at most kMaxBytes of codes, or a single larger strip, and their scales.
#ifndef QUIRE_WORKER_MODEL_STRIP_CACHE_H_
#define QUIRE_WORKER_MODEL_STRIP_CACHE_H_

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"

#include "common/base/mutex.h"
#include "worker/model/weight_strip.h"

namespace quire {

class StripCache {
 public:
  // Room for the codes of about 16 strips of transposed tensors or 256 other strips
  // (QuantizedMatrix::StripRows).
  static constexpr int64_t kMaxBytes = int64_t{64} << 20;

  using StripPtr = std::shared_ptr<const WeightStrip>;

  // Identifies a strip by its matrix and its first row.
  struct Key {
    const void* matrix = nullptr;
    int64_t first_row = 0;

    friend bool operator==(const Key&, const Key&) = default;
  };

  // Returns the strip from the cache. If the cache lacks the strip, calls `load` to make it.
  // num_codes: codes of the strip, a byte each.
  // Errors: those of `load`.
  absl::StatusOr<StripPtr> Get(const Key& key,
                               int64_t num_codes,
                               const std::function<absl::StatusOr<WeightStrip>()>& load);

 private:
  struct Entry {
    Key key;
    int64_t num_codes = 0;
    Mutex mutex;
    std::optional<absl::StatusOr<StripPtr>> strip ABSL_GUARDED_BY(mutex);
  };

  std::shared_ptr<Entry> EntryFor(const Key& key, int64_t num_codes);

  Mutex mutex_;
  std::list<std::shared_ptr<Entry>> recent_ ABSL_GUARDED_BY(mutex_);  // most recently used first
  int64_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace quire

#endif  // QUIRE_WORKER_MODEL_STRIP_CACHE_H_
