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
  let counter = 0;
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

  const writeState = (element) => {
    if (element.value !== undefined) element.setAttribute('value', element.value);
    if (element.checked === true) element.setAttribute('checked', '');
    else if (element.checked !== undefined) element.removeAttribute('checked');
  };

  // Returns the ids inside `hiddenIds` subtrees (they are kept from the observation) and the number of frames.
  // `intoAria`: whether to write the ids where the accessibility tree shows them.
  // A page that is too large is not marked: `tooLarge`.
  api.tryToMark = (...args) => {
    try {
      return api.mark(...args);
    } catch (error) {
      if (!(error instanceof TooLarge)) throw error;
      return { tooLarge: error.message, hidden: [], frames: 0 };
    }
  };
  api.mark = (parentBid, hiddenIds, intoAria) => {
    const owners = new Map();
    const elements = allElements();
    let numFrames = 0;
    for (const element of elements) if (markOne(element, parentBid, owners, intoAria) && isFrame(element)) numFrames += 1;
    if (intoAria) watch(elements, parentBid, owners);
    return { hidden: hiddenBids(hiddenIds), frames: numFrames };
  };

  const isFrame = (element) => ['iframe', 'frame'].includes(element.tagName.toLowerCase());

  // `owners`: id -> element; the copy of an element has its id too, and gets one of its own. False: not a standard one.
  const markOne = (element, parentBid, owners, intoAria) => {
    if (!TAGS.has(element.tagName.toLowerCase())) return false;
    writeState(element);
    let bid = element.getAttribute('bid');
    if (bid === null || (owners.get(bid) ?? element) !== element) {
      bid = parentBid + (isFrame(element) ? frameName(frameCounter++) : counter++);
      element.setAttribute('bid', bid);
    }
    owners.set(bid, element);
    for (const name of intoAria ? ARIA : []) {
      element.setAttribute(name, `browsergym_id_${bid} ${(element.getAttribute(name) || '').replace(PREFIX, '')}`);
    }
    return true;
  };

  // A page goes on while its tree is taken: what it inserts until `unmark` is marked as it comes.
  let late = new MutationObserver(() => {});
  const watch = (elements, parentBid, owners) => {
    const look = (root) => root && late.observe(root, { subtree: true, childList: true });
    late.disconnect();
    late = new MutationObserver((records) => {
      for (const node of records.flatMap((record) => [...record.addedNodes])) {
        if (node.nodeType !== Node.ELEMENT_NODE || !node.isConnected) continue;
        for (const element of [node, ...allElements(node), ...(node.shadowRoot ? allElements(node.shadowRoot) : [])]) {
          markOne(element, parentBid, owners, true);
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
    for (const element of allElements()) {
      for (const name of ARIA) {
        const content = element.getAttribute(name);
        if (content === null) continue;
        const rest = content.replace(PREFIX, '');
        if (rest) element.setAttribute(name, rest);
        else element.removeAttribute(name);
      }
    }
  };

  // Begins the ids again from 0, for a document that has been written anew.
  api.forgetMarks = () => {
    counter = 0;
    frameCounter = 0;
  };
})();
