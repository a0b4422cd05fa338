// KvEventPublisher sends cache events to routers over ZeroMQ, as vLLM does: a PUB socket, and a
// ROUTER socket that sends past batches again. A separate thread encodes and sends.
//
// A message has three frames: topic, sequence number (8 bytes, big-endian, from 0), and a batch
// (kv_event_encoder.h). A gap in the sequence numbers means that Publish dropped a batch, or that
// this subscriber was too slow for it. A replay request has two frames: an empty frame, and the
// first wanted sequence number. Each answer has an empty frame and the three frames of a message;
// the last answer has sequence number -1 and no batch.
//
// No subscriber is authenticated, and nothing is encrypted.
//
// Thread safety: one thread calls Publish; another one may construct, open and destroy the object.
// Cost:          Publish is O(events) and takes a short lock. Memory is bounded by
//                kMaxWaitingTokens, by kMaxBufferedBytes, and by buffer_steps messages for each
//                connection that does not read (twice as many for replay). The sockets share the
//                bytes of a message.
// Source:        vllm/distributed/kv_events.py of vLLM 0.33.0.
#ifndef QUIRE_SCHEDULER_KV_EVENTS_KV_EVENT_PUBLISHER_H_
#define QUIRE_SCHEDULER_KV_EVENTS_KV_EVENT_PUBLISHER_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"

#include "common/base/file_descriptor.h"
#include "common/base/mutex.h"
#include "common/metrics/registry.h"
#include "scheduler/kv_cache/cache_event.h"

#include <zmq.hpp>

namespace quire {

struct KvEventSettings {
  std::string endpoint;         // ZeroMQ address to listen on, for example "tcp://*:5557"
  std::string replay_endpoint;  // ZeroMQ address for replay requests; empty: no replay
  std::string topic;
  // Upper bound on the batches kept for replay, and on the unsent batches of each connection.
  int32_t buffer_steps = 10'000;
};

class KvEventPublisher {
 public:
  // Upper bound on the tokens and block hashes in batches that wait for the thread; further batches
  // are dropped.
  static constexpr size_t kMaxWaitingTokens = size_t{16} << 20;
  // Upper bound on the bytes kept for replay; the oldest batches are forgotten first.
  static constexpr size_t kMaxBufferedBytes = size_t{256} << 20;

  // The registry must outlive the publisher. Publish may be called before Open: batches then wait.
  KvEventPublisher(KvEventSettings settings, MetricsRegistry* registry);
  // Sends the waiting batches, then closes the sockets.
  ~KvEventPublisher();
  KvEventPublisher(const KvEventPublisher&) = delete;
  KvEventPublisher& operator=(const KvEventPublisher&) = delete;

  // Listens, and starts the thread. Call once. Errors: kUnavailable KV_EVENTS_BIND.
  absl::Status Open();

  // Queues the events as one batch with the next sequence number. If too many batches wait, drops
  // the events, which leaves a gap in the numbers. Never blocks.
  void Publish(std::vector<CacheEvent> events);

  // The endpoints, with the port that the system chose in place of a wildcard. REQUIRES: Open has
  // returned OK.
  const std::string& endpoint() const { return bound_endpoint_; }
  const std::string& replay_endpoint() const { return bound_replay_endpoint_; }

 private:
  struct Batch {
    uint64_t sequence = 0;
    double timestamp_s = 0;
    std::vector<CacheEvent> events;
  };
  struct SentBatch {
    uint64_t sequence = 0;
    zmq::message_t payload;
  };

  absl::Status Listen();
  void Run();
  // Waits for a batch or a replay request, and serves it. Returns false once the publisher closes.
  bool Turn();
  bool SendWaiting();
  void Send(const Batch& batch);
  void AnswerReplay();
  void Wake();

  const KvEventSettings settings_;
  prometheus::Counter* const published_;
  prometheus::Counter* const dropped_;

  Mutex mutex_;
  std::deque<Batch> waiting_ ABSL_GUARDED_BY(mutex_);
  size_t num_waiting_tokens_ ABSL_GUARDED_BY(mutex_) = 0;
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t next_sequence_ = 0;  // used by Publish alone
  bool has_warned_ = false;     // used by Publish alone
  FileDescriptor wake_;         // an eventfd

  // Set by Open; from then on, only thread_ changes these members.
  zmq::context_t context_;
  std::optional<zmq::socket_t> publisher_;
  std::optional<zmq::socket_t> replay_;
  std::string bound_endpoint_;
  std::string bound_replay_endpoint_;
  std::deque<SentBatch> buffer_;
  size_t num_buffered_bytes_ = 0;
  std::thread thread_;  // declared last, since it uses the other members
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_KV_EVENTS_KV_EVENT_PUBLISHER_H_
