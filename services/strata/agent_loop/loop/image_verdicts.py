"""Remembers which images the providers of models have accepted or refused.

An image that a provider refuses stays in the window and would make each later request fail. If it
is known, the others are still shown. The memory of a process is enough: what was forgotten is
refused once more.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from strata.shared.context import calling_project

_MAX_IMAGES = 20_000


class ImageVerdicts:
    """Verdicts on images by project, model and image. Keeps only the most recently used ones."""

    def __init__(self, max_images: int = _MAX_IMAGES) -> None:
        self._accepted: OrderedDict[tuple[str, str, str], bool] = OrderedDict()
        self._max_images = max_images

    def refused(self, handle: str, image_ids: Iterable[str]) -> frozenset[str]:
        """Returns the images that a model's provider has refused."""
        return frozenset(id_ for id_ in image_ids if self._verdict(handle, id_) is False)

    def not_accepted(self, handle: str, image_ids: Iterable[str]) -> frozenset[str]:
        """Returns the images that no request to a model has shown with success."""
        return frozenset(id_ for id_ in image_ids if self._verdict(handle, id_) is not True)

    def note(self, handle: str, image_ids: Iterable[str], *, accepted: bool) -> None:
        """Notes that a model's provider has accepted or refused images."""
        project = calling_project()
        for image_id in image_ids:
            self._accepted[project, handle, image_id] = accepted
            self._accepted.move_to_end((project, handle, image_id))
        while len(self._accepted) > self._max_images:
            self._accepted.popitem(last=False)

    def _verdict(self, handle: str, image_id: str) -> bool | None:
        return self._accepted.get((calling_project(), handle, image_id))
