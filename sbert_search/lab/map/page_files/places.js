// Where documents are: a grid that finds the nearest one, and the part of the plane that is shown.

class Grid {
  constructor(places) {
    this.places = places;
    const n = places.length / 2;
    [this.left, this.top, this.width, this.height] = boundsOf(places);
    this.side = Math.max(1, Math.min(512, Math.round(Math.sqrt(n / 4))));
    const counts = new Uint32Array(this.side * this.side + 1);
    const cells = Uint32Array.from({ length: n }, (_, i) => this.cell(places[2 * i], places[2 * i + 1]));
    for (const cell of cells) counts[cell + 1]++;
    for (let i = 1; i < counts.length; i++) counts[i] += counts[i - 1];
    this.starts = counts.slice();
    this.order = new Uint32Array(n);
    cells.forEach((cell, i) => (this.order[counts[cell]++] = i));
  }

  line(value, low, size) {
    return Math.max(0, Math.min(this.side - 1, Math.floor(((value - low) / size) * this.side)));
  }

  cell(x, y) {
    return this.line(y, this.top, this.height) * this.side + this.line(x, this.left, this.width);
  }

  // The nearest document within a distance that ``accepts`` it; -1 if there is none.
  nearest(x, y, distance, accepts = () => true) {
    let [best, found] = [distance * distance, -1];
    const [first, last] = [-1, 1].map((sign) => this.line(x + sign * distance, this.left, this.width));
    const [above, below] = [-1, 1].map((sign) => this.line(y + sign * distance, this.top, this.height));
    for (let row = above; row <= below; row++) {
      for (let cell = row * this.side + first; cell <= row * this.side + last; cell++) {
        for (let at = this.starts[cell]; at < this.starts[cell + 1]; at++) {
          const i = this.order[at];
          const square = (this.places[2 * i] - x) ** 2 + (this.places[2 * i + 1] - y) ** 2;
          if (square <= best && accepts(i)) [best, found] = [square, i];
        }
      }
    }
    return found;
  }
}

function boundsOf(places) {
  let [left, right, top, bottom] = [Infinity, -Infinity, Infinity, -Infinity];
  for (let i = 0; i < places.length; i += 2) {
    left = Math.min(left, places[i]);
    right = Math.max(right, places[i]);
    top = Math.min(top, places[i + 1]);
    bottom = Math.max(bottom, places[i + 1]);
  }
  return [left, top, right - left || 1, bottom - top || 1];
}

// The view: a centre in the plane, and how many pixels of the screen a unit takes.
class View {
  constructor() {
    [this.x, this.y, this.scale, this.fitted] = [0, 0, 1, 1];
    this.width = this.height = 1;
  }

  fit(bounds) {
    const [left, top, width, height] = bounds;
    this.fitted = this.scale = 0.92 * Math.min(this.width / width, this.height / height);
    [this.x, this.y] = [left + width / 2, top + height / 2];
  }

  toScreen(x, y) {
    return [(x - this.x) * this.scale + this.width / 2, (this.y - y) * this.scale + this.height / 2];
  }

  toPlane(left, top) {
    return [this.x + (left - this.width / 2) / this.scale, this.y - (top - this.height / 2) / this.scale];
  }

  pan(left, top) {
    this.x -= left / this.scale;
    this.y += top / this.scale;
  }

  // Zoom so that a point of the screen stays where it is.
  zoom(factor, left = this.width / 2, top = this.height / 2) {
    const [x, y] = this.toPlane(left, top);
    this.scale = Math.max(this.fitted / 4, Math.min(this.fitted * 2000, this.scale * factor));
    this.x = x - (left - this.width / 2) / this.scale;
    this.y = y + (top - this.height / 2) / this.scale;
  }

  shows(x, y) {
    const [left, top] = this.toScreen(x, y);
    return left > 20 && top > 20 && left < this.width - 20 && top < this.height - 20;
  }
}

function clusterCentres(places, cluster, count) {
  const members = Array.from({ length: count }, () => [[], []]);
  cluster.forEach((number, i) => [0, 1].forEach((axis) => members[number][axis].push(places[2 * i + axis])));
  return members.map((axes) => axes.map((values) => values.sort((a, b) => a - b)[values.length >> 1]));
}
