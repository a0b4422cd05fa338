#include "scheduler/loop/output_router.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "common/base/error.h"
#include "tests/scheduler/loop/letter_tokenizer.h"
#include "tests/scheduler/loop/recording_stream.h"

namespace quire {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;

constexpr RequestId kId(1);
constexpr TokenId kEos = 25;

class OutputRouterTest : public testing::Test {
 protected:
  OutputRouterTest() : tokenizer_(MakeLetterTokenizer()), router_(&observer_) {
    options_.tokenizer = tokenizer_.get();
  }

  void StopAt(const std::vector<std::string>& stops, bool include = false) {
    options_.stop_strings = stops;
    options_.stop_matcher = *StopMatcher::Create(stops, include);
    options_.include_stop_in_output = include;
  }
  std::shared_ptr<RecordingStream> Open(int32_t num_sequences = 1) {
    Request request;
    request.id = kId;
    request.prompt_token_ids = Letters("the prompt");
    request.num_sequences = num_sequences;
    request.stop_token_ids = {kEos};
    auto stream = std::make_shared<RecordingStream>();
    router_.Open(request, options_, stream);
    return stream;
  }
  OutputRouter::Published Publish(std::vector<OutputEvent> events) {
    return router_.Publish(events, /*now=*/100);
  }
  static TokenCommitted Token(int32_t index, TokenId id, int32_t sequence_index = 0) {
    return {.request_id = kId,
            .sequence_index = sequence_index,
            .token_index = index,
            .token_id = id,
            .logprob = -1.0F,
            .top_logprobs = {}};
  }
  static SequenceFinished Finished(FinishReason reason,
                                   int32_t sequence_index = 0,
                                   bool is_last = true) {
    return {.request_id = kId,
            .sequence_index = sequence_index,
            .reason = reason,
            .num_output_tokens = 0,
            .is_last_of_request = is_last};
  }

