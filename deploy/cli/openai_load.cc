#include "deploy/cli/openai_load.h"

#include <memory>
#include <utility>

#include "common/json/json.h"
#include "deploy/cli/openai_stream.h"

namespace quire {
namespace {

// Records the answer of one request.
class Reception {
 public:
  Reception(RequestRecord& record, std::function<void()> done)
      : record_(record), done_(std::move(done)) {}

  bool TakePiece(const HttpResponse& head, std::string_view piece) {
    now_ = SteadyNow();
    return stream_.Put(head, piece);
  }

  void End(const absl::StatusOr<HttpResponse>& call) {
    record_.end = SteadyNow();
    record_.status = stream_.Finish(call);
    record_.num_prompt_tokens = stream_.num_prompt_tokens().value_or(0);
    record_.num_output_tokens =
        stream_.num_output_tokens().value_or(static_cast<int32_t>(record_.arrivals.size()));
    // Tokens without text, such as special tokens, cause no call of OpenAiStream's on_text. They
    // count as arrived when the stream ends.
    if (record_.arrivals.empty() && record_.num_output_tokens > 0) {
      record_.arrivals.push_back(record_.end);
    }
    done_();
  }

 private:
  RequestRecord& record_;
  const std::function<void()> done_;
  Instant now_ = 0;  // when the latest piece arrived
  OpenAiStream stream_{[this](const OpenAiStream::Text&) { record_.arrivals.push_back(now_); }};
};

}  // namespace

std::string OpenAiBody(const v1::GenerateRequest& request, const OpenAiTarget& target) {
  OrderedJson body = {{"model", target.model}};
  if (target.is_chat) {
    body["messages"] = OrderedJson::array({{{"role", "user"}, {"content", request.text()}}});
  } else if (request.has_token_ids()) {
    body["prompt"] =
        std::vector<int32_t>(request.token_ids().ids().begin(), request.token_ids().ids().end());
  } else {
    body["prompt"] = request.text();
  }
  body["temperature"] = request.sampling().temperature();
  body["max_tokens"] = request.stopping().max_tokens();
  if (request.stopping().ignore_eos()) {
    body["ignore_eos"] = true;
  }
  body["stream"] = true;
  body["stream_options"] = {{"include_usage", true}};
  return body.dump();
}

OpenAiLoad::OpenAiLoad(OpenAiTarget target,
                       const std::vector<v1::GenerateRequest>& requests,
                       int64_t timeout_ms)
    : target_(std::move(target)),
      requests_(requests),
      timeout_ns_(timeout_ms > 0 ? timeout_ms * kNanosPerMilli : kInfiniteFuture),
      pool_(target_.server.client) {}

void OpenAiLoad::Start(size_t index, RequestRecord& record, std::function<void()> done) {
  HttpClientRequest request = {.method = "POST",
                               .target = target_.server.path + target_.endpoint,
                               .headers = target_.server.headers,
                               .body = OpenAiBody(requests_[index], target_)};
  const auto reception = std::make_shared<Reception>(record, std::move(done));
  record.start = SteadyNow();
  pool_.Start(
      std::move(request),
      timeout_ns_,
      [reception](const HttpResponse& head, std::string_view piece) {
        return reception->TakePiece(head, piece);
      },
      [reception](const absl::StatusOr<HttpResponse>& call) { reception->End(call); });
}

}  // namespace quire
