// Bytes as operations on a KvCacheManager, in the world of tests/scheduler/kv_cache: tables lead to
// their tokens, and the manager says what the model says, after every few of them.
#include <algorithm>
#include <string>
#include <vector>

#include "common/base/check.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/scheduler/kv_cache/kv_cache_world.h"

namespace {

constexpr int kMaxOperations = 400;
constexpr int kOperationsPerCheck = 4;  // a check costs more than an operation

using quire::KvCacheWorld;

class Player {
 public:
  explicit Player(quire::FuzzInput* input)
      : input_(*input), sizes_(TakeSizes(input)), world_(sizes_) {}

  void Play() {
    for (int i = 0; i < kMaxOperations && !input_.empty(); ++i) {
      Do(input_.TakeByte() % 12);
      if (i % kOperationsPerCheck == 0) {
        QUIRE_CHECK(world_.Check().empty());
      }
    }
    QUIRE_CHECK(world_.Check().empty());
  }

 private:
  static KvCacheWorld::Sizes TakeSizes(quire::FuzzInput* input) {
    KvCacheWorld::Sizes sizes;
    sizes.num_blocks = 2 + input->TakeByte() % 39;
    sizes.num_host_blocks = input->TakeByte() % 31;
    sizes.block_size_tokens = 1 << (input->TakeByte() % 4);
    sizes.num_sequences = 2 + size_t{input->TakeByte()} % 6;
    sizes.sliding_window = std::max(0, input->TakeByte() % 41 - 20);
    return sizes;
  }

  size_t TakeSequence() { return input_.TakeByte() % sizes_.num_sequences; }

  // A byte is how many, and which of them are others than most.
  std::vector<quire::TokenId> TakeTokens() {
    std::vector<quire::TokenId> tokens(1 + input_.TakeByte() % 10U);
    int bits = input_.TakeByte();
    for (quire::TokenId& id : tokens) {
      id = bits & 1;
      bits >>= 1;
    }
    return tokens;
  }

  std::vector<size_t> TakeGroup() {
    std::vector<size_t> group = {TakeSequence()};
    if (const size_t other = TakeSequence(); other != group.front()) {
      group.push_back(other);
    }
    return group;
  }

  KvCacheWorld::Contents TakeContents() {
    KvCacheWorld::Contents contents = world_.contents(TakeSequence());
    const std::vector<quire::TokenId> more = TakeTokens();
    contents.token_ids.insert(contents.token_ids.end(), more.begin(), more.end());
    contents.salt = input_.TakeByte() % 4 == 0 ? 1 - contents.salt : contents.salt;
    return contents;
  }

  bool Fork(size_t parent) {
    const size_t num_tokens = world_.contents(parent).token_ids.size();
    const auto kept = static_cast<int32_t>(1 + input_.TakeByte() % std::max<size_t>(1, num_tokens));
    return num_tokens > 0 && world_.Fork(parent, kept, TakeSequence());
  }

  bool Do(int operation) {
    switch (operation) {
      case 0:
        return world_.StepPlanned() || world_.StepAnswered();
      case 1:
        return Fork(TakeSequence());
      case 2:
        return world_.Free(TakeSequence());
      case 3:
        return world_.SwapOut(TakeGroup());
      case 4:
        return world_.SwapIn(TakeGroup());
      case 5:
        return world_.SwapsDone(world_.num_steps() -
                                std::min<uint64_t>(world_.num_steps(), input_.TakeByte() % 3));
      case 6:
        return world_.SlideWindow(TakeSequence());
      case 7:
        return world_.Publish(TakeSequence());
      case 8:
        return world_.Unpublish(TakeSequence());
      case 9: {
        const size_t sequence = TakeSequence();
        return world_.ShareCached(sequence, TakeContents());
      }
      case 10:
        return input_.TakeByte() % 8 == 0 && world_.WorkersLost();
      default: {
        const size_t sequence = TakeSequence();
        const int32_t salt = input_.TakeByte() % 2;
        return world_.Append(sequence, salt, TakeTokens());
      }
    }
  }

  quire::FuzzInput& input_;
  const KvCacheWorld::Sizes sizes_;
  KvCacheWorld world_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  quire::FuzzInput input(data, size);
  Player(&input).Play();
  return 0;
}
