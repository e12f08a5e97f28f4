// What colours mean: clusters, values of a column, or a scale of numbers.

const SCALE = [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]];
const NONE = [140, 140, 140];
const MOST_VALUES = 24; // values of a column with a colour of their own; the rest share grey

// Hues a golden angle apart differ most; every second colour is lighter.
function categoryColour(number) {
  const hue = (25 + number * 137.508) % 360;
  return fromHsl(hue, 0.62, [0.5, 0.62, 0.42][number % 3]);
}

function fromHsl(hue, saturation, lightness) {
  const reach = saturation * Math.min(lightness, 1 - lightness);
  return [0, 8, 4].map((shift) => {
    const at = (shift + hue / 30) % 12;
    return Math.round(255 * (lightness - reach * Math.max(-1, Math.min(at - 3, 9 - at, 1))));
  });
}

function scaleColour(share) {
  const at = Math.max(0, Math.min(1, share)) * (SCALE.length - 1);
  const low = Math.min(Math.floor(at), SCALE.length - 2);
  return SCALE[low].map((value, i) => Math.round(value + (SCALE[low + 1][i] - value) * (at - low)));
}

// A colouring has the category of each document, -1 for none, or a number; and what a legend shows.
function colourings(data) {
  const list = [
    { name: "cluster", of: (i) => data.cluster[i], labels: data.names },
    scaled("distance to neighbours", "number", data.distance),
  ];
  if (data.duplicates_from !== null) {
    list.push({
      name: "near-duplicates",
      of: (i) => (data.group[i] < 0 ? -1 : 0),
      labels: ["has a near-duplicate"],
    });
  }
  for (const column of data.columns) {
    list.push(column.numbers ? scaled(column.name, column.kind, column.numbers) : {
      name: column.name,
      of: (i) => {
        const start = column.starts[i];
        return start < column.starts[i + 1] ? category(column.codes[start]) : -1;
      },
      every: (i) => { // of a list, whose first value gives the colour
        const codes = column.codes.subarray(column.starts[i], column.starts[i + 1]);
        return codes.length ? [...new Set(Array.from(codes, category))] : [-1];
      },
      labels: column.values.slice(0, MOST_VALUES).map(shortened),
      rest: column.values.length > MOST_VALUES ? "other or none" : "none",
    });
  }
  return list;
}

// The number of a value's colour; -1: the value shares grey.
const category = (code) => (code < MOST_VALUES ? code : -1);

// All categories of a document: a list may have several.
const categoriesOf = (colouring, i) => colouring.every?.(i) ?? [colouring.of(i)];

// The lowest and the highest 2 % of the numbers share the colours of the ends.
function scaled(name, kind, numbers) {
  const sorted = Float64Array.from(numbers).filter((number) => !Number.isNaN(number)).sort();
  const at = (share) => sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))];
  const [low, high] = sorted.length ? [at(0.02), at(0.98)] : [0, 0];
  return { name, kind, low, high, number: (i) => numbers[i], share: (i) => (high > low ? (numbers[i] - low) / (high - low) : 0.5) };
}

function colourOf(colouring, i) {
  if (colouring.of) {
    const category = colouring.of(i);
    return category < 0 ? NONE : categoryColour(category);
  }
  return Number.isNaN(colouring.number(i)) ? NONE : scaleColour(colouring.share(i));
}

const cssColour = (colour) => `rgb(${colour.join(" ")})`;
