// generate_example ADDRESS[,ADDRESS...] PROMPT [SEED]: prints one sampled answer on standard
// output. Kill the server during the answer and start it again: the answer goes on.
//
// Environment: QUIRE_API_KEY is the client's key, if the server asks for one. QUIRE_SSL_CA_CERTS
// names the file of the authorities that may sign the server's certificate, and turns TLS on.
// QUIRE_SSL_CERTFILE and QUIRE_SSL_KEYFILE are the client's own certificate and key, if the server
// asks for a certificate. All files are PEM.
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>

#include "deploy/clients/cpp/resuming_client.h"

namespace {

// Returns the contents of the file that the environment variable names; empty if the variable is
// unset.
std::string FileOf(const char* variable) {
  const char* path = std::getenv(variable);  // NOLINT(concurrency-mt-unsafe): no other thread yet
  std::ifstream file(path == nullptr ? "" : path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::shared_ptr<grpc::ChannelCredentials> Credentials() {
  if (std::getenv("QUIRE_SSL_CA_CERTS") == nullptr) {  // NOLINT(concurrency-mt-unsafe)
    return grpc::InsecureChannelCredentials();
  }
  return grpc::SslCredentials({.pem_root_certs = FileOf("QUIRE_SSL_CA_CERTS"),
                               .pem_private_key = FileOf("QUIRE_SSL_KEYFILE"),
                               .pem_cert_chain = FileOf("QUIRE_SSL_CERTFILE")});
}

std::shared_ptr<grpc::Channel> Dial(const std::string& address) {
  return grpc::CreateCustomChannel(address, Credentials(), quire::ClientChannelArguments());
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::shared_ptr<grpc::Channel>> channels;
  std::istringstream addresses(argc > 1 ? argv[1] : "");
  for (std::string address; std::getline(addresses, address, ',');) {
    channels.push_back(Dial(address));
  }
  if ((argc != 3 && argc != 4) || channels.empty()) {
    std::fprintf(stderr, "usage: generate_example ADDRESS[,ADDRESS...] PROMPT [SEED]\n");
    return 2;
  }
  quire::v1::GenerateRequest request;
  request.set_text(argv[2]);
  request.mutable_sampling()->set_temperature(0.8F);
  request.mutable_stopping()->set_max_tokens(200);
  if (argc == 4) {
    request.mutable_sampling()->set_seed(std::strtoull(argv[3], nullptr, 10));
  }

  const char* api_key = std::getenv("QUIRE_API_KEY");  // NOLINT(concurrency-mt-unsafe)
  const quire::ResumingClient client(
      channels, quire::RetryPolicy(), api_key == nullptr ? "" : api_key);
  const grpc::Status status =
      client.Generate(request, [](const quire::v1::GenerateResponse& response) {
        const std::string text = response.chunk().text() + response.finished().text();
        std::fwrite(text.data(), 1, text.size(), stdout);
        std::fflush(stdout);
        return true;
      });
  std::fputc('\n', stdout);
  if (!status.ok()) {
    std::fprintf(stderr, "generate_example: %s\n", status.error_message().c_str());
  }
  return status.ok() ? 0 : 1;
}
