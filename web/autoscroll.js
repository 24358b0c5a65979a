/** Autoscroll: keeps the end of what is written in view, as long as the reader is there. Knows scrolling, nothing else. */

const NEAR_PX = 90;

/** @param {Element} container what grows */
export function autoscroll(container) {
  let following = true;
  addEventListener("scroll", () => {
    const { scrollHeight, scrollTop, clientHeight } = document.documentElement;
    following = scrollHeight - scrollTop - clientHeight < NEAR_PX;
  }, { passive: true });
  new ResizeObserver(() => following && scrollTo({ top: document.documentElement.scrollHeight })).observe(container);
}
