// The page: what is chosen and highlighted, the controls, the pointer and the keys.

const NEAR_PIXELS = 10; // distance of the pointer from a point that it is on
const REST = 150; // milliseconds after which a view that does not change is no longer moving

class Page {
  constructor(data) {
    this.data = data;
    this.canvas = byId("map");
    this.points = new Points(this.canvas, data.n);
    this.view = new View();
    this.colourings = colourings(data);
    this.colouring = this.colourings[0];
    [this.chosen, this.hovered, this.category, this.query] = [-1, -1, null, -1];
    [this.find, this.filter, this.showsLabels] = ["", null, true];
    [this.stale, this.moved, this.timed] = [true, -Infinity, null];
    this.lit = null; // which documents are highlighted, 1 or 0; null: all of them
    this.build();
    this.arrange("layout");
    this.recolour();
    this.relight();
    showOutliers(data, (i) => this.choose(i));
    showDetails(data, -1);
  }

  build() {
    const { data } = this;
    byId("name").textContent = data.index.split("/").pop() || data.index;
    const number = (n) => n.toLocaleString("en");
    const sample = data.mapped < data.documents;
    byId("facts").textContent = sample
      ? `${number(data.mapped)} of ${number(data.documents)} documents are drawn: a random sample (seed ${data.seed})`
      : `${number(data.mapped)} documents are drawn`;
    byId("about").textContent = `model ${data.model}, metric ${data.metric}; ${data.clusters.length} clusters, ` +
      (data.duplicates_from === null
        ? "near-duplicates were not looked for"
        : `${number(data.groups)} groups of near-duplicates (score ${data.duplicates_from} or more)`) +
      (data.columns_left_out.length ? `; columns left out, their values are too long: ${data.columns_left_out.join(", ")}` : "");
    const cut = data.columns.filter((each) => each.cut);
    if (cut.length) {
      byId("about").textContent += `; of these columns, only the first ${cut[0].cut} characters of a value are here: ` +
        cut.map((each) => each.name).join(", ");
    }
    const options = (id, names) => byId(id).replaceChildren(...names.map((name, at) => element("option", name, { value: at })));
    options("colour", this.colourings.map((each) => each.name));
    options("query", ["none", ...data.queries.map((each) => each.text)]);
    byId("queries").hidden = !data.queries.length;
    this.labels = data.names.map((name) => {
      const label = element("span", name, { className: "label" });
      byId("labels").append(label);
      return label;
    });
    this.listen();
  }

  listen() {
    byId("arrangement").addEventListener("change", (event) => this.arrange(event.target.value));
    byId("colour").addEventListener("change", (event) => {
      [this.colouring, this.category] = [this.colourings[event.target.value], null];
      this.recolour();
      this.relight();
    });
    byId("query").addEventListener("change", (event) => {
      this.query = event.target.value - 1;
      this.relight();
    });
    byId("find").addEventListener("input", (event) => {
      clearTimeout(this.waiting);
      this.waiting = setTimeout(() => {
        this.find = event.target.value.trim().toLowerCase();
        this.relight();
      }, 120);
    });
    byId("filter").addEventListener("input", (event) => this.setFilter(event.target.value));
    byId("clear").addEventListener("click", () => this.clear());
    byId("theme").addEventListener("click", () => this.changeTheme());
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
    new ResizeObserver(() => this.resize()).observe(this.canvas.parentElement);
    this.canvas.addEventListener("webglcontextlost", (event) => event.preventDefault());
    this.canvas.addEventListener("webglcontextrestored", () => {
      this.points.prepare();
      this.points.fill("place", this.places);
      this.recolour();
      this.relight();
    });
    this.listenToPointer();
    document.addEventListener("keydown", (event) => this.press(event));
  }

