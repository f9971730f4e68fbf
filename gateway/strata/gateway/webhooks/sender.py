"""Sends deliveries: signed, to allowed addresses, with a limit per project."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from dataclasses import dataclass
from datetime import UTC

from strata.gateway.runs.convert.runs import run_to_pb
from strata.gateway.runs.domain.runs import NO_STOP_REASON, Run, RunStore
from strata.gateway.webhooks.domain import Attempt, AttemptResult, signature
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
    """

    max_concurrent: int = 64
    max_concurrent_of_project: int = 8


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
        self._active: Counter[str] = Counter()
        self._tasks: dict[str, asyncio.Task[None]] = {}
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
            for task in self._tasks.values():
                task.cancel()

    async def send_due(self) -> int:
        """Starts to send due deliveries, up to the limits; returns their number."""
        if len(self._tasks) >= self._terms.max_concurrent:
            return 0
        started = 0
        for project_id, delivery_ids in (await self._store.due(_BATCH)).items():
            for delivery_id in delivery_ids:
                full = len(self._tasks) >= self._terms.max_concurrent
                if full or self._active[project_id] >= self._terms.max_concurrent_of_project:
                    break
                if delivery_id not in self._tasks:
                    self._start(project_id, delivery_id)
                    started += 1
        return started

    async def wait_until_sent(self) -> None:
        """Waits until all active deliveries are done."""
        while self._tasks:
            await asyncio.wait(list(self._tasks.values()))

    def _start(self, project_id: str, delivery_id: str) -> None:
        task = asyncio.create_task(self._send(project_id, delivery_id))
        self._tasks[delivery_id] = task
        self._active[project_id] += 1

        def finish(_: object) -> None:
            del self._tasks[delivery_id]
            self._active[project_id] -= 1
            if not self._active[project_id]:
                del self._active[project_id]

        task.add_done_callback(finish)

    async def _send(self, project_id: str, delivery_id: str) -> None:
        with use(RequestContext(Caller("", project_id, _PRINCIPAL, partition=self._partition))):
            await self._attempt(project_id, delivery_id)

    async def _attempt(self, project_id: str, delivery_id: str) -> None:
        try:
            attempt = await self._store.take(project_id, delivery_id)
            if attempt is None:
                return
            result = await self._try(project_id, attempt)
            spread = random.uniform(0.8, 1.2)  # noqa: S311
            await self._store.note(project_id, attempt, result, spread=spread)
        except StrataError as error:
            # It is due again after its lease expires.
            _log.warning("delivery not completed", delivery_id=delivery_id, error=repr(error))
        except Exception:  # noqa: BLE001
            _log.exception("delivery not completed", delivery_id=delivery_id)

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
            response = await self._fetcher.fetch(attempt.url, credentials=headers, content=body)
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
