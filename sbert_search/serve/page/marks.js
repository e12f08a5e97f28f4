/** Marking the sentence that answers and the words that matched, and cutting long texts. */

import { make } from "./dom.js";

// Letters of scripts without blanks between words, of which a part of a run can match.
const UNSPACED =
  "[\\p{sc=Han}\\p{sc=Hira}\\p{sc=Kana}ー\\p{sc=Thai}\\p{sc=Laoo}\\p{sc=Khmr}\\p{sc=Mymr}]";
const WORD = `(?!${UNSPACED})[\\p{L}\\p{N}_](?:(?!${UNSPACED})[\\p{L}\\p{N}_\\p{M}])*`; // with marks
const FORMS = /[\ufb00-\ufb06\ufb50-\ufdff\ufe70-\ufefc\uff01-\uff9f²³¹⁰⁴-⁹₀-₉]+/g; // of fonts and sizes
const SHOWN = 420; // characters of a text in the list of results
const BEFORE = 120; // of them, at most, before the best sentence

/**
 * @param {string} text
 * @param {string} sentence  A sentence of the text; its line breaks may differ. "": none.
 * @returns {[number, number] | null} Its first character and the one after its last.
 */
export function find(text, sentence) {
  const at = sentence ? text.indexOf(sentence) : -1;
  if (at >= 0) return [at, at + sentence.length];
  const words = sentence.split(/\s+/).filter(Boolean).map(escaped);
  const found = words.length ? new RegExp(words.join("\\s+"), "u").exec(text) : null;
  return found ? [found.index, found.index + found[0].length] : null;
}

/** @param {string} word */
const folded = (word) => word.replace(FORMS, (form) => form.normalize("NFKC")).toLowerCase();

/** @param {string} word */
const escaped = (word) => word.replace(/[\\^$.*+?()[\]{}|/]/g, "\\$&");

/**
 * The server compares words by their stems. Here two words are taken for inflections of each other
 * if they share their beginning and differ in few last letters.
 *
 * @param {string} a
 * @param {string} b
 */
export function inflected(a, b) {
  if (a === b || `${a}s` === b || a === `${b}s`) return true;
  let shared = 0;
  while (shared < a.length && a[shared] === b[shared]) shared += 1;
  const [short, long] = [Math.min(a.length, b.length), Math.max(a.length, b.length)];
  return shared >= 4 && shared >= short - 1 && long - shared <= 3;
}

/**
 * @param {string} text
 * @param {string[]} words
 * @returns {Node[]} The text, with these words in any inflection marked.
 */
function withWords(text, words) {
  const wanted = words.map((word) => word.toLowerCase());
  const parts = wanted.filter((word) => new RegExp(UNSPACED, "u").test(word)).map(escaped);
  const either = new RegExp([...parts, WORD].join("|"), "giu");
  const nodes = [];
  let end = 0;
  for (const match of wanted.length ? text.matchAll(either) : []) {
    const word = folded(match[0]);
    if (!wanted.some((one) => inflected(word, one))) continue;
    nodes.push(new Text(text.slice(end, match.index)), make("b", {}, match[0]));
    end = match.index + match[0].length;
  }
  return [...nodes, new Text(text.slice(end))];
}

/**
 * @param {string} text
 * @param {string} sentence
 * @param {string[]} words
 * @returns {Node[]} The text with the sentence and the words marked.
 */
export function marked(text, sentence, words) {
  const place = find(text, sentence);
  if (place === null) return withWords(text, words);
  const [start, end] = place;
  return [
    ...withWords(text.slice(0, start), words),
    make("mark", {}, ...withWords(text.slice(start, end), words)),
    ...withWords(text.slice(end), words),
  ];
}

/**
 * @param {string} text
 * @param {string} sentence
 * @returns {string} The part of the text around the sentence that a result shows.
 */
export function excerpt(text, sentence) {
  if (text.length <= SHOWN) return text;
  const place = find(text, sentence);
  const [start, end] = place ?? [0, 0];
  const from = start <= BEFORE ? 0 : nextWord(text, start - BEFORE, start);
  const to = Math.max(from + SHOWN, end);
  const cut = to < text.length ? text.slice(from, to).replace(/\s+\S*$/, "") : text.slice(from);
  const whole = place && from + cut.length < end ? text.slice(from, end) : cut;
  return `${from ? "… " : ""}${whole}${from + whole.length < text.length ? " …" : ""}`;
}

/**
 * @param {string} text
 * @param {number} from
 * @param {number} most
 */
function nextWord(text, from, most) {
  const blank = text.slice(from, most).search(/\s/);
  return blank < 0 ? most : from + blank + 1;
}
