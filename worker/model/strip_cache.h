// StripCache keeps the strips of quantized matrices that were read last. A backend reads a matrix
// in pieces of a few rows on several threads; the pieces of one strip are then read from the file
// once.
//
// Thread safety: Get is safe from any thread. A strip is loaded by one thread while others that
//                need it wait.
// Cost:          keeps at most kMaxBytes and one strip.
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
  // Enough for the strips that 64 threads work on.
  static constexpr int64_t kMaxBytes = int64_t{64} << 20;

  using StripPtr = std::shared_ptr<const WeightStrip>;

  // A strip is known by its matrix and its first row.
  struct Key {
    const void* matrix = nullptr;
    int64_t first_row = 0;

    friend bool operator==(const Key&, const Key&) = default;
  };

  // Returns the strip, which `load` makes if it is not kept. num_codes: size of the strip.
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
  std::list<std::shared_ptr<Entry>> recent_ ABSL_GUARDED_BY(mutex_);  // the last used first
  int64_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace quire

#endif  // QUIRE_WORKER_MODEL_STRIP_CACHE_H_
