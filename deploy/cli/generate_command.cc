#include "deploy/cli/generate_command.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <map>
#include <memory>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "nlohmann/json.hpp"

#include "common/base/status_macros.h"
#include "common/base/terminal_text.h"
#include "common/flags/command_line.h"
#include "common/wire/address.h"
#include "common/wire/channel.h"
#include "common/wire/grpc_status.h"
#include "deploy/cli/describe_error.h"
#include "deploy/cli/flag_table.h"
#include "deploy/clients/cpp/resuming_client.h"

namespace quire {
namespace {

// Upper bound on the wait for a first answer by any server. The bound is short, because a person
// waits and the address may be wrong. The refusal of a server that still loads is an answer too.
// After the first answer RetryPolicy's other limits apply.
constexpr std::chrono::seconds kMaxUnansweredAtFirst(30);

constexpr char kGenerateUsage[] =
    R"(usage: quire generate --server ADDR (--prompt TEXT | --prompt-token-ids 1,2,3) [flags]

    --server ADDR[,ADDR...]          HOST:PORT or unix:PATH; default 127.0.0.1:50051. When a stream
                                     breaks, it goes on at the next of them, or at the same one
    --prompt TEXT                    continue this text
    --prompt-token-ids 1,2,3         continue these tokens
    --max-tokens N                   output tokens; default: what the context leaves room for
    --min-tokens N                   no end before this many
    --temperature X --top-k N --top-p X --min-p X
    --repetition-penalty X --presence-penalty X --frequency-penalty X
    --seed N                         the same seed gives the same tokens
    --n N                            sequences from this prompt
    --best-of N                      sample N sequences, print the n likeliest
    --num-beams N                    beam search instead of sampling
    --length-penalty X --early-stopping false|true|never    of beam search
    --logprobs N                     log-probabilities of the sampled and the N likeliest tokens
    --stop TEXT                      end at this text; may be given several times
    --stop-token-ids 1,2             end at these tokens
    --ignore-eos                     do not end at the model's end-of-sequence tokens
    --priority N --tenant NAME       where the server's --scheduling-policy asks for them
    --timeout-ms N
    --request-id ID
    --echo                           print the prompt first
    --json                           one JSON object a token
)";

FlagTable GenerateFlags(GenerateOptions& options) {
  v1::GenerateRequest& request = options.request;
  v1::SamplingParams* sampling = request.mutable_sampling();
  v1::StoppingParams* stopping = request.mutable_stopping();
  FlagTable flags;
  AddServerAccessFlags(options.access, flags);
  flags.Text("server", [&](const std::string& v) { options.server = v; });
  flags.Switch("json", [&] { options.json = true; });
  flags.Switch("echo", [&] { options.echo = true; });
  flags.Text("prompt", [&](const std::string& v) { request.set_text(v); });
  flags.Int32List("prompt-token-ids",
                  [&](int32_t id) { request.mutable_token_ids()->add_ids(id); });
  flags.Int32("n", [&](int32_t n) { request.set_n(n); });
  flags.Int32("priority", [&](int32_t n) { request.set_priority(n); });
  flags.Text("tenant", [&](const std::string& v) { request.set_tenant(v); });
  flags.Int32("best-of", [&](int32_t n) { request.set_best_of(n); });
  flags.Int32("num-beams", [&](int32_t n) { request.mutable_beam_search()->set_num_beams(n); });
  flags.Float("length-penalty",
              [&](float x) { request.mutable_beam_search()->set_length_penalty(x); });
  flags.Text("early-stopping", [&](const std::string& v) { options.early_stopping = v; });
  flags.Int64("timeout-ms", [&](int64_t n) { request.set_timeout_ms(n); });
  flags.Text("request-id", [&](const std::string& v) { request.set_request_id(v); });
  flags.Int32("logprobs", [&](int32_t n) { request.mutable_response()->set_logprobs(n); });
  flags.Float("temperature", [=](float x) { sampling->set_temperature(x); });
  flags.Int32("top-k", [=](int32_t n) { sampling->set_top_k(n); });
  flags.Float("top-p", [=](float x) { sampling->set_top_p(x); });
  flags.Float("min-p", [=](float x) { sampling->set_min_p(x); });
  flags.Float("repetition-penalty", [=](float x) { sampling->set_repetition_penalty(x); });
  flags.Float("presence-penalty", [=](float x) { sampling->set_presence_penalty(x); });
  flags.Float("frequency-penalty", [=](float x) { sampling->set_frequency_penalty(x); });
  flags.Uint64("seed", [=](uint64_t seed) { sampling->set_seed(seed); });
  flags.Int32("max-tokens", [=](int32_t n) { stopping->set_max_tokens(n); });
  flags.Int32("min-tokens", [=](int32_t n) { stopping->set_min_tokens(n); });
  flags.Text("stop", [=](const std::string& v) { stopping->add_stop(v); });
  flags.Int32List("stop-token-ids", [=](int32_t id) { stopping->add_stop_token_ids(id); });
  flags.Switch("ignore-eos", [=] { stopping->set_ignore_eos(true); });
  return flags;
}

absl::StatusOr<v1::EarlyStopping> ParseEarlyStopping(const std::string& text) {
  if (text == "false") {
    return v1::EARLY_STOPPING_UNSPECIFIED;
  }
  if (text == "true") {
    return v1::EARLY_STOPPING_TRUE;
  }
  if (text == "never") {
    return v1::EARLY_STOPPING_NEVER;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("--early-stopping: must be false, true or never (got ", text, ")"));
}

// Returns the text of token i of a chunk. If the server does not say where each token's text ends,
// the last token has the whole text.
std::string TextOfToken(const v1::Chunk& chunk, int i) {
  const auto size = static_cast<uint32_t>(chunk.text().size());
  if (chunk.text_ends_size() != chunk.token_ids_size()) {
    return i + 1 == chunk.token_ids_size() ? chunk.text() : "";
  }
  const uint32_t begin = i == 0 ? 0 : std::min(chunk.text_ends(i - 1), size);
  const uint32_t end = std::min(chunk.text_ends(i), size);
  return begin < end ? chunk.text().substr(begin, end - begin) : "";
}

std::string FinishReasonName(v1::FinishReason reason) {
  return reason == v1::FINISH_REASON_LENGTH ? "length" : "stop";
}

struct Servers {
  std::vector<std::shared_ptr<grpc::Channel>> channels;
  std::string api_key;
};

absl::StatusOr<Servers> DialAll(const GenerateOptions& options) {
  QUIRE_ASSIGN_OR_RETURN(const auto credentials, CredentialsOf(options.access));
  Servers servers;
  for (absl::string_view text : absl::StrSplit(options.server, ',')) {
    QUIRE_ASSIGN_OR_RETURN(const Address address, ParseAddress({text.data(), text.size()}));
    QUIRE_ASSIGN_OR_RETURN(servers.api_key, ApiKeyOf(options.access, address));
    servers.channels.push_back(DialPublic(address, credentials));
  }
  return servers;
}

// Writes answers to standard output, escaped if standard output is a terminal. Sequences that
// stream at the same time would mix on standard output, so only the first one is written while it
// streams. Finish writes the other sequences.
class AnswerWriter {
 public:
  void WriteText(std::string_view text) {
    const std::string escaped = is_terminal_ ? escaper_.Escape(text) : std::string(text);
    std::fwrite(escaped.data(), 1, escaped.size(), stdout);
  }

