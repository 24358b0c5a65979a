/**
 * Sanitizing of a model's text for display: what would be invisible, or would reorder what stands around it,
 * is shown as a sign of its own. Knows Unicode; knows no DOM. What it returns still belongs into `textContent` only.
 */

/** @type {Record<string, string>} */
const NAMES = {
  "\u202a": "LRE", "\u202b": "RLE", "\u202c": "PDF", "\u202d": "LRO", "\u202e": "RLO",
  "\u2066": "LRI", "\u2067": "RLI", "\u2068": "FSI", "\u2069": "PDI", "\ufeff": "BOM",
};

const CONTROLS = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u202a-\u202e\u2066-\u2069\ufeff]/g;

/** @param {string} text */
export function sanitize(text) {
  return text.replace(CONTROLS, picture);
}

/** @param {string} character */
function picture(character) {
  const code = character.charCodeAt(0);
  if (code < 0x20) return String.fromCharCode(0x2400 + code); // the "control pictures" block
  if (code === 0x7f) return "\u2421";
  return `\u27e8${NAMES[character] ?? code.toString(16).toUpperCase()}\u27e9`;
}
