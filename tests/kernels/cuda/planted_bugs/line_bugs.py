"""Bugs of decode by lines: named mutations of its sources.

Each text must occur exactly once in its file, or plant_bugs.py stops. So a change of a line that a
bug names must change the bug too, and the list stays up to date.
"""
import collections

# program: a CTest program; tests: a filter of its tests.
Program = collections.namedtuple("Program", "name tests")
# head_dim: of the kernels that get the bug, and of the tests that run.
Bug = collections.namedtuple("Bug", "name file text replacement head_dim", defaults=[80])

KERNEL = "kernels/cuda/decode_lines.cuh"
PARTS = "kernels/cuda/line_parts.cuh"
PRODUCTS = "kernels/cuda/line_products.cuh"
RESULTS = "kernels/cuda/line_results.cuh"
RING = "kernels/cuda/line_ring.cuh"


def source(head_dim):
    """The file that is compiled with a bug in it."""
    return f"kernels/cuda/decode_lines_d{head_dim}.cu"


def programs(head_dim):
    if head_dim == 64:
        return [Program("cuda_decode_lines_test",
                        "DecodeLinesTest.AnEarlyStart*:DecodeLinesTest.SegmentsHaveSeveralStages")]
    tests = f"*/Bf16CacheBf16HeadDim{head_dim}:*/Bf16CacheE4m3HeadDim{head_dim}"
    return [Program("cuda_decode_lines_bits_test", tests),
            Program("cuda_decode_lines_softmax_test", tests),
            Program("cuda_decode_lines_test", tests)]