  void Write(const v1::GenerateResponse& response) {
    if (response.has_chunk()) {
      Append(response.chunk().index(), response.chunk().text());
    }
    if (response.has_finished()) {
      Append(response.finished().index(), response.finished().text());
    }
    std::fflush(stdout);
  }

  void Finish() {
    EndSequence();
    for (const auto& [index, text] : waiting_) {
      WriteText(absl::StrCat("--- ", index, " ---\n", text));
      EndSequence();
    }
    std::fflush(stdout);
  }

 private:
  void Append(int32_t index, const std::string& text) {
    if (index == 0) {
      WriteText(text);
    } else {
      waiting_[index] += text;
    }
  }

  void EndSequence() {
    std::fputs(escaper_.End().c_str(), stdout);
    std::fputc('\n', stdout);
  }

  const bool is_terminal_ = ::isatty(STDOUT_FILENO) == 1;
  TerminalText escaper_;
  std::map<int32_t, std::string> waiting_;
};

}  // namespace

absl::StatusOr<GenerateOptions> ParseGenerateArguments(const std::vector<std::string>& args) {
  GenerateOptions options;
  QUIRE_RETURN_IF_ERROR(GenerateFlags(options).Parse(args));
  if (!options.request.has_text() && !options.request.has_token_ids()) {
    return absl::InvalidArgumentError("--prompt or --prompt-token-ids is required");
  }
  if (options.early_stopping.has_value()) {
    QUIRE_ASSIGN_OR_RETURN(v1::EarlyStopping early_stopping,
                           ParseEarlyStopping(*options.early_stopping));
    options.request.mutable_beam_search()->set_early_stopping(early_stopping);
  }
  return options;
}

