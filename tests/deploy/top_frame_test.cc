// The frames of testdata/top_frame.txt. After a change that is meant, run
//   top_frame_test --rewrite
// and review the diff. An escape character is shown as "\e", the end of a line as "|".
#include "deploy/cli/top_frame.h"

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/support/datadriven.h"

namespace quire {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

bool rewrites_goldens = false;

v1::GetStateResponse Idle() {
  v1::GetStateResponse state;
  state.set_version("0.1.0");
  state.set_model("stories");
  state.set_time_us(1'000'000);
  v1::GetLoadResponse& load = *state.mutable_load();
  load.set_ready(true);
  load.mutable_kv_blocks()->set_num_blocks(800);
  load.mutable_kv_blocks()->set_num_free(800);
  load.mutable_kv_blocks()->set_block_size_tokens(16);
  load.add_ranks()->set_address("unix:/run/worker0.sock");
  load.mutable_ranks(0)->set_phase(v1::Rank::READY);
  state.mutable_block_map()->set_blocks_per_cell(4);
  for (int i = 0; i < 200; ++i) {
    state.mutable_block_map()->add_num_cached(0);
    state.mutable_block_map()->add_num_active(0);
    state.mutable_block_map()->add_num_leaving(0);
    state.mutable_block_map()->add_num_shared(0);
    state.mutable_block_map()->add_holder(0);
  }
  return state;
}

// A second later: 3 requests run, one of them in many blocks that it shares.
v1::GetStateResponse Busy() {
  v1::GetStateResponse state = Idle();
  state.set_time_us(2'000'000);
  state.set_num_prompt_tokens(1200);
  state.set_num_generated_tokens(345);
  state.mutable_steps()->set_num_steps(50);
  state.mutable_steps()->set_plan_us(10'000);
  state.mutable_steps()->set_wait_us(600'000);
  state.mutable_steps()->set_worker_forward_us(550'000);
  state.mutable_steps()->set_apply_us(5'000);
  v1::GetLoadResponse& load = *state.mutable_load();
  load.set_num_running_requests(3);
  load.set_num_running_sequences(5);
  load.set_num_waiting_requests(12);
  load.set_num_queued_tokens(4321);
  load.set_num_swap_preemptions(2);
  load.set_swapped_out_bytes(3 << 20);
  load.set_num_prefix_queried_tokens(2000);
  load.set_num_prefix_hit_tokens(500);
  load.mutable_kv_blocks()->set_num_free(540);
  load.mutable_kv_blocks()->set_num_cached(40);
  load.mutable_kv_blocks()->set_num_active(210);
  load.mutable_kv_blocks()->set_num_leaving(10);
  load.mutable_kv_blocks()->set_num_shared(80);
  load.mutable_kv_blocks()->set_num_stored_tokens(3300);
  load.mutable_kv_blocks()->set_num_referenced_tokens(4500);
  load.mutable_kv_blocks()->set_fragmentation(0.0179);
  load.mutable_host_blocks()->set_num_blocks(64);
  load.mutable_host_blocks()->set_num_free(60);
  load.mutable_ranks(0)->mutable_kv_memory()->set_backend(v1::KV_BACKEND_VMM);
  load.mutable_ranks(0)->mutable_kv_memory()->set_num_places(1234);
  load.add_ranks()->set_address("unix:/run/worker1.sock");
  load.mutable_ranks(1)->set_phase(v1::Rank::LOADING);
  v1::BlockMap& map = *state.mutable_block_map();
  const auto fill = [&map](int first, int end, uint32_t num_active, uint64_t holder) {
    for (int i = first; i < end; ++i) {
      map.set_num_active(i, num_active);
      map.set_holder(i, holder);
    }
  };
  fill(0, 20, 4, 12);
  fill(20, 40, 3, 13);
  fill(40, 75, 2, 14);
  for (int i = 0; i < 20; ++i) {
    map.set_num_shared(i, 4);
    map.set_num_cached(i + 80, 2);
  }
  for (int i = 100; i < 105; ++i) {
    map.set_num_leaving(i, 2);
  }
  const char* const names[] = {"", "chatcmpl-0123456789abcdef", "short"};
  for (int i = 0; i < 3; ++i) {
    v1::BlockHolder& holder = *map.add_holders();
    holder.set_number(static_cast<uint64_t>(12 + i));
    holder.set_request_id(names[i]);
    holder.set_is_prefix(i == 0);
    holder.set_num_blocks(80 - 5 * i);
  }
  return state;
}

// What nobody would send who means well.
v1::GetStateResponse Hostile() {
  v1::GetStateResponse state = Busy();
  const int64_t most = std::numeric_limits<int64_t>::max();
  const int32_t most32 = std::numeric_limits<int32_t>::max();
  state.set_version("\x1b[2J\x1b]0;gone\x07");
  state.set_model("<b>\r\nname \xff\xfe \xc3\xa9");
  state.set_time_us(most);
  state.set_num_generated_tokens(most);
  state.mutable_steps()->set_wait_us(-most);
  v1::GetLoadResponse& load = *state.mutable_load();
  load.set_num_queued_tokens(-most);
  load.set_num_recompute_preemptions(most);
  load.set_num_swap_preemptions(most);
  load.set_swapped_out_bytes(most);
  load.set_swapped_in_bytes(-most);
  load.set_num_running_requests(-most32);
  load.mutable_kv_blocks()->set_num_blocks(-1);
  load.mutable_kv_blocks()->set_num_free(most32);
  load.mutable_kv_blocks()->set_num_cached(most32);
  load.mutable_kv_blocks()->set_fragmentation(std::numeric_limits<double>::quiet_NaN());
  load.mutable_host_blocks()->set_num_blocks(most32);
  load.mutable_host_blocks()->set_num_free(-most32);
  for (int i = 0; i < 100; ++i) {
    load.add_ranks()->set_address("\x1b[31m" + std::string(5000, '\t'));
    v1::KvMemory& memory = *load.mutable_ranks(load.ranks_size() - 1)->mutable_kv_memory();
    memory.set_backend(v1::KV_BACKEND_VMM);
    memory.set_num_places(-most);
  }
  v1::BlockMap& map = *state.mutable_block_map();
  map.set_blocks_per_cell(-5);
  map.mutable_num_cached()->Truncate(3);
  map.mutable_num_leaving()->Clear();
  map.mutable_holder()->Truncate(1);
  map.set_num_shared(0, std::numeric_limits<uint32_t>::max());
  for (int i = 0; i < 100'000; ++i) {
    map.add_num_active(std::numeric_limits<uint32_t>::max());
  }
  map.mutable_holders(1)->set_request_id("\x9b" + std::string(100'000, '\n'));
  map.mutable_holders(2)->set_num_blocks(-most32);
  return state;
}

TopHistory HistoryOf(const std::string& name) {
  TopHistory history;
  if (name == "none") {
    return history;
  }
  history.Add(Idle());
  if (name == "busy") {
    history.Add(Busy());
  } else if (name == "hostile") {
    history.Add(Hostile());
  }
  return history;
}

std::string Frame(const ScenarioCommand& command) {
  const TopHistory history = HistoryOf(command.Text("state", ""));
  const FrameStyle style = {.width = static_cast<int>(command.Int("width", 80)),
                            .height = static_cast<int>(command.Int("height", 0)),
                            .has_color = command.Int("color", 0) != 0,
                            .has_unicode = command.Int("unicode", 0) != 0};
  const std::string trouble = command.Text("trouble", "");
  return absl::StrReplaceAll(TopFrame(history, "unix:/run/admin.sock", trouble, style),
                             {{"\x1b", "\\e"}, {"\n", "|\n"}});
}

TEST(TopFrameTest, FramesAreAsTheyWere) {
  RunScenario("tests/deploy/testdata/top_frame.txt", Frame, rewrites_goldens);
}

// The columns of a line that a terminal shows, and what else is in it.
struct Seen {
  int columns = 0;
  bool has_other_escapes = false;
  bool has_control = false;
};
Seen See(const std::string& line) {
  Seen seen;
  for (size_t i = 0; i < line.size(); ++i) {
    const auto c = static_cast<unsigned char>(line[i]);
    if (c == 0x1B) {  // a color, and nothing else
      const size_t end = line.find_first_not_of("0123456789;", i + 2);
      seen.has_other_escapes |= line[i + 1] != '[' || line[end] != 'm';
      i = end;
      continue;
    }
    seen.has_control |= c < 0x20 || c == 0x7F;
    seen.columns += (c & 0xC0) == 0x80 ? 0 : 1;
  }
  return seen;
}

TEST(TopFrameTest, NoServerAndNoTerminalMakesItWiderHigherOrWild) {
  for (const char* name : {"none", "idle", "busy", "hostile"}) {
    for (const int width : {-1, 0, 24, 40, 80, 81, 200, 65'535}) {
      for (const int height : {1, 2, 10, 24, 60}) {
        const std::string frame = TopFrame(
            HistoryOf(name), "\x1b[1m", "\n\x07", {width, height, /*has_color=*/true, true});

        const std::vector<std::string> lines = absl::StrSplit(frame, '\n');
        EXPECT_LE(lines.size(), static_cast<size_t>(height) + 1);
        for (const std::string& line : lines) {
          const Seen seen = See(line);
          EXPECT_LE(seen.columns, std::max(width, kMinFrameWidth)) << line;
          EXPECT_FALSE(seen.has_other_escapes || seen.has_control) << line;
        }
      }
    }
  }
}

TEST(TopFrameTest, WithoutColorThereIsNoEscape) {
  const std::string frame =
      TopFrame(HistoryOf("hostile"), "\x1b[1m", "\x1b[2J", {.width = 80, .height = 0});

  EXPECT_THAT(frame, Not(HasSubstr("\x1b")));
}

TEST(TopFrameTest, EverythingIsPlainAsciiWhereTheLocaleIsNotUtf8) {
  for (const char* name : {"idle", "busy", "hostile"}) {
    for (const char c : TopFrame(HistoryOf(name), "\xc3\xa9", "\xff", {.width = 80})) {
      EXPECT_GE(c, '\n');
    }
  }
}

TEST(TopLineTest, IsOneLineOfPairs) {
  EXPECT_EQ(TopLine(HistoryOf("busy")),
            "ready=yes standby=no running=3 waiting=12 swapped=0 sequences=5 queued_tokens=4321 "
            "generated_tokens_per_s=345.0 prompt_tokens_per_s=1200.0 steps_per_s=50.0 "
            "kv_used=27.5% free=540 cached=40 active=210 leaving=10 pending=0 shared=80 "
            "preemptions=2 prefix_hits=25.0%\n");
  EXPECT_THAT(TopLine(HistoryOf("hostile")),
              StartsWith("ready=yes standby=no running=-2147483647 "));
}

}  // namespace

void RewriteGoldens() { rewrites_goldens = true; }

}  // namespace quire

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  if (argc > 1 && std::string(argv[1]) == "--rewrite") {
    quire::RewriteGoldens();
  }
  return RUN_ALL_TESTS();
}
