#include "scheduler/rpc/admin_service.h"

#include <memory>
#include <utility>

#include "common/base/error.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "scheduler/rpc/generate_request.h"
#include "scheduler/rpc/public_status.h"
#include "scheduler/rpc/state_message.h"
#include "scheduler/rpc/wire_message.h"

namespace quire {
namespace {

v1::PrefixState StateOf(PrefixState state) {
  switch (state) {
    case PrefixState::kWaiting:
      return v1::PREFIX_STATE_WAITING;
    case PrefixState::kComputing:
      return v1::PREFIX_STATE_COMPUTING;
    case PrefixState::kPinned:
      return v1::PREFIX_STATE_PINNED;
  }
  return v1::PREFIX_STATE_UNSPECIFIED;
}

void Fill(const PrefixInfo& info, v1::PinnedPrefix* message) {
  message->set_prefix_id(info.id.value());
  message->set_state(StateOf(info.state));
  message->set_num_tokens(info.num_tokens);
  message->set_num_blocks(info.num_blocks);
}

}  // namespace

grpc::ServerUnaryReactor* AdminService::PinPrefix(grpc::CallbackServerContext* context,
                                                  const grpc::ByteBuffer* request,
                                                  grpc::ByteBuffer* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  auto message = std::make_shared<v1::PinPrefixRequest>();
  absl::Status status = ParseMessage(*request, message.get());
  if (status.ok()) {
    status = CheckPin(*message);
  }
  if (!status.ok()) {
    reactor->Finish(ToPublicStatus(status));
    return reactor;
  }
  LogCaller("operator asks to pin a prefix", *context);
  if (!message->has_text()) {
    Pin(*message, context, reactor, response);
    return reactor;
  }
  status = parts_.tasks->Submit({.run =
                                     [this, message, context, reactor, response] {
                                       Pin(*message, context, reactor, response);
                                     },
                                 .num_bytes = static_cast<int64_t>(message->text().size())});
  if (!status.ok()) {
    reactor->Finish(ToPublicStatus(status));
  }
  return reactor;
}

void AdminService::LogCaller(const char* what, const grpc::CallbackServerContext& context) const {
  const auto who = TenantOfCall(parts_.api_keys, context);
  if (who.ok() && !who->empty()) {
    LogInfo(what, {{"by", *who}});
  }
}

absl::Status AdminService::CheckPin(const v1::PinPrefixRequest& request) const {
  QUIRE_RETURN_IF_ERROR(parts_.state->CheckAdmission());
  if (request.has_text() && request.has_token_ids()) {
    return InvalidArgument("CONFLICTING_FIELDS", "prefix: text and token_ids are both set");
  }
  if (!request.has_text() && !request.has_token_ids()) {
    return InvalidArgument("MISSING_FIELD", "prefix: neither text nor token_ids is set");
  }
  QUIRE_RETURN_IF_ERROR(CheckCacheSalt(request.cache_salt()));
  if (request.has_text()) {
    return CheckText(request.text(), *parts_.model);
  }
  if (request.token_ids().ids_size() >= parts_.state->Get().limits.max_model_len) {
    return InvalidArgument("PROMPT_TOO_LONG", "token_ids: leave no room for output");
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<TokenId>> AdminService::TokensOf(
    const v1::PinPrefixRequest& request, grpc::CallbackServerContext* context) const {
  if (request.has_text()) {
    TextBudget budget(request.text().size(), [context] {
      return context->IsCancelled() ? CancelledByClient() : absl::OkStatus();
    });
    const bool adds_special_tokens =
        !request.has_add_special_tokens() || request.add_special_tokens();
    return parts_.model->tokenizer->Encode(
        request.text(), adds_special_tokens, request.parse_special_tokens(), &budget);
  }
  std::vector<TokenId> ids(request.token_ids().ids().begin(), request.token_ids().ids().end());
  QUIRE_RETURN_IF_ERROR(CheckTokenIds("token_ids", ids, *parts_.model));
  return ids;
}

void AdminService::Pin(const v1::PinPrefixRequest& request,
                       grpc::CallbackServerContext* context,
                       grpc::ServerUnaryReactor* reactor,
                       grpc::ByteBuffer* response) const {
  absl::StatusOr<std::vector<TokenId>> ids = TokensOf(request, context);
  if (ids.ok() && ids->empty()) {
    ids = InvalidArgument("EMPTY_PROMPT", "prefix: holds no token");
  }
  if (!ids.ok()) {
    reactor->Finish(ToPublicStatus(ids.status()));
    return;
  }
  const SavedPrefix prefix = {.token_ids = *std::move(ids), .cache_salt = request.cache_salt()};
  PinCall call;
  call.token_ids = prefix.token_ids;
  call.cache_salt = prefix.cache_salt;
  // gRPC keeps `reactor` and `response` alive until Finish, even if the client no longer waits.
  call.answer = [this, prefix, reactor, response](const absl::StatusOr<PrefixInfo>& info) {
    if (!info.ok()) {
      reactor->Finish(ToPublicStatus(info.status()));
      return;
    }
    v1::PinPrefixResponse message;
    Fill(*info, message.mutable_prefix());
    *response = SerializeMessage(message);
    if (store_ != nullptr) {
      store_->OnPinned(info->id, prefix);
    }
    FinishSaved(reactor);
  };
  if (const absl::Status added = parts_.inbox->Add(std::move(call)); !added.ok()) {
    reactor->Finish(ToPublicStatus(added));
  }
}

grpc::ServerUnaryReactor* AdminService::UnpinPrefix(grpc::CallbackServerContext* context,
                                                    const grpc::ByteBuffer* request,
                                                    grpc::ByteBuffer* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  v1::UnpinPrefixRequest message;
  const absl::Status parsed = ParseMessage(*request, &message);
  if (!parsed.ok()) {
    reactor->Finish(ToPublicStatus(parsed));
    return reactor;
  }
  LogCaller("operator asks to unpin a prefix", *context);
  const RequestId id(message.prefix_id());
  parts_.inbox->Post(
      UnpinCall{.id = id, .answer = [this, id, reactor, response](const absl::Status& status) {
                  if (!status.ok()) {
                    reactor->Finish(ToPublicStatus(status));
                    return;
                  }
                  *response = SerializeMessage(v1::UnpinPrefixResponse());
                  if (store_ != nullptr) {
                    store_->OnUnpinned(id);
                  }
                  FinishSaved(reactor);
                }});
  return reactor;
}

void AdminService::FinishSaved(grpc::ServerUnaryReactor* reactor) const {
  if (store_ == nullptr) {
    reactor->Finish(grpc::Status::OK);
    return;
  }
  store_->SaveLater(
      [reactor](const absl::Status& saved) { reactor->Finish(ToPublicStatus(saved)); });
}

void AdminService::RestorePrefixes() {
  for (const SavedPrefix& prefix : store_->prefixes()) {
    absl::Status status = CheckTokenIds("token_ids", prefix.token_ids, *parts_.model);
    if (status.ok()) {
      status = CheckCacheSalt(prefix.cache_salt);
    }
    const auto answer = [this, prefix](const absl::StatusOr<PrefixInfo>& info) {
      if (info.ok()) {
        store_->OnPinned(info->id, prefix);
      } else if (ReasonOf(info.status()) == "UNPINNED") {
        store_->Forget(prefix);
      } else if (ReasonOf(info.status()) == "WORKER_CRASH") {
        LogWarning("a pinned prefix crashed its workers and is no longer pinned",
                   {{"cause", info.status().ToString()}});
        store_->Forget(prefix);
        store_->SaveLater([](const absl::Status& saved) {
          if (!saved.ok()) {
            LogWarning("pinned prefixes could not be saved",
                       {{"cause", std::string(saved.message())}});
          }
        });
      } else {
        LogWarning("a saved prefix could not be pinned; it stays in the file",
                   {{"cause", info.status().ToString()}});
      }
    };
    if (status.ok()) {
      status = parts_.inbox->Add(PinCall{.id = {},
                                         .token_ids = prefix.token_ids,
                                         .cache_salt = prefix.cache_salt,
                                         .waits_for_workers = true,
                                         .answer = answer});
    }
    if (!status.ok()) {
      answer(status);
    }
  }
}

grpc::ServerUnaryReactor* AdminService::ListPrefixes(grpc::CallbackServerContext* context,
                                                     const grpc::ByteBuffer* request,
                                                     grpc::ByteBuffer* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  v1::ListPrefixesRequest message;
  const absl::Status parsed = ParseMessage(*request, &message);
  if (!parsed.ok()) {
    reactor->Finish(ToPublicStatus(parsed));
    return reactor;
  }
  parts_.inbox->Post(
      ListPrefixesCall{.answer = [reactor, response](const std::vector<PrefixInfo>& prefixes) {
        v1::ListPrefixesResponse answer;
        for (const PrefixInfo& info : prefixes) {
          Fill(info, answer.add_prefixes());
        }
        *response = SerializeMessage(answer);
        reactor->Finish(grpc::Status::OK);
      }});
  return reactor;
}

grpc::ServerUnaryReactor* AdminService::GetLoad(grpc::CallbackServerContext* context,
                                                const grpc::ByteBuffer* request,
                                                grpc::ByteBuffer* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  v1::GetLoadRequest message;
  const absl::Status parsed = ParseMessage(*request, &message);
  if (parsed.ok()) {
    *response = SerializeMessage(LoadMessage(parts_.state->Get()));
  }
  reactor->Finish(ToPublicStatus(parsed));
  return reactor;
}

grpc::ServerUnaryReactor* AdminService::GetState(grpc::CallbackServerContext* context,
                                                 const grpc::ByteBuffer* request,
                                                 grpc::ByteBuffer* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  v1::GetStateRequest message;
  const absl::Status parsed = ParseMessage(*request, &message);
  if (!parsed.ok()) {
    reactor->Finish(ToPublicStatus(parsed));
    return reactor;
  }
  state_answers_.Get(SteadyNow(), [reactor, response](const grpc::ByteBuffer& answer) {
    *response = answer;
    reactor->Finish(grpc::Status::OK);
  });
  return reactor;
}

}  // namespace quire
