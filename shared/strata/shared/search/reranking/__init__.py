"""Reranking of the best search results by a model that reads query and text together.

A vector search compares vectors that were made of query and text separately. A cross-encoder
reads both at once, which is better and much slower, so it scores the best candidates only.
The implementation is in a separate module (`cross_encoder`), so that importing this
package loads no inference engine.
"""

from strata.shared.search.reranking.base import Reranker, RerankingOutcome, RerankingReport

__all__ = ["Reranker", "RerankingOutcome", "RerankingReport"]