  listenToPointer() {
    const { canvas } = this;
    const held = new Map();
    let moved = 0;
    const position = (event) => {
      const box = canvas.getBoundingClientRect();
      return [event.clientX - box.left, event.clientY - box.top];
    };
    canvas.addEventListener("pointerdown", (event) => {
      held.set(event.pointerId, position(event));
      canvas.setPointerCapture(event.pointerId);
      moved = 0;
    });
    canvas.addEventListener("pointermove", (event) => {
      const [left, top] = position(event);
      const before = held.get(event.pointerId);
      if (!before) {
        this.hover(left, top);
        return;
      }
      const others = [...held].filter(([id]) => id !== event.pointerId);
      if (others.length) {
        const [, [x, y]] = others[0];
        this.view.zoom(Math.hypot(left - x, top - y) / (Math.hypot(before[0] - x, before[1] - y) || 1), x, y);
      } else this.view.pan(left - before[0], top - before[1]);
      moved += Math.hypot(left - before[0], top - before[1]);
      held.set(event.pointerId, [left, top]);
      this.draw();
    });
    const release = (event) => {
      const was = held.delete(event.pointerId);
      if (was && event.type === "pointerup" && moved < 4) this.choose(this.at(...position(event)), false);
    };
    canvas.addEventListener("pointerup", release);
    canvas.addEventListener("pointercancel", release);
    canvas.addEventListener("pointerleave", () => this.hover(-1, -1));
    canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      this.view.zoom(Math.exp(-event.deltaY * (event.deltaMode ? 0.05 : 0.0015)), ...position(event));
      this.draw();
    }, { passive: false });
  }

  press(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const typing = ["INPUT", "SELECT"].includes(event.target.tagName);
    if (event.key === "Escape") this.clear();
    else if (typing || (event.target.tagName === "BUTTON" && ["Enter", " "].includes(event.key))) return;
    else if (event.key === "/") byId("find").focus();
    else if (event.key === "f") byId("filter").focus();
    else if (event.key === "t") this.changeTheme();
    else if (event.key === "l") this.showsLabels = !this.showsLabels;
    else if (event.key === "+" || event.key === "=") this.view.zoom(1.4);
    else if (event.key === "-") this.view.zoom(1 / 1.4);
    else if (event.key === "0") this.view.fit(boundsOf(this.places));
    else if (event.key === "n" || event.key === "p") this.step(event.key === "n" ? 1 : -1);
    else if (event.target !== this.canvas) return;
    else if (event.key === "ArrowLeft") this.view.pan(60, 0);
    else if (event.key === "ArrowRight") this.view.pan(-60, 0);
    else if (event.key === "ArrowUp") this.view.pan(0, 60);
    else if (event.key === "ArrowDown") this.view.pan(0, -60);
    else if (event.key === "Enter" || event.key === " ") {
      this.choose(this.grid.nearest(this.view.x, this.view.y, this.view.width / this.view.scale, (i) => !this.lit || this.lit[i]));
    } else return;
    event.preventDefault();
    this.draw();
  }

  // Chooses the next highlighted document, in the order of the index.
  step(by) {
    const { n } = this.data;
    for (let i = this.chosen < 0 && by < 0 ? n - 1 : this.chosen + by, tried = 0; tried < n; i += by, tried++) {
      const at = ((i % n) + n) % n;
      if (!this.lit || this.lit[at]) return this.choose(at);
    }
  }

  at(left, top) {
    return this.grid.nearest(...this.view.toPlane(left, top), NEAR_PIXELS / this.view.scale);
  }

  hover(left, top) {
    const i = left < 0 ? -1 : this.at(left, top);
    const tip = byId("tip");
    tip.hidden = i < 0;
    if (i >= 0) {
      tip.replaceChildren(element("b", this.data.titles[i] || this.data.doc_ids[i]), element("span", this.data.names[this.data.cluster[i]]));
      const right = left > this.view.width / 2;
      tip.style.left = right ? "" : `${left + 14}px`;
      tip.style.right = right ? `${this.view.width - left + 14}px` : "";
      tip.style.top = `${Math.min(top + 14, this.view.height - 60)}px`;
    }
    this.canvas.classList.toggle("on", i >= 0);
  }

  choose(i, follows = true) {
    this.chosen = i;
    showDetails(this.data, i, (other) => this.choose(other));
    if (i >= 0) {
      const [x, y] = [this.places[2 * i], this.places[2 * i + 1]];
      if (follows && !this.view.shows(x, y)) [this.view.x, this.view.y] = [x, y];
      byId("panel").scrollTo({ top: byId("details").offsetTop - 12 });
      if (document.activeElement === document.body || !document.activeElement) this.canvas.focus({ preventScroll: true });
    }
    this.relight();
  }

  clear() {
    if (this.chosen >= 0) return this.choose(-1);
    [this.find, this.filter, this.category, this.query] = ["", null, null, -1];
    for (const id of ["find", "filter"]) byId(id).value = "";
    byId("query").value = "0";
    byId("problem").hidden = true;
    byId("filter").removeAttribute("aria-invalid");
    this.showLegend();
    this.relight();
  }

  setFilter(text) {
    const problem = byId("problem");
    try {
      this.filter = text.trim() ? parseFilter(text, this.data) : null;
      problem.hidden = true;
      byId("filter").removeAttribute("aria-invalid");
    } catch (error) {
      [problem.textContent, problem.hidden] = [error.message, false];
      byId("filter").setAttribute("aria-invalid", "true");
      return;
    }
    this.relight();
  }

  arrange(name) {
    this.places = this.data[name];
    this.grid = new Grid(this.places);
    this.centres = clusterCentres(this.places, this.data.cluster, this.data.names.length);
    this.points.fill("place", this.places);
    this.resize();
    this.view.fit(boundsOf(this.places));
    this.draw();
  }

  recolour() {
    const colours = new Uint8Array(4 * this.data.n);
    for (let i = 0; i < this.data.n; i++) colours.set([...colourOf(this.colouring, i), 255], 4 * i);
    this.points.fill("colour", colours);
    this.showLegend();
    this.draw();
  }

  showLegend() {
    const { colouring, data } = this;
    const legend = byId("legend");
    legend.replaceChildren();
    if (!colouring.of) {
      const ends = [colouring.low, colouring.high].map((end) => element("span", shownNumber(colouring.kind, end)));
      const bar = element("span", "", { className: "scale" });
      bar.style.background = `linear-gradient(90deg, ${SCALE.map(cssColour).join(", ")})`;
      legend.append(ends[0], bar, ends[1]);
      return;
    }
    const counts = new Map();
    for (let i = 0; i < data.n; i++) {
      for (const each of categoriesOf(colouring, i)) counts.set(each, (counts.get(each) ?? 0) + 1);
    }
    const categories = colouring.labels.map((label, number) => [number, label]);
    if (counts.has(-1)) categories.push([-1, colouring.rest ?? "none"]);
    for (const [number, label] of categories) {
      const button = element("button", "", { className: "category", type: "button" });
      const swatch = element("span", "", { className: "swatch" });
      swatch.style.background = cssColour(number < 0 ? NONE : categoryColour(number));
      button.setAttribute("aria-pressed", String(this.category === number));
      button.append(swatch, element("span", label), element("span", (counts.get(number) ?? 0).toLocaleString("en"), { className: "n" }));
      button.addEventListener("click", () => {
        this.category = this.category === number ? null : number;
        for (const other of legend.children) other.setAttribute("aria-pressed", String(other === button && this.category !== null));
        this.relight();
      });
      legend.append(button);
    }
  }

  // The conditions that a highlighted document meets.
  conditions() {
    const { data, colouring, category, find, filter, query } = this;
    const list = [];
    if (category !== null) list.push((i) => categoriesOf(colouring, i).includes(category));
    if (filter) list.push((i) => filter(i) === true);
    if (query >= 0) {
      const hits = new Set(data.queries[query].at);
      list.push((i) => hits.has(i));
    }
    if (find) {
      this.lower ??= data.titles.map((title, i) => `${title}\n${data.texts[i]}`.toLowerCase());
      const words = find.split(/\s+/);
      list.push((i) => words.every((word) => this.lower[i].includes(word)));
    }
    return list;
  }

  relight() {
    const { data, chosen } = this;
    const conditions = this.conditions();
    const states = new Uint8Array(data.n).fill(chosen < 0 ? LIT : DIM);
    this.lit = conditions.length ? new Uint8Array(data.n) : null;
    let count = 0;
    for (let i = 0; this.lit && i < data.n; i++) {
      if (conditions.every((condition) => condition(i))) count += this.lit[i] = 1;
      else states[i] = DIM;
    }
    if (chosen >= 0) {
      for (let at = chosen * data.k; at < (chosen + 1) * data.k; at++) states[data.near[at]] = LIT;
      states[chosen] = CHOSEN;
    }
    this.points.light(states);
    byId("status").textContent = this.lit ? `${count.toLocaleString("en")} of ${data.n.toLocaleString("en")} documents match` : "";
    this.draw();
  }

  changeTheme() {
    const dark = matchMedia("(prefers-color-scheme: dark)").matches;
    const now = document.documentElement.dataset.theme ?? (dark ? "dark" : "light");
    document.documentElement.dataset.theme = now === "dark" ? "light" : "dark";
  }

  resize() {
    const { clientWidth, clientHeight } = this.canvas.parentElement;
    this.ratio = devicePixelRatio || 1;
    const before = this.view.width;
    [this.view.width, this.view.height] = [Math.max(1, clientWidth), Math.max(1, clientHeight)];
    [this.canvas.width, this.canvas.height] = [this.view.width * this.ratio, this.view.height * this.ratio];
    if (before === 1) this.view.fit(boundsOf(this.places));
    this.draw();
  }

  draw() {
    this.stale = true;
    this.nextFrame();
  }

  nextFrame() {
    if (this.waits) return;
    this.waits = true;
    requestAnimationFrame((now) => {
      this.waits = false;
      this.frame(now);
    });
  }

  // While the view moves, frames draw as many points as leave them short. All are drawn once it rests.
  frame(now) {
    const { points, view } = this;
    const place = [view.x, view.y, view.scale].join(" ");
    if (place !== this.place) [this.place, this.moved] = [place, now];
    const moves = now - this.moved < REST;
    if (this.timed !== null) points.adapt(now - this.timed);
    this.timed = null;
    if (this.stale || (!moves && this.drawn < points.n)) {
      this.drawn = points.draw(view, this.ratio, moves ? points.most : points.n);
      this.placeLabels();
      this.showDrawn();
      this.stale = false;
      if (moves) this.timed = now; // the next frame begins when this one is shown
    }
    if (moves) this.nextFrame();
  }

  showDrawn() {
    const { n } = this.data;
    byId("drawn").hidden = this.drawn === n;
    byId("drawn").textContent = `${this.drawn.toLocaleString("en")} of ${n.toLocaleString("en")} points are drawn while the map moves`;
  }

  // Labels of larger clusters come first; one that would lie over another is hidden.
  placeLabels() {
    const taken = [];
    this.labels.forEach((label, number) => {
      const [centre, top] = this.view.toScreen(...this.centres[number]);
      label.wide ??= label.offsetWidth;
      const most = Math.max(0, this.view.width - label.wide / 2 - 4); // no label runs out at a border
      const inside = centre >= 0 && centre <= this.view.width;
      const left = inside ? Math.max(Math.min(centre, most), label.wide / 2 + 4) : centre;
      const box = [left - label.wide / 2 - 4, top - 11, left + label.wide / 2 + 4, top + 11];
      const free = this.showsLabels && this.chosen < 0 &&
        taken.every((other) => box[2] < other[0] || other[2] < box[0] || box[3] < other[1] || other[3] < box[1]);
      label.classList.toggle("out", !free);
      if (!free) return;
      taken.push(box);
      label.style.transform = `translate(${left - label.wide / 2}px, ${top - 11}px)`;
    });
  }
}

loadData().then((data) => {
  byId("loading").remove();
  new Page(data);
  document.documentElement.dataset.ready = "";
}).catch((error) => {
  byId("loading").textContent = `The map cannot be shown: ${error.message}`;
});
