"""Preset for DeepSeek. Its models think by default, and refuse forced calls while thinking is on.

If thinking is on and tools are offered, every earlier reply must have its reasoning.
"""

from __future__ import annotations

from strata.agent_loop.domain.model.quirks import Quirks, ReplyForm
from strata.agent_loop.models.known_models import rows
from strata.agent_loop.models.presets.base import Preset

PRESET = Preset(
    name="deepseek",
    title="DeepSeek",
    variables="DEEPSEEK",
    base_url="https://api.deepseek.com",
    quirks=Quirks(
        thinking_toggle=True,
        reasoning_field="reasoning_content",
        json_replies=ReplyForm.OBJECT,
        # Not documented for one request together.
        json_with_tools=False,
    ),
    known_models=rows(1_000_000, 384_000, ["deepseek-v4-flash", "deepseek-v4-pro"]),
)
