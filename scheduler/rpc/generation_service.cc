#include "scheduler/rpc/generation_service.h"

#include <string>
#include <utility>
#include <vector>

#include "common/base/error.h"
#include "common/base/status_macros.h"
#include "common/flags/command_line.h"
#include "scheduler/rpc/public_status.h"
#include "scheduler/rpc/wire_message.h"

namespace quire {
namespace {

// Detokenize answers at once; this keeps one call from holding a thread for long.
constexpr int kMaxDetokenizeIds = 1 << 18;

// Parses, runs `method`, builds the answer: what every unary method does.
template <typename Request, typename Method>
grpc::Status Answer(const grpc::ByteBuffer& bytes,
                    const Method& method,
                    grpc::ByteBuffer* response) {
  Request request;
  const absl::Status parsed = ParseMessage(bytes, &request);
  if (!parsed.ok()) {
    return ToPublicStatus(parsed);
  }
  const auto answer = method(request);
  if (!answer.ok()) {
    return ToPublicStatus(answer.status());
  }
  *response = SerializeMessage(*answer);
  return grpc::Status::OK;
}

absl::Status NoTokenizer() {
  return Error(
      absl::StatusCode::kFailedPrecondition, "NO_TOKENIZER", "server: the model has no tokenizer");
}

}  // namespace

grpc::ServerWriteReactor<grpc::ByteBuffer>* GenerationService::Generate(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* request) {
  return GenerateCall::Start(&parts_, context, *request);
}

grpc::ServerUnaryReactor* GenerationService::Abort(grpc::CallbackServerContext* context,
                                                   const grpc::ByteBuffer* request,
                                                   grpc::ByteBuffer* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(Answer<v1::AbortRequest>(
      *request, [this](const auto& message) { return DoAbort(message); }, response));
  return reactor;
}

grpc::ServerUnaryReactor* GenerationService::Tokenize(grpc::CallbackServerContext* context,
                                                      const grpc::ByteBuffer* request,
                                                      grpc::ByteBuffer* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  const bool queued = parts_.tasks->Submit([this, reactor, request, response] {
    reactor->Finish(Answer<v1::TokenizeRequest>(
        *request, [this](const auto& message) { return DoTokenize(message); }, response));
  });
  if (!queued) {
    reactor->Finish(ToPublicStatus(Error(absl::StatusCode::kResourceExhausted,
                                         "QUEUE_FULL",
                                         "server: too many prompts wait to be tokenized")));
  }
  return reactor;
}

grpc::ServerUnaryReactor* GenerationService::Detokenize(grpc::CallbackServerContext* context,
                                                        const grpc::ByteBuffer* request,
                                                        grpc::ByteBuffer* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(Answer<v1::DetokenizeRequest>(
      *request, [this](const auto& message) { return DoDetokenize(message); }, response));
  return reactor;
}

grpc::ServerUnaryReactor* GenerationService::GetServerInfo(grpc::CallbackServerContext* context,
                                                           const grpc::ByteBuffer* request,
                                                           grpc::ByteBuffer* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(Answer<v1::GetServerInfoRequest>(
      *request, [this](const auto& message) { return DoGetServerInfo(message); }, response));
  return reactor;
}

absl::StatusOr<v1::AbortResponse> GenerationService::DoAbort(const v1::AbortRequest& request) {
  if (request.request_id().empty()) {
    return InvalidArgument("MISSING_FIELD", "request_id: is empty");
  }
  QUIRE_RETURN_IF_ERROR(parts_.live_requests->Abort(
      request.request_id(),
      Error(absl::StatusCode::kCancelled, "ADMIN", "request: cancelled by an Abort call")));
  return v1::AbortResponse();
}

absl::StatusOr<v1::TokenizeResponse> GenerationService::DoTokenize(
    const v1::TokenizeRequest& request) const {
  QUIRE_RETURN_IF_ERROR(CheckText(request.text(), *parts_.model));
  const bool add_special_tokens = !request.has_add_special_tokens() || request.add_special_tokens();
  QUIRE_ASSIGN_OR_RETURN(const std::vector<TokenId> ids,
                         parts_.model->tokenizer->Encode(
                             request.text(), add_special_tokens, request.parse_special_tokens()));
  v1::TokenizeResponse response;
  response.mutable_token_ids()->Add(ids.begin(), ids.end());
  return response;
}

absl::StatusOr<v1::DetokenizeResponse> GenerationService::DoDetokenize(
    const v1::DetokenizeRequest& request) const {
  if (parts_.model->tokenizer == nullptr) {
    return NoTokenizer();
  }
  if (request.token_ids_size() > kMaxDetokenizeIds) {
    return InvalidArgument("PROMPT_TOO_LONG", "token_ids: too many");
  }
  const std::vector<TokenId> ids(request.token_ids().begin(), request.token_ids().end());
  QUIRE_RETURN_IF_ERROR(CheckTokenIds("token_ids", ids, *parts_.model));
  v1::DetokenizeResponse response;
  response.set_text(parts_.model->tokenizer->Decode(ids, request.skip_special_tokens()));
  return response;
}

absl::StatusOr<v1::GetServerInfoResponse> GenerationService::DoGetServerInfo(
    const v1::GetServerInfoRequest& /*request*/) const {
  const ServedModel& model = *parts_.model;
  const ServingState::Snapshot state = parts_.state->Get();
  v1::GetServerInfoResponse info;
  info.set_version(std::string(Version()));
  info.set_model(model.names.front());
  info.set_architecture(model.config.architecture);
  info.set_max_model_len_tokens(state.limits.max_model_len);
  info.set_vocab_size(model.config.vocab_size);
  info.set_has_tokenizer(model.tokenizer != nullptr);
  info.mutable_eos_token_ids()->Add(model.eos_token_ids.begin(), model.eos_token_ids.end());
  info.set_block_size_tokens(state.limits.block_size_tokens);
  info.set_num_blocks(state.stats.num_blocks);
  info.set_num_running_requests(state.stats.num_running_requests);
  info.set_num_waiting_requests(state.stats.num_waiting_requests +
                                state.stats.num_swapped_requests);
  info.set_max_sequences(state.limits.max_sequences);
  info.set_max_tokens_per_step(state.limits.max_tokens_per_step);
  info.set_ready(state.is_ready());
  info.set_determinism_fingerprint(DeterminismFingerprint(model, state.numerics));
  info.set_num_preemptions(state.stats.num_preemptions);
  info.set_tensor_parallel_size(static_cast<int32_t>(state.ranks.size()));
  return info;
}

}  // namespace quire
