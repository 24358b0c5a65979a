/** A text that the reader pastes, and a tool that searches it. Knows DOM and passages. */
import { element } from "../dom.js";
import { sanitize } from "../sanitize.js";

const MAX_PASSAGES = 5;

/** @returns {import("./tool-shelf.js").PageTool} */
export function textSearch() {
  const text = element("textarea", "pasted");
  text.rows = 4;
  text.placeholder = "Paste a text for the model to search";
  text.setAttribute("aria-label", "A text to search");
  const note = element("small");
  const body = element("div");
  body.append(text, note);
  return {
    title: "Text",
    element: body,
    tools: [{
      name: "search_text",
      description: "The passages of the user's text that have most of these words.",
      parameters: {
        type: "object",
        properties: { words: { type: "string" } },
        required: ["words"],
        additionalProperties: false,
      },
      run({ words }) {
        const found = passages(text.value, words);
        note.textContent = `${found.length} found for \u201c${sanitize(words)}\u201d`;
        return found.length ? found : "Nothing in the text has these words.";
      },
    }],
  };
}

/** Paragraphs, those with most of the words first. @param {string} text @param {string} words */
export function passages(text, words) {
  const wanted = [...new Set(wordsOf(words))];
  const ranked = text.split(/\n\s*\n|\n/).map((passage) => passage.trim()).filter(Boolean).map((passage) => {
    const has = new Set(wordsOf(passage));
    return { passage, hits: wanted.filter((word) => has.has(word)).length };
  });
  return ranked.filter(({ hits }) => hits).sort((one, other) => other.hits - one.hits).slice(0, MAX_PASSAGES).map(({ passage }) => passage);
}

/** @param {string} text @returns {string[]} */
const wordsOf = (text) => text.toLowerCase().match(/[\p{L}\p{N}]+/gu) ?? [];
