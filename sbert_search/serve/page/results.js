/** The list of results. */

import { make, score, shown } from "./dom.js";
import { excerpt, marked } from "./marks.js";
import { why } from "./stages.js";

const SCORE =
  "Score. Both: 0.4 × similarity of meaning + 0.6 × share of the highest BM25 score that the " +
  "query can have, at most 1. Meaning: the similarity. Words: the BM25 score.";

/** @typedef {import("./types.js").Hit} Hit */

const COLUMNS = 5; // metadata columns that a result shows
const CHARS = 60; // of one value

/**
 * @typedef {object} Actions
 * @property {(id: string) => void} open
 * @property {(id: string) => void} like
 * @property {boolean} scored  Whether the scores mean something.
 */

/**
 * @param {HTMLElement} list
 * @param {Hit[]} hits
 * @param {Actions} actions
 */
export function showHits(list, hits, actions) {
  list.replaceChildren(...hits.map((hit) => item(hit, hits, actions)));
}

/**
 * @param {Hit} hit
 * @param {Hit[]} hits
 * @param {Actions} actions
 */
function item(hit, hits, actions) {
  const sentence = hit.best_sentence ?? "";
  const words = hit.matched_words ?? [];
  const title = make(
    "button",
    { type: "button", className: "title", onclick: () => actions.open(hit.id) },
    ...(hit.title ? marked(hit.title, "", words) : [hit.id]),
  );
  title.classList.toggle("untitled", !hit.title);
  const text = marked(excerpt(hit.text, sentence), sentence, words);
  return make(
    "li",
    { className: "hit" },
    make("span", { className: "rank", "aria-hidden": "true" }, String(hit.rank)),
    make("h2", {}, title),
    make("span", { className: "score", title: SCORE }, actions.scored ? score(hit.score) : ""),
    make("p", { className: "text" }, ...text),
    make("div", { className: "below" }, metadata(hit), ...tools(hit, hits, actions)),
  );
}

/** @param {Hit} hit */
function metadata(hit) {
  const values = Object.entries(hit.metadata).filter(([, value]) => value !== null);
  const parts = values.slice(0, COLUMNS).map(([name, value]) => {
    const text = shown(value);
    return [name, text.length > CHARS ? `${text.slice(0, CHARS)}…` : text];
  });
  if (hit.title) parts.unshift(["id", hit.id]); // else it stands in place of the title
  const pairs = parts.map(([name, text]) =>
    make("div", {}, make("dt", {}, name), make("dd", {}, text)),
  );
  return make("dl", { className: "metadata" }, ...pairs);
}

/**
 * @param {Hit} hit
 * @param {Hit[]} hits
 * @param {Actions} actions
 * @returns {HTMLElement[]}
 */
function tools(hit, hits, actions) {
  const name = hit.title || hit.id;
  const like = make(
    "button",
    {
      type: "button",
      className: "quiet like",
      onclick: () => actions.like(hit.id),
      "aria-label": `More like this: ${name}`,
    },
    "More like this",
  );
  if (!hit.stages) return [make("span", { className: "tools" }, like)];
  const stages = make("div", { className: "why", hidden: true }, why(hit, hits));
  const toggle = make(
    "button",
    {
      type: "button",
      className: "quiet toggle",
      onclick: () => {
        stages.hidden = !stages.hidden;
        toggle.setAttribute("aria-expanded", String(!stages.hidden));
      },
      "aria-expanded": "false",
      "aria-label": `Why this rank: ${name}`,
    },
    "Why this rank",
  );
  return [make("span", { className: "tools" }, like, toggle), stages];
}

/**
 * @param {HTMLElement} list
 * @returns {HTMLElement[]} The buttons with the titles, which have the focus in turn.
 */
export const titles = (list) => [.../** @type {any} */ (list.querySelectorAll(".title"))];
