/**
 * Making elements. Every text becomes a text node, so markup in a document is shown and never run.
 */

/**
 * @param {string} name
 * @param {Record<string, unknown>} [properties]  Of the element; names with "-" are attributes.
 * @param {...(Node | string | null)} children
 * @returns {any}
 */
export function make(name, properties = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (key.includes("-")) element.setAttribute(key, String(value));
    else Object.assign(element, { [key]: value });
  }
  element.append(...children.filter((child) => child !== null));
  return element;
}

/**
 * @param {string} id
 * @returns {any} The element of index.html with this id.
 */
export const byId = (id) => document.getElementById(id);

const WHOLE = new Intl.NumberFormat("en");
const SCORE = new Intl.NumberFormat("en", { minimumFractionDigits: 3, maximumFractionDigits: 3 });

/** @param {number} n */
export const count = (n) => WHOLE.format(n);

/** @param {number} n */
export const score = (n) => SCORE.format(n).replace("-", "−");

/**
 * @param {import("./types.js").Value} value
 * @returns {string}
 */
export function shown(value) {
  if (value === null) return "–";
  if (Array.isArray(value)) return value.map(shown).join(", ");
  if (typeof value === "boolean") return value ? "yes" : "no";
  return String(value).replace(/^(\d{4}-\d\d-\d\d)T(\d\d:\d\d(?::\d\d)?)\S*$/, "$1 $2");
}
