/**
 * User callbacks: called so that their exceptions stop nothing here. It knows nothing of streams.
 * @module
 */

/**
 * Call it, if there is one. What it throws is reported as uncaught exceptions are.
 * @template T
 * @param {((value: T) => void) | null | undefined} callback
 * @param {T} value
 */
export function notify(callback, value) {
  try {
    callback?.(value);
  } catch (error) {
    queueMicrotask(() => {
      throw error;
    });
  }
}
