// What BrowserGym notes on every marked element beside its id: how much of it is in the viewport, and whether it takes
// part in a set of marks. Same rules as browsergym/core/javascript/frame_mark_elements.js (Apache-2.0), without its
// 40 ms poll; the page has just been marked (mark.js).
(() => {
  const api = window.__webrl;
  if (api.describe) return;
  const MARKED_TAGS = new Set('input textarea select button a iframe video li td option'.split(' '));
  const THRESHOLDS = [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0];
  const PATIENCE_MS = 1000; // a tab in the background is never told
  const MARK = 'browsergym_set_of_marks';

  const noteVisibility = (elements) => new Promise((resolve) => {
    const waiting = new Set(elements);
    const observer = new IntersectionObserver((entries) => {
      for (const { target, intersectionRatio } of entries) {
        target.setAttribute('browsergym_visibility_ratio', Math.round(intersectionRatio * 100) / 100);
        waiting.delete(target);
      }
      if (!waiting.size) finish();
    }, { threshold: THRESHOLDS });
    const finish = () => {
      observer.disconnect();
      resolve();
    };
    for (const element of elements) {
      element.setAttribute('browsergym_visibility_ratio', 0);
      observer.observe(element);
    }
    if (waiting.size) setTimeout(finish, PATIENCE_MS);
    else finish();
  });

  const foremost = (x, y) => {
    let root = document;
    let last = null;
    let element = null;
    do {
      last = element;
      element = root.elementFromPoint(x, y);
      root = element?.shadowRoot;
    } while (root && element !== last);
    return element;
  };
  const takesClick = (element, box) => {
    const hit = foremost((box.left + box.right) / 2, (box.top + box.bottom) / 2);
    return hit !== null && (hit === element || element.contains(hit));
  };
  const isMarkable = (element, buttons) => {
    const box = element.getBoundingClientRect();
    if (!takesClick(element, box)) return false;
    const known = MARKED_TAGS.has(element.tagName.toLowerCase()) || api.hasOnclick(element) ||
      getComputedStyle(element).cursor === 'pointer';
    if (!known || (box.right - box.left) * (box.bottom - box.top) < 20) return false;
    if (buttons.some((button) => button.contains(element))) return false;
    const parent = element.parentElement;
    return !(parent && parent.tagName.toLowerCase() === 'span' && parent.children.length === 1 &&
      parent.getAttribute('role') && parent.getAttribute(MARK) === '1');
  };
  const noteMarks = (elements) => {
    const buttons = [];
    for (const element of elements) {
      element.setAttribute(MARK, '0');
      if (!isMarkable(element, buttons)) continue;
      element.setAttribute(MARK, '1');
      if (element.matches('button, a, input[type="button"], div[role="button"]')) buttons.push(element);
      for (let parent = element.parentElement; parent; parent = parent.parentElement) {
        if (parent.getAttribute(MARK) === '1') parent.setAttribute(MARK, '0');
      }
    }
  };

  api.describe = async () => {
    const all = api.allElements();
    api.learn(all);
    const elements = all.filter((element) => element.hasAttribute('bid'));
    const visibility = noteVisibility(elements);
    noteMarks(elements);
    await visibility;
  };

  // The id of the focused element, shadow roots looked into; null if nothing has the focus.
  api.focusedBid = (root = document) => {
    const element = root.activeElement;
    if (!element) return null;
    return element.shadowRoot ? api.focusedBid(element.shadowRoot) : element.getAttribute('bid') ?? '';
  };
})();
