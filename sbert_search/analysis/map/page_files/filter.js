// Filters over metadata, with the syntax of --where: comparisons, AND, OR, NOT, IN, BETWEEN, LIKE,
// ILIKE and IS NULL. A condition is true, false or null for a document, as in SQL.

const TOKEN = /\s*(?:('(?:[^']|'')*')|("(?:[^"]|"")*")|(-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)|([\p{L}_][\p{L}\p{N}_.]*)|(<>|!=|<=|>=|[=<>(),]))/uy;
const KEYWORDS = new Set(["AND", "OR", "NOT", "IN", "BETWEEN", "LIKE", "ILIKE", "IS", "NULL", "TRUE", "FALSE"]);
const COMPARE = {
  "=": (a, b) => a === b, "<>": (a, b) => a !== b, "!=": (a, b) => a !== b,
  "<": (a, b) => a < b, "<=": (a, b) => a <= b, ">": (a, b) => a > b, ">=": (a, b) => a >= b,
};

function tokens(text) {
  const found = [];
  TOKEN.lastIndex = 0;
  while (text.slice(TOKEN.lastIndex).trim()) {
    const start = TOKEN.lastIndex;
    const match = TOKEN.exec(text);
    if (!match) throw new Error(`Cannot read "${text.slice(start).trim().slice(0, 20)}".`);
    const [, string, quoted, number, word, sign] = match;
    const upper = word?.toUpperCase();
    if (string !== undefined) found.push({ value: string.slice(1, -1).replaceAll("''", "'") });
    else if (quoted !== undefined) found.push({ name: quoted.slice(1, -1).replaceAll('""', '"') });
    else if (number !== undefined) found.push({ value: Number(number), digits: number });
    else if (KEYWORDS.has(upper)) found.push({ sign: upper });
    else found.push(word !== undefined ? { name: word } : { sign });
  }
  return found;
}

// Returns a function from the number of a document to true, false or null.
function parseFilter(text, data) {
  const left = tokens(text);
  const own = {
    doc_id: { kind: "text", get: (i) => data.doc_ids[i] },
    title: { kind: "text", get: (i) => data.titles[i] },
    cluster: { kind: "number", get: (i) => data.cluster[i] },
    distance: { kind: "number", get: (i) => data.distance[i] },
  };
  const next = () => left[0]?.sign;
  const take = (sign) => (next() === sign ? Boolean(left.shift()) : false);
  const need = (sign) => {
    if (!take(sign)) throw new Error(`Expected ${sign}${left.length ? "" : " at the end"}.`);
  };

  function column(name) {
    const known = data.columns.find((each) => each.name === name);
    if (known) return { kind: known.kind, get: (i) => valueOf(known, i) };
    if (Object.hasOwn(own, name)) return own[name];
    const names = [...data.columns.map((each) => each.name), ...Object.keys(own)];
    throw new Error(`There is no column "${name}"; there are ${names.join(", ")}.`);
  }
  function operand() {
    const token = left.shift();
    if (token?.name !== undefined) return column(token.name);
    if (token && "value" in token) return { literal: token.value, digits: token.digits };
    if (token?.sign === "TRUE" || token?.sign === "FALSE") return { literal: token.sign.toLowerCase() };
    throw new Error(`Expected a column or a value${token ? ` and not ${token.sign}` : " at the end"}.`);
  }
  // A literal as the values of a column are stored: dates and times are milliseconds.
  // Integers that a number would round are stored as texts.
  function literalFor(kind, { literal: value, digits }) {
    if (kind === "text" || kind === "list") return digits ?? String(value);
    const number = typeof value === "string" && kind !== "number" ? Date.parse(value) : value;
    if (typeof number === "string" || Number.isNaN(number)) throw new Error(`"${value}" is not a ${kind}.`);
    return number;
  }
  function getter(side, other) {
    if (!("literal" in side)) return side.get;
    const value = "literal" in other ? side.literal : literalFor(other.kind, side);
    return () => value;
  }
  const both = (a, b, test) => (i) => {
    const [one, two] = [a(i), b(i)];
    return one === null || two === null ? null : test(one, two);
  };

  function membership(one) {
    if (left[0]?.name !== undefined) {
      const list = operand();
      if (list.kind !== "list") throw new Error("After IN comes a column of lists, or values in parentheses.");
      return both(getter(one, list), list.get, (value, values) => values.includes(value));
    }
    need("(");
    const values = [];
    do values.push(operand()); while (take(","));
    need(")");
    const tests = values.map((each) => both(getter(one, each), getter(each, one), COMPARE["="]));
    return tests.reduce((a, b) => either(a, b));
  }
  function pattern(one, ignoresCase) {
    const { literal } = operand();
    if (typeof literal !== "string") throw new Error("After LIKE comes a text in quotes.");
    const escaped = literal.replace(/[.*+?^${}()|[\]\\]/g, "\\$&").replaceAll("%", ".*").replaceAll("_", ".");
    const regex = new RegExp(`^${escaped}$`, ignoresCase ? "isu" : "su");
    return both(getter(one, one), () => 0, (value) => regex.test(String(value)));
  }
  function comparison() {
    if (take("(")) {
      const inner = alternatives();
      need(")");
      return inner;
    }
    const one = operand();
    if (take("IS")) {
      const not = take("NOT");
      need("NULL");
      const get = getter(one, one);
      return (i) => (get(i) === null) !== not;
    }
    const not = take("NOT");
    const negated = (condition) => (not ? opposite(condition) : condition);
    if (take("IN")) return negated(membership(one));
    if (take("LIKE")) return negated(pattern(one, false));
    if (take("ILIKE")) return negated(pattern(one, true));
    if (take("BETWEEN")) {
      const low = operand();
      need("AND");
      const high = operand();
      return negated(all(
        both(getter(one, low), getter(low, one), COMPARE[">="]),
        both(getter(one, high), getter(high, one), COMPARE["<="]),
      ));
    }
    const test = COMPARE[next()];
    if (!test || not) {
      if (not || left.length && !["AND", "OR", ")"].includes(next())) throw new Error("Expected a comparison, such as year >= 2000.");
      return both(getter(one, one), () => "true", COMPARE["="]);
    }
    left.shift();
    const other = operand();
    return both(getter(one, other), getter(other, one), test);
  }
  function factor() {
    return take("NOT") ? opposite(factor()) : comparison();
  }
  function term() {
    let condition = factor();
    while (take("AND")) condition = all(condition, factor());
    return condition;
  }
  function alternatives() {
    let condition = term();
    while (take("OR")) condition = either(condition, term());
    return condition;
  }

  const condition = alternatives();
  if (left.length) throw new Error(`Expected AND or OR before ${left[0].name ?? left[0].sign ?? left[0].value}.`);
  return condition;
}

function opposite(a) {
  return (i) => (a(i) === null ? null : !a(i));
}
function all(a, b) {
  return (i) => {
    const [one, two] = [a(i), b(i)];
    return one === false || two === false ? false : one === null || two === null ? null : true;
  };
}
function either(a, b) {
  return (i) => {
    const [one, two] = [a(i), b(i)];
    return one || two ? true : one === null || two === null ? null : false;
  };
}
