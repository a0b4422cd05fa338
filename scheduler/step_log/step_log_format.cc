#include "scheduler/step_log/step_log_format.h"

#include <array>
#include <utility>

#include "absl/strings/str_cat.h"

#include "common/base/error.h"
#include "common/base/fold_hash.h"
#include "common/base/status_macros.h"
#include "common/base/string_view.h"

namespace quire {
namespace {

constexpr std::string_view kMagic = "QUIRELOG";
constexpr uint32_t kMaxVersionBytes = 256;
constexpr size_t kFrameBytes = 16;
constexpr size_t kChecksumBytes = 8;

uint64_t Checksum(uint64_t previous, std::string_view payload) {
  FoldHash hash;
  hash.Add(previous);
  hash.AddBytes(payload);
  return hash.value();
}

template <typename Variant, size_t... kIndex>
void AddLayouts(std::index_sequence<kIndex...> /*all*/, FoldHash& layout) {
  (AddLayout(std::variant_alternative_t<kIndex, Variant>{}, layout), ...);
}

// Returns a hash of the types of all fields in records, and in output events (logged as digests).
uint64_t Layout() {
  FoldHash layout;
  AddLayouts<StepLogRecord>(std::make_index_sequence<std::variant_size_v<StepLogRecord>>(), layout);
  AddLayouts<OutputEvent>(std::make_index_sequence<std::variant_size_v<OutputEvent>>(), layout);
  return layout.value();
}

template <typename T>
StepLogRecord Decode(ByteReader& in) {
  T record;
  Get(in, record);
  GetTail(in, record);
  return record;
}

template <size_t... kIndex>
StepLogRecord DecodeKind(uint64_t kind, ByteReader& in, std::index_sequence<kIndex...> /*all*/) {
  using Decoder = StepLogRecord (*)(ByteReader&);
  constexpr std::array<Decoder, sizeof...(kIndex)> kDecoders = {
      Decode<std::variant_alternative_t<kIndex, StepLogRecord>>...};
  if (kind >= kDecoders.size()) {
    in.Fail();
    return {};
  }
  return kDecoders[kind](in);
}

StepLogRecord DecodePayload(ByteReader& in) {
  const uint64_t kind = in.Varint();
  return DecodeKind(kind, in, std::make_index_sequence<std::variant_size_v<StepLogRecord>>());
}

absl::Status NotALog(std::string_view what) {
  return InvalidArgument("STEP_LOG", absl::StrCat("step log: ", ToAbsl(what)));
}

}  // namespace

std::string_view StepLogEncoder::Head(std::string_view program_version) {
  program_version = program_version.substr(0, kMaxVersionBytes);
  framed_.Clear();
  framed_.Raw(kMagic);
  framed_.Fixed64(Layout());
  framed_.Fixed32(static_cast<uint32_t>(program_version.size()));
  framed_.Raw(program_version);
  checksum_ = Checksum(0, framed_.bytes());
  framed_.Fixed64(checksum_);
  return framed_.bytes();
}

std::string_view StepLogEncoder::Framed(std::string_view payload) {
  const auto size = static_cast<uint32_t>(payload.size());
  checksum_ = Checksum(checksum_, payload);
  framed_.Clear();
  framed_.Fixed32(size);
  framed_.Fixed32(~size);
  framed_.Fixed64(checksum_);
  framed_.Raw(payload);
  return framed_.bytes();
}

absl::StatusOr<StepLogReader> StepLogReader::Open(std::istream* stream) {
  StepLogReader reader(stream);
  QUIRE_RETURN_IF_ERROR(reader.ReadHead());
  return reader;
}

absl::Status StepLogReader::ReadHead() {
  if (!Read(kMagic.size() + 12, bytes_) || !bytes_.starts_with(kMagic)) {
    return NotALog("the file is not a step log");
  }
  const std::string head = bytes_;
  ByteReader in(std::string_view(head).substr(kMagic.size()));
  const uint64_t layout = in.Fixed64();
  const uint32_t size = in.Fixed32();
  if (size > kMaxVersionBytes || !Read(size, version_) || !Read(kChecksumBytes, bytes_)) {
    return NotALog("the header is damaged");
  }
  if (layout != Layout()) {
    return NotALog(absl::StrCat("was written by version ",
                                version_,
                                ", which has another record layout; replay it with that version"));
  }
  checksum_ = Checksum(0, head + version_);
  return ByteReader(bytes_).Fixed64() == checksum_ ? absl::OkStatus()
                                                   : NotALog("the header is damaged");
}

absl::StatusOr<std::optional<StepLogRecord>> StepLogReader::Next() {
  if (!Read(kFrameBytes, bytes_)) {
    is_torn_ = !bytes_.empty();
    return std::nullopt;
  }
  ByteReader frame(bytes_);
  const uint32_t size = frame.Fixed32();
  const uint32_t inverted_size = frame.Fixed32();
  const uint64_t checksum = frame.Fixed64();
  if (size != ~inverted_size || size > kMaxStepLogRecordBytes) {
    return Damaged("its size is damaged");
  }
  if (!Read(size, bytes_)) {
    is_torn_ = true;
    return std::nullopt;
  }
  checksum_ = Checksum(checksum_, bytes_);
  if (checksum != checksum_) {
    return Damaged("the record or an earlier one was changed or removed");
  }
  ByteReader payload(bytes_);
  StepLogRecord record = DecodePayload(payload);
  if (!payload.ok() || !payload.at_end()) {
    return Damaged("its fields are not a valid record");
  }
  ++num_records_;
  return record;
}

bool StepLogReader::Read(size_t size, std::string& bytes) {
  bytes.resize(size);
  stream_->read(bytes.data(), static_cast<std::streamsize>(size));
  bytes.resize(static_cast<size_t>(stream_->gcount()));
  offset_ += stream_->gcount();
  return bytes.size() == size;
}

absl::Status StepLogReader::Damaged(std::string_view what) const {
  return Error(absl::StatusCode::kDataLoss,
               "STEP_LOG",
               absl::StrCat("step log: record ",
                            num_records_ + 1,
                            ", which ends before byte ",
                            offset_,
                            ", is damaged: ",
                            ToAbsl(what)));
}

}  // namespace quire
