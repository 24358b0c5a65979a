/**
 * This tab's storage. A browser may forbid it, and it holds a few megabytes: a page has to do without it, so nothing
 * here throws.
 */

/** What is kept there, or null. @param {string} key */
export function recall(key) {
  try {
    return sessionStorage.getItem(key);
  } catch {
    return null;
  }
}

/** Whether it is kept. @param {string} key @param {string} text */
export function keep(key, text) {
  try {
    sessionStorage.setItem(key, text);
    return true;
  } catch {
    return false;
  }
}

/** @param {string} key */
export function forget(key) {
  try {
    sessionStorage.removeItem(key);
  } catch {
    // What may not be touched is not there.
  }
}
