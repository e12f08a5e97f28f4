"use strict";

const data = JSON.parse(document.getElementById("data").textContent);
const { tokens, segments, special, layers, heads_of_a_layer: perLayer, heads: figures, steps } = data;
const length = tokens.length;
const bytes = Uint8Array.from(atob(data.values), (c) => c.charCodeAt(0));
const values = new DataView(bytes.buffer);
const COLOURS = ["#1b6ca8", "#c8553d", "#3a7d44", "#8e5ea2", "#b8860b", "#2a9d8f", "#d16ba5",
  "#7a7f87", "#5c6bc0", "#c0392b", "#7cb342", "#ef8e19"];
const NAMES = { entropy: "entropy, nats", distance: "distance, tokens", first: "on the first token",
  separator: "on separators", diagonal: "on itself", previous: "on the token before",
  next: "on the token after" };

const $ = (id) => document.getElementById(id);
const make = (name, settings = {}, ...children) => {
  const element = Object.assign(document.createElement(name), settings);
  element.append(...children);
  return element;
};

/* The state of the page: layers and heads are counted from 0, token is an index or null. */
// "grid" comes first: the lines of a long text are legible only once a token is chosen.
const state = { view: "grid", layer: 0, head: 0, active: new Set([0]), token: null, side: "from",
  special: true, pair: "", direction: "from" };

/** How much token `i` attends to token `j`. */
const at = (layer, head, i, j) =>
  values.getUint16(2 * (((layer * perLayer + head) * length + i) * length + j), true) / steps;

/** The same, as the mean over the active heads. */
const mean = (layer, i, j) => {
  let sum = 0;
  for (const head of state.active) sum += at(layer, head, i, j);
  return state.active.size ? sum / state.active.size : 0;
};

/** Indices of the tokens that are shown, of one text of a pair or of both. */
const shown = (segment) => [...tokens.keys()].filter((n) =>
  (state.special || !special[n]) && (segment === undefined || segments[n] === segment));
const queries = () => shown(state.pair ? Number(state.pair[0]) : undefined);
const keys = () => shown(state.pair ? Number(state.pair[1]) : undefined);
const colour = (head) => COLOURS[head % COLOURS.length];
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const say = (text) => { $("status").textContent = text; };
const classOf = (n) => [segments[n] ? "second" : "", special[n] ? "special" : ""].join(" ").trim();

/** Give a canvas a size in CSS pixels and return its context, sharp on any screen. */
function context(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1;
  canvas.width = width * ratio;
  canvas.height = height * ratio;
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const drawing = canvas.getContext("2d");
  drawing.scale(ratio, ratio);
  return drawing;
}

function drawControls() {
  for (const tab of document.querySelectorAll("[role=tab]")) {
    const chosen = tab.dataset.view === state.view;
    tab.setAttribute("aria-selected", String(chosen));
    $(tab.dataset.view).hidden = !chosen;
  }
  $("layer").value = String(state.layer + 1);
  $("special").checked = state.special;
  [...$("chips").children].forEach((chip, head) =>
    chip.setAttribute("aria-pressed", String(state.active.has(head))));
}

/* ---- heads ---- */

function drawHeads() {
  for (const [id, side, list] of [["queries", "from", queries()], ["keys", "to", keys()]]) {
    $(id).replaceChildren(...list.map((n) => {
      const on = state.token === n && state.side === side;
      const button = make("button", { textContent: tokens[n], className: classOf(n) });
      button.classList.toggle("on", on);
      button.setAttribute("aria-pressed", String(on));
      button.dataset.token = String(n);
      button.onmouseenter = button.onfocus = () => point(n, side);
      button.onclick = () => {
        Object.assign(state, { token: on ? null : n, side });
        draw();
        document.querySelector(`#${id} [data-token="${n}"]`).focus();
      };
      return make("li", {}, button);
    }));
    $(id).onmouseleave = () => { drawLines(); say(summary()); };
  }
  drawLines();
}

