#include "common/http/response_reader.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

#include "common/base/check.h"
#include "common/base/error.h"
#include "common/base/string_view.h"

#include <boost/asio/buffer.hpp>
#include <boost/asio/error.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/parser.hpp>

namespace quire {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using ErrorCode = boost::system::error_code;

constexpr std::string_view kVersion = "HTTP/1.";
constexpr std::string_view kHeaderEnd = "\r\n\r\n";
// Beast 1.74 must get at least this much of an incomplete last chunk, see request_reader.cc.
constexpr size_t kLastChunkBytes = 5;

// Body type of Beast's parser: passes the bytes to `take`.
struct PieceBody {
  struct value_type {  // NOLINT(readability-identifier-naming): Beast's name
    std::function<bool(std::string_view)> take;
  };
  class reader {  // NOLINT(readability-identifier-naming): Beast's name
   public:
    template <bool IsRequest, typename Fields>
    reader(http::header<IsRequest, Fields>& /*header*/, value_type& body) : body_(body) {}
    void init(const boost::optional<uint64_t>& /*length*/, ErrorCode& error) { error = {}; }
    template <typename Buffers>
    size_t put(const Buffers& buffers, ErrorCode& error) {
      error = {};
      for (auto i = asio::buffer_sequence_begin(buffers); i != asio::buffer_sequence_end(buffers);
           ++i) {
        if (i->size() > 0 && !body_.take({static_cast<const char*>(i->data()), i->size()})) {
          error = asio::error::operation_aborted;
          return 0;
        }
      }
      return asio::buffer_size(buffers);
    }
    void finish(ErrorCode& error) { error = {}; }

   private:
    value_type& body_;
  };
};

std::string_view ToStd(boost::beast::string_view text) { return {text.data(), text.size()}; }

absl::Status Malformed(std::string_view cause) {
  return Error(absl::StatusCode::kInternal,
               "HTTP_ANSWER",
               absl::StrCat("the server's answer is not HTTP/1.1 (", ToAbsl(cause), ")"));
}

absl::Status StatusOf(const ErrorCode& error) {
  if (error == asio::error::operation_aborted) {
    return absl::CancelledError("the call was cancelled");
  }
  if (error == http::error::partial_message) {
    return Error(absl::StatusCode::kUnavailable,
                 "HTTP_CUT",
                 "the server closed the connection before the end of its answer");
  }
  return Malformed(error.message());
}

absl::Status TooLarge() {
  return Error(absl::StatusCode::kInternal,
               "HTTP_ANSWER_SIZE",
               absl::StrCat("the header of the server's answer is too large (limit ",
                            ResponseReader::kMaxHeaderBytes,
                            ")"));
}

}  // namespace

struct ResponseReader::Parser {
  // Refuses control bytes in chunk extensions. Beast accepts any byte in a quoted extension.
  std::function<void(uint64_t, boost::beast::string_view, ErrorCode&)> check_chunk =
      [](uint64_t /*size*/, boost::beast::string_view extensions, ErrorCode& error) {
        if (std::any_of(extensions.begin(), extensions.end(), [](char c) {
              return absl::ascii_iscntrl(static_cast<unsigned char>(c));
            })) {
          error = http::error::bad_chunk_extension;
        }
      };
  http::response_parser<PieceBody> parser;
};

ResponseReader::ResponseReader(bool is_head, HttpPieceCallback on_piece)
    : is_head_(is_head), on_piece_(std::move(on_piece)), parser_(std::make_unique<Parser>()) {}

ResponseReader::~ResponseReader() = default;

absl::StatusOr<size_t> ResponseReader::Put(std::string_view bytes) {
  QUIRE_CHECK(!bytes.empty());
  QUIRE_CHECK(!is_done());
  return has_head_ ? PutBody(bytes) : PutHeader(bytes);
}

absl::StatusOr<size_t> ResponseReader::PutHeader(std::string_view bytes) {
  if (!kVersion.starts_with(bytes.substr(0, kVersion.size()))) {
    return Malformed("bad version");
  }
  const size_t end = bytes.find(kHeaderEnd, num_scanned_);
  const size_t size = end == std::string_view::npos ? bytes.size() : end + kHeaderEnd.size();
  if (num_header_bytes_ + size > kMaxHeaderBytes ||
      (end == std::string_view::npos && num_header_bytes_ + size == kMaxHeaderBytes)) {
    return TooLarge();
  }
  if (end == std::string_view::npos) {
    num_scanned_ = bytes.size() - std::min(bytes.size(), kHeaderEnd.size() - 1);
    return 0;
  }
  auto& parser = parser_->parser;
  parser.header_limit(kMaxHeaderBytes);
  parser.body_limit(std::numeric_limits<uint64_t>::max());  // with none, Beast 1.74 refuses bodies
  parser.skip(is_head_);
  parser.on_chunk_header(parser_->check_chunk);
  ErrorCode error;
  const size_t used = parser.put(asio::buffer(bytes.data(), size), error);
  if (error) {
    return StatusOf(error);
  }
  if (used != size || !parser.is_header_done()) {
    return Malformed("bad header");
  }
  num_header_bytes_ += size;
  num_scanned_ = 0;
  if (parser.get().result_int() < 100) {
    return Malformed("bad status");
  }
  if (parser.get().result_int() / 100 == 1) {
    parser_ = std::make_unique<Parser>();
    return size;
  }
  TakeHead();
  parser.eager(true);
  parser.get().body().take = [this](std::string_view piece) { return on_piece_(head_, piece); };
  return size;
}

void ResponseReader::TakeHead() {
  const auto& message = parser_->parser.get();
  has_head_ = true;
  head_.status_code = static_cast<int>(message.result_int());
  head_.content_type = "";
  for (const auto& field : message) {
    if (field.name() == http::field::content_type) {
      head_.content_type = std::string(ToStd(field.value()));
    } else {
      head_.headers.emplace_back(ToStd(field.name_string()), ToStd(field.value()));
    }
  }
}

absl::StatusOr<size_t> ResponseReader::PutBody(std::string_view bytes) {
  if (is_in_chunk_line_ && bytes.size() < kLastChunkBytes) {
    return 0;
  }
  ErrorCode error;
  const size_t used = parser_->parser.put(asio::buffer(bytes.data(), bytes.size()), error);
  is_in_chunk_line_ = error == http::error::need_more;
  if (is_in_chunk_line_) {
    if (bytes.size() - used >= kMaxHeaderBytes) {
      return TooLarge();
    }
    return used;
  }
  if (error) {
    return StatusOf(error);
  }
  return used;
}

absl::Status ResponseReader::PutEnd() {
  if (!has_head_) {
    return StatusOf(http::error::partial_message);
  }
  ErrorCode error;
  parser_->parser.put_eof(error);
  return error ? StatusOf(error) : absl::OkStatus();
}

bool ResponseReader::is_done() const { return has_head_ && parser_->parser.is_done(); }

bool ResponseReader::keep_alive() const { return parser_->parser.keep_alive(); }

}  // namespace quire
