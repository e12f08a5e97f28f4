/** The dialog that asks for a token. */

import { hasToken, keepToken } from "./api.js";
import { byId } from "./dom.js";

/** @param {() => void} retry  Called when a token was given. */
export function askToken(retry) {
  const dialog = byId("token");
  if (dialog.open) return;
  byId("token-note").textContent = hasToken()
    ? "The server does not know this token."
    : "It is kept until this tab is closed.";
  byId("token-form").onsubmit = (/** @type {Event} */ event) => {
    event.preventDefault();
    // Tokens are ASCII. What else was pasted with one is often invisible, and no header can hold it.
    keepToken(byId("token-input").value.replace(/[^\x21-\x7e]/g, ""));
    byId("token-input").value = "";
    dialog.close();
    retry();
  };
  dialog.showModal();
}
