#include "scheduler/kv_events/kv_event_encoder.h"

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "absl/strings/escaping.h"

#include "common/base/check.h"
#include "scheduler/text/utf8.h"

#include <msgpack.hpp>

namespace quire {
namespace {

// Output stream of msgpack::packer: appends to a string.
class StringSink {
 public:
  explicit StringSink(std::string* out) : out_(out) {}
  void write(const char* data, size_t size) { out_->append(data, size); }

 private:
  std::string* out_;
};

using Packer = msgpack::packer<StringSink>;

void PackText(Packer& packer, std::string_view text) {
  packer.pack_str(static_cast<uint32_t>(text.size()));
  packer.pack_str_body(text.data(), static_cast<uint32_t>(text.size()));
}

void PackHashes(Packer& packer, std::span<const BlockHash> hashes) {
  packer.pack_array(static_cast<uint32_t>(hashes.size()));
  for (const BlockHash& hash : hashes) {
    packer.pack_uint64(hash.low);
  }
}

void PackExtraKeys(Packer& packer, const CacheEvent& event) {
  packer.pack_array(static_cast<uint32_t>(event.block_hashes.size()));
  packer.pack_array(1);
  PackText(
      packer,
      IsValidUtf8(event.cache_salt) ? event.cache_salt : absl::BytesToHexString(event.cache_salt));
  for (size_t i = 1; i < event.block_hashes.size(); ++i) {
    packer.pack_nil();
  }
}

void PackStored(Packer& packer, const CacheEvent& event) {
  QUIRE_CHECK(!event.block_hashes.empty());
  const bool has_salt = !event.parent.has_value() && !event.cache_salt.empty();
  const bool has_window = event.sliding_window > 0;
  packer.pack_map(10 + (has_salt ? 1 : 0) + (has_window ? 1 : 0));
  PackText(packer, "type");
  PackText(packer, "BlockStored");
  PackText(packer, "block_hashes");
  PackHashes(packer, event.block_hashes);
  PackText(packer, "parent_block_hash");
  if (event.parent.has_value()) {
    packer.pack_uint64(event.parent->low);
  } else {
    packer.pack_nil();
  }
  PackText(packer, "token_ids");
  packer.pack_array(static_cast<uint32_t>(event.token_ids.size()));
  for (TokenId token_id : event.token_ids) {
    packer.pack_int32(token_id);
  }
  PackText(packer, "block_size");
  packer.pack_uint64(event.token_ids.size() / event.block_hashes.size());
  PackText(packer, "lora_id");
  packer.pack_nil();
  PackText(packer, "medium");
  PackText(packer, "GPU");
  PackText(packer, "lora_name");
  packer.pack_nil();
  if (has_salt) {
    PackText(packer, "extra_keys");
    PackExtraKeys(packer, event);
  }
  PackText(packer, "group_idx");
  packer.pack_int32(0);
  PackText(packer, "kv_cache_spec_kind");
  PackText(packer, has_window ? "sliding_window" : "full_attention");
  if (has_window) {
    PackText(packer, "kv_cache_spec_sliding_window");
    packer.pack_int32(event.sliding_window);
  }
}

void PackRemoved(Packer& packer, const CacheEvent& event) {
  packer.pack_map(4);
  PackText(packer, "type");
  PackText(packer, "BlockRemoved");
  PackText(packer, "block_hashes");
  PackHashes(packer, event.block_hashes);
  PackText(packer, "medium");
  PackText(packer, "GPU");
  PackText(packer, "group_idx");
  packer.pack_int32(0);
}

void PackCleared(Packer& packer) {
  packer.pack_map(1);
  PackText(packer, "type");
  PackText(packer, "AllBlocksCleared");
}

}  // namespace

std::string EncodeKvEvents(double timestamp_s, std::span<const CacheEvent> events) {
  std::string bytes;
  StringSink sink(&bytes);
  Packer packer(sink);
  packer.pack_array(3);
  packer.pack_double(timestamp_s);
  packer.pack_array(static_cast<uint32_t>(events.size()));
  for (const CacheEvent& event : events) {
    switch (event.kind) {
      case CacheEvent::Kind::kStored:
        PackStored(packer, event);
        break;
      case CacheEvent::Kind::kRemoved:
        PackRemoved(packer, event);
        break;
      case CacheEvent::Kind::kCleared:
        PackCleared(packer);
        break;
    }
  }
  packer.pack_int32(0);  // data_parallel_rank
  return bytes;
}

}  // namespace quire
