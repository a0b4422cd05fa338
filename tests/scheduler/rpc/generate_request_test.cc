#include "scheduler/rpc/generate_request.h"

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "common/base/error.h"
#include "scheduler/rpc/resume_check.h"
#include "tests/scheduler/rpc/tiny_served_model.h"

namespace quire {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

constexpr int32_t kMaxModelLen = 64;
constexpr uint64_t kFreshSeed = 4242;
constexpr char kFingerprint[] = "cpu/bf16/0123";

const ServedModel& Model() {
  static const ServedModel& model = *new ServedModel(TinyServedModel());
  return model;
}
const ServedModel& ModelWithoutTokenizer() {
  static const ServedModel& model = *new ServedModel(TinyServedModel(/*with_tokenizer=*/false));
  return model;
}
RequestRules Rules(const ServedModel& model = Model()) {
  return {.model = &model,
          .max_model_len = kMaxModelLen,
          .fresh_seed = kFreshSeed,
          .determinism_fingerprint = kFingerprint};
}

v1::GenerateRequest GoodRequest() {
  v1::GenerateRequest message;
  message.set_text("hello");
  return message;
}

// Both steps, as the service takes them.
absl::StatusOr<GenerateSpec> Check(
    const v1::GenerateRequest& message,
    const RequestRules& rules = Rules(),
    const StopCheck& stop_check = [] { return absl::OkStatus(); }) {
  absl::StatusOr<GenerateSpec> spec = CheckGenerateRequest(message, rules);
  if (!spec.ok()) {
    return spec;
  }
  std::vector<TokenId> prompt = spec->token_ids;
  if (spec->text.has_value()) {
    auto ids = rules.model->tokenizer->Encode(
        *spec->text, spec->add_special_tokens, spec->parse_special_tokens);
    if (!ids.ok()) {
      return ids.status();
    }
    prompt = *ids;
  }
  const absl::Status status = SetPrompt(std::move(prompt), rules, stop_check, &*spec);
  if (!status.ok()) {
    return status;
  }
  return spec;
}

struct BadRequest {
  std::string name;
  std::string reason;
  std::function<void(v1::GenerateRequest&)> spoil;
  absl::StatusCode code = absl::StatusCode::kInvalidArgument;
};

class GenerateRequestRefusalTest : public testing::TestWithParam<BadRequest> {};

TEST_P(GenerateRequestRefusalTest, NamesTheReason) {
  v1::GenerateRequest message = GoodRequest();
  GetParam().spoil(message);

  const auto spec = Check(message);

  ASSERT_FALSE(spec.ok());
  EXPECT_EQ(spec.status().code(), GetParam().code) << spec.status();
  EXPECT_EQ(ReasonOf(spec.status()), GetParam().reason) << spec.status();
  EXPECT_THAT(std::string(spec.status().message()), Not(HasSubstr("hello")));
}

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

std::vector<BadRequest> BadPrompts() {
  using R = v1::GenerateRequest;
  const auto text = [](std::string bytes) {
    return [bytes = std::move(bytes)](R& r) { r.set_text(bytes); };
  };
  const auto ids = [](std::vector<TokenId> values) {
    return [values = std::move(values)](R& r) {
      r.clear_text();
      for (TokenId id : values) {
        r.mutable_token_ids()->add_ids(id);
      }
    };
  };
  return {
      {"B015_Empty", "MISSING_FIELD", [](R& r) { r.Clear(); }},
      {"B016_BothPrompts", "CONFLICTING_FIELDS", [](R& r) { r.mutable_token_ids()->add_ids(1); }},
      {"B016_BothPromptsOneEmpty", "CONFLICTING_FIELDS", [](R& r) { r.mutable_token_ids(); }},
      {"B017_NoPrompt", "MISSING_FIELD", [](R& r) { r.clear_text(); }},
      {"B018_EmptyText", "EMPTY_PROMPT", text("")},
      {"B018_EmptyIds",
       "EMPTY_PROMPT",
       [](R& r) {
         r.clear_text();
         r.mutable_token_ids();
       }},
      {"B019_LoneContinuation", "INVALID_UTF8", text("a\x80")},
      {"B019_Overlong", "INVALID_UTF8", text("\xC0\x80")},
      {"B019_Surrogate", "INVALID_UTF8", text("\xED\xA0\x80")},
      {"B019_TooLarge", "INVALID_UTF8", text("\xF4\x90\x80\x80")},
      {"B019_CutTail", "INVALID_UTF8", text("a\xE2\x82")},
      {"B021_TooManyBytes", "PROMPT_BYTES", text(std::string(kMaxPromptBytes + 1, 'a'))},
      {"B022_TextFillsContext", "PROMPT_TOO_LONG", text(std::string(kMaxModelLen, 'a'))},
      {"B022_IdsFillContext", "PROMPT_TOO_LONG", ids(std::vector<TokenId>(kMaxModelLen, 1))},
      {"B023_PromptAndOutput",
       "CONTEXT_EXCEEDED",
       [](R& r) { r.mutable_stopping()->set_max_tokens(kMaxModelLen - 4); }},
      {"B025_NegativeId", "TOKEN_ID_RANGE", ids({1, -1})},
      {"B025_VocabularySize", "TOKEN_ID_RANGE", ids({kTinyVocabSize})},
      {"B025_LargestId", "TOKEN_ID_RANGE", ids({std::numeric_limits<TokenId>::max()})},
      {"B026_PaddingId", "TOKEN_ID_RANGE", ids({kTinyVocabSize - 1})},
      {"B027_MillionIds", "PROMPT_TOO_LONG", ids(std::vector<TokenId>(1'000'000, 1))},
      {"B061_UnknownModel",
       "MODEL",
       [](R& r) { r.set_model("huge"); },
       absl::StatusCode::kNotFound},
      {"B062_LongModelName", "MODEL_NAME", [](R& r) { r.set_model(std::string(257, 'm')); }},
      {"B062_ControlInModelName", "MODEL_NAME", [](R& r) { r.set_model("ti\nny"); }},
      {"B068_LongRequestId", "REQUEST_ID", [](R& r) { r.set_request_id(std::string(129, 'i')); }},
      {"B068_SpaceInRequestId", "REQUEST_ID", [](R& r) { r.set_request_id("a b"); }},
      {"B068_SlashInRequestId", "REQUEST_ID", [](R& r) { r.set_request_id("../x"); }},
      {"B072_ZeroTimeout", "TIMEOUT", [](R& r) { r.set_timeout_ms(0); }},
      {"B072_NegativeTimeout", "TIMEOUT", [](R& r) { r.set_timeout_ms(-5); }},
  };
}

std::vector<BadRequest> BadSampling() {
  const auto sampling = [](std::function<void(v1::SamplingParams&)> set) {
    return [set = std::move(set)](v1::GenerateRequest& r) { set(*r.mutable_sampling()); };
  };
  const auto number = [&sampling](void (v1::SamplingParams::*setter)(float), float value) {
    return sampling([setter, value](v1::SamplingParams& s) { (s.*setter)(value); });
  };
  const auto bias = [&sampling](TokenId id, float value) {
    return sampling([id, value](v1::SamplingParams& s) {
      s.add_logit_bias()->set_token_id(id);
      s.mutable_logit_bias(0)->set_bias(value);
    });
  };
  using S = v1::SamplingParams;
  return {
      {"B034_NegativeTemperature", "TEMPERATURE_RANGE", number(&S::set_temperature, -0.1F)},
      {"B034_NanTemperature", "TEMPERATURE_RANGE", number(&S::set_temperature, kNan)},
      {"B034_InfiniteTemperature", "TEMPERATURE_RANGE", number(&S::set_temperature, kInf)},
      {"B034_HotTemperature", "TEMPERATURE_RANGE", number(&S::set_temperature, 100.5F)},
      {"B036_ZeroTopP", "TOP_P_RANGE", number(&S::set_top_p, 0.0F)},
      {"B036_LargeTopP", "TOP_P_RANGE", number(&S::set_top_p, 1.01F)},
      {"B036_NanTopP", "TOP_P_RANGE", number(&S::set_top_p, kNan)},
      {"B037_NegativeTopK", "TOP_K_RANGE", sampling([](S& s) { s.set_top_k(-1); })},
      {"B037_LargeTopK", "TOP_K_RANGE", sampling([](S& s) { s.set_top_k(kTinyVocabSize + 1); })},
      {"B038_NegativeMinP", "MIN_P_RANGE", number(&S::set_min_p, -0.1F)},
      {"B038_LargeMinP", "MIN_P_RANGE", number(&S::set_min_p, 1.1F)},
      {"B038_NanMinP", "MIN_P_RANGE", number(&S::set_min_p, kNan)},
      {"B039_ZeroRepetition", "PENALTY_RANGE", number(&S::set_repetition_penalty, 0.0F)},
      {"B039_TinyRepetition", "PENALTY_RANGE", number(&S::set_repetition_penalty, 1e-38F)},
      {"B039_SmallRepetition", "PENALTY_RANGE", number(&S::set_repetition_penalty, 0.0099F)},
      {"B039_NanRepetition", "PENALTY_RANGE", number(&S::set_repetition_penalty, kNan)},
      {"B039_InfiniteRepetition", "PENALTY_RANGE", number(&S::set_repetition_penalty, kInf)},
      {"B040_Presence", "PENALTY_RANGE", number(&S::set_presence_penalty, 2.1F)},
      {"B040_Frequency", "PENALTY_RANGE", number(&S::set_frequency_penalty, -2.1F)},
      {"B040_NanFrequency", "PENALTY_RANGE", number(&S::set_frequency_penalty, kNan)},
      {"B052_ManyBiases", "LOGIT_BIAS", sampling([](S& s) {
         for (int i = 0; i < 301; ++i) {
           s.add_logit_bias()->set_token_id(i);
         }
       })},
      {"B052_BiasId", "LOGIT_BIAS", bias(kTinyVocabSize, 1.0F)},
      {"B052_NegativeBiasId", "LOGIT_BIAS", bias(-1, 1.0F)},
      {"B052_NanBias", "LOGIT_BIAS", bias(1, kNan)},
      {"B052_LargeBias", "LOGIT_BIAS", bias(1, 100.5F)},
      {"B052_TwiceTheSame", "LOGIT_BIAS", sampling([](S& s) {
         s.add_logit_bias()->set_token_id(1);
         s.add_logit_bias()->set_token_id(1);
       })},
      {"B053_NothingLeft", "NO_TOKEN_ALLOWED", sampling([](S& s) {
         for (TokenId id = 0; id < kTinyVocabSize; ++id) {
           v1::LogitBias* entry = s.add_logit_bias();
           entry->set_token_id(id);
           entry->set_bias(-100.0F);
         }
       })},
  };
}

std::vector<BadRequest> BadStopping() {
  using R = v1::GenerateRequest;
  const auto stopping = [](std::function<void(v1::StoppingParams&)> set) {
    return [set = std::move(set)](R& r) { set(*r.mutable_stopping()); };
  };
  using S = v1::StoppingParams;
  const auto logprobs = [](int32_t k) {
    return [k](R& r) { r.mutable_response()->set_logprobs(k); };
  };
  const auto prompt_logprobs = [](int32_t k) {
    return [k](R& r) { r.mutable_response()->set_prompt_logprobs(k); };
  };
  return {
      {"B030_ZeroMaxTokens", "MAX_TOKENS_RANGE", stopping([](S& s) { s.set_max_tokens(0); })},
      {"B031_NegativeMaxTokens", "MAX_TOKENS_RANGE", stopping([](S& s) { s.set_max_tokens(-1); })},
      {"B032_LargeMaxTokens", "MAX_TOKENS_RANGE", stopping([](S& s) {
         s.set_max_tokens(kMaxModelLen + 1);
       })},
      {"B033_MinAboveMax", "MIN_TOKENS_RANGE", stopping([](S& s) {
         s.set_max_tokens(4);
         s.set_min_tokens(5);
       })},
      {"B033_NegativeMin", "MIN_TOKENS_RANGE", stopping([](S& s) { s.set_min_tokens(-1); })},
      {"B033_MinAboveRoom", "MIN_TOKENS_RANGE", stopping([](S& s) {
         s.set_min_tokens(kMaxModelLen - 4);
       })},
      {"B041_ZeroN", "N_RANGE", [](R& r) { r.set_n(0); }},
      {"B041_NegativeN", "N_RANGE", [](R& r) { r.set_n(-1); }},
      {"B042_LargeN", "N_RANGE", [](R& r) { r.set_n(17); }},
      {"BestOfBelowN",
       "BEST_OF_RANGE",
       [](R& r) {
         r.set_n(3);
         r.set_best_of(2);
       }},
      {"LargeBestOf", "BEST_OF_RANGE", [](R& r) { r.set_best_of(17); }},
      {"PriorityWithoutThePolicy", "PRIORITY", [](R& r) { r.set_priority(0); }},
      {"TenantWithASpace", "TENANT", [](R& r) { r.set_tenant("a b"); }},
      {"LongTenant", "TENANT", [](R& r) { r.set_tenant(std::string(129, 'a')); }},
      {"NoBeams", "BEAM_SEARCH", [](R& r) { r.mutable_beam_search(); }},
      {"ManyBeams", "BEAM_SEARCH", [](R& r) { r.mutable_beam_search()->set_num_beams(11); }},
      {"FewerBeamsThanN",
       "BEAM_SEARCH",
       [](R& r) {
         r.set_n(3);
         r.mutable_beam_search()->set_num_beams(2);
       }},
      {"BeamsAndManyStopTokens",
       "BEAM_SEARCH",
       [](R& r) {
         r.mutable_beam_search()->set_num_beams(10);
         for (int32_t id = 0; id < 11; ++id) {
           r.mutable_stopping()->add_stop_token_ids(id);
         }
       }},
      {"NanLengthPenalty",
       "BEAM_SEARCH",
       [](R& r) {
         r.mutable_beam_search()->set_num_beams(2);
         r.mutable_beam_search()->set_length_penalty(std::nanf(""));
       }},
      {"LargeLengthPenalty",
       "BEAM_SEARCH",
       [](R& r) {
         r.mutable_beam_search()->set_num_beams(2);
         r.mutable_beam_search()->set_length_penalty(-5.5F);
       }},
      {"UnknownEarlyStopping",
       "ENUM_VALUE",
       [](R& r) {
         r.mutable_beam_search()->set_num_beams(2);
         r.mutable_beam_search()->set_early_stopping(static_cast<v1::EarlyStopping>(7));
       }},
      {"BeamsThatSample",
       "CONFLICTING_FIELDS",
       [](R& r) {
         r.mutable_beam_search()->set_num_beams(2);
         r.mutable_sampling()->set_temperature(0.5F);
       }},
      {"BeamsWithStopStrings",
       "CONFLICTING_FIELDS",
       [](R& r) {
         r.mutable_beam_search()->set_num_beams(2);
         r.mutable_stopping()->add_stop(std::string(1, 'x'));
       }},
      {"BeamsWithLogprobs",
       "CONFLICTING_FIELDS",
       [](R& r) {
         r.mutable_beam_search()->set_num_beams(2);
         r.mutable_response()->set_logprobs(1);
       }},
      {"BeamsWithBestOf",
       "CONFLICTING_FIELDS",
       [](R& r) {
         r.mutable_beam_search()->set_num_beams(2);
         r.set_best_of(2);
       }},
      {"B048_NegativeLogprobs", "LOGPROBS_RANGE", logprobs(-1)},
      {"B048_ManyLogprobs", "LOGPROBS_RANGE", logprobs(21)},
      {"NegativePromptLogprobs", "LOGPROBS_RANGE", prompt_logprobs(-1)},
      {"ManyPromptLogprobs", "LOGPROBS_RANGE", prompt_logprobs(21)},
      {"BeamsWithPromptLogprobs",
       "CONFLICTING_FIELDS",
       [](R& r) {
         r.mutable_beam_search()->set_num_beams(2);
         r.mutable_response()->set_prompt_logprobs(1);
       }},
      {"B050_ManyStops", "STOP_LIMIT", stopping([](S& s) {
         for (int i = 0; i < 17; ++i) {
           s.add_stop(std::string(1, 'x'));
         }
       })},
      {"B050_EmptyStop", "STOP_LIMIT", stopping([](S& s) { s.add_stop(std::string()); })},
      {"B050_LongStop", "STOP_LIMIT", stopping([](S& s) { s.add_stop(std::string(257, 'x')); })},
      {"B050_StopNotUtf8", "STOP_LIMIT", stopping([](S& s) {
         s.add_stop(std::string(1, '\x80'));
       })},
      {"B051_ManyStopIds", "STOP_LIMIT", stopping([](S& s) {
         for (int i = 0; i < 65; ++i) {
           s.add_stop_token_ids(1);
         }
       })},
      {"B051_StopIdRange", "TOKEN_ID_RANGE", stopping([](S& s) {
         s.add_stop_token_ids(kTinyVocabSize);
       })},
      {"B051_NegativeStopId", "TOKEN_ID_RANGE", stopping([](S& s) { s.add_stop_token_ids(-1); })},
      {"B053_MinTokensBansAll", "NO_TOKEN_ALLOWED", stopping([](S& s) {
         s.set_min_tokens(1);
         for (TokenId id = 0; id < kTinyVocabSize; ++id) {
           s.add_stop_token_ids(id);
         }
       })},
  };
}

std::string NameOf(const testing::TestParamInfo<BadRequest>& info) { return info.param.name; }

INSTANTIATE_TEST_SUITE_P(Prompt,
                         GenerateRequestRefusalTest,
                         testing::ValuesIn(BadPrompts()),
                         NameOf);
INSTANTIATE_TEST_SUITE_P(Sampling,
                         GenerateRequestRefusalTest,
                         testing::ValuesIn(BadSampling()),
                         NameOf);
// A resume of n sequences without tokens.
v1::Resume& Resume(v1::GenerateRequest& message, int32_t n = 1) {
  v1::Resume& resume = *message.mutable_resume();
  resume.set_seed(7);
  resume.set_determinism_fingerprint(kFingerprint);
  for (int32_t i = 0; i < n; ++i) {
    resume.add_sequences();
  }
  return resume;
}

void AddTokens(v1::Resume& resume, int32_t index, const std::string& letters) {
  for (TokenId id : Letters(letters)) {
    resume.mutable_sequences(index)->add_token_ids(id);
  }
}

std::vector<BadRequest> BadResumes() {
  using R = v1::GenerateRequest;
  const auto tokens = [](std::vector<TokenId> ids) {
    return [ids = std::move(ids)](R& r) {
      v1::ResumedSequence& sequence = *Resume(r).mutable_sequences(0);
      sequence.mutable_token_ids()->Add(ids.begin(), ids.end());
    };
  };
  return {
      {"TooFewSequences", "RESUME", [](R& r) { r.set_n(3), Resume(r, 2); }},
      {"TooManySequences", "RESUME", [](R& r) { Resume(r, 2); }},
      {"FarTooManySequences", "RESUME", [](R& r) { Resume(r, 100'000); }},
      {"MoreThanTheBestOnes", "RESUME", [](R& r) { r.set_best_of(2), Resume(r, 2); }},
      {"NegativeToken", "TOKEN_ID_RANGE", tokens({1, -1})},
      {"TokenOfNoVocabulary", "TOKEN_ID_RANGE", tokens({kTinyVocabSize})},
      {"LongerThanTheContext", "RESUME", tokens(std::vector<TokenId>(kMaxModelLen, 1))},
      {"NoRoomBehindPrompt", "RESUME", tokens(std::vector<TokenId>(kMaxModelLen - 5, 1))},
      {"AsLongAsItMayBe",
       "RESUME",
       [](R& r) {
         r.mutable_stopping()->set_max_tokens(3);
         AddTokens(Resume(r), 0, "abc");
       }},
      {"OneOfThreeIsTooLong",
       "RESUME",
       [](R& r) {
         r.set_n(3);
         r.mutable_stopping()->set_max_tokens(3);
         AddTokens(Resume(r, 3), 2, "abc");
       }},
      {"EndOfSequenceInside", "RESUME", tokens({1, kTinyEos, 2})},
      {"StopTokenInside",
       "RESUME",
       [](R& r) {
         r.mutable_stopping()->add_stop_token_ids(2);
         AddTokens(Resume(r), 0, "abcd");
       }},
      {"StopStringInside",
       "RESUME",
       [](R& r) {
         r.mutable_stopping()->add_stop("bc");
         AddTokens(Resume(r), 0, "abcd");
       }},
      {"PromptLogprobsThatWereNotAskedFor",
       "RESUME",
       [](R& r) { Resume(r).set_num_prompt_logprobs(1); }},
      {"MorePromptLogprobsThanThePromptHas",
       "RESUME",
       [](R& r) {
         r.mutable_response()->set_prompt_logprobs(0);
         Resume(r).set_num_prompt_logprobs(static_cast<int32_t>(r.text().size()));
       }},
      {"NegativePromptLogprobs", "RESUME", [](R& r) { Resume(r).set_num_prompt_logprobs(-1); }},
      {"PromptLogprobsWithoutSequences",
       "MISSING_FIELD",
       [](R& r) {
         r.mutable_response()->set_prompt_logprobs(0);
         r.mutable_resume()->set_num_prompt_logprobs(1);
       }},
      {"NoLength", "RESUME", [](R& r) { Resume(r).set_max_tokens(0); }},
      {"NegativeLength", "RESUME", [](R& r) { Resume(r).set_max_tokens(-1); }},
      {"LengthWithoutSequences", "RESUME", [](R& r) { r.mutable_resume()->set_max_tokens(0); }},
      {"LongerThanItAskedFor",
       "RESUME",
       [](R& r) {
         r.mutable_stopping()->set_max_tokens(3);
         Resume(r).set_max_tokens(4);
       }},
      {"AsLongAsItWasPromised",
       "RESUME",
       [](R& r) {
         Resume(r).set_max_tokens(3);
         AddTokens(*r.mutable_resume(), 0, "abc");
       }},
      {"PromisedMoreThanTheContext",
       "CONTEXT",
       [](R& r) { Resume(r).set_max_tokens(kMaxModelLen - 4); },
       absl::StatusCode::kFailedPrecondition},
      {"AskedForAndPromisedMoreThanTheContext",
       "CONTEXT",
       [](R& r) {
         r.mutable_stopping()->set_max_tokens(kMaxModelLen + 1);
         Resume(r).set_max_tokens(kMaxModelLen + 1);
       },
       absl::StatusCode::kFailedPrecondition},
      {"PromisedBehindAPromptThatIsTooLongHere",
       "CONTEXT",
       [](R& r) {
         r.clear_text();
         r.mutable_token_ids()->mutable_ids()->Resize(kMaxModelLen, 1);
         Resume(r).set_max_tokens(1);
       },
       absl::StatusCode::kFailedPrecondition},
      {"PromisedTheLargestNumber",
       "CONTEXT",
       [](R& r) { Resume(r).set_max_tokens(std::numeric_limits<int32_t>::max()); },
       absl::StatusCode::kFailedPrecondition},
      {"NoSeedForSampling", "MISSING_FIELD", [](R& r) { Resume(r).clear_seed(); }},
      {"AnotherSeed",
       "CONFLICTING_FIELDS",
       [](R& r) {
         r.mutable_sampling()->set_seed(8);
         Resume(r);
       }},
      {"NoFingerprint", "MISSING_FIELD", [](R& r) { Resume(r).clear_determinism_fingerprint(); }},
      {"AnotherFingerprint",
       "FINGERPRINT",
       [](R& r) { Resume(r).set_determinism_fingerprint("cpu/bf16/0124"); },
       absl::StatusCode::kFailedPrecondition},
      {"AnotherFingerprintAndNoToken",
       "FINGERPRINT",
       [](R& r) { r.mutable_resume()->set_determinism_fingerprint("cpu"); },
       absl::StatusCode::kFailedPrecondition},
  };
}

INSTANTIATE_TEST_SUITE_P(Resume,
                         GenerateRequestRefusalTest,
                         testing::ValuesIn(BadResumes()),
                         NameOf);
INSTANTIATE_TEST_SUITE_P(Stopping,
                         GenerateRequestRefusalTest,
                         testing::ValuesIn(BadStopping()),
                         NameOf);

TEST(GenerateRequestTest, ARefusedNumberDiffersFromItsLimit) {
  v1::GenerateRequest message = GoodRequest();
  message.mutable_sampling()->set_top_p(1.0000001F);

  EXPECT_EQ(Check(message).status().message(), "sampling.top_p: must be in (0, 1] (got 1.0000001)");
}

TEST(GenerateRequestTest, ABareRequestGetsEveryDefault) {
  const auto spec = Check(GoodRequest());

  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_THAT(spec->request.prompt_token_ids, ElementsAre(7, 4, 11, 11, 14));
  EXPECT_EQ(spec->request.num_sequences, 1);
  EXPECT_EQ(spec->request.max_tokens, kMaxModelLen - 5);
  EXPECT_THAT(spec->request.stop_token_ids, ElementsAre(kTinyEos));
  SamplingParams expected;
  expected.seed = kFreshSeed;
  EXPECT_EQ(spec->request.sampling, expected);
  EXPECT_TRUE(spec->output.return_text);
  EXPECT_TRUE(spec->output.skip_special_tokens);
  EXPECT_FALSE(spec->output.return_logprobs);
}

TEST(GenerateRequestTest, DefaultsOfTheModelComeBeforeThoseOfTheService) {
  ServedModel model = TinyServedModel();
  model.defaults.temperature = 0.5F;
  model.defaults.top_p = 0.9F;
  model.defaults.top_k = 1000;  // more than there are: all
  model.defaults.min_p = 0.1F;
  model.defaults.repetition_penalty = 1.5F;

  const auto spec = Check(GoodRequest(), Rules(model));

  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->request.sampling.temperature, 0.5F);
  EXPECT_EQ(spec->request.sampling.top_p, 0.9F);
  EXPECT_EQ(spec->request.sampling.top_k, kTinyVocabSize);
  EXPECT_EQ(spec->request.sampling.min_p, 0.1F);
  EXPECT_EQ(spec->request.sampling.repetition_penalty, 1.5F);
}

TEST(GenerateRequestTest, TheRequestComesBeforeTheDefaultsOfTheModel) {
  ServedModel model = TinyServedModel();
  model.defaults.do_sample = false;
  model.defaults.top_k = 5;
  v1::GenerateRequest message = GoodRequest();
  message.mutable_sampling()->set_temperature(2.0F);
  message.mutable_sampling()->set_top_k(0);
  message.mutable_sampling()->set_seed(0);

  const auto spec = Check(message, Rules(model));

  EXPECT_EQ(spec->request.sampling.temperature, 2.0F);
  EXPECT_EQ(spec->request.sampling.top_k, 0);
  EXPECT_EQ(spec->request.sampling.seed, 0U);
}

TEST(GenerateRequestTest, AModelThatDoesNotSampleIsGreedyByDefault) {
  ServedModel model = TinyServedModel();
  model.defaults.do_sample = false;
  model.defaults.temperature = 0.7F;

  EXPECT_TRUE(Check(GoodRequest(), Rules(model))->request.sampling.is_greedy());
}

TEST(GenerateRequestTest, TinyTemperaturesAreGreedy) {
  v1::GenerateRequest message = GoodRequest();
  message.mutable_sampling()->set_temperature(std::numeric_limits<float>::denorm_min());

  EXPECT_TRUE(Check(message)->request.sampling.is_greedy());
}

TEST(GenerateRequestTest, EdgesOfTheRulesAreAllowed) {
  v1::GenerateRequest message = GoodRequest();
  message.set_request_id(std::string(128, 'A'));
  message.set_model("also-tiny");
  message.set_n(16);
  message.set_timeout_ms(1);
  message.mutable_sampling()->set_temperature(100.0F);
  message.mutable_sampling()->set_top_k(kTinyVocabSize);
  message.mutable_sampling()->set_presence_penalty(-2.0F);
  message.mutable_sampling()->set_seed(std::numeric_limits<uint64_t>::max());
  message.mutable_stopping()->set_max_tokens(kMaxModelLen - 5);
  message.mutable_stopping()->set_min_tokens(kMaxModelLen - 5);
  message.mutable_stopping()->add_stop(std::string(256, 's'));
  message.mutable_response()->set_logprobs(20);

  const auto spec = Check(message);

  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->request.num_sequences, 16);
  EXPECT_EQ(spec->request.sampling.seed, std::numeric_limits<uint64_t>::max());
  EXPECT_TRUE(spec->output.stop_matcher.has_value());
  EXPECT_TRUE(spec->output.return_logprobs);
}

TEST(GenerateRequestTest, TheLogprobsOfAPromptAreBounded) {
  v1::GenerateRequest message;
  message.mutable_response()->set_prompt_logprobs(kMaxLogprobs);
  const auto num_at_most = static_cast<int32_t>(kMaxPromptLogprobs / (1 + kMaxLogprobs));
  const ServedModel model = TinyServedModel();
  RequestRules rules = Rules(model);
  rules.max_model_len = 2 * num_at_most;
  for (const int32_t num_scored : {num_at_most, num_at_most + 1}) {
    message.mutable_token_ids()->mutable_ids()->Resize(num_scored + 1, 1);

    const auto spec = Check(message, rules);

    EXPECT_EQ(spec.ok(), num_scored == num_at_most) << spec.status();
  }
}

TEST(GenerateRequestTest, AResumedRequestKnowsHowMuchOfThePromptWasScored) {
  v1::GenerateRequest message = GoodRequest();
  message.mutable_response()->set_prompt_logprobs(0);
  Resume(message).set_num_prompt_logprobs(2);

  const auto spec = Check(message);

  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->request.num_known_prompt_logprobs, 2);
}

TEST(GenerateRequestTest, APromptMayBeOneShortOfTheContext) {
  v1::GenerateRequest message = GoodRequest();
  message.set_text(std::string(kMaxModelLen - 1, 'a'));

  const auto spec = Check(message);

  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->request.max_tokens, 1);
}

