/** From the chosen filters to the filter language of the server (docs: Filters). */

/** @typedef {import("./types.js").ColumnFilter} ColumnFilter */

/**
 * @param {string} type  Such as "int64" or "list[date]".
 * @returns {string} The type of one value.
 */
export const inner = (type) => type.replace(/^list\[(.*)\]$/, "$1");

/** @param {string} type */
export const isOrdered = (type) => ["int64", "float64", "date", "timestamp"].includes(type);

/**
 * @param {Map<string, ColumnFilter>} filters
 * @param {Record<string, string>} columns  Types by name; filters of other columns are ignored.
 * @param {string} [without]  A column whose filter is left out.
 * @returns {string | null}
 */
export function where(filters, columns, without) {
  const parts = [...filters]
    .filter(([column]) => column in columns && column !== without)
    .flatMap(([column, filter]) => conditions(column, columns[column], filter));
  return parts.length ? parts.join(" AND ") : null;
}

/**
 * @param {string} column
 * @param {string} type
 * @param {ColumnFilter} filter
 * @returns {string[]}
 */
function conditions(column, type, filter) {
  const name = quoted(column);
  const values = filter.values.map((value) => literal(value, inner(type))).filter(Boolean);
  const parts = [];
  if (values.length && type.startsWith("list[")) {
    parts.push(`(${values.map((value) => `${value} IN ${name}`).join(" OR ")})`);
  } else if (values.length) parts.push(`${name} IN (${values.join(", ")})`);
  const low = literal(filter.low, type);
  const high = literal(type === "timestamp" ? endOfDay(filter.high) : filter.high, type);
  if (isOrdered(type) && low) parts.push(`${name} >= ${low}`);
  if (isOrdered(type) && high) parts.push(`${name} <= ${high}`);
  if (type === "string" && filter.contains) {
    const escaped = filter.contains.replace(/[\\%_]/g, "\\$&");
    parts.push(`${name} ILIKE ${text(`%${escaped}%`)}`);
  }
  return parts;
}

/** @param {string} column */
function quoted(column) {
  const name = `"${column.replaceAll('"', '""')}"`;
  return ["doc_id", "title"].includes(column) ? `meta.${name}` : name;
}

/**
 * @param {string} value
 * @param {string} type  Of one value.
 * @returns {string} "": it is no value of this type.
 */
function literal(value, type) {
  if (type === "string") return text(value);
  if (value === "") return "";
  if (type === "bool") return value === "true" ? "TRUE" : "FALSE";
  if (type === "date" || type === "timestamp") return text(value);
  return Number.isFinite(Number(value)) ? value : "";
}

/** @param {string} value */
const text = (value) => `'${value.replaceAll("'", "''")}'`;

/** @param {string} day */
const endOfDay = (day) => (/^\d{4}-\d\d-\d\d$/.test(day) ? `${day}T23:59:59.999999` : day);
