#include "scheduler/rpc/grpc_worker_group.h"

#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"

#include "common/base/clock.h"
#include "common/base/error.h"
#include "common/base/log.h"
#include "common/base/random_bytes.h"
#include "common/wire/channel.h"
#include "common/wire/credentials.h"
#include "common/wire/dtype_codec.h"
#include "common/wire/step_codec.h"
#include "common/wire/worker_protocol.h"
#include "scheduler/rpc/wire_message.h"

namespace quire {
namespace {

constexpr absl::Duration kTickInterval = absl::Milliseconds(25);
constexpr absl::Duration kBuryInterval = absl::Milliseconds(1);

// Size of an epoch's secret, which only the scheduler and the ranks know. Must equal the ranks'
// kGroupSecretBytes.
constexpr size_t kSecretBytes = 32;

std::vector<RankStatus> NewRanks(const std::vector<Address>& addresses) {
  std::vector<RankStatus> ranks;
  ranks.reserve(addresses.size());
  for (const Address& address : addresses) {
    ranks.push_back({.address = address.ToString()});
  }
  return ranks;
}

// Error for a plan that does not fit into a message. No plan within the agreed limits is that long.
// The code INTERNAL makes the step's requests crash suspects (crash_suspects.h). Otherwise the core
// would plan the same step again in each new epoch.
absl::Status TooLong(size_t num_bytes) {
  return Error(absl::StatusCode::kInternal,
               "STEP_TOO_LONG",
               absl::StrCat("step: too long for a message (got ",
                            num_bytes,
                            " bytes, limit ",
                            kWorkerMaxMessageBytes,
                            ")"));
}

}  // namespace

GrpcWorkerGroup::GrpcWorkerGroup(std::vector<Address> addresses,
                                 const GroupSettings& settings,
                                 const GroupTiming& timing,
                                 Inbox* inbox,
                                 GroupListener listener,
                                 std::shared_ptr<TlsFiles> tls)
    : addresses_(std::move(addresses)),
      settings_(settings),
      inbox_(inbox),
      listener_(std::move(listener)),
      tls_(std::move(tls)),
      // The incarnation is the wall clock: it grows with every start, without a counter on disk.
      group_(settings, static_cast<int32_t>(addresses_.size()), WallClockNanos(), timing),
      links_(addresses_.size()),
      ranks_(NewRanks(addresses_)),
      last_causes_(addresses_.size()) {}

void GrpcWorkerGroup::Start() {
  thread_ = std::thread([this] { Run(); });
}

GrpcWorkerGroup::~GrpcWorkerGroup() {
  {
    absl::MutexLock lock(&mutex_);
    is_stopping_ = true;
    for (std::shared_ptr<WorkerLink>& link : links_) {
      Close(link);
    }
  }
  if (thread_.joinable()) {
    thread_.join();
  }
}

void GrpcWorkerGroup::Run() {
  absl::MutexLock lock(&mutex_);
  while (!is_stopping_) {
    group_.Tick(SteadyNow());
    DoActions();
    DestroyClosedLinks();
    mutex_.AwaitWithTimeout(absl::Condition(&is_stopping_), kTickInterval);
  }
  const auto never = [] { return false; };
  for (DestroyClosedLinks(); !closed_.empty(); DestroyClosedLinks()) {
    mutex_.AwaitWithTimeout(absl::Condition(&never), kBuryInterval);
  }
}

void GrpcWorkerGroup::Close(std::shared_ptr<WorkerLink>& link) {
  if (link != nullptr) {
    link->Close();
    closed_.push_back(std::exchange(link, nullptr));
  }
}

// Runs on thread_ only, never on a gRPC thread (see WorkerLink). A closed link gets no new
// references, so a use count of one stays one.
void GrpcWorkerGroup::DestroyClosedLinks() {
  std::erase_if(closed_, [](const auto& link) { return link.use_count() == 1; });
}

void GrpcWorkerGroup::SendStep(const StepPlan& plan) {
  absl::MutexLock lock(&mutex_);
  EncodePlan(plan, &request_);
  plan_ = SerializeMessage(request_);
  if (plan_.Length() <= kWorkerMaxMessageBytes) {
    group_.Plan(plan, SteadyNow());
  } else {
    group_.RejectPlan(plan.header.group_epoch, TooLong(plan_.Length()), SteadyNow());
  }
  DoActions();
}

void GrpcWorkerGroup::AbandonEpoch(uint64_t group_epoch) {
  On([group_epoch](WorkerGroup& group, Instant now) { group.Abandon(group_epoch, now); });
}

template <typename Event>
void GrpcWorkerGroup::On(const Event& event) {
  absl::MutexLock lock(&mutex_);
  if (!is_stopping_) {
    event(group_, SteadyNow());
    DoActions();
  }
}

void GrpcWorkerGroup::DoActions() {
  std::vector<GroupAction> actions = group_.TakeActions();
  for (GroupAction& action : actions) {
    std::visit([this](auto& a) ABSL_NO_THREAD_SAFETY_ANALYSIS { Do(a); }, action);
  }
  ReportRanks();
}

void GrpcWorkerGroup::ReportRanks() {
  bool is_news = false;
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    RankStatus& told = ranks_[rank];
    const auto index = static_cast<int32_t>(rank);
    const RankPhase phase = group_.phase_of(index);
    const KvMemory kv_memory = group_.kv_memory_of(index);
    is_news = is_news || phase != told.phase || !(kv_memory == told.kv_memory);
    told.phase = phase;
    told.kv_memory = kv_memory;
  }
  if (is_news) {
    listener_.on_ranks(ranks_);
  }
}

