#include "common/model/sampling_params_check.h"

#include <cmath>
#include <string>
#include <string_view>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"

#include "common/base/error.h"
#include "common/base/shortest_decimal.h"
#include "common/base/status_macros.h"
#include "common/base/string_view.h"

namespace quire {
namespace {

struct Range {
  std::string_view field;
  std::string_view reason;
  float value;
  float low;
  float high;
  bool low_open = false;  // true: a value equal to low is refused
};

absl::Status CheckRange(const Range& r) {
  bool inside = std::isfinite(r.value) && r.value <= r.high &&
                (r.low_open ? r.value > r.low : r.value >= r.low);
  if (inside) {
    return absl::OkStatus();
  }
  return InvalidArgument(r.reason,
                         absl::StrCat("sampling.",
                                      ToAbsl(r.field),
                                      ": must be in ",
                                      r.low_open ? "(" : "[",
                                      r.low,
                                      ", ",
                                      r.high,
                                      "] (got ",
                                      ShortestDecimal(r.value),
                                      ")"));
}

absl::Status CheckLogitBias(const SamplingParams& params, int32_t vocab_size) {
  if (params.logit_bias.size() > static_cast<size_t>(kMaxLogitBias)) {
    return InvalidArgument("LOGIT_BIAS",
                           absl::StrCat("sampling.logit_bias: too many entries (got ",
                                        params.logit_bias.size(),
                                        ", limit ",
                                        kMaxLogitBias,
                                        ")"));
  }
  absl::flat_hash_set<TokenId> seen;
  int32_t num_banned = 0;
  for (const auto& [token, bias] : params.logit_bias) {
    if (token < 0 || token >= vocab_size) {
      return InvalidArgument("LOGIT_BIAS",
                             absl::StrCat("sampling.logit_bias: token id out of range (got ",
                                          token,
                                          ", limit ",
                                          vocab_size - 1,
                                          ")"));
    }
    if (!seen.insert(token).second) {
      return InvalidArgument("LOGIT_BIAS", "sampling.logit_bias: token id given twice");
    }
    if (!std::isfinite(bias) || bias < -100.0F || bias > 100.0F) {
      return InvalidArgument("LOGIT_BIAS", "sampling.logit_bias: bias must be in [-100, 100]");
    }
    num_banned += bias <= -100.0F ? 1 : 0;
  }
  if (num_banned >= vocab_size) {
    return InvalidArgument("NO_TOKEN_ALLOWED",
                           "sampling.logit_bias: leaves no token that can be sampled");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status Validate(const SamplingParams& params, int32_t vocab_size) {
  QUIRE_RETURN_IF_ERROR(
      CheckRange({"temperature", "TEMPERATURE_RANGE", params.temperature, 0.0F, kMaxTemperature}));
  QUIRE_RETURN_IF_ERROR(CheckRange({"top_p", "TOP_P_RANGE", params.top_p, 0.0F, 1.0F, true}));
  QUIRE_RETURN_IF_ERROR(CheckRange({"min_p", "MIN_P_RANGE", params.min_p, 0.0F, 1.0F}));
  // A repetition penalty below 0.01 could make a logit infinite, and the row of logits would be
  // treated as non-finite.
  QUIRE_RETURN_IF_ERROR(CheckRange(
      {"repetition_penalty", "PENALTY_RANGE", params.repetition_penalty, 0.01F, 100.0F}));
  QUIRE_RETURN_IF_ERROR(
      CheckRange({"presence_penalty", "PENALTY_RANGE", params.presence_penalty, -2.0F, 2.0F}));
  QUIRE_RETURN_IF_ERROR(
      CheckRange({"frequency_penalty", "PENALTY_RANGE", params.frequency_penalty, -2.0F, 2.0F}));
  if (params.top_k < 0 || params.top_k > vocab_size) {
    return InvalidArgument("TOP_K_RANGE",
                           absl::StrCat("sampling.top_k: must be in [0, vocab] (got ",
                                        params.top_k,
                                        ", limit ",
                                        vocab_size,
                                        ")"));
  }
  if (params.num_logprobs < -1 || params.num_logprobs > kMaxLogprobs) {
    return InvalidArgument("LOGPROBS_RANGE",
                           absl::StrCat("sampling.logprobs: must be in [0, ",
                                        kMaxLogprobs,
                                        "] (got ",
                                        params.num_logprobs,
                                        ")"));
  }
  if (params.num_prompt_logprobs < -1 || params.num_prompt_logprobs > kMaxLogprobs) {
    return InvalidArgument("LOGPROBS_RANGE",
                           absl::StrCat("sampling.prompt_logprobs: must be in [0, ",
                                        kMaxLogprobs,
                                        "] (got ",
                                        params.num_prompt_logprobs,
                                        ")"));
  }
  for (TokenId token : params.banned_before_min_tokens) {
    if (token < 0 || token >= vocab_size) {
      return InvalidArgument("TOKEN_ID_RANGE",
                             absl::StrCat("stopping.stop_token_ids: token id out of range (got ",
                                          token,
                                          ", limit ",
                                          vocab_size - 1,
                                          ")"));
    }
  }
  return CheckLogitBias(params, vocab_size);
}

}  // namespace quire
