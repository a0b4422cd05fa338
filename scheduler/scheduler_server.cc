#include "scheduler/scheduler_server.h"

#include <chrono>
#include <random>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include <google/protobuf/message.h>
#include <google/protobuf/stubs/logging.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/impl/server_builder_option.h>
#include <grpcpp/impl/server_builder_plugin.h>
#include <grpcpp/server_builder.h>

#include "proto/grpc/health/v1/health.pb.h"

#include "common/base/check.h"
#include "common/base/error.h"
#include "common/base/free_memory.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/flags/command_line.h"
#include "common/http/http_pages.h"
#include "common/metrics/process_metrics.h"
#include "common/wire/call_metrics.h"
#include "common/wire/channel.h"
#include "scheduler/top_page.h"

namespace quire {
namespace {

constexpr int64_t kInboxCapacity = 8192;
constexpr int64_t kMaxTasks = 1024;
constexpr int64_t kMaxTaskBytes = int64_t{64} << 20;
constexpr int kNumTaskThreads = 2;
// If the loop has completed no turn (iteration) for this long, it is stuck: even an idle loop
// completes a turn every second.
constexpr int64_t kLivenessNs = 5 * kNanosPerSecond;
constexpr int64_t kStatusIntervalNs = 10 * kNanosPerSecond;
constexpr int64_t kReturnIntervalNs = 2 * kNanosPerSecond;
// Time that a shutdown gives streams to send their last status.
constexpr std::chrono::milliseconds kCloseGrace(500);
// File descriptors that the client port leaves free for connections to the admin port.
constexpr int kAdminFiles = 64;
// File descriptors that the client port leaves free for connections to the local address. 64 are
// ample, because 25 connections carry 2,500 streams.
constexpr int kLocalFiles = 64;
constexpr char kServiceName[] = "quire.v1.GenerationService";
// At the local address, a call of this method needs no API key: the gateway of `quire serve` has no
// key and calls it to find out whether the server is ready.
constexpr std::string_view kServerInfoPath = "/quire.v1.GenerationService/GetServerInfo";

GroupSettings SettingsOf(const SchedulerConfig& config, const ServedModel& model) {
  GroupSettings settings;
  settings.model = model.config;
  settings.block_size_tokens = config.block_size_tokens;
  settings.kv_cache_dtype = config.kv_cache_dtype;
  settings.num_blocks_override = config.num_blocks_override;
  settings.max_model_len = config.max_model_len;
  settings.wants_host_blocks = config.loop.core.preemption_mode != PreemptionMode::kRecompute;
  settings.max_sequences = config.max_sequences;
  settings.max_tokens_per_step = config.max_tokens_per_step;
  settings.allow_changed_numerics = config.allow_changed_numerics;
  settings.stands_by = config.stands_by;
  return settings;
}

std::string HostPort(const std::string& host, int port) {
  return host.find(':') == std::string::npos ? absl::StrCat(host, ":", port)
                                             : absl::StrCat("[", host, "]:", port);
}

HttpResponse Answer(bool is_ok, std::string yes, std::string no) {
  HttpResponse response;
  response.status_code = is_ok ? 200 : 503;
  response.body = is_ok ? std::move(yes) : std::move(no);
  return response;
}

// Returns the bounds of a queue that requests pass before the core: the inbox or the tokenizer's
// pool. The bound on resumed requests equals the core's bound, else the queue could refuse a
// resumed request that the core would accept. fresh: the bound on new requests.
TenantShares::Bounds DoorBounds(const CoreConfig& core, const TenantShares::Load& fresh) {
  return {.fresh = fresh,
          .resumed = {.num_requests = core.max_resumed_requests, .num_bytes = fresh.num_bytes},
          .has_shares = core.scheduling_policy == SchedulingPolicyKind::kFairShare};
}

// Removes gRPC reflection, which gRPC adds to every server if a program links the reflection
// library. Reflection takes a thread per stream, and tells unknown clients which services there
// are.
class WithoutPlugins : public grpc::ServerBuilderOption {
 public:
  void UpdateArguments(grpc::ChannelArguments* /*arguments*/) override {}
  void UpdatePlugins(std::vector<std::unique_ptr<grpc::ServerBuilderPlugin>>* plugins) override {
    plugins->clear();
  }
};

absl::StatusOr<std::unique_ptr<Listener>> Bind(const Address& address,
                                               const char* what,
                                               int num_files_spared) {
  absl::StatusOr<std::unique_ptr<Listener>> bound = Listener::Bind(address, num_files_spared);
  if (!bound.ok()) {
    return Error(absl::StatusCode::kUnavailable,
                 "GRPC_BIND",
                 absl::StrCat(what, ": ", bound.status().message()));
  }
  return bound;
}

// Draws the secret key of block hashes, so that no client can make up prompts whose hashes collide.
LoopConfig WithHashKey(LoopConfig config) {
  std::random_device device;
  auto draw = [&device] { return uint64_t{device()} << 32 | device(); };
  config.core.block_hash_key = {.low = draw(), .high = draw()};
  return config;
}

std::function<void(std::vector<CacheEvent>)> SinkOf(KvEventPublisher* publisher) {
  if (publisher == nullptr) {
    return nullptr;
  }
  return [publisher](std::vector<CacheEvent> events) { publisher->Publish(std::move(events)); };
}

}  // namespace

absl::StatusOr<std::unique_ptr<SchedulerServer>> SchedulerServer::Start(
    const SchedulerConfig& config, const ServedModel* model, RefusalListener on_refusal) {
  std::unique_ptr<PrefixStore> prefix_store;
  if (!config.pinned_prefixes_file.empty()) {
    prefix_store = PrefixStore::Open(config.pinned_prefixes_file);
  }
  std::unique_ptr<SchedulerServer> server(
      new SchedulerServer(config, model, std::move(prefix_store), std::move(on_refusal)));
  QUIRE_RETURN_IF_ERROR(server->Listen());
  if (server->kv_events_ != nullptr) {
    QUIRE_RETURN_IF_ERROR(server->kv_events_->Open());
  }
  if (server->step_log_ != nullptr) {
    QUIRE_RETURN_IF_ERROR(server->step_log_->Open());
  }
  if (server->prefix_store_ != nullptr) {
    server->prefix_store_->SaveLater([](const absl::Status& saved) {
      if (!saved.ok()) {
        LogError("pinned prefixes cannot be saved, so a restart loses them",
                 {{"cause", std::string(saved.message())}});
      }
    });
  }
  server->workers_->Start();
  return server;
}

SchedulerServer::SchedulerServer(const SchedulerConfig& config,
                                 const ServedModel* model,
                                 std::unique_ptr<PrefixStore> prefix_store,
                                 RefusalListener on_refusal)
    : config_(config),
      metrics_(&registry_,
               std::string(Version()),
               model->names.front(),
               model->config.max_position_embeddings,
               config.loop.core.prefix_caching),
      inbox_(
          DoorBounds(config.loop.core,
                     {.num_requests = kInboxCapacity, .num_bytes = TenantShares::Bounds::kNone})),
      prefix_store_(std::move(prefix_store)),
      tasks_(kNumTaskThreads,
             DoorBounds(config.loop.core, {.num_requests = kMaxTasks, .num_bytes = kMaxTaskBytes})),
      service_(
          {.model = model,
           .inbox = &inbox_,
           .state = &state_,
           .tasks = &tasks_,
           .live_requests = &live_requests_,
           .observer = &metrics_,
           .unread = &unread_,
           .outbox_limits = {},
           .api_keys = config.api_keys.get(),
           .has_priorities = config.loop.core.scheduling_policy == SchedulingPolicyKind::kPriority,
           .requires_cache_salt = config.requires_cache_salt,
           .logs_requests = config.logs_requests}),
      admin_service_({.model = model,
                      .inbox = &inbox_,
                      .state = &state_,
                      .tasks = &tasks_,
                      .api_keys = config.admin_api_keys.get()},
                     prefix_store_.get()),
      state_page_(model, &inbox_, &state_),
      step_log_(config.step_log.empty() ? nullptr : std::make_unique<StepLogFile>(config.step_log)),
      kv_events_(config.kv_events.has_value()
                     ? std::make_unique<KvEventPublisher>(*config.kv_events, &registry_)
                     : nullptr),
      workers_(std::make_unique<GrpcWorkerGroup>(config.workers,
                                                 SettingsOf(config, *model),
                                                 config.group_timing,
                                                 &inbox_,
                                                 ListenerOf(std::move(on_refusal)),
                                                 config.worker_tls)),
      loop_(std::make_unique<SchedulerLoop>(
          WithHashKey(config.loop),
          SchedulerLoop::Parts{.inbox = &inbox_,
                               .workers = workers_.get(),
                               .state = &state_,
                               .observer = &metrics_,
                               .step_log = {.sink = step_log_.get(), .program_version = Version()},
                               .on_cache_events = SinkOf(kv_events_.get()),
                               .clock = SteadyNow})),
      loop_thread_([this] { loop_->Run(); }),
      last_status_at_(SteadyNow()) {}

GroupListener SchedulerServer::ListenerOf(RefusalListener on_refusal) {
  return {.on_refusal = std::move(on_refusal),
          .on_ranks = [this](const std::vector<RankStatus>& ranks) {
            metrics_.SetRanks(ranks);
            state_.SetRanks(ranks);
          }};
}

SchedulerServer::~SchedulerServer() { Shutdown(); }

absl::Status SchedulerServer::Listen() {
  if (prefix_store_ != nullptr) {
    admin_service_.RestorePrefixes();  // before an operator can call
  }
  QUIRE_RETURN_IF_ERROR(StartGrpc());
  QUIRE_RETURN_IF_ERROR(StartAdmin());
  return StartHttp();
}

std::unique_ptr<grpc::Server> SchedulerServer::Serve(
    grpc::Service* service, const std::vector<std::pair<Listener*, Credentials>>& listeners) {
  grpc::ServerBuilder builder;
  ConfigurePublicServer(builder);
  if (!config_.has_reflection) {
    builder.SetOption(std::make_unique<WithoutPlugins>());
  }
  std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>> interceptors;
  interceptors.push_back(std::make_unique<CallMetrics>(&registry_));
  builder.experimental().SetInterceptorCreators(std::move(interceptors));
  for (const auto& [listener, credentials] : listeners) {
    listener->AddTo(builder, credentials);
  }
  builder.RegisterService(service);
  std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  QUIRE_CHECK(server != nullptr);  // only binding ports can fail, and the builder binds none
  return server;
}

CallCheck SchedulerServer::CheckOf(ApiKeys* keys, std::string_view open_path) {
  if (keys == nullptr) {
    return nullptr;
  }
  return [this, keys, open_path](std::string_view path, std::string_view authorization) {
    if (path.starts_with(kHealthPath) || path.starts_with(open_path)) {  // probes have no key
      return absl::OkStatus();
    }
    absl::Status status = keys->TenantOf(authorization).status();
    if (!status.ok()) {
      metrics_.OnRequestEnd({.outcome = RequestOutcome::kRejected, .refusal = ReasonOf(status)});
    }
    return status;
  };
}

absl::Status SchedulerServer::StartGrpc() {
  // Malformed messages are answered with an error, so protobuf need not log each one.
  google::protobuf::SetLogHandler(nullptr);
  grpc::EnableDefaultHealthCheckService(true);
  // gRPC's health service comes without its protobuf descriptor. Linking the descriptor here lets
  // reflection find it.
  google::protobuf::LinkMessageReflection<grpc::health::v1::HealthCheckRequest>();
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  const Address address = {.unix_path = "", .host = config_.host, .port = config_.port};
  const int num_files_spared =
      (config_.admin.has_value() ? kAdminFiles : 0) + (config_.local.has_value() ? kLocalFiles : 0);
  QUIRE_ASSIGN_OR_RETURN(grpc_listener_, Bind(address, "grpc", num_files_spared));
  ApiKeys* const keys = config_.api_keys.get();
  std::vector<std::pair<Listener*, Credentials>> listeners = {
      {grpc_listener_.get(), MakeServerCredentials(config_.tls, CheckOf(keys))}};
  if (config_.local.has_value()) {
    QUIRE_ASSIGN_OR_RETURN(local_listener_, Bind(*config_.local, "local", 0));
    listeners.emplace_back(local_listener_.get(),
                           MakeServerCredentials(nullptr, CheckOf(keys, kServerInfoPath)));
  }
  grpc_server_ = Serve(&service_, listeners);
  probe_ = std::make_unique<ListenerProbe>(grpc_listener_->address(), config_.tls != nullptr);
  UpdateHealth();  // before a client connects, because gRPC's initial status is SERVING
  for (Listener* listener : GrpcListeners()) {
    listener->Start();
  }
  return absl::OkStatus();
}

std::vector<Listener*> SchedulerServer::GrpcListeners() const {
  std::vector<Listener*> listeners = {grpc_listener_.get()};
  if (local_listener_ != nullptr) {
    listeners.push_back(local_listener_.get());
  }
  return listeners;
}

absl::Status SchedulerServer::StartAdmin() {
  if (!config_.admin.has_value()) {
    return absl::OkStatus();
  }
  QUIRE_ASSIGN_OR_RETURN(admin_listener_, Bind(*config_.admin, "admin", 0));
  admin_server_ =
      Serve(&admin_service_,
            {{admin_listener_.get(),
              MakeServerCredentials(config_.tls, CheckOf(config_.admin_api_keys.get()))}});
  admin_listener_->Start();
  return absl::OkStatus();
}

absl::Status SchedulerServer::StartHttp() {
  registry_.Add(std::make_shared<ProcessMetrics>());
  const std::string metrics_type = "text/plain; version=0.0.4; charset=utf-8";
  std::vector<HttpPage> pages;
  for (const char* path : {"/healthz", "/readyz"}) {
    pages.push_back({path, [this] { return ReadyPage(); }});
  }
  pages.push_back({"/admission", [this] {
                     const absl::Status status = state_.CheckAdmission();
                     return Answer(status.ok(), "takes requests\n", ReasonOf(status) + "\n");
                   }});
  pages.push_back({"/livez", [this] { return Answer(IsLive(), "live\n", "stuck\n"); }});
  pages.push_back({"/metrics", [this, metrics_type] {
                     return HttpResponse{200, registry_.AllText(), metrics_type};
                   }});
  pages.push_back({"/metrics/native", [this, metrics_type] {
                     return HttpResponse{200, registry_.NativeText(), metrics_type};
                   }});
  pages.push_back({"/top", TopPage});
  pages.push_back(
      {"/top.json", [this] {
         return HttpResponse{200, state_page_.Json(SteadyNow()), "application/json; charset=utf-8"};
       }});
  QUIRE_ASSIGN_OR_RETURN(http_, ServePages(config_.http_host, config_.http_port, std::move(pages)));
  return absl::OkStatus();
}

std::string SchedulerServer::grpc_address() const { return grpc_listener_->address().ToString(); }

std::string SchedulerServer::http_address() const {
  return HostPort(config_.http_host, http_->port());
}

std::string SchedulerServer::admin_address() const {
  return admin_listener_ == nullptr ? "" : admin_listener_->address().ToString();
}

bool SchedulerServer::IsLive() const {
  const Instant last_turn = state_.Get().last_turn;
  const bool is_turning = last_turn == 0 || SteadyNow() - last_turn < kLivenessNs;
  return is_turning && !probe_->is_deaf();
}

HttpResponse SchedulerServer::ReadyPage() const {
  return Answer(is_ready(), "ready\n", is_standby() ? "standby\n" : "not ready\n");
}

void SchedulerServer::Poll() {
  const ServingState::Group group = state_.Get().group;
  const bool has_streams = live_requests_.size() > 0;
  // A standby without streams refuses connections, so that clients go on to the next scheduler.
  for (Listener* listener : GrpcListeners()) {
    listener->SetRefusing(group == ServingState::Group::kStandby && !has_streams);
  }
  if (group != ServingState::Group::kGivenUp) {
    has_ended_connections_ = false;
  } else if (!has_streams && !std::exchange(has_ended_connections_, true)) {
    // Ends open connections: in Kubernetes, a client of a Service reaches a ready server only by a
    // new connection. Clients of a single server connect to it again, and get NO_WORKERS.
    for (Listener* listener : GrpcListeners()) {
      listener->EndConnections();
    }
  }
  unread_.CancelOld(SteadyNow());
  UpdateHealth();
  MaybeLogStatus();
  MaybeReturnMemory();
}

void SchedulerServer::UpdateHealth() {
  const bool ready = is_ready();
  SetHealth("", ready);
  SetHealth(kServiceName, ready);
  SetHealth("admission", state_.CheckAdmission().ok());
  SetHealth("liveness", IsLive());
}

// Calls gRPC only on a change, because each call is costly: it sends a message to every Watch
// stream, on this thread and under the lock of gRPC's health service.
void SchedulerServer::SetHealth(const char* name, bool is_serving) {
  const auto [entry, is_new] = health_.try_emplace(name, is_serving);
  if (is_new || std::exchange(entry->second, is_serving) != is_serving) {
    grpc_server_->GetHealthCheckService()->SetServingStatus(name, is_serving);
  }
}

// Logs the load in the words that users of vLLM search their logs for.
void SchedulerServer::MaybeLogStatus() {
  const Instant now = SteadyNow();
  const int64_t elapsed_ns = now - last_status_at_;
  if (elapsed_ns < kStatusIntervalNs) {
    return;
  }
  const CoreStats stats = state_.Get().stats;
  const double seconds = static_cast<double>(elapsed_ns) / static_cast<double>(kNanosPerSecond);
  const auto rate = [seconds](int64_t after, int64_t before) {
    return static_cast<double>(after - before) / seconds;
  };
  const double prompt_rate =
      rate(stats.num_prompt_tokens_computed, last_status_.num_prompt_tokens_computed);
  const double generation_rate =
      rate(stats.num_tokens_committed, last_status_.num_tokens_committed);
  const int32_t num_waiting = stats.num_waiting_requests + stats.num_swapped_requests;
  const int64_t num_queried =
      stats.num_prefix_queried_tokens - last_status_.num_prefix_queried_tokens;
  const int64_t num_hit = stats.num_prefix_hit_tokens - last_status_.num_prefix_hit_tokens;
  const double hit_rate =
      num_queried == 0 ? 0.0
                       : 100.0 * static_cast<double>(num_hit) / static_cast<double>(num_queried);
  const bool is_active =
      stats.num_steps != last_status_.num_steps || stats.num_running_requests + num_waiting > 0;
  const double usage =
      stats.num_blocks == 0 ? 0.0 : 100.0 * stats.num_used_blocks / stats.num_blocks;
  const LogLevel level = is_active ? LogLevel::kInfo : LogLevel::kDebug;
  Log(level,
      absl::StrFormat("Avg prompt throughput: %.1f tokens/s, Avg generation throughput: %.1f "
                      "tokens/s, Running: %d reqs, Waiting: %d reqs, Preemptions: %d, KV cache "
                      "usage: %.1f%%, Prefix cache hit rate: %.1f%%",
                      prompt_rate,
                      generation_rate,
                      stats.num_running_requests,
                      num_waiting,
                      stats.num_preemptions,
                      usage,
                      hit_rate));
  last_status_at_ = now;
  last_status_ = stats;
}

void SchedulerServer::MaybeReturnMemory() {
  const Instant now = SteadyNow();
  if (now - last_return_at_ >= kReturnIntervalNs) {
    last_return_at_ = now;
    ReturnFreeMemory();
  }
}

void SchedulerServer::BeginDrain() {
  state_.SetDraining();
  metrics_.SetDraining();
}

void SchedulerServer::Shutdown() {
  if (!loop_thread_.joinable()) {
    return;
  }
  BeginDrain();
  const absl::Status status = Error(
      absl::StatusCode::kUnavailable, "DRAINING", "server: shut down before the request ended");
  inbox_.Post(AbortAll{status});
  live_requests_.AbortAll(status);  // for requests that have not reached the loop
  if (grpc_server_ != nullptr) {
    for (Listener* listener : GrpcListeners()) {
      listener->Stop();
    }
    grpc_server_->Shutdown(std::chrono::system_clock::now() + kCloseGrace);
  }
  if (admin_server_ != nullptr) {
    admin_listener_->Stop();
    admin_server_->Shutdown(std::chrono::system_clock::now() + kCloseGrace);
  }
  http_.reset();
  probe_.reset();
  inbox_.Post(Stop{});
  loop_thread_.join();
  workers_.reset();
}

}  // namespace quire