std::shared_ptr<WorkerLink>& GrpcWorkerGroup::LinkOf(LinkId link) {
  return links_[static_cast<size_t>(link.rank)];
}

std::shared_ptr<WorkerLink> GrpcWorkerGroup::Dial(const DialLink& action) {
  const LinkId link = action.link;
  return WorkerLink::Start(
      DialWorker(addresses_[static_cast<size_t>(link.rank)], MakeChannelCredentials(tls_.get())),
      action.scheduler_incarnation,
      {.on_hello =
           [this, link](absl::StatusOr<WorkerHello> hello) {
             On([&](WorkerGroup& group, Instant now) {
               group.OnHello(link, std::move(hello), now);
             });
           },
       .on_epoch_begun =
           [this, link](absl::Status status) {
             On([&](WorkerGroup& group, Instant now) { group.OnEpochBegun(link, status, now); });
           },
       .on_answer =
           [this, link](StepResult result) {
             On([&](WorkerGroup& group, Instant now) {
               group.OnAnswer(link, std::move(result), now);
             });
           },
       .on_steps_end =
           [this, link](absl::Status status) {
             On([&](WorkerGroup& group, Instant now) { group.OnStepsEnd(link, status, now); });
           },
       .on_report =
           [this, link](const WorkerReport& report) {
             On([&](WorkerGroup& group, Instant now) { group.OnReport(link, report, now); });
           },
       .on_watch_end =
           [this, link](absl::Status status) {
             On([&](WorkerGroup& group, Instant now) { group.OnWatchEnd(link, status, now); });
           }});
}

void GrpcWorkerGroup::Do(const DialLink& action) {
  Close(LinkOf(action.link));
  LinkOf(action.link) = Dial(action);
}

void GrpcWorkerGroup::Do(const CloseLink& action) { Close(LinkOf(action.link)); }

void GrpcWorkerGroup::Do(const GreetWorker& action) {
  v1::HandshakeRequest request;
  request.set_protocol_version(kWorkerProtocolVersion);
  request.set_scheduler_incarnation(action.scheduler_incarnation);
  request.set_block_size_tokens(settings_.block_size_tokens);
  if (settings_.kv_cache_dtype.has_value()) {
    request.set_kv_cache_dtype(ToProto(*settings_.kv_cache_dtype));
  }
  request.set_rank(action.link.rank);
  request.set_tensor_parallel_size(static_cast<int32_t>(addresses_.size()));
  request.set_refused_uuid(action.refusal.uuid);
  request.set_refusal(action.refusal.why);
  LinkOf(action.link)->Greet(request);
}

