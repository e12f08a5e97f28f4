// Filters over metadata, with the syntax of --where: comparisons, AND, OR, NOT, IN, BETWEEN, LIKE,
// ILIKE, IS NULL and IS TRUE. A condition is true, false or null for a document, as in SQL.

const TOKEN = /\s*(?:('(?:[^']|'')*')|("(?:[^"]|"")*")|(-?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)|([\p{L}_][\p{L}\p{N}_.]*)|(<>|!=|<=|>=|[=<>(),]))/uy;
const KEYWORDS = new Set(["AND", "OR", "NOT", "IN", "BETWEEN", "LIKE", "ILIKE", "IS", "NULL", "TRUE", "FALSE"]);
const TIME = /^(\d{4}-\d\d-\d\d)(?:[T ](\d\d)(?::(\d\d)(?::(\d\d)(?:[.,](\d{1,6}))?)?)?(Z|[+-]\d\d:?\d\d)?)?$/;
const NUMBERS = ["number", "integer"];
const LITERALS = { // types of the literals of each kind, and their name
  number: [["number", "bigint"], "a number"],
  integer: [["number", "bigint"], "a number"],
  text: [["string"], "a text in single quotes"],
  flag: [["boolean"], "TRUE or FALSE"],
  date: [["string"], "a date such as '2024-12-31'"],
  time: [["string"], "a time such as '2024-12-31T23:59:59'"],
};
// A bigint and a number are compared by their exact values, but only if not by === or !==.
const COMPARE = {
  "=": (a, b) => a == b, "<>": (a, b) => a != b, "!=": (a, b) => a != b,
  "<": (a, b) => order(a, b) < 0, "<=": (a, b) => order(a, b) <= 0, ">": (a, b) => order(a, b) > 0, ">=": (a, b) => order(a, b) >= 0,
};

// Negative, 0 or positive. Texts are ordered by their code points, as in an index; JavaScript itself
// would order them by their UTF-16 units.
function order(a, b) {
  if (a == b) return 0;
  if (typeof a !== "string") return a < b ? -1 : 1;
  let at = 0;
  while (at < a.length && a[at] === b[at]) at += 1;
  if (at > 0 && /[\uDC00-\uDFFF]/.test((a[at] ?? "") + (b[at] ?? ""))) at -= 1; // between the two units of a character
  return (a.codePointAt(at) ?? -1) - (b.codePointAt(at) ?? -1);
}

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
    else if (number !== undefined) found.push({ value: /^-?\d+$/.test(number) ? BigInt(number) : Number(number) });
    else if (KEYWORDS.has(upper)) found.push({ sign: upper });
    else found.push(word !== undefined ? { name: word } : { sign });
  }
  return found;
}

// Milliseconds since 1970 of a date or time, in UTC if it has no zone; NaN for any other text.
function instant(kind, text) {
  const match = TIME.exec(text);
  if (!match || text.startsWith("0000") || (kind === "date" && text.length > 10)) return NaN;
  const [, day, hour = "00", minute = "00", second = "00", decimals = "", zone = "Z"] = match;
  const whole = Date.parse(`${day}T${hour}:${minute}:${second}Z`);
  if (Number.isNaN(whole) || !new Date(whole).toISOString().startsWith(day)) return NaN;
  if (zone !== "Z" && (zone.slice(1, 3) > "23" || zone.slice(-2) > "59")) return NaN;
  const ahead = zone === "Z" ? 0 : Number(`${zone[0]}1`) * (60 * Number(zone.slice(1, 3)) + Number(zone.slice(-2)));
  return ((whole - 60_000 * ahead) * 1000 + Number(decimals.padEnd(6, "0"))) / 1000;
}

