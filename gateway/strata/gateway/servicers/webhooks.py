"""Servicer of `WebhookService`."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from strata.api.gateway.v1 import webhook_service_pb2 as pb
from strata.api.gateway.v1 import webhook_service_pb2_grpc as pb_grpc
from strata.gateway.runs.clients import AgentDirectory
from strata.gateway.runs.domain.runs import RunStore
from strata.gateway.webhooks import convert
from strata.gateway.webhooks.domain import NewWebhook, new_secret
from strata.gateway.webhooks.secrets import WebhookSecrets
from strata.gateway.webhooks.store import PostgresWebhookStore
from strata.shared.context import current_project
from strata.shared.db import Page, decode_page_token, page_limit
from strata.shared.ids import check_id, default_conversation_id, new_id
from strata.shared.web.errors import FetchError, ForbiddenUrlError
from strata.shared.web.url_guard import Guard, parse_url


class WebhookServicer(pb_grpc.WebhookServiceServicer):
    """The public API of webhooks.

    Args:
        store: The webhooks.
        runs: The runs.
        agents: Checks that agents exist.
        secrets: Encrypts the secrets.
        guard: Checks that addresses are allowed.
    """

    def __init__(
        self,
        store: PostgresWebhookStore,
        runs: RunStore,
        agents: AgentDirectory,
        secrets: WebhookSecrets,
        guard: Guard,
    ) -> None:
        self._store = store
        self._runs = runs
        self._agents = agents
        self._secrets = secrets
        self._guard = guard

    async def CreateWebhook(
        self, request: pb.CreateWebhookRequest, context: Any
    ) -> pb.CreateWebhookResponse:
        """Creates a webhook."""
        project_id = current_project()
        convert.check_webhook(request)
        try:
            target = parse_url(request.url)
            await self._guard.resolve(target)
        except ForbiddenUrlError as error:
            raise convert.wrong_url(error) from None
        except FetchError:
            # The name may resolve later; each attempt checks it again.
            pass
        if request.agent_id:
            conversation_id = default_conversation_id(request.agent_id)
            await self._agents.check(project_id, request.agent_id, conversation_id)
        if request.run_id:
            await self._runs.get(project_id, request.run_id)
        webhook_id, secret = new_id("webhook"), request.secret or new_secret()
        new = NewWebhook(
            webhook_id,
            target.url,
            tuple(dict.fromkeys(request.events)),
            request.agent_id,
            request.run_id,
            self._secrets.seal(project_id, webhook_id, secret),
            request.request_id or None,
            convert.digest(request),
        )
        webhook, is_new = await self._store.create(project_id, new)
        return pb.CreateWebhookResponse(
            webhook=convert.webhook_to_pb(webhook), secret=secret if is_new else ""
        )

    async def ListWebhooks(
        self, request: pb.ListWebhooksRequest, context: Any
    ) -> pb.ListWebhooksResponse:
        """Lists webhooks, newest first."""
        scope, limit = "webhooks", page_limit(request.page_size, maximum=500)
        key = decode_page_token(scope, request.page_token, (str,))
        webhooks = await self._store.list(
            current_project(), before=str(key[0]) if key else None, limit=limit + 1
        )
        page = Page.cut(webhooks, limit, scope, lambda webhook: (webhook.id,))
        return pb.ListWebhooksResponse(
            webhooks=map(convert.webhook_to_pb, page.rows), next_page_token=page.next_page_token
        )

    async def DeleteWebhook(
        self, request: pb.DeleteWebhookRequest, context: Any
    ) -> pb.DeleteWebhookResponse:
        """Deletes a webhook."""
        webhook_id = check_id(request.webhook_id, "webhook", field="webhook_id")
        await self._store.delete(current_project(), webhook_id)
        return pb.DeleteWebhookResponse()

    async def ListWebhookDeliveries(
        self, request: pb.ListWebhookDeliveriesRequest, context: Any
    ) -> pb.ListWebhookDeliveriesResponse:
        """Lists deliveries, newest first."""
        if request.webhook_id:
            check_id(request.webhook_id, "webhook", field="webhook_id")
        if request.run_id:
            check_id(request.run_id, "run", field="run_id")
        state = convert.state_of(request)
        scope = f"deliveries|{request.webhook_id}|{request.run_id}|{state or ''}"
        limit = page_limit(request.page_size, maximum=500)
        key = decode_page_token(scope, request.page_token, (datetime, str))
        before = None
        if key is not None:
            assert isinstance(key[0], datetime)
            before = (key[0], str(key[1]))
        deliveries = await self._store.deliveries(
            current_project(),
            webhook_id=request.webhook_id,
            run_id=request.run_id,
            state=state,
            before=before,
            limit=limit + 1,
        )
        page = Page.cut(
            deliveries, limit, scope, lambda delivery: (delivery.create_time, delivery.id)
        )
        return pb.ListWebhookDeliveriesResponse(
            deliveries=map(convert.delivery_to_pb, page.rows), next_page_token=page.next_page_token
        )

    async def RedeliverWebhook(
        self, request: pb.RedeliverWebhookRequest, context: Any
    ) -> pb.RedeliverWebhookResponse:
        """Sends a delivery again."""
        delivery_id = check_id(request.delivery_id, "delivery", field="delivery_id")
        delivery = await self._store.deliver_again(current_project(), delivery_id)
        return pb.RedeliverWebhookResponse(delivery=convert.delivery_to_pb(delivery))
