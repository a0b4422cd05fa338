#!/usr/bin/python3
"""Writes the boards of this folder: make_boards.py [FOLDER]. Change the tables here, never the JSON.

In an expression @ stands for the instances that are selected above the board.
"""
import json
import pathlib
import sys

DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
NUM_COLUMNS = 24


def panel(kind, title, unit, description, targets, width, height, thresholds=(), custom=None,
          options=None):
    """targets: (legend, expression) pairs. thresholds: values from which a panel is orange, then red."""
    steps = [{"color": "green", "value": None}]
    steps += [{"color": color, "value": value} for color, value in zip(("orange", "red"), thresholds)]
    defaults = {"unit": unit, "thresholds": {"mode": "absolute", "steps": steps}}
    if custom is not None:
        defaults["custom"] = custom
    now = kind == "stat"
    return {
        "type": kind, "title": title, "description": description, "datasource": DATASOURCE,
        "gridPos": {"w": width, "h": height},
        "fieldConfig": {"defaults": defaults, "overrides": []}, "options": options or {},
        "targets": [{"refId": chr(ord("A") + i), "datasource": DATASOURCE, "editorMode": "code",
                     "expr": expression.replace("@", 'instance=~"$instance"'),
                     "legendFormat": legend, "range": not now, "instant": now,
                     "format": "heatmap" if kind == "heatmap" else "time_series"}
                    for i, (legend, expression) in enumerate(targets)]}