  std::unique_ptr<Tokenizer> tokenizer_;
  struct Observer : public LoopObserver {
    void OnRequestEnd(const RequestObservation& request) override {
      last = request;
      refusal = request.refusal;
    }
    void OnFirstToken(int64_t latency_ns) override { first_tokens.push_back(latency_ns); }
    void OnInterToken(int64_t latency_ns) override { gaps.push_back(latency_ns); }
    std::optional<RequestObservation> last;
    std::vector<int64_t> first_tokens;
    std::vector<int64_t> gaps;
    std::string refusal;
  };
  Observer observer_;
  OutputRouter router_;
  OutputOptions options_;
};

TEST_F(OutputRouterTest, OneUpdatePerSequenceAndPublish) {
  auto stream = Open(/*num_sequences=*/2);

  Publish({Token(0, 0), Token(0, 1, 1), Token(1, 2)});
  Publish({Token(2, 3)});

  const auto updates = stream->updates();
  ASSERT_THAT(updates, SizeIs(3));
  EXPECT_THAT(updates[0].token_ids, ElementsAre(0, 2));
  EXPECT_EQ(updates[0].text, "ac");
  EXPECT_EQ(updates[1].sequence_index, 1);
  EXPECT_EQ(updates[2].first_position, 2);
}

// Even if best_of holds the sequences back until all have ended.
TEST_F(OutputRouterTest, LogprobsOfThePromptAreWrittenAtOnce) {
  options_.num_best = 1;
  auto stream = Open(/*num_sequences=*/2);
  const PromptLogprobs prompt = {
      .first_position = 3, .num_top = 1, .logprobs = {-1.0F}, .top = {{5, -0.5F}}};

  Publish({PromptScored{.request_id = kId, .prompt = prompt}, Token(0, 0), Token(0, 1, 1)});

  const auto updates = stream->updates();
  ASSERT_THAT(updates, SizeIs(1));
  EXPECT_EQ(updates[0].prompt, prompt);
}

TEST_F(OutputRouterTest, TheObserverHearsOfTheTimesAndTokensOfARequest) {
  Open(/*num_sequences=*/2);  // at 0

  router_.OnStarted(std::vector<RequestId>{kId, RequestId(99)}, 30);
  router_.Publish(std::vector<OutputEvent>{Token(0, 0), Token(0, 1, 1)}, 100);
  router_.Publish(std::vector<OutputEvent>{Token(1, 2)}, 150);
  router_.Publish(std::vector<OutputEvent>{Token(2, 3), Finished(FinishReason::kLength, 1, false)},
                  160);
  router_.Publish(std::vector<OutputEvent>{Finished(FinishReason::kLength)}, 200);

  ASSERT_TRUE(observer_.last.has_value());
  EXPECT_EQ(observer_.last->outcome, RequestOutcome::kLength);
  EXPECT_EQ(observer_.last->queue_ns, 30);
  EXPECT_EQ(observer_.last->prefill_ns, 70);
  EXPECT_EQ(observer_.last->decode_ns, 60);
  EXPECT_EQ(observer_.last->duration_ns, 200);
  EXPECT_THAT(observer_.last->num_output_tokens, ElementsAre(3, 1));
  EXPECT_EQ(observer_.last->longest_new_output, 3);
}

TEST_F(OutputRouterTest, TheObserverHearsWhyARequestWasRefused) {
  Open();

  router_.Reject(kId, Error(absl::StatusCode::kResourceExhausted, "QUEUE_FULL", "full"), 5);

  EXPECT_EQ(observer_.refusal, "QUEUE_FULL");
  EXPECT_EQ(observer_.last->queue_ns, std::nullopt);
  EXPECT_EQ(observer_.last->prefill_ns, std::nullopt);
}

TEST_F(OutputRouterTest, OfBestOfOnlyTheBestAreSentOnceAllHaveEnded) {
  options_.num_best = 2;
  auto stream = Open(/*num_sequences=*/3);
  const auto likely = [](TokenCommitted token, float logprob) {
    token.logprob = logprob;
    return token;
  };

  Publish({likely(Token(0, 0, 0), -3.0F), likely(Token(0, 1, 1), -1.0F)});
  Publish({likely(Token(0, 2, 2), -4.0F), Finished(FinishReason::kLength, 2, false)});
  Publish({likely(Token(1, 3, 0), -0.5F), Finished(FinishReason::kStop, 0, false)});
  EXPECT_THAT(stream->updates(), IsEmpty());
  Publish({likely(Token(1, 4, 1), -2.0F), Finished(FinishReason::kLength, 1, true)});

  // Means: -1.75, -1.5, -4.
  const auto updates = stream->updates();
  ASSERT_THAT(updates, SizeIs(2));
  EXPECT_EQ(updates[0].sequence_index, 0);
  EXPECT_THAT(updates[0].token_ids, ElementsAre(1, 4));
  EXPECT_EQ(updates[0].text, "be");
  EXPECT_EQ(updates[0].end->score, -1.5F);
  EXPECT_EQ(updates[0].end->reason, SequenceEnd::Reason::kLength);
  EXPECT_EQ(updates[1].sequence_index, 1);
  EXPECT_THAT(updates[1].token_ids, ElementsAre(0, 3));
  EXPECT_EQ(updates[1].end->score, -1.75F);
  EXPECT_EQ(updates[1].end->num_output_tokens, 2);
  EXPECT_TRUE(stream->WaitForEnd().ok());
}

TEST_F(OutputRouterTest, TheFirstTokenOfBestOfIsTheFirstThatIsSent) {
  options_.num_best = 1;
  Open(/*num_sequences=*/2);  // at 0

  router_.Publish(std::vector<OutputEvent>{Token(0, 0, 0), Token(0, 1, 1)}, 100);
  EXPECT_THAT(observer_.first_tokens, IsEmpty());
  router_.Publish(std::vector<OutputEvent>{Finished(FinishReason::kLength, 1, false),
                                           Finished(FinishReason::kLength)},
                  200);

  EXPECT_THAT(observer_.first_tokens, ElementsAre(200));
}

TEST_F(OutputRouterTest, ABeamSearchHasNeitherPrefillNorGapsBetweenItsTokens) {
  Request request;
  request.id = kId;
  request.prompt_token_ids = Letters("the prompt");
  request.beam_search = {.num_beams = 2};
  router_.Open(request, options_, std::make_shared<RecordingStream>());

  router_.OnStarted(std::vector<RequestId>{kId}, 30);
  Publish({Token(0, 0), Token(1, 1), Token(2, 2), Finished(FinishReason::kLength)});

  EXPECT_THAT(observer_.first_tokens, ElementsAre(100));
  EXPECT_THAT(observer_.gaps, IsEmpty());
  EXPECT_EQ(observer_.last->queue_ns, 30);
  EXPECT_EQ(observer_.last->prefill_ns, std::nullopt);
  EXPECT_EQ(observer_.last->decode_ns, std::nullopt);
}

TEST_F(OutputRouterTest, OfBestOfNothingIsSentWhenOneEndsBadly) {
  options_.num_best = 1;
  auto stream = Open(/*num_sequences=*/2);

  Publish({Token(0, 0, 0), Token(0, 1, 1), Finished(FinishReason::kNonFinite, 1, false)});
  Publish({Finished(FinishReason::kLength, 0, true)});

  EXPECT_THAT(stream->updates(), IsEmpty());
  EXPECT_EQ(ReasonOf(stream->WaitForEnd()), "NON_FINITE_LOGITS");
}

TEST_F(OutputRouterTest, TheScoreOfABeamComesWithItsEnd) {
  auto stream = Open();
  SequenceFinished finished = Finished(FinishReason::kStop);
  finished.beam_score = -0.25F;

  Publish({Token(0, 0), finished});

  EXPECT_EQ(stream->updates().at(0).end->score, -0.25F);
}

TEST_F(OutputRouterTest, TheEndComesWithTheLastToken) {
  auto stream = Open();

  Publish({Token(0, 0), Finished(FinishReason::kLength)});

  ASSERT_THAT(stream->updates(), SizeIs(1));
  ASSERT_TRUE(stream->updates()[0].end.has_value());
  EXPECT_EQ(stream->updates()[0].end->reason, SequenceEnd::Reason::kLength);
  EXPECT_EQ(stream->updates()[0].end->num_output_tokens, 1);
  EXPECT_EQ(stream->updates()[0].end->num_prompt_tokens, 10);
  EXPECT_TRUE(stream->end()->ok());
  EXPECT_EQ(router_.num_open(), 0U);
}

TEST_F(OutputRouterTest, TextOfAStopTokenIsLeftOutAndItsIdIsNot) {
  auto stream = Open();

  Publish({Token(0, 0)});
  Publish({Token(1, kEos), Finished(FinishReason::kStop)});

  EXPECT_EQ(stream->Text(), "a");
  EXPECT_THAT(*stream->Tokens(), ElementsAre(0, kEos));
}

TEST_F(OutputRouterTest, TextOfAStopTokenIsKeptIfStopsAre) {
  options_.include_stop_in_output = true;
  auto stream = Open();

  Publish({Token(0, 0)});
  Publish({Token(1, kEos), Finished(FinishReason::kStop)});

  EXPECT_EQ(stream->Text(), "az");
  EXPECT_EQ(stream->updates().back().end->matched_stop, "");
}

// The stop string of the second token does not count. One that begins in the second token and ends
// in the third does.
TEST_F(OutputRouterTest, AStopStringEndsNoSequenceBeforeMinTokens) {
  StopAt({"b", "bc"});
  options_.min_tokens = 2;
  auto stream = Open();

  EXPECT_THAT(Publish({Token(0, 0), Token(1, 1)}).stopped, IsEmpty());
  EXPECT_THAT(Publish({Token(2, 2)}).stopped, SizeIs(1));
  Publish({Finished(FinishReason::kStop)});

  EXPECT_EQ(stream->Text(), "a");
  EXPECT_EQ(stream->updates().back().end->matched_stop, "bc");
}

TEST_F(OutputRouterTest, AStopStringWithinMinTokensIsText) {
  StopAt({"b"});
  options_.min_tokens = 2;
  auto stream = Open();

  Publish({Token(0, 1), Token(1, 1), Token(2, 0), Token(3, 1)});
  Publish({Finished(FinishReason::kStop)});

  EXPECT_EQ(stream->Text(), "bba");
  EXPECT_THAT(*stream->Tokens(), ElementsAre(1, 1, 0, 1));
}

TEST_F(OutputRouterTest, BytesOfACharacterAreHeldBackUntilItIsWhole) {
  auto stream = Open();

  Publish({Token(0, kFirstByteOfE)});
  Publish({Token(1, kSecondByteOfE)});
  Publish({Token(2, kFirstByteOfE), Finished(FinishReason::kLength)});

  EXPECT_EQ(stream->updates()[0].text, "");
  EXPECT_EQ(stream->updates()[1].text, "é");
  EXPECT_EQ(stream->updates()[2].end->text, "\xEF\xBF\xBD");
}

TEST_F(OutputRouterTest, AStopStringEndsTheSequenceAndIsReportedOnce) {
  StopAt({"bc"});
  auto stream = Open();

  EXPECT_THAT(Publish({Token(0, 0)}).stopped, IsEmpty());
  EXPECT_THAT(Publish({Token(1, 1)}).stopped, IsEmpty());
  const auto published = Publish({Token(2, 2)});
  Publish({Token(3, 3), Finished(FinishReason::kStop)});

  ASSERT_THAT(published.stopped, SizeIs(1));
  EXPECT_EQ(published.stopped[0].request_id, kId);
  EXPECT_EQ(stream->Text(), "a");
  EXPECT_THAT(*stream->Tokens(), ElementsAre(0, 1, 2));
  ASSERT_TRUE(stream->updates().back().end.has_value());
  EXPECT_EQ(stream->updates().back().end->matched_stop, "bc");
  EXPECT_EQ(stream->updates().back().end->reason, SequenceEnd::Reason::kStop);
  EXPECT_TRUE(stream->end()->ok());
}

TEST_F(OutputRouterTest, AStopStringInTheLastTokenWinsOverItsLength) {
  StopAt({"b"}, /*include=*/true);
  auto stream = Open();

  Publish({Token(0, 0), Token(1, 1), Finished(FinishReason::kLength)});

  EXPECT_EQ(stream->updates()[0].end->reason, SequenceEnd::Reason::kStop);
  EXPECT_EQ(stream->updates()[0].end->matched_stop, "b");
  EXPECT_EQ(stream->Text(), "ab");
}

TEST_F(OutputRouterTest, WhatMightHaveBecomeAStopStringComesAtTheEnd) {
  StopAt({"bcd"});
  auto stream = Open();

  Publish({Token(0, 0), Token(1, 1), Token(2, 2)});
  Publish({Finished(FinishReason::kLength)});

  EXPECT_EQ(stream->updates()[0].text, "a");
  EXPECT_EQ(stream->updates()[1].end->text, "bc");
}

TEST_F(OutputRouterTest, StopStringsWorkWithoutReturningText) {
  StopAt({"b"});
  options_.return_text = false;
  auto stream = Open();

  const auto published = Publish({Token(0, 0), Token(1, 1)});

  EXPECT_THAT(published.stopped, SizeIs(1));
  EXPECT_EQ(stream->Text(), "");
}

TEST_F(OutputRouterTest, WithoutATokenizerOnlyIdsAreSent) {
  options_.tokenizer = nullptr;
  options_.return_text = false;
  auto stream = Open();

  Publish({Token(0, 1000), Finished(FinishReason::kStop)});

  EXPECT_THAT(*stream->Tokens(), ElementsAre(1000));
  EXPECT_EQ(stream->Text(), "");
}

TEST_F(OutputRouterTest, LogprobsAreSentWhenAskedFor) {
  options_.return_logprobs = true;
  auto stream = Open();

  Publish({Token(0, 0), Token(1, 1)});

  ASSERT_THAT(stream->updates()[0].logprobs, SizeIs(2));
  EXPECT_EQ(stream->updates()[0].logprobs[0].logprob, -1.0F);
}

struct BadEnd {
  FinishReason reason;
  absl::StatusCode code;
  std::string name;
  RequestOutcome outcome;
};

class OutputRouterBadEndTest : public OutputRouterTest,
                               public testing::WithParamInterface<BadEnd> {};

TEST_P(OutputRouterBadEndTest, EndsTheStreamWithItsStatus) {
  auto stream = Open();
  Publish({Token(0, 0)});

  Publish({Finished(GetParam().reason)});

  EXPECT_EQ(stream->end()->code(), GetParam().code);
  EXPECT_EQ(ReasonOf(*stream->end()), GetParam().name);
  EXPECT_EQ(MetadataOf(*stream->end(), "next_index"), "1");
  EXPECT_EQ(stream->num_ends(), 1);
  EXPECT_EQ(observer_.last->outcome, GetParam().outcome);
}

INSTANTIATE_TEST_SUITE_P(AllReasons,
                         OutputRouterBadEndTest,
                         testing::Values(BadEnd{FinishReason::kAborted,
                                                absl::StatusCode::kCancelled,
                                                "CLIENT",
                                                RequestOutcome::kAborted},
                                         BadEnd{FinishReason::kExpiredQueued,
                                                absl::StatusCode::kDeadlineExceeded,
                                                "EXPIRED_QUEUED",
                                                RequestOutcome::kExpired},
                                         BadEnd{FinishReason::kExpiredRunning,
                                                absl::StatusCode::kDeadlineExceeded,
                                                "EXPIRED_RUNNING",
                                                RequestOutcome::kExpired},
                                         BadEnd{FinishReason::kNonFinite,
                                                absl::StatusCode::kInternal,
                                                "NON_FINITE_LOGITS",
                                                RequestOutcome::kError},
                                         BadEnd{FinishReason::kUnreachable,
                                                absl::StatusCode::kResourceExhausted,
                                                "DEADLINE_UNREACHABLE",
                                                RequestOutcome::kRejected},
                                         BadEnd{FinishReason::kWorkerCrash,
                                                absl::StatusCode::kInternal,
                                                "WORKER_CRASH",
                                                RequestOutcome::kError},
                                         BadEnd{FinishReason::kNoCapacity,
                                                absl::StatusCode::kResourceExhausted,
                                                "EXCEEDS_CAPACITY",
                                                RequestOutcome::kError}),
                         [](const auto& param) { return param.param.name; });

TEST_F(OutputRouterTest, TheFirstAbortStatusIsTheOneToldToTheStream) {
  auto stream = Open();

  router_.SetAbortStatus(kId, absl::UnavailableError("first"));
  router_.SetAbortStatus(kId, absl::UnavailableError("second"));
  router_.SetAbortStatus(RequestId(99), absl::UnavailableError("nobody"));
  Publish({Finished(FinishReason::kAborted)});

  EXPECT_EQ(*stream->end(), absl::UnavailableError("first"));
  EXPECT_EQ(observer_.last->outcome, RequestOutcome::kError);  // no client that left
}

TEST_F(OutputRouterTest, OneSequenceThatEndsBadlyEndsTheStreamBadly) {
  auto stream = Open(/*num_sequences=*/2);

  Publish({Token(0, 0), Finished(FinishReason::kNonFinite, 0, /*is_last=*/false)});
  Publish({Token(0, 1, 1), Finished(FinishReason::kLength, 1)});

  EXPECT_EQ(ReasonOf(*stream->end()), "NON_FINITE_LOGITS");
  EXPECT_EQ(stream->Text(1), "b");
}

TEST_F(OutputRouterTest, AReaderThatIsTooSlowIsCutAndToldSo) {
  auto stream = Open();
  stream->RefuseWrites();

  const auto published = Publish({Token(0, 0)});
  Publish({Token(1, 1)});
  Publish({Finished(FinishReason::kAborted)});

  EXPECT_THAT(published.overflowed, ElementsAre(kId));
  EXPECT_EQ(ReasonOf(*stream->end()), "SLOW_CONSUMER");
}

TEST_F(OutputRouterTest, AReaderThatIsTooSlowForTheVeryLastTokenIsNotToldThatAllIsWell) {
  auto stream = Open();
  stream->RefuseWrites();

  Publish({Token(0, 0), Finished(FinishReason::kLength)});

  EXPECT_EQ(ReasonOf(*stream->end()), "SLOW_CONSUMER");
}

TEST_F(OutputRouterTest, FindStalledNamesStreamsThatGetNothingThrough) {
  auto stream = Open();

  EXPECT_THAT(router_.FindStalled(50), IsEmpty());
  stream->StallSince(49);
  EXPECT_THAT(router_.FindStalled(49), IsEmpty());
  EXPECT_THAT(router_.FindStalled(50), ElementsAre(kId));
}

TEST_F(OutputRouterTest, AnEndedStreamThatIsNotReadIsCutOnce) {
  auto stream = Open();
  stream->StallSince(49);
  Publish({Token(0, 0), Finished(FinishReason::kLength)});

  EXPECT_THAT(router_.FindStalled(49), IsEmpty());
  EXPECT_EQ(stream->num_ends(), 1);
  EXPECT_THAT(router_.FindStalled(50), IsEmpty());
  EXPECT_EQ(ReasonOf(*stream->end()), "SLOW_CONSUMER");
  router_.FindStalled(51);

  EXPECT_EQ(stream->num_ends(), 2);
  EXPECT_EQ(stream.use_count(), 1);
}

TEST_F(OutputRouterTest, AnEndedStreamThatIsReadAfterAllIsLeftAlone) {
  auto stream = Open();
  stream->StallSince(49);
  Publish({Token(0, 0), Finished(FinishReason::kLength)});

  stream->StallSince(kInfiniteFuture);
  router_.FindStalled(50);

  EXPECT_EQ(stream->num_ends(), 1);
  EXPECT_EQ(stream.use_count(), 1);
}

TEST_F(OutputRouterTest, RejectEndsTheStreamWithoutOutput) {
  auto stream = Open();

  router_.Reject(kId, absl::ResourceExhaustedError("full"), 100);

  EXPECT_THAT(stream->updates(), IsEmpty());
  EXPECT_EQ(*stream->end(), absl::ResourceExhaustedError("full"));
  EXPECT_THAT(router_.OpenRequests(), IsEmpty());
}

class ResumedOutputTest : public OutputRouterTest {
 protected:
  // The tokens of one sequence, as a core commits them, and its end.
  std::shared_ptr<RecordingStream> Run(const std::vector<TokenId>& tokens, size_t first) {
    Request request;
    request.id = kId;
    request.prompt_token_ids = Letters("the prompt");
    request.stop_token_ids = {kEos};
    OutputOptions output = options_;
    if (first > 0) {
      OutputText text = output.NewText(request.prompt_token_ids);
      for (size_t i = 0; i < first; ++i) {
        text.Push(tokens[i]);
      }
      request.resumed = {
          {.token_ids = {tokens.begin(), tokens.begin() + static_cast<int64_t>(first)}}};
      output.received = {{.num_tokens = static_cast<int32_t>(first), .text = text}};
    }
    auto stream = std::make_shared<RecordingStream>();
    router_.Open(request, output, stream);
    for (size_t i = first; i < tokens.size(); ++i) {
      Publish({Token(static_cast<int32_t>(i), tokens[i])});
    }
    Publish({Finished(FinishReason::kLength)});
    return stream;
  }
};

TEST_F(ResumedOutputTest, GoesOnAtTheSameByteWhereverTheStreamBroke) {
  StopAt({"bcd", "dx"});
  // A character in two tokens, a beginning of a stop string that comes to nothing, and a stop.
  const std::vector<TokenId> tokens = {
      0, kFirstByteOfE, kSecondByteOfE, 1, 2, 4, kSpaceId, kFirstByteOfE, 1, 2, 3, 5};
  const std::vector<SequenceUpdate> whole = Run(tokens, 0)->updates();

  for (size_t first = 1; first + 1 < tokens.size(); ++first) {
    const std::vector<SequenceUpdate> rest = Run(tokens, first)->updates();

    ASSERT_EQ(rest.size() + first, whole.size()) << first;
    for (size_t i = 0; i < rest.size(); ++i) {
      EXPECT_EQ(rest[i].first_position, whole[first + i].first_position) << first;
      EXPECT_EQ(rest[i].token_ids, whole[first + i].token_ids) << first;
      EXPECT_EQ(rest[i].text, whole[first + i].text) << first;
      EXPECT_EQ(rest[i].end.has_value(), whole[first + i].end.has_value()) << first;
    }
    EXPECT_EQ(rest.back().end->matched_stop, "bcd");
    EXPECT_EQ(rest.back().end->num_output_tokens, whole.back().end->num_output_tokens);
  }
}

TEST_F(ResumedOutputTest, TokensBeforeTheBreakCountForMinTokens) {
  StopAt({"b"});
  options_.min_tokens = 3;
  const std::vector<TokenId> tokens = {1, 0, 1, 0, 1, 0};
  // A "b" is held back until the next token.
  const std::vector<std::string> expected = {"baba", "baba", "ba", "ba", ""};
  for (size_t first = 0; first < expected.size(); ++first) {
    const auto stream = Run(tokens, first);
    EXPECT_EQ(stream->updates().back().end->num_output_tokens, 5) << first;
    EXPECT_EQ(stream->Text(), expected[first]) << first;
  }
}

TEST_F(ResumedOutputTest, WhatHadEndedIsNotToldAgain) {
  Request request;
  request.id = kId;
  request.prompt_token_ids = Letters("the prompt");
  request.num_sequences = 2;
  request.resumed = {{.token_ids = {}, .has_ended = true}, {.token_ids = {0}}};
  OutputOptions output = options_;
  output.received = {{.has_ended = true}, {.num_tokens = 1}};
  auto stream = std::make_shared<RecordingStream>();
  router_.Open(request, output, stream);

  Publish({Token(1, 2, 1), Finished(FinishReason::kLength, 1)});

  ASSERT_THAT(stream->updates(), SizeIs(1));
  EXPECT_EQ(stream->updates()[0].sequence_index, 1);
  EXPECT_EQ(stream->updates()[0].first_position, 1);
  EXPECT_TRUE(stream->end()->ok());
}

// best_of: made anew, and sent from where the client is.
TEST_F(ResumedOutputTest, OfWhatIsMadeAnewTheClientGetsWhatItLacks) {
  Request request;
  request.id = kId;
  request.prompt_token_ids = Letters("the prompt");
  request.num_sequences = 3;
  OutputOptions output = options_;
  output.num_best = 2;
  output.received = {{.num_tokens = 2, .has_ended = false}, {.num_tokens = 1, .has_ended = true}};
  auto stream = std::make_shared<RecordingStream>();
  router_.Open(request, output, stream);

  const auto token = [](int32_t index, TokenId id, int32_t sequence, float logprob) {
    TokenCommitted committed = Token(index, id, sequence);
    committed.logprob = logprob;
    return committed;
  };
  Publish({token(0, 0, 0, -3.0F), Finished(FinishReason::kLength, 0, false)});
  Publish({token(0, 3, 1, -2.0F), Finished(FinishReason::kLength, 1, false)});
  Publish({token(0, 6, 2, -1.0F), token(1, 7, 2, -1.0F), token(2, 8, 2, -1.0F)});
  Publish({Finished(FinishReason::kLength, 2)});

  ASSERT_THAT(stream->updates(), SizeIs(1));
  const SequenceUpdate update = stream->updates()[0];
  EXPECT_EQ(update.sequence_index, 0);
  EXPECT_EQ(update.first_position, 2);
  EXPECT_THAT(update.token_ids, ElementsAre(8));
  EXPECT_EQ(update.text, "i");
  EXPECT_EQ(update.end->num_output_tokens, 3);
}

}  // namespace
}  // namespace quire
