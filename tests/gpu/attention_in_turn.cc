#include <memory>
#include <utility>

#include "tests/gpu/bench_attention.h"
#include "tests/gpu/peer_library.h"

namespace quire::gpu {
namespace {

// Bounds the error of a row of bf16 outputs with bf16 weights. The tests, on small shapes, have a
// stricter bound.
constexpr double kMaxError = 8e-3;

}  // namespace

AttentionInTurn::AttentionInTurn(Bench& bench,
                                 AttentionBatch& batch,
                                 std::string group,
                                 std::string name)
    : bench_(bench), batch_(batch), group_(std::move(group)), name_(std::move(name)) {}

void AttentionInTurn::Add(Figure figure, Bench::Call call, bool is_peer) {
  figure.Param("of", name_);
  members_.push_back({.figure = std::move(figure), .call = std::move(call), .is_peer = is_peer});
}

void AttentionInTurn::AddDecode(const DecodeChoice& choice, DecodeOptions options) {
  options.kernel = choice.kernel;
  auto made = DecodeScratch::Make(bench_, batch_, options);
  if (!made.has_value()) {
    return;
  }
  auto scratch = std::make_shared<DecodeScratch>(std::move(*made));
  std::string name = name_;
  if (options.ctas_over_grid != 1.0) {
    name += ", " + std::to_string(scratch->plan().num_ctas) + " CTAs";
  }
  Figure figure(group_, NameWith(name, kDecodeChoices, choice));
  figure.Param("kernel", std::string(choice.name));
  figure.Param("split_tokens", scratch->plan().split_tokens);
  figure.Param("num_ctas", scratch->plan().num_ctas);
  Add(std::move(figure), [this, scratch](int set) {
    return Decode(batch_.Args(set), scratch->plan(), batch_.shape().dtype, bench_.stream());
  });
}

void AttentionInTurn::AddPrefill(const PrefillChoice& choice, const std::string& prefix) {
  const auto scratch =
      std::make_shared<PrefillScratch>(batch_, PrefillOptions{.kernel = choice.kernel});
  auto call = [this, scratch](int set) {
    return Prefill(batch_.Args(set), scratch->plan(), batch_.shape().dtype, bench_.stream());
  };
  const int error = call(0);
  if (error == kUnsupported) {
    return;
  }
  Require(error, "prefill");
  Figure figure(group_,
                prefix.empty() ? NameWith(name_, kPrefillChoices, choice)
                               : name_ + ", " + prefix + choice.name);
  figure.Param("kernel", prefix + choice.name);
  Add(std::move(figure), call);
}

void AttentionInTurn::AddPeer(int kind) {
  const std::shared_ptr<PlannedPeer> peer =
      PlannedPeer::Make(bench_.options().peers_path, kind, batch_);
  if (peer == nullptr) {
    return;
  }
  auto call = [this, peer](int set) { return peer->Run(batch_, set, bench_.stream()); };
  if (const int error = call(0); error != 0) {
    bench_.report().Say("  " + name_ + ", " + peer->name() + ": error " + std::to_string(error));
    return;
  }
  Figure figure(group_, name_ + ", " + peer->name());
  figure.Param("peer", peer->name());
  Add(std::move(figure), call, /*is_peer=*/true);
}

void AttentionInTurn::Check(Member& member) {
  batch_.out().Poison();
  for (int set = 0; set < batch_.num_sets(); ++set) {
    Require(member.call(set), "attention");
  }
  bench_.Wait();
  member.figure.error = batch_.ProbedError(bench_, member.is_peer);
  const bool ok = member.figure.error <= kMaxError && batch_.IsFinite(bench_);
  // A peer's wrong outputs are reported, but do not count as a failure of our kernels.
  member.figure.ok = ok || member.is_peer;
  member.figure.note = member.is_peer && !ok ? "this peer's outputs are wrong" : "";
}

void AttentionInTurn::Measure(const std::function<void(Figure& figure)>& complete) {
  if (members_.empty()) {
    return;
  }
  std::vector<Bench::Call> calls;
  for (const Member& member : members_) {
    calls.push_back(member.call);
  }
  const std::vector<Timing> timings = bench_.MeasureInTurn(batch_.num_sets(), calls);
  for (size_t i = 0; i < members_.size(); ++i) {
    members_[i].figure.timing = timings[i];
    batch_.shape().AddParams(members_[i].figure);
    complete(members_[i].figure);
    Check(members_[i]);
    bench_.Add(members_[i].figure);
  }
}

}  // namespace quire::gpu
