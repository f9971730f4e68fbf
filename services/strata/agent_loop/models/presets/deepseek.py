"""DeepSeek. Its models think unless told not to, and refuse forced calls while they think.

While they think and tools are offered, every earlier reply must have its reasoning.
"""

from __future__ import annotations

from strata.agent_loop.models.presets.base import Preset
from strata.agent_loop.models.quirks import Quirks, ReplyForm

PRESET = Preset(
    name="deepseek",
    title="DeepSeek",
    variables="DEEPSEEK",
    base_url="https://api.deepseek.com",
    quirks=Quirks(
        thinking_toggle=True,
        reasoning_field="reasoning_content",
        json_replies=ReplyForm.OBJECT,
        # Nothing is documented about both in one request.
        json_with_tools=False,
    ),
)
