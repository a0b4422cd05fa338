"""The planted bugs of the fuzz targets, for plant_fuzz_bugs.py: named mutations of code that reads untrusted bytes.

Each text must occur exactly once in its file. A change of a line that a bug names changes the bug too.
"""
import collections

from bugs import BUGS as CORE_BUGS

Bug = collections.namedtuple("Bug", "target name file text replacement")

REQUEST = "scheduler/rpc/generate_request.cc"
RESUME = "scheduler/rpc/resume_check.cc"
PLAN = "common/step/step_plan_check.cc"
CODEC = "common/wire/step_codec.cc"
AGREEMENT = "scheduler/group/agreement.cc"
FAMILY = "common/model/model_family.cc"
CONFIG_READER = "common/model/config_reader.cc"
SAFETENSORS = "worker/model/safetensors_file.cc"
INDEX = "worker/model/weight_index.cc"
LOG = "scheduler/step_log/step_log_format.cc"
REPLAY = "scheduler/step_log/replay.cc"
PREFIXES = "scheduler/rpc/prefix_store.cc"

# Names in tests/scheduler/planted_bugs/bugs.py.
KV_CACHE_NAMES = ["missing_decrement", "fence_passed_by", "touched_block_stays_on_the_free_list",
                  "copy_on_write_skipped_between_two", "copy_under_way_not_referenced",
                  "host_block_leaks", "found_after_it_was_swapped_into",
                  "window_passes_a_block_too_early"]
CORE_NAMES = ["fork_shares_one_token_too_many", "end_keeps_the_blocks",
              "bypassing_request_leaves_blocks", "swap_in_not_ordered", "handle_never_released",
              "queue_counter_drifts", "one_token_too_many", "bad_row_committed",
              "unanswered_step_survives_its_workers", "deadline_not_removed"]


def of_the_core(target, names):
    by_name = {bug.name: bug for bug in CORE_BUGS}
    return [Bug(target, *by_name[name]) for name in names]


