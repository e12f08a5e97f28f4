"use strict";
(() => {
const data = JSON.parse(document.getElementById("data").textContent);
const at = (id) => document.getElementById(id);
const pairs = data.kind === "sts";
let slice = null;

const number = (value, digits = 4) => value.toFixed(digits);
const whole = (value) => Number.isInteger(value) ? value.toLocaleString("en") : value.toFixed(2);

function element(name, text = "", kind = "") {
  const made = document.createElement(name);
  if (text !== "") made.textContent = text;
  if (kind) made.className = kind;
  return made;
}

/* A text with the shared words marked; the text never becomes markup. */
function marked(text, words) {
  const shared = new Set(words), made = document.createDocumentFragment();
  for (const part of text.split(/([\p{L}\p{N}_][\p{L}\p{N}_\p{M}\u00ad\u200d]*)/u)) {
    const hit = shared.has(part.normalize("NFC").replaceAll("\u00ad", "").toLowerCase());
    made.append(hit ? element("mark", part) : part);
  }
  return made;
}

function svg(name, attributes) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

function bar(each, low, high) {
  const x = (value) => 4 + 212 * (value - low) / (high - low || 1);
  const made = svg("svg", { viewBox: "0 0 220 16", "aria-hidden": "true", class: each.worse ? "worse" : "" });
  const [start, end] = (each.interval ?? [each.mean, each.mean]).map(x);
  made.append(
    svg("line", { class: "mean", x1: x(data.mean), x2: x(data.mean), y1: 0, y2: 16 }),
    svg("rect", { class: "bar", x: start, y: 5, width: Math.max(end - start, 1), height: 6, rx: 3 }),
    svg("line", { class: "tick", x1: x(each.mean), x2: x(each.mean), y1: 2, y2: 14 }),
  );
  return made;
}

function showSlices() {
  const ends = data.slices.flatMap((each) => each.interval ?? each.mean).concat(data.mean);
  const low = Math.min(...ends), high = Math.max(...ends);
  data.slices.forEach((each, position) => {
    const row = element("tr");
    const first = position === 0 || data.slices[position - 1].feature !== each.feature;
    const range = each.low === each.high ? whole(each.low) : `${whole(each.low)} to ${whole(each.high)}`;
    const choose = element("button", range);
    choose.type = "button";
    choose.setAttribute("aria-pressed", "false");
    choose.addEventListener("click", () => { slice = slice === each ? null : each; showWorst(); });
    each.button = choose;
    const cell = element("td"), drawn = element("td");
    cell.append(choose);
    drawn.append(bar(each, low, high));
    drawn.title = each.interval?.map((end) => number(end)).join(" to ") ?? "no interval: all values are equal";
    const others = each.difference === null ? "–"
      : `${each.difference >= 0 ? "+" : ""}${number(each.difference)}${each.worse ? " worse" : ""}`;
    row.append(element("td", first ? each.feature : ""), cell, element("td", whole(each.items)),
      element("td", number(each.mean)), drawn, element("td", others, each.worse ? "worse" : ""));
    if (each.difference_interval) {
      row.lastChild.title = each.difference_interval.map((end) => number(end)).join(" to ");
    }
    at("slices").append(row);
  });
}

function inSlice(item) {
  if (slice === null) return true;
  const value = item.features[slice.feature];
  return value !== null && value >= slice.low && value <= slice.high;
}

function facts(list) {
  const made = element("dl");
  for (const [name, value] of list) {
    made.append(element("dt", name), element("dd", value));
  }
  return made;
}

function documents(title, list) {
  const made = element("div");
  made.append(element("h4", title));
  for (const each of list) {
    const shown = element("p", "", each.grade > 0 ? "document right" : "document");
    const rank = each.rank === null ? "not found" : `rank ${whole(each.rank)}, score ${number(each.score)}`;
    const grade = each.grade === null ? "not judged" : `grade ${each.grade}`;
    shown.append(element("strong", each.doc_id), ` ${rank}, ${grade}, ${whole(each.words)} words`,
      element("br"), marked(each.text, [...each.shared, ...each.forms]));
    made.append(shown);
  }
  if (!list.length) made.append(element("p", "none", "document"));
  return made;
}

function card(item) {
  const made = element("article"), title = element("h3");
  title.append(`${pairs ? "Pair" : "Query"} ${item.item}`, element("span", ` · ${data.metric} ${number(item.value)}`, "soft"));
  made.append(title);
  for (const text of item.texts) {
    const line = element("p");
    line.append(marked(text, [...item.shared, ...item.forms]));
    made.append(line);
  }
  const figures = Object.entries(item.features).map(([name, value]) => `${name}: ${value === null ? "–" : whole(value)}`);
  made.append(facts([
    ["expected", item.expected], ["came", item.came],
    ["words in common", item.shared.join(" ") || "none"], ["figures", figures.join(" · ")],
  ]));
  if (!pairs) {
    const columns = element("div", "", "columns");
    columns.append(documents("Relevant", item.relevant), documents("Found first", item.found));
    made.append(columns);
  }
  return made;
}

function showWorst() {
  const wanted = at("find").value.toLowerCase().split(/\s+/).filter(Boolean);
  const shown = data.worst.filter((item) => {
    const text = [item.item, ...item.texts, ...item.relevant.map((d) => d.text), ...item.found.map((d) => d.text)]
      .join(" ").toLowerCase();
    return inSlice(item) && wanted.every((word) => text.includes(word));
  });
  for (const each of data.slices) each.button.setAttribute("aria-pressed", String(each === slice));
  at("all").hidden = slice === null;
  at("all").textContent = slice === null ? "" : `All items, not only ${slice.feature} ${slice.button.textContent}`;
  at("status").textContent = `${shown.length} of the ${data.worst.length} worst of ${whole(data.items)} items`;
  at("worst").replaceChildren(...shown.map(card));
}

at("summary").textContent = `${whole(data.items)} ${pairs ? "pairs" : "queries"}, mean ${data.metric} ${number(data.mean)}`
  + ` (${data.higher_is_better ? "higher" : "lower"} is better)`;
at("metric").textContent = data.metric;
showSlices();
showWorst();
at("find").addEventListener("input", showWorst);
at("all").addEventListener("click", () => { slice = null; showWorst(); });
const dark = () => document.documentElement.classList.toggle("dark");
at("theme").addEventListener("click", dark);
if (matchMedia("(prefers-color-scheme: dark)").matches) dark();
document.addEventListener("keydown", (event) => {
  const typing = event.target === at("find");
  if (event.key === "Escape") { slice = null; at("find").value = ""; at("find").blur(); showWorst(); }
  else if (event.key === "/" && !typing) { event.preventDefault(); at("find").focus(); }
  else if (event.key === "d" && !typing && !event.ctrlKey && !event.metaKey) dark();
});
})();
