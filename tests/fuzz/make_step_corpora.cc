// Plans and results of steps.
#include <string>
#include <utility>

#include "common/wire/step_codec.h"
#include "tests/common/step/random_plan.h"
#include "tests/fuzz/message_corpora.h"

namespace {

constexpr int kNumRandom = 4;

void WritePlan(const std::string& name, const quire::StepPlan& plan) {
  quire::v1::StepRequest request;
  quire::EncodePlan(plan, &request);
  quire::WriteSeed("step_plan", name, request.SerializeAsString());
}

// A plan within the limits and for the sequences of step_plan_fuzz.cc.
quire::StepPlan AllowedPlan() {
  quire::StepPlan plan{.header = {.scheduler_incarnation = 1, .group_epoch = 2, .step_id = 3}};
  plan.swap_outs = {{.block = 5, .host_block = 0}};
  plan.swap_ins = {{.block = 6, .host_block = 1, .generation = 2}};
  plan.copies = {{.src = 2, .dst = 7}};
  plan.introductions = {{.handle = 2,
                         .token_ids = {1, 2, 3, 4, 5},
                         .num_prompt_tokens = 4,
                         .num_computed_tokens = 4,
                         .block_ids = {9}}};
  plan.introductions[0].sampling.logit_bias = {{3, 1.0F}};
  plan.slices = {{.handle = 0, .num_tokens = 7, .new_block_ids = {4, 8}},
                 {.handle = 1, .num_tokens = 1, .new_block_ids = {}, .forced_token_id = 5},
                 {.handle = 2, .num_tokens = 1, .new_block_ids = {10}}};
  plan.slices[1].next_block_id = 11;
  plan.releases = {1};
  return plan;
}

using SetPlanBound = void (*)(quire::StepPlan* plan, int past);
constexpr std::pair<const char*, SetPlanBound> kPlanBounds[] = {
    {"swap_out_block", [](auto* plan, int past) { plan->swap_outs[0].block = 11 + past; }},
    {"swap_out_null_block",
     [](auto* plan, int past) {
       plan->slices.erase(plan->slices.begin());  // which writes block 1
       plan->swap_outs[0].block = 1 - past;
     }},
    {"swap_out_host_block", [](auto* plan, int past) { plan->swap_outs[0].host_block = 3 + past; }},
    {"swap_in_block", [](auto* plan, int past) { plan->swap_ins[0].block = 11 + past; }},
    {"swap_in_host_block", [](auto* plan, int past) { plan->swap_ins[0].host_block = 3 + past; }},
    {"negative_host_block",
     [](auto* plan, int past) {
       plan->swap_outs[0].host_block = 2;
       plan->swap_ins[0].host_block = -past;
     }},
    {"copy_source", [](auto* plan, int past) { plan->copies[0].src = 11 + past; }},
    {"copy_target", [](auto* plan, int past) { plan->copies[0].dst = 11 + past; }},
    {"introduced_handle",
     [](auto* plan, int past) {
       plan->introductions[0].handle = 5U + static_cast<unsigned>(past);
       plan->slices[2].handle = plan->introductions[0].handle;
     }},
    {"introduced_token",
     [](auto* plan, int past) { plan->introductions[0].token_ids[0] = 49 + past; }},
    {"negative_token", [](auto* plan, int past) { plan->introductions[0].token_ids[0] = -past; }},
    {"prompt_tokens",
     [](auto* plan, int past) { plan->introductions[0].num_prompt_tokens = 5 + past; }},
    {"computed_tokens",
     [](auto* plan, int past) { plan->introductions[0].num_computed_tokens = 4 + past; }},
    {"introduced_block",
     [](auto* plan, int past) { plan->introductions[0].block_ids[0] = 11 + past; }},
    {"introduced_length",
     [](auto* plan, int past) {
       plan->introductions[0].token_ids.resize(32 + static_cast<size_t>(past), 1);
       plan->slices[2].num_tokens = 1;
     }},
    {"slice_block", [](auto* plan, int past) { plan->slices[0].new_block_ids[0] = 11 + past; }},
    {"slice_null_block",
     [](auto* plan, int past) {
       plan->slices.erase(plan->slices.begin());  // which writes block 1
       plan->slices[1].new_block_ids[0] = 1 - past;
     }},
    {"slice_tokens", [](auto* plan, int past) { plan->slices[0].num_tokens = 7 + past; }},
    {"forced_token", [](auto* plan, int past) { plan->slices[1].forced_token_id = 49 + past; }},
    {"next_block", [](auto* plan, int past) { plan->slices[1].next_block_id = 11 + past; }},
    {"next_null_block", [](auto* plan, int past) { plan->slices[1].next_block_id = 1 - past; }},
    {"released_handle", [](auto* plan, int past) { plan->releases = {past == 0 ? 2u : 6u}; }},
    {"released_once",
     [](auto* plan, int past) {
       plan->releases = {1, past == 0 ? 2U : 1U};
     }},
    {"introduced_once",
     [](auto* plan, int past) {
       plan->introductions.push_back(plan->introductions[0]);
       plan->introductions[1].handle = past == 0 ? 3 : 2;
     }},
    {"sliced_once", [](auto* plan, int past) { plan->slices[1].handle = past == 0 ? 1 : 0; }},
    {"swapped_in_elsewhere",
     [](auto* plan, int past) { plan->swap_ins[0].block = past == 0 ? 6 : 5; }},
    {"host_block_swapped_once",
     [](auto* plan, int past) { plan->swap_ins[0].host_block = past == 0 ? 1 : 0; }},
    {"swapped_out_once",
     [](auto* plan, int past) {
       plan->swap_outs.push_back({.block = past == 0 ? 11 : 5, .host_block = 2});
     }},
    {"swapped_in_once",
     [](auto* plan, int past) {
       plan->swap_ins.push_back({.block = past == 0 ? 11 : 6, .host_block = 2});
     }},
    {"copied_into_once",
     [](auto* plan, int past) { plan->copies.push_back({.src = 3, .dst = past == 0 ? 11 : 7}); }},
    {"copied_from_no_target",
     [](auto* plan, int past) { plan->copies.push_back({.src = past == 0 ? 3 : 7, .dst = 11}); }},
    {"copied_into_no_swapped",
     [](auto* plan, int past) { plan->copies[0].dst = past == 0 ? 7 : 6; }},
    {"written_by_one",
     [](auto* plan, int past) { plan->slices[2].new_block_ids[0] = past == 0 ? 10 : 4; }},
    {"written_while_it_stays",
     [](auto* plan, int past) { plan->swap_outs[0].block = past == 0 ? 5 : 8; }},
    {"once_in_a_table",
     [](auto* plan, int past) { plan->slices[2].new_block_ids[0] = past == 0 ? 10 : 9; }},
    {"capacity",
     [](auto* plan, int past) {
       plan->slices[0].new_block_ids.resize(2U - static_cast<unsigned>(past));
     }},
    {"tokens_of_a_step",
     [](auto* plan, int past) {
       plan->introductions[0].token_ids.resize(20, 1);
       plan->slices[2].num_tokens = 8 + past;
       plan->slices[2].new_block_ids = {10, 11, 7};
     }},
    {"context",
     [](auto* plan, int past) {
       plan->introductions[0].token_ids.resize(32, 1);
       plan->introductions[0].num_computed_tokens = 20;
       plan->introductions[0].block_ids = {1, 2, 3, 4, 8};
       plan->slices = {{.handle = 2, .num_tokens = 11 + past, .new_block_ids = {9, 10, 11}}};
     }},
    {"releases",
     [](auto* plan, int past) {
       for (uint32_t handle = 3; handle < 6; ++handle) {
         plan->introductions.push_back(
             {.handle = handle, .token_ids = {1}, .num_prompt_tokens = 1});
       }
       plan->releases = {0, 1, 2, 3, 4, 5};
       plan->releases.resize(6 + static_cast<size_t>(past), 5);
     }},
};

// Columns whose sizes disagree, which no encoder writes.
using SetRequestBound = void (*)(quire::v1::StepRequest* request);
constexpr std::pair<const char*, SetRequestBound> kRequestBounds[] = {
    {"swap_out_columns", [](auto* request) { request->add_swap_out_block(1); }},
    {"swap_in_columns", [](auto* request) { request->mutable_swap_in_host_block()->RemoveLast(); }},
    {"generations", [](auto* request) { request->mutable_swap_in_generation()->RemoveLast(); }},
    {"copy_columns", [](auto* request) { request->mutable_copy_dst()->RemoveLast(); }},
    {"token_columns", [](auto* request) { request->mutable_slice_num_tokens()->RemoveLast(); }},
    {"new_block_columns",
     [](auto* request) { request->mutable_slice_num_new_blocks()->RemoveLast(); }},
    {"new_blocks", [](auto* request) { request->mutable_new_block_ids()->RemoveLast(); }},
    {"new_blocks_of_32_bits",
     [](auto* request) {
       request->set_slice_num_new_blocks(0, 0xFFFFFFFF);
       request->set_slice_num_new_blocks(1, 3);
     }},
    {"forced_columns", [](auto* request) { request->mutable_forced_token_id()->RemoveLast(); }},
    {"forced_slice", [](auto* request) { request->set_forced_slice(0, 3); }},
    {"forced_once",
     [](auto* request) {
       request->add_forced_slice(1);
       request->add_forced_token_id(6);
     }},
    {"next_block_columns", [](auto* request) { request->mutable_next_block_id()->RemoveLast(); }},
    {"next_block_slice", [](auto* request) { request->set_next_block_slice(0, 3); }},
    {"next_block_once",
     [](auto* request) {
       request->add_next_block_slice(1);
       request->add_next_block_id(1);
     }},
    {"bias_columns",
     [](auto* request) {
       request->mutable_introductions(0)->mutable_sampling()->mutable_bias_values()->RemoveLast();
     }},
};

quire::StepResult AllowedResult() {
  quire::StepResult result{.header = {.scheduler_incarnation = 1, .group_epoch = 2, .step_id = 3}};
  result.sampled = {{.handle = 0, .token_id = 4, .top_logprobs = {{4, -1.0F}, {5, -2.0F}}},
                    {.handle = 1, .token_id = 5, .top_logprobs = {{5, -1.0F}}}};
  result.scored = {{.handle = 0,
                    .prompt = {.first_position = 3,
                               .num_top = 1,
                               .logprobs = {-1.0F, -2.0F},
                               .top = {{4, -0.5F}, {5, -0.25F}}}}};
  result.failed_swap_ins = {6};
  return result;
}

using SetResponseBound = void (*)(quire::v1::StepResponse* response);
constexpr std::pair<const char*, SetResponseBound> kResponseBounds[] = {
    {"token_column", [](auto* response) { response->mutable_token_id()->RemoveLast(); }},
    {"logprob_column", [](auto* response) { response->mutable_logprob()->RemoveLast(); }},
    {"finite_column", [](auto* response) { response->mutable_finite()->RemoveLast(); }},
    {"num_top_column", [](auto* response) { response->mutable_num_top()->RemoveLast(); }},
    {"top_logprob_column", [](auto* response) { response->mutable_top_logprob()->RemoveLast(); }},
    {"prompt_logprob_column", [](auto* response) { response->add_prompt_logprob(-1.0F); }},
    {"prompt_top_logprob_column", [](auto* response) { response->add_prompt_top_logprob(-1.0F); }},
    {"prompt_num_tokens", [](auto* response) { response->set_prompt_num_tokens(0, 3); }},
    {"prompt_num_top", [](auto* response) { response->set_prompt_num_top(0, 2); }},
    {"num_top", [](auto* response) { response->set_num_top(0, 3); }},
    {"num_top_of_32_bits",
     [](auto* response) {
       response->set_num_top(0, 0xFFFFFFFF);
       response->set_num_top(1, 4);
     }},
};

void WriteColumns() {
  for (const auto& [name, set] : kRequestBounds) {
    quire::v1::StepRequest request;
    quire::EncodePlan(AllowedPlan(), &request);
    set(&request);
    quire::WriteSeed("step_plan", quire::NameOfSeed(name, 1), request.SerializeAsString());
  }
  quire::v1::StepResponse allowed;
  quire::EncodeResult(AllowedResult(), &allowed);
  quire::WriteSeed("step_result", quire::NameOfSeed("columns", 0), allowed.SerializeAsString());
  for (const auto& [name, set] : kResponseBounds) {
    quire::v1::StepResponse response = allowed;
    set(&response);
    quire::WriteSeed("step_result", quire::NameOfSeed(name, 1), response.SerializeAsString());
  }
}

}  // namespace

// Writes random plans and results that no core would make, messages whose columns disagree, and a
// plan at and past each bound.
void quire::WriteStepSeeds() {
  quire::Random random(1);
  for (int i = 0; i < kNumRandom; ++i) {
    quire::v1::StepRequest request;
    quire::EncodePlan(quire::RandomPlan(random), &request);
    quire::WriteSeed("step_plan", "random_" + std::to_string(i), request.SerializeAsString());
    quire::v1::StepResponse response;
    quire::EncodeResult(quire::RandomResult(random), &response);
    quire::WriteSeed("step_result", "random_" + std::to_string(i), response.SerializeAsString());
  }
  WriteColumns();
  WritePlan("allowed_at_bound", AllowedPlan());
  for (const auto& [name, set] : kPlanBounds) {
    for (int past : {0, 1}) {
      quire::StepPlan plan = AllowedPlan();
      set(&plan, past);
      WritePlan(quire::NameOfSeed(name, past), plan);
    }
  }
}
