/** Which key does what, anywhere on the page. Knows keys; what they do is told to it. */

/**
 * @typedef {object} Deeds
 * @property {() => void} stop @property {() => void} toggle @property {() => void} interject
 * @property {(steps: number) => void} warmer @property {() => void} write @property {() => void} help
 */

/** @param {Deeds} deeds */
export function listen(deeds) {
  addEventListener("keydown", (event) => {
    const deed = event.ctrlKey || event.metaKey ? undefined : chosen(event, deeds);
    if (!deed) return;
    event.preventDefault();
    deed();
  });
}

/** @param {KeyboardEvent} event @param {Deeds} deeds @returns {(() => void) | undefined} */
function chosen(event, deeds) {
  const target = /** @type {HTMLElement} */ (event.target);
  if (event.key === "Escape" && !target.closest("dialog")) return deeds.stop;
  const byCode = event.altKey ? withAlt(event.code, deeds) : undefined;
  if (byCode || event.altKey) return byCode;
  if (target.closest("input, textarea, select, button, summary, dialog")) return undefined;
  if (event.key === " ") return deeds.toggle;
  if (event.key === "/") return deeds.write;
  return event.key === "?" ? deeds.help : undefined;
}

/** By the key's place, since with Alt some keyboards write other letters. @param {string} code @param {Deeds} deeds */
function withAlt(code, deeds) {
  return /** @type {Record<string, () => void>} */ ({
    KeyP: deeds.toggle,
    KeyI: deeds.interject,
    ArrowUp: () => deeds.warmer(1),
    ArrowDown: () => deeds.warmer(-1),
  })[code];
}
