#include "deploy/cli/bench_prompts.h"

#include <fstream>
#include <iterator>
#include <limits>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"

#include "common/json/json.h"

namespace quire {
namespace {

constexpr const char* kWords[] = {
    "time",  "year",  "day",   "way",   "man",   "world", "life", "hand",  "part",  "child",
    "eye",   "place", "work",  "week",  "case",  "point", "home", "water", "room",  "area",
    "money", "story", "fact",  "month", "right", "study", "book", "job",   "word",  "side",
    "kind",  "head",  "house", "night", "line",  "end",   "law",  "car",   "city",  "name",
    "team",  "idea",  "body",  "back",  "face",  "door",  "art",  "war",   "party", "game",
    "air",   "force", "foot",  "boy",   "age",   "food",  "land", "sea",   "road",  "tree",
    "sun",   "fire",  "wind",  "stone"};

v1::GenerateRequest BaseRequest(const BenchPrompts& prompts, int32_t max_tokens) {
  v1::GenerateRequest request;
  request.mutable_sampling()->set_temperature(prompts.temperature);
  request.mutable_stopping()->set_max_tokens(max_tokens);
  request.mutable_stopping()->set_ignore_eos(prompts.ignore_eos);
  if (prompts.timeout_ms > 0) {
    request.set_timeout_ms(prompts.timeout_ms);
  }
  return request;
}

// Sets the request's prompt from the line's "prompt", else from its "prompt_token_ids". Returns
// false if neither field is there with values of the right type.
bool SetPrompt(const Json& line, bool needs_text, v1::GenerateRequest* request) {
  if (!line.is_object()) {
    return false;
  }
  if (line.contains("prompt") && line["prompt"].is_string()) {
    request->set_text(line["prompt"].get<std::string>());
    return true;
  }
  if (needs_text || !line.contains("prompt_token_ids") || !line["prompt_token_ids"].is_array()) {
    return false;
  }
  for (const Json& id : line["prompt_token_ids"]) {
    constexpr auto kMaxId = uint64_t{std::numeric_limits<int32_t>::max()};
    if (!id.is_number_unsigned() || id.get<uint64_t>() > kMaxId) {
      return false;
    }
    request->mutable_token_ids()->add_ids(id.get<int32_t>());
  }
  return true;
}

}  // namespace

std::vector<v1::GenerateRequest> RandomRequests(const BenchPrompts& prompts, int32_t vocab_size) {
  std::mt19937_64 random(prompts.seed);
  const auto num_kinds = vocab_size > 0 ? vocab_size : static_cast<int32_t>(std::size(kWords));
  std::uniform_int_distribution<int32_t> kind(0, num_kinds - 1);
  std::vector<v1::GenerateRequest> requests;
  for (int32_t i = 0; i < prompts.num_prompts; ++i) {
    v1::GenerateRequest& request =
        requests.emplace_back(BaseRequest(prompts, prompts.random_output_tokens));
    for (int32_t j = 0; j < prompts.random_input_tokens; ++j) {
      if (vocab_size > 0) {
        request.mutable_token_ids()->add_ids(kind(random));
      } else {
        absl::StrAppend(request.mutable_text(), j == 0 ? "" : " ", kWords[kind(random)]);
      }
    }
  }
  return requests;
}

absl::StatusOr<std::vector<v1::GenerateRequest>> CustomRequests(const BenchPrompts& prompts,
                                                                bool needs_text) {
  std::ifstream file(prompts.dataset_path);
  std::vector<v1::GenerateRequest> lines;
  int number = 0;  // the line's number in the file
  for (std::string line; std::getline(file, line);) {
    ++number;
    if (line.empty()) {
      continue;
    }
    absl::StatusOr<Json> json = ParseJson(line);
    v1::GenerateRequest request;
    if (!json.ok() || !SetPrompt(*json, needs_text, &request)) {
      return absl::InvalidArgumentError(absl::StrCat(
          prompts.dataset_path,
          " line ",
          number,
          ": must be a JSON object with \"prompt\" (text)",
          needs_text ? ", as a chat needs" : " or \"prompt_token_ids\" (a list of token ids)"));
    }
    const Json& tokens = json->contains("output_tokens") ? (*json)["output_tokens"] : Json();
    request.MergeFrom(BaseRequest(
        prompts,
        tokens.is_number_integer() ? tokens.get<int32_t>() : prompts.random_output_tokens));
    lines.push_back(std::move(request));
  }
  if (lines.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(prompts.dataset_path, ": cannot be read, or has no prompts"));
  }
  std::vector<v1::GenerateRequest> requests;
  requests.reserve(static_cast<size_t>(prompts.num_prompts));
  for (int32_t i = 0; i < prompts.num_prompts; ++i) {
    requests.push_back(lines[static_cast<size_t>(i) % lines.size()]);
  }
  return requests;
}

}  // namespace quire
