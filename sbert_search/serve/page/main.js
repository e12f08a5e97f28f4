/** The page: from its address to requests, and from their answers to what is shown. */

import { PAGE_SIZE, noFilter, read, write } from "./address.js";
import { ApiError, Newest, ask } from "./api.js";
import { showDocument } from "./document.js";
import { byId, count, make, shown } from "./dom.js";
import { showFilters } from "./filters.js";
import { focusBox, listenToKeys } from "./keyboard.js";
import { modeIn, modesOf, showModes } from "./modes.js";
import { showHits, titles } from "./results.js";
import { listenToTheme } from "./appearance.js";
import { askToken } from "./token.js";
import { where } from "./where.js";

/** @typedef {import("./types.js").State} State */
/** @typedef {import("./types.js").Hit} Hit */
/** @typedef {import("./types.js").IndexCard} IndexCard */

const TYPING_MS = 150; // pause after which a query is sent
const RERANKED_TYPING_MS = 500;
const RERANK_DEPTH = 30; // results that the reranker reads: it is slow on a CPU

/** @type {State} */
let state = read(location.search);
/** @type {IndexCard[]} */
let indexes = [];
let mostHits = PAGE_SIZE; // `--max-k` of the server
/** @type {State["mode"]} */
let servedMode = ""; // `--mode` of the server
/** @type {Hit[]} */
let hits = [];
/** @type {string | null} */
let suggestion = null; // the query without its typing errors
let waiting = 0; // the timer of a pause
let typing = false; // whether the present entry of the history was made by typing

const searches = new Newest();
const counts = new Newest();
const documents = new Newest();

const index = () => indexes.find((one) => one.name === state.index) ?? indexes[0];
const mode = () => modeIn(index(), state.mode || servedMode);
/** The mode that finds the documents, which the mode "Reranked" orders again. */
const finding = () => (mode() === "rerank" ? modeIn(index(), servedMode) : mode());
/** The column that orders the results, if the index has it. */
const sort = () => (orders().some(([order]) => order === state.sort) ? state.sort : "");
const orders = () => {
  const columns = Object.entries(index().columns).filter(([, type]) => !type.startsWith("list["));
  const names = new Set([...columns.map(([name]) => name), "title"]);
  const both = [...names].flatMap((name) => [
    [name, `${name}, ascending`],
    [`-${name}`, `${name}, descending`],
  ]);
  return [["", "best match"], ...both];
};
const wanted = () => Math.min(state.k, mostHits);
const filter = (/** @type {string} */ without = "") =>
  where(state.filters, index().columns, without);

/**
 * Move to another state.
 *
 * @param {Partial<State>} change
 * @param {{typed?: boolean, pauseMs?: number}} [how]  typed: by typing, of which the history keeps
 *   the last state only.
 */
function go(change, { typed = false, pauseMs = 0 } = {}) {
  const before = state;
  state = { ...state, ...change };
  const moved = { opened: Boolean(state.open && !before.open) };
  if (typed && typing) history.replaceState(history.state, "", write(state));
  else history.pushState(moved, "", write(state));
  typing = typed;
  show(before, pauseMs);
}

/**
 * @param {State | null} before  What is shown now; null: nothing.
 * @param {number} pauseMs
 */
function show(before, pauseMs = 0) {
  showControls();
  if (!before || before.open !== state.open || before.index !== state.index) openDocument();
  /** @param {State} one */
  const searched = (one) => write({ ...one, open: "" });
  if (before && searched(before) === searched(state)) return;
  clearTimeout(waiting);
  searches.restart();
  counts.restart();
  waiting = setTimeout(() => {
    search();
    countValues();
  }, pauseMs);
}

function showControls() {
  const now = index();
  const box = byId("query");
  if (box.value !== state.query) box.value = state.query;
  document.title = state.query ? `${state.query} · ${now.name}` : now.name;
  byId("index-name").textContent = now.name;
  byId("index-name").classList.toggle("unseen", indexes.length > 1);
  byId("index-choice").hidden = indexes.length < 2;
  byId("index").value = now.name;
  byId("facts").textContent = `${count(now.documents)} documents`;
  showModes(byId("modes"), now, mode(), (chosen) => go({ mode: chosen, k: PAGE_SIZE }));
  byId("filters").hidden = Object.keys(now.columns).length === 0;
  const n = [...state.filters.keys()].filter((column) => column in now.columns).length;
  byId("filter-count").textContent = n ? `(${n})` : "";
  const options = orders().map(([value, name]) => make("option", { value }, name));
  byId("sort").replaceChildren(...options);
  byId("sort").value = sort();
  const like = byId("similar-to");
  like.hidden = !state.like;
  like.replaceChildren(
    "Documents like ",
    make("b", {}, hits.find((hit) => hit.id === state.like)?.title || state.like),
    make("button", { type: "button", className: "quiet", onclick: endLike }, "Back to the search"),
  );
}

