#include "deploy/cli/gateway_child.h"

#include <utility>

#include "deploy/cli/serve_arguments.h"

namespace quire {
namespace {

constexpr int64_t kMaxGatewaySilenceNs = 10 * kNanosPerSecond;

}  // namespace

GatewayChild::GatewayChild(std::vector<std::string> argv)
    : child_("gateway", std::move(argv), kMaxGatewaySilenceNs) {}

std::optional<int> GatewayChild::Tend(Instant now) {
  ChildProcess* const process = child_.process();
  if (process == nullptr) {
    return std::nullopt;
  }
  while (const std::optional<std::string> line = process->TakeLine()) {
    OnLine(*line);
  }
  if (probe_.has_value() && probe_->Poll(now)) {
    child_.OnSign();
  }
  const std::optional<int> wait_status = child_.TakeEnd(now);
  if (wait_status.has_value()) {
    probe_.reset();
  }
  return wait_status;
}

void GatewayChild::OnLine(std::string_view line) {
  const std::optional<GatewayAddresses> addresses = ParseGatewayAddresses(line);
  if (!addresses.has_value()) {
    return;
  }
  child_.OnSign();
  if (addresses->is_ready) {
    was_ready_ = true;
    child_.OnUseful();
    return;
  }
  if (api_address_.empty()) {
    api_address_ = addresses->api;
    child_.AddArguments(addresses->flags);
  }
  if (addresses->http.has_value()) {
    probe_.emplace(*addresses->http);
  }
}

}  // namespace quire
