"""The picture of a context window."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from strata.api.agent_loop.v1 import agent_service_pb2 as pb
from strata.cli.context_picture import picture

NAMES = ["system", "blocks", "files", "rules", "metadata", "tools", "summary", "messages"]


def window(tokens: list[int], size: int, limit: int = 0) -> pb.GetContextWindowResponse:
    return pb.GetContextWindowResponse(
        context_window=size,
        used_tokens=sum(tokens),
        parts=[
            pb.ContextWindowPart(name=name, tokens=count, count=2)
            for name, count in zip(NAMES, tokens, strict=True)
        ],
        estimated=True,
        compaction_tokens=limit,
    )


def test_effects_of_the_next_turn_are_listed() -> None:
    shown = window([250, 125, 500, 0, 0, 125, 0, 250], 1000, 900)
    shown.files_to_close.extend(["docs/a.txt", "docs/b\x1b[31m.txt"])
    shown.compaction_due = True
    _, _, closes, compacts, blank, *_ = (line.plain for line in picture(shown, 42))
    assert closes.startswith(" the next turn closes docs/a.txt, docs/b")
    assert "\x1b" not in closes
    assert compacts == " the next turn replaces older messages with a summary"
    assert blank == ""


def test_each_part_is_drawn_with_its_share_and_the_limit() -> None:
    lines_shown = window([250, 125, 0, 0, 0, 125, 0, 250], 1000, 900)
    bar, total, blank, *legend = (line.plain for line in picture(lines_shown, 42))

    assert bar == " " + "█" * 30 + "░" * 6 + "┊" + "░" * 3
    assert total == " about 750 of 1,000 tokens (75%), compacted from 900 on"
    assert blank == ""
    assert legend == [
        " █ system          250   25%",
        " █ blocks          125   12%   2 blocks",
        " █ tools           125   12%   2 tools",
        " █ messages        250   25%   2 messages",
    ]


@given(
    st.lists(st.integers(0, 50_000), min_size=8, max_size=8),
    st.integers(0, 200_000),
    st.integers(0, 200_000),
    st.integers(1, 200),
)
def test_the_bar_fills_the_width_of_the_screen(
    tokens: list[int], size: int, limit: int, width: int
) -> None:
    bar, *rest = picture(window(tokens, size, limit), width)
    cells = max(10, min(72, width - 2))
    assert len(bar.plain) == cells + 1
    assert len(rest) == 2 + sum(token > 0 for token in tokens)
    coloured = {str(span.style) for span in bar.spans if span.end > span.start}
    assert len(coloured - {"bright_black"}) >= sum(
        count > 0 for name, count in zip(NAMES, tokens, strict=True) if name != "metadata"
    )
