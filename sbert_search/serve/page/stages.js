/** Why a result has its rank: its score in each stage, as a bar among those of all results shown. */

import { make, score } from "./dom.js";

/** @typedef {import("./types.js").Hit} Hit */

/** @type {Record<string, string>} */
const NAMES = { dense: "Meaning", lexical: "Words", fused: "Both", rerank: "Reranker" };
const ORDER = Object.keys(NAMES);

/**
 * @param {Hit} hit
 * @param {Hit[]} hits  All results that are shown.
 * @returns {HTMLElement}
 */
export function why(hit, hits) {
  const names = new Set(hits.flatMap((one) => Object.keys(one.stages ?? {})));
  const sorted = [...names].sort((a, b) => place(a) - place(b));
  return make("dl", { className: "stages" }, ...sorted.map((name) => row(name, hit, hits)));
}

/** @param {string} name */
const place = (name) => (ORDER.includes(name) ? ORDER.indexOf(name) : ORDER.length);

/**
 * @param {string} name
 * @param {Hit} hit
 * @param {Hit[]} hits
 */
function row(name, hit, hits) {
  const stage = hit.stages?.[name];
  const label = make("dt", {}, NAMES[name] ?? name);
  if (stage === undefined) {
    return make("div", {}, label, make("dd", { className: "none" }, "not among its candidates"));
  }
  const scores = hits.flatMap((one) => one.stages?.[name]?.score ?? []);
  const bar = make("span", { className: "level", "aria-hidden": "true" });
  bar.style.setProperty("--share", String(share(stage.score, scores)));
  const number = make("span", { className: "number" }, score(stage.score));
  const rank = make("span", { className: "at" }, stage.rank === null ? "" : `rank ${stage.rank}`);
  return make("div", {}, label, make("dd", {}, bar, number, rank));
}

/**
 * @param {number} value
 * @param {number[]} scores
 * @returns {number} From 0 to 1: relative to the highest score, and to the lowest if it is negative.
 */
export function share(value, scores) {
  const low = Math.min(0, ...scores);
  const high = Math.max(...scores);
  return high > low ? (value - low) / (high - low) : 1;
}
