"""The typed face of the hooks of the front process: what each is given, and what it may answer.

As in `policies.decisions`, an answer is checked before anybody acts on it. A gate that fails
refuses nobody; where the choice of whom to shed fails, the default chooses, which is the newcomer.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from cadenza.policies.arrivals import ArrivalColumns, Refusal, ServiceView
from cadenza.policies.builtin import DEFAULTS
from cadenza.policies.decisions import AnswerError, check_scores
from cadenza.policies.profile import GATE, Profile
from cadenza.policies.runner import PolicyRunner
from cadenza.policies.views import FloatArray

_SHED = "shed_load"
_REASON_CHARACTERS = 200
_LONGEST_RETRY_S = 86_400.0


class Refused(NamedTuple):
    """What a gate said, and which."""

    gate: str
    refusal: Refusal


class FrontDecisions:
    """Asks a profile's policies in the front process, one method a hook."""

    def __init__(self, profile: Profile, runner: PolicyRunner | None = None) -> None:
        """Ask through `runner`; None: one of its own, without time limits."""
        self._runner = runner or PolicyRunner(profile)
        self._shedders = tuple(dict.fromkeys((profile.names[_SHED], DEFAULTS[_SHED])))
        # Where no gate can have anything to say, and where the newcomer is refused in any case,
        # nobody need be asked
        plain = () if profile.options.get(DEFAULTS[GATE]) else (DEFAULTS[GATE],)
        self._gates = tuple(gate for gate in profile.gates if gate not in plain)
        self.may_refuse = bool(self._gates)
        self.may_shed = len(self._shedders) > 1

    def gate_arrivals(self, arrivals: ArrivalColumns, service: ServiceView) -> Refused | None:
        """The first refusal of any of the arrivals, of the first gate that has one."""
        for gate in self._gates:
            refusal = self.ask_gate(gate, arrivals, service)
            if refusal is not None:
                return Refused(gate, refusal)
        return None

    def ask_gate(self, gate: str, arrivals: ArrivalColumns, service: ServiceView) -> Refusal | None:
        """The first refusal of one gate."""
        check = partial(_check_refusals, len(arrivals))
        arguments = {"arrivals": arrivals, "service": service}
        return self._runner.ask(gate, GATE, check, arguments)

    def shed_load(self, waiting: ArrivalColumns, service: ServiceView) -> FloatArray:
        """float64 [waiting], highest is refused first; the newcomer is the last."""
        check = partial(check_scores, len(waiting))
        arguments = {"waiting": waiting, "service": service}
        for policy in self._shedders:
            answer = self._runner.ask(policy, _SHED, check, arguments)
            if answer is not None:
                return answer
        return np.zeros(len(waiting))


def _check_refusals(length: int, answers: Any) -> Refusal | None:
    """The first refusal that one gate's answer has, pluggy having put that into a list."""
    if not answers:
        return None
    (answer,) = answers
    if type(answer) not in (list, tuple):
        raise AnswerError(f"expected a list of refusals, got {type(answer).__name__}")
    if len(answer) != length:
        raise AnswerError(f"expected {length} refusals or None, got {len(answer)}")
    refusals = [_check_refusal(each) for each in answer if each is not None]
    return refusals[0] if refusals else None


def _check_refusal(refusal: Any) -> Refusal:
    if type(refusal) is not Refusal:
        raise AnswerError(f"expected a Refusal or None, got {type(refusal).__name__}")
    # No subclasses: what one does when it is compared is up to its author
    reason, limit, after_s = refusal.reason, refusal.limit, refusal.retry_after_s
    if type(reason) is not str or not 0 < len(reason) <= _REASON_CHARACTERS:
        raise AnswerError(f"a reason must be a text of 1 to {_REASON_CHARACTERS} characters")
    if not reason.isprintable():
        raise AnswerError("a reason must have characters that can be printed")
    if type(limit) is not str or limit not in ("tenant", "service"):
        raise AnswerError("the limit of a refusal must be 'tenant' or 'service'")
    if type(after_s) not in (int, float) or not 0 <= after_s <= _LONGEST_RETRY_S:
        raise AnswerError(f"retry_after_s must be a number from 0 to {_LONGEST_RETRY_S:.0f}")
    return replace(refusal)  # the policy may have kept its own
