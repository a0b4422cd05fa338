#include "common/http/request_reader.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"

#include "common/base/check.h"
#include "common/base/string_view.h"

#include <boost/asio/buffer.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/parser.hpp>

namespace quire {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using ErrorCode = boost::system::error_code;

constexpr size_t kFirstBodyBytes = 4096;
// Size of the shortest last chunk: "0" and two line ends. Beast 1.74 fails an assertion if it
// continues an incomplete last chunk with fewer bytes. Waiting for this many bytes is safe, because
// every chunked body ends with at least as many.
constexpr size_t kLastChunkBytes = 5;

// Body type of Beast's parser: a string that is charged to BodyMemory as it grows. Beast's own
// string_body reserves Content-Length bytes at once.
struct ChargedBody {
  struct value_type {  // NOLINT(readability-identifier-naming): Beast's name
    std::string bytes;
    BodyCharge charge;
  };
  class reader {  // NOLINT(readability-identifier-naming): Beast's name
   public:
    template <bool IsRequest, typename Fields>
    reader(http::header<IsRequest, Fields>& /*header*/, value_type& body) : body_(body) {}
    void init(const boost::optional<uint64_t>& /*length*/, ErrorCode& error) { error = {}; }
    template <typename Buffers>
    size_t put(const Buffers& buffers, ErrorCode& error) {
      const size_t size = body_.bytes.size() + asio::buffer_size(buffers);
      if (size > body_.bytes.capacity()) {
        const size_t capacity = std::max({size, 2 * body_.bytes.capacity(), kFirstBodyBytes});
        if (!body_.charge.RaiseTo(capacity)) {
          error = make_error_code(boost::system::errc::not_enough_memory);
          return 0;
        }
        body_.bytes.reserve(capacity);
      }
      for (auto i = asio::buffer_sequence_begin(buffers); i != asio::buffer_sequence_end(buffers);
           ++i) {
        body_.bytes.append(static_cast<const char*>(i->data()), i->size());
      }
      error = {};
      return asio::buffer_size(buffers);
    }
    void finish(ErrorCode& error) { error = {}; }

   private:
    value_type& body_;
  };
};

std::string_view ToStd(boost::beast::string_view text) { return {text.data(), text.size()}; }

bool IsControl(char c) { return absl::ascii_iscntrl(static_cast<unsigned char>(c)); }

// Returns nullopt if the encoding is broken, or hides a control byte.
std::optional<std::string> PercentDecoded(std::string_view text) {
  std::string decoded;
  for (size_t i = 0; i < text.size(); ++i) {
    char c = text[i];
    if (c == '%') {
      const auto is_hex = [&](size_t at) {
        return at < text.size() && absl::ascii_isxdigit(static_cast<unsigned char>(text[at]));
      };
      if (!is_hex(i + 1) || !is_hex(i + 2)) {
        return std::nullopt;
      }
      const auto digit = [&](size_t at) {
        return absl::ascii_isdigit(static_cast<unsigned char>(text[at]))
                   ? text[at] - '0'
                   : (text[at] | 0x20) - 'a' + 10;
      };
      c = static_cast<char>(16 * digit(i + 1) + digit(i + 2));
      i += 2;
    }
    if (IsControl(c)) {
      return std::nullopt;
    }
    decoded.push_back(c);
  }
  return decoded;
}

int StatusOf(const ErrorCode& error) {
  if (error == http::error::body_limit) {
    return 413;
  }
  if (error == make_error_code(boost::system::errc::not_enough_memory)) {
    return 503;
  }
  return error == http::error::bad_version ? 505 : 400;
}

}  // namespace

struct RequestReader::Parser {
  Parser(size_t max_body_bytes, std::shared_ptr<BodyMemory> memory) {
    parser.header_limit(kMaxHeaderBytes);
    parser.body_limit(max_body_bytes);
    parser.on_chunk_header(check_chunk);
    parser.get().body().charge = BodyCharge(std::move(memory));
  }

  // Refuses long chunk extensions, and control bytes in them. Beast accepts any byte in quotes.
  std::function<void(uint64_t, boost::beast::string_view, ErrorCode&)> check_chunk =
      [](uint64_t /*size*/, boost::beast::string_view extensions, ErrorCode& error) {
        if (extensions.size() > kMaxChunkExtensionBytes ||
            std::any_of(extensions.begin(), extensions.end(), IsControl)) {
          error = http::error::bad_chunk_extension;
        }
      };
  http::request_parser<ChargedBody> parser;
};

RequestReader::RequestReader(size_t max_body_bytes, std::shared_ptr<BodyMemory> memory)
    : max_body_bytes_(max_body_bytes),
      parser_(std::make_unique<Parser>(max_body_bytes, std::move(memory))) {}

RequestReader::~RequestReader() = default;

size_t RequestReader::Put(std::string_view bytes) {
  QUIRE_CHECK(!bytes.empty());
  QUIRE_CHECK(state_ == State::kHeader || state_ == State::kBody);
  return state_ == State::kHeader ? PutHeader(bytes) : PutBody(bytes);
}

