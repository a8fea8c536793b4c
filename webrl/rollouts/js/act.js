// The common case of an action on an element: it is there, visible, at rest and on top. Then pointing at it is one
// call from here; in every other case Playwright's locators take over, with their retries and their errors.
(() => {
  const api = window.__webrl;
  if (api.aim) return;
  const TYPED = new Set(['', 'email', 'password', 'search', 'tel', 'text', 'url']);

  const { find } = api;

  const usable = (element) => {
    const style = getComputedStyle(element);
    if (style.visibility !== 'visible' || !element.checkVisibility()) return false;
    return !element.matches(':disabled') && !element.closest('[aria-disabled="true"], fieldset[disabled]');
  };

  // Inline elements around others: only the browser knows the boxes that Playwright would click in.
  const isMixed = (element) => element.childElementCount > 0 && getComputedStyle(element).display === 'inline';

  // Centre of the first box inside the viewport (Playwright's clickable point), or null.
  const centre = (boxes) => {
    for (const box of boxes) {
      const clip = (value, size) => Math.min(Math.max(value, 0), size);
      const [left, right] = [clip(box.left, innerWidth), clip(box.right, innerWidth)];
      const [top, bottom] = [clip(box.top, innerHeight), clip(box.bottom, innerHeight)];
      if ((right - left) * (bottom - top) > 0.99) {
        return [(left + right) / 2, (top + bottom) / 2].map((value) => Math.trunc(value * 100) / 100);
      }
    }
    return null;
  };

  const topmost = (root, point) => {
    const hit = root.elementFromPoint(...point);
    return hit?.shadowRoot && hit.shadowRoot !== root ? topmost(hit.shadowRoot, point) ?? hit : hit;
  };
  // Whether a click at a point is one on the element: it, what is in it, or its label is on top there.
  const isOnTop = (element, point) => {
    let other = false;
    for (let top = topmost(document, point); top; top = api.parentOf(top)) {
      if (top === element || (top.localName === 'label' && top.control === element && !other)) return true;
      other ||= top.matches('a[href], button');
    }
    return false;
  };
  // A box to tick is often out of sight, and drawn by what stands in its label.
  const inLabel = (element) => {
    if (!(element instanceof HTMLInputElement) || !/^(checkbox|radio)$/.test(element.type)) return null;
    for (const label of element.labels ?? []) {
      const point = label.querySelector('a, button') ? null : centre(label.getClientRects());
      if (point && isOnTop(element, point)) return point;
    }
    return null;
  };

  // An area of an image map has no box, and any shape: of places on its picture the first in it, none too near its edge
  // if there are others.
  const aimAtArea = (area) => {
    const name = area.closest('map')?.name;
    const image = [...document.images].find((each) => name && each.useMap === `#${name}` && usable(each));
    if (!image) return null;
    image.scrollIntoViewIfNeeded(true);
    const box = image.getBoundingClientRect();
    const STEPS = 24;
    const places = Array.from({ length: STEPS ** 2 }, (_, at) => [
      box.left + (box.width * (0.5 + (at % STEPS))) / STEPS, box.top + (box.height * (0.5 + Math.floor(at / STEPS))) / STEPS]);
    const isIn = (x, y) => document.elementFromPoint(x, y) === area;
    const inner = ([x, y]) => isIn(x, y) && [-3, 3].every((by) => isIn(x + by, y) && isIn(x, y + by));
    return places.find(inner) ?? places.find((place) => isIn(...place)) ?? null;
  };

  // Where to click for a bid: [x, y]; null if this is not the common case; 'mixed' if `quads` are needed (the answer
  // of DOM.getContentQuads).
  api.aim = (bid, quads) => {
    const element = find(bid);
    if (element instanceof HTMLAreaElement) return aimAtArea(element);
    if (!element || !usable(element) || api.moving()) return null;
    element.scrollIntoViewIfNeeded(true);
    if (!quads && isMixed(element)) return 'mixed';
    const corners = (quad) => ({ left: quad[0], top: quad[1], right: quad[4], bottom: quad[5] });
    const point = centre(quads ? quads.map(corners) : element.getClientRects());
    return point && isOnTop(element, point) ? point : inLabel(element);
  };

  // Selects all text of a field, ready for input; false if this is not the common case.
  api.selectField = (bid) => {
    const element = find(bid);
    if (!element || !usable(element) || element.readOnly) return false;
    const rect = element.getBoundingClientRect();
    if (!rect.width || !rect.height) return false;
    if (element instanceof HTMLInputElement && TYPED.has(element.type)) {
      element.select();
    } else if (element instanceof HTMLTextAreaElement) {
      element.selectionStart = 0;
      element.selectionEnd = element.value.length;
    } else {
      return false;
    }
    element.focus();
    return true;
  };

  // Puts the focus on an element; `fromStart`: with the caret before its text if it was elsewhere. False if there is no
  // such element.
  api.focusOn = (bid, fromStart) => {
    const element = find(bid);
    if (!element) return false;
    const wasFocused = element.getRootNode().activeElement === element;
    if (element.isContentEditable && !wasFocused) document.activeElement?.blur();
    element.focus();
    if (fromStart && !wasFocused && element instanceof HTMLInputElement && TYPED.has(element.type)) {
      try {
        element.setSelectionRange(0, 0);
      } catch {
        // e-mail fields have no selection
      }
    }
    return true;
  };

  const tellChosen = (select) => {
    select.dispatchEvent(new Event('input', { bubbles: true, composed: true }));
    select.dispatchEvent(new Event('change', { bubbles: true }));
  };

  // Selects options by value or label; false if this is not the common case.
  api.choose = (bid, wanted) => {
    const select = find(bid);
    if (!(select instanceof HTMLSelectElement) || !usable(select)) return false;
    let missing = [...wanted];
    const chosen = [];
    // A name is shown without the white space at its ends, or as one blank.
    const tidy = (text) => text.replace(/\s+/g, ' ').trim();
    const isNamed = (text) => [...select.options].some((option) => text === option.value || text === option.label);
    const loose = new Set(wanted.filter((text) => !isNamed(text)));
    for (const option of select.options) {
      const fits = (text) => text === option.value || text === option.label ||
        (loose.has(text) && tidy(text) === tidy(option.label));
      if (!missing.some(fits)) continue;
      chosen.push(option);
      missing = select.multiple ? missing.filter((text) => !fits(text)) : [];
      if (!select.multiple) break;
    }
    if (missing.length) return false;
    select.value = undefined;
    for (const option of chosen) option.selected = true;
    tellChosen(select);
    return true;
  };

  // Selects the option of a closed list, which has no place to click; false for anything else.
  api.pick = (bid) => {
    const option = find(bid);
    const select = option instanceof HTMLOptionElement && !option.matches(':disabled') ? option.closest('select') : null;
    if (!select || select.multiple || select.size > 1 || !usable(select)) return false;
    if (option.selected) return true;
    option.selected = true;
    tellChosen(select);
    return true;
  };

  // State of a checkbox or radio button; null for anything else.
  api.checked = (bid) => {
    const element = find(bid);
    return element instanceof HTMLInputElement && /^(checkbox|radio)$/.test(element.type) ? element.checked : null;
  };

  // Waits until the page is quiet, then says all there is to know about it in one answer.
  // `form` is the kind of observation that will be taken: `axtree` needs the ids in the accessibility tree. `from`:
  // number of the document's first element.
  api.look = async (horizonMs, capMs, hiddenIds, form, from) => {
    await api.settle(horizonMs, capMs);
    const seen = { popups: api.takePopups(), url: location.href, state: api.state() };
    return Object.assign(seen, api.tryToMark('', hiddenIds, form === 'axtree', from));
  };
})();
