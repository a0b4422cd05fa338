#include "deploy/cli/top_frame.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "common/base/printable.h"
#include "deploy/cli/block_map_text.h"

namespace quire {
namespace {

constexpr int kMaxSide = 1000;
constexpr int kLabelColumns = 12;
constexpr int kMaxMapLines = 16;  // upper bound on the map's lines if style.height is 0
constexpr int kMinMapLines = 2;
constexpr int kAiryMapLines = 8;  // if the map has room for so many lines, empty lines surround it
constexpr int kMaxHolders = 12;
constexpr int kMaxRanks = 16;
constexpr int kMaxNameColumns = 20;
constexpr double kRateSeconds = 2;
constexpr double kStepSeconds = 10;
constexpr double kHitSeconds = 60;
constexpr char kGood[] = "32";
constexpr char kBad[] = "1;31";
constexpr char kQuiet[] = "2";
constexpr char kStrong[] = "1";

// Returns how many columns `text` fills. Counts its UTF-8 characters, because all our glyphs are
// one column wide.
int ColumnsOf(std::string_view text) {
  return static_cast<int>(std::count_if(
      text.begin(), text.end(), [](char c) { return (static_cast<uint8_t>(c) & 0xC0) != 0x80; }));
}

// Returns the first `columns` columns of text.
std::string_view Beginning(std::string_view text, int columns) {
  size_t end = 0;
  for (int left = columns; end < text.size(); ++end) {
    if ((static_cast<uint8_t>(text[end]) & 0xC0) != 0x80 && left-- == 0) {
      break;
    }
  }
  return text.substr(0, end);
}

std::string Name(std::string_view text) {
  return text.size() <= kMaxNameColumns
             ? Printable(text)
             : absl::StrCat(Printable(text.substr(0, kMaxNameColumns - 2)), "..");
}

// Collects lines, each at most style.width columns wide.
class Lines {
 public:
  explicit Lines(const FrameStyle& style) : style_(style) {}

  // Adds one line, cut at style.width.
  void Add(const std::vector<ColoredText>& texts) {
    std::string line;
    int left = style_.width;
    for (const ColoredText& each : texts) {
      const std::string_view text = Beginning(each.text, left);
      left -= ColumnsOf(text);
      if (style_.has_color && !each.color.empty() && !text.empty()) {
        absl::StrAppend(&line, "\x1b[", each.color, "m", std::string(text), "\x1b[0m");
      } else {
        absl::StrAppend(&line, std::string(text));
      }
    }
    lines_.push_back(std::move(line));
  }

  // Adds text on as many lines as it needs.
  void Wrap(std::string_view text, const char* color) {
    while (!text.empty()) {
      const std::string_view part = Beginning(text, style_.width);
      Add({{std::string(part), color}});
      text.remove_prefix(part.size());
    }
  }

  // Adds a label, and the items after it, on as many lines as they need.
  void Flow(const std::string& label, const std::vector<ColoredText>& items) {
    std::vector<ColoredText> line = {{label, kQuiet}};
    int used = ColumnsOf(label);
    bool is_first = true;
    for (const ColoredText& item : items) {
      const int columns = ColumnsOf(item.text);
      if (!is_first && used + 2 + columns > style_.width) {
        Add(std::exchange(line, {}));
        used = 0;
        is_first = true;
      }
      const int gap = is_first ? std::max(0, kLabelColumns - used) : 2;
      line.push_back({std::string(static_cast<size_t>(gap), ' '), ""});
      line.push_back(item);
      used += gap + columns;
      is_first = false;
    }
    Add(line);
  }

  void Append(const Lines& other) {
    lines_.insert(lines_.end(), other.lines_.begin(), other.lines_.end());
  }

  int size() const { return static_cast<int>(lines_.size()); }

  // Returns as many of the first lines as the height allows.
  std::string Text() const {
    const size_t num_lines = style_.height == 0
                                 ? lines_.size()
                                 : std::min(lines_.size(), static_cast<size_t>(style_.height));
    std::string text;
    for (size_t i = 0; i < num_lines; ++i) {
      absl::StrAppend(&text, lines_[i], "\n");
    }
    return text;
  }

