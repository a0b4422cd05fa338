#include "scheduler/kv_cache/block_hash.h"

#include <array>

namespace quire {

BlockHash RootHash(const Hash128& key, std::string_view cache_salt) {
  return SipHash128(key, std::as_bytes(std::span(cache_salt)));
}

// Hashes -1 and the request id as if they were tokens. No token id is negative, so no chain of real
// tokens has this hash.
BlockHash PrivateRootHash(const Hash128& key, RequestId id) {
  const std::array<TokenId, 3> tokens = {
      -1, static_cast<TokenId>(id.value() & 0xFFFFFFFFU), static_cast<TokenId>(id.value() >> 32)};
  return ChainHash(key, RootHash(key, ""), tokens);
}

// Hashes the parent, then hashes the tokens with the result as key. So parent and tokens need not
// be joined in a buffer.
BlockHash ChainHash(const Hash128& key, const BlockHash& parent, std::span<const TokenId> tokens) {
  return SipHash128(SipHash128(key, std::as_bytes(std::span(&parent, 1))), std::as_bytes(tokens));
}

std::vector<BlockHash> HashFullBlocks(const Hash128& key,
                                      std::string_view cache_salt,
                                      std::span<const TokenId> tokens,
                                      int32_t block_size_tokens) {
  const auto block_size = static_cast<size_t>(block_size_tokens);
  std::vector<BlockHash> hashes;
  BlockHash parent = RootHash(key, cache_salt);
  for (size_t end = block_size; end <= tokens.size(); end += block_size) {
    parent = ChainHash(key, parent, tokens.subspan(end - block_size, block_size));
    hashes.push_back(parent);
  }
  return hashes;
}

}  // namespace quire