function point(token, side) {
  drawLines({ token, side });
  const list = (side === "from" ? keys() : queries())
    .map((n) => [n, side === "from" ? mean(state.layer, token, n) : mean(state.layer, n, token)])
    .sort((a, b) => b[1] - a[1]).slice(0, 4)
    .map(([n, value]) => `${tokens[n]} ${value.toFixed(3)}`);
  say(`${tokens[token]} ${side === "from" ? "attends to" : "is attended by"}: ${list.join(", ")}`);
}

function drawLines(pointed) {
  const from = queries(), to = keys(), row = 24;
  const width = Math.max(160, Math.min(420, window.innerWidth - 320));
  const drawing = context($("lines"), width, row * Math.max(from.length, to.length, 1));
  const chosen = pointed || (state.token === null ? null : state);
  drawing.lineWidth = 1.6;
  for (const head of state.active) {
    drawing.strokeStyle = colour(head);
    from.forEach((i, top) => to.forEach((j, bottom) => {
      if (chosen && (chosen.side === "from" ? i : j) !== chosen.token) return;
      const value = at(state.layer, head, i, j);
      if (value < 0.01) return;
      drawing.globalAlpha = Math.min(1, value);
      drawing.beginPath();
      drawing.moveTo(4, top * row + row / 2);
      drawing.lineTo(width - 4, bottom * row + row / 2);
      drawing.stroke();
    }));
  }
}

/* ---- layers and heads ---- */

/** Draw a matrix of probabilities, `cell` CSS pixels wide; the square root shows small values. */
function drawMatrix(drawing, from, to, cell, value) {
  drawing.fillStyle = css("--card");
  drawing.fillRect(0, 0, to.length * cell, from.length * cell);
  const mark = css("--mark");
  from.forEach((i, y) => to.forEach((j, x) => {
    drawing.fillStyle = `rgba(${mark}, ${Math.sqrt(value(i, j)).toFixed(3)})`;
    drawing.fillRect(x * cell, y * cell, cell, cell);
  }));
}

/** Draw a head with one pixel for each pair of tokens. */
function drawThumbnail(layer, head, from, to) {
  const canvas = make("canvas", { width: to.length || 1, height: from.length || 1 });
  const drawing = canvas.getContext("2d"), image = drawing.createImageData(canvas.width, canvas.height);
  const [red, green, blue] = css("--mark").split(",").map(Number);
  from.forEach((i, y) => to.forEach((j, x) =>
    image.data.set([red, green, blue, 255 * Math.sqrt(at(layer, head, i, j))], 4 * (y * to.length + x))));
  drawing.putImageData(image, 0, 0);
  return canvas;
}

function drawGrid() {
  const from = queries(), to = keys(), box = $("thumbnails");
  const size = `${Math.max(24, Math.min(52, Math.floor(430 / perLayer)))}px`;
  box.style.gridTemplateColumns = `max-content repeat(${perLayer}, max-content)`;
  const parts = [make("span")];
  for (let head = 0; head < perLayer; head++) parts.push(make("span", { textContent: head + 1 }));
  for (let layer = 0; layer < layers; layer++) {
    parts.push(make("span", { textContent: layer + 1 }));
    for (let head = 0; head < perLayer; head++) {
      const canvas = drawThumbnail(layer, head, from, to);
      Object.assign(canvas.style, { width: size, height: size });
      const button = make("button", { type: "button" }, canvas);
      button.setAttribute("aria-label", `layer ${layer + 1}, head ${head + 1}`);
      button.setAttribute("aria-pressed", String(layer === state.layer && head === state.head));
      button.onmouseenter = () => say(`layer ${layer + 1}, head ${head + 1}: ${shortFigures(layer, head)}`);
      button.onclick = () => { choose(layer, head); };
      parts.push(button);
    }
  }
  box.replaceChildren(...parts);
  drawLargeMatrix();
}

