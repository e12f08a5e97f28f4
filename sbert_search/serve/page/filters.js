/** The filters: for each column its values with counts, or a range. */

import { noFilter } from "./address.js";
import { count, make, shown } from "./dom.js";
import { inner, isOrdered } from "./where.js";

/** @typedef {import("./types.js").Facet} Facet */
/** @typedef {import("./types.js").ColumnFilter} ColumnFilter */
/** @typedef {(column: string, filter: ColumnFilter, typing: boolean) => void} Change */

/**
 * @param {HTMLElement} panel
 * @param {Record<string, string>} columns  Types by name.
 * @param {Facet[]} facets
 * @param {Map<string, ColumnFilter>} filters
 * @param {Change} change
 */
export function showFilters(panel, columns, facets, filters, change) {
  const focused = document.activeElement?.id ?? "";
  const groups = facets.map((facet) => {
    const filter = filters.get(facet.column) ?? noFilter();
    const type = columns[facet.column];
    const ordered = isOrdered(type);
    return make(
      "fieldset",
      { className: "facet" },
      make("legend", {}, facet.column),
      ...(ordered ? range(facet, type, filter, change) : values(facet, type, filter, change)),
      facet.missing && !ordered
        ? make("p", { className: "note" }, `${count(facet.missing)} without a value`)
        : null,
    );
  });
  panel.replaceChildren(...groups);
  if (focused && panel.contains(document.getElementById(focused))) {
    document.getElementById(focused)?.focus();
  }
}

/**
 * @param {Facet} facet
 * @param {string} type
 * @param {ColumnFilter} filter
 * @param {Change} change
 * @returns {HTMLElement[]}
 */
function values(facet, type, filter, change) {
  const counts = new Map(facet.values.map(({ value, count: n }) => [String(value), n]));
  const names = [...counts.keys(), ...filter.values.filter((value) => !counts.has(value))];
  const choices = names.map((value, at) => {
    const box = make("input", {
      type: "checkbox",
      id: `is-${facet.column}-${at}`,
      checked: filter.values.includes(value),
      onchange: () => {
        const others = filter.values.filter((one) => one !== value);
        change(facet.column, { ...filter, values: box.checked ? [...others, value] : others }, false);
      },
    });
    const name = inner(type) === "bool" ? shown(value === "true") : shown(value) || "(empty)";
    const n = make("span", { className: "n" }, count(counts.get(value) ?? 0));
    return make("label", { className: "choice" }, box, make("span", {}, name), n);
  });
  if (!facet.other && !filter.contains) return choices;
  const box = type === "string" ? [contains(facet.column, filter, change)] : [];
  const other = facet.other && make("p", { className: "note" }, `${count(facet.other)} with other values`);
  return [...choices, ...box, ...(other ? [other] : [])];
}

/**
 * @param {string} column
 * @param {ColumnFilter} filter
 * @param {Change} change
 */
function contains(column, filter, change) {
  const box = make("input", {
    type: "search",
    id: `has-${column}`,
    className: "contains",
    value: filter.contains,
    placeholder: "contains …",
    "aria-label": `${column} contains`,
    oninput: () => change(column, { ...filter, contains: box.value }, true),
  });
  return box;
}

/**
 * @param {Facet} facet
 * @param {string} type
 * @param {ColumnFilter} filter
 * @param {Change} change
 * @returns {HTMLElement[]}
 */
function range(facet, type, filter, change) {
  const isNumber = type === "int64" || type === "float64";
  /** @param {Facet["low"]} end */
  const written = (end) => (end === null ? "" : isNumber ? String(end) : String(end).slice(0, 10));
  const ends = /** @type {const} */ (["low", "high"]).map((end) =>
    make("input", {
      type: isNumber ? "number" : "date",
      id: `${end}-${facet.column}`,
      step: isNumber ? "any" : "",
      value: filter[end],
      placeholder: written(facet[end]),
      "aria-label": `${facet.column} ${end === "low" ? "from" : "to"}`,
      onchange: (/** @type {{target: HTMLInputElement}} */ event) =>
        change(facet.column, { ...filter, [end]: event.target.value }, false),
    }),
  );
  const inputs = make("div", { className: `range ${isNumber ? "numbers" : "dates"}` }, ends[0], make("span", {}, "to"), ends[1]);
  const parts = facet.ranges.length > 1 ? [histogram(facet), inputs] : [inputs];
  if (facet.low === null) return [inputs, make("p", { className: "note" }, "no values")];
  if (!isNumber) {
    const spread = `${written(facet.low)} to ${written(facet.high)}`;
    parts.push(make("p", { className: "note" }, spread));
  }
  return parts;
}

/** @param {Facet} facet */
function histogram(facet) {
  const most = Math.max(...facet.ranges.map((one) => one.count));
  const bars = facet.ranges.map((one) => {
    const bar = make("span", { title: `from ${shown(one.low)}: ${count(one.count)}` });
    bar.style.setProperty("--share", String(one.count / most));
    return bar;
  });
  return make("div", { className: "histogram", "aria-hidden": "true" }, ...bars);
}