size_t RequestReader::FindHeaderEnd(std::string_view bytes) {
  for (; num_scanned_ < bytes.size(); ++num_scanned_) {
    const char c = bytes[num_scanned_];
    if (num_scanned_ + (c == '\r' ? 1 : 0) >= kMaxHeaderBytes) {
      return Fail(431);
    }
    if (c == '\r') {
      if (num_scanned_ + 1 == bytes.size()) {
        return 0;
      }
      if (bytes[num_scanned_ + 1] != '\n') {
        return Fail(400);
      }
      const bool is_empty_line = num_scanned_ == line_begin_;
      ++num_scanned_;
      line_begin_ = num_scanned_ + 1;
      if (is_empty_line) {
        return line_begin_;
      }
    } else if ((IsControl(c) && c != '\t') ||
               // A folded header, or white space before the request line.
               (num_scanned_ == line_begin_ && (c == ' ' || c == '\t'))) {
      return Fail(400);
    }
  }
  return num_scanned_ < kMaxHeaderBytes ? 0 : Fail(431);
}

size_t RequestReader::PutHeader(std::string_view bytes) {
  const size_t size = FindHeaderEnd(bytes);
  if (size == 0) {
    return 0;
  }
  ErrorCode error;
  const size_t used = parser_->parser.put(asio::buffer(bytes.data(), size), error);
  if (error) {
    return Fail(StatusOf(error));
  }
  if (used != size || !parser_->parser.is_header_done() || !TakeHeader()) {
    return Fail(400);
  }
  if (parser_->parser.chunked() && max_body_bytes_ == 0) {
    return Fail(413);
  }
  parser_->parser.eager(true);
  if (parser_->parser.is_done()) {
    Finish();
  } else {
    state_ = State::kBody;
  }
  return used;
}

bool RequestReader::TakeHeader() {
  const auto& message = parser_->parser.get();
  is_http_1_0_ = message.version() == 10;
  keep_alive_ = message.keep_alive();
  request_.method = std::string(ToStd(message.method_string()));
  for (const auto& field : message) {
    request_.headers.emplace_back(ToStd(field.name_string()), ToStd(field.value()));
  }
  expects_continue_ =
      !is_http_1_0_ && absl::EqualsIgnoreCase(ToAbsl(request_.Header("Expect")), "100-continue");
  const std::string_view length = request_.Header("Content-Length");
  const size_t num_lengths = message.count(http::field::content_length);
  const size_t num_encodings = message.count(http::field::transfer_encoding);
  const size_t num_hosts = message.count(http::field::host);
  const bool is_length_good =
      num_lengths == 0 ||
      (num_lengths == 1 && length.find_first_not_of("0123456789") == std::string_view::npos);
  const bool is_encoding_good =
      num_encodings == 0 ||
      (num_encodings == 1 && num_lengths == 0 && !is_http_1_0_ &&
       absl::EqualsIgnoreCase(ToAbsl(request_.Header("Transfer-Encoding")), "chunked"));
  const bool is_host_good = num_hosts == 1 || (num_hosts == 0 && is_http_1_0_);
  return is_length_good && is_encoding_good && is_host_good && TakeTarget(ToStd(message.target()));
}

bool RequestReader::TakeTarget(std::string_view target) {
  const bool is_visible = std::all_of(target.begin(), target.end(), [](char c) {
    return absl::ascii_isgraph(static_cast<unsigned char>(c)) && c != '#';
  });
  const size_t query = std::min(target.find('?'), target.size());
  const std::optional<std::string> path = PercentDecoded(target.substr(0, query));
  if (!is_visible || !target.starts_with('/') || !path.has_value()) {
    return false;
  }
  request_.path = *path;
  request_.query = std::string(target.substr(std::min(query + 1, target.size())));
  return true;
}

size_t RequestReader::PutBody(std::string_view bytes) {
  if (is_in_chunk_line_ && bytes.size() < kLastChunkBytes) {
    return 0;
  }
  ErrorCode error;
  const size_t used = parser_->parser.put(asio::buffer(bytes.data(), bytes.size()), error);
  is_in_chunk_line_ = error == http::error::need_more;
  if (is_in_chunk_line_) {
    // The unused bytes are an incomplete chunk line or incomplete trailers.
    return bytes.size() - used < kMaxHeaderBytes ? used : Fail(400);
  }
  if (error) {
    return Fail(StatusOf(error));
  }
  if (parser_->parser.is_done()) {
    Finish();
  }
  return used;
}

size_t RequestReader::Fail(int status_code) {
  state_ = State::kFailed;
  failure_ = status_code;
  return 0;
}

void RequestReader::Finish() {
  state_ = State::kDone;
  request_.body = std::move(parser_->parser.get().body().bytes);
  request_.charge = std::move(parser_->parser.get().body().charge);
}

}  // namespace quire
