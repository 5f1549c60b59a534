"""An observer of everything that checks whether what it is told fits together."""

from __future__ import annotations

from cadenza.policies import RequestColumns, StepView, hookimpl


class Witness:
    """Follows every request from its arrival; a contradiction is a fault, which lives count."""

    name = "witness"

    def __init__(self) -> None:
        self._seated: dict[int, bool] = {}
        self._back: list[int] = []  # of those admitted last, who had been preempted
        self._last: dict[str, int] = {}  # the step in which each was last told of

    @hookimpl
    def on_arrived(self, arrived: RequestColumns, step: StepView) -> None:
        self._once("arrived", step)
        for request, held, resumed, generated in zip(
            *(arrived.request.tolist(), arrived.blocks_held.tolist()),
            *(arrived.resumed.tolist(), arrived.generated_tokens.tolist()),
            strict=True,
        ):
            assert request not in self._seated
            assert resumed or not (held or generated)
            self._seated[request] = held > 0

    @hookimpl
    def on_preempted(self, preempted: RequestColumns, step: StepView) -> None:
        self._once("preempted", step)
        assert (preempted.preemptions > 0).all()
        self._move(preempted, True, False)

    @hookimpl
    def on_admitted(self, admitted: RequestColumns, step: StepView) -> None:
        self._once("admitted", step)
        self._move(admitted, False, True)
        self._back = admitted.request[admitted.preemptions > 0].tolist()

    @hookimpl
    def on_resumed(self, resumed: RequestColumns, step: StepView) -> None:
        self._once("resumed", step)
        assert self._last["admitted"] == step.step_id
        assert resumed.request.tolist() == self._back

    @hookimpl
    def on_generated(self, generated: RequestColumns, step: StepView) -> None:
        self._once("generated", step)
        self._move(generated, True, True)

    @hookimpl
    def on_finished(self, finished: RequestColumns, step: StepView) -> None:
        for request in finished.request.tolist():
            self._seated.pop(request, None)

    def _once(self, what: str, step: StepView) -> None:
        assert self._last.get(what) != step.step_id
        self._last[what] = step.step_id

    def _move(self, requests: RequestColumns, seated: bool, to: bool) -> None:
        """Choices that share a row go by the first one's number, and leave it one by one."""
        assert len(requests)
        for request in requests.request.tolist():
            assert self._seated.get(request, seated) is seated
            self._seated[request] = to
