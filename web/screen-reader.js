/** Screen reader announcements: one polite live region, for what happened, never for each token. */

const region = document.getElementById("announcements");
let even = false;

/** @param {string} text */
export function announce(text) {
  if (!region) return;
  even = !even;
  region.textContent = even ? text : `${text}\u00a0`; // the same words twice are said twice
}
