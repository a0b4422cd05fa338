#include "scheduler/rpc/generation_service.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "common/base/error.h"
#include "common/base/status_macros.h"
#include "common/flags/command_line.h"
#include "common/wire/channel.h"
#include "scheduler/rpc/public_status.h"
#include "scheduler/rpc/wire_message.h"
#include "scheduler/text/detokenizer.h"

namespace quire {
namespace {

// Upper bound on ids in a Detokenize call, so that no call holds a thread of the task pool for
// long.
constexpr int kMaxDetokenizeIds = 1 << 18;
// Upper bound on text in an answer. The 16 bytes are room for the text field's tag and length.
constexpr size_t kMaxDetokenizedBytes = kPublicMaxSendBytes - 16;

// Parses the request, runs `method` on the calling thread, and answers.
template <typename Request, typename Method>
grpc::ServerUnaryReactor* Answer(const grpc::ByteBuffer& bytes,
                                 const Method& method,
                                 UnaryCall* call) {
  Request request;
  const absl::Status parsed = ParseMessage(bytes, &request);
  if (parsed.ok()) {
    call->Answer(method(request));
  } else {
    call->Refuse(parsed);
  }
  return call;
}

// Frees the bytes of a parsed message. Otherwise gRPC keeps up to 4 MiB until the call ends, which
// may take long. The cast is safe, because gRPC only destroys the message afterwards.
void FreeBytes(const grpc::ByteBuffer* message) { const_cast<grpc::ByteBuffer*>(message)->Clear(); }

absl::Status NoTokenizer() {
  return Error(
      absl::StatusCode::kFailedPrecondition, "NO_TOKENIZER", "server: the model has no tokenizer");
}

}  // namespace

grpc::ServerWriteReactor<grpc::ByteBuffer>* GenerationService::Generate(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* request) {
  grpc::ServerWriteReactor<grpc::ByteBuffer>* call =
      GenerateCall::Start(&parts_, context, *request);
  FreeBytes(request);
  return call;
}

grpc::ServerUnaryReactor* GenerationService::Abort(grpc::CallbackServerContext* context,
                                                   const grpc::ByteBuffer* request,
                                                   grpc::ByteBuffer* response) {
  return Answer<v1::AbortRequest>(
      *request,
      [this, context](const auto& message) { return DoAbort(message, *context); },
      new UnaryCall(context, response, parts_.unread));
}

void GenerationService::Submit(UnaryCall* call,
                               absl::Status status,
                               size_t num_bytes,
                               std::function<void()> run) {
  if (status.ok()) {
    status = parts_.state->CheckNotDraining();  // else new calls could prolong a drain forever
  }
  if (status.ok()) {
    status = parts_.tasks->Submit({.run = std::move(run),
                                   .owner = TaskPool::kTokenizeCalls,
                                   .num_bytes = static_cast<int64_t>(num_bytes)});
  }
  if (!status.ok()) {
    call->Refuse(status);
  }
}

grpc::ServerUnaryReactor* GenerationService::Tokenize(grpc::CallbackServerContext* context,
                                                      const grpc::ByteBuffer* request,
                                                      grpc::ByteBuffer* response) {
  auto* call = new UnaryCall(context, response, parts_.unread);
  auto message = std::make_shared<v1::TokenizeRequest>();
  absl::Status status = ParseMessage(*request, message.get());
  FreeBytes(request);
  if (status.ok()) {
    status = CheckText(message->text(), *parts_.model);
  }
  Submit(call, std::move(status), message->text().size(), [this, message, call] {
    call->Answer(DoTokenize(*message, [call] { return call->CheckWanted(); }));
  });
  return call;
}

grpc::ServerUnaryReactor* GenerationService::Detokenize(grpc::CallbackServerContext* context,
                                                        const grpc::ByteBuffer* request,
                                                        grpc::ByteBuffer* response) {
  auto* call = new UnaryCall(context, response, parts_.unread);
  auto message = std::make_shared<v1::DetokenizeRequest>();
  absl::Status status = ParseMessage(*request, message.get());
  FreeBytes(request);
  if (status.ok()) {
    status = CheckIds(*message);
  }
  const size_t num_bytes = static_cast<size_t>(message->token_ids_size()) * sizeof(TokenId);
  Submit(call, std::move(status), num_bytes, [this, message, call] {
    const absl::Status wanted = call->CheckWanted();
    call->Answer(wanted.ok() ? DoDetokenize(*message) : wanted);
  });
  return call;
}

grpc::ServerUnaryReactor* GenerationService::GetServerInfo(grpc::CallbackServerContext* context,
                                                           const grpc::ByteBuffer* request,
                                                           grpc::ByteBuffer* response) {
  return Answer<v1::GetServerInfoRequest>(
      *request,
      [this](const auto& message) { return DoGetServerInfo(message); },
      new UnaryCall(context, response, parts_.unread));
}

absl::StatusOr<v1::AbortResponse> GenerationService::DoAbort(
    const v1::AbortRequest& request, const grpc::CallbackServerContext& context) {
  QUIRE_ASSIGN_OR_RETURN(const std::string tenant, TenantOfCall(parts_.api_keys, context));
  if (request.request_id().empty()) {
    return InvalidArgument("MISSING_FIELD", "request_id: is empty");
  }
  QUIRE_RETURN_IF_ERROR(parts_.live_requests->Abort(
      LiveRequests::NameOf(tenant, request.request_id()),
      Error(absl::StatusCode::kCancelled, "ADMIN", "request: cancelled by an Abort call")));
  return v1::AbortResponse();
}

absl::StatusOr<v1::TokenizeResponse> GenerationService::DoTokenize(
    const v1::TokenizeRequest& request, const StopCheck& stop_check) const {
  QUIRE_RETURN_IF_ERROR(stop_check());
  TextBudget budget(request.text().size(), stop_check);
  const bool add_special_tokens = !request.has_add_special_tokens() || request.add_special_tokens();
  QUIRE_ASSIGN_OR_RETURN(
      const std::vector<TokenId> ids,
      parts_.model->tokenizer->Encode(
          request.text(), add_special_tokens, request.parse_special_tokens(), &budget));
  v1::TokenizeResponse response;
  response.mutable_token_ids()->Add(ids.begin(), ids.end());
  if (response.ByteSizeLong() > kPublicMaxSendBytes) {
    return InvalidArgument("PROMPT_TOO_LONG", "text: has more tokens than a response can hold");
  }
  return response;
}

absl::Status GenerationService::CheckIds(const v1::DetokenizeRequest& request) const {
  if (parts_.model->tokenizer == nullptr) {
    return NoTokenizer();
  }
  if (request.token_ids_size() > kMaxDetokenizeIds) {
    return InvalidArgument("PROMPT_TOO_LONG", "token_ids: too many");
  }
  return absl::OkStatus();
}

absl::StatusOr<v1::DetokenizeResponse> GenerationService::DoDetokenize(
    const v1::DetokenizeRequest& request) const {
  const std::vector<TokenId> ids(request.token_ids().begin(), request.token_ids().end());
  QUIRE_RETURN_IF_ERROR(CheckTokenIds("token_ids", ids, *parts_.model));
  Detokenizer detokenizer(parts_.model->tokenizer.get(), {}, request.skip_special_tokens());
  std::string text;
  for (size_t i = 0; i < ids.size() && text.size() <= kMaxDetokenizedBytes; ++i) {
    text += detokenizer.Push(ids[i]);
  }
  text += detokenizer.Flush();
  if (text.size() > kMaxDetokenizedBytes) {
    return InvalidArgument(
        "TEXT_BYTES",
        absl::StrCat("token_ids: their text is too long (limit ", kMaxDetokenizedBytes, " bytes)"));
  }
  v1::DetokenizeResponse response;
  response.set_text(std::move(text));
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
  info.mutable_model_names()->Add(model.names.begin(), model.names.end());
  info.set_tokenizer_digest(model.tokenizer != nullptr ? model.tokenizer->file_digest() : 0);
  return info;
}

}  // namespace quire
