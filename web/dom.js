/** DOM elements: made, or found, in a line each. Texts are texts: nothing here takes markup. */

/**
 * @template {keyof HTMLElementTagNameMap} Tag
 * @param {Tag} tag @param {string} [name] its class @param {string} [text] @returns {HTMLElementTagNameMap[Tag]}
 */
export function element(tag, name = "", text = "") {
  const made = document.createElement(tag);
  if (name) made.className = name;
  if (text) made.textContent = text;
  return made;
}

/** @param {string} text @param {() => unknown} act @param {string} [name] */
export function button(text, act, name = "") {
  const made = element("button", name, text);
  made.type = "button";
  made.addEventListener("click", act);
  return made;
}

/** An element that index.html promises. @template {HTMLElement} T @param {string} id @param {new () => T} kind */
export function byId(id, kind) {
  const found = document.getElementById(id);
  if (!(found instanceof kind)) throw new Error(`index.html has no ${kind.name} #${id}`);
  return found;
}
