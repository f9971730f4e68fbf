"""Search by meaning and by words, for all services that have searchable texts.

- `service_settings`, `engines`: the settings, and the models and the vector index that they name
- `embedding`, `vectors`: embedding models, and the vector index
- `qdrant_wire`: the messages and stubs of Qdrant's gRPC API
- `fusion`, `learned_order`, `result_merge`, `reranking`: the order of the results
- `time_expressions`, `time_preference`: times that a query names
- `time_grammar`: the words and rules of times in six languages
- `query_tense`, `languages`: whether a query asks about the present; the language of a text
- `indexing`: writes texts to the index; `reindexing`: rebuilds it while it serves
- `upkeep`: wires the background tasks of both
- `pipeline`, `results`, `convert`: the steps of a search, its results, and their protos
"""
