#include "deploy/cli/openai_server.h"

#include <stdlib.h>

#include <limits>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"

#include "common/base/error.h"
#include "common/base/status_macros.h"
#include "common/base/string_view.h"
#include "common/json/json.h"
#include "common/wire/address.h"
#include "common/wire/api_key.h"
#include "deploy/cli/openai_stream.h"

namespace quire {
namespace {

constexpr size_t kMaxModelsBytes = size_t{1} << 20;
constexpr int64_t kModelsTimeoutNs = 10 * kNanosPerSecond;
constexpr std::string_view kHttp = "http://";
constexpr std::string_view kHttps = "https://";

struct BaseUrl {
  Address address;
  bool is_tls = false;
  std::string path;
};

absl::StatusOr<BaseUrl> ParseBaseUrl(std::string_view text) {
  BaseUrl url;
  if (text.starts_with("unix:")) {
    QUIRE_ASSIGN_OR_RETURN(url.address, ParseAddress(text));
    return url;
  }
  url.is_tls = text.starts_with(kHttps);
  if ((!url.is_tls && !text.starts_with(kHttp)) ||
      text.find_first_of("?#@ ") != std::string_view::npos) {
    return absl::InvalidArgumentError(
        "--base-url: must be http://HOST:PORT, https://HOST:PORT or unix:PATH");
  }
  text.remove_prefix(url.is_tls ? kHttps.size() : kHttp.size());
  const size_t path = std::min(text.find('/'), text.size());
  std::string host(text.substr(0, path));
  if (host.find(':', host.find(']') == std::string::npos ? 0 : host.find(']')) ==
      std::string::npos) {
    absl::StrAppend(&host, url.is_tls ? ":443" : ":80");
  }
  QUIRE_ASSIGN_OR_RETURN(url.address, ParseAddress(host));
  url.path = std::string(text.substr(path));
  while (url.path.ends_with('/')) {
    url.path.pop_back();
  }
  return url;
}

absl::StatusOr<std::string> KeyOf(const BaseUrl& url, const ServerAccess& access) {
  // ApiKeyOf refuses to send a key to another machine. Over TLS that is safe, so pass an address
  // that counts as local.
  const Address reached = url.is_tls ? Address{.unix_path = "tls"} : url.address;
  QUIRE_ASSIGN_OR_RETURN(std::string key, ApiKeyOf(access, reached));
  if (!key.empty()) {
    return key;
  }
  const char* variable = ::getenv("OPENAI_API_KEY");  // NOLINT(concurrency-mt-unsafe): one thread
  if (variable == nullptr || *variable == '\0') {
    return "";
  }
  if (!reached.is_local()) {
    return absl::InvalidArgumentError(
        "OPENAI_API_KEY may be sent to another machine only over TLS: take https://, or unset it");
  }
  absl::StatusOr<std::string> parsed = ParseApiKey(variable);
  return parsed.ok() ? std::move(parsed)
                     : absl::InvalidArgumentError(
                           absl::StrCat("OPENAI_API_KEY: ", parsed.status().message()));
}

}  // namespace

absl::StatusOr<OpenAiServer> OpenAiServerOf(const std::string& base_url,
                                            const ServerAccess& access) {
  QUIRE_ASSIGN_OR_RETURN(BaseUrl url, ParseBaseUrl(base_url));
  OpenAiServer server;
  if (url.is_tls) {
    QUIRE_ASSIGN_OR_RETURN(server.client.tls, TlsFiles::Open(access.tls_paths));
  } else if (!access.tls_paths.is_empty()) {
    return absl::InvalidArgumentError("--ssl-... flags need an https:// --base-url");
  }
  QUIRE_ASSIGN_OR_RETURN(const std::string key, KeyOf(url, access));
  if (!key.empty()) {
    server.headers.emplace_back("Authorization", BearerOf(key));
  }
  server.headers.emplace_back("Content-Type", "application/json");
  server.client.address = std::move(url.address);
  server.path = std::move(url.path);
  return server;
}

absl::StatusOr<OpenAiModel> AskModel(HttpClient& client, const OpenAiServer& server) {
  QUIRE_ASSIGN_OR_RETURN(
      const HttpResponse answer,
      client.Send({.target = server.path + "/v1/models", .headers = server.headers},
                  kMaxModelsBytes,
                  kModelsTimeoutNs));
  if (answer.status_code != 200) {
    return StatusOfHttpError(answer.status_code, answer.body);
  }
  const absl::StatusOr<Json> json = ParseJson(answer.body);
  const Json* model = nullptr;
  if (json.ok() && json->is_object() && json->contains("data") && (*json)["data"].is_array() &&
      !(*json)["data"].empty()) {
    model = &(*json)["data"][0];
  }
  if (model == nullptr || !model->is_object() || !model->contains("id") ||
      !(*model)["id"].is_string()) {
    return Error(absl::StatusCode::kInternal,
                 "OPENAI_ANSWER",
                 "the server's /v1/models lists no model: give --model");
  }
  OpenAiModel found = {.name = (*model)["id"].get<std::string>()};
  if (model->contains("meta") && (*model)["meta"].is_object() &&
      (*model)["meta"].contains("n_vocab") && (*model)["meta"]["n_vocab"].is_number_unsigned()) {
    const auto size = (*model)["meta"]["n_vocab"].get<uint64_t>();
    if (size <= uint64_t{std::numeric_limits<int32_t>::max()}) {
      found.vocab_size = static_cast<int32_t>(size);
    }
  }
  return found;
}

}  // namespace quire
