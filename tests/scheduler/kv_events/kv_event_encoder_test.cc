// Goldens by make_kv_event_goldens.py: Python's msgpack of the maps that vLLM's classes encode to.
#include "scheduler/kv_events/kv_event_encoder.h"

#include <cstdint>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace quire {
namespace {

constexpr double kTimestamp = 1234.5;

std::string Golden(const std::string& name) {
  std::ifstream file("tests/scheduler/kv_events/testdata/" + name, std::ios::binary);
  EXPECT_TRUE(file.is_open()) << name;
  return {std::istreambuf_iterator<char>(file), {}};
}

// The upper half of a hash is not sent.
BlockHash Hash(uint64_t low) { return {.low = low, .high = 0x123}; }

CacheEvent Stored(const std::vector<uint64_t>& hashes, std::vector<TokenId> token_ids) {
  CacheEvent event = {.kind = CacheEvent::Kind::kStored, .token_ids = std::move(token_ids)};
  for (uint64_t hash : hashes) {
    event.block_hashes.push_back(Hash(hash));
  }
  return event;
}

std::string Encode(const std::vector<CacheEvent>& events) {
  return EncodeKvEvents(kTimestamp, events);
}

TEST(KvEventEncoderTest, WritesAClearedCache) {
  EXPECT_EQ(Encode({{.kind = CacheEvent::Kind::kCleared}}), Golden("cleared.msgpack"));
}

TEST(KvEventEncoderTest, WritesTheFirstBlocksOfASequence) {
  const CacheEvent event = Stored({1, UINT64_MAX}, {0, 127, 128, 65535, 65536, INT32_MAX});

  EXPECT_EQ(Encode({event}), Golden("stored.msgpack"));
}

TEST(KvEventEncoderTest, WritesParentsAndRemovedBlocks) {
  CacheEvent child = Stored({300}, {5, 6});
  child.parent = Hash(uint64_t{1} << 63);
  child.cache_salt = "told with the first block of the sequence";
  const CacheEvent removed = {.kind = CacheEvent::Kind::kRemoved,
                              .block_hashes = {Hash(127), Hash(70000)}};

  EXPECT_EQ(Encode({child, removed}), Golden("child.msgpack"));
}

TEST(KvEventEncoderTest, NamesTheSaltOfTheFirstBlock) {
  CacheEvent event = Stored({7, 8, 9}, {1, 2, 3});
  event.cache_salt = "tenant \xC3\xA4";

  EXPECT_EQ(Encode({event}), Golden("salted.msgpack"));
}

TEST(KvEventEncoderTest, WritesASaltThatIsNoTextInHexadecimal) {
  CacheEvent event = Stored({7}, {1});
  event.cache_salt = std::string("\xFF\x00", 2);

  EXPECT_EQ(Encode({event}), Golden("binary_salt.msgpack"));
}

TEST(KvEventEncoderTest, NamesTheSlidingWindow) {
  CacheEvent event = Stored({7}, {1});
  event.parent = Hash(6);
  event.sliding_window = 4096;

  EXPECT_EQ(Encode({event}), Golden("window.msgpack"));
}

TEST(KvEventEncoderTest, WritesLongLists) {
  std::vector<uint64_t> hashes(40);
  std::vector<TokenId> token_ids(640);
  CacheEvent removed = {.kind = CacheEvent::Kind::kRemoved};
  for (size_t i = 0; i < token_ids.size(); ++i) {
    token_ids[i] = static_cast<TokenId>(i);
    if (i < 300) {
      removed.block_hashes.push_back(Hash(i));
    }
    if (i < hashes.size()) {
      hashes[i] = i;
    }
  }

  EXPECT_EQ(Encode({Stored(hashes, token_ids), removed}), Golden("many.msgpack"));
}

}  // namespace
}  // namespace quire
