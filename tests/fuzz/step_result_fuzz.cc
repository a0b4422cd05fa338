// Bytes as a StepResponse, once as they are and once with the digest that they should have: refused
// with a reason, or the result is the same after another trip over the wire, and refused when a bit
// of it changes on the way.
#include <string>

#include "common/base/check.h"
#include "common/base/error.h"
#include "common/wire/step_codec.h"
#include "tests/fuzz/flip_a_bit.h"
#include "tests/fuzz/fuzz_verdict.h"

namespace {

// A result as bytes: two numbers that are none are equal then.
std::string Encoded(const quire::StepResult& result) {
  quire::v1::StepResponse response;
  quire::EncodeResult(result, &response);
  return response.SerializeAsString();
}

void CheckDamaged(const std::string& bytes) {
  std::string damaged = bytes;
  quire::FlipABit(&damaged);
  quire::v1::StepResponse response;
  if (response.ParseFromString(damaged)) {
    const auto result = quire::DecodeResult(response);
    QUIRE_CHECK(!result.ok() || Encoded(*result) == bytes);  // equal where a zero is not sent
  }
}

void Decode(const quire::v1::StepResponse& response) {
  const auto result = quire::DecodeResult(response);
  if (!result.ok()) {
    QUIRE_CHECK_EQ(quire::ReasonOf(result.status()), "MALFORMED_PROTO");
    return;
  }
  QUIRE_CHECK_EQ(response.result_digest(), quire::DigestOf(response));
  QUIRE_CHECK_EQ(result->sampled.size(), static_cast<size_t>(response.handle_size()));
  size_t num_top = 0;
  for (const quire::SampledToken& sampled : result->sampled) {
    num_top += sampled.top_logprobs.size();
  }
  QUIRE_CHECK_EQ(num_top, static_cast<size_t>(response.top_token_id_size()));
  size_t num_scored = 0;
  for (const quire::ScoredSlice& scored : result->scored) {
    num_scored += scored.prompt.logprobs.size();
    QUIRE_CHECK_EQ(scored.prompt.top.size(),
                   scored.prompt.logprobs.size() * static_cast<size_t>(scored.prompt.num_top));
  }
  QUIRE_CHECK_EQ(num_scored, static_cast<size_t>(response.prompt_logprob_size()));
  const std::string bytes = Encoded(*result);
  quire::v1::StepResponse again;
  QUIRE_CHECK(again.ParseFromString(bytes));
  const auto back = quire::DecodeResult(again);
  QUIRE_CHECK(back.ok() && Encoded(*back) == bytes);
  CheckDamaged(bytes);
  // `finite` is a number on the wire and a truth in the result; all else is as it came.
  for (int i = 0; i < response.finite_size(); ++i) {
    again.set_finite(i, response.finite(i));
  }
  QUIRE_CHECK_EQ(quire::DigestOf(again), quire::DigestOf(response));
  quire::is_accepted = true;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  quire::v1::StepResponse response;
  if (!response.ParseFromArray(data, static_cast<int>(size))) {
    return 0;
  }
  Decode(response);
  response.set_result_digest(quire::DigestOf(response));
  Decode(response);
  return 0;
}
