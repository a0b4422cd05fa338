#include "common/wire/step_codec.h"

#include <cstring>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"

#include "common/base/error.h"
#include "common/base/fold_hash.h"
#include "common/base/status_macros.h"
#include "common/base/string_view.h"

namespace quire {
namespace {

using Column = google::protobuf::RepeatedField<uint32_t>;

absl::Status Malformed(std::string_view field, std::string_view rule, int64_t got, int64_t want) {
  return InvalidArgument(
      "MALFORMED_PROTO",
      absl::StrCat(ToAbsl(field), ": ", ToAbsl(rule), " (got ", got, ", expected ", want, ")"));
}

absl::Status CheckLength(std::string_view field, int got, int want) {
  return got == want ? absl::OkStatus() : Malformed(field, "wrong column length", got, want);
}

// Checks that the counts add up to `want`, the length of the column that they cut into parts.
absl::Status CheckSum(std::string_view field, const Column& counts, int want) {
  uint64_t sum = 0;  // cannot overflow: at most 2^31 entries below 2^32
  for (uint32_t count : counts) {
    sum += count;
  }
  return sum == static_cast<uint64_t>(want)
             ? absl::OkStatus()
             : Malformed(field, "wrong sum of counts", static_cast<int64_t>(sum), want);
}

// Checks that slice indices ascend and are below num_slices.
absl::Status CheckIndices(std::string_view field, const Column& indices, int num_slices) {
  for (int i = 0; i < indices.size(); ++i) {
    const uint32_t slice = indices[i];
    if (slice >= static_cast<uint32_t>(num_slices) || (i > 0 && slice <= indices[i - 1])) {
      return Malformed(field, "must ascend and be below the number of slices", slice, num_slices);
    }
  }
  return absl::OkStatus();
}

// Hashes a column's bytes, two numbers in each 64-bit word.
template <typename T>
void AddColumn(const google::protobuf::RepeatedField<T>& column, FoldHash& digest) {
  static_assert(sizeof(T) == sizeof(uint32_t));
  digest.AddBytes({reinterpret_cast<const char*>(column.data()),
                   static_cast<size_t>(column.size()) * sizeof(T)});
}

// Appends the values to the column. Negative numbers are sent as their two's complement.
template <typename T>
void Append(const std::vector<T>& values, Column* column) {
  static_assert(sizeof(T) == sizeof(uint32_t));
  if (values.empty()) {
    return;
  }
  int old_size = column->size();
  column->Resize(old_size + static_cast<int>(values.size()), 0);
  std::memcpy(column->mutable_data() + old_size, values.data(), values.size() * sizeof(T));
}

template <typename T>
std::vector<T> Extract(const Column& column, int first, int count) {
  static_assert(sizeof(T) == sizeof(uint32_t));
  std::vector<T> values(static_cast<size_t>(count));
  if (count > 0) {
    std::memcpy(values.data(), column.data() + first, values.size() * sizeof(T));
  }
  return values;
}

template <typename T>
std::vector<T> Extract(const Column& column) {
  return Extract<T>(column, 0, column.size());
}

void EncodeSampling(const SamplingParams& params, v1::WorkerSampling* message) {
  message->set_temperature(params.temperature);
  message->set_top_k(params.top_k);
  message->set_top_p(params.top_p);
  message->set_min_p(params.min_p);
  message->set_repetition_penalty(params.repetition_penalty);
  message->set_presence_penalty(params.presence_penalty);
  message->set_frequency_penalty(params.frequency_penalty);
  for (const auto& [token_id, bias] : params.logit_bias) {
    message->add_bias_token_ids(static_cast<uint32_t>(token_id));
    message->add_bias_values(bias);
  }
  message->set_num_logprobs(params.num_logprobs);
  message->set_num_prompt_logprobs(params.num_prompt_logprobs);
  message->set_min_tokens(params.min_tokens);
  Append(params.banned_before_min_tokens, message->mutable_banned_before_min_tokens());
  message->set_seed(params.seed);
}

absl::StatusOr<SamplingParams> DecodeSampling(const v1::WorkerSampling& message) {
  QUIRE_RETURN_IF_ERROR(CheckLength("introductions.sampling.bias_values",
                                    message.bias_values_size(),
                                    message.bias_token_ids_size()));
  SamplingParams params;
  params.temperature = message.temperature();
  params.top_k = message.top_k();
  params.top_p = message.top_p();
  params.min_p = message.min_p();
  params.repetition_penalty = message.repetition_penalty();
  params.presence_penalty = message.presence_penalty();
  params.frequency_penalty = message.frequency_penalty();
  params.logit_bias.reserve(static_cast<size_t>(message.bias_values_size()));
  for (int i = 0; i < message.bias_values_size(); ++i) {
    params.logit_bias.emplace_back(static_cast<TokenId>(message.bias_token_ids(i)),
                                   message.bias_values(i));
  }
  params.num_logprobs = message.num_logprobs();
  params.num_prompt_logprobs = message.num_prompt_logprobs();
  params.min_tokens = message.min_tokens();
  params.banned_before_min_tokens = Extract<TokenId>(message.banned_before_min_tokens());
  params.seed = message.seed();
  return params;
}

void EncodeIntroduction(const SequenceIntroduction& introduction,
                        v1::SequenceIntroduction* message) {
  message->set_handle(introduction.handle);
  Append(introduction.token_ids, message->mutable_token_ids());
  message->set_num_prompt_tokens(introduction.num_prompt_tokens);
  message->set_num_computed_tokens(introduction.num_computed_tokens);
  Append(introduction.block_ids, message->mutable_block_ids());
  message->set_sequence_index(introduction.sequence_index);
  EncodeSampling(introduction.sampling, message->mutable_sampling());
}

absl::StatusOr<SequenceIntroduction> DecodeIntroduction(const v1::SequenceIntroduction& message) {
  SequenceIntroduction introduction;
  introduction.handle = message.handle();
  introduction.token_ids = Extract<TokenId>(message.token_ids());
  introduction.num_prompt_tokens = message.num_prompt_tokens();
  introduction.num_computed_tokens = message.num_computed_tokens();
  introduction.block_ids = Extract<BlockId>(message.block_ids());
  introduction.sequence_index = message.sequence_index();
  QUIRE_ASSIGN_OR_RETURN(introduction.sampling, DecodeSampling(message.sampling()));
  return introduction;
}

absl::Status CheckColumns(const v1::StepRequest& request) {
  QUIRE_RETURN_IF_ERROR(CheckLength(
      "swap_out_host_block", request.swap_out_host_block_size(), request.swap_out_block_size()));
  QUIRE_RETURN_IF_ERROR(CheckLength(
      "swap_in_host_block", request.swap_in_host_block_size(), request.swap_in_block_size()));
  QUIRE_RETURN_IF_ERROR(CheckLength(
      "swap_in_generation", request.swap_in_generation_size(), request.swap_in_block_size()));
  QUIRE_RETURN_IF_ERROR(CheckLength("copy_dst", request.copy_dst_size(), request.copy_src_size()));
  int slices = request.slice_handle_size();
  QUIRE_RETURN_IF_ERROR(CheckLength("slice_num_tokens", request.slice_num_tokens_size(), slices));
  QUIRE_RETURN_IF_ERROR(
      CheckLength("slice_num_new_blocks", request.slice_num_new_blocks_size(), slices));
  QUIRE_RETURN_IF_ERROR(CheckSum(
      "slice_num_new_blocks", request.slice_num_new_blocks(), request.new_block_ids_size()));
  QUIRE_RETURN_IF_ERROR(
      CheckLength("forced_token_id", request.forced_token_id_size(), request.forced_slice_size()));
  QUIRE_RETURN_IF_ERROR(CheckIndices("forced_slice", request.forced_slice(), slices));
  QUIRE_RETURN_IF_ERROR(
      CheckLength("next_block_id", request.next_block_id_size(), request.next_block_slice_size()));
  return CheckIndices("next_block_slice", request.next_block_slice(), slices);
}

absl::Status CheckScoredColumns(const v1::StepResponse& response) {
  const int slices = response.prompt_handle_size();
  QUIRE_RETURN_IF_ERROR(
      CheckLength("prompt_first_position", response.prompt_first_position_size(), slices));
  QUIRE_RETURN_IF_ERROR(
      CheckLength("prompt_num_tokens", response.prompt_num_tokens_size(), slices));
  QUIRE_RETURN_IF_ERROR(CheckLength("prompt_num_top", response.prompt_num_top_size(), slices));
  QUIRE_RETURN_IF_ERROR(
      CheckSum("prompt_num_tokens", response.prompt_num_tokens(), response.prompt_logprob_size()));
  QUIRE_RETURN_IF_ERROR(CheckLength("prompt_top_logprob",
                                    response.prompt_top_logprob_size(),
                                    response.prompt_top_token_id_size()));
  uint64_t num_top = 0;  // cannot overflow: the sum of prompt_num_tokens was checked above
  for (int i = 0; i < slices; ++i) {
    if (response.prompt_num_top(i) > static_cast<uint32_t>(kMaxLogprobs)) {
      return Malformed("prompt_num_top", "too many", response.prompt_num_top(i), kMaxLogprobs);
    }
    num_top += uint64_t{response.prompt_num_tokens(i)} * response.prompt_num_top(i);
  }
  return num_top == static_cast<uint64_t>(response.prompt_top_token_id_size())
             ? absl::OkStatus()
             : Malformed("prompt_top_token_id",
                         "wrong column length",
                         response.prompt_top_token_id_size(),
                         static_cast<int64_t>(num_top));
}

absl::Status CheckColumns(const v1::StepResponse& response) {
  int rows = response.handle_size();
  QUIRE_RETURN_IF_ERROR(CheckLength("token_id", response.token_id_size(), rows));
  QUIRE_RETURN_IF_ERROR(CheckLength("logprob", response.logprob_size(), rows));
  QUIRE_RETURN_IF_ERROR(CheckLength("finite", response.finite_size(), rows));
  QUIRE_RETURN_IF_ERROR(CheckLength("num_top", response.num_top_size(), rows));
  QUIRE_RETURN_IF_ERROR(
      CheckLength("top_logprob", response.top_logprob_size(), response.top_token_id_size()));
  QUIRE_RETURN_IF_ERROR(CheckSum("num_top", response.num_top(), response.top_token_id_size()));
  return CheckScoredColumns(response);
}

template <typename Message>
StepHeader HeaderOf(const Message& message) {
  return {.scheduler_incarnation = message.scheduler_incarnation(),
          .group_epoch = message.group_epoch(),
          .step_id = message.step_id()};
}

template <typename Message>
void SetHeader(const StepHeader& header, uint64_t digest, Message* message) {
  message->set_scheduler_incarnation(header.scheduler_incarnation);
  message->set_group_epoch(header.group_epoch);
  message->set_step_id(header.step_id);
  message->set_plan_digest(digest);
}

void EncodeSwaps(const StepPlan& plan, v1::StepRequest* request) {
  for (const BlockSwapOut& swap : plan.swap_outs) {
    request->add_swap_out_block(static_cast<uint32_t>(swap.block));
    request->add_swap_out_host_block(static_cast<uint32_t>(swap.host_block));
  }
  for (const BlockSwapIn& swap : plan.swap_ins) {
    request->add_swap_in_block(static_cast<uint32_t>(swap.block));
    request->add_swap_in_host_block(static_cast<uint32_t>(swap.host_block));
    request->add_swap_in_generation(swap.generation);
  }
}

// REQUIRES: the columns of swap-outs have equal lengths, and so do the columns of swap-ins.
void DecodeSwaps(const v1::StepRequest& request, StepPlan* plan) {
  plan->swap_outs.reserve(static_cast<size_t>(request.swap_out_block_size()));
  for (int i = 0; i < request.swap_out_block_size(); ++i) {
    plan->swap_outs.push_back(
        {.block = static_cast<BlockId>(request.swap_out_block(i)),
         .host_block = static_cast<HostBlockId>(request.swap_out_host_block(i))});
  }
  plan->swap_ins.reserve(static_cast<size_t>(request.swap_in_block_size()));
  for (int i = 0; i < request.swap_in_block_size(); ++i) {
    plan->swap_ins.push_back({.block = static_cast<BlockId>(request.swap_in_block(i)),
                              .host_block = static_cast<HostBlockId>(request.swap_in_host_block(i)),
                              .generation = request.swap_in_generation(i)});
  }
}

void EncodeSlices(const std::vector<SequenceSlice>& slices, v1::StepRequest* request) {
  int count = static_cast<int>(slices.size());
  request->mutable_slice_handle()->Reserve(count);
  request->mutable_slice_num_tokens()->Reserve(count);
  request->mutable_slice_num_new_blocks()->Reserve(count);
  for (const SequenceSlice& slice : slices) {
    request->add_slice_handle(slice.handle);
    request->add_slice_num_tokens(static_cast<uint32_t>(slice.num_tokens));
    request->add_slice_num_new_blocks(static_cast<uint32_t>(slice.new_block_ids.size()));
    Append(slice.new_block_ids, request->mutable_new_block_ids());
    if (slice.forced_token_id.has_value()) {
      request->add_forced_slice(static_cast<uint32_t>(request->slice_handle_size() - 1));
      request->add_forced_token_id(static_cast<uint32_t>(*slice.forced_token_id));
    }
    if (slice.next_block_id.has_value()) {
      request->add_next_block_slice(static_cast<uint32_t>(request->slice_handle_size() - 1));
      request->add_next_block_id(static_cast<uint32_t>(*slice.next_block_id));
    }
  }
}

}  // namespace

void EncodePlan(const StepPlan& plan, v1::StepRequest* request) {
  request->Clear();
  SetHeader(plan.header, plan.digest, request);
  EncodeSwaps(plan, request);
  for (const BlockCopy& copy : plan.copies) {
    request->add_copy_src(static_cast<uint32_t>(copy.src));
    request->add_copy_dst(static_cast<uint32_t>(copy.dst));
  }
  for (const SequenceIntroduction& introduction : plan.introductions) {
    EncodeIntroduction(introduction, request->add_introductions());
  }
  EncodeSlices(plan.slices, request);
  Append(plan.releases, request->mutable_releases());
  if (!plan.spare.block_ids.empty()) {
    request->set_spare_handle(plan.spare.handle);
    Append(plan.spare.block_ids, request->mutable_spare_block_ids());
  }
}

absl::StatusOr<StepPlan> DecodePlan(const v1::StepRequest& request) {
  QUIRE_RETURN_IF_ERROR(CheckColumns(request));
  StepPlan plan;
  plan.header = HeaderOf(request);
  plan.digest = request.plan_digest();
  DecodeSwaps(request, &plan);
  plan.copies.reserve(static_cast<size_t>(request.copy_src_size()));
  for (int i = 0; i < request.copy_src_size(); ++i) {
    plan.copies.push_back({.src = static_cast<BlockId>(request.copy_src(i)),
                           .dst = static_cast<BlockId>(request.copy_dst(i))});
  }
  plan.introductions.reserve(static_cast<size_t>(request.introductions_size()));
  for (const v1::SequenceIntroduction& message : request.introductions()) {
    QUIRE_ASSIGN_OR_RETURN(SequenceIntroduction introduction, DecodeIntroduction(message));
    plan.introductions.push_back(std::move(introduction));
  }
  plan.slices.reserve(static_cast<size_t>(request.slice_handle_size()));
  int next_block = 0;
  for (int i = 0; i < request.slice_handle_size(); ++i) {
    int num_blocks = static_cast<int>(request.slice_num_new_blocks(i));
    plan.slices.push_back(
        {.handle = request.slice_handle(i),
         .num_tokens = static_cast<int32_t>(request.slice_num_tokens(i)),
         .new_block_ids = Extract<BlockId>(request.new_block_ids(), next_block, num_blocks)});
    next_block += num_blocks;
  }
  for (int i = 0; i < request.forced_slice_size(); ++i) {
    plan.slices[request.forced_slice(i)].forced_token_id =
        static_cast<TokenId>(request.forced_token_id(i));
  }
  for (int i = 0; i < request.next_block_slice_size(); ++i) {
    plan.slices[request.next_block_slice(i)].next_block_id =
        static_cast<BlockId>(request.next_block_id(i));
  }
  plan.releases = Extract<SequenceHandle>(request.releases());
  plan.spare = {.handle = request.spare_handle(),
                .block_ids = Extract<BlockId>(request.spare_block_ids())};
  return plan;
}

uint64_t DigestOf(const v1::StepResponse& response) {
  FoldHash digest;
  digest.Add(response.scheduler_incarnation());
  digest.Add(response.group_epoch());
  digest.Add(response.step_id());
  digest.Add(response.plan_digest());
  AddColumn(response.handle(), digest);
  AddColumn(response.token_id(), digest);
  AddColumn(response.logprob(), digest);
  AddColumn(response.finite(), digest);
  AddColumn(response.num_top(), digest);
  AddColumn(response.top_token_id(), digest);
  AddColumn(response.top_logprob(), digest);
  AddColumn(response.prompt_handle(), digest);
  AddColumn(response.prompt_first_position(), digest);
  AddColumn(response.prompt_num_tokens(), digest);
  AddColumn(response.prompt_num_top(), digest);
  AddColumn(response.prompt_logprob(), digest);
  AddColumn(response.prompt_top_token_id(), digest);
  AddColumn(response.prompt_top_logprob(), digest);
  AddColumn(response.failed_swap_in_block(), digest);
  digest.Add(response.swaps_done_step_id());
  digest.Add(response.row_hash());
  digest.AddInt(response.build_us());
  digest.AddInt(response.forward_us());
  digest.AddInt(response.sample_us());
  digest.AddInt(response.collective_us());
  return digest.value();
}

namespace {

void EncodeScored(const std::vector<ScoredSlice>& scored, v1::StepResponse* response) {
  for (const ScoredSlice& slice : scored) {
    const PromptLogprobs& prompt = slice.prompt;
    response->add_prompt_handle(slice.handle);
    response->add_prompt_first_position(static_cast<uint32_t>(prompt.first_position));
    response->add_prompt_num_tokens(static_cast<uint32_t>(prompt.num_tokens()));
    response->add_prompt_num_top(static_cast<uint32_t>(prompt.num_top));
    response->mutable_prompt_logprob()->Add(prompt.logprobs.begin(), prompt.logprobs.end());
    for (const TokenLogprob& top : prompt.top) {
      response->add_prompt_top_token_id(static_cast<uint32_t>(top.token_id));
      response->add_prompt_top_logprob(top.logprob);
    }
  }
}

// REQUIRES: CheckScoredColumns(response) is OK.
std::vector<ScoredSlice> DecodeScored(const v1::StepResponse& response) {
  std::vector<ScoredSlice> scored(static_cast<size_t>(response.prompt_handle_size()));
  auto logprob = response.prompt_logprob().begin();
  int next_top = 0;
  for (int i = 0; i < response.prompt_handle_size(); ++i) {
    PromptLogprobs& prompt = scored[static_cast<size_t>(i)].prompt;
    scored[static_cast<size_t>(i)].handle = response.prompt_handle(i);
    prompt.first_position = static_cast<int32_t>(response.prompt_first_position(i));
    prompt.num_top = static_cast<int32_t>(response.prompt_num_top(i));
    const auto end = logprob + static_cast<std::ptrdiff_t>(response.prompt_num_tokens(i));
    prompt.logprobs.assign(logprob, end);
    logprob = end;
    for (int k = prompt.num_tokens() * prompt.num_top; k > 0; --k, ++next_top) {
      prompt.top.push_back(
          {.token_id = static_cast<TokenId>(response.prompt_top_token_id(next_top)),
           .logprob = response.prompt_top_logprob(next_top)});
    }
  }
  return scored;
}

}  // namespace

void EncodeResult(const StepResult& result, v1::StepResponse* response) {
  response->Clear();
  SetHeader(result.header, result.plan_digest, response);
  for (const SampledToken& sampled : result.sampled) {
    response->add_handle(sampled.handle);
    response->add_token_id(static_cast<uint32_t>(sampled.token_id));
    response->add_logprob(sampled.logprob);
    response->add_finite(sampled.finite ? 1 : 0);
    response->add_num_top(static_cast<uint32_t>(sampled.top_logprobs.size()));
    for (const TokenLogprob& top : sampled.top_logprobs) {
      response->add_top_token_id(static_cast<uint32_t>(top.token_id));
      response->add_top_logprob(top.logprob);
    }
  }
  EncodeScored(result.scored, response);
  Append(result.failed_swap_ins, response->mutable_failed_swap_in_block());
  response->set_swaps_done_step_id(result.swaps_done_step_id);
  response->set_row_hash(result.row_hash);
  response->set_build_us(result.timings.build_us);
  response->set_forward_us(result.timings.forward_us);
  response->set_sample_us(result.timings.sample_us);
  response->set_collective_us(result.timings.collective_us);
  response->set_result_digest(DigestOf(*response));
}

absl::StatusOr<StepResult> DecodeResult(const v1::StepResponse& response) {
  QUIRE_RETURN_IF_ERROR(CheckColumns(response));
  // HTTP/2 has no checksum, so without this check a damaged token could get into an answer.
  if (response.result_digest() != DigestOf(response)) {
    return Error(
        absl::StatusCode::kDataLoss, "DAMAGED", "result_digest: does not match the result");
  }
  StepResult result;
  result.header = HeaderOf(response);
  result.plan_digest = response.plan_digest();
  result.row_hash = response.row_hash();
  result.sampled.resize(static_cast<size_t>(response.handle_size()));
  int next_top = 0;
  for (int i = 0; i < response.handle_size(); ++i) {
    SampledToken& sampled = result.sampled[static_cast<size_t>(i)];
    sampled.handle = response.handle(i);
    sampled.token_id = static_cast<TokenId>(response.token_id(i));
    sampled.logprob = response.logprob(i);
    sampled.finite = response.finite(i) != 0;
    for (uint32_t k = 0; k < response.num_top(i); ++k, ++next_top) {
      sampled.top_logprobs.push_back(
          {.token_id = static_cast<TokenId>(response.top_token_id(next_top)),
           .logprob = response.top_logprob(next_top)});
    }
  }
  result.scored = DecodeScored(response);
  result.failed_swap_ins = Extract<BlockId>(response.failed_swap_in_block());
  result.swaps_done_step_id = response.swaps_done_step_id();
  result.timings = {.build_us = response.build_us(),
                    .forward_us = response.forward_us(),
                    .sample_us = response.sample_us(),
                    .collective_us = response.collective_us()};
  return result;
}

}  // namespace quire
