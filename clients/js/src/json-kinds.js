/** Kinds of JSON values: what `typeof` takes for one is told apart. @module */

/** @param {unknown} value */
export function kindOf(value) {
  return Array.isArray(value) ? "array" : value === null ? "null" : typeof value;
}