 private:
  const FrameStyle style_;
  std::vector<std::string> lines_;
};

std::string Percent(double part, double whole) {
  return whole > 0 ? absl::StrFormat("%.1f%%", 100 * ShareOf(part, whole)) : "-";
}

std::string Bytes(int64_t bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  auto number = static_cast<double>(bytes);
  size_t unit = 0;
  for (; number >= 1024 && unit + 1 < std::size(kUnits); ++unit) {
    number /= 1024;
  }
  return absl::StrFormat("%.*f %s", unit == 0 ? 0 : 1, number, kUnits[unit]);
}

std::string Rate(double per_second) {
  return absl::StrFormat("%.*f", per_second < 100 ? 1 : 0, per_second);
}

// Returns the newest rates as a row of bars, one glyph for each rate.
std::string Sparkline(const TopHistory& history,
                      double TopCounts::*count,
                      int columns,
                      bool has_unicode) {
  constexpr const char* kBars[] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  constexpr const char* kPlainBars[] = {"_", ".", ":", "-", "=", "+", "*", "#"};
  constexpr int kNumBars = std::size(kBars);
  const std::vector<double> rates = history.Rates(count, static_cast<size_t>(columns));
  const double most = rates.empty() ? 0 : *std::max_element(rates.begin(), rates.end());
  std::string line;
  for (const double rate : rates) {
    const int bar =
        std::min(kNumBars - 1, static_cast<int>(kNumBars * std::min(1.0, ShareOf(rate, most))));
    absl::StrAppend(&line, has_unicode ? kBars[bar] : kPlainBars[bar]);
  }
  return line;
}

ColoredText RateItem(const TopHistory& history,
                     const char* name,
                     double TopCounts::*count,
                     const FrameStyle& style) {
  const TopCounts recent = history.Since(kRateSeconds);
  const int columns = std::clamp((style.width - kLabelColumns - 44) / 2, 6, 60);
  return {absl::StrFormat("%s %s/s %s",
                          name,
                          Rate(ShareOf(recent.*count, recent.seconds)),
                          Sparkline(history, count, columns, style.has_unicode)),
          ""};
}

void AddHeader(const TopHistory& history,
               std::string_view server,
               std::string_view trouble,
               Lines& lines) {
  std::vector<ColoredText> items = {{"quire", kStrong}};
  if (history.latest().has_value()) {
    const v1::GetStateResponse& state = *history.latest();
    items.front().text = absl::StrCat("quire ", Name(state.version()));
    items.push_back({absl::StrCat(" ", Name(state.model())), ""});
    items.push_back(!trouble.empty()         ? ColoredText{" NO ANSWER", kBad}
                    : state.load().ready()   ? ColoredText{" ready", kGood}
                    : state.load().standby() ? ColoredText{" standby", kQuiet}
                                             : ColoredText{" not ready", kBad});
  }
  items.push_back({absl::StrCat(" ", Printable(server)), kQuiet});
  lines.Add(items);
  if (!trouble.empty()) {
    // gRPC's message lists all attempts; the cause follows the last "last error: ".
    constexpr std::string_view kLast = "last error: ";
    const size_t last = trouble.rfind(kLast);
    const std::string_view cause =
        last == std::string_view::npos ? trouble : trouble.substr(last + kLast.size());
    lines.Wrap(
        absl::StrCat(history.latest().has_value() ? "Figures are old: " : "", Printable(cause)),
        kBad);
  }
}

void AddRequests(const v1::GetLoadResponse& load, Lines& lines) {
  lines.Flow("Requests",
             {{absl::StrCat("running ", load.num_running_requests()), ""},
              {absl::StrCat("waiting ", load.num_waiting_requests()), ""},
              {absl::StrCat("swapped ", load.num_swapped_requests()), ""},
              {absl::StrCat("sequences ", load.num_running_sequences()), ""},
              {absl::StrCat("queued tokens ", load.num_queued_tokens()), ""}});
}

void AddRates(const TopHistory& history, const FrameStyle& style, Lines& lines) {
  lines.Flow("Tokens",
             {RateItem(history, "generated", &TopCounts::generated_tokens, style),
              RateItem(history, "prompt", &TopCounts::prompt_tokens, style)});
  const TopCounts steps = history.Since(kStepSeconds);
  const double worker = steps.worker_build + steps.worker_forward + steps.worker_sample;
  const double busy = steps.plan + steps.send + steps.wait + steps.apply;
  const double all = std::max(busy, steps.seconds);
  const auto part = [all](const char* name, double seconds) {
    return ColoredText{absl::StrCat(name, " ", Percent(seconds, all)), ""};
  };
  lines.Flow("Steps",
             {{absl::StrFormat("%s/s", Rate(ShareOf(steps.steps, steps.seconds))), ""},
              {absl::StrFormat("%.2f ms", 1000 * ShareOf(busy, steps.steps)), ""},
              part("plan", steps.plan),
              part("send", steps.send),
              part("wire", std::max(0.0, steps.wait - worker)),
              part("build", steps.worker_build),
              part("forward", steps.worker_forward),
              part("sample", steps.worker_sample),
              part("apply", steps.apply),
              part("idle", all - busy)});
}

void AddPreemptions(const TopHistory& history, const v1::GetLoadResponse& load, Lines& lines) {
  const TopCounts hits = history.Since(kHitSeconds);
  lines.Flow("Prefix hits",
             {{Percent(hits.hit_tokens, hits.queried_tokens) + " in the last minute", ""},
              {Percent(static_cast<double>(load.num_prefix_hit_tokens()),
                       static_cast<double>(load.num_prefix_queried_tokens())) +
                   " since start",
               ""}});
  std::vector<ColoredText> items = {
      {absl::StrCat("recomputed ", load.num_recompute_preemptions()), ""},
      {absl::StrCat("swapped ", load.num_swap_preemptions()), ""},
      {absl::StrCat("out ", Bytes(load.swapped_out_bytes())), ""},
      {absl::StrCat("in ", Bytes(load.swapped_in_bytes())), ""}};
  if (load.num_failed_swap_ins() > 0) {
    items.push_back({absl::StrCat("failed swap-ins ", load.num_failed_swap_ins()), kBad});
  }
  lines.Flow("Preempted", items);
}

void AddBlocks(const v1::GetLoadResponse& load, const MapGlyphs& glyphs, Lines& lines) {
  const v1::KvBlocks& blocks = load.kv_blocks();
  const v1::HostBlocks& host = load.host_blocks();
  const double all = blocks.num_blocks();
  lines.Flow(
      "KV blocks",
      {{absl::StrCat(blocks.num_blocks(), " of ", blocks.block_size_tokens(), " tokens"), ""},
       {Percent(all - blocks.num_free() - blocks.num_cached(), all) + " used", kStrong},
       {Percent(blocks.fragmentation(), 1) + " fragmentation", ""},
       {absl::StrFormat("sharing %.2fx",
                        ShareOf(static_cast<double>(blocks.num_referenced_tokens()),
                                static_cast<double>(blocks.num_stored_tokens()))),
        ""},
       {absl::StrFormat(
            "host %d of %d", int64_t{host.num_blocks()} - host.num_free(), host.num_blocks()),
        ""}});
  lines.Flow("",
             {{absl::StrCat(glyphs.active[3], " active ", blocks.num_active()), ""},
              {absl::StrCat(glyphs.shared, " shared ", blocks.num_shared()), ""},
              {absl::StrCat(glyphs.cached, " cached ", blocks.num_cached()), kCachedColor},
              {absl::StrCat(glyphs.free, " free ", blocks.num_free()), kFreeColor},
              {absl::StrCat(glyphs.leaving, " leaving ", blocks.num_leaving()), kLeavingColor},
              {absl::StrCat("pending ", blocks.num_pending()), kLeavingColor}});
}

void AddHolders(const v1::BlockMap& map, const MapGlyphs& glyphs, Lines& lines) {
  std::vector<ColoredText> items;
  for (int i = 0; i < std::min(map.holders_size(), kMaxHolders); ++i) {
    const v1::BlockHolder& holder = map.holders(i);
    const std::string name = holder.is_prefix()            ? "prefix"
                             : holder.request_id().empty() ? "request"
                                                           : Name(holder.request_id());
    items.push_back({absl::StrCat(glyphs.active[3], " ", name, " ", holder.num_blocks()),
                     ColorOfHolder(holder.number())});
  }
  lines.Flow("Held by", items.empty() ? std::vector<ColoredText>{{"none", kQuiet}} : items);
}

ColoredText RankItem(int rank, const v1::Rank& message) {
  const bool is_ready = message.phase() == v1::Rank::READY;
  const char* phase = is_ready                               ? "ready"
                      : message.phase() == v1::Rank::LOADING ? "loading"
                      : message.phase() == v1::Rank::WAITING ? "waiting"
                      : message.phase() == v1::Rank::AWAY    ? "away"
                                                             : "unknown";
  const std::string windows =
      message.kv_memory().backend() == v1::KV_BACKEND_VMM
          ? absl::StrCat(", ", message.kv_memory().num_places(), " places mapped")
          : "";
  return {absl::StrCat(rank, " ", Printable(message.address()), " ", phase, windows),
          is_ready ? kGood : kBad};
}

void AddRanks(const v1::GetLoadResponse& load, Lines& lines) {
  std::vector<ColoredText> items;
  for (int rank = 0; rank < std::min(load.ranks_size(), kMaxRanks); ++rank) {
    items.push_back(RankItem(rank, load.ranks(rank)));
  }
  if (load.ranks_size() > kMaxRanks) {
    items.push_back({absl::StrCat("and ", load.ranks_size() - kMaxRanks, " more"), kQuiet});
  }
  lines.Flow("Workers", items);
}

}  // namespace

std::string TopFrame(const TopHistory& history,
                     std::string_view server,
                     std::string_view trouble,
                     const FrameStyle& wanted) {
  FrameStyle style = wanted;
  style.width = std::clamp(style.width, kMinFrameWidth, kMaxSide);
  style.height = std::clamp(style.height, 0, kMaxSide);
  Lines lines(style);
  AddHeader(history, server, trouble, lines);
  if (!history.latest().has_value()) {
    return lines.Text();
  }
  const v1::GetStateResponse& state = *history.latest();
  const MapGlyphs& glyphs = MapGlyphsOf(style.has_color, style.has_unicode);
  AddRequests(state.load(), lines);
  AddRates(history, style, lines);
  AddPreemptions(history, state.load(), lines);
  AddBlocks(state.load(), glyphs, lines);
  Lines below(style);
  AddHolders(state.block_map(), glyphs, below);
  AddRanks(state.load(), below);
  const int room = style.height - lines.size() - below.size();
  const bool is_airy = style.height == 0 || room >= kAiryMapLines;
  const int max_map_lines =
      style.height == 0 ? kMaxMapLines : std::max(kMinMapLines, is_airy ? room - 2 : room);
  if (is_airy) {
    lines.Add({});
  }
  for (const auto& line : BlockMapLines(state.block_map(), style.width, max_map_lines, glyphs)) {
    lines.Add(line);
  }
  if (is_airy) {
    lines.Add({});
  }
  lines.Append(below);
  return lines.Text();
}

std::string TopLine(const TopHistory& history) {
  const v1::GetStateResponse& state = *history.latest();
  const v1::GetLoadResponse& load = state.load();
  const v1::KvBlocks& blocks = load.kv_blocks();
  const TopCounts recent = history.Since(0);
  const TopCounts hits = history.Since(kHitSeconds);
  const double all = blocks.num_blocks();
  return absl::StrCat(
      absl::StrFormat(
          "ready=%s standby=%s running=%d waiting=%d swapped=%d sequences=%d queued_tokens=%d",
          load.ready() ? "yes" : "no",
          load.standby() ? "yes" : "no",
          load.num_running_requests(),
          load.num_waiting_requests(),
          load.num_swapped_requests(),
          load.num_running_sequences(),
          load.num_queued_tokens()),
      absl::StrFormat(" generated_tokens_per_s=%.1f prompt_tokens_per_s=%.1f steps_per_s=%.1f",
                      ShareOf(recent.generated_tokens, recent.seconds),
                      ShareOf(recent.prompt_tokens, recent.seconds),
                      ShareOf(recent.steps, recent.seconds)),
      absl::StrFormat(" kv_used=%s free=%d cached=%d active=%d leaving=%d pending=%d shared=%d",
                      Percent(all - blocks.num_free() - blocks.num_cached(), all),
                      blocks.num_free(),
                      blocks.num_cached(),
                      blocks.num_active(),
                      blocks.num_leaving(),
                      blocks.num_pending(),
                      blocks.num_shared()),
      absl::StrFormat(" preemptions=%d prefix_hits=%s\n",
                      static_cast<uint64_t>(load.num_recompute_preemptions()) +
                          static_cast<uint64_t>(load.num_swap_preemptions()),
                      Percent(hits.hit_tokens, hits.queried_tokens)));
}

}  // namespace quire