const isQuery = () => Boolean(state.query.trim());
const endLike = () => go({ like: "", k: PAGE_SIZE });

async function search() {
  const empty = !state.like && !isQuery() && !filter() && !sort();
  byId("welcome").hidden = !empty;
  if (empty) return welcome();
  byId("hits").classList.add("waiting");
  const request = searchRequest();
  await tell(async () => {
    const done = await searches.run((signal) => ask(request.path, request.body, signal));
    if (done === null) return;
    hits = done.answer.hits ?? done.answer.results[0].hits;
    suggestion = done.answer.hits ? null : done.answer.results[0].suggestion;
    showResults(done.serverMs, done.totalMs);
  }, search);
}

function searchRequest() {
  const about = { index: index().name, k: wanted(), where: filter(), sort: sort() ? [sort()] : null };
  if (state.like) return { path: "similar", body: { ...about, like: [state.like] } };
  if (!isQuery()) return { path: "search", body: about };
  const reranked = mode() === "rerank";
  const asked = {
    ...about,
    query: state.query,
    mode: finding(),
    rerank: reranked,
    highlight: true,
    explain: true,
  };
  return { path: "search", body: reranked ? { ...asked, rerank_depth: RERANK_DEPTH } : asked };
}

/**
 * @param {number} serverMs
 * @param {number} totalMs
 */
function showResults(serverMs, totalMs) {
  const list = byId("hits");
  list.classList.remove("waiting");
  byId("problem").hidden = true;
  showHits(list, hits, {
    open: (id) => go({ open: id }),
    like: (id) => go({ like: id, open: "", k: PAGE_SIZE }),
    scored: Boolean(state.like) || isQuery(),
  });
  if (left) titles(list)[hits.findIndex((hit) => hit.id === left)]?.focus();
  left = "";
  const about = state.filters.size ? " with these filters" : "";
  byId("status").textContent = hits.length
    ? `${count(hits.length)} ${hits.length === 1 ? "result" : "results"}${about}`
    : `No document was found${about}.`;
  showSuggestion();
  byId("latency").textContent = `server ${ms(serverMs)} · round trip ${ms(totalMs)}`;
  byId("more").hidden = hits.length < wanted() || wanted() >= mostHits;
}

function showSuggestion() {
  const query = suggestion ?? "";
  const again = { type: "button", className: "quiet", onclick: () => go({ query, k: PAGE_SIZE }) };
  byId("suggestion").hidden = !query;
  byId("suggestion").replaceChildren("Did you mean ", make("button", again, query), "?");
}

/** @param {number} value */
const ms = (value) => `${value < 10 ? value.toFixed(1) : count(Math.round(value))} ms`;

function welcome() {
  hits = [];
  suggestion = null;
  showSuggestion();
  byId("hits").replaceChildren();
  byId("hits").classList.remove("waiting");
  byId("more").hidden = true;
  byId("problem").hidden = true;
  byId("status").textContent = "";
  byId("latency").textContent = "";
  const now = index();
  const facts = [
    ["Documents", count(now.documents)],
    ["Passages", count(now.passages)],
    ["Model", now.model ?? "none"],
    ...(now.migrating_to
      ? [["Migration", `to ${now.migrating_to}; ${count(now.migration_left)} passages are left`]]
      : []),
    ["Dimensions", count(now.dim)],
    ["Columns", Object.keys(now.columns).join(", ") || "none"],
  ];
  byId("welcome").replaceChildren(
    make(
      "p",
      {},
      `This page searches the ${count(now.documents)} documents of ${now.name}, `,
      now.modes.includes("dense") ? "by meaning and by the words of your question. " : "by words. ",
      "Type a question or a few words; results appear as you type.",
    ),
    make(
      "dl",
      { className: "metadata whole" },
      ...facts.map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, value))),
    ),
    make("p", { className: "note" }, shown(now.reload_error)),
  );
}

/**
 * Count the values of every column; those of a filtered column without its own filter.
 *
 * @param {string | null} query  null: count all documents.
 */
async function countValues(query = isQuery() && !state.like ? state.query : null) {
  const { columns, name } = index();
  const filtered = Object.keys(columns).filter((column) => state.filters.has(column));
  const others = Object.keys(columns).filter((column) => !state.filters.has(column));
  const groups = [others, ...filtered.map((column) => [column])].filter((one) => one.length);
  const about = {
    index: name,
    query,
    // Meaning ranks every document, so all of them are counted. In an order of a column, hybrid
    // search lists those with a word of the query.
    mode: finding() === "lexical" || (finding() === "hybrid" && sort()) ? "lexical" : "dense",
  };
  try {
    const done = await counts.run((signal) =>
      Promise.all(
        groups.map((group) => {
          const condition = filter(group.length === 1 ? group[0] : "");
          return ask("facets", { ...about, columns: group, where: condition }, signal);
        }),
      ),
    );
    if (done === null) return;
    const found = done.flatMap(({ answer }) => answer.facets);
    found.sort((a, b) => (a.column < b.column ? -1 : 1));
    showFilters(byId("facets"), columns, found, state.filters, changeFilter);
    const all = found.find((one) => others.includes(one.column)); // with all filters
    byId("total").textContent = all
      ? `${count(all.total)} ${all.total === 1 ? "document matches" : "documents match"}`
      : "";
  } catch (error) {
    // The search fails for the same reason and says it. The filters stay.
    if (!(error instanceof ApiError)) throw error;
    if (error.status === 400 && query !== null) await countValues(null);
  }
}

