"""Sends deliveries: signed, to allowed addresses, with a limit per project."""

from __future__ import annotations

import asyncio
import json
import random
from dataclasses import dataclass
from datetime import UTC

from strata.gateway.runs.convert.runs import run_to_pb
from strata.gateway.runs.domain.runs import NO_STOP_REASON, Run, RunStore
from strata.gateway.webhooks.domain import Attempt, AttemptResult, DueDelivery, signature
from strata.gateway.webhooks.secrets import WebhookSecrets
from strata.gateway.webhooks.store import PostgresWebhookStore
from strata.protocol.errors import DataLossError, StrataError
from strata.shared.context import Caller, RequestContext, use
from strata.shared.logs import get_logger
from strata.shared.partitions import DEFAULT_PARTITION
from strata.shared.polling import keep_working
from strata.shared.web.errors import FetchError, ForbiddenUrlError
from strata.shared.web.fetcher import Fetcher

_BATCH = 64
_MOST_OUTCOMES = 10_000
# Principal of the requests to receivers; it has no scopes and no token.
_PRINCIPAL = "webhooks"

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class SendTerms:
    """Limits for sending deliveries.

    Attributes:
        max_concurrent: Maximum number of concurrent deliveries of this gateway.
        max_concurrent_of_project: Maximum number of concurrent deliveries of one project, so that
            slow receivers do not block other projects.
        max_failing_of_project: Maximum number of concurrent deliveries of one project to webhooks
            whose last attempt failed, so that they do not block its other webhooks. Each such
            webhook gets one at a time, as does one that has had no attempt of this gateway.
        slow_after_s: Seconds after which a delivery without an answer is slow. Until it ends, its
            webhook counts as one whose last attempt failed.
        max_slow_of_project: Maximum number of slow deliveries of one project that do not count
            towards `max_concurrent_of_project`, so that webhooks that begin to hang do not block
            its other webhooks until the time limit of a request.
    """

    max_concurrent: int = 64
    max_concurrent_of_project: int = 8
    max_failing_of_project: int = 4
    slow_after_s: float = 1.0
    max_slow_of_project: int = 8


@dataclass(slots=True)
class _ActiveDelivery:
    """A delivery that is being sent."""

    project_id: str
    webhook_id: str
    task: asyncio.Task[bool]
    is_slow: bool = False


@dataclass(frozen=True, slots=True)
class _Outcome:
    """The outcome of the last attempt of a webhook.

    Attributes:
        project_id: The project of the webhook.
        failed: Whether it failed, or is slow.
    """

    project_id: str
    failed: bool


