#include "scheduler/kv_event_flags.h"

#include <string>
#include <string_view>

#include "absl/flags/declare.h"
#include "absl/flags/flag.h"
#include "absl/status/statusor.h"

#include "common/base/status_macros.h"
#include "common/flags/flag_check.h"
#include "common/wire/address.h"

ABSL_DECLARE_FLAG(bool, allow_insecure_bind);

ABSL_FLAG(std::string,
          kv_events_endpoint,
          "",
          "Publish which blocks the prefix cache holds, with their token ids, for routers. Format "
          "and protocol are vLLM's, over ZeroMQ. tcp://IP:PORT (tcp://*:5557: all addresses) or "
          "ipc:///path to listen on. Empty: off.");
ABSL_FLAG(std::string,
          kv_events_replay_endpoint,
          "",
          "Where subscribers ask for events that they missed, as --kv-events-endpoint. Empty: "
          "nowhere.");
ABSL_FLAG(std::string,
          kv_events_topic,
          "",
          "Topic of KV events. llm-d expects kv@POD_IP:PORT@MODEL.");
ABSL_FLAG(int32_t,
          kv_events_buffer_steps,
          10'000,
          "KV events of so many steps are kept for replay, and wait for a subscriber that does not "
          "read.");

namespace quire {
namespace {

constexpr int32_t kMaxBufferSteps = 1'000'000;

// Refuses an endpoint that other machines can reach, unless --allow-insecure-bind is given.
absl::Status CheckEndpoint(std::string_view flag, const std::string& endpoint) {
  constexpr std::string_view kTcp = "tcp://";
  if (endpoint.starts_with("ipc:///")) {
    return absl::OkStatus();
  }
  std::string host_port = endpoint.starts_with(kTcp) ? endpoint.substr(kTcp.size()) : "";
  if (host_port.starts_with("*:")) {
    host_port.replace(0, 1, "0.0.0.0");
  }
  const absl::StatusOr<Address> address = ParseAddress(host_port);
  if (!address.ok() || address->is_unix()) {
    return FlagError(flag, "must be tcp://IP:PORT, tcp://*:PORT or ipc:///path");
  }
  if (!address->is_local() && !absl::GetFlag(FLAGS_allow_insecure_bind)) {
    return FlagError(flag,
                     "other machines can read prompts at this address; give --allow-insecure-bind "
                     "if the network is isolated");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status SetKvEvents(SchedulerConfig* config) {
  const KvEventSettings settings = {
      .endpoint = absl::GetFlag(FLAGS_kv_events_endpoint),
      .replay_endpoint = absl::GetFlag(FLAGS_kv_events_replay_endpoint),
      .topic = absl::GetFlag(FLAGS_kv_events_topic),
      .buffer_steps = absl::GetFlag(FLAGS_kv_events_buffer_steps)};
  QUIRE_RETURN_IF_ERROR(
      CheckFlagRange("kv-events-buffer-steps", settings.buffer_steps, 1, kMaxBufferSteps));
  if (settings.endpoint.empty()) {
    return settings.replay_endpoint.empty()
               ? absl::OkStatus()
               : FlagError("kv-events-replay-endpoint", "needs --kv-events-endpoint");
  }
  if (!config->loop.core.prefix_caching) {
    return FlagError("kv-events-endpoint", "needs --enable-prefix-caching");
  }
  QUIRE_RETURN_IF_ERROR(CheckEndpoint("kv-events-endpoint", settings.endpoint));
  if (!settings.replay_endpoint.empty()) {
    QUIRE_RETURN_IF_ERROR(CheckEndpoint("kv-events-replay-endpoint", settings.replay_endpoint));
  }
  config->kv_events = settings;
  return absl::OkStatus();
}

}  // namespace quire