/** @type {import("./filters.js").Change} */
function changeFilter(column, changed, typed) {
  const filters = new Map(state.filters);
  const isEmpty = JSON.stringify(changed) === JSON.stringify(noFilter());
  if (isEmpty) filters.delete(column);
  else filters.set(column, changed);
  go({ filters, k: PAGE_SIZE }, { typed, pauseMs: typed ? TYPING_MS : 0 });
}

async function openDocument() {
  const dialog = byId("document");
  if (!state.open) {
    documents.restart();
    if (dialog.open) dialog.close();
    return;
  }
  const id = state.open;
  const path = `documents/${encodeURIComponent(id)}?index=${encodeURIComponent(index().name)}`;
  await tell(async () => {
    const done = await documents.run((signal) => ask(path, null, signal));
    if (done === null) return;
    const hit = hits.find((one) => one.id === id);
    showDocument(dialog, done.answer, hit, {
      close: closeDocument,
      like: (like) => go({ like, open: "", k: PAGE_SIZE }),
    });
  }, openDocument);
}

function closeDocument() {
  if (!state.open) return;
  if (history.state?.opened) history.back();
  else go({ open: "" });
}

/**
 * Run requests, and say in plain words why they failed.
 *
 * @param {() => Promise<void>} run
 * @param {() => void} again
 */
async function tell(run, again) {
  try {
    await run();
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    byId("hits").classList.remove("waiting");
    if (error.status === 401) return askToken(again);
    const wait = error.retryS ? ` It asks to wait ${error.retryS} s.` : "";
    const said = error.status === 429 ? `The server is busy.${wait}` : error.message;
    const retry = make("button", { type: "button", onclick: again }, "Try again");
    // A wrong query is wrong again.
    byId("problem").replaceChildren(make("span", {}, said), error.status === 400 ? "" : retry);
    byId("problem").hidden = false;
  }
}

/** The document whose like were shown; its hit gets the focus when the search is back. */
let left = "";

function back() {
  left = state.like;
  if (state.like) history.length > 1 ? history.back() : endLike();
  else focusBox();
}

function listen() {
  byId("query").addEventListener("input", () => {
    const pauseMs = mode() === "rerank" ? RERANKED_TYPING_MS : TYPING_MS;
    go({ query: byId("query").value, like: "", k: PAGE_SIZE }, { typed: true, pauseMs });
  });
  byId("search").addEventListener("submit", (/** @type {Event} */ event) => {
    event.preventDefault();
    typing = false;
    clearTimeout(waiting);
    search();
    countValues();
  });
  byId("index").addEventListener("change", () => {
    go({ index: byId("index").value, filters: new Map(), sort: "", like: "", open: "", k: PAGE_SIZE });
  });
  byId("sort").addEventListener("change", () => {
    go({ sort: byId("sort").value, k: PAGE_SIZE });
  });
  byId("more").addEventListener("click", () => {
    go({ k: Math.min(mostHits, state.k + PAGE_SIZE) });
  });
  byId("help-button").addEventListener("click", () => byId("help").showModal());
  byId("document").addEventListener("cancel", (/** @type {Event} */ event) => {
    event.preventDefault();
    closeDocument();
  });
  window.addEventListener("popstate", () => {
    const before = state;
    state = read(location.search);
    typing = false;
    show(before);
  });
  listenToKeys({
    back,
    mode: (at) => {
      const chosen = modesOf(index())[at];
      if (chosen) go({ mode: chosen, k: PAGE_SIZE });
    },
  });
}

async function start() {
  await tell(async () => {
    const { answer } = await ask("indexes", null, new AbortController().signal);
    indexes = answer.indexes;
    mostHits = answer.max_k;
    servedMode = answer.mode;
    if (!indexes.length) throw new ApiError(404, "This server has no index to search.");
    byId("index").replaceChildren(...indexes.map(({ name }) => make("option", { value: name }, name)));
    listen();
    const typed = byId("query").value; // before the page listened
    if (typed) state = { ...state, query: typed };
    show(null);
    if (!state.query && !state.like && !state.open) byId("query").focus();
  }, start);
}

if (matchMedia("(max-width: 800px)").matches) byId("filters").open = false;
listenToTheme(byId("theme"));
start();
