// The tokenizers that text is fuzzed with, loaded once: the bundled model's, a SentencePiece one
// with byte fallback, and one whose patterns run on PCRE2.
//
// Thread safety: a free function, for one thread. The working directory is the source tree.
#ifndef QUIRE_TESTS_FUZZ_FUZZ_TOKENIZERS_H_
#define QUIRE_TESTS_FUZZ_FUZZ_TOKENIZERS_H_

#include <cstddef>
#include <memory>
#include <vector>

#include "common/base/check.h"
#include "scheduler/text/tokenizer.h"

namespace quire {

inline constexpr size_t kBundledTokenizer = 0;
inline constexpr size_t kSentencePieceTokenizer = 1;
inline constexpr size_t kPatternTokenizer = 2;
inline constexpr const char* kFuzzTokenizerPaths[] = {
    "deploy/model/tokenizer.json",
    "tests/scheduler/text/testdata/llama2.tokenizer.json",
    "tests/scheduler/text/testdata/cased.tokenizer.json"};

inline const Tokenizer& FuzzTokenizer(size_t index) {
  static const auto* const tokenizers = [] {
    auto* loaded = new std::vector<std::unique_ptr<Tokenizer>>();
    for (const char* path : kFuzzTokenizerPaths) {
      auto tokenizer = Tokenizer::Load(path);
      QUIRE_CHECK(tokenizer.ok());
      loaded->push_back(*std::move(tokenizer));
    }
    return loaded;
  }();
  return *(*tokenizers)[index % tokenizers->size()];
}

}  // namespace quire

#endif  // QUIRE_TESTS_FUZZ_FUZZ_TOKENIZERS_H_
