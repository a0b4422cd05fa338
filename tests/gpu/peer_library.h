// The library of other projects' kernels (peer_api.h), opened from a file.
#ifndef QUIRE_TESTS_GPU_PEER_LIBRARY_H_
#define QUIRE_TESTS_GPU_PEER_LIBRARY_H_

#include <memory>
#include <string>

#include "tests/gpu/bench_attention.h"
#include "tests/gpu/peer_api.h"

namespace quire::gpu {

// The kinds of kernels in a library, as arguments of QuirePeerName.
inline constexpr int kPeerOfDecode = 0;
inline constexpr int kPeerOfPrefill = 1;

// A batch that a peer has planned.
class PlannedPeer {
 public:
  // Returns null if the path is empty, or if the kind cannot compute the batch. Ends the process if
  // the library at `path` cannot be opened.
  static std::unique_ptr<PlannedPeer> Make(const std::string& path,
                                           int kind,
                                           const AttentionBatch& batch);
  ~PlannedPeer();
  PlannedPeer(const PlannedPeer&) = delete;
  PlannedPeer& operator=(const PlannedPeer&) = delete;

  const std::string& name() const { return name_; }
  int Run(const AttentionBatch& batch, int set, Stream stream) const;

 private:
  struct Functions;
  PlannedPeer(const Functions& functions, std::string name, void* peer)
      : functions_(functions), name_(std::move(name)), peer_(peer) {}
  static const Functions& Open(const std::string& path);

  const Functions& functions_;
  const std::string name_;
  void* peer_;
};

}  // namespace quire::gpu

#endif  // QUIRE_TESTS_GPU_PEER_LIBRARY_H_
