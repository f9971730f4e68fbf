"""Sends deliveries: signed, to addresses that may be reached, a few of each project at a time."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from dataclasses import dataclass
from datetime import UTC

from strata.gateway.runs.convert import run_to_pb
from strata.gateway.runs.domain import Run, RunStore
from strata.gateway.webhooks.domain import Attempt, Outcome, signature
from strata.gateway.webhooks.secrets import WebhookSecrets
from strata.gateway.webhooks.store import PostgresWebhookStore
from strata.shared.context import Caller, RequestContext, use
from strata.shared.errors import DataLossError, StrataError
from strata.shared.logs import get_logger
from strata.shared.web.errors import FetchError, ForbiddenUrlError
from strata.shared.web.fetching import Fetcher

_BATCH = 64
# In whose name receivers are looked up; it has no scopes and no token.
_PRINCIPAL = "webhooks"

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class SendTerms:
    """How deliveries are sent by one gateway.

    Attributes:
        poll_s: Pause between two looks, in seconds.
        at_once: Deliveries that are under way at once.
        of_project: Those of one project; a project whose receivers are slow fills no more.
    """

    poll_s: float = 1.0
    at_once: int = 64
    of_project: int = 8


class WebhookSender:
    """Sends what is due.

    Args:
        store: The queue.
        runs: What a delivery is about.
        secrets: Opens what requests are signed with.
        fetcher: Sends requests; it judges every address and follows no redirect of a POST.
        terms: Bounds.
    """

    def __init__(
        self,
        store: PostgresWebhookStore,
        runs: RunStore,
        secrets: WebhookSecrets,
        fetcher: Fetcher,
        terms: SendTerms,
    ) -> None:
        self._store = store
        self._runs = runs
        self._secrets = secrets
        self._fetcher = fetcher
        self._terms = terms
        self._under_way: Counter[str] = Counter()
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def keep_sending(self) -> None:
        """Looks for ever; what is under way when this is cancelled is cancelled too."""
        try:
            while True:
                try:
                    await self.send_due()
                except StrataError as error:
                    _log.warning("no look at deliveries of webhooks", error=repr(error))
                # So that gateways do not move in step.
                spread = random.uniform(0.8, 1.2)  # noqa: S311
                await asyncio.sleep(self._terms.poll_s * spread)
        finally:
            for task in self._tasks.values():
                task.cancel()

    async def send_due(self) -> int:
        """Begins to send what is due, as far as there is space; returns how many."""
        if len(self._tasks) >= self._terms.at_once:
            return 0
        begun = 0
        for project_id, delivery_ids in (await self._store.due(_BATCH)).items():
            for delivery_id in delivery_ids:
                full = len(self._tasks) >= self._terms.at_once
                if full or self._under_way[project_id] >= self._terms.of_project:
                    break
                if delivery_id not in self._tasks:
                    self._begin(project_id, delivery_id)
                    begun += 1
        return begun

    async def settled(self) -> None:
        """Waits for what is under way."""
        while self._tasks:
            await asyncio.wait(list(self._tasks.values()))

    def _begin(self, project_id: str, delivery_id: str) -> None:
        task = asyncio.create_task(self._send(project_id, delivery_id))
        self._tasks[delivery_id] = task
        self._under_way[project_id] += 1

        def over(_: object) -> None:
            del self._tasks[delivery_id]
            self._under_way[project_id] -= 1
            if not self._under_way[project_id]:
                del self._under_way[project_id]

        task.add_done_callback(over)

    async def _send(self, project_id: str, delivery_id: str) -> None:
        with use(RequestContext(Caller("", project_id, _PRINCIPAL))):
            await self._attempt(project_id, delivery_id)

    async def _attempt(self, project_id: str, delivery_id: str) -> None:
        try:
            attempt = await self._store.take(project_id, delivery_id)
            if attempt is None:
                return
            outcome = await self._try(project_id, attempt)
            spread = random.uniform(0.8, 1.2)  # noqa: S311
            await self._store.note(project_id, attempt, outcome, spread=spread)
        except StrataError as error:
            # It is due again when its lease has run out.
            _log.warning("delivery left", delivery_id=delivery_id, error=repr(error))
        except Exception:  # noqa: BLE001
            _log.exception("delivery left", delivery_id=delivery_id)

    async def _try(self, project_id: str, attempt: Attempt) -> Outcome:
        delivery = attempt.delivery
        body = payload(await self._runs.get(project_id, delivery.run_id), delivery.event)
        try:
            secret = self._secrets.open(project_id, delivery.webhook_id, attempt.sealed_secret)
            headers = {
                "webhook-id": delivery.id,
                "webhook-timestamp": str(attempt.timestamp),
                "webhook-signature": signature(secret, delivery.id, attempt.timestamp, body),
            }
            answer = await self._fetcher.fetch(attempt.url, credentials=headers, content=body)
        except (DataLossError, FetchError, ForbiddenUrlError) as error:
            return Outcome(0, error.message)
        if 200 <= answer.status < 300:
            return Outcome(answer.status)
        return Outcome(answer.status, f"The receiver answered {answer.status_text}.")


def payload(run: Run, event: str) -> bytes:
    """Returns the body of a delivery; the same for each attempt, as the run is over."""
    wire = run_to_pb(run)
    usage = run.usage
    failure = run.failure
    finished = (run.finish_time or run.create_time).astimezone(UTC)
    content = {
        "type": event,
        "timestamp": finished.isoformat(),
        "data": {
            "run_id": run.id,
            "agent_id": run.agent_id,
            "conversation_id": run.conversation_id,
            "request_id": run.request_id,
            "parent_run_id": run.parent_run_id,
            "kind": run.kind.value,
            "state": run.state.value,
            "stop_reason": run.stop_reason.value,
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
            "create_time": wire.create_time.ToJsonString(),
            "finish_time": wire.finish_time.ToJsonString(),
        },
    }
    return json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode()