void GrpcWorkerGroup::Do(const BeginWorkerEpoch& action) {
  v1::BeginEpochRequest request;
  request.set_scheduler_incarnation(action.scheduler_incarnation);
  request.set_group_epoch(action.group_epoch);
  request.set_num_blocks(action.limits.num_blocks);
  request.set_num_host_blocks(action.limits.num_host_blocks);
  request.set_block_size_tokens(action.limits.block_size_tokens);
  request.set_kv_cache_dtype(ToProto(action.kv_cache_dtype));
  request.set_max_sequences(action.limits.max_sequences);
  request.set_max_tokens_per_step(action.limits.max_tokens_per_step);
  request.set_max_model_len_tokens(action.limits.max_model_len);
  request.set_sliding_window_tokens(action.limits.sliding_window);
  request.set_wants_next_blocks(action.limits.wants_next_blocks);
  request.set_rope_length_tokens(action.rope_length);
  for (const std::string& rendezvous : action.rendezvous) {
    request.add_rendezvous(rendezvous);
  }
  if (action.group_epoch != secret_epoch_) {
    secret_epoch_ = action.group_epoch;
    secret_ = RandomBytes(kSecretBytes);
  }
  request.set_group_secret(secret_);
  LinkOf(action.link)->BeginEpoch(request);
}

void GrpcWorkerGroup::Do(const OpenSteps& action) { LinkOf(action.link)->OpenSteps(); }

void GrpcWorkerGroup::Do(const BreakSteps& action) { LinkOf(action.link)->BreakSteps(); }

void GrpcWorkerGroup::Do(const SendPlan& action) { LinkOf(action.link)->Send(plan_); }

void GrpcWorkerGroup::Do(const ReportReady& action) {
  last_causes_.assign(last_causes_.size(), "");
  const Agreement& agreement = action.agreement;
  if (settings_.max_model_len.value_or(0) > agreement.limits.max_model_len) {
    LogWarning("max_model_len exceeds the KV cache, so a smaller limit is served",
               {{"asked", absl::StrCat(*settings_.max_model_len)},
                {"served", absl::StrCat(agreement.limits.max_model_len)}});
  }
  inbox_->Post(GroupReady{.scheduler_incarnation = action.scheduler_incarnation,
                          .group_epoch = action.group_epoch,
                          .limits = agreement.limits,
                          .numerics = agreement.numerics.fingerprint(),
                          .kv_cache_dtype = std::string(NameOf(agreement.numerics.kv_cache_dtype)),
                          .block_bytes = agreement.block_bytes,
                          .after_crash = action.after_crash});
}

void GrpcWorkerGroup::Do(ReportResult& action) {
  inbox_->Post(StepReply{std::move(action.result)});
}

void GrpcWorkerGroup::Do(const ReportStale& /*action*/) { inbox_->Post(StaleReply{}); }

void GrpcWorkerGroup::Do(const ReportLost& action) {
  inbox_->Post(GroupLost{action.group_epoch, action.status});
}

void GrpcWorkerGroup::Do(const ReportStandby& action) {
  inbox_->Post(GroupStandby{action.scheduler_incarnation});
}

void GrpcWorkerGroup::Do(const ReportRefused& action) {
  if (IsNews(action.rank, action.status)) {
    LogWarning("worker refused; the scheduler tries again",
               {{"rank", absl::StrCat(action.rank)},
                {"reason", ReasonOf(action.status)},
                {"cause", std::string(action.status.message())}});
    listener_.on_refusal(action.status);
  }
}

void GrpcWorkerGroup::Do(const ReportAway& action) {
  if (IsNews(action.rank, action.status)) {
    LogWarning(
        "worker not ready; the scheduler tries again",
        {{"rank", absl::StrCat(action.rank)}, {"cause", std::string(action.status.ToString())}});
  }
}

void GrpcWorkerGroup::Do(const ReportLoading& action) {
  inbox_->Post(GroupLoading{action.rank, action.loaded_bytes, action.total_bytes});
}

bool GrpcWorkerGroup::IsNews(int32_t rank, const absl::Status& status) {
  std::string cause(status.message());  // without the payloads, whose order varies
  std::string& last = last_causes_[static_cast<size_t>(rank)];
  if (cause == last) {
    return false;
  }
  last = std::move(cause);
  return true;
}

}  // namespace quire