// A stored text as a value that can be compared.
function parsed(kind, text) {
  if (kind === "integer") return BigInt(text);
  if (kind === "number") return Number(text);
  if (kind === "flag") return text === "true";
  return kind === "text" ? text : instant(kind, text);
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

  const named = (name) => data.columns.find((each) => each.name === name);

  function column(name) {
    const [, prefix, field] = /^(meta|own)\.(doc_id|title)$/.exec(name) ?? [];
    const known = named(name);
    if (field && named(field)) {
      if (known) throw new Error(`"${name}" is a column, and also the way to write "${field}".`);
      return prefix === "own" ? own[field] : stored(named(field));
    }
    if (known && ["doc_id", "title"].includes(name)) {
      throw new Error(`"${name}" is both a metadata column and a field of every document; write meta.${name} or own.${name}.`);
    }
    if (known) return stored(known);
    if (Object.hasOwn(own, name)) return own[name];
    const names = [...data.columns.map((each) => each.name), ...Object.keys(own)];
    throw new Error(`There is no column "${name}"; there are ${names.join(", ")}.`);
  }
  function stored(known) {
    if (known.values) known.parsed ??= known.values.map((text) => parsed(known.item, text));
    return { kind: known.kind, item: known.item, get: (i) => valueOf(known, i, known.parsed) };
  }
  function operand() {
    const token = left.shift();
    if (token?.name !== undefined) return column(token.name);
    if (token && "value" in token) return { literal: token.value };
    if (token?.sign === "TRUE" || token?.sign === "FALSE") return { literal: token.sign === "TRUE" };
    throw new Error(`Expected a column or a value${token ? ` and not ${token.sign}` : " at the end"}.`);
  }
  // A literal as a value of a kind: dates and times are milliseconds.
  function literalFor(kind, literal) {
    const [types, expected] = LITERALS[kind];
    const value = types.includes(typeof literal) ? literal : NaN;
    const read = ["date", "time"].includes(kind) ? instant(kind, value) : value;
    if (Number.isNaN(read)) throw new Error(`${literal} is not ${expected}.`);
    return read;
  }
  const isNumber = (side) => NUMBERS.includes(side.kind);
  // A function from the number of a document to a side of a comparison.
  function getter(side, other) {
    if ([side.kind, other.kind].includes("list")) throw new Error("For a column of lists, write a value IN the column.");
    if (!("literal" in side)) {
      if (other.kind && other.kind !== side.kind && !(isNumber(side) && isNumber(other))) {
        throw new Error(`A column of the kind ${side.kind} cannot be compared with one of the kind ${other.kind}.`);
      }
      return side.get;
    }
    if ("literal" in other) throw new Error("A comparison needs a column.");
    const value = literalFor(other.kind, side.literal);
    return () => value;
  }
  const both = (a, b, test) => (i) => {
    const [one, two] = [a(i), b(i)];
    return one === null || two === null ? null : test(one, two);
  };

  function membership(one) {
    if (left[0]?.name !== undefined) {
      const list = operand();
      if (list.kind !== "list" || !("literal" in one)) throw new Error("After IN comes a column of lists, or values in parentheses.");
      const value = literalFor(list.item, one.literal);
      return both(() => value, list.get, (_, values) => values.some((each) => COMPARE["="](each, value)));
    }
    need("(");
    const values = [];
    do values.push(operand()); while (take(","));
    need(")");
    const tests = values.map((each) => both(getter(one, each), getter(each, one), COMPARE["="]));
    return tests.reduce((a, b) => either(a, b));
  }
  function pattern(one, ignoresCase) {
    if (one.kind !== "text") throw new Error("LIKE needs a text column.");
    const { literal } = operand();
    if (typeof literal !== "string") throw new Error("After LIKE comes a text in quotes.");
    const pieces = [""]; // a regular expression for each part between two %
    for (const [part, escaped] of literal.matchAll(/\\(.?)|%|_|[^\\%_]+/gsu)) {
      if (part === "\\") throw new Error("A backslash at the end of a pattern escapes nothing; write two.");
      if (part === "%") pieces.push("");
      else pieces[pieces.length - 1] += part === "_" ? "." : (escaped ?? part).replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
    }
    const matches = matcher(pieces, ignoresCase ? "isu" : "su");
    return both(one.get, () => 0, matches);
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
      const flag = one.kind === "flag" && ["TRUE", "FALSE"].includes(next()) ? left.shift().sign === "TRUE" : null;
      if (flag === null) need("NULL");
      if (!one.get) throw new Error("IS needs a column.");
      return (i) => (one.get(i) === flag) !== not;
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
      if (not || one.kind !== "flag" || left.length && !["AND", "OR", ")"].includes(next())) throw new Error("Expected a comparison, such as year >= 2000.");
      return one.get;
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

// Whether a text has pieces one after the other, the first at its begin and the last at its end. Each
// piece in between is taken where it first occurs, so that no text takes long.
function matcher(pieces, flags) {
  if (pieces.length === 1) {
    const whole = new RegExp(`^(?:${pieces[0]})$`, flags);
    return (text) => whole.test(text);
  }
  const first = new RegExp(`^(?:${pieces[0]})`, flags);
  const last = new RegExp(`(?:${pieces.at(-1)})$`, flags);
  const middle = pieces.slice(1, -1).filter(Boolean).map((piece) => new RegExp(piece, flags));
  return (text) => {
    const begin = first.exec(text);
    if (!begin) return false;
    let rest = text.slice(begin[0].length);
    for (const piece of middle) {
      const found = piece.exec(rest);
      if (!found) return false;
      rest = rest.slice(found.index + found[0].length);
    }
    return last.test(rest);
  };
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
