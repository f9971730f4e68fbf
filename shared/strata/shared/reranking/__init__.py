"""A second look at the best results: a model that reads question and text together.

Searching compares a text with a question by what each of them says alone. A cross-encoder
reads both at once, which is better and far slower, so it is given the best candidates only.
The implementation stands in a module of its own (`cross_encoder`), so that importing this
package loads no inference engine.
"""

from strata.shared.reranking.base import Outcome, Report, Reranker

__all__ = ["Outcome", "Report", "Reranker"]
