/** The state of the page in its address, so that a search can be linked and Back works. */

/** @typedef {import("./types.js").State} State */

export const PAGE_SIZE = 20;
const MODES = ["dense", "lexical", "hybrid", "rerank"];

/** @returns {import("./types.js").ColumnFilter} */
export const noFilter = () => ({ values: [], low: "", high: "", contains: "" });

/**
 * @param {string} search  Such as "?q=mill&is.kind=craft&min.year=1990".
 * @returns {State}
 */
export function read(search) {
  const given = new URLSearchParams(search);
  const mode = given.get("mode") ?? "";
  const k = Number(given.get("k"));
  /** @type {State} */
  const state = {
    index: given.get("index") ?? "",
    query: given.get("q") ?? "",
    mode: /** @type {State["mode"]} */ (MODES.includes(mode) ? mode : ""),
    sort: given.get("sort") ?? "",
    filters: new Map(),
    like: given.get("like") ?? "",
    open: given.get("open") ?? "",
    k: Number.isInteger(k) && k > 0 ? k : PAGE_SIZE,
  };
  for (const [key, value] of given) {
    const dot = key.indexOf(".");
    const [kind, column] = [key.slice(0, dot), key.slice(dot + 1)];
    if (dot < 0 || !["is", "min", "max", "has"].includes(kind)) continue;
    const filter = state.filters.get(column) ?? noFilter();
    if (kind === "is") filter.values.push(value);
    else if (kind === "min") filter.low = value;
    else if (kind === "max") filter.high = value;
    else filter.contains = value;
    state.filters.set(column, filter);
  }
  return state;
}

/**
 * @param {State} state
 * @returns {string} The address of the page in this state.
 */
export function write(state) {
  const given = new URLSearchParams();
  /** @type {[string, string][]} */
  const fields = [
    ["index", state.index],
    ["q", state.query],
    ["mode", state.mode],
    ["sort", state.sort],
    ["like", state.like],
    ["k", state.k === PAGE_SIZE ? "" : String(state.k)],
  ];
  for (const [column, filter] of state.filters) {
    for (const value of filter.values) fields.push([`is.${column}`, value]);
    fields.push([`min.${column}`, filter.low], [`max.${column}`, filter.high]);
    fields.push([`has.${column}`, filter.contains]);
  }
  fields.push(["open", state.open]);
  for (const [key, value] of fields) {
    if (value !== "" || key.startsWith("is.")) given.append(key, value);
  }
  const text = given.toString();
  return text ? `?${text}` : location.pathname;
}
