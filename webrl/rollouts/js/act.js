// The common case of an action on an element: it is there, visible, at rest and on top. Then pointing at it is one
// call from here; in every other case Playwright's locators take over, with their retries and their errors.
(() => {
  const api = window.__webrl;
  if (api.aim) return;
  const TYPED = new Set(['', 'email', 'password', 'search', 'tel', 'text', 'url']);
  const SET = new Set(['color', 'date', 'datetime-local', 'month', 'range', 'time', 'week']); // as Playwright fills them

  const WHEEL_MS = 1500; // for what scrolls smoothly, on a busy machine
  const FRAME_WHEEL_MS = 500; // a frame tells nobody here

  const { find, findShown } = api;

  const usable = (element) => {
    const style = getComputedStyle(element);
    if (style.visibility !== 'visible' || !element.checkVisibility()) return false;
    return !element.matches(':disabled') && !element.closest('[aria-disabled="true"]');
  };

  // The element with an id. Throws where nobody can use it: the browser keeps the focus from it, and keys would go elsewhere.
  const reach = (bid) => {
    const element = findShown(bid);
    const isBehind = document.querySelector('dialog:modal') !== null;
    for (let each = element; each && !api.ask(each, 'matches', 'dialog:modal'); each = api.parentOf(each)) {
      const isInert = api.ask(each, 'inert') || (isBehind && each === document.body);
      if (isInert) throw new Error('the element is inert, or behind a dialog');
    }
    return element;
  };

  // What has the focus where an element is. (What has been disabled loses it, since Chromium 152 a frame later.)
  const focused = (element) => {
    const { activeElement } = element.getRootNode();
    return activeElement?.matches(':disabled') ? null : activeElement;
  };

  // The boxes that Playwright would click in: of an inline element around others, theirs and its text's.
  const partsOf = (element) => {
    const range = document.createRange();
    range.selectNodeContents(element);
    return [...range.getClientRects()];
  };
  const boxesOf = (element) => {
    const isAround = element.childElementCount > 0 && getComputedStyle(element).display === 'inline';
    const parts = isAround && !(element instanceof SVGElement) ? partsOf(element) : [];
    return parts.length ? parts : [...element.getClientRects()];
  };

  // What of a box is inside the viewport, or null.
  const inWindow = (box) => {
    const clip = (value, size) => Math.min(Math.max(value, 0), size);
    const [left, right] = [clip(box.left, innerWidth), clip(box.right, innerWidth)];
    const [top, bottom] = [clip(box.top, innerHeight), clip(box.bottom, innerHeight)];
    return (right - left) * (bottom - top) > 0.99 ? { left, top, right, bottom } : null;
  };
  // Playwright's clickable point.
  const centre = ({ left, top, right, bottom }) =>
    [(left + right) / 2, (top + bottom) / 2].map((value) => Math.trunc(value * 100) / 100);

  // An element and those around it.
  const chainOf = (element) => {
    const chain = [];
    for (let each = element; each; each = api.parentOf(each)) chain.push(each);
    return chain;
  };
  // At once, where a page has itself scrolled smoothly.
  const bringIntoView = (element) => {
    const smooth = chainOf(element).filter((each) => getComputedStyle(each).scrollBehavior === 'smooth');
    api.withStyle(smooth, 'scroll-behavior', 'auto', () => element.scrollIntoViewIfNeeded(true));
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
  const FRAME = /^(iframe|frame|embed|object)$/;
  // The elements at a point, from the topmost outwards.
  const chainAt = (point) => chainOf(topmost(document, point));
  // How many pixels a part of the page can still be scrolled: to its left and right, or up and down. What is written or
  // laid out from its right, or from below, counts from there, downwards from 0.
  const roomOf = (part, isAcross) => {
    const isPage = part === document.scrollingElement;
    const { direction, display, flexDirection, writingMode } = getComputedStyle((isPage && document.body) || part);
    const flow = !isPage && display.endsWith('flex') ? flexDirection : '';
    const isAlongLine = isAcross === writingMode.startsWith('horizontal');
    const isBackwards = isAlongLine ? (direction === 'rtl') !== (flow === 'row-reverse')
      : writingMode.endsWith('rl') !== (flow === 'column-reverse');
    const [at, most] = isAcross ? [part.scrollLeft, part.scrollWidth - part.clientWidth]
      : [part.scrollTop, part.scrollHeight - part.clientHeight];
    return isBackwards ? [at + most, 0 - at] : [at, most - at]; // -0 is no number to DevTools
  };
  // Whether a wheel turned at a point scrolls something; inside frames and plug-ins nobody here can tell.
  const scrollsAt = (point, dx, dy) => {
    const moves = (element, overflow, page) => {
      const allows = (way) => (page ? !/hidden|clip/.test(way) : /auto|scroll/.test(way));
      const has = (delta, isAcross) => delta && roomOf(element, isAcross)[delta > 0 ? 1 : 0] > 1;
      return (allows(overflow.overflowY) && has(dy, false)) || (allows(overflow.overflowX) && has(dx, true));
    };
    const page = document.scrollingElement ?? document.documentElement;
    for (const part of chainAt(point)) {
      if (FRAME.test(part.localName)) return true;
      if (part !== page && moves(part, getComputedStyle(part), false)) return true;
    }
    const [html, body] = [document.documentElement, document.body].map((each) => each && getComputedStyle(each));
    return moves(page, html.overflowY === 'visible' && body ? body : html, true);
  };
  // Where to turn the wheel: `at`, or where the mouse is, or in the middle of the page if only that scrolls something, or
  // on the largest part of the page that does.
  api.aimWheel = (at, pointer, dx, dy) => {
    const point = at ?? api.pointer() ?? pointer;
    let place = scrollsAt(point ?? [0, 0], dx, dy) ? point ?? [0, 0] : null;
    if (!place && !at) {
      let parts = [];
      try {
        parts = api.allElements();
      } catch {
        // more than are shown
      }
      const isCut = (part) => part.scrollHeight > part.clientHeight || part.scrollWidth > part.clientWidth;
      const areas = parts.filter((part) => isCut(part) && !/^(visible|clip)/.test(getComputedStyle(part).overflow))
        .map((part) => part.getBoundingClientRect()).sort((a, b) => b.width * b.height - a.width * a.height);
      const places = [[innerWidth / 2, innerHeight / 2], ...areas.map(inWindow).filter(Boolean).map(centre)];
      place = places.find((each) => scrollsAt(each, dx, dy)) ?? null;
    }
    const chain = place ? chainAt(place) : [];
    // A scroll in a shadow tree is told there alone.
    const listeners = place ? new Set([document, ...chain.map((part) => part.getRootNode())]) : [window];
    const event = !place ? 'wheel' : 'onscrollend' in window ? 'scrollend' : 'scroll';
    // Both come after the browser says that the wheel was turned. What is left that way in pixels, as a person sees on the
    // bar; -1 if the page left the wheel unused; null if nobody here can tell.
    api.wheeled = new Promise((resolve) => {
      const tell = (left) => {
        for (const each of listeners) each.removeEventListener(event, end, { capture: place !== null });
        resolve(left);
      };
      const end = ({ target, defaultPrevented }) => {
        if (!place) return tell(defaultPrevented ? null : -1);
        if (target !== document && !chain.includes(target)) return undefined; // something else has scrolled, by itself
        return tell(roomOf(target.scrollingElement ?? target, !dy)[(dy || dx) > 0 ? 1 : 0]);
      };
      for (const each of listeners) each.addEventListener(event, end, { capture: place !== null, passive: true });
      setTimeout(() => tell(null), FRAME.test(chain[0]?.localName) ? FRAME_WHEEL_MS : WHEEL_MS);
    });
    return place ?? point;
  };

  const placesIn = ({ left, top, right, bottom }, steps) => Array.from({ length: steps ** 2 }, (_, at) => [
    left + ((right - left) * (0.5 + (at % steps))) / steps, top + ((bottom - top) * (0.5 + Math.floor(at / steps))) / steps]);
  // Whether a click at a point is one on something to be clicked that is in the element: the button of a card, the items
  // below an item of a tree. (Those of a list, or in a label, are all there is of it; and so may be what hears of the
  // clicks in an item that does not itself, and what has all the text of such a one: the button of a calendar's day.)
  const isOnPart = (element, point) => {
    const hears = api.isClickable(element);
    if (!api.every || /^(label|select)$/.test(element.localName)) return false;
    if (!hears && !api.isActive(element) && !api.uses.has(element)) return false;
    const chain = chainAt(point);
    const parts = chain.slice(0, Math.max(chain.indexOf(element), 0));
    const isAll = (part) => part.textContent.trim() === element.textContent.trim();
    return parts.some((part) => (hears && api.uses.has(part)) || (api.isActive(part) && (hears || !isAll(part))));
  };
  // A place in one of the boxes where nothing covers the element, its centre if that is one: a part of it may be clipped,
  // or behind something.
  const freePlace = (element, boxes) => {
    const [STEPS, MOST] = [8, 20]; // a large table that is covered has thousands of boxes
    for (const box of boxes.map(inWindow).filter(Boolean).slice(0, MOST)) {
      const places = [centre(box), ...placesIn(box, STEPS)];
      const place = places.find((each) => isOnTop(element, each));
      if (!place) continue;
      if (!isOnPart(element, place)) return place;
      const texts = partsOf(element).slice(0, STEPS ** 2).map(inWindow).filter(Boolean).map(centre);
      return [...places, ...texts].find((each) => isOnTop(element, each) && !isOnPart(element, each)) ?? place;
    }
    return null;
  };
  // The same in the boxes of what is in an element, which may have none itself (`display: contents`, or all in it floats),
  // and of its labels: a box to tick is often out of sight, and drawn by what stands there.
  const otherPlace = (element) =>
    freePlace(element, [...partsOf(element), ...[...(element.labels ?? [])].flatMap((part) => [...part.getClientRects()])]);

  // An area of an image map has no box, and any shape: of places on its picture the first in it, none too near its edge
  // if there are others.
  const aimAtArea = (area) => {
    const name = area.closest('map')?.name;
    const image = [...document.images].find((each) => name && each.useMap === `#${name}` && usable(each));
    if (!image) return null;
    bringIntoView(image);
    const places = placesIn(image.getBoundingClientRect(), 24);
    const isIn = (x, y) => document.elementFromPoint(x, y) === area;
    const inner = ([x, y]) => isIn(x, y) && [-3, 3].every((by) => isIn(x + by, y) && isIn(x, y + by));
    return places.find(inner) ?? places.find((place) => isIn(...place)) ?? null;
  };

  // Playwright's `isElementVisible`, but for `display: contents`.
  const isVisible = (element) => {
    const style = getComputedStyle(element);
    if (style.display === 'contents') return true;
    const box = element.getBoundingClientRect();
    return element.checkVisibility() && style.visibility === 'visible' && box.width > 0 && box.height > 0;
  };

  // Whether something may show an element within `waitMs`: what the page has to do (`isIdle`), or what only the browser
  // does: load a picture, play a film, run an animation (endless ones and those in a shadow tree, too). Nobody here can
  // tell what a frame is about to do.
  const mayAppear = (element, waitMs) => {
    if (window.length > 0 || [element, ...document.images].some((image) => image.complete === false)) return true;
    const films = [...document.querySelectorAll('audio, video')];
    if (films.some((film) => !film.paused || film.networkState === HTMLMediaElement.NETWORK_LOADING)) return true;
    const isAnimated = (each) => each.getAnimations().some((animation) => animation.playState === 'running');
    return chainOf(element).some(isAnimated) || !api.isIdle(waitMs);
  };

  // The element that is clicked next. Where the mouse, by coming, has moved it away (a picture that is only loading), what is
  // there instead gets no click either, until `missed` is asked.
  let aimed = null;
  let isMissed = false;
  const guard = (event) => {
    if (!aimed || !event.isTrusted) return;
    if (event.type === 'pointerdown' && !isMissed) { // half of a double click is none
      const isHit = (part) => part === aimed || (part.localName === 'label' && part.control === aimed);
      isMissed = aimed.isConnected && !event.composedPath().some(isHit);
      if (!isMissed) aimed = null;
    }
    if (!isMissed) return;
    event.stopImmediatePropagation();
    if (event.type !== 'pointerdown') event.preventDefault(); // no mousedown would follow, whose focus can be prevented
  };
  const PRESSES = ['pointerdown', 'mousedown', 'pointerup', 'mouseup', 'click', 'dblclick', 'auxclick', 'contextmenu'];
  const aimAt = (element, point) => {
    [aimed, isMissed] = [point && element, false];
    for (const type of PRESSES) window.addEventListener(type, guard, true);
    return point;
  };
  api.missed = () => {
    const was = isMissed;
    [aimed, isMissed] = [null, false];
    return was;
  };

  // Where to click for a bid: [x, y]; null if this is not the common case; 'hidden' if it is not visible and nothing that
  // goes on could show it within `waitMs`. `presses`: it is clicked there, so that `missed` tells whether it was.
  api.aim = (bid, waitMs, presses) => {
    const element = findShown(bid);
    if (element instanceof HTMLAreaElement) return aimAtArea(element);
    if (element) bringIntoView(element);
    if (element && !isVisible(element) && !otherPlace(element) && !mayAppear(element, waitMs)) return 'hidden';
    const isOff = api.every && element?.localName === 'label' && element.control?.matches(':disabled');
    if (isOff) throw new Error('the field of this label is disabled');
    if (!element || !usable(element) || api.moving()) return null;
    const place = freePlace(element, boxesOf(element)) ?? otherPlace(element);
    return presses ? aimAt(element, place) : place;
  };

  // For Playwright, which clicks in the middle: where else, from the element's corner, if something to be clicked is there.
  api.aside = (bid) => {
    const element = findShown(bid);
    if (!element) return null;
    bringIntoView(element);
    const box = element.getBoundingClientRect();
    const place = inWindow(box) && isOnPart(element, centre(inWindow(box))) && freePlace(element, [box]);
    return place ? { x: place[0] - box.left - element.clientLeft, y: place[1] - box.top - element.clientTop } : null;
  };

  // What was filled or chosen last: the element, its value before, and the one that it was to have.
  let filled = null;
  const valueOf = (element) => (element.isContentEditable ? element.textContent
    : Array.from(element.selectedOptions ?? [element], ({ value }) => value).join('\n'));
  const remember = (element, wanted, isTyped = false) => {
    filled = { element, before: valueOf(element), wanted, isTyped, hadInput: false, hadKey: false, at: element };
  };
  // A text that is put in at once comes without keys: some pages look at it when one goes up, in the field or anywhere
  // above it (suggestions, what is left of a text).
  const keyUp = (element, key) => {
    const keyCode = /^[a-z0-9 ]$/i.test(key) ? key.toUpperCase().charCodeAt(0) : 0; // '.' as a code is Delete, '(' an arrow
    element.dispatchEvent(new KeyboardEvent('keyup', { key, keyCode, bubbles: true, cancelable: true, composed: true }));
  };
  window.addEventListener('input', (event) => {
    if (!filled || !event.isTrusted) return;
    const at = filled.at = event.composedPath()[0];
    const key = [...filled.wanted].pop();
    const isTyped = !event.inputType?.startsWith('insert') || (filled.isTyped && event.data?.length === 1);
    if (!api.every || filled.hadKey || isTyped || !key || !filled.element.contains(at)) return;
    filled.hadKey = true;
    setTimeout(() => keyUp(at, key), 0); // once the page has heard of the input
  }, true);
  // Why that is what it was before, or is only a part of it, for the agent, or ''; a page that writes what it has been
  // given in another way has not put it back.
  api.whyPutBack = () => {
    const { element, before, wanted, at } = filled ?? {};
    if (!element?.isConnected) return '';
    const [value, isOwn] = [valueOf(element), element.contains(at)]; // a code's fields pass the focus on to the next one
    const next = wanted.startsWith(value) ? wanted.codePointAt(value.length) ?? 0 : 0;
    const room = element.maxLength - value.length;
    if (isOwn && next && room >= 0 && room < String.fromCodePoint(next).length) {
      const [taken, all] = [value, wanted].map((text) => [...text].length); // the browser cuts before an emoji, not in it
      return `the field takes at most ${taken} of the ${all} characters: the rest was left out`;
    }
    const tidy = (text) => text.replace(/(?!^-)[\s(),-]+/g, '').toLowerCase();
    if (value !== before || tidy(before) === tidy(wanted)) return '';
    if (!isOwn) return 'the page moved the focus: what was filled in went to another element';
    return 'the page did not keep what was filled in or chosen: it is as it was before';
  };

  const changed = (element) => {
    element.dispatchEvent(new Event('input', { bubbles: true, composed: true }));
    element.dispatchEvent(new Event('change', { bubbles: true }));
  };

  // Selects all text of a field, ready for input: 'selected', 'keys' if it listens to them, or 'elsewhere' if it leaves the
  // focus to another; or sets `value` where a field takes no text: 'set', or the field's type if that is none of its values.
  // False if this is not the common case.
  api.selectField = (bid, value) => {
    const element = reach(bid);
    if (!element || !usable(element) || element.readOnly) return false;
    const rect = element.getBoundingClientRect();
    if (!rect.width || !rect.height) return false;
    const isNumber = element.type === 'number' && (!value || (value === value.trim() && !Number.isNaN(Number(value))));
    if (element instanceof HTMLInputElement && (TYPED.has(element.type) || isNumber)) {
      element.select();
    } else if (element instanceof HTMLTextAreaElement) {
      element.selectionStart = 0;
      element.selectionEnd = element.value.length;
    } else if (element instanceof HTMLInputElement && SET.has(element.type)) {
      remember(element, value);
      element.focus();
      element.value = value.trim();
      // A slider goes as far as it can, and a time may be written in another way.
      const isValue = { color: element.value !== '#000000' || value.trim() === element.value,
        range: value !== '' && !Number.isNaN(Number(value)) };
      if (!(isValue[element.type] ?? (element.value !== '' || value === ''))) {
        element.value = filled.before;
        return element.type;
      }
      filled.wanted = element.value;
      changed(element);
      return 'set';
    } else {
      return false;
    }
    const hearsKeys = api.hearsKeys(element);
    remember(element, value, hearsKeys);
    element.focus();
    if (focused(element) !== element) return 'elsewhere';
    return hearsKeys ? 'keys' : 'selected';
  };

  // Whether the element has had input since it was watched.
  api.watchInput = (bid, wanted = '') => {
    const element = find(bid)?.control ?? find(bid);
    filled = null;
    if (!element) return;
    remember(element, String(wanted));
    const mine = filled;
    element.addEventListener('input', () => Object.assign(mine, { hadInput: true, wanted: valueOf(element) }),
      { capture: true, once: true });
  };
  api.hadInput = () => filled?.hadInput ?? false;

  // What became of the browser's own drag that was begun since it was watched: 'none' if no place took it; null: there was
  // none, as where a page follows the mouse.
  let effect = null;
  const onDragEnd = (event) => { if (event.isTrusted) effect = event.dataTransfer.dropEffect; };
  api.watchDrag = () => {
    effect = null;
    window.addEventListener('dragend', onDragEnd, true);
  };
  api.dropped = () => effect;

  // The keys of DevTools are none that the browser finds an element by (`accesskey`), nor that it does something by itself.
  const OWN_KEYS = /^(Alt\+Arrow(Left|Right)|Control\+[dfhjlnopstuw]|F([13]|1[12]))$/i;
  let ownKey = '';
  const pressAccessKey = (event, key) => {
    const element = [...document.querySelectorAll('[accesskey]')].find((each) => each.accessKey.toLowerCase() === key);
    if (!element || !usable(element)) return;
    event.preventDefault();
    element.focus();
    const isText = element.localName === 'textarea' || (element instanceof HTMLInputElement && TYPED.has(element.type));
    if (!isText) element.click();
  };
  window.addEventListener('keydown', (event) => {
    if (!api.every || api.watched || !event.isTrusted || event.metaKey) return; // a person's keys are the browser's
    if (event.altKey && !event.ctrlKey) pressAccessKey(event, event.key.toLowerCase());
    setTimeout(() => { // once the page has heard of it
      const key = `${event.ctrlKey ? 'Control+' : ''}${event.altKey ? 'Alt+' : ''}${event.key}`;
      if (event.defaultPrevented) return;
      if (OWN_KEYS.test(key)) ownKey = key;
      if (!/^(F5|Control\+(F5|r))$/i.test(key)) return;
      try {
        window.top.location.reload();
      } catch {
        // of another origin
      }
    }, 0);
  }, true);

  // Whether what is typed goes to an element.
  api.hasFocus = () => {
    const element = document.activeElement;
    return element !== null && (element !== document.body || element.isContentEditable);
  };

  // The click on a field of files, which opens a dialog, until files are chosen.
  let asked = null;
  window.addEventListener('click', (event) => { if (event.composedPath()[0].type === 'file') asked = event; }, true);
  window.addEventListener('input', () => { asked = null; }, true);
  document.addEventListener('__webrl-files', ({ detail }) => { asked = detail ? { defaultPrevented: false } : null; });

  // Nothing else shows that a page, or a frame in it, is printed. (Events reach other frames' worlds in every Chromium, and
  // nothing while a page is being printed.)
  let printed = false;
  document.addEventListener('__webrl-print', () => { printed = true; });
  window.addEventListener('beforeprint', () => setTimeout(() => {
    try {
      window.top.document.dispatchEvent(new Event('__webrl-print'));
    } catch {
      // of another origin
    }
  }, 0));

  // Nor that the browser's own menu is open.
  let hasMenu = false;
  window.addEventListener('contextmenu', (event) => setTimeout(() => { hasMenu ||= !event.defaultPrevented; }, 0), true);

  // Puts the focus on an element; `fromStart`: with the caret before its text if it was elsewhere. False if there is no
  // such element, 'disabled' or 'elsewhere' if it takes none.
  api.focusOn = (bid, fromStart) => {
    const element = reach(bid);
    if (!element) return false;
    if (element.matches(':disabled')) return 'disabled';
    const wasFocused = focused(element) === element;
    if (element.isContentEditable && !wasFocused) document.activeElement?.blur();
    element.focus();
    if (fromStart && !wasFocused && element instanceof HTMLInputElement && TYPED.has(element.type)) {
      try {
        element.setSelectionRange(0, 0);
      } catch {
        // e-mail fields have no selection
      }
    }
    const active = focused(element);
    const isIn = active !== document.body && (element.contains(active) || active?.contains(element));
    return isIn || element === document.body ? true : 'elsewhere';
  };

  // Says of an option whether a text means it: its value or label; where no option has just that, its label as it is
  // shown, without the white space at its ends, or as one blank.
  const matcher = (select, wanted) => {
    const tidy = (text) => (text.toWellFormed?.() ?? text).replace(/\s+/g, ' ').trim();
    const isNamed = (option, text) => text === option.value || text === option.label;
    const loose = new Set(wanted.filter((text) => ![...select.options].some((option) => isNamed(option, text))));
    return (option, text) => isNamed(option, text) || (loose.has(text) && tidy(text) === tidy(option.label));
  };
  const choose = (select, options) => {
    remember(select, '');
    select.value = undefined;
    for (const option of options) option.selected = true;
    filled.wanted = valueOf(select);
    changed(select);
  };
  // Selects options by value or label; the first of the wanted that nobody could choose, as text; false if this is not the
  // common case.
  api.choose = (bid, wanted) => {
    const select = reach(bid);
    if (!(select instanceof HTMLSelectElement)) return false;
    const fits = matcher(select, wanted);
    const enabled = [...select.options].filter((option) => !option.matches(':disabled'));
    const isIn = (options, text) => [...options].some((option) => fits(option, text));
    const disabled = wanted.find((text) => isIn(select.options, text) && !isIn(enabled, text));
    if (disabled !== undefined) return disabled;
    if (!usable(select)) return false;
    let missing = [...wanted];
    const chosen = [];
    for (const option of enabled) {
      if (!missing.some((text) => fits(option, text))) continue;
      chosen.push(option);
      missing = select.multiple ? missing.filter((text) => !fits(option, text)) : [];
      if (!select.multiple) break;
    }
    if (missing.length) return false;
    choose(select, chosen);
    return true;
  };

  // Selects the option of a closed list, which has no place to click; false for anything else.
  api.pick = (bid) => {
    const option = reach(bid);
    const select = option instanceof HTMLOptionElement && !option.matches(':disabled') ? option.closest('select') : null;
    if (!select || select.multiple || select.size > 1 || !usable(select)) return false;
    if (option.selected) return true;
    choose(select, [option]);
    return true;
  };

  // State of a checkbox or radio button; null for anything else.
  api.checked = (bid) => {
    const element = find(bid);
    return element instanceof HTMLInputElement && /^(checkbox|radio)$/.test(element.type) ? element.checked : null;
  };

  // What a part of the page that speaks up has said since the last look, and says no more: a toast that is gone at once.
  const LIVE = '[aria-live=assertive], [aria-live=polite], [role=alert], [role=status], output';
  const MAX_SAID = 3;
  let said = new Map(); // part -> its words
  let hears = false;
  const hear = (records) => {
    for (const { target, addedNodes } of records) {
      for (const node of [target, ...addedNodes]) {
        const element = node instanceof Element ? node : node.parentElement;
        const part = element?.closest(LIVE) ?? (node === target ? null : element?.querySelector(LIVE));
        if (part?.textContent.trim() && part.getBoundingClientRect().width > 1) said.set(part, part.textContent.trim());
      }
    }
  };
  const takeSaid = () => {
    if (!hears && api.every) new MutationObserver(hear).observe(document, { subtree: true, childList: true, characterData: true });
    hears = api.every;
    const gone = [...said].filter(([part]) => !part.isConnected || !part.textContent.trim()).map(([, words]) => words);
    said = new Map();
    return gone.filter((words) => !document.body?.textContent.includes(words)).slice(0, MAX_SAID)
      .map((words) => `for a moment the page said ${JSON.stringify(words.replace(/\s+/g, ' ').slice(0, 200))}`);
  };

  // Waits until the page is quiet, then says all there is to know about it in one answer.
  // `form` is the kind of observation that will be taken: `axtree` needs the ids in the accessibility tree. `from`:
  // number of the document's first element. `copied`: what was copied on another page, or null.
  api.look = async (horizonMs, capMs, hiddenIds, form, from, copied) => {
    if (copied) api.giveCopied(copied);
    const open = await api.settle(horizonMs, capMs);
    if (document.fullscreenElement) await document.exitFullscreen().catch(() => {}); // as a person does with Escape
    const missing = document.readyState === 'loading' && [...document.querySelectorAll('script[src], link[rel=stylesheet]')]
      .map((part) => part.src ?? part.href).filter((url) => !performance.getEntriesByName(url).length);
    const { responseStatus, decodedBodySize, responseEnd } = performance.getEntriesByType('navigation')[0] ?? {};
    const later = form !== 'axtree' || !api.every ? 0 : [...document.querySelectorAll('iframe[loading=lazy]')].filter((frame) =>
      (frame.srcdoc || !/^(about:blank)?$/.test(frame.src)) && frame.contentDocument?.URL === 'about:blank' && frame.checkVisibility() &&
      !inWindow(frame.getBoundingClientRect())).length;
    const isEmpty = !missing && responseStatus && responseEnd && !decodedBodySize && !document.body?.firstChild;
    const told = [...takeSaid(), asked?.defaultPrevented === false && 'a file dialog was opened, and closed without a file',
      printed && 'a print dialog was opened, and closed', open && `requests of this page that are not answered yet: ${open}`,
      hasMenu && api.every && 'the menu of the browser itself was opened, and closed',
      ownKey && `${ownKey} does nothing here but what the page makes of it`,
      later && `frames of this page that load once they are scrolled to: ${later}`,
      isEmpty && `the server answered with an empty page (status ${responseStatus})`, missing &&
        `this page is still loading; not here yet: ${missing.join(', ') || 'its end'}`.slice(0, 300)];
    [asked, printed, hasMenu, ownKey] = [null, false, false, ''];
    const seen = { url: location.href, state: api.state(), copied: api.takeCopied(), told: told.filter(Boolean) };
    if (document.pointerLockElement) document.exitPointerLock(); // the mouse would be nowhere
    return Object.assign(seen, api.tryToMark('', hiddenIds, form === 'axtree', from));
  };
})();
