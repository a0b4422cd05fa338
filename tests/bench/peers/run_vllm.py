#!/usr/bin/env python3
"""run_vllm.py --model DIR [POINT...]: vLLM's engine as its offline LLM class makes it, with torch.compile.

setup.sh writes a start script that preloads tcmalloc and Intel's OpenMP, as vLLM's documentation asks for; without them
this stops. points.py says what it answers.
"""
import os

import points


def environment(threads):
    preloaded = os.environ.get("LD_PRELOAD", "")
    assert "tcmalloc" in preloaded and "iomp5" in preloaded, "start it by vllm/bin/python-preloaded"
    os.environ["VLLM_CPU_OMP_THREADS_BIND"] = ",".join(map(str, sorted(os.sched_getaffinity(0))[:threads]))
    os.environ["VLLM_CPU_KVCACHE_SPACE"] = "2"  # GiB
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ["VLLM_NO_USAGE_STATS"] = "1"


class Vllm(points.Peer):
    def __init__(self, options):
        environment(options.threads)
        import vllm  # reads the environment
        from vllm.sampling_params import RequestOutputKind
        settings = {"dtype": "bfloat16", "max_model_len": points.MAX_SEQUENCE_TOKENS, "max_num_seqs": points.CLIENTS,
                    "enable_prefix_caching": False, "disable_log_stats": True}
        if options.max_num_batched_tokens:
            settings["max_num_batched_tokens"] = options.max_num_batched_tokens
        llm = vllm.LLM(options.model, **settings)
        self._engine = llm.llm_engine
        self.vocab_size = llm.llm_engine.vllm_config.model_config.get_vocab_size()
        self._sampling = lambda max_tokens: vllm.SamplingParams(
            temperature=0, max_tokens=max_tokens, ignore_eos=True, detokenize=False,
            output_kind=RequestOutputKind.DELTA)
        self._left, self._next_key = {}, 0
        chosen = self._engine.vllm_config
        self.about = {"program": "vLLM", "version": vllm.__version__,
                      "settings": f"{settings}, "
                                  f"max_num_batched_tokens {chosen.scheduler_config.max_num_batched_tokens}, "
                                  f"cache_dtype {chosen.cache_config.cache_dtype}, "
                                  f"block_size {chosen.cache_config.block_size}, "
                                  f"compilation mode {chosen.compilation_config.mode}, "
                                  f"threads on {os.environ['VLLM_CPU_OMP_THREADS_BIND']}"}

    def add(self, prompt, max_tokens):
        key = str(self._next_key)
        self._next_key += 1
        self._engine.add_request(key, {"prompt_token_ids": prompt}, self._sampling(max_tokens))
        self._left[key] = max_tokens
        return key

    def step(self):
        counts = {}
        for output in self._engine.step():
            key = output.request_id
            assert not output.num_cached_tokens, "the prefix cache had this prompt"
            counts[key] = len(output.outputs[0].token_ids)
            self._left[key] -= counts[key]
            assert output.finished == (self._left[key] == 0), f"ended {self._left[key]} tokens early"
            if output.finished:
                del self._left[key]
        return counts

    def abort(self, key):
        self._engine.abort_request([key])
        del self._left[key]
        if not self._left:
            while self._engine.has_unfinished_requests():
                self._engine.step()


def add_flags(parser):
    parser.add_argument("--max-num-batched-tokens", type=int, default=0, help="0: what vLLM chooses")


if __name__ == "__main__":
    points.run_peer(__doc__, Vllm, add_flags)
