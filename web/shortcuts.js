/** Keyboard shortcuts, anywhere on the page. Knows keys; what they do is passed to it. */

/**
 * @typedef {object} Actions
 * @property {() => void} stop @property {() => void} toggle @property {() => void} interject
 * @property {(steps: number) => void} warmer @property {() => void} write @property {() => void} help
 */

/** @param {Actions} actions */
export function bindShortcuts(actions) {
  addEventListener("keydown", (event) => {
    const action = event.ctrlKey || event.metaKey ? undefined : actionFor(event, actions);
    if (!action) return;
    event.preventDefault();
    action();
  });
}

/** @param {KeyboardEvent} event @param {Actions} actions @returns {(() => void) | undefined} */
function actionFor(event, actions) {
  const target = /** @type {HTMLElement} */ (event.target);
  if (event.key === "Escape" && !target.closest("dialog")) return actions.stop;
  const byCode = event.altKey ? withAlt(event.code, actions) : undefined;
  if (byCode || event.altKey) return byCode;
  if (target.closest("input, textarea, select, button, summary, dialog")) return undefined;
  if (event.key === " ") return actions.toggle;
  if (event.key === "/") return actions.write;
  return event.key === "?" ? actions.help : undefined;
}

/** By the key's place, since with Alt some keyboards write other letters. @param {string} code @param {Actions} actions */
function withAlt(code, actions) {
  return /** @type {Record<string, () => void>} */ ({
    KeyP: actions.toggle,
    KeyI: actions.interject,
    ArrowUp: () => actions.warmer(1),
    ArrowDown: () => actions.warmer(-1),
  })[code];
}
