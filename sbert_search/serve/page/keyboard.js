/** The keys of the page; index.html lists them in its help. */

import { byId } from "./dom.js";
import { titles } from "./results.js";

/**
 * @param {{back: () => void, mode: (at: number) => void}} actions
 */
export function listenToKeys(actions) {
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
    if (document.querySelector("dialog[open]")) return;
    const target = /** @type {HTMLElement} */ (event.target);
    const handled =
      target.id === "query" ? inBox(event.key) : !isField(target) && onPage(event.key, actions);
    if (handled) event.preventDefault();
  });
}

/** @param {HTMLElement} target */
const isField = (target) => target.matches("input:not([type=checkbox], [type=radio]), select");

/** @param {string} key */
function inBox(key) {
  if (key === "ArrowDown") return move(1);
  if (key === "Escape") {
    byId("query").blur();
    return true;
  }
  return false;
}

/**
 * @param {string} key
 * @param {{back: () => void, mode: (at: number) => void}} actions
 */
function onPage(key, actions) {
  const hit = document.activeElement?.closest(".hit");
  const isChoice = document.activeElement?.matches("input[type=radio]");
  if (key === "/") focusBox();
  else if (key === "?") byId("help").showModal();
  else if (key === "j" || (key === "ArrowDown" && !isChoice)) return move(1);
  else if (key === "k" || (key === "ArrowUp" && !isChoice)) return move(-1);
  else if (key === "m" && hit) /** @type {any} */ (hit.querySelector(".like")).click();
  else if (key === "w" && hit) /** @type {any} */ (hit.querySelector(".toggle"))?.click();
  else if (key === "Escape") actions.back();
  else if (/^[1-4]$/.test(key)) actions.mode(Number(key) - 1);
  else return false;
  return true;
}

export function focusBox() {
  byId("query").focus();
  byId("query").select();
}

/** @param {1 | -1} step */
function move(step) {
  const list = titles(byId("hits"));
  const hit = document.activeElement?.closest(".hit");
  const at = hit ? list.findIndex((title) => hit.contains(title)) + step : step > 0 ? 0 : -1;
  if (at < 0 && hit) focusBox();
  const next = list[at];
  next?.focus();
  next?.closest(".hit")?.scrollIntoView({ block: "nearest" });
  return list.length > 0;
}
