/** The choice of the mode: what the index can do, best first. */

import { make } from "./dom.js";

/** @typedef {import("./types.js").Mode} Mode */
/** @typedef {import("./types.js").IndexCard} IndexCard */

/** @type {[Mode, string, string][]} */
const MODES = [
  ["dense", "Meaning", "Compare the meaning of texts"],
  ["lexical", "Words", "Compare the words of texts"],
  ["hybrid", "Both", "Compare meaning and words"],
  ["rerank", "Reranked", "Read the best results again with the reranker"],
];

/**
 * @param {IndexCard} index
 * @returns {Mode[]}
 */
export function modesOf(index) {
  const modes = MODES.map(([mode]) => mode);
  return modes.filter((mode) => (mode === "rerank" ? index.reranks : index.modes.includes(mode)));
}

/**
 * @param {IndexCard} index
 * @param {Mode} mode
 * @returns {Mode} The mode, or, if the index does not have it, its best one without a reranker.
 */
export function modeIn(index, mode) {
  const modes = modesOf(index);
  if (modes.includes(mode)) return mode;
  return modes.filter((one) => one !== "rerank").at(-1) ?? "dense";
}

/**
 * @param {HTMLElement} fieldset
 * @param {IndexCard} index
 * @param {Mode} mode
 * @param {(mode: Mode) => void} choose
 */
export function showModes(fieldset, index, mode, choose) {
  const known = modesOf(index);
  const labels = MODES.filter(([one]) => known.includes(one)).map(([one, name, title]) => {
    const button = make("input", {
      type: "radio",
      name: "mode",
      value: one,
      checked: one === mode,
      onchange: () => choose(one),
    });
    return make("label", { title }, button, make("span", {}, name));
  });
  if (fieldset.querySelectorAll("label").length !== labels.length) {
    fieldset.replaceChildren(fieldset.children[0], ...labels);
  }
  for (const button of fieldset.querySelectorAll("input")) button.checked = button.value === mode;
}