def number(title, unit, description, expression, thresholds=(), legend=""):
    """Returns a panel that shows the current value or, if a legend is given, the legend in its place."""
    return panel("stat", title, unit, description, [(legend, expression)], 4, 4, thresholds,
                 options={"colorMode": "value", "graphMode": "none", "justifyMode": "auto",
                          "orientation": "auto", "textMode": "name" if legend else "value",
                          "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False}})


def lines(title, unit, description, *targets, stacked=False, thresholds=(), width=8):
    custom = {"drawStyle": "line", "lineWidth": 1, "fillOpacity": 40 if stacked else 8,
              "showPoints": "never", "spanNulls": False,
              "stacking": {"group": "A", "mode": "normal" if stacked else "none"},
              "thresholdsStyle": {"mode": "line" if thresholds else "off"}}
    if unit == "percentunit":
        custom["axisSoftMin"], custom["axisSoftMax"] = 0, 1
    return panel("timeseries", title, unit, description, targets, width, 8, thresholds, custom,
                 {"legend": {"calcs": ["lastNotNull", "max"], "displayMode": "list",
                             "placement": "bottom", "showLegend": True},
                  "tooltip": {"mode": "multi", "sort": "desc"}})


def heatmap(title, unit, description, histogram):
    expression = f"sum by (le) (increase({histogram}_bucket{{@}}[$__rate_interval]))"
    return panel("heatmap", title, unit, description, [("{{le}}", expression)], 8, 8, custom={},
                 options={"calculate": False, "cellGap": 1, "showValue": "never",
                          "color": {"mode": "scheme", "scheme": "Spectral", "fill": "dark-orange",
                                    "scale": "exponential", "exponent": 0.5, "steps": 64,
                                    "reverse": False},
                          "exemplars": {"color": "rgba(255,0,255,0.7)"},
                          "filterValues": {"le": 1e-9}, "legend": {"show": True},
                          "rowsFrame": {"layout": "auto"},
                          "tooltip": {"show": True, "yHistogram": False},
                          "yAxis": {"axisPlacement": "left", "reverse": False, "unit": unit}})


def quantile(share, histogram, by="", labels="@"):
    """Returns the expression of a quantile. An empty histogram gives NaN, which `>= 0` drops, so no line is drawn."""
    return (f"histogram_quantile({share / 100}, sum by (le{f', {by}' if by else ''}) "
            f"(rate({histogram}_bucket{{{labels}}}[$__rate_interval]))) >= 0")


def quantiles(histogram, labels="@"):
    return [(f"p{share}", quantile(share, histogram, labels=labels)) for share in (50, 90, 99)]


def rate(counter, by="", labels="@"):
    return f"sum{f' by ({by})' if by else ''} (rate({counter}{{{labels}}}[$__rate_interval]))"


IN_USE = 'quire_kv_blocks{@, tier="device", state=~"active|leaving|pending"}'
WORKER_PARTS = 'part=~"worker_build|worker_forward|worker_sample"'
CAPACITY = 'quire_kv_blocks_capacity{@, tier="device"}'

KV_BLOCKS = [
    ("Now", [
        number("Blocks in use", "percentunit",
               "Share of the KV blocks that requests hold. Cached blocks count as free, because a "
               "request can take them at once.", f"sum({IN_USE}) / (sum({CAPACITY}) > 0)", (0.8, 0.95)),
        number("Free blocks", "short", "KV blocks that can be allocated, cached ones included.",
               'sum(quire_kv_blocks{@, tier="device", state=~"free|cached"})'),
        number("Capacity", "short", "KV blocks that requests can use.", f"sum({CAPACITY})"),
        number("KV memory", "bytes", "Bytes of all KV blocks on one worker of each server.",
               f"sum({CAPACITY} * on (instance) group_left () quire_kv_block_bytes{{@}})"),
        number("Tokens that fit", "short", "Tokens that all blocks can store.",
               'sum(quire_kv_tokens{@, state="capacity"})'),
        number("Tokens a block", "short", "Tokens that one block holds (--block-size).",
               "max(quire_kv_block_tokens{@})"),
    ]),
    ("Where the blocks are", [
        lines("Blocks by state", "short",
              "All KV blocks. active: held by sequences; cached: free, but still found by the prefix "
              "cache; leaving: being copied to host memory; pending: released, but not free before "
              "the running step ends.",
              ("{{state}}", 'sum by (state) (quire_kv_blocks{@, tier="device"})'),
              stacked=True, width=12),
        lines("Host blocks by state", "short",
              "Places for blocks in host memory (--swap-space), where preempted requests wait.",
              ("{{state}}", 'sum by (state) (quire_kv_blocks{@, tier="host"})'),
              stacked=True, width=12),
        lines("Share of blocks in use", "percentunit",
              "For each server. From about 0.95, requests wait or are preempted.",
              ("{{instance}}", f"sum by (instance) ({IN_USE}) / (sum by (instance) ({CAPACITY}) > 0)"),
              thresholds=(0.8, 0.95)),
        lines("Fragmentation", "percentunit",
              "Share of the slots of active blocks that hold no token: the ends of the sequences' last "
              "blocks. Smaller blocks have less of it.",
              ("{{instance}}", "quire_kv_fragmentation_ratio{@}")),
        lines("Tokens", "short",
              "stored: tokens in active blocks, a shared block counted once; referenced: the same, a "
              "shared block counted once for each sequence; capacity: tokens that all blocks could store.",
              ("{{state}}", "sum by (state) (quire_kv_tokens{@})")),
    ]),
    ("Sharing", [
        lines("References", "short",
              "References from block tables to blocks, the referenced (active) blocks, and the blocks "
              "with more than one reference (shared).",
              ("references", "sum(quire_kv_block_refs{@})"),
              ("active blocks", 'sum(quire_kv_blocks{@, tier="device", state="active"})'),
              ("shared blocks", "sum(quire_kv_shared_blocks{@})")),
        lines("Tokens saved by sharing", "percentunit",
              "Share of the tokens of all sequences that need no memory of their own. No line while no "
              "sequence runs.",
              ("saved", '1 - sum(quire_kv_tokens{@, state="stored"}) / '
               '(sum(quire_kv_tokens{@, state="referenced"}) > 0)')),
        lines("Prefix hit ratio", "percentunit",
              "Share of the tokens of started sequences that were found in the prefix cache.",
              ("hit ratio", rate("quire_prefix_cache_tokens_total", labels='@, result="hit"') +
               f" / ({rate('quire_prefix_cache_tokens_total')} > 0)")),
        lines("Tokens of sequences that start", "suffix:tok/s",
              "hit: found in the prefix cache; miss: not found.",
              ("{{result}}", rate("quire_prefix_cache_tokens_total", "result")), stacked=True),
        lines("KV events", "ops",
              "Batches of KV events for routers. dropped: their numbers are missing for all subscribers.",
              ("{{result}}", rate("quire_kv_event_batches_total", "result")), stacked=True),
        lines("Blocks in the prefix cache", "short",
              "Blocks that the prefix cache can find, and the free ones among them.",
              ("used and free", "sum(quire_prefix_cache_blocks{@})"),
              ("free", 'sum(quire_kv_blocks{@, tier="device", state="cached"})')),
        lines("Pinned", "short", "Prefixes that operators have pinned, and the blocks that they hold.",
              ("prefixes", "sum(quire_pinned_prefixes{@})"),
              ("blocks", "sum(quire_pinned_kv_blocks{@})")),
    ]),
    ("Operations on blocks", [
        lines("Block operations", "ops",
              "alloc: taken from the free list; evict: allocated blocks that were cached; prefix_hit: "
              "found in the prefix cache and referenced; fork: referenced by a forked sequence; cow: "
              "copied before a write; swap_out, swap_in: copied to host memory and back.",
              ("{{op}}", rate("quire_kv_block_ops_total", "op")), width=12),
        lines("Evicted blocks among allocated ones", "percentunit",
              "If this is high while the hit ratio falls, the cache is too small for the repeated prompts.",
              ("evicted", rate("quire_kv_block_ops_total", labels='@, op="evict"') + " / (" +
               rate("quire_kv_block_ops_total", labels='@, op="alloc"') + " > 0)"), width=12),
        lines("Preemptions", "ops", "Preemptions of running requests, by mode.",
              ("{{mode}}", rate("quire_preemptions_total", "mode"))),
        lines("Recomputed tokens", "suffix:tok/s", "Tokens computed again after preemptions.",
              ("recomputed", rate("quire_tokens_total", labels='@, kind="recomputed"'))),
        lines("Swapped bytes", "binBps",
              "Bytes that each worker was told to copy to host memory (out) and back (in).",
              ("{{direction}}", rate("quire_kv_swap_bytes_total", "direction"))),
        lines("Failed swap-ins", "short",
              "Blocks whose swap-in failed in the last 5 minutes; their requests were recomputed. 0 is normal.",
              ("failures", "sum(increase(quire_kv_swap_in_failures_total{@}[5m]))"),
              thresholds=(1,)),
    ]),
]

SERVING = [
    ("Now", [
        number("Running", "short", "Requests that hold KV blocks.",
               'sum(quire_requests{@, state="running"})'),
        number("Waiting", "short", "Requests that wait to start.",
               'sum(quire_requests{@, state="waiting"})', (20, 100)),
        number("Generated", "suffix:tok/s", "Tokens generated per second.",
               rate("quire_tokens_total", labels='@, kind="generated"')),
        number("First token, p99", "s", "Time from arrival to the first token; 99 % of requests were faster.",
               quantile(99, "quire_ttft_seconds")),
        number("Between tokens, p99", "s", "Time between two tokens of a sequence; 99 % were shorter.",
               quantile(99, "quire_itl_seconds")),
        number("Refused", "reqps", "Requests refused per second, for any reason.",
               rate("quire_admission_rejects_total")),
    ]),
    ("Latency", [
        lines("Time to first token", "s", "Time from a request's arrival to its first token.",
              *quantiles("quire_ttft_seconds")),
        lines("Between tokens", "s", "Time between two tokens of a sequence.",
              *quantiles("quire_itl_seconds")),
        lines("Whole request", "s", "Time from a request's arrival to its end.",
              *quantiles("quire_e2e_seconds")),
        heatmap("Time to first token, spread", "s", "Requests by their time to the first token.",
                "quire_ttft_seconds"),
        heatmap("Between tokens, spread", "s", "Pairs of tokens by the time between them.",
                "quire_itl_seconds"),
        heatmap("Whole request, spread", "s", "Requests by the time from arrival to end.",
                "quire_e2e_seconds"),
        lines("Queue", "s", "Time from a request's arrival to the planning of its first slice, "
              "tokenizing included.", *quantiles("quire_queue_seconds")),
        lines("Prefill", "s", "Time from a request's first slice to its first token.",
              *quantiles("quire_prefill_seconds")),
        lines("Decode", "s", "Time from a request's first token to its last one.",
              *quantiles("quire_decode_seconds")),
        heatmap("Queue, spread", "s", "Requests by the time that they waited.",
                "quire_queue_seconds"),
        lines("Inference", "s", "Time from a request's first slice to its last token.",
              *quantiles("quire_inference_seconds")),
        lines("Time per output token", "s", "A request's decode time, per token after the first.",
              *quantiles("quire_time_per_output_token_seconds")),
    ]),
    ("Throughput", [
        lines("Tokens", "suffix:tok/s",
              "prompt: prompt tokens computed; generated: tokens sampled; recomputed: tokens computed "
              "again after preemptions. Recomputed prompt tokens count as prompt, too.",
              ("{{kind}}", rate("quire_tokens_total", "kind"))),
        lines("Requests ended", "reqps", "By outcome.",
              ("{{outcome}}", rate("quire_requests_total", "outcome")), stacked=True),
        lines("Requests refused", "reqps", "By reason. invalid: the request itself is invalid.",
              ("{{reason}}", rate("quire_admission_rejects_total", "reason")), stacked=True),
    ]),
    ("Queue and batches", [
        lines("Requests", "short",
              "running: has KV blocks; waiting: waits to start; swapped: its blocks are in host memory.",
              ("{{state}}", "sum by (state) (quire_requests{@})"), stacked=True),
        lines("Waiting prompt tokens", "short", "Prompt tokens of waiting requests.",
              ("tokens", "sum(quire_queued_tokens{@})")),
        lines("Steps", "suffix:steps/s", "Steps answered by the workers, by server.",
              ("{{instance}}", rate("quire_steps_total", "instance"))),
        lines("Sequences in a step", "short", "Batch size.", *quantiles("quire_step_batch_sequences")),
        lines("Tokens in a step", "short", "Prompt and output tokens computed in one step.",
              *quantiles("quire_step_batch_tokens")),
        heatmap("Tokens in a step, spread", "short", "Steps by the tokens they computed.",
                "quire_step_batch_tokens"),
    ]),
    ("A step", [
        lines("Parts of a step, mean", "s",
              "schedule, apply: in the scheduler; worker_build, worker_forward, worker_sample: in the "
              "workers, operations between ranks included. Publishing is not shown, because it runs at "
              "the same time as the workers.",
              ("{{part}}", "sum by (part) (rate(quire_step_duration_seconds_sum{@, part=~"
               '"schedule|apply|worker_build|worker_forward|worker_sample"}[$__rate_interval])) / '
               "sum by (part) (rate(quire_step_duration_seconds_count{@}[$__rate_interval]) > 0)"),
              stacked=True),
        lines("Parts of a step, p99", "s", "round_trip: from sending the plan to receiving the result.",
              ("{{part}}", quantile(99, "quire_step_duration_seconds", "part"))),
        lines("Outside the workers", "percentunit",
              "Share of the round trips that was not the workers' own time: messages, queues, waiting "
              "for the slowest rank.",
              ("outside", f"1 - sum(rate(quire_step_duration_seconds_sum{{@, {WORKER_PARTS}}}"
               "[$__rate_interval])) / (sum(rate("
               'quire_step_duration_seconds_sum{@, part="round_trip"}[$__rate_interval])) > 0)')),
    ]),
    ("Gateways", [
        lines("HTTP requests", "reqps",
              "Requests that ended, by route and status. 499: the client was gone before the end of its answer.",
              ("{{route}} {{status}}", rate("quire_gateway_requests_total", "route, status")), stacked=True),
        lines("Time to first byte", "s",
              "Time from a whole HTTP request to the first byte of its answer. Answers that are not streamed "
              "count whole.",
              *quantiles("quire_gateway_time_to_first_byte_seconds", '@, route=~"/v1/.*completions"')),
        lines("HTTP streams", "short", "Streams from schedulers that HTTP requests wait for or read, by gateway.",
              ("{{instance}}", "quire_gateway_streams{@}")),
        lines("Resumed HTTP streams", "ops",
              "Streams that went on after a scheduler or the connection to it was lost.",
              ("{{instance}}", rate("quire_gateway_resumed_streams_total", "instance")), width=12),
        lines("Chat templates", "s", "Time to render a chat template.",
              *quantiles("quire_gateway_template_seconds"), width=12),
    ]),
    ("Lengths", [
        heatmap("Prompt tokens", "short", "Requests that ended, by the length of their prompts.",
                "quire_request_prompt_tokens"),
        heatmap("Output tokens", "short", "Sequences that ended, by the length of their output.",
                "quire_request_output_tokens"),
        lines("Longest output of a request", "short", "Output tokens of a request's longest sequence.",
              *quantiles("quire_request_longest_output_tokens")),
        lines("Requested output tokens", "short", "max_tokens of requests.",
              *quantiles("quire_request_max_tokens")),
        lines("Sequences of a request", "short", "Sequences (n, beams) of requests that ended.",
              *quantiles("quire_request_sequences")),
    ]),
]

PROCESSES = [
    ("Now", [
        number("Servers ready", "short", "Servers whose workers are ready.",
               "sum(quire_worker_up{@})"),
        number("Ranks ready", "percentunit", "Share of the ranks of all servers that compute.",
               "avg(quire_rank_ready{@})"),
        number("Losses, last hour", "short", "Times that a worker group was lost.",
               "sum(increase(quire_worker_group_losses_total{@}[1h]))", (1, 3)),
        number("Draining", "short", "Servers that are shutting down.", "sum(quire_draining{@})"),
        number("Version", "short", "Version of each server.",
               "count by (version) (quire_build_info{@})", legend="{{version}}"),
        number("Model", "short", "Model, type of the KV cache, longest sequence.",
               "count by (model_name, kv_cache_dtype, max_model_len) (quire_model_info{@})",
               legend="{{model_name}}, {{kv_cache_dtype}}, {{max_model_len}} tokens"),
    ]),
    ("Workers, as the scheduler sees them", [
        lines("Group ready", "short", "1 while a server's workers are ready.",
              ("{{instance}}", "quire_worker_up{@}")),
        lines("Rank ready", "short", "1 while the worker of this rank computes together with all others.",
              ("{{instance}} rank {{rank}}", "quire_rank_ready{@}")),
        lines("Standby", "short", "1 while a scheduler stands by because another one has the workers.",
              ("{{instance}}", "quire_scheduler_standby{@}")),
        lines("Losses", "short", "Times that the worker group was lost, in the last hour.",
              ("{{instance}}", "increase(quire_worker_group_losses_total{@}[1h])"), thresholds=(1, 3)),
        lines("Forward pass", "s", "The workers' own time for a step's layers.",
              *quantiles("quire_step_duration_seconds", '@, part="worker_forward"')),
        lines("Operations between ranks", "percentunit",
              "Share of the workers' time that goes into operations with other ranks, waiting for them "
              "included. 0 with one rank.",
              ("{{instance}}", "sum by (instance) (rate(quire_step_duration_seconds_sum{@, "
               'part="worker_collective"}[$__rate_interval])) / (sum by (instance) (rate('
               f"quire_step_duration_seconds_sum{{@, {WORKER_PARTS}}}[$__rate_interval])) > 0)")),
        lines("Faults", "short",
              "In the last 5 minutes: rows of logits with NaN or infinity, step results that came too "
              "late, requests ended because they crashed workers. Now: requests suspected of crashing "
              "workers, which are computed alone.",
              ("rows not finite", "sum(increase(quire_non_finite_logits_total{@}[5m]))"),
              ("late results", "sum(increase(quire_stale_replies_total{@}[5m]))"),
              ("poison requests", "sum(increase(quire_poison_requests_total{@}[5m]))"),
              ("crash suspects", "sum(quire_crash_suspects{@})"), thresholds=(1,)),
    ]),
    ("gRPC", [
        lines("Calls by method", "reqps", "Calls that ended.",
              ("{{method}}", rate("quire_grpc_requests_total", "method"))),
        lines("Calls by code", "reqps", "Calls that ended.",
              ("{{code}}", rate("quire_grpc_requests_total", "code"))),
        lines("Calls that failed", "reqps", "Calls that did not end with OK, by method and code.",
              ("{{method}} {{code}}", rate("quire_grpc_requests_total", "method, code", '@, code!="OK"'))),
        lines("Duration of calls, p99", "s",
              "99 % of the method's calls were shorter. A stream counts from its begin to its end.",
              ("{{method}}", quantile(99, "quire_grpc_request_seconds", "method")), width=12),
        lines("Open calls", "short", "Calls that have not ended yet.",
              ("{{method}}", "sum by (method) (quire_grpc_open_calls{@})"), width=12),
    ]),
    ("Process of the scheduler", [
        lines("CPUs", "short", "Number of busy CPUs, user plus system.",
              ("{{instance}}", "rate(process_cpu_seconds_total{@}[$__rate_interval])")),
        lines("Main memory", "bytes", "Main memory that the process holds.",
              ("{{instance}}", "process_resident_memory_bytes{@}")),
        lines("Virtual memory", "bytes", "Size of the process's address space; most of it is not backed by "
              "memory.", ("{{instance}}", "process_virtual_memory_bytes{@}")),
        lines("Turn of the scheduling loop", "s",
              "Events, planning, sending and publishing, without the wait for the workers. No stream of "
              "the server gets a token during a turn.", *quantiles("quire_loop_turn_seconds"),
              thresholds=(0.1,)),
        lines("Open files", "short", "Files and sockets.", ("{{instance}}", "process_open_fds{@}")),
        lines("Open files, share of the limit", "percentunit", "At 1 no client can connect.",
              ("{{instance}}", "process_open_fds{@} / process_max_fds{@}"), thresholds=(0.8, 0.95)),
        lines("Age", "s", "Time since the start of the process.",
              ("{{instance}}", "time() - process_start_time_seconds{@}")),
    ]),
]

STEP_PART = "quire_worker_step_duration_seconds"

WORKERS = [
    ("Now", [
        number("Workers", "short", "Workers that are scraped.", "sum(quire_worker_info{@})"),
        number("Ready", "percentunit", "Share of the workers that have loaded the model and are not stuck.",
               "avg(quire_worker_ready{@})"),
        number("Stuck", "short", "Workers whose executor is stuck.",
               "count(quire_worker_live{@}) - sum(quire_worker_live{@})", (1,)),
        number("Loaded", "percentunit", "Loaded share of the model at the slowest worker.",
               "min(quire_worker_load_ratio{@})"),
        number("Steps", "suffix:steps/s", "Steps that a worker executes per second, on average.",
               "avg(rate(quire_worker_steps_total{@}[$__rate_interval]))"),
        number("Version", "short", "Version and backend of the workers.",
               "count by (version, backend) (quire_worker_info{@})",
               legend="{{version}}, {{backend}}"),
    ]),
    ("Phases and epochs", [
        lines("Phase", "short", "Workers by phase: loading, idle, beginning_epoch, executing.",
              ("{{phase}}", "sum by (phase) (quire_worker_phase{@})"), stacked=True),
        lines("Ready and live", "short",
              "1 while a worker is ready (/readyz), and while it is live (/livez).",
              ("{{instance}} ready", "quire_worker_ready{@}"),
              ("{{instance}} live", "quire_worker_live{@}")),
        lines("Waits for rank", "short",
              "Rank that the current operation between ranks waits for, at the time of the scrape; -1: none. "
              "If all others wait for one rank, look at that rank.",
              ("{{instance}}", "quire_worker_waits_for_rank{@}")),
        lines("Epoch", "short",
              "Number of the epoch, by the scheduler's incarnation. All ranks of a group have the same number.",
              ("{{instance}}, {{incarnation}}", "quire_worker_group_epoch{@}")),
        lines("Epochs that began", "short",
              "In the last hour. Each follows a start, the loss of a group, or a takeover by another scheduler.",
              ("{{instance}}", "increase(quire_worker_epochs_total{@}[1h])")),
        lines("Tokens", "suffix:tok/s",
              "computed: by the layers; sampled. All ranks of a group count the same tokens.",
              ("{{instance}} {{kind}}", rate("quire_worker_tokens_total", "instance, kind"))),
    ]),
    ("A step", [
        lines("Parts of a step, mean", "s",
              "build: checking the plan and building the batch; forward: the layers; sample: from logits to "
              "tokens.",
              ("{{part}}", f'sum by (part) (rate({STEP_PART}_sum{{@, part=~"build|forward|sample"}}'
               f"[$__rate_interval])) / (sum by (part) (rate({STEP_PART}_count{{@}}"
               "[$__rate_interval])) > 0)"), stacked=True),
        lines("Inside a step, mean", "s",
              "swap: copying blocks, starting swaps and waiting for them; collective: operations "
              "between ranks, waiting included; map: mapping windows (--kv-backend=vmm); compute: the "
              "layers without the other three.",
              ("{{part}}", f'sum by (part) (rate({STEP_PART}_sum{{@, part=~"swap|collective|map|compute"}}'
               f"[$__rate_interval])) / (sum by (part) (rate({STEP_PART}_count{{@}}"
               "[$__rate_interval])) > 0)")),
        lines("Parts of a step, p99", "s", "99 % of the steps were faster. step: the whole step.",
              ("{{part}}", quantile(99, STEP_PART, "part"))),
        lines("Layers alone, by worker", "s",
              "Mean time of a step's layers without operations between ranks. All ranks wait for the "
              "slowest. NCCL's operations count as layers, so with NCCL all ranks show the same time.",
              ("{{instance}}", f'sum by (instance) (rate({STEP_PART}_sum{{@, part="compute"}}'
               f'[$__rate_interval])) / (sum by (instance) (rate({STEP_PART}_count{{@, part="compute"}}'
               "[$__rate_interval])) > 0)")),
        lines("Operations between ranks, by worker", "percentunit",
              "Share of a step that goes into operations between ranks, waiting included. The slowest rank has "
              "the lowest share.",
              ("{{instance}}", f'sum by (instance) (rate({STEP_PART}_sum{{@, part="collective"}}'
               f'[$__rate_interval])) / (sum by (instance) (rate({STEP_PART}_sum{{@, part="step"}}'
               "[$__rate_interval])) > 0)")),
        lines("Steps, by worker", "suffix:steps/s",
              "Steps executed, and those that a GPU worker predicted: their inputs were uploaded before the plan came.",
              ("{{instance}}", rate("quire_worker_steps_total", "instance")),
              ("{{instance}} predicted", rate("quire_worker_prepared_steps_total", "instance"))),
    ]),
    ("Blocks and memory", [
        lines("KV blocks", "short",
              "Blocks in block tables, and blocks of the pool, for each worker. Blocks that are only "
              "cached are in no block table.",
              ("{{instance}} used", 'quire_worker_kv_blocks{@, tier="device"}'),
              ("{{instance}} capacity", 'quire_worker_kv_blocks_capacity{@, tier="device"}')),
        lines("Host blocks", "short",
              "Places in host memory that were written in this epoch, and all places of the pool.",
              ("{{instance}} filled", 'quire_worker_kv_blocks{@, tier="host"}'),
              ("{{instance}} capacity", 'quire_worker_kv_blocks_capacity{@, tier="host"}')),
        lines("Sequences", "short", "Sequences whose state the worker holds.",
              ("{{instance}}", "quire_worker_sequences{@}")),
        lines("Swapped bytes", "binBps", "Bytes copied to host memory (out) and back (in).",
              ("{{instance}} {{direction}}",
               rate("quire_worker_swap_bytes_total", "instance, direction"))),
        lines("Failed swap-ins", "short",
              "Blocks whose swap-in failed in the last 5 minutes. 0 is normal.",
              ("{{instance}}", "increase(quire_worker_swap_in_failures_total{@}[5m])"),
              thresholds=(1,)),
        lines("Memory by purpose", "bytes",
              "weights: the model's weights; kv: the pool of KV blocks; host: the pool of swapped blocks. "
              "Pools count in full, written or not.",
              ("{{kind}}", 'sum by (kind) (quire_worker_memory_bytes{@, kind!="padding"})'), stacked=True),
        lines("Places of windows per second", "short",
              "With --kv-backend=vmm: places by how they were mapped to a block. found: still mapped for an "
              "earlier sequence; mapped_ahead: during an earlier step; mapped: while the step waited; "
              "taken_down: unmapped at the system's limit of mappings.",
              ("{{how}}", rate("quire_worker_window_places_total", "how"))),
        lines("Places of windows", "short",
              "With --kv-backend=vmm: mapped places, and the maximum under the system's limit of mappings.",
              ("{{instance}} shown", "quire_worker_window_places{@}"),
              ("{{instance}} limit", "quire_worker_window_places_limit{@}")),
        lines("Steps without windows", "short",
              "With --kv-backend=vmm: steps of the last 5 minutes that read through block tables, because the "
              "system's limit of mappings was reached.",
              ("{{instance}}", "increase(quire_worker_window_refusals_total{@}[5m])"),
              thresholds=(1,)),
        lines("Scrubbed weights", "binBps",
              "Bytes that the scrubber reads to find weights that have changed in memory. A worker whose "
              "weights have changed ends with exit code 5 and is restarted.",
              ("{{instance}}", "rate(quire_worker_scrubbed_bytes_total{@}[$__rate_interval])"),
              width=12),
        lines("Passes over the weights", "short", "Passes of the scrubber since the worker started.",
              ("{{instance}}", "quire_worker_scrub_passes_total{@}"), width=12),
    ]),
    ("gRPC", [
        lines("Calls by method and code", "reqps", "Calls that ended. A refused step ends the Steps call.",
              ("{{method}} {{code}}", rate("quire_grpc_requests_total", "method, code")), width=12),
        lines("Open calls", "short", "Calls that have not ended yet.",
              ("{{method}}", "sum by (method) (quire_grpc_open_calls{@})"), width=12),
    ]),
    ("Process", [
        lines("CPUs", "short", "Number of busy CPUs, user plus system.",
              ("{{instance}}", "rate(process_cpu_seconds_total{@}[$__rate_interval])")),
        lines("Main memory", "bytes", "Main memory that the process holds.",
              ("{{instance}}", "process_resident_memory_bytes{@}")),
        lines("Restarts", "short", "Restarts of the process in the last hour.",
              ("{{instance}}", "resets(process_cpu_seconds_total{@}[1h])"), thresholds=(1, 3)),
    ]),
]

# For each file name: the board's title, its rows, and its drop-down list of instances (the list's
# label, and a metric that every program of the board exports).
BOARDS = {"quire-kv-blocks": ("Quire: KV blocks", KV_BLOCKS, ("Server", "quire_build_info")),
          "quire-serving": ("Quire: serving", SERVING, ("Server", "quire_build_info")),
          "quire-processes": ("Quire: processes", PROCESSES, ("Server", "quire_build_info")),
          "quire-workers": ("Quire: workers", WORKERS, ("Worker", "quire_worker_info"))}


def place(rows):
    """Returns the panels of all rows. Each row has a headline, and below it its panels from left to right."""
    placed, y = [], 0
    for title, panels in rows:
        placed.append({"type": "row", "title": title, "collapsed": False, "panels": [],
                       "gridPos": {"x": 0, "y": y, "w": NUM_COLUMNS, "h": 1}})
        x, y, height = 0, y + 1, 0
        for each in panels:
            size = each["gridPos"]
            if x + size["w"] > NUM_COLUMNS:
                x, y, height = 0, y + height, 0
            placed.append({**each, "gridPos": {"x": x, "y": y, **size}})
            x, height = x + size["w"], max(height, size["h"])
        y += height
    return [{"id": number_, **each} for number_, each in enumerate(placed, 1)]


def board(uid, title, rows, programs):
    label, info = programs
    return {
        "uid": uid, "title": title, "tags": ["quire"], "schemaVersion": 38, "version": 1,
        "editable": True, "graphTooltip": 1, "refresh": "10s", "timezone": "browser",
        "time": {"from": "now-1h", "to": "now"},
        "annotations": {"list": []},
        "links": [{"type": "dashboards", "title": "Quire", "tags": ["quire"], "asDropdown": True,
                   "icon": "external link", "includeVars": True, "keepTime": True,
                   "targetBlank": False, "tooltip": "", "url": ""}],
        "templating": {"list": [
            {"type": "datasource", "name": "datasource", "label": "Prometheus", "query": "prometheus",
             "hide": 0, "multi": False, "includeAll": False, "refresh": 1, "regex": ""},
            {"type": "query", "name": "instance", "label": label, "datasource": DATASOURCE,
             "query": {"query": f"label_values({info}, instance)",
                       "refId": "StandardVariableQuery"},
             "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
             "hide": 0, "multi": True, "includeAll": True, "refresh": 2, "regex": "", "sort": 1}]},
        "panels": place(rows)}


def write_boards(folder):
    for uid, (title, rows, programs) in BOARDS.items():
        text = json.dumps(board(uid, title, rows, programs), indent=1, ensure_ascii=False) + "\n"
        (folder / f"{uid}.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write_boards(pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else
                 pathlib.Path(__file__).resolve().parent)
