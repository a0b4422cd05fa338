// TLS with a self-made certificate: the best that an attacker without the secret can speak.
//
// Thread safety: any thread, one at a time for each connection. Blocks SIGPIPE in the calling
//                thread for good.
#ifndef QUIRE_TESTS_SUPPORT_CERTIFICATE_TLS_H_
#define QUIRE_TESTS_SUPPORT_CERTIFICATE_TLS_H_

namespace quire {

// Dials on a blocking socket, accepts any certificate. Returns true if the handshake completed.
bool ConnectsByCertificate(int socket);
// The dialed end: the same, with a fresh self-signed certificate.
bool AcceptsByCertificate(int socket);

}  // namespace quire

#endif  // QUIRE_TESTS_SUPPORT_CERTIFICATE_TLS_H_
