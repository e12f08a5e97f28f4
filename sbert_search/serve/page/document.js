/** The dialog with a whole document. */

import { make, shown } from "./dom.js";
import { marked } from "./marks.js";

/** @typedef {import("./types.js").StoredDocument} StoredDocument */
/** @typedef {import("./types.js").Hit} Hit */

/**
 * @param {HTMLDialogElement} dialog
 * @param {StoredDocument} found
 * @param {Hit | undefined} hit  The result that was opened, whose marks are shown.
 * @param {{close: () => void, like: (id: string) => void}} actions
 */
export function showDocument(dialog, found, hit, actions) {
  const words = hit?.matched_words ?? [];
  const text = marked(found.text, hit?.best_sentence ?? "", words);
  dialog.replaceChildren(
    make(
      "div",
      { className: "document-top" },
      make("h2", { id: "document-title" }, ...marked(found.title || found.id, "", words)),
      make(
        "button",
        { type: "button", className: "quiet like", onclick: () => actions.like(found.id) },
        "More like this",
      ),
      make("button", { type: "button", className: "quiet", onclick: actions.close }, "Close ", make("kbd", {}, "Esc")),
    ),
    make(
      "div",
      { className: "document-body", tabIndex: 0, role: "region", "aria-label": "Document" },
      make("dl", { className: "metadata whole" }, ...rows(found)),
      make("div", { className: "whole-text" }, ...text),
    ),
  );
  if (!dialog.open) dialog.showModal();
  dialog.querySelector(".document-body")?.scrollTo(0, 0);
  dialog.querySelector("mark")?.scrollIntoView({ block: "center" });
}

/** @param {StoredDocument} found */
function rows(found) {
  const values = Object.entries(found.metadata).filter(([, value]) => value !== null);
  return [["id", found.id], ...values].map(([name, value]) =>
    make("div", {}, make("dt", {}, name), make("dd", {}, shown(/** @type {any} */ (value)))),
  );
}
