#include "deploy/gateway/prompt_list.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

#include "common/base/error.h"
#include "common/base/ids.h"
#include "common/base/status_macros.h"

namespace quire {
namespace {

absl::Status Refusal(
    std::string_view reason, const char* rule, size_t item, int64_t got, int64_t limit) {
  return InvalidArgument(
      reason, absl::StrCat(rule, " (item ", item, ", got ", got, ", limit ", limit, ")"));
}

// Checks ids that the client sent. Ids from the tokenizer need no check.
absl::Status CheckIds(const ModelGate::Served& served,
                      const std::vector<TokenId>& ids,
                      size_t item) {
  const absl::StatusOr<const Tokenizer*> tokenizer = served.model->tokenizer();
  const int32_t vocab_size = served.info->vocab_size();
  const auto is_known = [&](TokenId id) {
    return id >= 0 && id < vocab_size && (!tokenizer.ok() || (*tokenizer)->IsValidId(id));
  };
  const auto unknown = std::ranges::find_if_not(ids, is_known);
  return unknown == ids.end() ? absl::OkStatus()
                              : Refusal("TOKEN_ID_RANGE",
                                        "prompt: not a token of the model",
                                        item,
                                        *unknown,
                                        vocab_size - 1);
}

// Called before tokenizing, so that errors come in the same order as the scheduler's.
absl::Status CheckMaxTokens(const v1::StoppingParams& stopping, int64_t context) {
  const int32_t max_tokens = stopping.max_tokens();
  if (!stopping.has_max_tokens() || (max_tokens >= 1 && max_tokens <= context)) {
    return absl::OkStatus();
  }
  return InvalidArgument("MAX_TOKENS_RANGE",
                         absl::StrCat("stopping.max_tokens: must be in [1, limit] (got ",
                                      max_tokens,
                                      ", limit ",
                                      context,
                                      ")"));
}

absl::Status CheckLength(const ModelGate::Served& served,
                         const v1::StoppingParams& stopping,
                         int64_t length,
                         size_t item) {
  const int64_t context = served.info->max_model_len_tokens();
  if (length == 0) {
    return Refusal("EMPTY_PROMPT", "prompt: holds no token", item, 0, context - 1);
  }
  if (length >= context) {
    return Refusal("PROMPT_TOO_LONG",
                   "prompt: its tokens leave no room for output",
                   item,
                   length,
                   context - 1);
  }
  if (length + stopping.max_tokens() > context) {
    return Refusal("CONTEXT_EXCEEDED",
                   "stopping.max_tokens: prompt and output exceed the context",
                   item,
                   length + stopping.max_tokens(),
                   context);
  }
  if (length + stopping.min_tokens() > context) {
    return Refusal("MIN_TOKENS_RANGE",
                   "stopping.min_tokens: prompt and output exceed the context",
                   item,
                   length + stopping.min_tokens(),
                   context);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status TokenizePrompts(const ModelGate::Served& served, CompletionRequest& request) {
  if (request.requests.size() == 1) {
    return absl::OkStatus();
  }
  QUIRE_RETURN_IF_ERROR(
      CheckMaxTokens(request.requests.front().stopping(), served.info->max_model_len_tokens()));
  for (size_t item = 0; item < request.requests.size(); ++item) {
    v1::GenerateRequest& prompt = request.requests[item];
    std::vector<TokenId> tokens = request.options.prompts[item].token_ids;
    if (!prompt.has_text()) {
      QUIRE_RETURN_IF_ERROR(CheckIds(served, tokens, item));
    } else if (tokens.empty()) {
      QUIRE_ASSIGN_OR_RETURN(
          tokens,
          served.model->Encode(
              prompt.text(), prompt.add_special_tokens(), prompt.parse_special_tokens()));
    }
    QUIRE_RETURN_IF_ERROR(
        CheckLength(served, prompt.stopping(), static_cast<int64_t>(tokens.size()), item));
    if (prompt.has_text()) {
      prompt.clear_text();
      prompt.mutable_token_ids()->mutable_ids()->Add(tokens.begin(), tokens.end());
    }
  }
  return absl::OkStatus();
}

}  // namespace quire