std::string JsonLines(const v1::GenerateResponse& response) {
  using Json = nlohmann::ordered_json;
  const bool ends_chunk = response.has_chunk() && response.has_finished() &&
                          response.chunk().index() == response.finished().index() &&
                          response.chunk().token_ids_size() > 0;
  std::string lines;
  auto add = [&lines](const Json& line) {
    absl::StrAppend(&lines, line.dump(-1, ' ', false, Json::error_handler_t::replace), "\n");
  };
  const v1::Chunk& chunk = response.chunk();
  for (int i = 0; i < chunk.token_ids_size(); ++i) {
    const std::string text = TextOfToken(chunk, i);
    bool last = i + 1 == chunk.token_ids_size();
    Json line = {{"index", chunk.index()},
                 {"position", chunk.first_position() + i},
                 {"token_id", chunk.token_ids(i)},
                 {"text", text},
                 {"logprob", nullptr},
                 {"finish_reason", nullptr}};
    if (i < chunk.logprobs_size()) {
      line["logprob"] = chunk.logprobs(i).logprob();
      for (const v1::TokenLogprob& top : chunk.logprobs(i).top()) {
        line["top_logprobs"].push_back({{"token_id", top.token_id()}, {"logprob", top.logprob()}});
      }
    }
    if (last && ends_chunk) {
      line["text"] = text + response.finished().text();
      line["finish_reason"] = FinishReasonName(response.finished().reason());
      if (response.finished().has_score()) {
        line["score"] = response.finished().score();
      }
    }
    add(line);
  }
  if (response.has_finished() && !ends_chunk) {
    add({{"index", response.finished().index()},
         {"position", nullptr},
         {"token_id", nullptr},
         {"text", response.finished().text()},
         {"logprob", nullptr},
         {"finish_reason", FinishReasonName(response.finished().reason())}});
  }
  return lines;
}

int RunGenerate(const std::vector<std::string>& args) {
  if (std::find(args.begin(), args.end(), "--help") != args.end()) {
    std::fputs(kGenerateUsage, stdout);
    std::fputs(kServerAccessUsage, stdout);
    return 0;
  }
  absl::StatusOr<GenerateOptions> options = ParseGenerateArguments(args);
  if (!options.ok()) {
    std::fprintf(stderr, "quire: generate: %s\n", DescribeError(options.status()).c_str());
    return kExitUsage;
  }
  const absl::StatusOr<Servers> servers = DialAll(*options);
  if (!servers.ok()) {
    std::fprintf(stderr, "quire: generate: %s\n", DescribeError(servers.status()).c_str());
    return kExitUsage;
  }
  RetryPolicy policy;
  policy.max_unanswered_at_first = kMaxUnansweredAtFirst;
  const ResumingClient client(servers->channels, policy, servers->api_key);
  AnswerWriter writer;
  if (options->echo && !options->json) {
    writer.WriteText(options->request.text());
  }
  const auto print = [&options, &writer](const v1::GenerateResponse& response) {
    if (options->json) {
      writer.WriteText(JsonLines(response));
      std::fflush(stdout);
    } else {
      writer.Write(response);
    }
    return true;
  };
  const absl::Status status = FromGrpcStatus(client.Generate(options->request, print));
  if (!options->json) {
    writer.Finish();
  }
  if (!status.ok()) {
    std::fprintf(stderr, "quire: %s\n", DescribeError(status).c_str());
    return 1;
  }
  return 0;
}

}  // namespace quire
