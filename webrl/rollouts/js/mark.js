// Gives every standard HTML element BrowserGym's id (`bid`) and writes it into ARIA attributes, so that the
// accessibility tree carries it. Same elements, order and ids as browsergym/core/javascript/frame_mark_elements.js
// (Apache-2.0); left out are visibility ratio and set-of-marks, which no text observation prints and which cost most
// of its 45 ms.
(() => {
  const api = window.__webrl;
  if (api.mark) return;
  const TAGS = new Set(('a abbr acronym address applet area article aside audio b base basefont bdi bdo big blockquote ' +
    'body br button canvas caption center cite code col colgroup data datalist dd del details dfn dialog dir div dl ' +
    'dt em embed fieldset figcaption figure font footer form frame frameset h1 h2 h3 h4 h5 h6 head header hgroup hr ' +
    'html i iframe img input ins kbd label legend li link main map mark menu meta meter nav noframes noscript object ' +
    'ol optgroup option output p param picture pre progress q rp rt ruby s samp script search section select small ' +
    'source span strike strong style sub summary sup svg table tbody td template textarea tfoot th thead time title ' +
    'tr track tt u ul var video wbr').split(' '));
  const ARIA = ['aria-roledescription', 'aria-description'];
  const PREFIX = /^browsergym_id[^\s]*\s/;
  // A page beyond this is not shown: its tree would take hundreds of megabytes in every process on the way.
  const MAX_ELEMENTS = 50000;
  const TooLarge = class extends Error {
    constructor() { super(`more than ${MAX_ELEMENTS} elements`); }
  };
  // A form's `children` or `style` is its field of that name: what it has itself, or does, by one.
  const ask = api.ask = (element, name, ...args) => {
    const own = element instanceof HTMLFormElement ? Reflect.get(HTMLFormElement.prototype, name, element) : element[name];
    return typeof own === 'function' ? own.apply(element, args) : own;
  };
  // What has a field named as what is asked of every element stays without an id: nothing acts on a form.
  const ASKED = ('getAttribute setAttribute hasAttribute removeAttribute matches tagName textContent innerText inert ' +
    'ariaHidden checkVisibility contains getBoundingClientRect querySelector querySelectorAll').split(' ');
  const isShadowed = (element) => element instanceof HTMLFormElement && ASKED.some((name) => Object.hasOwn(element, name));
  let counter = 0;
  let first = 0; // what is counted from: `from` of the last `mark`
  let frameCounter = 0;

  // All elements in document order, open shadow roots included.
  const allElements = (root = document) => {
    const found = [];
    if (root === document && document.getElementsByTagName('*').length > MAX_ELEMENTS) throw new TooLarge();
    for (const element of root.querySelectorAll('*')) {
      found.push(element);
      if (element.shadowRoot) for (const inner of allElements(element.shadowRoot)) found.push(inner);
      if (found.length > MAX_ELEMENTS) throw new TooLarge();
    }
    return found;
  };
  api.allElements = allElements;

  // 'a' … 'z', 'aA', 'bA': all letters but the first are upper case, lowest digit first.
  const frameName = (number) => {
    const letters = [];
    let rest = number;
    do {
      letters.push(String.fromCharCode(97 + (rest % 26)));
      rest = Math.floor(rest / 26) - 1;
    } while (rest >= 0);
    return letters.reverse().map((letter, i) => (i ? letter.toUpperCase() : letter)).join('');
  };

  // What has a role of its own to be acted on by; the tree tells it.
  const ROLES = 'button checkbox combobox gridcell link listbox menuitem menuitemcheckbox menuitemradio option radio ' +
    'searchbox slider spinbutton switch tab textbox treeitem';
  const ACTIVE = 'a[href], area[href], audio, button, embed, iframe, input, label, object, option, select, summary, textarea, ' +
    `video, ${ROLES.split(' ').map((role) => `[role=${role}]`).join(', ')}`;
  // Parents as they are drawn: a slot has what it is given.
  const parentOf = api.parentOf = (element) =>
    ask(element, 'assignedSlot') ?? ask(element, 'parentElement') ?? element.getRootNode().host ?? null;
  const isActive = api.isActive = (element) => ask(element, 'matches', ACTIVE) || ROLES.split(' ').includes(api.innerRole(element));
  const isEditor = (element) => element.isContentEditable && !element.parentElement?.isContentEditable;
  const findAbove = (element, has) => {
    let above = parentOf(element);
    while (above && !has(above)) above = parentOf(above);
    return above;
  };
  const isInActive = (element) => findAbove(element, isActive) !== null;
  // The x of a chip: it does something else than the button or link that it is in, of which it is not the whole.
  const isPartOfActive = (element) => {
    const above = findAbove(element, isActive);
    if (!above || above.matches('label, select') || above.textContent.trim() === element.textContent.trim()) return false;
    const box = element.getBoundingClientRect();
    return box.width > 0 && box.height > 0;
  };
  const holdsActive = (root) => root.querySelector(`${ACTIVE}, [tabindex], [contenteditable]`) !== null ||
    [root, ...root.querySelectorAll('*')].some((part) => (part.shadowRoot ? holdsActive(part.shadowRoot)
      : part.localName === 'slot' && part.assignedElements().some((given) => isActive(given) || holdsActive(given))));
  const isShape = (element) => element instanceof SVGGeometryElement;
  const hasPointer = (element) => getComputedStyle(element).cursor === 'pointer';
  const saysSomething = (element) => element.shadowRoot !== null || element.textContent.trim() !== '' ||
    element.matches('[aria-label], [title]') || element.querySelector('img, svg, [aria-label], [title]') !== null;

  // Whether a person sees an element that has no content: a shape of a drawing, the empty cell of a board. A transparent
  // area shows nothing, and one that covers most of the window is there to catch clicks.
  const MIN_SIDE_PX = 4;
  const isDrawn = (element) => {
    const { width, height } = element.getBoundingClientRect();
    if (2 * width * height > innerWidth * innerHeight) return false;
    const style = getComputedStyle(element);
    const isPicture = style.content.startsWith('url'); // no page waits for it, nor is its size known before it has come
    if (!isPicture && Math.min(width, height) < MIN_SIDE_PX) return false;
    if (!element.checkVisibility({ checkOpacity: true, checkVisibilityCSS: true })) return false;
    if (isShape(element)) return style.fill !== 'none' || style.stroke !== 'none';
    if (element.localName === 'img' || isPicture) return true;
    const hasBorder = style.borderStyle !== 'none' && style.borderWidth !== '0px';
    return hasBorder || style.backgroundImage !== 'none' || !/^(transparent|rgba\(.*, 0\))$/.test(style.backgroundColor);
  };

  // The file, class or id of an icon: all that names one which the page names for nobody; a shape's id or class. '' for
  // what has a name or text.
  // (By attributes: a form's `id` is its field of that name.)
  const MAX_HINT = 48;
  const hintOf = (element) => {
    if (element.childElementCount > 3 || /[^\s\ue000-\uf8ff]/.test(element.textContent) || element.labels?.length) return '';
    if (element.matches('[aria-label], [aria-labelledby], [title], [placeholder], [alt]:not([alt=""])')) return '';
    if (isShape(element)) return (element.id || element.getAttribute('class') || '').slice(0, MAX_HINT);
    const inner = element.querySelector('img, svg, use, i, span');
    const path = element.getAttribute('src') ?? element.getAttribute('href') ?? element.getAttribute('xlink:href') ?? '';
    const file = path.startsWith('data:') || element.localName === 'a' ? '' : path.split(/[?]/)[0].split(/[/#]/).pop();
    const own = file || element.getAttribute('class') || element.getAttribute('id') || '';
    const hint = (inner ? hintOf(inner) || own : own).trim();
    return hint.length > MAX_HINT ? hint.split(/\s+/).pop().slice(-MAX_HINT) : hint;
  };

  // What a person sees by an element's color and attributes do not say: the tab or the page of results that is shown, the
  // button that is down. Stylesheets call it by these words, on the element or on its item in a list.
  const STATE = /(?:^|\s)(?:is-|ui-state-)?(active|selected|current|checked|disabled)(?=\s|$)/;
  const SAYS_STATE = ':disabled, [aria-selected], [aria-current], [aria-checked], [aria-pressed], [aria-disabled]';
  const stateOf = (element) => {
    const item = element.parentElement?.localName === 'li' ? element.parentElement : element;
    const [, state] = STATE.exec(element.getAttribute('class')) ?? STATE.exec(item.getAttribute('class')) ?? [];
    if (!state || element.matches(`label, ${SAYS_STATE}`) || item.matches(SAYS_STATE)) return '';
    return isActive(element) || api.uses.has(element) ? state : '';
  };

  // What a field offers once it is clicked, and its hint where that is not its name.
  const MAX_OFFERS = 20;
  const NAMED = '[aria-label], [aria-labelledby], [title]';
  const quoted = (words) => JSON.stringify(words).replace(/\s+/g, ' ');
  const offersOf = (element) => {
    const options = Array.from(ask(element, 'list')?.options ?? []).slice(0, MAX_OFFERS);
    return options.length ? `offers=${quoted(options.map((option) => option.value.slice(0, MAX_HINT)))}` : '';
  };
  const placeholderOf = (element) => {
    const own = element.getAttribute('aria-placeholder') ?? '';
    const isField = /^(input|textarea)$/.test(element.localName);
    const hint = isField ? (element.value ? '' : element.placeholder || own) : (own && !element.textContent.trim() ? own : '');
    if (!hint || !(element.labels?.length || element.matches(NAMED))) return '';
    return `placeholder=${quoted(hint.slice(0, MAX_HINT))}`;
  };
  // A line through its text, by a style alone: `<s>` and `<del>` have a role.
  let struck = new Set();
  const isStruck = (element) => element.firstChild !== null &&
    getComputedStyle(element).textDecorationLine.includes('line-through') &&
    !element.matches('s, strike, del') && element.textContent.trim() !== '';
  // What a person sees that attributes say, or the small text above another, and the tree leaves out.
  const SAID = { 'aria-current': 'current', 'aria-invalid': 'invalid', 'aria-sort': 'sort', 'aria-valuetext': 'valuetext' };
  const SAYS = Object.keys(SAID).map((name) => `[${name}]`).join(', ');
  // Words for readers alone: those that a person sees have a line of their own.
  const descriptionOf = (element) => {
    if (!element.matches('[aria-describedby], [aria-description]')) return '';
    const ids = element.getAttribute('aria-describedby')?.split(/\s+/) ?? [];
    const root = ask(element, 'getRootNode');
    const parts = ids.map((id) => id && root.getElementById(id)).filter((part) => part && !ask(part, 'checkVisibility'));
    const own = (element.getAttribute('aria-description') ?? '').replace(PREFIX, '');
    return [...parts.map((part) => ask(part, 'textContent')), own].map((text) => text.trim()).filter(Boolean).join(' ').slice(0, 200);
  };
  const saidOf = (element) => {
    const above = element.localName === 'ruby' ? [...element.querySelectorAll('rt')].map((part) => part.textContent) : [];
    const said = element.matches(SAYS) ? Object.entries(SAID).map(([name, word]) => [word, element.getAttribute(name)]) : [];
    // A box to tick that is not drawn: its label shows its state.
    const isTicked = element.localName === 'label' && element.control?.checked === true && !element.control.checkVisibility();
    said.push(['ruby', above.join(' ')], ['checked', `${isTicked}`], ['struck', `${struck.has(element)}`],
      ['description', descriptionOf(element)]);
    return said.filter(([, value]) => value && !/^(false|none)$/.test(value))
      .map(([word, value]) => (value === 'true' ? word : `${word}=${quoted(value)}`)).join(', ');
  };
  const tellsOf = (element) =>
    [offersOf(element), placeholderOf(element), saidOf(element), stateOf(element)].filter(Boolean).join(', ');
  // Shown while the mouse is over it, by the browser alone.
  const titleOf = (element) => {
    const title = element.getAttribute('title')?.trim();
    return !title || element.textContent.includes(title) ? '' : title;
  };

  // What a person sees of an SVG shape or text that can be clicked or that no text names, and of a canvas, of which no more
  // is known: its kind, color, size and center in pixels of the window.
  const COLORS = { '0,0,0': 'black', '255,255,255': 'white', '255,0,0': 'red', '0,128,0': 'green', '0,0,255': 'blue',
    '255,255,0': 'yellow', '0,255,255': 'cyan', '255,0,255': 'magenta', '128,128,128': 'gray', '255,165,0': 'orange' };
  const colorOf = (paint) => {
    const parts = /^rgba?\((\d+), (\d+), (\d+)/.exec(paint)?.slice(1, 4);
    return !parts ? '' : COLORS[parts] ?? `#${parts.map((part) => Number(part).toString(16).padStart(2, '0')).join('')}`;
  };
  const MIN_DRAWING_PX = 64;
  const isDrawing = api.isDrawing = (element) => {
    if (element.localName !== 'canvas' || element.textContent.trim() || element.matches('[aria-label], [title]')) return false;
    const { width, height } = element.getBoundingClientRect();
    return Math.min(width, height) >= MIN_DRAWING_PX && element.checkVisibility({ checkVisibilityCSS: true });
  };
  const shapeOf = (element) => {
    const isText = element instanceof SVGTextElement;
    const isCanvas = isDrawing(element);
    if (!isText && !isShape(element) && !isCanvas) return '';
    const box = element.getBoundingClientRect();
    const style = getComputedStyle(element);
    const corners = element.points?.numberOfItems;
    const kind = corners === 3 ? 'triangle' : { rect: box.width === box.height ? 'square' : 'rectangle', canvas: 'drawing' }[element.localName]
      ?? element.localName;
    const size = isText ? style.fontSize : `${Math.round(box.width)}x${Math.round(box.height)}`;
    const place = `${Math.round(box.left + box.width / 2)},${Math.round(box.top + box.height / 2)}`;
    return [kind, isCanvas ? '' : colorOf(style.fill) || colorOf(style.stroke), size, `at ${place}`].filter(Boolean).join(' ');
  };

  // What a person counts: small boxes that are all there is in an element, by their color and size.
  const MAX_BOX_PX = 64;
  const boxesOf = (element) => {
    if (!element.firstElementChild || element.firstElementChild.firstChild) return '';
    const parts = [...ask(element, 'children')];
    if (parts.some((part) => part.firstChild || isShape(part) || isActive(part) || api.uses.has(part))) return '';
    if (element.textContent.trim() || isActive(element) || isInActive(element) || !parts.every(isDrawn)) return '';
    const counts = {};
    for (const part of parts) {
      const { width, height } = part.getBoundingClientRect();
      if (Math.max(width, height) > MAX_BOX_PX || part.matches('img')) return '';
      const { backgroundColor } = getComputedStyle(part);
      const color = backgroundColor.endsWith(', 0)') ? '' : `${colorOf(backgroundColor)} `;
      const look = `${color}${Math.round(width)}x${Math.round(height)}`;
      counts[look] = (counts[look] ?? 0) + 1;
    }
    return Object.entries(counts).map(([look, count]) => `${count} ${count > 1 ? 'boxes' : 'box'} ${look}`).join(', ');
  };

  // What is dropped anywhere on a page needs no place.
  const isMost = (element) => 2 * element.getElementsByTagName('*').length > document.getElementsByTagName('*').length;

  // Nobody sees it, nor what its style may draw in it, and the keys do not reach it.
  const isEmptyLabel = (element) => element.localName === 'label' && !element.firstElementChild && !element.textContent.trim() &&
    [...element.getClientRects()].every(({ width, height }) => !width || !height) &&
    ['::before', '::after'].every((part) => getComputedStyle(element, part).content === 'none');

  // What says that it is a control, by its state or its class, and has somebody above it who hears of its clicks: pages
  // leave that to their root, with no pointer drawn.
  const STATED = '[aria-expanded], [aria-haspopup]:not([aria-haspopup=false]), [data-action], [data-toggle], ' +
    '[data-bs-toggle], li[data-value]';
  const CALLED = new RegExp('(?:^|[\\s_-])(btn|button|clickable|close|dropdown|option|select|tab|toggle|trigger|' +
    '(accordion[_-]header|(dropdown|menu|select)[_-]item))(?=\\s|__|$)', 'i');
  const isHeard = (element) => {
    const isCalled = element.matches(STATED) || CALLED.test(element.getAttribute('class'));
    return isCalled && findAbove(element, api.isClickable) !== null;
  };

  // How an element can be acted on where the tree tells nothing of that; '' if it cannot. A pointer or a listener alone may
  // be there for what is inside, a `tabindex` of -1 for a program that puts the focus there, and what says nothing for
  // the mouse of a person (a column's edge) or for the focus (a trap).
  const useOf = (element) => {
    if (isEditor(element)) return 'editable'; // a text with its markup
    if (isEmptyLabel(element)) return '';
    if (isActive(element)) return 'clickable'; // the tree drops roles in the wrong place, an option outside of a list
    const parent = parentOf(element);
    if (element.isContentEditable || !parent || element === document.body || element.localName === 'slot') return '';
    if (element.draggable && element.localName !== 'img') return 'draggable';
    const points = hasPointer(element) && !hasPointer(parent);
    const isFocusable = element.tabIndex >= 0;
    const listens = api.isClickable(element);
    const isUsed = listens || isFocusable || isHeard(element);
    if (points || isUsed || element.hasAttribute('tabindex')) {
      const isSure = !element.shadowRoot && (isFocusable || (points && listens));
      if (listens && isPartOfActive(element)) return 'clickable';
      const isSeen = points || saysSomething(element) || (isUsed && isDrawn(element));
      if (isSeen && !isInActive(element) && (isSure || !holdsActive(element))) return 'clickable';
    }
    return api.isDropTarget(element) && !isMost(element) ? 'droppable' : '';
  };

  // State is written where only attributes are read. A form that is reset has what the page gave it all the same.
  const given = new WeakMap(); // element -> attribute -> [what the page gave, what was written over it]; null: none
  const write = (element, name, value) => {
    if (value === null) element.removeAttribute(name);
    else element.setAttribute(name, value);
  };
  const writeOver = (element, name, value) => {
    const [now, before] = [element.getAttribute(name), given.get(element) ?? {}];
    if (now === value) return;
    given.set(element, { ...before, [name]: [now === before[name]?.[1] ? before[name][0] : now, value] });
    write(element, name, value);
  };
  window.addEventListener('reset', ({ target }) => {
    for (const field of ask(target, 'elements')) {
      for (const [name, [own, ours]] of Object.entries(given.get(field) ?? {})) {
        if (field.getAttribute(name) === ours) write(field, name, own);
      }
    }
  }, true);
  const writeState = (element) => {
    // A date of which a part is missing would be gone; the label of a button, the number of an item, and what an option of
    // another text is, are those without the attribute.
    const isOwn = element.validity?.badInput ||
      (api.every && (!element.value || element.localName === 'option') && !element.hasAttribute('value'));
    if (element.value !== undefined && !isOwn) writeOver(element, 'value', String(element.value));
    if (element.checked !== undefined) writeOver(element, 'checked', element.checked ? '' : null);
  };

  let marked = new Map();
  // The element with an id, in an open shadow root too.
  api.find = (bid) => {
    const element = document.querySelector(`[bid="${CSS.escape(bid)}"]`) ?? marked.get(bid);
    return element?.isConnected && element.getAttribute('bid') === bid ? element : null;
  };
  // What elements that can be used, and their rows, said when they were shown, and where they led.
  let shown = new Map();
  const ROWS = 'article, li, tr, [role=listitem], [role=option], [role=row]';
  const rowOf = (element) => element.parentElement?.closest(ROWS) ?? element.parentElement;
  const saysOf = (element) =>
    [ask(element, 'textContent').replace(/\s+/g, ' ').trim().slice(0, 200), ask(element, 'getAttribute', 'href')];
  const show = (element) => { if (element && !shown.has(element)) shown.set(element, saysOf(element)); };
  // The element with an id. Throws where the page uses it, or its row, for another item by now: one that was in another like
  // it, or whose own is in another now, or that leads elsewhere. (A clock, or a button that says what it does next, is none.)
  api.findShown = (bid) => {
    const element = api.find(bid);
    for (const part of shown.has(element) ? [element, rowOf(element)].filter(Boolean) : []) {
      const [[words, href], [now, leads]] = [shown.get(part) ?? saysOf(part), saysOf(part)];
      if (words === now || !/\p{L}/u.test(words)) continue;
      const hasMoved = ([other, [before]]) => other !== part && other.localName === part.localName &&
        before !== saysOf(other)[0] && (before === now || saysOf(other)[0] === words);
      const isSame = href === leads || words.replace(/\d+/g, '') === now.replace(/\d+/g, '');
      if (isSame && ![...shown].some(hasMoved)) continue;
      throw new Error(`the page has put another item in its place: ${JSON.stringify(now)}, no longer ${JSON.stringify(words)}`);
    }
    return element;
  };

  // Gives elements a style that the page does not set; returns what puts theirs back. (Never by attribute: a page's policy
  // may forbid that.)
  const restyle = (elements, name, value) => {
    const before = elements.map((element) => {
      const style = ask(element, 'style');
      return { style, own: [name, style.getPropertyValue(name), style.getPropertyPriority(name)], had: element.hasAttribute('style') };
    });
    for (const { style } of before) style.setProperty(name, value, 'important');
    return () => before.forEach(({ style, own, had }, at) => {
      style.setProperty(...own);
      if (!had && !elements[at].getAttribute('style')) elements[at].removeAttribute('style');
    });
  };
  api.withStyle = (elements, name, value, act) => {
    const putBack = restyle(elements, name, value);
    act();
    putBack();
  };

  // Chromium before 138 crashes where its tree is asked for while a picker is open: 119 with one of a date or color, 126 with
  // a list as well. The picker of an element that is not drawn closes; its focus would be taken later.
  const CRASHES = /Chrome\/1([0-2]\d|3[0-7])\./.test(navigator.userAgent);
  const PICKS = /^(select-one|color|date|datetime-local|month|time|week)$/;
  const closePicker = (element) => {
    api.withStyle([element], 'display', 'none', () => element.getBoundingClientRect());
    element.getBoundingClientRect();
  };

  // Returns the ids inside `hiddenIds` subtrees (they are kept from the observation), the number of frames and, by id,
  // the uses that the tree does not tell, with titles and hints (null but where `api.every` asks for them).
  // `intoAria`: whether to write the ids where the accessibility tree shows them.
  // `from`: number of the document's first element.
  // A page that is too large is not marked: `tooLarge`.
  api.tryToMark = (...args) => {
    try {
      return api.mark(...args);
    } catch (error) {
      if (!(error instanceof TooLarge)) throw error;
      return { tooLarge: error.message, hidden: [], frames: 0, uses: null, unseen: 0 };
    }
  };
  api.mark = (parentBid, hiddenIds, intoAria, from = 0) => {
    first = from;
    const owners = marked = new Map();
    const all = allElements();
    const elements = all.filter((element) => !isShadowed(element));
    let numFrames = 0;
    if (CRASHES && intoAria) elements.filter((each) => each.matches(':focus') && PICKS.test(each.type)).forEach(closePicker);
    if (api.every) api.learn(all);
    findPages();
    cover();
    if (api.every && intoAria) draw(elements);
    api.uses = findUses(elements);
    const unseen = api.every && intoAria ? reveal(elements) : 0;
    for (const element of revealed) element.removeAttribute('aria-hidden');
    for (const element of elements) if (markOne(element, parentBid, owners, intoAria) && isFrame(element)) numFrames += 1;
    if (intoAria) watch(elements, parentBid, owners);
    const uses = api.every ? Object.fromEntries(elements.flatMap((element) => {
      const told = [api.uses.get(element) ?? '', titleOf(element), hintOf(element), shapeOf(element) || boxesOf(element),
        tellsOf(element)];
      return told.some(Boolean) ? [[element.getAttribute('bid'), told]] : [];
    })) : null;
    return { hidden: hiddenBids(hiddenIds), frames: numFrames, uses, unseen };
  };

  // What a page hides from readers (`aria-hidden`) though a person sees and uses or reads it is shown: the attribute was
  // left behind, or is that of a button's picture. It is put back by `unmark`. Returns how many more that could be acted on are
  // drawn, but off the window or behind something, and parts that are `inert`.
  const TEXTS = 'canvas, h1, h2, h3, h4, h5, h6, p, td';
  let revealed = [];
  // What is drawn only once it is scrolled to has no tree before (`content-visibility`).
  let undraw = () => {};
  const draw = (elements) => {
    const skipped = elements.filter((element) => getComputedStyle(element).contentVisibility === 'auto');
    undraw = restyle(skipped, 'content-visibility', 'visible');
  };
  const isOnTop = (element) => {
    const box = element.getBoundingClientRect();
    const hit = box.width && box.height
      ? document.elementFromPoint(box.left + box.width / 2, box.top + box.height / 2) : null;
    return hit !== null && element.contains(hit);
  };
  const cover = () => {
    for (const element of revealed) if (!element.hasAttribute('aria-hidden')) element.ariaHidden = 'true';
    undraw();
    undraw = () => {};
    revealed = [];
  };
  const reveal = (elements) => {
    const inert = elements.filter((part) => part.inert && !part.matches('[inert] *') && part.checkVisibility() &&
      part.innerText?.trim());
    let unseen = inert.length + (document.querySelector('dialog:modal') ? 1 : 0);
    for (const root of elements) {
      if (root.ariaHidden !== 'true' || root.matches('[aria-hidden=true] *')) continue;
      const used = [root, ...root.querySelectorAll('*')].filter((part) =>
        (api.uses.has(part) || (isActive(part) && !part.matches('label, option'))) && part.checkVisibility() &&
        !inert.some((hidden) => hidden.contains(part)));
      if ([...used, ...root.querySelectorAll(TEXTS)].some(isOnTop)) revealed.push(root);
      else unseen += used.filter((part) => part.getBoundingClientRect().width).length;
    }
    return unseen;
  };

  // Before anything is written: a style that is asked for after a write is worked out anew.
  const findUses = (elements) => {
    const uses = new Map();
    [struck, shown] = [new Set(), new Map()];
    for (const element of api.every ? elements : []) {
      const use = useOf(element);
      if (use) {
        uses.set(element, use);
        [element, rowOf(element)].forEach(show);
      }
      if (isStruck(element)) struck.add(element);
    }
    return uses;
  };

  // An `object` or `embed` is one where a page is in it.
  const isFrame = (element) => /^i?frame$/i.test(element.tagName) || inPages.has(element);
  let inPages = new Set();
  const findPages = () => {
    inPages = new Set();
    for (let index = 0; index < window.length; index += 1) {
      try {
        inPages.add(window[index].frameElement);
      } catch {
        // of another origin
      }
    }
  };

  // Editors that have built their text anew because it was marked: they would each time.
  const rebuilding = new WeakSet();
  let numRebuilding = 0;
  const editorOf = (node) => {
    let editor = node.nodeType === Node.ELEMENT_NODE ? node : node.parentElement;
    if (!editor?.isContentEditable) return null;
    while (!isEditor(editor)) editor = editor.parentElement;
    return editor;
  };
  const isRebuilt = (element) => {
    const editor = editorOf(element);
    return editor !== element && rebuilding.has(editor);
  };

  // `owners`: id -> element; the copy of an element has its id too, and gets one of its own. False: not a standard one,
  // nor one of which `api.every` asks for an id.
  const markOne = (element, parentBid, owners, intoAria) => {
    const isStandard = TAGS.has(element.tagName.toLowerCase());
    if (!isStandard && !(api.every && (element.tagName.includes('-') || api.uses.has(element)))) return false;
    if (numRebuilding && isRebuilt(element)) return false;
    if (isStandard) writeState(element); // what an attribute means to an element of the page's own is not known
    let bid = element.getAttribute('bid');
    if (bid === null || (owners.get(bid) ?? element) !== element) {
      bid = parentBid + (isFrame(element) ? frameName(frameCounter++) : first + counter++);
      element.setAttribute('bid', bid);
    }
    owners.set(bid, element);
    for (const name of intoAria ? ARIA : []) {
      element.setAttribute(name, `browsergym_id_${bid} ${(element.getAttribute(name) || '').replace(PREFIX, '')}`);
    }
    return true;
  };

  // A page goes on while its tree is taken: what it inserts until `unmark` is marked as it comes. But for editors, and
  // pages, that answer a mark with new elements: that would never end.
  const MAX_LATE = 100;
  let late = new MutationObserver(() => {});
  const watch = (elements, parentBid, owners) => {
    const look = (root) => root && late.observe(root, { subtree: true, childList: true });
    late.disconnect();
    let rounds = 0;
    late = new MutationObserver((records) => {
      if (++rounds > MAX_LATE) late.disconnect();
      for (const node of records.flatMap((record) => [...record.addedNodes])) {
        if (node.nodeType !== Node.ELEMENT_NODE || !node.isConnected) continue;
        const editor = editorOf(node);
        if (editor && editor !== node) {
          rebuilding.add(editor);
          numRebuilding += 1;
          continue;
        }
        for (const element of [node, ...allElements(node), ...(node.shadowRoot ? allElements(node.shadowRoot) : [])]) {
          if (!isShadowed(element)) markOne(element, parentBid, owners, true);
          look(element.shadowRoot);
        }
      }
    });
    look(document);
    for (const element of elements) look(element.shadowRoot);
  };

  const hiddenBids = (hiddenIds) => {
    const bids = [];
    for (const id of hiddenIds) {
      const root = document.getElementById(id);
      if (!root) continue;
      for (const element of [root, ...root.querySelectorAll('[bid]')]) bids.push(element.getAttribute('bid'));
    }
    return bids;
  };

  // Takes the ids out of the ARIA attributes again; `bid` itself stays, actions find elements by it.
  api.unmark = () => {
    late.disconnect();
    cover();
    for (const element of allElements()) {
      for (const name of isShadowed(element) ? [] : ARIA) {
        const content = element.getAttribute(name);
        if (content === null) continue;
        const rest = content.replace(PREFIX, '');
        if (rest) element.setAttribute(name, rest);
        else element.removeAttribute(name);
      }
    }
  };

  // Begins the ids again, for a document that has been written anew.
  api.forgetMarks = () => {
    marked = new Map();
    api.uses = new Map();
    counter = 0;
    frameCounter = 0;
  };
})();
