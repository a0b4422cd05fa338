// SchedulerServer is the whole scheduler process without its command line: it builds the parts,
// connects them, and destroys each part before the parts that it uses.
//
//   operator ── AdminService ── Inbox
//   gRPC clients ── GenerationService ── Inbox ── SchedulerLoop ── GrpcWorkerGroup ── workers
//   Prometheus, probes ── HttpServer ── MetricsRegistry, ServingState, StatePage ── Inbox
//
// Thread safety: one thread constructs, polls and shuts down.
#ifndef QUIRE_SCHEDULER_SCHEDULER_SERVER_H_
#define QUIRE_SCHEDULER_SCHEDULER_SERVER_H_

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include <grpcpp/server.h>

#include "common/http/http_server.h"
#include "common/metrics/registry.h"
#include "common/wire/credentials.h"
#include "common/wire/listener.h"
#include "common/wire/listener_probe.h"
#include "scheduler/kv_events/kv_event_publisher.h"
#include "scheduler/loop/inbox.h"
#include "scheduler/loop/scheduler_loop.h"
#include "scheduler/loop/serving_state.h"
#include "scheduler/metrics/scheduler_metrics.h"
#include "scheduler/rpc/admin_service.h"
#include "scheduler/rpc/generation_service.h"
#include "scheduler/rpc/grpc_worker_group.h"
#include "scheduler/rpc/live_requests.h"
#include "scheduler/rpc/prefix_store.h"
#include "scheduler/rpc/state_page.h"
#include "scheduler/rpc/task_pool.h"
#include "scheduler/rpc/unread_answers.h"
#include "scheduler/scheduler_config.h"
#include "scheduler/step_log/step_log_file.h"

namespace quire {

class SchedulerServer {
 public:
  // Called from any thread with the reason for which a worker was refused.
  using RefusalListener = std::function<void(const absl::Status&)>;

  // Binds the ports first, then writes the step log and the prefix file, and dials the workers. If
  // another server with the same settings runs and has the ports, Start fails before it touches the
  // files and workers of the other server. The model must outlive the server.
  // Errors: kUnavailable GRPC_BIND, HTTP_BIND or KV_EVENTS_BIND; kFailedPrecondition STEP_LOG.
  static absl::StatusOr<std::unique_ptr<SchedulerServer>> Start(const SchedulerConfig& config,
                                                                const ServedModel* model,
                                                                RefusalListener on_refusal);
  // Calls Shutdown, unless Shutdown was called before.
  ~SchedulerServer();

  // "HOST:PORT".
  std::string grpc_address() const;
  std::string http_address() const;
  std::string admin_address() const;  // empty: no admin port
  bool is_ready() const { return state_.Get().is_ready(); }
  // Returns true while another scheduler holds or may hold the workers, and this scheduler waits to
  // take over.
  bool is_standby() const { return state_.Get().group == ServingState::Group::kStandby; }

  // Does periodic work: opens or closes the gRPC port, cancels old unread answers, updates the gRPC
  // health service, logs the status line, returns free memory to the system. Call it a few times a
  // second.
  void Poll();

  // Refuses new requests from now on; accepted requests go on. The caller must keep calling Poll.
  void BeginDrain();
  // Number of accepted requests whose streams have no status yet: in the tokenizer, waiting,
  // running, or with unread output.
  int64_t num_live_requests() const { return live_requests_.size(); }
  // Returns true if no request is live, and no task tokenizes a prompt or saves pinned prefixes.
  bool is_drained() const {
    return live_requests_.size() == 0 && tasks_.is_idle() &&
           (prefix_store_ == nullptr || prefix_store_->is_idle());
  }
  // Ends the remaining requests with UNAVAILABLE DRAINING and stops all threads, within 2 s.
  void Shutdown();

 private:
  SchedulerServer(const SchedulerConfig& config,
                  const ServedModel* model,
                  std::unique_ptr<PrefixStore> prefix_store,
                  RefusalListener on_refusal);

  GroupListener ListenerOf(RefusalListener on_refusal);
  absl::Status Listen();
  using Credentials = std::shared_ptr<grpc::ServerCredentials>;
  // Returns a server of `service` that accepts connections from the listeners.
  std::unique_ptr<grpc::Server> Serve(
      grpc::Service* service, const std::vector<std::pair<Listener*, Credentials>>& listeners);
  // Returns a check that refuses calls without a valid key and counts the refusals; null if `keys`
  // is null. Paths that begin with `open_path` need no key.
  CallCheck CheckOf(ApiKeys* keys, std::string_view open_path = kHealthPath);
  absl::Status StartGrpc();
  std::vector<Listener*> GrpcListeners() const;
  absl::Status StartAdmin();
  absl::Status StartHttp();
  HttpResponse ReadyPage() const;
  bool IsLive() const;
  void UpdateHealth();
  void SetHealth(const char* name, bool is_serving);
  void MaybeLogStatus();
  void MaybeReturnMemory();

  static constexpr std::string_view kHealthPath = "/grpc.health.v1.Health/";

  const SchedulerConfig config_;
  MetricsRegistry registry_;
  SchedulerMetrics metrics_;
  Inbox inbox_;
  ServingState state_;
  std::unique_ptr<PrefixStore> prefix_store_;  // null: pins are not saved
  TaskPool tasks_;
  LiveRequests live_requests_;
  UnreadAnswers unread_;
  GenerationService service_;
  AdminService admin_service_;
  StatePage state_page_;
  std::unique_ptr<StepLogFile> step_log_;        // null: no step log
  std::unique_ptr<KvEventPublisher> kv_events_;  // null: no KV events
  std::unique_ptr<GrpcWorkerGroup> workers_;
  std::unique_ptr<SchedulerLoop> loop_;
  std::thread loop_thread_;
  std::unique_ptr<Listener> grpc_listener_;
  std::unique_ptr<Listener> local_listener_;  // null: no local address
  std::unique_ptr<grpc::Server> grpc_server_;
  std::unique_ptr<Listener> admin_listener_;    // null: no admin port
  std::unique_ptr<grpc::Server> admin_server_;  // null: no admin port
  std::unique_ptr<ListenerProbe> probe_;        // dials grpc_listener_
  std::unique_ptr<HttpServer> http_;
  // True once Poll has ended the connections, because the wait for workers timed out. False again
  // when a worker group is back.
  bool has_ended_connections_ = false;
  std::map<std::string, bool> health_;  // last status of each name in gRPC's health service
  Instant last_status_at_ = 0;
  Instant last_return_at_ = 0;
  CoreStats last_status_;
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_SCHEDULER_SERVER_H_