TEST(GenerateRequestTest, MinTokensBansWhatWouldEndTheSequence) {
  v1::GenerateRequest message = GoodRequest();
  message.mutable_stopping()->set_min_tokens(3);
  message.mutable_stopping()->add_stop_token_ids(4);
  message.mutable_stopping()->add_stop_token_ids(4);

  const auto spec = Check(message);

  EXPECT_THAT(spec->request.stop_token_ids, ElementsAre(4, kTinyEos));
  EXPECT_THAT(spec->request.sampling.banned_before_min_tokens, ElementsAre(4, kTinyEos));
  EXPECT_EQ(spec->request.sampling.min_tokens, 3);
}

TEST(GenerateRequestTest, IgnoreEosLeavesOnlyTheRequestsOwnStops) {
  v1::GenerateRequest message = GoodRequest();
  message.mutable_stopping()->set_ignore_eos(true);

  EXPECT_THAT(Check(message)->request.stop_token_ids, IsEmpty());
}

TEST(GenerateRequestTest, SpecialTextIsPlainTextUnlessParsed) {
  v1::GenerateRequest message = GoodRequest();
  message.set_text("s");
  EXPECT_THAT(Check(message)->request.prompt_token_ids, ElementsAre(18));
  message.set_text("a<s>");
  message.set_parse_special_tokens(true);

  EXPECT_THAT(Check(message)->request.prompt_token_ids, ElementsAre(0, kSpecialId));
}

