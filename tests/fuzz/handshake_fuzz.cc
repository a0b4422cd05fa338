// Parses bytes as the two handshakes of a group. They are refused with a reason, or the group
// agrees on limits. Those must be limits that every worker accepts, within both workers' own.
#include <array>
#include <optional>
#include <string>

#include <google/protobuf/stubs/logging.h>

#include "common/base/check.h"
#include "common/base/error.h"
#include "common/step/step_plan_check.h"
#include "common/wire/worker_protocol.h"
#include "scheduler/group/agreement.h"
#include "scheduler/rpc/worker_hello_codec.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/fuzz/fuzz_verdict.h"

namespace {

quire::GroupSettings Settings(uint8_t choice) {
  quire::GroupSettings settings;
  settings.model.vocab_size = 100;
  settings.model.max_position_embeddings = 1000;
  settings.wants_host_blocks = (choice & 1) != 0;
  settings.allow_changed_numerics = (choice & 2) != 0;
  if ((choice & 4) != 0) {
    settings.max_model_len = 600;
  }
  if ((choice & 8) != 0) {
    settings.num_blocks_override = 40;
  }
  if ((choice & 16) != 0) {
    settings.kv_cache_dtype = quire::DType::kF32;
  }
  return settings;
}

// Parses a hello. Unless `is_as_it_came`, its version and model become the expected ones, because a
// fuzzer does not find a hash by chance.
std::optional<quire::WorkerHello> TakeHello(const quire::GroupSettings& settings,
                                            bool is_as_it_came,
                                            quire::FuzzInput* input) {
  const size_t low = input->TakeByte();
  const std::string_view bytes = input->TakeBytes(low + 256 * size_t{input->TakeByte()});
  quire::v1::HandshakeResponse response;
  if (!response.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return std::nullopt;
  }
  if (!is_as_it_came) {
    response.set_protocol_version(quire::kWorkerProtocolVersion);
    response.set_config_hash(quire::HashOf(settings.model));
  }
  auto hello = quire::HelloOf(response);
  if (!hello.ok()) {
    QUIRE_CHECK_EQ(quire::ReasonOf(hello.status()), "CONFIG_MISMATCH");
    return std::nullopt;
  }
  return *std::move(hello);
}

void CheckReason(const absl::Status& status) {
  const auto reason = quire::ReasonOf(status);
  QUIRE_CHECK(reason == "CONFIG_MISMATCH" || reason == "PROTOCOL_VIOLATION" ||
              reason == "NO_MEMORY" || reason == "STEP_LIMITS");
  QUIRE_CHECK_LE(status.message().size(), size_t{2000});  // what was sent goes into logs
}

void CheckAgreement(const quire::Agreement& agreement,
                    const std::array<quire::WorkerHello, 2>& hellos,
                    const quire::GroupSettings& settings) {
  const quire::StepLimits& limits = agreement.limits;
  QUIRE_CHECK(quire::Validate(limits).ok());
  for (const quire::WorkerHello& hello : hellos) {
    QUIRE_CHECK_LE(limits.num_blocks, hello.num_blocks_max);
    QUIRE_CHECK(limits.num_host_blocks == 0 || limits.num_host_blocks <= hello.num_host_blocks_max);
    QUIRE_CHECK(hello.kv_cache_dtype == agreement.numerics.kv_cache_dtype);
    QUIRE_CHECK(hello.kv_cache_dtype == settings.kv_cache_dtype.value_or(*hello.kv_cache_dtype));
    QUIRE_CHECK(hello.vocab_size == settings.model.vocab_size);
    const quire::KvMemory& memory = hello.kv_memory;
    QUIRE_CHECK(memory.page_bytes == 0 || hello.block_bytes % memory.page_bytes == 0 ||
                memory.page_bytes % hello.block_bytes == 0);
    QUIRE_CHECK_LE(memory.page_bytes, hello.block_bytes * limits.blocks_per_page);
    QUIRE_CHECK(memory.padding_bytes >= 0 && memory.padding_bytes <= hello.block_bytes);
    QUIRE_CHECK(memory.max_places.value_or(0) >= 0);
  }
  QUIRE_CHECK_EQ(limits.wants_next_blocks,
                 hellos[0].wants_next_blocks || hellos[1].wants_next_blocks);
  QUIRE_CHECK_LE(limits.max_model_len, settings.model.max_position_embeddings);
  QUIRE_CHECK_LE(limits.max_model_len, settings.max_model_len.value_or(limits.max_model_len));
  QUIRE_CHECK_LE(limits.num_blocks, settings.num_blocks_override.value_or(limits.num_blocks));
  QUIRE_CHECK(settings.wants_host_blocks || limits.num_host_blocks == 0);
  QUIRE_CHECK(hellos[0].uuid != hellos[1].uuid && hellos[0].model_hash == hellos[1].model_hash &&
              hellos[0].block_bytes == hellos[1].block_bytes &&
              hellos[0].determinism_fingerprint == hellos[1].determinism_fingerprint);
  QUIRE_CHECK(agreement.block_bytes >= 0 &&
              agreement.block_bytes <= INT64_MAX / limits.num_blocks);  // the pool in bytes
  QUIRE_CHECK(!agreement.numerics.fingerprint().empty());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const google::protobuf::LogSilencer quiet;  // a line for each field that is no UTF-8
  quire::FuzzInput input(data, size);
  const uint8_t choice = input.TakeByte();
  const quire::GroupSettings settings = Settings(choice);
  std::array<quire::WorkerHello, 2> hellos;
  for (size_t rank = 0; rank < hellos.size(); ++rank) {
    const auto hello = TakeHello(settings, (choice & 0x80) != 0, &input);
    if (!hello.has_value()) {
      return 0;
    }
    hellos[rank] = *hello;
    if ((choice & 0x40) != 0) {  // ranks differ in who they are alone
      hellos[rank] = hellos[0];
      hellos[rank].uuid += std::to_string(rank);
    }
    const auto status =
        quire::CheckHello(hellos[rank], static_cast<int32_t>(rank), settings, std::nullopt);
    if (!status.ok()) {
      CheckReason(status);
      return 0;
    }
  }
  const auto agreement = quire::Agree(hellos, settings);
  if (!agreement.ok()) {
    CheckReason(agreement.status());
    return 0;
  }
  CheckAgreement(*agreement, hellos, settings);
  for (size_t rank = 0; rank < hellos.size(); ++rank) {  // who was let in may come back
    QUIRE_CHECK(
        quire::CheckHello(hellos[rank], static_cast<int32_t>(rank), settings, agreement->numerics)
            .ok());
  }
  quire::is_accepted = true;
  return 0;
}
