// Reads the client's identity from the headers of an HTTP request.
//
// Thread safety: free functions, safe from any thread.
#ifndef QUIRE_DEPLOY_GATEWAY_REQUEST_IDENTITY_H_
#define QUIRE_DEPLOY_GATEWAY_REQUEST_IDENTITY_H_

#include <string>

#include "common/http/http_message.h"

namespace quire {

inline constexpr char kRequestIdHeader[] = "X-Request-Id";

// Returns the header X-Request-Id if it can be an id of the scheduler, else a new random id.
std::string RequestIdOf(const HttpRequest& request);

// Returns the key of the header `Authorization: Bearer KEY`. Returns "" if the header is missing,
// or if the key does not have the form of Quire's keys.
std::string ApiKeyOf(const HttpRequest& request);

}  // namespace quire

#endif  // QUIRE_DEPLOY_GATEWAY_REQUEST_IDENTITY_H_
