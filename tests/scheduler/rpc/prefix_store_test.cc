#include "scheduler/rpc/prefix_store.h"

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "common/base/error.h"

#include <sys/stat.h>

namespace quire {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

const SavedPrefix kPlain = {.token_ids = {5, 0, 2'147'483'647}, .cache_salt = ""};
const SavedPrefix kSalted = {.token_ids = {1}, .cache_salt = std::string("a \n\0\xFF", 5)};

TEST(PrefixFileTest, WhatIsWrittenIsRead) {
  for (const std::vector<SavedPrefix>& prefixes :
       {std::vector<SavedPrefix>{}, {kPlain}, {kSalted, kPlain}}) {
    const auto read = DecodePrefixes(EncodePrefixes(prefixes));

    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(*read, prefixes);
  }
}

TEST(PrefixFileTest, DamageOfAnyByteIsFound) {
  const std::string good = EncodePrefixes({kSalted, kPlain});
  for (size_t i = 0; i < good.size(); ++i) {
    std::string changed = good;
    changed[i] = static_cast<char>(changed[i] ^ 4);
    EXPECT_EQ(DecodePrefixes(changed).status().code(), absl::StatusCode::kDataLoss) << i;
    EXPECT_FALSE(DecodePrefixes(good.substr(0, i)).ok()) << i;
  }
  EXPECT_FALSE(DecodePrefixes(good + "- 1\n").ok());
}

// Even with a right hash, each line must be valid, or the whole file is refused.
TEST(PrefixFileTest, ALineWithoutTokensIsDamage) {
  EXPECT_FALSE(DecodePrefixes(EncodePrefixes({{.token_ids = {}, .cache_salt = "s"}})).ok());
}

TEST(PrefixFileTest, HoldsNoMoreThanItsBound) {
  std::vector<SavedPrefix> prefixes(kMaxSavedPrefixes, kPlain);
  EXPECT_TRUE(DecodePrefixes(EncodePrefixes(prefixes)).ok());

  prefixes.push_back(kPlain);
  EXPECT_THAT(DecodePrefixes(EncodePrefixes(prefixes)).status().message(),
              HasSubstr("too many prefixes (limit 4096)"));
}

class PrefixStoreTest : public testing::Test {
 protected:
  PrefixStoreTest() {
    std::string folder = testing::TempDir() + "prefix_store_XXXXXX";
    folder_ = mkdtemp(folder.data());
    path_ = folder_ / "pins";
  }
  ~PrefixStoreTest() override { std::filesystem::remove_all(folder_); }

  std::string Contents() const {
    std::ifstream file(path_, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  void Write(const std::string& text) const { std::ofstream(path_, std::ios::binary) << text; }
  std::unique_ptr<PrefixStore> Open() const { return PrefixStore::Open(path_); }

  std::filesystem::path folder_;
  std::filesystem::path path_;
};

TEST_F(PrefixStoreTest, TheNextOneHasWhatWasSaved) {
  {
    auto store = Open();
    EXPECT_THAT(store->prefixes(), IsEmpty());
    store->OnPinned(RequestId(3), kPlain);
    store->OnPinned(RequestId(4), kSalted);
    store->OnPinned(RequestId(5), kSalted);  // pinned again: one and the same
    store->OnPinned(RequestId(6), {.token_ids = {7}, .cache_salt = ""});
    store->OnUnpinned(RequestId(6));
    EXPECT_TRUE(store->Save().ok());
  }

  auto store = Open();

  EXPECT_THAT(store->prefixes(), ElementsAre(kPlain, kSalted));
  store->OnUnpinned(RequestId(3));  // an id of the scheduler before is nobody's
  EXPECT_THAT(store->prefixes(), ElementsAre(kPlain, kSalted));
  store->OnPinned(RequestId(1), kPlain);
  store->OnUnpinned(RequestId(1));
  store->Forget(kSalted);
  EXPECT_TRUE(store->Save().ok());
  EXPECT_THAT(Open()->prefixes(), IsEmpty());
}

TEST_F(PrefixStoreTest, EachCallIsAnsweredAfterItsPrefixIsInTheFile) {
  constexpr TokenId kNumPrefixes = 50;
  std::atomic<int> num_saved{0};
  {
    auto store = Open();
    for (TokenId id = 0; id < kNumPrefixes; ++id) {
      const SavedPrefix prefix = {.token_ids = {id}, .cache_salt = ""};
      store->OnPinned(RequestId(static_cast<uint64_t>(id) + 1), prefix);
      store->SaveLater([&, prefix](const absl::Status& saved) {
        EXPECT_TRUE(saved.ok()) << saved;
        EXPECT_THAT(*DecodePrefixes(Contents()), testing::Contains(prefix));
        ++num_saved;
      });
    }
  }  // waits for the last one

  EXPECT_EQ(num_saved, kNumPrefixes);
  EXPECT_EQ(Open()->prefixes().size(), static_cast<size_t>(kNumPrefixes));
}

TEST_F(PrefixStoreTest, CallsThatWaitForTheDiskAreBounded) {
  auto store = Open();
  absl::Notification is_saved;
  absl::Notification goes_on;
  store->SaveLater([&](const absl::Status& /*saved*/) {
    is_saved.Notify();
    goes_on.WaitForNotification();
  });
  is_saved.WaitForNotification();
  EXPECT_FALSE(store->is_idle()) << "a drain waits for it";
  std::atomic<int> num_refused{0};
  for (size_t i = 0; i < kMaxSavedPrefixes + 2; ++i) {
    store->SaveLater(
        [&](const absl::Status& saved) { num_refused += ReasonOf(saved) == "QUEUE_FULL" ? 1 : 0; });
  }
  const int num_refused_at_once = num_refused;
  goes_on.Notify();
  store.reset();

  EXPECT_EQ(num_refused_at_once, 2);
  EXPECT_EQ(num_refused, num_refused_at_once);
}

TEST_F(PrefixStoreTest, WhatCouldNotBeReadAgainIsNotWritten) {
  Write(EncodePrefixes(std::vector<SavedPrefix>(kMaxSavedPrefixes, kPlain)));
  const std::string full = Contents();
  const auto store = Open();
  EXPECT_TRUE(store->Save().ok());

  store->OnPinned(RequestId(1), kSalted);
  EXPECT_THAT(store->Save().message(), HasSubstr("too many prefixes"));
  EXPECT_EQ(Contents(), full);
}

TEST_F(PrefixStoreTest, TheFileIsForItsOwnerAlone) {
  Write("");
  std::filesystem::permissions(path_, std::filesystem::perms::all);
  EXPECT_TRUE(Open()->Save().ok());

  EXPECT_EQ(std::filesystem::status(path_).permissions(),
            std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
}

TEST_F(PrefixStoreTest, ALinkStaysALink) {
  std::filesystem::create_directory(folder_ / "real");
  const std::filesystem::path target = folder_ / "real" / "pins";
  std::ofstream(target) << EncodePrefixes({kPlain});
  std::filesystem::create_symlink(target, path_);

  const auto store = Open();
  store->OnPinned(RequestId(1), kSalted);
  ASSERT_TRUE(store->Save().ok());

  EXPECT_TRUE(std::filesystem::is_symlink(path_));
  EXPECT_THAT(PrefixStore::Open(target)->prefixes(), ElementsAre(kPlain, kSalted));
}

TEST_F(PrefixStoreTest, ADamagedFileIsSetAside) {
  Write("garbage");

  const auto store = Open();
  EXPECT_THAT(store->prefixes(), IsEmpty());
  EXPECT_EQ(std::filesystem::file_size(path_.string() + ".damaged"), 7U);
  EXPECT_FALSE(std::filesystem::exists(path_)) << "only Save writes it";
  EXPECT_TRUE(store->Save().ok());

  EXPECT_EQ(Contents(), EncodePrefixes({}));
}

// A write that did not end left its temporary file, which is no part of the store.
TEST_F(PrefixStoreTest, AWriteThatWasCutShortChangesNothing) {
  Write(EncodePrefixes({kPlain}));
  std::ofstream(path_.string() + ".new") << "quire pinned";

  const auto store = Open();
  EXPECT_THAT(store->prefixes(), ElementsAre(kPlain));
  EXPECT_TRUE(store->Save().ok());
  EXPECT_FALSE(std::filesystem::exists(path_.string() + ".new"));
  EXPECT_EQ(Contents(), EncodePrefixes({kPlain}));
}

// A restarted scheduler must start even if the disk is full. The client that pins a prefix gets the
// error.
TEST_F(PrefixStoreTest, AFileThatCannotBeReadOrWrittenFailsEverySaveAndNothingElse) {
  const std::filesystem::path pipe = folder_ / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), S_IRUSR | S_IWUSR), 0);
  for (const std::filesystem::path& path : {folder_, folder_ / "no" / "such" / "folder", pipe}) {
    const auto store = PrefixStore::Open(path);
    store->OnPinned(RequestId(3), kPlain);
    const absl::Status saved = store->Save();

    EXPECT_THAT(store->prefixes(), ElementsAre(kPlain));
    EXPECT_EQ(saved.code(), absl::StatusCode::kFailedPrecondition) << path;
    EXPECT_EQ(ReasonOf(saved), "PREFIX_FILE");
    EXPECT_THAT(std::string(saved.message()), HasSubstr(path.string()));
  }
  EXPECT_TRUE(std::filesystem::is_fifo(pipe));
}

}  // namespace
}  // namespace quire
