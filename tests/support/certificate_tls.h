// TLS with a self-signed certificate: the most that an attacker without the group's secret can
// offer.
//
// Thread safety: any thread, one at a time for each connection. Blocks SIGPIPE in the calling
//                thread for good.
#ifndef QUIRE_TESTS_SUPPORT_CERTIFICATE_TLS_H_
#define QUIRE_TESTS_SUPPORT_CERTIFICATE_TLS_H_

namespace quire {

// Acts as the TLS client on a connected blocking socket, and accepts any certificate. Returns true
// if the handshake completed.
bool ConnectsByCertificate(int socket);
// Acts as the TLS server on a connected blocking socket, with a fresh self-signed certificate.
// Returns true if the handshake completed.
bool AcceptsByCertificate(int socket);

}  // namespace quire

#endif  // QUIRE_TESTS_SUPPORT_CERTIFICATE_TLS_H_
