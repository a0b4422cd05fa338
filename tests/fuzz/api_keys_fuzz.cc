// Bytes as a file of API keys: refused with a reason that names a line and tells nothing of it, or
// keys within their bounds.
#include <string>

#include "common/base/check.h"
#include "common/base/error.h"
#include "common/wire/api_keys.h"
#include "common/wire/id_text.h"
#include "tests/fuzz/fuzz_verdict.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  const auto keys = quire::ParseApiKeys(text);
  if (!keys.ok()) {
    const std::string message(keys.status().message());
    QUIRE_CHECK_EQ(quire::ReasonOf(keys.status()), "API_KEYS_FILE");
    QUIRE_CHECK(message == "holds no key" || message.starts_with("line "));
    QUIRE_CHECK_LE(message.size(), size_t{128});
    return 0;
  }
  QUIRE_CHECK(!keys->empty() && keys->size() <= quire::kMaxApiKeys);
  for (const quire::KnownApiKey& key : *keys) {
    QUIRE_CHECK(!key.tenant.empty() && key.tenant.size() <= quire::kMaxTenantBytes);
    QUIRE_CHECK(quire::IsIdText(key.tenant));
  }
  quire::is_accepted = true;
  return 0;
}
