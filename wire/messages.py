"""The messages between the front process and the engine process, and nothing else.

Every message is a tagged msgspec struct, encoded as one MessagePack array. Arrays travel as raw
little-endian bytes and are viewed, not copied, by the reader (`wire.arrays`). This package must
never import torch: the front process imports it.

Front to engine: `Start`, `Submit`, `Resubmit`, `Cancel`, `Finish`, `Credit`, `Stall`,
`Reprioritise`, `SetDeadline`, `ResetPrefixCache`, `UseProfile`, `UseShadow`, `ReleasePolicy`,
`DescribePolicies`, `Shutdown`.
Engine to front: `Progress`, `Ready`, `Step`, `Failed`, `PoliciesAnswer`, `PoliciesState`. Once the
engine is ready, every message but `Shutdown` is followed by a `Step` that counts it in
`Counters.received`, whether or not there is work; one `Step` may count several.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, TypeAlias

import msgspec

from cadenza.wire.policies import ProfileState, ShadowState


class Finished(IntEnum):
    """Why a row ended, as one byte of `Step.finished`. `NOT` means that it goes on."""

    NOT = 0
    EOS = 1  # the model ended its turn; the token is not part of the text
    STOP_TOKEN = 2  # a stop token id of the request; not part of the text either
    LENGTH = 3  # max_tokens, or the model's context, is used up
    FAILED = 4  # this row alone failed (for example: logits that are not finite)
    DEADLINE = 5  # its deadline passed
    STOPPED = 6  # the front found a stop string; told in decisions only
    ABORTED = 7  # the client is gone; told in decisions only


class PolicyConfig(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """Which policies decide, and where they are found. Both processes build the same from it."""

    chosen: dict[str, tuple[str, ...]] = {}  # hook name -> policies; absent hooks use the default
    options: dict[str, dict[str, Any]] = {}  # policy -> its options, as text or as TOML has them
    plugins_dir: str | None = None  # a folder with policies, absolute
    plugins: tuple[str, ...] | None = None  # distributions or entry points to load; None: all
    trace: bool = False  # log every call of a hook
    watermark: float | None = None  # share of the pool that admissions leave free; None: as usual
    digests: dict[str, str] = {}  # of the policies' files, as the front process has loaded them


class FaultCount(msgspec.Struct, frozen=True, array_like=True):
    """How often one hook of one policy failed since the front started."""

    policy: str
    hook: str
    faults: int
    quarantined: bool  # the policy, with all its hooks


class HookUse(msgspec.Struct, frozen=True, array_like=True):
    """How often one hook of one policy was asked since the front started."""

    policy: str
    hook: str
    calls: int
    spent_s: float  # by all of them
    passed_over: int = 0  # times that it was to be asked, and was not
    excused: int = 0  # calls that were interrupted without being at fault


class EngineConfig(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """What the engine process needs to start. All limits are in tokens, blocks or rows."""

    model: str  # a GGUF file or a folder of safetensors, already resolved to a path
    device: str = "auto"  # "auto", "cpu" or "cuda"
    dtype: str = "auto"  # "auto", "float32" or "bfloat16"
    quantization: str = "none"  # "none", "int8" or, on a GPU, "fp8": of products of layers
    max_model_len: int | None = None  # None: what the model was trained for
    weight_cache_bytes: int = 4 << 30  # that dequantised weights may take on disk, for later starts
    block_size: int = 16  # tokens a KV block holds
    num_blocks: int | None = None  # None: from kv_cache_bytes
    kv_cache_bytes: int | None = None  # None: 1 GiB of the host; of a GPU what the next leaves
    gpu_memory_utilization: float = 0.9  # share of a GPU's memory that may be in use
    deterministic: bool = False  # no token depends on the other rows; so always on the CPU
    enforce_eager: bool = False  # compute decode passes launch by launch, not by captured graphs
    max_num_seqs: int = 64  # seats: rows that may run at once
    max_num_batched_tokens: int | None = None  # None: calibrated to step_time_s
    step_time_s: float = 0.075  # what a full step is calibrated to
    enable_prefix_caching: bool = True
    watermark: float = 0.01  # share of the pool that admissions leave free, unless policies say
    swap_bytes: int = 512 << 20  # host memory for preempted rows, taken as it is first used
    max_preemptions: int = 8  # of one row, before others are preferred as victims
    threads: int | None = None  # None: one a core
    cores: tuple[int, ...] | None = None  # that the engine stays on; None: no particular ones
    step_log: str | None = None  # a file for the times of the first steps
    step_log_goes_on: bool = False  # in what a former engine has logged; else it is written anew
    policies: PolicyConfig = PolicyConfig()
    # What former engines counted, which this one goes on from; quarantines stay until a release
    policy_faults: tuple[FaultCount, ...] = ()
    hook_uses: tuple[HookUse, ...] = ()
    log_level: str = "info"
    log_json: bool = True


class Sampling(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """How one row's tokens are chosen. `temperature` 0 is greedy and ignores the filters."""

    temperature: float = 1.0
    top_k: int = 0  # 0: off
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0  # off a token's logit once it is in the output
    frequency_penalty: float = 0.0  # for each time it is in the output
    repetition_penalty: float = 1.0  # divides positive logits of tokens in prompt or output
    seed: int = 0  # unsigned 64 bits; the front draws one where the client gave none
    logprobs: int | None = None  # None: none wanted; 0: the sampled token's alone; n: and the top n
    prompt_logprobs: int | None = None  # the prompt's own: None: unwanted; n: and the top n of each
    bias_ids: bytes = b""  # int32, each at most once
    biases: bytes = b""  # float32, added to the logits of these
    allowed_ids: bytes = b""  # int32, the only tokens that may be drawn; empty: all
    bad_words: tuple[tuple[int, ...], ...] = ()  # ids, none empty, that never follow in the output
    min_tokens: int = 0  # of the output, before one of `ending_ids` may be drawn
    ending_ids: tuple[int, ...] = ()


