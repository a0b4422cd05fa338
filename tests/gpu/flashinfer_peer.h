// FlashInfer's kernels behind plain functions. Decode and prefill are compiled separately, because
// FlashInfer gives their parameters the same names.
#ifndef QUIRE_TESTS_GPU_FLASHINFER_PEER_H_
#define QUIRE_TESTS_GPU_FLASHINFER_PEER_H_

#include <memory>

#include "tests/gpu/peer_api.h"

namespace quire::gpu {

class Peer {
 public:
  Peer() = default;
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;
  virtual ~Peer() = default;
  virtual int Run(const PeerCall& call, void* stream) = 0;
};

// FlashInfer's scratch memory for plans, on the device and pinned, and a batch's sequences as
// pages.
class PeerMemory {
 public:
  static constexpr size_t kFloatBytes = size_t{512} << 20;
  static constexpr size_t kIntBytes = size_t{16} << 20;

  explicit PeerMemory(const PeerBatch& batch);
  PeerMemory(const PeerMemory&) = delete;
  PeerMemory& operator=(const PeerMemory&) = delete;
  ~PeerMemory();

  int error() const { return error_; }
  void* floats() const { return floats_; }
  void* ints() const { return ints_; }
  void* pinned() const { return pinned_; }
  int32_t* page_starts() const { return page_starts_; }            // [num_seqs + 1], on the device
  int32_t* query_starts() const { return query_starts_; }          // [num_seqs + 1], on the device
  int32_t* last_page_tokens() const { return last_page_tokens_; }  // [num_seqs], on the device
  int32_t* host_page_starts() const { return host_page_starts_.get(); }

 private:
  void Upload(int32_t** to, const int32_t* from, int32_t count);

  int error_ = 0;
  void* floats_ = nullptr;
  void* ints_ = nullptr;
  void* pinned_ = nullptr;
  int32_t* page_starts_ = nullptr;
  int32_t* query_starts_ = nullptr;
  int32_t* last_page_tokens_ = nullptr;
  std::unique_ptr<int32_t[]> host_page_starts_;
};

// Each returns null and sets *error if it cannot compute the batch.
std::unique_ptr<Peer> MakeFlashInferDecode(const PeerBatch& batch, int* error);
std::unique_ptr<Peer> MakeFlashInferPrefill(const PeerBatch& batch, int* error);

}  // namespace quire::gpu

#endif  // QUIRE_TESTS_GPU_FLASHINFER_PEER_H_