function drawLargeMatrix() {
  const from = queries(), to = keys(), { layer, head } = state, left = 110, top = 90;
  const cell = Math.max(6, Math.min(22, Math.floor(480 / Math.max(from.length, to.length, 1))));
  const drawing = context($("matrix"), left + to.length * cell + 40, top + from.length * cell + 4);
  $("matrix-title").textContent = `Layer ${layer + 1}, head ${head + 1}`;
  drawing.save();
  drawing.translate(left, top);
  drawMatrix(drawing, from, to, cell, (i, j) => at(layer, head, i, j));
  drawing.restore();
  if (cell >= 9) {
    drawing.fillStyle = css("--ink");
    drawing.font = `${Math.min(12, cell)}px system-ui, sans-serif`;
    drawing.textAlign = "right";
    from.forEach((n, y) => drawing.fillText(tokens[n], left - 5, top + (y + 0.75) * cell, left - 8));
    drawing.textAlign = "left";
    to.forEach((n, x) => {
      drawing.save();
      drawing.translate(left + (x + 0.75) * cell, top - 5);
      drawing.rotate(-Math.PI / 3);
      drawing.fillText(tokens[n], 0, 0, top - 8);
      drawing.restore();
    });
  }
  $("matrix").onmousemove = (event) => {
    const i = from[Math.floor((event.offsetY - top) / cell)];
    const j = to[Math.floor((event.offsetX - left) / cell)];
    if (i !== undefined && j !== undefined) say(`${tokens[i]} attends to ${tokens[j]}: ${at(layer, head, i, j).toFixed(4)}`);
  };
  const own = figures[layer * perLayer + head];
  $("figures").replaceChildren(...Object.entries(NAMES).flatMap(([key, name]) =>
    [make("dt", { textContent: name }), make("dd", { textContent: own[key].toFixed(3) })]));
}

const shortFigures = (layer, head) => {
  const own = figures[layer * perLayer + head];
  return `entropy ${own.entropy.toFixed(2)}, distance ${own.distance.toFixed(1)}, ` +
    `separators ${own.separator.toFixed(2)}, token before ${own.previous.toFixed(2)}`;
};

/* ---- tokens ---- */

function drawTokens() {
  if (state.token === null) state.token = shown()[0] ?? 0;
  const chosen = state.token, from = state.direction === "from";
  const value = (layer, n) => (from ? mean(layer, chosen, n) : mean(layer, n, chosen));
  const mark = css("--mark");
  $("text").replaceChildren(...shown().map((n) => {
    const button = make("button", { textContent: tokens[n], className: classOf(n), type: "button" });
    button.classList.toggle("on", n === chosen);
    button.setAttribute("aria-pressed", String(n === chosen));
    button.dataset.token = String(n);
    button.style.background = `rgba(${mark}, ${Math.sqrt(value(state.layer, n)).toFixed(3)})`;
    button.onmouseenter = () => say(relation(chosen, n, value(state.layer, n), state.layer));
    button.onclick = () => { state.token = n; draw(); };
    return button;
  }));
  const list = from ? keys() : queries(), left = 70, top = 80;
  const cell = Math.max(8, Math.min(26, Math.floor(900 / Math.max(list.length, 1)))), high = 22;
  const drawing = context($("by-layer"), left + list.length * cell + 60, top + layers * high + 4);
  drawing.font = "12px system-ui, sans-serif";
  for (let layer = 0; layer < layers; layer++) {
    list.forEach((n, x) => {
      drawing.fillStyle = `rgba(${mark}, ${Math.sqrt(value(layer, n)).toFixed(3)})`;
      drawing.fillRect(left + x * cell, top + layer * high, cell - 1, high - 1);
    });
    drawing.fillStyle = css(layer === state.layer ? "--accent" : "--ink");
    drawing.fillText(`layer ${layer + 1}`, 4, top + (layer + 0.7) * high);
  }
  drawing.fillStyle = css("--ink");
  if (cell >= 12) list.forEach((n, x) => {
    drawing.save();
    drawing.translate(left + (x + 0.75) * cell, top - 5);
    drawing.rotate(-Math.PI / 3);
    drawing.fillText(tokens[n], 0, 0, top - 8);
    drawing.restore();
  });
  $("by-layer").onmousemove = (event) => {
    const n = list[Math.floor((event.offsetX - left) / cell)];
    const layer = Math.floor((event.offsetY - top) / high);
    if (n !== undefined && layer >= 0 && layer < layers) say(relation(chosen, n, value(layer, n), layer));
  };
}