class Start(msgspec.Struct, frozen=True, array_like=True, tag="start"):
    """The first message: build a model and a scheduler from this."""

    config: EngineConfig


class Submit(msgspec.Struct, frozen=True, array_like=True, tag="submit", kw_only=True):
    """A prompt and the `n` rows that continue it: choices `choice` to `choice + n - 1`.

    The rows are called `request` to `request + n - 1`, and each gets its own tokens and end.
    `emitted` holds tokens that the client already has (after a restart); they count as output,
    and belong to one row.
    """

    request: int  # unique in the life of the front process, like the n - 1 numbers after it
    choice: int = 0  # part of the sampler's counter, so that choices differ under one seed
    n: int = 1
    prompt: bytes  # int32 token ids, at least one
    emitted: bytes = b""  # int32 token ids
    max_tokens: int  # at least one; emitted tokens count
    sampling: Sampling = Sampling()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    priority: int = 0  # lower is earlier
    tenant: str = ""  # whom it counts for where policies are fair; empty: nobody in particular
    cache_salt: str = ""  # rows share cached prefixes only within one salt
    credit: int | None = None  # tokens that the reader takes, over all rows; None: without limit
    deadline_s: float | None = None  # monotonic seconds, a clock that both processes share
    may_swap: bool = True
    may_recompute: bool = True
    ttft_target_s: float | None = None  # from arrival to the first token; None: no target
    tpot_target_s: float | None = None  # between tokens; None: no target


class Resubmit(msgspec.Struct, frozen=True, array_like=True, tag="resubmit"):
    """What is left of one `Submit` after the death of the engine that had it: a row each.

    They share one credit, the first one's, which is what is left of it.
    """

    rows: tuple[Submit, ...]  # at least one, each with its own `emitted`