TEST(GenerateRequestTest, WithoutATokenizerTokenIdsAreServed) {
  const RequestRules rules = Rules(ModelWithoutTokenizer());
  v1::GenerateRequest message;
  message.mutable_token_ids()->add_ids(kTinyVocabSize - 1);

  const auto spec = Check(message, rules);

  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_FALSE(spec->output.return_text);
}

TEST(GenerateRequestTest, WithoutATokenizerWhateverNeedsTextIsRefused) {
  const RequestRules rules = Rules(ModelWithoutTokenizer());
  v1::GenerateRequest ids;
  ids.mutable_token_ids()->add_ids(1);
  v1::GenerateRequest with_stop = ids;
  with_stop.mutable_stopping()->add_stop("x");
  v1::GenerateRequest with_text = ids;
  with_text.mutable_response()->set_return_text(true);

  for (const v1::GenerateRequest& message : {GoodRequest(), with_stop, with_text}) {
    const auto spec = Check(message, rules);
    EXPECT_EQ(spec.status().code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_EQ(ReasonOf(spec.status()), "NO_TOKENIZER");
  }
}

TEST(GenerateRequestTest, PrioritiesAreBoundedWhereThePolicyAsksForThem) {
  RequestRules rules = Rules();
  rules.has_priorities = true;
  v1::GenerateRequest message = GoodRequest();
  for (int32_t priority : {-100, 100}) {
    message.set_priority(priority);
    EXPECT_EQ(Check(message, rules)->request.priority, priority);
  }
  for (int32_t priority : {-101, 101, std::numeric_limits<int32_t>::min()}) {
    message.set_priority(priority);
    EXPECT_EQ(ReasonOf(Check(message, rules).status()), "PRIORITY");
  }
}

TEST(GenerateRequestTest, ASaltMayBeRequiredOfWhoUsesThePrefixCache) {
  RequestRules rules = Rules();
  v1::GenerateRequest message = GoodRequest();
  EXPECT_TRUE(Check(message, rules).ok());
  rules.requires_cache_salt = true;
  EXPECT_EQ(ReasonOf(Check(message, rules).status()), "CACHE_SALT");
  message.set_bypass_prefix_cache(true);
  EXPECT_TRUE(Check(message, rules).ok());
  message.set_bypass_prefix_cache(false);
  message.set_cache_salt("s");
  EXPECT_EQ(Check(message, rules)->request.cache_salt, "s");
}

TEST(ResumeTest, TokensThatNobodyWaitsForAreNotGoneThrough) {
  v1::GenerateRequest message = GoodRequest();
  message.mutable_stopping()->set_max_tokens(20'000);
  AddTokens(Resume(message), 0, std::string(10'000, 'a'));
  RequestRules rules = Rules();
  rules.max_model_len = 50'000;
  int num_asked = 0;
  const auto is_left = [&num_asked] {
    return ++num_asked < 3 ? absl::OkStatus() : absl::CancelledError("has left");
  };

  EXPECT_TRUE(absl::IsCancelled(Check(message, rules, is_left).status()));
  EXPECT_EQ(num_asked, 3);
}

TEST(ResumeTest, MoreTokensThanThereAreBlocksForAreRefused) {
  const StepLimits limits = {.num_blocks = 9, .block_size_tokens = 4};  // 8 usable
  const auto check = [&limits](std::vector<size_t> lengths, bool has_one_ended = false) {
    Request request = {.num_sequences = static_cast<int32_t>(lengths.size()), .is_resumed = true};
    for (const size_t length : lengths) {
      request.resumed.push_back({.token_ids = std::vector<TokenId>(length, 1)});
    }
    request.resumed.front().has_ended = has_one_ended;
    return ReasonOf(CheckResumedFit(request, limits));
  };

  EXPECT_EQ(check({32}), "");
  EXPECT_EQ(check({33}), "EXCEEDS_CAPACITY");
  EXPECT_EQ(check({16, 16}), "");
  EXPECT_EQ(check({1, 17}), "EXCEEDS_CAPACITY");  // both become as long as the longer one
  EXPECT_EQ(check({0, 32}, /*has_one_ended=*/true), "");
  EXPECT_TRUE(CheckResumedFit({.num_sequences = 1}, limits).ok());
  const Request large = {.resumed = {{.token_ids = std::vector<TokenId>(33, 1)}}};
  EXPECT_TRUE(CheckResumedFit(large, {}).ok());  // no workers yet
}

TEST(ResumeTest, SequencesGoOnBehindTheirTokensWithTheirSeed) {
  v1::GenerateRequest message = GoodRequest();
  message.set_n(2);
  v1::Resume& resume = Resume(message, 2);
  AddTokens(resume, 0, "abc");
  resume.mutable_sequences(1)->set_has_ended(true);
  AddTokens(resume, 1, "zz");  // not looked at

  const auto spec = Check(message);

  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->request.sampling.seed, 7U);
  ASSERT_EQ(spec->request.resumed.size(), 2U);
  EXPECT_EQ(spec->request.resumed[0].token_ids, Letters("abc"));
  EXPECT_TRUE(spec->request.resumed[1].has_ended);
  EXPECT_THAT(spec->request.resumed[1].token_ids, IsEmpty());
  ASSERT_EQ(spec->output.received.size(), 2U);
  EXPECT_EQ(spec->output.received[0].num_tokens, 3);
  EXPECT_TRUE(spec->output.received[1].has_ended);
  EXPECT_FALSE(spec->has_all_ended());
}

TEST(ResumeTest, TheLengthThatWasPromisedHoldsInPlaceOfTheDefaultAndOfWhatWasAskedFor) {
  v1::GenerateRequest message = GoodRequest();
  Resume(message).set_max_tokens(6);
  EXPECT_EQ(Check(message)->request.max_tokens, 6);
  EXPECT_TRUE(Check(message)->request.is_resumed);

  message.mutable_stopping()->set_max_tokens(8);
  EXPECT_EQ(Check(message)->request.max_tokens, 6);
  message.mutable_resume()->set_max_tokens(kMaxModelLen - 5);
  message.mutable_stopping()->set_max_tokens(kMaxModelLen - 5);
  EXPECT_EQ(Check(message)->request.max_tokens, kMaxModelLen - 5);
}

TEST(ResumeTest, ASeedOfTheRequestOrNoNeedOfOneWillDo) {
  v1::GenerateRequest seeded = GoodRequest();
  seeded.mutable_sampling()->set_seed(9);
  Resume(seeded).clear_seed();
  v1::GenerateRequest greedy = GoodRequest();
  greedy.mutable_sampling()->set_temperature(0.0F);
  Resume(greedy).clear_seed();

  ASSERT_TRUE(Check(seeded).ok());
  EXPECT_EQ(Check(seeded)->request.sampling.seed, 9U);
  EXPECT_TRUE(Check(greedy).ok());
}

TEST(ResumeTest, OutputMayHoldAnIdThatTheTokenizerLacks) {
  v1::GenerateRequest message = GoodRequest();
  Resume(message).mutable_sequences(0)->add_token_ids(kTinyVocabSize - 1);

  EXPECT_TRUE(Check(message).ok());
}

TEST(ResumeTest, WithoutSequencesTheRequestStartsAnew) {
  v1::GenerateRequest message = GoodRequest();
  message.mutable_resume();

  const auto spec = Check(message);

  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->request.sampling.seed, kFreshSeed);
  EXPECT_THAT(spec->request.resumed, IsEmpty());
  EXPECT_TRUE(spec->request.is_resumed);
  EXPECT_FALSE(Check(GoodRequest())->request.is_resumed);
  EXPECT_FALSE(spec->has_all_ended());
}

TEST(ResumeTest, WhatIsToldAtItsEndIsMadeAnewAndSkipped) {
  v1::GenerateRequest best = GoodRequest();
  best.set_best_of(3);
  AddTokens(Resume(best), 0, "ab");
  v1::GenerateRequest beams = GoodRequest();
  beams.set_n(2);
  beams.mutable_beam_search()->set_num_beams(2);
  Resume(beams, 2).mutable_sequences(1)->set_has_ended(true);

  for (const v1::GenerateRequest& message : {best, beams}) {
    const auto spec = Check(message);

    ASSERT_TRUE(spec.ok()) << spec.status();
    EXPECT_THAT(spec->request.resumed, IsEmpty());
    EXPECT_EQ(spec->output.received.size(), message.has_best_of() ? 1U : 2U);
  }
  EXPECT_EQ(Check(best)->output.received[0].num_tokens, 2);
}

TEST(ResumeTest, WhenAllHaveEndedNothingIsLeft) {
  v1::GenerateRequest message = GoodRequest();
  Resume(message).mutable_sequences(0)->set_has_ended(true);

  const absl::StatusOr<GenerateSpec> spec = CheckGenerateRequest(message, Rules());

  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_TRUE(spec->has_all_ended());
}

TEST(CheckGenerateRequestTest, TheTenantIsThatOfTheKeyOrTheRequestIsRefused) {
  RequestRules rules = Rules();
  v1::GenerateRequest message = GoodRequest();
  message.set_tenant("bob");
  EXPECT_EQ(CheckGenerateRequest(message, rules)->request.tenant, "bob") << "without keys";

  rules.tenant = "alice";
  const absl::Status refused = CheckGenerateRequest(message, rules).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(ReasonOf(refused), "TENANT_OF_KEY");
  for (const char* tenant : {"alice", ""}) {
    message.set_tenant(tenant);
    EXPECT_EQ(CheckGenerateRequest(message, rules)->request.tenant, "alice");
  }
}

}  // namespace
}  // namespace quire
