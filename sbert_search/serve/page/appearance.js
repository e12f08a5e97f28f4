/** The button that changes between the theme of the system, light and dark. */

const KEY = "sbert-search theme"; // theme.js reads it too
const NEXT = new Map([["auto", "light"], ["light", "dark"], ["dark", "auto"]]);

/** @param {HTMLElement} button */
export function listenToTheme(button) {
  const root = document.documentElement;
  const name = () => {
    button.textContent = `Theme: ${root.dataset.theme ?? "auto"}`;
  };
  button.addEventListener("click", () => {
    root.dataset.theme = NEXT.get(root.dataset.theme ?? "auto") ?? "auto";
    localStorage.setItem(KEY, root.dataset.theme);
    name();
  });
  name();
}
