"""vLLM's scheduler under the load of `make bench-scheduler`, without a model behind it.

`benchmarks/scheduler.py` runs this with the Python of a venv that has vLLM, the folder of a model
whose configuration vLLM wants to read, and the name of a clock. Each line on stdin is a case as a
JSON list; the answer is one line of JSON on stdout.

A step is `schedule` and `update_from_output`, as the engine's core calls them with synchronous
scheduling and without statistics; serialising their result, which is another thread's work, is left
out. An arrival is what the core does with a new request: building it, which hashes the blocks of
its prompt, and queueing it.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

os.environ.setdefault("VLLM_TARGET_DEVICE", "cpu")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")  # stdout is for the answers

import numpy as np
import torch
import vllm
from vllm.config import CacheConfig, DeviceConfig, ModelConfig, SchedulerConfig, VllmConfig
from vllm.sampling_params import SamplingParams
from vllm.utils.gc_utils import freeze_gc_heap
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

sys.path.append(str(Path(__file__).parent))
import scheduler_load as load

HASH = get_hash_fn_by_name("sha256")
HASHER = get_request_block_hasher(load.BLOCK_SIZE, HASH)


def build(model: str, num_running: int) -> Scheduler:
    cache = CacheConfig(block_size=load.BLOCK_SIZE, enable_prefix_caching=True)
    cache.num_gpu_blocks = load.NUM_BLOCKS
    config = VllmConfig(
        model_config=ModelConfig(
            model=model, dtype="bfloat16", seed=0, max_model_len=load.MAX_MODEL_LEN
        ),
        scheduler_config=SchedulerConfig(
            max_num_seqs=num_running,
            max_num_batched_tokens=load.TOKEN_BUDGET,
            max_model_len=load.MAX_MODEL_LEN,
            enable_chunked_prefill=True,
            is_encoder_decoder=False,
            async_scheduling=False,
        ),
        cache_config=cache,
        device_config=DeviceConfig("cpu"),
    )
    spec = FullAttentionSpec(
        block_size=load.BLOCK_SIZE, num_kv_heads=3, head_size=64, dtype=torch.bfloat16
    )
    group = KVCacheGroupSpec(["layer"], spec)
    return Scheduler(
        vllm_config=config,
        kv_cache_config=KVCacheConfig(
            num_blocks=load.NUM_BLOCKS, kv_cache_tensors=[], kv_cache_groups=[group]
        ),
        structured_output_manager=StructuredOutputManager(config),
        block_size=load.BLOCK_SIZE,
        hash_block_size=load.BLOCK_SIZE,
        log_stats=False,
    )


class Vllm:
    """A scheduler of vLLM, and a runner that samples at random."""

    def __init__(self, model: str, num_running: int, clock: load.Clock) -> None:
        self._scheduler = build(model, num_running)
        self._clock = clock
        self._rng = np.random.default_rng(load.SEED)
        freeze_gc_heap()  # as its engine does once it is built

    def add(self, request: int, prompt: load.Int32Array, max_tokens: int) -> float:
        tokens = prompt.tolist()
        sampling = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
        started = self._clock()
        self._scheduler.add_request(
            Request(
                request_id=str(request),
                prompt_token_ids=tokens,
                sampling_params=sampling,
                pooling_params=None,
                arrival_time=float(request),
                block_hasher=HASHER,
            )
        )
        return self._clock() - started

    def step(self) -> load.Stepped:
        started = self._clock()
        plan = self._scheduler.schedule()
        planned_s = self._clock() - started
        output = self._sample(plan)
        num_running = len(self._scheduler.running)
        started = self._clock()
        self._scheduler.update_from_output(plan, output)
        took_s = planned_s + self._clock() - started
        ending = num_running - len(self._scheduler.running)
        return load.Stepped(took_s, len(plan.scheduled_new_reqs), ending)

    def _sample(self, plan: SchedulerOutput) -> ModelRunnerOutput:
        ids = list(plan.num_scheduled_tokens)
        requests = [self._scheduler.requests[name] for name in ids]
        tokens = self._rng.integers(load.VOCABULARY, size=len(ids)).tolist()
        return ModelRunnerOutput(
            req_ids=ids,
            req_id_to_index={name: index for index, name in enumerate(ids)},
            sampled_token_ids=[
                [token] if request.num_computed_tokens >= request.num_tokens else []
                for request, token in zip(requests, tokens, strict=True)
            ],
            logprobs=None,
            prompt_logprobs_dict={},
            pooler_output=[],
        )


def main() -> None:
    model, clock = sys.argv[1:]
    init_none_hash(HASH)
    print(json.dumps({"version": vllm.__version__}), flush=True)
    side = None
    for line in sys.stdin:
        if (case := json.loads(line)) is not None:
            side = None  # or the collector would freeze the case before with this one
            started = load.Case(*case)
            side = load.Load(started, Vllm(model, started.running, load.CLOCKS[clock]))
        assert side is not None, "a round of no case"
        print(json.dumps(side.measure() if case is None else None), flush=True)


if __name__ == "__main__":
    main()