class Cancel(msgspec.Struct, frozen=True, array_like=True, tag="cancel"):
    """The client is gone. Idempotent; unknown and finished requests are ignored."""

    request: int


class Finish(msgspec.Struct, frozen=True, array_like=True, tag="finish"):
    """The front found a stop string: a normal end after `tokens_kept` output tokens."""

    request: int
    tokens_kept: int


class Credit(msgspec.Struct, frozen=True, array_like=True, tag="credit"):
    """The reader of `request` takes `tokens` more, over all rows that were submitted with it."""

    request: int  # any row of the submit
    tokens: int


class Stall(msgspec.Struct, frozen=True, array_like=True, tag="stall"):
    """The reader of one row takes nothing until it is told otherwise; for rows without credit."""

    request: int
    is_stalled: bool


class Reprioritise(msgspec.Struct, frozen=True, array_like=True, tag="reprioritise"):
    """Another priority for one row."""

    request: int
    priority: int


class SetDeadline(msgspec.Struct, frozen=True, array_like=True, tag="set_deadline"):
    """Another deadline for one row; None: no deadline."""

    request: int
    deadline_s: float | None


class ResetPrefixCache(msgspec.Struct, frozen=True, array_like=True, tag="reset_prefix_cache"):
    """Forget every cached prefix. Running rows keep their blocks."""


class UseProfile(msgspec.Struct, frozen=True, array_like=True, tag="use_profile"):
    """Let these policies decide in place of the present ones. Answered by `PoliciesAnswer`.

    They are built and tried meanwhile; steps go on. Until the answer nothing has changed, and after
    an error nothing has. A policy that stays, of the same class and with equal options, keeps what
    it knows and what has been counted against it.
    """

    number: int  # of the question, for its answer
    config: PolicyConfig


class UseShadow(msgspec.Struct, frozen=True, array_like=True, tag="use_shadow"):
    """Ask these policies as well, and only compare; None: nobody. Answered by `PoliciesAnswer`."""

    number: int
    config: PolicyConfig | None


class ReleasePolicy(msgspec.Struct, frozen=True, array_like=True, tag="release_policy"):
    """Ask a quarantined policy again. Answered by `PoliciesAnswer`."""

    number: int
    policy: str


class DescribePolicies(msgspec.Struct, frozen=True, array_like=True, tag="describe_policies"):
    """Tell which policies decide, and how they fare. Answered by `PoliciesState`."""

    number: int


class Shutdown(msgspec.Struct, frozen=True, array_like=True, tag="shutdown"):
    """Leave the loop and exit with status 0."""


class Progress(msgspec.Struct, frozen=True, array_like=True, tag="progress"):
    """Start-up moved on: `done` of `total` units of `stage` (`total` 0: not countable)."""

    stage: str
    done: int = 0
    total: int = 0


