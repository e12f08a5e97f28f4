/**
 * The shapes of the server's answers; `/openapi.json` describes them in full.
 *
 * @typedef {string | number | boolean} Scalar
 * @typedef {Scalar | Scalar[] | null} Value
 * @typedef {{rank: number | null, score: number}} StageRank
 *
 * @typedef {object} Hit
 * @property {number} rank
 * @property {string} id
 * @property {number} score
 * @property {string} title
 * @property {string} text
 * @property {Record<string, Value>} metadata
 * @property {string} [best_sentence]
 * @property {string[]} [matched_words]
 * @property {Record<string, StageRank>} [stages]
 *
 * @typedef {object} IndexCard
 * @property {string} name
 * @property {number} documents
 * @property {number} passages
 * @property {number} dim
 * @property {string[]} modes
 * @property {boolean} reranks
 * @property {string | null} model
 * @property {Record<string, string>} columns  Types by name, such as "int64" or "list[string]".
 * @property {string} reload_error
 * @property {string} migrating_to  Model of a migration that has not switched yet, or "".
 * @property {number} migration_left  Passages that it has not embedded yet.
 *
 * @typedef {object} Facet
 * @property {string} column
 * @property {{value: Scalar, count: number}[]} values
 * @property {number} other
 * @property {number} missing
 * @property {Scalar | null} low
 * @property {Scalar | null} high
 * @property {{low: Scalar, high: Scalar, count: number}[]} ranges
 * @property {number} total  Documents that match, with or without a value.
 *
 * @typedef {object} StoredDocument
 * @property {string} id
 * @property {string} title
 * @property {string} text
 * @property {Record<string, Value>} metadata
 *
 * What the address of the page says.
 *
 * @typedef {"" | "dense" | "lexical" | "hybrid" | "rerank"} Mode  "": that of the server.
 *
 * @typedef {object} ColumnFilter
 * @property {string[]} values  Any of these; [] means all.
 * @property {string} low
 * @property {string} high
 * @property {string} contains
 *
 * @typedef {object} State
 * @property {string} index  Name of the index; "": the first one.
 * @property {string} query
 * @property {Mode} mode
 * @property {string} sort  Column, after "-" in descending order; "": by score.
 * @property {Map<string, ColumnFilter>} filters
 * @property {string} like  Id of a document whose similar ones are shown; "": none.
 * @property {string} open  Id of the document that is open; "": none.
 * @property {number} k  Number of results.
 */
export {};
