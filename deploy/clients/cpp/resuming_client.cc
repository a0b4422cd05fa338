#include "deploy/clients/cpp/resuming_client.h"

#include <chrono>
#include <string>
#include <thread>
#include <utility>

#include <grpcpp/client_context.h>

#include "deploy/clients/cpp/resume_state.h"

namespace quire {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// Reads one stream until it ends, or until the caller or `state` ends the request.
grpc::Status Stream(v1::GenerationService::Stub& stub,
                    const std::string& api_key,
                    const ResumingClient::OnResponse& on_response,
                    ResumeState& state) {
  grpc::ClientContext context;
  grpc::Status prepared = PrepareCall(state.request(), api_key, &context);
  if (!prepared.ok()) {
    return prepared;
  }
  const auto reader = stub.Generate(&context, state.request());
  v1::GenerateResponse response;
  while (reader->Read(&response)) {
    if (!state.Take(&response)) {
      context.TryCancel();
      break;
    }
    if (!on_response(response)) {
      state.Cancel();
      context.TryCancel();
      break;
    }
  }
  return reader->Finish();
}

// Sleeps inside gRPC, because gRPC reconnects only while a thread waits inside gRPC. Otherwise no
// thread would reconnect for up to 5 s, the interval of gRPC's own polls.
void SleepUntil(Clock::time_point end, grpc::Channel& channel) {
  const auto left = std::chrono::ceil<milliseconds>(end - Clock::now());
  const auto deadline = std::chrono::system_clock::now() + left;
  // Tries to connect only once. Otherwise, if a server ends each connection at once, gRPC would
  // dial again and again without a pause.
  bool tries_to_connect = true;
  while (Clock::now() < end) {
    const grpc_connectivity_state state = channel.GetState(std::exchange(tries_to_connect, false));
    if (state == GRPC_CHANNEL_SHUTDOWN) {  // an in-process channel has no other state
      std::this_thread::sleep_until(end);
    } else {
      channel.WaitForStateChange(state, deadline);
    }
  }
}

}  // namespace

grpc::ChannelArguments ClientChannelArguments() {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 2000);  // time limit of one connect attempt
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 200);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 4000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 3000);
  arguments.SetInt("grpc.http2.ping_timeout_ms", 3000);  // from gRPC 1.60 on, the default is 60 s
  // 0: no limit on keepalive pings, because the client sends no data during a stream.
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  arguments.SetLoadBalancingPolicyName("round_robin");
  arguments.SetInt(GRPC_ARG_DNS_MIN_TIME_BETWEEN_RESOLUTIONS_MS, 5000);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);  // keeps the window at 64 KiB, not up to 10 MiB
  return arguments;
}

ResumingClient::ResumingClient(const std::vector<std::shared_ptr<grpc::Channel>>& channels,
                               RetryPolicy policy,
                               std::string api_key)
    : channels_(channels), policy_(policy), api_key_(std::move(api_key)) {
  for (const std::shared_ptr<grpc::Channel>& channel : channels) {
    stubs_.push_back(v1::GenerationService::NewStub(channel));
  }
}

grpc::Status ResumingClient::Generate(const v1::GenerateRequest& request,
                                      const OnResponse& on_response) const {
  const Clock::time_point begin = Clock::now();
  ResumeState state(request, policy_, stubs_.size());
  for (;;) {
    grpc::Status status = state.BeginAttempt(Clock::now() - begin);
    if (!status.ok()) {
      return status;
    }
    status = Stream(*stubs_[state.server()], api_key_, on_response, state);
    const ResumeState::Next next = state.EndAttempt(Clock::now() - begin, status);
    if (next.end.has_value()) {
      return *next.end;
    }
    SleepUntil(Clock::now() + next.wait, *channels_[state.server()]);
  }
}

}  // namespace quire
