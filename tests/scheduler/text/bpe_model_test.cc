#include "scheduler/text/bpe_model.h"

#include <limits>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace quire {
namespace {

// A vocabulary over a, b and c with many merges that compete, for words of any length.
Json RandomModelJson(uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<std::string> tokens = {"a", "b", "c"};
  Json merges = Json::array();
  std::map<std::string, int> vocab = {{"a", 0}, {"b", 1}, {"c", 2}};
  while (vocab.size() < 40) {
    const std::string left = tokens[random() % tokens.size()];
    const std::string right = tokens[random() % tokens.size()];
    merges.push_back({left, right});
    if (vocab.emplace(left + right, static_cast<int>(vocab.size())).second) {
      tokens.push_back(left + right);
    }
  }
  return {{"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", merges}}}};
}

// The definition: the lowest rank, leftmost first, until no pair is left.
std::vector<TokenId> MergeByDefinition(const Json& model, const std::string& text) {
  std::vector<std::string> symbols;
  for (char c : text) {
    symbols.emplace_back(1, c);
  }
  std::map<std::pair<std::string, std::string>, size_t> ranks;
  for (size_t i = 0; i < model["merges"].size(); ++i) {
    ranks[{model["merges"][i][0], model["merges"][i][1]}] =
        i;  // of equal merges the last one counts
  }
  while (true) {
    size_t best = std::numeric_limits<size_t>::max();
    size_t best_at = 0;
    for (size_t i = 0; i + 1 < symbols.size(); ++i) {
      auto it = ranks.find({symbols[i], symbols[i + 1]});
      if (it != ranks.end() && it->second < best) {
        best = it->second;
        best_at = i;
      }
    }
    if (best == std::numeric_limits<size_t>::max()) {
      break;
    }
    symbols[best_at] += symbols[best_at + 1];
    symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(best_at) + 1);
  }
  std::vector<TokenId> ids;
  ids.reserve(symbols.size());
  for (const std::string& symbol : symbols) {
    ids.push_back(model["vocab"][symbol].get<TokenId>());
  }
  return ids;
}

// Lengths on both sides of the switch from searching to the priority queue.
TEST(BpeModelTest, MergesAreThoseOfTheDefinitionForShortAndLongWords) {
  for (uint32_t seed = 0; seed < 20; ++seed) {
    Json json = RandomModelJson(seed);
    JsonNode root(&json, "");
    auto vocabulary = Vocabulary::Create(root);
    ASSERT_TRUE(vocabulary.ok()) << vocabulary.status();
    auto model = BpeModel::Create(*root.Get("model"), **vocabulary, /*byte_level=*/false);
    ASSERT_TRUE(model.ok()) << model.status();
    std::mt19937 random(seed);
    for (int round = 0; round < 60; ++round) {
      std::string text(1 + random() % 150, 'a');
      for (char& c : text) {
        c = static_cast<char>('a' + random() % 3);
      }
      BpeModel::Scratch scratch;

      std::vector<TokenId> ids;
      TextBudget budget(text.size());
      EXPECT_TRUE((*model)->Encode(text, &budget, &scratch, &ids).ok());

      ASSERT_EQ(ids, MergeByDefinition(json["model"], text)) << "seed " << seed << " text " << text;
    }
  }
}

}  // namespace
}  // namespace quire