class WebhookSender:
    """Sends due deliveries.

    Args:
        store: The queue of deliveries.
        runs: The runs that deliveries are about.
        secrets: Decrypts the signing secrets.
        fetcher: Sends requests; it checks every address and follows no redirect of a POST.
        terms: Limits.
        partition: The partition of the projects.
    """

    def __init__(
        self,
        store: PostgresWebhookStore,
        runs: RunStore,
        secrets: WebhookSecrets,
        fetcher: Fetcher,
        terms: SendTerms,
        partition: str = DEFAULT_PARTITION,
    ) -> None:
        self._partition = partition
        self._store = store
        self._runs = runs
        self._secrets = secrets
        self._fetcher = fetcher
        self._terms = terms
        self._active: dict[str, _ActiveDelivery] = {}
        # Of webhooks that this gateway has attempted, the latest last.
        self._outcomes: dict[str, _Outcome] = {}
        self._limited = False
        self._wake = asyncio.Event()

    def wake(self) -> None:
        """Signals that deliveries are due."""
        self._wake.set()

    async def keep_sending(self) -> None:
        """Sends due deliveries each time it is woken, until it is cancelled.

        A cancellation also cancels active deliveries.
        """
        try:
            await keep_working(self.send_due, self._wake, "due deliveries of webhooks not sent")
        finally:
            for active in self._active.values():
                active.task.cancel()

    async def send_due(self) -> int:
        """Starts to send due deliveries, up to the limits; returns their number.

        If a limit is reached, the end of each active delivery wakes the sender.
        """
        self._limited = self._all_slots_used()
        if self._limited:
            return 0
        started = 0
        for project_id in await self._store.due(_BATCH):
            while newly_started := await self._start_some(project_id):
                started += newly_started
        return started

    async def wait_until_sent(self) -> None:
        """Waits until all active deliveries are done."""
        while self._active:
            await asyncio.wait([active.task for active in self._active.values()])

    def _all_slots_used(self) -> bool:
        return len(self._active) >= self._terms.max_concurrent

    def _has_slot(self, project_id: str) -> bool:
        """Returns whether another delivery of a project may be sent now."""
        are_slow = [
            active.is_slow for active in self._active.values() if active.project_id == project_id
        ]
        of_project = len(are_slow) - min(sum(are_slow), self._terms.max_slow_of_project)
        has_slot = not self._all_slots_used() and of_project < self._terms.max_concurrent_of_project
        self._limited |= not has_slot
        return has_slot

    def _full_webhooks(self, project_id: str) -> set[str]:
        """Returns the webhooks of a project to which no more deliveries may be sent now."""
        attempted = {
            active.webhook_id
            for active in self._active.values()
            if active.project_id == project_id and not self._has_succeeded(active.webhook_id)
        }
        self._limited |= bool(attempted)
        if sum(webhook in self._outcomes for webhook in attempted) < (
            self._terms.max_failing_of_project
        ):
            return attempted
        return attempted | {
            webhook
            for webhook, outcome in self._outcomes.items()
            if outcome.failed and outcome.project_id == project_id
        }

    def _has_succeeded(self, webhook_id: str) -> bool:
        """Returns whether the last attempt of a webhook by this gateway succeeded."""
        outcome = self._outcomes.get(webhook_id)
        return outcome is not None and not outcome.failed

    async def _start_some(self, project_id: str) -> int:
        """Starts to send due deliveries of a project; returns their number, 0 at its limits."""
        if not self._has_slot(project_id):
            return 0
        due = await self._store.due_of(
            project_id,
            # Some of them may be active, until their attempt is counted.
            2 * self._terms.max_concurrent_of_project,
            without_webhooks=self._full_webhooks(project_id),
        )
        started = 0
        for delivery in due:
            if not self._has_slot(project_id):
                break
            is_active = delivery.id in self._active
            if not is_active and delivery.webhook_id not in self._full_webhooks(project_id):
                self._start(project_id, delivery)
                started += 1
        return started

    def _start(self, project_id: str, delivery: DueDelivery) -> None:
        task = asyncio.create_task(self._send(project_id, delivery.id))
        active = _ActiveDelivery(project_id, delivery.webhook_id, task)
        self._active[delivery.id] = active

        def note_slow() -> None:
            active.is_slow = True
            self._note_outcome(project_id, delivery.webhook_id, failed=True)
            if self._limited:
                self.wake()

        slow_timer = asyncio.get_running_loop().call_later(self._terms.slow_after_s, note_slow)

        def finish(ended: asyncio.Task[bool]) -> None:
            slow_timer.cancel()
            del self._active[delivery.id]
            # A delivery that could not be completed waits for the next poll.
            if self._limited and not ended.cancelled() and ended.result():
                self.wake()

        task.add_done_callback(finish)

    def _note_outcome(self, project_id: str, webhook_id: str, *, failed: bool) -> None:
        self._outcomes.pop(webhook_id, None)
        self._outcomes[webhook_id] = _Outcome(project_id, failed)
        if len(self._outcomes) > _MOST_OUTCOMES:
            del self._outcomes[next(iter(self._outcomes))]

    async def _send(self, project_id: str, delivery_id: str) -> bool:
        """Attempts a delivery; returns whether the attempt could be completed."""
        with use(RequestContext(Caller("", project_id, _PRINCIPAL, partition=self._partition))):
            try:
                await self._attempt(project_id, delivery_id)
            except StrataError as error:
                # It is due again after its lease expires.
                _log.warning("delivery not completed", delivery_id=delivery_id, error=repr(error))
            except Exception:  # noqa: BLE001
                _log.exception("delivery not completed", delivery_id=delivery_id)
            else:
                return True
        return False

    async def _attempt(self, project_id: str, delivery_id: str) -> None:
        attempt = await self._store.take(project_id, delivery_id)
        if attempt is None:
            return
        result = await self._try(project_id, attempt)
        webhook_id = attempt.delivery.webhook_id
        self._note_outcome(project_id, webhook_id, failed=not result.delivered)
        spread = random.uniform(0.8, 1.2)  # noqa: S311
        await self._store.note(project_id, attempt, result, spread=spread)

    async def _try(self, project_id: str, attempt: Attempt) -> AttemptResult:
        delivery = attempt.delivery
        body = payload(await self._runs.get(project_id, delivery.run_id), delivery.event)
        try:
            secret = self._secrets.open(project_id, delivery.webhook_id, attempt.sealed_secret)
            headers = {
                "webhook-id": delivery.id,
                "webhook-timestamp": str(attempt.timestamp),
                "webhook-signature": signature(secret, delivery.id, attempt.timestamp, body),
            }
            # Only the status counts: a receiver that has accepted the event must not get it again
            # because its body does not end or cannot be read.
            response = await self._fetcher.fetch(
                attempt.url, credentials=headers, content=body, reads_body=False
            )
        except (DataLossError, FetchError, ForbiddenUrlError) as error:
            return AttemptResult(0, error.message)
        if 200 <= response.status < 300:
            return AttemptResult(response.status)
        return AttemptResult(response.status, f"The receiver answered {response.status_text}.")


def payload(run: Run, event: str) -> bytes:
    """Returns the body of a delivery; equal for each attempt, because the run has ended."""
    message = run_to_pb(run)
    usage = run.usage
    failure = run.failure
    finished = (run.finish_time or run.create_time).astimezone(UTC)
    content = {
        "type": event,
        "timestamp": finished.isoformat(),
        "data": {
            "run_id": run.id,
            "agent_id": message.agent_id,
            "conversation_id": message.conversation_id,
            "group_id": message.group_id,
            "request_id": run.request_id,
            "parent_run_id": run.parent_run_id,
            "kind": run.kind.value,
            "state": run.state.value,
            "stop_reason": run.stop_reason.name if run.stop_reason else NO_STOP_REASON,
            "error": None
            if failure is None
            else {
                "reason": failure.reason,
                "message": failure.message,
                "retryable": failure.retryable,
            },
            "step_count": run.step_count,
            "usage": {
                "prompt_tokens": usage.prompt_tokens,
                "completion_tokens": usage.completion_tokens,
                "total_tokens": usage.total_tokens,
            },
            "create_time": message.create_time.ToJsonString(),
            "finish_time": message.finish_time.ToJsonString(),
        },
    }
    return json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode()
