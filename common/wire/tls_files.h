// TlsFiles holds the certificate, the key and the certificate authorities of one port, or of one
// kind of connection. The PEM files may be replaced while the process runs (reloaded.h). Files that
// do not belong together, such as a certificate and the key of another certificate, are not used.
//
// Thread safety: any thread.
// Errors:        kInvalidArgument, reason TLS_FILE, message "TLS: file: rule", without contents.
#ifndef QUIRE_COMMON_WIRE_TLS_FILES_H_
#define QUIRE_COMMON_WIRE_TLS_FILES_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"

#include "common/wire/reloaded.h"

namespace quire {

// Either the paths of three files, or the contents of three files.
struct TlsTexts {
  std::string certificate;  // certificate, then its chain of intermediates; empty: no certificate
  std::string key;          // private key of the certificate, not encrypted
  // Certificate authorities, one of which must have signed the peer's certificate. Empty: the peer
  // is asked for no certificate.
  std::string authorities;

  bool is_empty() const { return certificate.empty() && key.empty() && authorities.empty(); }

  friend bool operator==(const TlsTexts&, const TlsTexts&) = default;
};

// Reads the files. An empty path gives an empty text. Certificate and key must be given together.
absl::StatusOr<TlsTexts> ReadTlsFiles(const TlsTexts& paths);

class TlsFiles {
 public:
  // Upper bound on the age of the texts that Get returns.
  static constexpr int64_t kMaxAgeNs = Reloaded<TlsTexts>::kMaxAgeNs;

  // Errors: as ReadTlsFiles.
  static absl::StatusOr<std::shared_ptr<TlsFiles>> Open(const TlsTexts& paths);

  // Returns the newest texts that belong together.
  TlsTexts Get() { return *texts_.Get(); }

  // Returns true if the peer is asked for a certificate. The result never changes.
  bool has_authorities() const { return !paths_.authorities.empty(); }

 private:
  TlsFiles(TlsTexts paths, TlsTexts texts);

  const TlsTexts paths_;
  Reloaded<TlsTexts> texts_;
};

}  // namespace quire

#endif  // QUIRE_COMMON_WIRE_TLS_FILES_H_
