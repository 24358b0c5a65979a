/** Lengths of text: the wire counts code points, JavaScript UTF-16 units. @module */
/**
 * The length in units of the first `points` code points, or null if there are not so many.
 * @param {string} text @param {number} points
 */
export function utf16Length(text: string, points: number): number | null;
