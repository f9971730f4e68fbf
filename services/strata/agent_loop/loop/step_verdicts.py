"""What the tool rules decide about each call of one reply."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from strata.agent_loop.domain.conversation.messages import ToolReturn
from strata.agent_loop.domain.model.chat import ToolCall
from strata.agent_loop.domain.run.journal import StepRecord
from strata.agent_loop.domain.tools import ToolResult, ToolSet
from strata.agent_loop.loop.nested_calls import StateBeforeCode, labels_in
from strata.agent_loop.loop.turn_rules import CallVerdict, StepRules
from strata.agent_loop.rules.history import Called, made_by
from strata.shared.provenance import taint_of


class StepVerdicts:
    """Decides for each call of one reply whether it runs, and with which arguments.

    If no rule restricts which call may follow which, all calls are judged at once, each as if the
    calls before it ran. Otherwise they are judged sequentially: `judge_next` judges a call, and
    `finished` adds its return before the next one is judged.

    Args:
        rules: The rules.
        toolset: The tools that may be called.
        record: The reply.
        known_results: Results of calls that are not run, by call id.

    Attributes:
        sequential: Whether the calls are judged, and run, one after the other.
    """

    def __init__(
        self,
        rules: StepRules,
        toolset: ToolSet,
        record: StepRecord,
        known_results: Mapping[str, ToolResult],
    ) -> None:
        self._rules = rules
        self._toolset = toolset
        self._record = record
        # The state before the next call, if calls are judged sequentially.
        self._history = list(rules.history)
        self._tainted = rules.tainted
        self.sequential = rules.sequential and len(record.reply.tool_calls) > 1
        self._by_call = {} if self.sequential else self._judge_all(known_results)

    @property
    def overridden(self) -> dict[str, str]:
        """Arguments that a rule changed, by call id."""
        return {
            call.id: self._by_call[call.id].arguments
            for call in self._record.reply.tool_calls
            if call.id in self._by_call and self._by_call[call.id].arguments != call.arguments
        }

    def any_runs(self, calls: Sequence[ToolCall]) -> bool:
        """Returns whether one of the calls may run."""
        # Refused calls do not enter the history, so all are judged by the history before the reply.
        history, tainted = self._rules.history, self._rules.tainted
        verdicts = (
            self._by_call.get(call.id) or self._judge(call, history, tainted=tainted)
            for call in calls
        )
        return any(verdict.refusal is None for verdict in verdicts)

    def refusal(self, call: ToolCall) -> str | None:
        """Returns the error text of a refused call; None if it runs or is not judged yet."""
        verdict = self._by_call.get(call.id)
        return verdict.refusal if verdict is not None else None

    def arguments(self, call: ToolCall) -> str:
        """Returns the arguments that a judged call is run with."""
        return self._by_call[call.id].arguments

    def judge_next(self, call: ToolCall) -> None:
        """Judges a call by the returns of the calls before it."""
        self._by_call[call.id] = self._judge(call, self._history, tainted=self._tainted)

    def finished(self, call: ToolCall, tool_return: ToolReturn) -> None:
        """Adds the return of a call, before the next call is judged."""
        self._history += made_by(tool_return)
        # Both count: the labels of the return, such as a tainted memory, and the declared
        # source of the tool, as when approvals were decided.
        source = () if tool_return.provenance is None else (tool_return.provenance,)
        may_taint = self.refusal(call) is None and self._rules.taints(call, self._toolset)
        self._tainted = self._tainted or may_taint or bool(taint_of(source, tool_return.taint))

    def before_code(self, parent: ToolCall, results: Mapping[str, ToolResult]) -> StateBeforeCode:
        """Returns the state before the code of a call; parallel calls count as before it.

        Args:
            parent: The call whose code runs.
            results: The results so far, by call id.
        """
        history, tainted = self._history, self._tainted
        if not self.sequential:
            history, tainted = list(self._rules.history), self._rules.tainted
            for call in self._record.reply.tool_calls:
                if call is parent or self.refusal(call) is not None:
                    continue
                result = results.get(call.id)
                history += [Called(call.name)] if result is None else made_by(result.tool_return)
                tainted = tainted or self._rules.taints(call, self._toolset)
        snapshot = self._record.snapshot.after(results.values())
        return StateBeforeCode((*history, Called(parent.name)), tainted, snapshot)

    def _judge_all(self, known_results: Mapping[str, ToolResult]) -> dict[str, CallVerdict]:
        rules, verdicts = self._rules, {}
        history, tainted = list(rules.history), rules.tainted
        for call in self._record.reply.tool_calls:
            if call.id in known_results:
                result = known_results[call.id]
                verdicts[call.id] = CallVerdict(call.arguments)
                history += made_by(result.tool_return)
                tainted = tainted or bool(taint_of(labels_in(result)))
                continue
            verdicts[call.id] = self._judge(call, history, tainted=tainted)
            if verdicts[call.id].refusal is None:
                history.append(Called(call.name))
                tainted = tainted or rules.taints(call, self._toolset)
        return verdicts

    def _judge(self, call: ToolCall, before: Sequence[Called], *, tainted: bool) -> CallVerdict:
        reply = self._record.reply
        last = call is reply.tool_calls[-1]
        return self._rules.judge(
            call, before, self._toolset, reply.finish_reason, last=last, tainted=tainted
        )
