"""PromptService: the system prompts that agents can be created with."""

from __future__ import annotations

import asyncio
from typing import Any

from strata.agent_loop.prompts.library import LibraryPrompt, PromptLibrary
from strata.api.agent_loop.v1 import prompt_service_pb2 as pb
from strata.api.agent_loop.v1 import prompt_service_pb2_grpc as pb_grpc

Context = Any


class PromptServicer(pb_grpc.PromptServiceServicer):
    """Lists and shows prompts."""

    def __init__(self, library: PromptLibrary) -> None:
        self._library = library

    async def ListPrompts(
        self, request: pb.ListPromptsRequest, context: Context
    ) -> pb.ListPromptsResponse:
        """Lists the prompts without their texts."""
        listing = await asyncio.to_thread(self._library.list)
        return pb.ListPromptsResponse(
            prompts=[_prompt(prompt, with_text=False) for prompt in listing.prompts],
            more=listing.more,
        )

    async def GetPrompt(
        self, request: pb.GetPromptRequest, context: Context
    ) -> pb.GetPromptResponse:
        """Returns a prompt with its text."""
        prompt = await asyncio.to_thread(self._library.get, request.key)
        return pb.GetPromptResponse(prompt=_prompt(prompt, with_text=True))


def _prompt(prompt: LibraryPrompt, *, with_text: bool) -> pb.Prompt:
    return pb.Prompt(
        key=prompt.key,
        builtin=prompt.builtin,
        description=prompt.description,
        characters=len(prompt.text),
        problem=prompt.problem,
        text=prompt.text if with_text else "",
    )