class SamplingDefaults(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """What a client gets that says nothing of it: as the model's makers advise, else as here."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0


class Ready(msgspec.Struct, frozen=True, array_like=True, tag="ready", kw_only=True):
    """The engine serves. The figures are those in force, after every clamp."""

    max_model_len: int
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    num_blocks: int
    num_host_blocks: int
    block_size: int
    max_num_seqs: int
    max_num_batched_tokens: int
    device: str
    dtype: str
    load_s: float
    sampling: SamplingDefaults = SamplingDefaults()
    quantization: str = "none"


class Counters(msgspec.Struct, frozen=True, array_like=True):
    """The engine's state after a step, and totals since it started."""

    received: int = 0  # messages that it had handled before the step, all but `Start`
    running: int = 0  # seats taken, parked ones included
    waiting: int = 0
    parked: int = 0
    swapped: int = 0
    at_rest: bool = True  # nothing to do before a message comes: all that is left waits for credit
    free_blocks: int = 0
    cached_blocks: int = 0
    total_blocks: int = 0
    free_host_blocks: int = 0
    total_host_blocks: int = 0
    steps: int = 0
    preemptions: int = 0  # of both kinds
    swaps: int = 0  # preemptions that kept a copy on the host
    computed_tokens: int = 0  # by the model: prefills, recomputed ones included, and decodes
    recomputed_tokens: int = 0
    generated_tokens: int = 0
    prefix_queries: int = 0  # tokens looked up in the prefix index
    prefix_hits: int = 0  # tokens found there
    decisions_lost: int = 0  # records that the bounded log had no room for
    policy_faults: int = 0


class RowLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """Log-probabilities of one sampled token, before penalties, temperature and filters.

    `top_ids` (int32) and `top_logprobs` (float32) hold the wanted number of best tokens.
    """

    row: int  # index into the step's arrays
    logprob: float
    top_ids: bytes = b""
    top_logprobs: bytes = b""


class PromptScores(msgspec.Struct, frozen=True, array_like=True):
    """Log-probabilities of successive tokens of one prompt, given what comes before each.

    Parallel arrays, one element a token; of the best tokens `wanted` a token, best first.
    """

    request: int  # any row of the submit
    first: int  # index in the prompt of the first token that is scored
    logprobs: bytes  # float32
    ranks: bytes  # int32, 1: the most probable
    top_ids: bytes = b""  # int32
    top_logprobs: bytes = b""  # float32


class Decision(msgspec.Struct, frozen=True, array_like=True):
    """One record of the scheduler's decision log: `kind` and `facts` are its class and fields."""

    kind: str  # "arrived", "admitted", "preempted", "displaced", "resumed", "parked", ...
    request: int
    step_id: int
    time_s: float  # monotonic
    facts: dict[str, bool | int | float | str] = {}


class Step(msgspec.Struct, frozen=True, array_like=True, tag="step", kw_only=True):
    """All that one step brought, for all rows at once. Parallel arrays, one element a row.

    A row appears when it got a token or ended. The token of a row that ended without one is -1.
    """

    step_id: int
    requests: bytes = b""  # int64
    tokens: bytes = b""  # int32
    finished: bytes = b""  # uint8, values of `Finished`
    logprobs: tuple[RowLogprobs, ...] = ()
    prompt_scores: tuple[PromptScores, ...] = ()  # before the tokens of their rows
    admitted: bytes = b""  # int64, requests that got a seat in this step
    admitted_cached: bytes = b""  # int32, their prompt tokens found in the prefix cache
    preempted: bytes = b""  # int64, requests that lost their seat in this step
    decisions: tuple[Decision, ...] = ()  # since the last step, oldest first
    counters: Counters = Counters()
    policy_faults: tuple[FaultCount, ...] = ()  # all of them, in steps where one changed
    hook_uses: tuple[HookUse, ...] = ()  # all of them, once a second and before a rest
    patience_s: float = 0.0  # for which the engine may say nothing now; 0: as always


class Failed(msgspec.Struct, frozen=True, array_like=True, tag="failed"):
    """A failure with a sentence a client may read. `request` None: the engine itself failed."""

    message: str
    request: int | None = None


class PoliciesAnswer(msgspec.Struct, frozen=True, array_like=True, tag="policies_answer"):
    """What became of a change of policies."""

    number: int  # of the question
    error: str | None = None  # a sentence for the operator; None: it is done


class PoliciesState(msgspec.Struct, frozen=True, array_like=True, tag="policies_state"):
    """The answer to `DescribePolicies`."""

    number: int
    live: ProfileState
    shadow: ShadowState | None = None


ToEngine: TypeAlias = (
    Start
    | Submit
    | Resubmit
    | Cancel
    | Finish
    | Credit
    | Stall
    | Reprioritise
    | SetDeadline
    | ResetPrefixCache
    | UseProfile
    | UseShadow
    | ReleasePolicy
    | DescribePolicies
    | Shutdown
)
ToFront: TypeAlias = Progress | Ready | Step | Failed | PoliciesAnswer | PoliciesState
