// Draws documents as round points by WebGL: dimmed ones first, so that the others lie above them.
// While the view moves, only a random part of them may be drawn.

const VERTEX = `#version 300 es
in vec2 place; in vec4 colour; in float lit;
uniform vec2 centre, scale; uniform float size;
out vec4 shade;
void main() {
  gl_Position = vec4((place - centre) * scale, 0.0, 1.0);
  gl_PointSize = lit > 1.5 ? size * 2.2 + 3.0 : lit > 0.5 ? size : size * 0.8;
  shade = vec4(colour.rgb, lit > 0.5 ? 0.9 : 0.14);
}`;
const FRAGMENT = `#version 300 es
precision mediump float;
in vec4 shade; out vec4 result;
void main() {
  vec2 off = gl_PointCoord * 2.0 - 1.0;
  if (dot(off, off) > 1.0) discard;
  result = vec4(shade.rgb * shade.a, shade.a);
}`;
const DIM = 0, LIT = 1, CHOSEN = 2;
const STATES = [DIM, LIT, CHOSEN];
// Milliseconds of a frame: above the first, the next one draws fewer points, below the second more.
const SLOW_FRAME = 44, FAST_FRAME = 30;
const FEWEST = 2000; // points of a frame, however slow it is

class Points {
  constructor(canvas, n) {
    const gl = canvas.getContext("webgl2", { antialias: false, alpha: true, preserveDrawingBuffer: false });
    if (!gl) throw new Error("This browser has no WebGL 2, with which the map is drawn.");
    [this.gl, this.n, this.canvas] = [gl, n, canvas];
    this.most = n; // points of a frame while the view moves
    this.shuffled = shuffled(n);
    this.prepare();
  }

  prepare() {
    const { gl } = this;
    const program = gl.createProgram();
    for (const [type, source] of [[gl.VERTEX_SHADER, VERTEX], [gl.FRAGMENT_SHADER, FRAGMENT]]) {
      const shader = gl.createShader(type);
      gl.shaderSource(shader, source);
      gl.compileShader(shader);
      gl.attachShader(program, shader);
    }
    gl.linkProgram(program);
    gl.useProgram(program);
    gl.enable(gl.BLEND);
    gl.blendFunc(gl.ONE, gl.ONE_MINUS_SRC_ALPHA);
    this.uniforms = {};
    for (const name of ["centre", "scale", "size"]) this.uniforms[name] = gl.getUniformLocation(program, name);
    this.buffers = {};
    for (const [name, width, type, normal] of [["place", 2, gl.FLOAT, false], ["colour", 4, gl.UNSIGNED_BYTE, true], ["lit", 1, gl.UNSIGNED_BYTE, false]]) {
      const at = gl.getAttribLocation(program, name);
      this.buffers[name] = gl.createBuffer();
      gl.bindBuffer(gl.ARRAY_BUFFER, this.buffers[name]);
      gl.enableVertexAttribArray(at);
      gl.vertexAttribPointer(at, width, type, normal, 0, 0);
    }
    gl.bindBuffer(gl.ELEMENT_ARRAY_BUFFER, gl.createBuffer());
  }

  fill(name, values) {
    this.gl.bindBuffer(this.gl.ARRAY_BUFFER, this.buffers[name]);
    this.gl.bufferData(this.gl.ARRAY_BUFFER, values, this.gl.STATIC_DRAW);
  }

  // How each document is drawn: DIM, LIT or CHOSEN.
  light(states) {
    this.fill("lit", states);
    const order = new Uint32Array(this.n);
    let at = 0;
    this.ends = STATES.map((state) => {
      for (const i of this.shuffled) if (states[i] === state) order[at++] = i;
      return at;
    });
    this.gl.bufferData(this.gl.ELEMENT_ARRAY_BUFFER, order, this.gl.STATIC_DRAW);
  }

  // Choose how many points the next frames draw while the view moves, by the time of the last one.
  adapt(milliseconds) {
    if (milliseconds > SLOW_FRAME) {
      this.most = Math.max(Math.min(FEWEST, this.n), Math.floor(this.most * Math.max(0.5, SLOW_FRAME / milliseconds)));
    } else if (milliseconds < FAST_FRAME) this.most = Math.min(this.n, Math.ceil(this.most * 1.1));
  }

  // The diameter of a point in pixels of the screen: smaller of many, larger after zooming in.
  size(view) {
    const fewer = Math.max(2.2, Math.min(9, 420 / Math.sqrt(this.n)));
    return Math.min(16, fewer * Math.max(0.8, (view.scale / view.fitted) ** 0.35));
  }

  // Draw at most so many points, dimmed ones only if there is room for them; return their number.
  draw(view, ratio, most) {
    const { gl, uniforms } = this;
    gl.viewport(0, 0, this.canvas.width, this.canvas.height);
    gl.clear(gl.COLOR_BUFFER_BIT);
    gl.uniform2f(uniforms.centre, view.x, view.y);
    gl.uniform2f(uniforms.scale, (2 * view.scale) / view.width, (2 * view.scale) / view.height);
    gl.uniform1f(uniforms.size, this.size(view) * ratio);
    let left = most;
    const counts = STATES.map(() => 0);
    for (const state of [CHOSEN, LIT, DIM]) {
      counts[state] = Math.min(left, this.ends[state] - (this.ends[state - 1] ?? 0));
      left -= counts[state];
    }
    for (const state of STATES) {
      const bytes = 4 * (this.ends[state - 1] ?? 0);
      if (counts[state]) gl.drawElements(gl.POINTS, counts[state], gl.UNSIGNED_INT, bytes);
    }
    return most - left;
  }
}

// The numbers below n in a random order, the same each time.
function shuffled(n) {
  const order = Uint32Array.from({ length: n }, (_, i) => i);
  let random = 1;
  for (let i = n - 1; i > 0; i--) {
    random = (Math.imul(random, 1664525) + 1013904223) >>> 0; // Numerical Recipes, section 7.1
    const other = Math.floor((random / 2 ** 32) * (i + 1));
    [order[i], order[other]] = [order[other], order[i]];
  }
  return order;
}
