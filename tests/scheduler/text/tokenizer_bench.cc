// Speed of Encode on ordinary text and on text built to be slow, 1 MiB each, and of Decode.
//
//   bench/tokenizer_bench                     from the source folder, with the tokenizers of
//   testdata/ TOKENIZER=path/to/tokenizer.json bench/tokenizer_bench
//
// To keep: no line of the hostile texts under 1 MB/s, nor 20 times slower than "prose".

#include <cstdlib>
#include <iostream>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "benchmark/benchmark.h"

#include "scheduler/text/detokenizer.h"
#include "scheduler/text/tokenizer.h"

namespace quire {
namespace {

constexpr size_t kTextBytes = 1 << 20;

std::string Repeat(std::string_view unit) {
  std::string text;
  while (text.size() + unit.size() <= kTextBytes) {
    text += unit;
  }
  return text;
}

// Words of changing letters, numbers and punctuation, like prose in length and variety.
std::string Prose() {
  static constexpr std::string_view kSyllables[] = {"the ",
                                                    "ing ",
                                                    "ka",
                                                    "tion ",
                                                    "re",
                                                    "con",
                                                    "er ",
                                                    "sch",
                                                    "ble ",
                                                    "mi",
                                                    ", ",
                                                    ". ",
                                                    "an ",
                                                    "st",
                                                    "19",
                                                    "of "};
  std::string text;
  uint32_t state = 1;
  while (text.size() < kTextBytes) {
    state = state * 1664525 + 1013904223;
    text += kSyllables[state >> 28];
  }
  return text;
}

struct Text {
  const char* name;
  std::string text;
};

const std::vector<Text>& Texts() {
  static const auto* texts = new std::vector<Text>{
      {"prose", Prose()},
      {"spaces", Repeat(" ")},
      {"newlines", Repeat("\n")},
      {"spaces_newlines", Repeat("    \n")},
      {"x", Repeat("x")},
      {"underscores", Repeat("_")},
      {"digits", Repeat("7")},
      {"han_one", Repeat("中")},
      {"han_many", Repeat("今天天气很好我们一起去公园散步吧计算机把文字变成数字")},
      {"combining_marks", Repeat("\xCC\x81\xCC\x96\xD6\xB0")},
      {"emoji", Repeat("👍🏽")},
      {"hangul_jamo", Repeat("\xE1\x84\x80\xE1\x85\xA1")},
      {"special_prefix", Repeat("<|reserved_special_token_")},
      {"apostrophes", Repeat("'")},
      {"space_x", Repeat(" x")},
      {"ab", Repeat("ab")},
      {"metaspace", Repeat("▁")},
      {"nul", std::string(kTextBytes, '\0')},
  };
  return *texts;
}

void Encode(benchmark::State& state, const Tokenizer* tokenizer, const std::string* text) {
  size_t tokens = 0;
  for ([[maybe_unused]] auto _ : state) {
    auto ids = tokenizer->Encode(*text, true, true);
    if (!ids.ok()) {
      state.SkipWithError(std::string(ids.status().message()).c_str());
      return;
    }
    tokens = ids->size();
  }
  state.SetBytesProcessed(static_cast<int64_t>(text->size()) * state.iterations());
  state.counters["tokens"] = static_cast<double>(tokens);
}

void Stream(benchmark::State& state, const Tokenizer* tokenizer, const std::string* text) {
  auto ids = tokenizer->Encode(*text, true, true);
  for ([[maybe_unused]] auto _ : state) {
    Detokenizer detokenizer(tokenizer, {}, true);
    for (TokenId id : *ids) {
      benchmark::DoNotOptimize(detokenizer.Push(id));
    }
  }
  state.SetItemsProcessed(static_cast<int64_t>(ids->size()) * state.iterations());
}

void Load(benchmark::State& state, const std::string& path) {
  for ([[maybe_unused]] auto _ : state) {
    benchmark::DoNotOptimize(Tokenizer::Load(path));
  }
}

bool Register(const std::string& label, const std::string& path) {
  auto tokenizer = Tokenizer::Load(path);
  if (!tokenizer.ok()) {
    std::cerr << tokenizer.status() << '\n';
    return false;
  }
  const Tokenizer* loaded = tokenizer->release();  // lives as long as the program
  for (const Text& text : Texts()) {
    benchmark::RegisterBenchmark(
        absl::StrCat("encode/", label, "/", text.name).c_str(), Encode, loaded, &text.text)
        ->Unit(benchmark::kMillisecond);
  }
  benchmark::RegisterBenchmark(
      absl::StrCat("stream/", label).c_str(), Stream, loaded, &Texts()[0].text);
  benchmark::RegisterBenchmark(absl::StrCat("load/", label).c_str(), Load, path)
      ->Unit(benchmark::kMillisecond);
  return true;
}

}  // namespace
}  // namespace quire

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  const char* path = std::getenv("TOKENIZER");  // NOLINT(concurrency-mt-unsafe)
  if (path != nullptr) {
    if (!quire::Register("given", path)) {
      return 1;
    }
  } else {
    for (const char* name :
         {"gpt2", "llama3", "qwen2", "cased", "llama2", "mistral", "metaspace"}) {
      if (!quire::Register(
              name, absl::StrCat("tests/scheduler/text/testdata/", name, ".tokenizer.json"))) {
        return 1;
      }
    }
  }
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
