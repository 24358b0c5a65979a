/** Lengths of text: the wire counts code points, JavaScript UTF-16 units. @module */

/**
 * The length in units of the first `points` code points, or null if there are not so many.
 * @param {string} text @param {number} points
 */
export function utf16Length(text, points) {
  let length = 0;
  for (; points > 0 && length < text.length; points--) {
    length += /** @type {number} */ (text.codePointAt(length)) > 0xffff ? 2 : 1;
  }
  return points > 0 ? null : length;
}
