"""guidellm, with synthetic prompts over either endpoint."""

from __future__ import annotations

import json
from collections.abc import Iterator

from tests.clients.case import Result, Setting, expect, judged, run
from tests.clients.venvs import pinned, torch, venv

NUM, OUTPUT = 6, 16
CASES = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}


def cases(setting: Setting) -> Iterator[Result]:
    """Each endpoint, as the client's own report has it."""
    for name, path in CASES.items():
        yield judged(f"guidellm: {name}", lambda path=path: _load(setting, path))


def _load(setting: Setting, path: str) -> None:
    report = setting.scratch / "guidellm.json"
    backend = f"kind=openai_http,target={setting.url},model={setting.model}"
    command = [
        venv("guidellm", torch(), [pinned("guidellm")]) / "guidellm",
        *("run", "--backend", f"{backend},request_format={path}"),
        *("--tokenizer", f"kind=huggingface_auto,model={setting.tokenizer}"),
        *("--data", f"kind=synthetic_text,prompt_tokens=64,output_tokens={OUTPUT}"),
        *("--profile", "kind=concurrent,streams=2"),
        *("--constraint", f"kind=max_requests,count={NUM}", "--disable-progress"),
        *("--output", f"kind=json,path={report}"),
    ]
    run(command, HF_HUB_OFFLINE="1")
    requests = json.loads(report.read_text())["benchmarks"][0]["requests"]
    expect({name: len(each) for name, each in requests.items() if each}, {"successful": NUM}, "end")
    expect({each["output_tokens"] for each in requests["successful"]}, {OUTPUT}, "tokens")