BUGS = [
    # Barriers of the computing warps.
    Bug("maxima_without_barrier", KERNEL,
        "    StoreMaxima<Shape>(memory.Maxima(use), scores);\n    SyncComputingWarps<Shape>();\n",
        "    StoreMaxima<Shape>(memory.Maxima(use), scores);\n"),
    Bug("last_weights_without_barrier", KERNEL,
        "  SyncComputingWarps<Shape>();\n  add_values(past_stage - 1",
        "  add_values(past_stage - 1"),
    Bug("queries_without_barrier", KERNEL,
        "    StoreLineQueries<Shape>(memory, args, rows);\n    SyncComputingWarps<Shape>();\n",
        "    StoreLineQueries<Shape>(memory, args, rows);\n"),
    Bug("flag_without_barrier", RESULTS,
        "  SyncComputingWarps<Shape>();\n  return *flag != 0;", "  return *flag != 0;"),
    Bug("one_buffer_of_weights", KERNEL, "weights + use % 2 * Shape::kWeightBytes", "weights"),
    Bug("one_buffer_of_maxima", KERNEL, "maxima + use % 2 * Shape::kMaximaFloats", "maxima"),
    # Barriers of the ring.
    Bug("stage_read_before_it_is_full", KERNEL, "    ring.WaitUntilFull(use);\n", ""),
    Bug("stage_copied_before_it_is_free", RING, "      ring.WaitUntilFree(use);\n", ""),
    Bug("stage_freed_by_the_first_warp", RING, "free[i].Init(kLineWarps)", "free[i].Init(1)"),
    Bug("parity_of_the_free_barrier", RING,
        "Free(use).Wait((use / Shape::kStages - 1) & 1)",
        "Free(use).Wait(use / Shape::kStages & 1)"),
    Bug("barriers_without_fence", RING,
        "    FenceAsyncProxy();\n  }\n  QUIRE_DEVICE uint8_t* Stage",
        "  }\n  QUIRE_DEVICE uint8_t* Stage"),
    Bug("bytes_of_blocks_that_are_not_copied", RING,
        "full.ArriveAndExpect(num_needed * order.BlockBytes())",
        "full.ArriveAndExpect((kStageKeys >> kv.block_shift) * order.BlockBytes())"),
    # Folds and last arrivers.
    Bug("each_cta_folds", RESULTS,
        "const bool is_last = before == last_cta - first_cta;",
        "const bool is_last = before <= last_cta - first_cta;"),
    Bug("highest_cta_folds", RESULTS,
        "const bool is_last = before == last_cta - first_cta;",
        "const bool is_last = before >= 0 && static_cast<int32_t>(blockIdx.x) == last_cta;"),
    Bug("counter_not_set_back", RESULTS, "      arrivals[first_cta] = 0;\n", ""),
    Bug("counter_of_each_cta", RESULTS,
        "AddAcquireRelease(arrivals + first_cta, 1)",
        "AddAcquireRelease(arrivals + blockIdx.x, 1)"),
    Bug("counted_before_the_partials_are_stored", RESULTS,
        "  SyncComputingWarps<Shape>();\n  if (threadIdx.x == 0) {\n    const int32_t first_cta",
        "  if (threadIdx.x == 0) {\n    const int32_t first_cta"),
    Bug("sums_of_the_last_stage_without_factor", PRODUCTS,
        "sums[m][r] = result.sum[m][r / 2] * factors[m][r / 2];",
        "sums[m][r] = result.sum[m][r / 2];", head_dim=64),
    Bug("maximum_goes_on_in_the_next_segment", KERNEL,
        "s == first_stage || s % stages_per_segment == 0", "s == first_stage"),
    Bug("segments_over_the_fold", KERNEL, "1 + num_stored++", "num_stored++"),
    Bug("fold_with_one_factor", RESULTS,
        "const float next_factor = RescaleFactor(next.max[m][half], larger);",
        "const float next_factor = factor;"),
    Bug("fold_of_sums_without_factor", RESULTS,
        "fmaf(sum[m][half], factor, next.sum[m][half] * next_factor)",
        "fmaf(sum[m][half], factor, next.sum[m][half])"),
    Bug("one_head_for_all_sinks", RESULTS,
        "args.sinks[rows.HeadOf(row)]", "args.sinks[rows.first_head]"),
    Bug("cap_of_products_without_scale", PRODUCTS,
        "soft_cap.Capped(score * scale)", "soft_cap.Capped(score)"),
    # Tails.
    Bug("values_past_the_end", KERNEL,
        "position < part.begin || position + kStageKeys > part.end", "position < part.begin"),
    Bug("values_before_the_window", KERNEL,
        "position < part.begin || position + kStageKeys > part.end",
        "position + kStageKeys > part.end"),
    Bug("scores_before_the_window", PRODUCTS,
        "needs_mask && (key < row.begin || key > row.position)",
        "needs_mask && key > row.position"),
    Bug("mask_left_out_at_the_begin", KERNEL,
        "position < rows.common_begin || position + kStageKeys > rows.common_end",
        "position + kStageKeys > rows.common_end"),
    Bug("last_stage_left_out", PARTS,
        "((to < end ? to : end) + kStageKeys - 1) / kStageKeys",
        "(to < end ? to : end) / kStageKeys"),
    Bug("dims_past_the_last", RESULTS,
        "Shape::kRowChunks % kLineWarps == 0 || ChunkOfWarp(i) < Shape::kRowChunks",
        "ChunkOfWarp(i) >= 0"),
    # Swizzle.
    Bug("weights_stored_without_swizzle", PRODUCTS,
        "weights + WeightOffset(row, 2 * warp + n)",
        "weights + row * kStageKeys * 2 + (2 * warp + n) * 16"),
    Bug("values_of_the_tail_as_of_a_whole_piece", PRODUCTS,
        "      const KvPiece piece = KvPieceOf(Shape::kRowChunks, chunk);\n      uint32_t b[4];",
        "      const KvPiece piece = KvPieceOf(Shape::kRowChunks, 0);\n      uint32_t b[4];"),
    Bug("rows_of_a_large_block_as_of_whole_pieces", RING,
        "(chunk * block_size + slot * piece.num_chunks) * 16",
        "(chunk * block_size + slot * 8) * 16"),
    # The early start.
    Bug("copies_without_wait", RING,
        "        WaitForEarlierOperation();\n        has_waited = true;",
        "        has_waited = true;", head_dim=64),
    Bug("copies_wait_a_stage_late", RING,
        "!has_waited && position + kStageKeys > part.context",
        "!has_waited && position > part.context", head_dim=64),
    Bug("queries_without_wait", KERNEL,
        "    WaitForEarlierOperation();\n    ComputeRun", "    ComputeRun", head_dim=64),
]
