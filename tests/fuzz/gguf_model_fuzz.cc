// Bytes as a GGUF file of a model: its config, sampling defaults and tokenizer are each refused in
// one line, or give sizes inside their bounds and a tokenizer that encodes and decodes a text.
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/check.h"
#include "common/model/gguf_config.h"
#include "common/model/gguf_file.h"
#include "scheduler/text/gguf_tokenizer.h"
#include "scheduler/text/tokenizer.h"
#include "tests/fuzz/fuzz_verdict.h"
#include "tests/fuzz/fuzzed_file.h"

namespace {

constexpr std::string_view kText = "Once, 12 \xC3\xA9\xF0\x9F\x98\x80\n\n<s>  it's";

// Returns whether the file has a config.
bool CheckConfig(const quire::GgufFile& file) {
  const auto defaults = quire::GenerationDefaultsFromGguf(file);
  if (!defaults.ok()) {
    quire::CheckRefusal(defaults.status());
  }
  const auto config = quire::ConfigFromGguf(file);
  if (!config.ok()) {
    quire::CheckRefusal(config.status());
    return false;
  }
  QUIRE_CHECK(config->vocab_size >= 1 && config->num_layers >= 1 && config->num_kv_heads >= 1);
  QUIRE_CHECK_EQ(config->num_heads % config->num_kv_heads, 0);
  for (const quire::TokenId id : config->eos_token_ids) {
    QUIRE_CHECK(id >= 0 && id < config->vocab_size);
  }
  return true;
}

// Returns whether the file has a tokenizer.
bool CheckTokenizer(const quire::GgufMetadata& metadata) {
  const auto json = quire::TokenizerJsonFromGguf(metadata);
  if (!json.ok()) {
    quire::CheckRefusal(json.status());
    return false;
  }
  const auto tokenizer = quire::Tokenizer::FromJson(*json);
  if (!tokenizer.ok()) {
    quire::CheckRefusal(tokenizer.status());
    return false;
  }
  for (const bool is_special : {false, true}) {
    const auto ids = (*tokenizer)->Encode(kText, is_special, is_special);
    QUIRE_CHECK(ids.ok());
    static_cast<void>((*tokenizer)->Decode(*ids, !is_special));
  }
  return true;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto file = quire::GgufFile::Open(
      quire::FuzzedFile(std::string_view(reinterpret_cast<const char*>(data), size)));
  if (file.ok()) {
    const bool has_config = CheckConfig(*file);
    quire::is_accepted = CheckTokenizer(file->metadata()) && has_config;
  }
  return 0;
}
