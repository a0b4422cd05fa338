// Makes the seeds in tests/fuzz/corpus of the targets whose bytes are messages, from messages of
// other tests:
//
//   ninja -C build/cpu-release quire_message_corpora && build/cpu-release/bin/quire_message_corpora
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "proto/v1/worker.pb.h"

#include "common/base/check.h"
#include "common/wire/worker_protocol.h"
#include "scheduler/rpc/prefix_store.h"
#include "tests/fuzz/message_corpora.h"
#include "tests/scheduler/core/core_simulation.h"
#include "tests/scheduler/step_log/memory_log.h"

void quire::WriteSeed(const std::string& target, const std::string& name, std::string_view bytes) {
  const std::filesystem::path folder = std::filesystem::path("tests/fuzz/corpus") / target;
  std::filesystem::create_directories(folder);
  std::ofstream file(folder / name, std::ios::binary);
  file << bytes;
  QUIRE_CHECK(file.good());
}

std::string quire::NameOfSeed(const char* bound, int past) {
  return std::string(bound) + (past == 0 ? "_at_bound" : "_past_bound");
}

namespace {

quire::v1::HandshakeResponse Hello(const std::string& uuid) {
  quire::v1::HandshakeResponse hello;
  hello.set_protocol_version(quire::kWorkerProtocolVersion);
  hello.set_worker_uuid(uuid);
  hello.set_model_hash(77);
  hello.set_weights_sum(5);
  hello.set_block_bytes(64);
  hello.set_num_blocks_max(101);
  hello.set_num_host_blocks_max(50);
  hello.set_full_step_tokens(512);
  hello.set_kv_cache_dtype(quire::v1::DTYPE_F32);
  hello.set_determinism_fingerprint("cpu-avx512");
  hello.set_vocab_size(100);
  hello.set_rendezvous("unix:/tmp/a");
  hello.set_wants_next_blocks(true);
  return hello;
}

// The first byte chooses the scheduler's wants. Each hello follows its size in two bytes.
void WriteHandshake(const std::string& name,
                    int choice,
                    const quire::v1::HandshakeResponse& first,
                    const quire::v1::HandshakeResponse& second) {
  std::string bytes(1, static_cast<char>(choice));
  for (const auto* hello : {&first, &second}) {
    const std::string message = hello->SerializeAsString();
    bytes += static_cast<char>(message.size());
    bytes += static_cast<char>(message.size() >> 8);
    bytes += message;
  }
  quire::WriteSeed("handshake", name, bytes);
}

constexpr int kHostBlocks = 1;
constexpr int kHostBlocksAndFloats = 17;

struct HelloBound {
  const char* name;
  void (*set)(quire::v1::HandshakeResponse* hello, int past);
  int choice = kHostBlocks;
};
// Bounds that are set in the hellos of both ranks.
constexpr HelloBound kHelloBounds[] = {
    {"block_bytes",
     [](auto* hello, int past) { hello->set_block_bytes((int64_t{1} << 32) + past); }},
    {"negative_block_bytes", [](auto* hello, int past) { hello->set_block_bytes(-past); }},
    {"page_bytes", [](auto* hello, int past) { hello->set_window_page_bytes(64 + past); }},
    {"negative_page_bytes", [](auto* hello, int past) { hello->set_window_page_bytes(-past); }},
    {"padding_bytes",
     [](auto* hello, int past) {
       hello->set_window_page_bytes(32);
       hello->set_block_padding_bytes(31 + past);
     }},
    {"negative_padding_bytes",
     [](auto* hello, int past) { hello->set_block_padding_bytes(-past); }},
    {"window_places", [](auto* hello, int past) { hello->set_max_window_places(-past); }},
    {"blocks", [](auto* hello, int past) { hello->set_num_blocks_max(2 - past); }},
    {"fingerprint_bytes",
     [](auto* hello, int past) {
       hello->set_determinism_fingerprint(std::string(512 + static_cast<size_t>(past), 'f'));
     }},
    {"vocabulary", [](auto* hello, int past) { hello->set_vocab_size(100 + past); }},
    {"dtype_asked_for",
     [](auto* hello, int past) {
       hello->set_kv_cache_dtype(past == 0 ? quire::v1::DTYPE_F32 : quire::v1::DTYPE_F16);
     },
     kHostBlocksAndFloats},
    {"dtype",
     [](auto* hello, int past) {
       hello->set_kv_cache_dtype(past == 0 ? quire::v1::DTYPE_F16 : quire::v1::DTYPE_UNSPECIFIED);
     }},
};
// Bounds that are set in the hello of the first rank alone.
constexpr HelloBound kRankBounds[] = {
    {"uuid_bytes",
     [](auto* hello, int past) {
       hello->set_worker_uuid(std::string(512 + static_cast<size_t>(past), 'u'));
     }},
    {"rendezvous_bytes",
     [](auto* hello, int past) {
       hello->set_rendezvous(std::string(512 + static_cast<size_t>(past), 'r'));
     }},
    {"same_uuid",
     [](auto* hello, int past) { hello->set_worker_uuid(past == 0 ? "three" : "two"); }},
    {"same_model",
     [](auto* hello, int past) { hello->set_model_hash(77U + static_cast<unsigned>(past)); }},
    {"same_block_bytes", [](auto* hello, int past) { hello->set_block_bytes(64 + past); }},
};

void WriteHandshakes() {
  for (int choice : {0, 1, 6, 13, 28, 64, 128}) {
    WriteHandshake("choice_" + std::to_string(choice), choice, Hello("one"), Hello("two"));
  }
  quire::v1::HandshakeResponse without = Hello("one");
  without.set_num_host_blocks_max(-5);  // counts as none
  without.set_full_step_tokens(-512);
  WriteHandshake(quire::NameOfSeed("negative_host_blocks", 0), kHostBlocks, without, Hello("two"));
  for (int past : {0, 1}) {
    for (const HelloBound& bound : kHelloBounds) {
      quire::v1::HandshakeResponse first = Hello("one");
      quire::v1::HandshakeResponse second = Hello("two");
      bound.set(&first, past);
      bound.set(&second, past);
      WriteHandshake(quire::NameOfSeed(bound.name, past), bound.choice, first, second);
    }
    for (const HelloBound& bound : kRankBounds) {
      quire::v1::HandshakeResponse first = Hello("one");
      bound.set(&first, past);
      WriteHandshake(quire::NameOfSeed(bound.name, past), bound.choice, first, Hello("two"));
    }
  }
}

// The first byte, 2, chooses payloads. Each payload follows its size in two bytes.
std::string PayloadsOf(std::string_view log) {
  quire::StepLogEncoder encoder;
  log.remove_prefix(encoder.Head("test").size());
  std::string bytes(1, '\2');
  while (!log.empty()) {
    quire::ByteReader frame(log);
    const uint32_t size = frame.Fixed32();
    bytes += static_cast<char>(size);
    bytes += static_cast<char>(size >> 8);
    bytes += log.substr(16, size);
    log.remove_prefix(16 + size);
  }
  return bytes;
}

// The records of a small log, which a core replays without a complaint.
std::vector<quire::StepLogRecord> AllowedRecords() {
  const quire::StepLimits limits = {.num_blocks = 9,
                                    .num_host_blocks = 0,
                                    .block_size_tokens = 4,
                                    .max_sequences = 4,
                                    .max_tokens_per_step = 8,
                                    .max_model_len = 32,
                                    .vocab_size = 31};
  const quire::Request request{
      .id = quire::RequestId(2), .prompt_token_ids = {1, 2, 3}, .max_tokens = 4};
  return {quire::CoreConfig{},
          quire::EpochBegun{.scheduler_incarnation = 1, .group_epoch = 1, .limits = limits},
          request,
          quire::PinPrefixCalled{.id = quire::RequestId(3), .token_ids = {1, 2, 3, 4}},
          quire::PlanStepCalled{.now = 1}};
}

using SetRecordBound = void (*)(std::vector<quire::StepLogRecord>* records, int past);
constexpr std::pair<const char*, SetRecordBound> kRecordBounds[] = {
    {"watermark",
     [](auto* records, int past) {
       std::get<quire::CoreConfig>((*records)[0]).watermark = past == 0 ? 0.99 : 1.0;
     }},
    {"blocks",
     [](auto* records, int past) {
       std::get<quire::EpochBegun>((*records)[1]).limits.num_blocks = 2 - past;
     }},
    {"target_inter_token",
     [](auto* records, int past) {
       std::get<quire::CoreConfig>((*records)[0]).target_inter_token = -past;
     }},
    {"block_size",
     [](auto* records, int past) {
       std::get<quire::EpochBegun>((*records)[1]).limits.block_size_tokens = 2 + past;
     }},
    {"epochs",
     [](auto* records, int past) {
       const quire::StepLogRecord begun = (*records)[1];
       *records = {(*records)[0], begun};
       if (past == 0) {
         records->push_back(quire::WorkersLost{});
       }
       records->push_back(begun);
     }},
    {"prompt",
     [](auto* records, int past) {
       std::get<quire::Request>((*records)[2])
           .prompt_token_ids.resize(1 - static_cast<size_t>(past));
     }},
    {"max_tokens",
     [](auto* records, int past) {
       std::get<quire::Request>((*records)[2]).max_tokens = 1 - past;
     }},
    {"sequences",
     [](auto* records, int past) {
       std::get<quire::Request>((*records)[2]).num_sequences = 1 - past;
     }},
    {"request_id",
     [](auto* records, int past) {
       records->push_back((*records)[2]);
       std::get<quire::Request>(records->back()).id = quire::RequestId(past == 0 ? 4 : 2);
     }},
    {"pinned_tokens",
     [](auto* records, int past) {
       std::get<quire::PinPrefixCalled>((*records)[3])
           .token_ids.resize(4 - 4 * static_cast<size_t>(past));
     }},
    {"pin_id",
     [](auto* records, int past) {
       std::get<quire::PinPrefixCalled>((*records)[3]).id = quire::RequestId(past == 0 ? 3 : 2);
     }},
    {"plans",
     [](auto* records, int past) {
       if (past != 0) {
         records->push_back((*records)[4]);
       }
     }},
    {"configuration",
     [](auto* records, int past) {
       if (past != 0) {
         records->push_back((*records)[0]);
       }
     }},
};

void WriteRecordBounds() {
  for (const auto& [name, set] : kRecordBounds) {
    for (int past : {0, 1}) {
      std::vector<quire::StepLogRecord> records = AllowedRecords();
      set(&records, past);
      quire::WriteSeed(
          "step_log", quire::NameOfSeed(name, past), PayloadsOf(quire::LogOf(records)));
    }
  }
  const auto kind = static_cast<char>(std::variant_size_v<quire::StepLogRecord>);
  quire::WriteSeed("step_log",
                   quire::NameOfSeed("kind", 1),
                   PayloadsOf(quire::LogOf(AllowedRecords())) + std::string("\1\0", 2) + kind);
  for (const auto& [name, lines] : {std::pair("one_token_at_bound", "- 1\n"),
                                    std::pair("no_token_past_bound", "-\n"),
                                    std::pair("two_blanks_past_bound", "-  1\n"),
                                    std::pair("odd_digits_past_bound", "abc 1\n"),
                                    std::pair("large_digits_past_bound", "AB 1\n"),
                                    std::pair("zero_in_front_past_bound", "- 01\n"),
                                    std::pair("token_past_bound", "- 2147483648\n")}) {
    quire::WriteSeed("step_log", std::string("prefix_") + name, std::string("\1") + lines);
  }
}

void WriteLogs() {
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    quire::MemoryLog log;
    quire::CoreSimulation simulation(seed, {.sink = &log, .program_version = "test"});
    QUIRE_CHECK(simulation.Run(15).empty());
    quire::WriteSeed("step_log", "payloads_" + std::to_string(seed), PayloadsOf(log.bytes));
    if (seed == 1) {
      quire::WriteSeed("step_log", "file", '\0' + log.bytes.substr(0, 600));
    }
  }
  WriteRecordBounds();
  const std::string prefixes = quire::EncodePrefixes(
      {{.token_ids = {1, 2, 3}, .cache_salt = ""}, {.token_ids = {70000}, .cache_salt = "salt"}});
  quire::WriteSeed("step_log", "prefixes", '\0' + prefixes);
  quire::WriteSeed("step_log", "prefix_lines", '\1' + prefixes.substr(prefixes.find('\n') + 1));
}

}  // namespace

int main() {
  quire::WriteStepSeeds();
  WriteHandshakes();
  quire::WriteRequestSeeds();
  WriteLogs();
}