BUGS = [
    Bug("tokenizer_json", "ids_far_apart", "scheduler/text/vocabulary.cc",
        "  if (largest >= limit) {", "  if (largest > limit) {"),
    Bug("tokenizer_json", "id_of_the_end_past_the_vocabulary", "scheduler/text/post_processor.cc",
        "  if (id >= static_cast<uint64_t>(vocabulary.size()) ||\n"
        "      !vocabulary.Contains(static_cast<TokenId>(id))) {",
        "  if (id > static_cast<uint64_t>(vocabulary.size())) {"),
    Bug("tokenizer_json", "merge_of_a_missing_token", "scheduler/text/bpe_model.cc",
        "!right_id.has_value() ||\n      !merged_id.has_value()) {", "!right_id.has_value()) {"),
    Bug("tokenizer_json", "rewritten_text_grows", "scheduler/text/text_budget.cc",
        "  if (status_.ok() && num_bytes > max_bytes_) {", "  if (false) {\n    static_cast<void>(num_bytes);"),
    Bug("tokenizer_json", "pattern_of_any_cost", "scheduler/text/text_budget.cc",
        "  if (status_.ok() && num_steps_ > max_steps_) {", "  if (false) {"),
    Bug("tokenizer_json", "counts_of_any_size", "scheduler/text/pattern.cc",
        "LargestRepeat(rest) > kMaxRepeat) {", "LargestRepeat(rest) > kMaxRepeat + 1) {"),
    Bug("tokenizer_json", "template_of_any_size", "scheduler/text/post_processor.cc",
        "num_ids > kMaxSpecialIds) {", "num_ids > kMaxSpecialIds + 32) {"),
    Bug("encode", "surrogates_are_characters", "scheduler/text/utf8.cc", "return {3, 0x80, 0x9F};",
        "return {3, 0x80, 0xBF};"),
    Bug("encode", "pair_that_has_changed_is_merged", "scheduler/text/bpe_model.cc",
        "    if (current == nullptr || current->merged != merged) {\n      continue;\n    }\n",
        "    static_cast<void>(current);\n"),
    Bug("encode", "text_before_an_added_token_twice", "scheduler/text/added_token_matcher.cc",
        "    done = end;\n", "    done = start;\n"),
    Bug("encode", "queue_gives_the_last_first", "scheduler/text/bpe_model.cc",
        "    next[left] = next[right];\n", "    next[left] = static_cast<int32_t>(right);\n"),
    Bug("encode", "rank_of_the_pair_before_kept", "scheduler/text/bpe_model.cc",
        "      ranks[i - 1] = rank_of(i - 1);\n", "      static_cast<void>(rank_of);\n"),
    Bug("encode", "cut_where_a_merge_crosses", "scheduler/text/bpe_model.cc",
        "    while (piece.substr(body).starts_with(kMetaspace)) {\n      body += kMetaspace.size();\n    }\n",
        "    body += 1;\n"),
    Bug("encode", "overlong_forms_are_characters", "scheduler/text/utf8.cc",
        "  if (lead >= 0xC2 && lead <= 0xDF) {", "  if (lead >= 0xC0 && lead <= 0xDF) {"),
    Bug("detokenizer", "prompt_one_byte_too_short", "scheduler/text/token_decoder.cc",
        "constexpr size_t kMaxPendingBytes = 3;", "constexpr size_t kMaxPendingBytes = 2;"),
    Bug("detokenizer", "unfinished_character_lost", "scheduler/text/token_decoder.cc",
        "  FlushPending(state, text);\n  if (is_first", "  state->pending.clear();\n  if (is_first"),
    Bug("detokenizer", "id_past_the_vocabulary", "scheduler/text/token_decoder.cc",
        "  if (id < 0 || static_cast<size_t>(id) >= tokens_.size()) {",
        "  if (id < 0 || static_cast<size_t>(id) > tokens_.size()) {"),
    Bug("detokenizer", "special_tokens_in_the_tail", "scheduler/text/token_decoder.cc",
        "    if (token == nullptr || (skip_special_tokens && token->special)) {\n      continue;",
        "    if (token == nullptr) {\n      continue;"),
    Bug("stop_matcher", "shorter_string_ends_inside", "scheduler/text/stop_matcher.cc",
        "    At(state).is_match = At(state).is_match || At(fallback).is_match;\n", ""),
    Bug("stop_matcher", "fallback_of_the_parent", "scheduler/text/stop_matcher.cc",
        "parent == 0 ? 0 : Next(At(parent).fallback, ByteOf(state));",
        "parent == 0 ? 0 : At(parent).fallback;"),
    Bug("stop_matcher", "last_of_two_equal_strings", "scheduler/text/stop_matcher.cc",
        "    ends_.push_back(", "    ends_.insert(ends_.begin(), "),
    Bug("stop_matcher", "a_byte_more_than_a_string_may_have", "scheduler/text/stop_matcher.cc",
        "    if (text.empty() || text.size() > kMaxStopStringBytes) {",
        "    if (text.empty() || text.size() > kMaxStopStringBytes + 1) {"),
    Bug("generate_request", "token_id_past_the_vocabulary", REQUEST,
        "id < model.config.vocab_size &&\n                       (model.tokenizer == nullptr || "
        "model.tokenizer->IsValidId(id));", "id <= model.config.vocab_size;"),
    Bug("generate_request", "output_past_the_context", REQUEST,
        "  if (spec->max_tokens.value_or(1) > room) {", "  if (spec->max_tokens.value_or(1) > room + 1) {"),
    Bug("generate_request", "more_beams_than_sequences_needed", REQUEST,
        "num_beams > BeamSearchParams::kMaxBeams) {", "num_beams > BeamSearchParams::kMaxBeams + 1) {"),
    Bug("generate_request", "resumed_token_past_the_vocabulary", RESUME,
        "    if (id < 0 || id >= vocab_size) {", "    if (id < 0 || id > vocab_size) {"),
    Bug("generate_request", "resumed_as_long_as_it_may_be", RESUME,
        "    if (num_tokens >= request.max_tokens) {", "    if (num_tokens > request.max_tokens) {"),
    Bug("generate_request", "priority_of_any_size_below", REQUEST,
        "std::abs(int64_t{message.priority()}) > kMaxPriority", "message.priority() > kMaxPriority"),
    Bug("generate_request", "request_id_a_byte_too_long", REQUEST,
        "  if (id.size() > max_bytes) {", "  if (id.size() > max_bytes + 1) {"),
    Bug("step_plan", "host_block_past_the_end", PLAN,
        "host_block < limits_.num_host_blocks) {", "host_block <= limits_.num_host_blocks) {"),
    Bug("step_plan", "block_written_by_two", PLAN, "    if (!written_.Insert(block)) {",
        "    if (false) {"),
    Bug("step_plan", "swapped_in_while_it_leaves", PLAN,
        "    if (swapped_out_.Contains(swap.block)) {", "    if (false) {"),
    Bug("step_plan", "slice_past_the_last_known_token", PLAN,
        "  if (end > sequence.num_known_tokens) {", "  if (end > sequence.num_known_tokens + 1) {"),
    Bug("step_plan", "capacity_unchecked", PLAN, "  if (end > capacity) {",
        "  if (end > capacity + limits_.block_size_tokens) {"),
    Bug("step_plan", "releases_missing_in_the_digest", "common/step/step_plan.cc",
        "    digest.Add(handle);\n", "    static_cast<void>(handle);\n"),
    Bug("step_plan", "counts_of_blocks_unchecked", CODEC,
        "  return sum == static_cast<uint64_t>(want)\n             ? absl::OkStatus()",
        "  return sum >= static_cast<uint64_t>(want)\n             ? absl::OkStatus()"),
    Bug("step_plan", "forced_slice_out_of_range", CODEC,
        "slice >= static_cast<uint32_t>(num_slices) ||",
        "slice > static_cast<uint32_t>(num_slices) ||"),
    Bug("step_result", "digest_not_compared", CODEC,
        "  if (response.result_digest() != DigestOf(response)) {", "  if (false) {"),
    Bug("step_result", "column_shorter_than_the_others", CODEC,
        "  QUIRE_RETURN_IF_ERROR(CheckLength(\"finite\", response.finite_size(), rows));\n", ""),
    Bug("step_result", "sums_of_32_bits", CODEC, "  uint64_t sum = 0;", "  uint32_t sum = 0;"),
    Bug("step_result", "column_missing_in_the_digest", CODEC,
        "  AddColumn(response.top_logprob(), digest);\n", ""),
    Bug("step_result", "next_top_starts_anew", CODEC,
        "    for (uint32_t k = 0; k < response.num_top(i); ++k, ++next_top) {",
        "    next_top = 0;\n"
        "    for (uint32_t k = 0; k < response.num_top(i); ++k, ++next_top) {"),
    Bug("handshake", "negative_host_blocks", AGREEMENT,
        "std::max(0, hello.num_host_blocks_max));", "hello.num_host_blocks_max);"),
    Bug("handshake", "pool_of_the_last_rank", AGREEMENT,
        "limits.num_blocks = std::min(limits.num_blocks, hello.num_blocks_max);",
        "limits.num_blocks = hello.num_blocks_max;"),
    Bug("handshake", "length_unchecked", AGREEMENT, "  if (text.size() <= kMaxHelloBytes) {",
        "  if (true) {"),
    Bug("handshake", "one_process_is_two_ranks", AGREEMENT, "  if (hello.uuid == first.uuid) {",
        "  if (false) {"),
    Bug("handshake", "blocks_of_any_size", AGREEMENT,
        "  if (hello.block_bytes < 0 || hello.block_bytes > kMaxBlockBytes) {",
        "  if (hello.block_bytes < 0) {"),
    Bug("handshake", "type_of_the_cache_unasked", AGREEMENT,
        "(settings.kv_cache_dtype.has_value() && hello.kv_cache_dtype != settings.kv_cache_dtype)",
        "false"),
    Bug("model_config", "number_one_past_its_range", CONFIG_READER,
        "number > range.max) {", "number > int64_t{range.max} + 1) {"),
    Bug("model_config", "heads_that_do_not_divide", FAMILY,
        "  if (config.num_heads % config.num_kv_heads != 0) {", "  if (false) {"),
    Bug("model_config", "list_of_layers_too_long", FAMILY,
        "types->size() != num_layers) {", "types->size() < num_layers) {\n"
        "      sliding.resize(types->size());\n    } else if (false) {"),
    Bug("model_config", "list_of_layers_too_short", FAMILY,
        "!types->is_array() || types->size() != num_layers) {", "!types->is_array()) {"),
    Bug("model_config", "no_heads", FAMILY, "kHeadsRange = {.min = 1,", "kHeadsRange = {.min = 0,"),
    Bug("model_config", "end_token_past_the_vocabulary", CONFIG_READER,
        ".max = static_cast<int32_t>(limit - 1)};", ".max = static_cast<int32_t>(limit)};"),
    Bug("safetensors", "hole_of_a_byte", SAFETENSORS, "    if (tensor.offset > end) {",
        "    if (tensor.offset > end + 1) {"),
    Bug("safetensors", "overlap", SAFETENSORS, "    if (tensor.offset < end) {",
        "    if (tensor.offset < end - 1) {"),
    Bug("safetensors", "product_wraps", SAFETENSORS,
        "    std::optional<int64_t> product = CheckedMultiply(count, size);\n"
        "    if (!product.has_value()) {",
        "    std::optional<int64_t> product = static_cast<int64_t>(\n"
        "        static_cast<uint64_t>(count) * static_cast<uint64_t>(size));\n"
        "    if (!product.has_value()) {"),
    Bug("safetensors", "bits_left_over", SAFETENSORS, "  if (*bits % 8 != 0) {", "  if (false) {"),
    Bug("safetensors", "bytes_behind_the_last_tensor", SAFETENSORS, "  if (end != file_bytes()) {",
        "  if (end > file_bytes()) {"),
    Bug("safetensors", "negative_sizes", SAFETENSORS, "  return number < 0 ? std::nullopt",
        "  return number < -9 ? std::nullopt"),
    Bug("safetensors", "shard_in_another_folder", INDEX, " &&\n         name.find('/') == "
        "std::string::npos &&", " &&"),
    Bug("step_log", "checksum_not_compared", LOG, "  if (checksum != checksum_) {",
        "  if (false) {"),
    Bug("step_log", "record_may_be_left_out", LOG, "  hash.Add(previous);\n",
        "  static_cast<void>(previous);\n"),
    Bug("step_log", "size_not_compared", LOG, "size != ~inverted_size ||", "false ||"),
    Bug("step_log", "rest_of_a_record_ignored", LOG,
        "  if (!payload.ok() || !payload.at_end()) {", "  if (!payload.ok()) {"),
    Bug("step_log", "kind_past_the_last", LOG, "  if (kind >= kDecoders.size()) {",
        "  if (kind > kDecoders.size()) {"),
    Bug("step_log", "limits_unchecked", REPLAY, "    QUIRE_RETURN_IF_ERROR(Validate(begun.limits));\n",
        ""),
    Bug("step_log", "request_without_a_prompt", REPLAY,
        "  if (request.prompt_token_ids.empty() || request.max_tokens < 1",
        "  if (request.max_tokens < 1"),
    Bug("step_log", "number_of_an_earlier_request", REPLAY,
        "    if (last_id_.has_value() && !(*last_id_ < request.id)) {", "    if (false) {"),
    Bug("step_log", "plan_before_the_answer", REPLAY, "    if (core_->has_unanswered_plan()) {",
        "    if (false) {"),
    Bug("step_log", "prefix_lines_as_they_come", PREFIXES,
        "  if (prefix.token_ids.empty() || LineOf(prefix) != ToStd(line)) {",
        "  if (LineOf(prefix) == \"x\") {"),
    Bug("step_log", "prefix_hash_not_compared", PREFIXES,
        "  if (text.substr(kTitle.size(), kHashDigits) != HashOf(body)) {", "  if (false) {"),
    *of_the_core("kv_cache", KV_CACHE_NAMES),
    *of_the_core("core", CORE_NAMES),
]
