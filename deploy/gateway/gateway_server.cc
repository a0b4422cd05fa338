#include "deploy/gateway/gateway_server.h"

#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"

#include "common/base/free_memory.h"
#include "common/base/status_macros.h"
#include "common/base/string_view.h"
#include "common/flags/command_line.h"
#include "common/http/http_pages.h"
#include "common/metrics/process_metrics.h"
#include "common/wire/channel.h"
#include "common/wire/credentials.h"
#include "deploy/clients/cpp/resuming_client.h"
#include "deploy/gateway/openai/error_body.h"
#include "deploy/gateway/page/chat_page.h"

#include <boost/beast/http/status.hpp>

namespace quire {
namespace {

constexpr size_t kMaxBodyBytes = 8 << 20;  // a prompt of 1 MiB has 6 MiB if written as \u00XX
constexpr size_t kMaxBodyBytesInFlight = 64 << 20;
constexpr int64_t kIdleTimeoutNs = 75 * kNanosPerSecond;  // as nginx
// No stream reaches this bound. A Generation with more than 64 KiB to send asks for no further
// message, so at most one message of each prompt still arrives. ScoreBudget::kMaxOfEvents bounds
// the log-probabilities of echoed prompts.
constexpr size_t kMaxUnsentBytes = 32 << 20;
constexpr int64_t kLivenessNs = 10 * kNanosPerSecond;
constexpr char kMetricsType[] = "text/plain; version=0.0.4; charset=utf-8";

std::shared_ptr<grpc::Channel> Dial(const Address& address, const std::shared_ptr<TlsFiles>& tls) {
  return grpc::CreateCustomChannel(
      address.ToString(), MakeChannelCredentials(tls.get()), ClientChannelArguments());
}

std::vector<AsyncResumingClient::Dial> Dials(const GatewayConfig& config) {
  std::vector<AsyncResumingClient::Dial> dials;
  for (const Address& address : config.schedulers) {
    dials.emplace_back([address, tls = config.scheduler_tls] { return Dial(address, tls); });
  }
  return dials;
}

std::vector<std::shared_ptr<grpc::Channel>> Channels(const GatewayConfig& config) {
  std::vector<std::shared_ptr<grpc::Channel>> channels;
  for (const Address& address : config.schedulers) {
    channels.push_back(Dial(address, config.scheduler_tls));
  }
  return channels;
}

// Makes the answer to a request that the HTTP server itself refuses.
HttpResponse ServerError(int status_code) {
  const auto text =
      boost::beast::http::obsolete_reason(static_cast<boost::beast::http::status>(status_code));
  return {.status_code = status_code,
          .body = HttpErrorBody(status_code, {text.data(), text.size()}),
          .content_type = "application/json"};
}

HttpRoute PageRoute() {
  return {
      .method = "GET",
      .path = "/",
      .handler =
          [](const HttpRequest&, HttpResponder responder) {
            responder.Answer({.body = std::string(ChatPageHtml()),
                              .content_type = "text/html; charset=utf-8",
                              .headers = {{"Content-Security-Policy", ChatPageSecurityPolicy()}}});
          },
      .is_open = true};
}

}  // namespace

absl::StatusOr<std::unique_ptr<GatewayServer>> GatewayServer::Start(const GatewayConfig& config) {
  std::unique_ptr<GatewayServer> server(new GatewayServer(config));
  QUIRE_RETURN_IF_ERROR(server->Listen());
  return server;
}

GatewayServer::GatewayServer(GatewayConfig config)
    : config_(std::move(config)),
      metrics_(registry_),
      client_(std::make_unique<AsyncResumingClient>(
          Dials(config_), RetryPolicy(), [this] { metrics_.OnResume(); })),
      watch_(Channels(config_), config_.scheduler_api_key),
      gate_(watch_),
      generation_routes_(*client_, gate_, generations_, config_.forwards_api_keys),
      text_routes_(gate_, metrics_, pool_),
      origin_check_(config_.allowed_origins, config_.listen.is_local()),
      last_beat_(SteadyNow()) {
  process_registry_.Gauge(metric::kBuildInfo, {{"version", std::string(Version())}}).Set(1);
  process_registry_.Add(std::make_shared<ProcessMetrics>());
  if (config_.scheduler_http.has_value()) {
    operator_pages_ = std::make_unique<OperatorPages>(
        *config_.scheduler_http, config_.api_keys != nullptr, config_.admin_api_keys, registry_);
  }
}

GatewayServer::~GatewayServer() {
  EndRequests();
  watch_.Stop();
  http_.reset();
  pages_.reset();
}

// Stops the pool before it destroys client_, because tasks of the pool start streams of client_.
void GatewayServer::EndRequests() {
  gate_.Close();
  pool_.Stop();
  client_.reset();
}

std::vector<HttpRoute> GatewayServer::Routes() {
  std::vector<HttpRoute> routes = generation_routes_.Routes();
  const auto add = [&routes](std::vector<HttpRoute> more) {
    std::move(more.begin(), more.end(), std::back_inserter(routes));
  };
  add(text_routes_.Routes());
  if (operator_pages_ != nullptr) {
    add(operator_pages_->Routes());
  }
  routes.push_back(
      {.method = "GET",
       .path = "/livez",
       .handler = [](const HttpRequest&,
                     HttpResponder responder) { responder.Answer({.body = "live\n"}); },
       .is_open = true});
  routes.push_back(PageRoute());
  return config_.api_keys == nullptr ? Guarded(std::move(routes), origin_check_)
                                     : std::move(routes);
}

absl::Status GatewayServer::Listen() {
  HttpServerOptions options = {
      .address = config_.listen,
      .tls = config_.tls,
      .api_keys = config_.api_keys,
      .max_connections = static_cast<size_t>(config_.max_connections),
      .idle_timeout_ns = kIdleTimeoutNs,
      .max_body_bytes = kMaxBodyBytes,
      .max_body_bytes_in_flight = kMaxBodyBytesInFlight,
      .max_unsent_bytes = kMaxUnsentBytes,
      .allowed_origins = config_.allowed_origins,
      .make_error = ServerError,
      .observe = [this](const HttpEvent& event) { metrics_.OnEvent(event); },
  };
  QUIRE_ASSIGN_OR_RETURN(http_, HttpServer::Start(std::move(options), Routes()));
  if (config_.pages.has_value()) {
    const auto health = [](bool is_well, const char* yes, const char* no) {
      return HttpResponse{.status_code = is_well ? 200 : 503, .body = is_well ? yes : no};
    };
    std::vector<HttpPage> pages;
    pages.push_back({"/livez", [this, health] { return health(IsLive(), "live\n", "stuck\n"); }});
    pages.push_back(
        {"/readyz", [this, health] { return health(is_ready(), "ready\n", "not ready\n"); }});
    pages.push_back({"/metrics", [this] {
                       return HttpResponse{
                           .body = registry_.NativeText() + process_registry_.NativeText(),
                           .content_type = kMetricsType};
                     }});
    QUIRE_ASSIGN_OR_RETURN(pages_,
                           ServePages(config_.pages->host, config_.pages->port, std::move(pages)));
  }
  watch_.Start([this] { Beat(); });
  return absl::OkStatus();
}

void GatewayServer::Open(std::unique_ptr<ChatModel> model) {
  watch_.AwaitFirst();
  gate_.Open(std::move(model));
}

void GatewayServer::Beat() {
  http_->Post([this] { last_beat_ = SteadyNow(); });
  ReturnFreeMemory();
}

bool GatewayServer::IsLive() const { return SteadyNow() - last_beat_ < kLivenessNs; }

std::string GatewayServer::address() const {
  Address address = config_.listen;
  address.port = http_->port();
  return address.ToString();
}

std::string GatewayServer::pages_address() const {
  if (pages_ == nullptr) {
    return "";
  }
  Address address = *config_.pages;
  address.port = pages_->port();
  return address.ToString();
}

void GatewayServer::BeginDrain() {
  http_->Drain([this] { is_drained_ = true; });
}

}  // namespace quire
