// The data of the page: texts as JSON, and arrays of numbers that Python packed.

const ARRAYS = { f4: Float32Array, f8: Float64Array, i4: Int32Array, u4: Uint32Array };
const SHOWN_CHARACTERS = 200; // of a value of a column

async function unpacked(id) {
  const element = document.getElementById(id);
  const packed = atob(element.textContent);
  element.remove();
  const bytes = new Uint8Array(packed.length);
  for (let i = 0; i < packed.length; i++) bytes[i] = packed.charCodeAt(i);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).arrayBuffer();
}

async function loadData() {
  const [texts, buffer] = await Promise.all([unpacked("texts"), unpacked("arrays")]);
  const data = JSON.parse(new TextDecoder().decode(texts));
  const array = (name) => {
    const [type, start, length] = data.arrays[name];
    return new ARRAYS[type](buffer, start, length);
  };
  for (const name of ["layout", "axes", "cluster", "near", "scores", "distance", "group"]) {
    data[name] = array(name);
  }
  data.n = data.cluster.length;
  data.k = data.near.length / data.n;
  data.names = data.clusters.map((each) => each.words.slice(0, 3).join(", ") || `cluster ${each.cluster}`);
  data.columns.forEach((column, number) => {
    if (column.values) {
      column.starts = array(`starts ${number}`);
      column.codes = array(`codes ${number}`);
      column.missing = new Set(array(`missing ${number}`));
    } else column.numbers = array(`numbers ${number}`);
  });
  return data;
}

// The value of a document in a column: a number, one of the values of the column, an array of them
// for a list, or null.
function valueOf(column, i, values = column.values) {
  if (column.numbers) return Number.isNaN(column.numbers[i]) ? null : column.numbers[i];
  const [start, stop] = [column.starts[i], column.starts[i + 1]];
  if (column.missing.has(i)) return null;
  if (column.kind !== "list") return values[column.codes[start]];
  return Array.from(column.codes.subarray(start, stop), (code) => values[code]);
}

function shownNumber(kind, number) {
  if (kind === "date") return new Date(number).toISOString().slice(0, 10);
  if (kind === "time") return new Date(number).toISOString().replace(/\.000Z|Z$/, "Z");
  return String(number);
}

function shortened(text) {
  return text.length > SHOWN_CHARACTERS ? `${text.slice(0, SHOWN_CHARACTERS - 1)}…` : text;
}

function shownValue(column, i) {
  const value = valueOf(column, i);
  if (value === null) return null;
  if (column.numbers) return shownNumber(column.kind, value);
  return Array.isArray(value) ? value.map(shortened).join(", ") : shortened(value);
}