const relation = (chosen, n, value, layer) =>
  (state.direction === "from" ? `${tokens[chosen]} attends to ${tokens[n]}` : `${tokens[n]} attends to ${tokens[chosen]}`) +
  ` in layer ${layer + 1}: ${value.toFixed(4)}`;

/* ---- all views ---- */

const summary = () => {
  const active = [...state.active].sort((a, b) => a - b).map((head) => head + 1).join(", ");
  return `Layer ${state.layer + 1}, head ${active || "none"}` +
    (state.active.size === 1 ? `: ${shortFigures(state.layer, [...state.active][0])}` : "");
};

function draw() {
  drawControls();
  ({ heads: drawHeads, grid: drawGrid, tokens: drawTokens })[state.view]();
  say(summary());
}

function choose(layer, head) {
  Object.assign(state, { layer, head, active: new Set([head]) });
  draw();
}

function toggleTheme() {
  document.documentElement.classList.toggle("dark");
  draw();
}

const stepToken = (by) => {
  const list = state.view !== "heads" ? shown() : state.side === "to" ? keys() : queries();
  const place = list.indexOf(state.token);
  state.token = list[place < 0 ? 0 : (place + by + list.length) % list.length] ?? null;
  draw();
};

const KEYS = {
  1: () => { state.view = "heads"; draw(); },
  2: () => { state.view = "grid"; draw(); },
  3: () => { state.view = "tokens"; draw(); },
  ArrowUp: () => choose((state.layer + layers - 1) % layers, state.head),
  ArrowDown: () => choose((state.layer + 1) % layers, state.head),
  ArrowLeft: () => choose(state.layer, (state.head + perLayer - 1) % perLayer),
  ArrowRight: () => choose(state.layer, (state.head + 1) % perLayer),
  "[": () => stepToken(-1),
  "]": () => stepToken(1),
  Escape: () => { state.token = null; draw(); },
  a: () => { state.active = new Set(Array(perLayer).keys()); draw(); },
  s: () => { state.special = !state.special; draw(); },
  d: toggleTheme,
};

function start() {
  for (let layer = 0; layer < layers; layer++) $("layer").append(make("option", { textContent: layer + 1 }));
  for (let head = 0; head < perLayer; head++) {
    const dot = make("i");
    dot.style.background = colour(head);
    const chip = make("button", { type: "button" }, dot, String(head + 1));
    chip.setAttribute("aria-label", `head ${head + 1}`);
    chip.onclick = () => {
      state.active.has(head) ? state.active.delete(head) : state.active.add(head);
      state.head = head;
      draw();
    };
    $("chips").append(chip);
  }
  $("pair-label").hidden = !segments.includes(1);
  $("layer").onchange = () => { state.layer = Number($("layer").value) - 1; draw(); };
  $("pair").onchange = () => { state.pair = $("pair").value; draw(); };
  $("special").onchange = () => { state.special = $("special").checked; draw(); };
  $("theme").onclick = toggleTheme;
  for (const tab of document.querySelectorAll("[role=tab]")) tab.onclick = () => { state.view = tab.dataset.view; draw(); };
  for (const radio of document.querySelectorAll("[name=direction]")) radio.onchange = () => { state.direction = radio.value; draw(); };
  document.documentElement.classList.toggle("dark", matchMedia("(prefers-color-scheme: dark)").matches);
  addEventListener("resize", draw);
  addEventListener("keydown", (event) => {
    const typing = event.target instanceof HTMLSelectElement || event.target.type === "radio";
    if (typing || event.ctrlKey || event.metaKey || event.altKey || !KEYS[event.key]) return;
    event.preventDefault();
    KEYS[event.key]();
  });
  draw();
}

start();
