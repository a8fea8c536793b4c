// Hands what a person does to the recorder instead of to the page: the page learns of it only when the recorder carries
// it out as an action. So the observation that an action was taken in is of the page before it, always.
// (`by_hand.py` reads; typing and choosing show at once, and are taken back before they are handed over.)
(() => {
  const api = window.__webrl;
  if (api.hand) return;
  const { Element, HTMLInputElement, HTMLTextAreaElement, KeyboardEvent, MouseEvent, MutationObserver, Object, SVGElement,
    Set, performance } = window; // a page may replace them
  const ROLES = 'button link checkbox radio switch tab option menuitem menuitemcheckbox menuitemradio treeitem';
  // One click anywhere in one of these is a click on it; of what else listens to the mouse that is not sure.
  const ATOMIC = 'a[href], area[href], button, input, select, textarea, option, summary, label, ' +
    ROLES.split(' ').map((role) => `[role="${role}"]`).join(', ');
  const NOT_TYPED = new Set(['button', 'checkbox', 'color', 'file', 'hidden', 'image', 'radio', 'range', 'reset', 'submit']);
  const SECRET = /^(current-password|new-password|one-time-code|cc-.*)$/;
  const SAID = ['aria-checked', 'aria-disabled', 'aria-expanded', 'aria-hidden', 'aria-label', 'aria-selected', 'alt',
    'disabled', 'hidden', 'href', 'placeholder', 'role', 'title'];
  const SCROLLS = new Set(['ArrowDown', 'ArrowLeft', 'ArrowRight', 'ArrowUp', 'End', 'Home', 'PageDown', 'PageUp', ' ']);
  const DRAG_PX = 10;
  const MAX_CHANGED = 5000;
  let number = 0;
  const waiting = []; // gestures that have not been taken yet, oldest first
  // 'open': an action is being carried out, what comes now is for the page; 'ready': an observation has been taken;
  // 'busy': neither, so that clicks and keys wait for one and nothing is typed meanwhile, which it would show.
  let phase = 'busy';
  let allowed = null; // what that action presses, each once; and whether the latest press of each kind is its own
  let typing = null; // the field that is being typed into, with what was in it
  let chosen = null; // a select, with what was selected
  let down = null;
  let changed = new Set();
  let scroll = [0, 0];

  const fieldOf = (element) => element instanceof HTMLTextAreaElement ||
    (element instanceof HTMLInputElement && !NOT_TYPED.has(element.type)) ? element : null;
  const selectOf = (element) => element.closest('select');
  const describe = (element) => {
    const text = (element.getAttribute('aria-label') || element.innerText || '').trim().replace(/\s+/g, ' ');
    return `<${element.tagName.toLowerCase()}>` + (text ? ` "${text.slice(0, 40)}"` : '');
  };

  const add = (item, isKnown = false) => {
    item.id = `${performance.timeOrigin} ${number++}`;
    if (waiting.push(item) === 1 && !isKnown) window.__webrl_hand(item.id).catch(() => {}); // nobody listens at the end of an episode
  };
  const commit = (isKnown) => {
    if (!typing) return false;
    const { field, old } = typing;
    typing = null;
    const value = field.value;
    if (value === old) return false;
    field.value = old;
    const secret = field.type === 'password' || field.autocomplete.split(' ').some((word) => SECRET.test(word));
    add({ kind: 'fill', element: field, value, secret }, isKnown);
    return true;
  };
  const post = (item) => {
    commit();
    add(item);
  };
  const refuse = (element, why) => post({ kind: 'refused', element, why });
  const begin = (field) => {
    if (typing?.field === field) return;
    commit();
    typing = { field, old: field.value };
  };
  // What is being typed elsewhere is not handed over yet: an action would close the list that opens.
  const choosing = (select) => {
    chosen = { select, old: [...select.options].map((option) => option.selected) };
  };

  const held = (event) => ['Alt', 'Control', 'Meta', 'Shift'].filter((name) => event.getModifierState(name));
  const keyName = (event) => {
    const key = event.key === ' ' ? 'Space' : event.key;
    return [...held(event).filter((name) => name !== 'Shift' || key.length > 1), key].join('+');
  };
  const tooEarly = (event, element) => {
    if (phase === 'ready' && !waiting.length) return false;
    event.preventDefault();
    if (!waiting.length) add({ kind: 'look', element });
    return true;
  };
  // Whether a key in a field edits its text; Enter, Tab, Escape and the arrows of a list end the typing.
  const edits = (event, field) => {
    const combined = event.ctrlKey || event.metaKey;
    if (combined) return /^([acvxyz]|Arrow.*|Backspace|Delete|Home|End)$/i.test(event.key);
    if (event.key === 'Enter') return field instanceof HTMLTextAreaElement;
    if (/^Arrow(Up|Down)$/.test(event.key)) return !/^(email|search|tel|text|url)$/.test(field.type);
    return !/^(Tab|Escape|F\d+)$/.test(event.key);
  };

  const on = {
    mousedown: (event, element) => {
      down = { element, x: event.clientX, y: event.clientY };
      if (event.button !== 0 || !selectOf(element)) event.preventDefault();
      else if (!tooEarly(event, element)) choosing(selectOf(element));
    },
    mouseup: (event, element) => {
      if (selectOf(element)) return; // where it says that it has changed
      event.preventDefault();
      if (event.button > 2) post({ kind: event.button === 3 ? 'go_back' : 'go_forward' });
      const far = down && Math.hypot(event.clientX - down.x, event.clientY - down.y) > DRAG_PX;
      if (event.button !== 0 || !far) return;
      if (!down.element.contains(element)) post({ kind: 'drag', element: down.element, target: element });
      else if (element.matches('input[type=range]')) refuse(element, 'the arrow keys move it');
      else return;
      down = null; // the click that may follow is the drag's
    },
    click: (event, element) => {
      event.preventDefault();
      if (!down && event.detail) return;
      down = null;
      const control = element.closest('label')?.control || element;
      if (selectOf(element)) return;
      if (control.matches('input[type=file]')) refuse(element, 'files are not uploaded by hand');
      else if (control.matches('input[type=range], input[type=color]')) refuse(element, 'the arrow keys move it');
      else if (element.matches('canvas')) refuse(element, 'where in a canvas one clicks is not seen by an agent');
      else if (element === typing?.field) commit();
      else post({ kind: 'click', element, button: ['left', 'middle', 'right'][event.button], modifiers: held(event) });
    },
    auxclick: (event, element) => {
      event.preventDefault();
      if (event.button < 3) on.click(event, element);
    },
    contextmenu: (event) => event.preventDefault(),
    dragstart: (event) => event.preventDefault(),
    drop: (event) => event.preventDefault(),
    keydown: (event, element) => {
      if (event.isComposing || /^(Alt|AltGraph|CapsLock|Control|Meta|NumLock|Shift|Dead|Process)$/.test(event.key)) return;
      const field = fieldOf(element);
      const travel = event.altKey && { ArrowLeft: 'go_back', ArrowRight: 'go_forward' }[event.key];
      const away = /^(Enter|Escape|Tab)$/.test(event.key);
      if (field && !travel && !field.readOnly && edits(event, field)) {
        if (!tooEarly(event, element)) begin(field);
        return;
      }
      if (selectOf(element) && !away && !travel) {
        if (!tooEarly(event, element)) choosing(selectOf(element));
        return;
      }
      if (element.matches('html, body') && SCROLLS.has(event.key) && !travel) return;
      event.preventDefault();
      if (event.repeat) return;
      if (travel) post({ kind: travel });
      else if (event.key === 'F5' || (/^r$/i.test(event.key) && (event.ctrlKey || event.metaKey))) {
        refuse(element, 'no action loads a page again; `again` starts anew');
      } else if (element.isContentEditable && !away) refuse(element, 'rich text: type fill(\'bid\', \'text\') in the terminal');
      else post({ kind: 'press', element, keys: keyName(event) });
    },
    beforeinput: (event, element) => {
      if (fieldOf(element)) {
        if (!tooEarly(event, element)) begin(element);
        return;
      }
      event.preventDefault();
      refuse(element, 'rich text: type fill(\'bid\', \'text\') in the terminal');
    },
    change: (event, element) => {
      if (element !== chosen?.select) return;
      const options = [...element.options];
      const picked = options.filter((option) => option.selected);
      const { old } = chosen;
      chosen = null;
      options.forEach((option, i) => { option.selected = old[i]; });
      // As `select_option` reads names: the first option with that value or label.
      const nameOf = (option) => [option.label, option.value].find((name) =>
        options.find((other) => name === other.value || name === other.label) === option);
      const names = picked.map(nameOf);
      if (names.includes(undefined)) refuse(element, 'two of its options have the same name');
      else post({ kind: 'select', element, options: names });
    },
  };
  const SILENT = ['pointerdown', 'pointerup', 'touchstart', 'touchend', 'dblclick', 'keypress', 'keyup', 'paste', 'cut',
    'compositionstart', 'compositionupdate', 'compositionend'];
  // Whether an event belongs to the action that is being carried out, and not to a hand that is quicker than it.
  const isActions = (event) => {
    if (event instanceof KeyboardEvent) {
      const { keys } = allowed;
      const at = keys ? keys.indexOf(event.key.toLowerCase()) : 0;
      if (event.type === 'keydown') {
        allowed.key = at >= 0;
        if (allowed.key && keys) keys.splice(at, 1);
      }
      return allowed.key;
    }
    // A key in a form clicks its button, and a label what it names: no hand does that.
    if (!(event instanceof MouseEvent) || (event.type === 'click' && !event.detail)) return true;
    if (event.type === 'pointerdown') {
      const bids = event.composedPath().flatMap((at) => [at, at.control]).map((at) => at?.getAttribute?.('bid'));
      const at = allowed.bids ? allowed.bids.findIndex((bid) => bids.includes(bid)) : 0;
      allowed.mouse = at >= 0;
      if (allowed.mouse && allowed.bids) allowed.bids.splice(at, 1);
    }
    return allowed.mouse;
  };
  const handle = (event) => {
    if (!event.isTrusted) return;
    const element = event.composedPath()[0];
    if (!(element instanceof Element)) return;
    if (phase === 'open' && isActions(event)) return;
    // A page's own script can cause these too.
    if (/^(input|change)$/.test(event.type) && ![typing?.field, chosen?.select].includes(element)) return;
    event.stopImmediatePropagation();
    on[event.type]?.(event, element);
  };
  // `document.open` takes all listeners away, also those of the window.
  const listen = () => {
    for (const type of [...Object.keys(on), ...SILENT, 'input']) {
      window.addEventListener(type, handle, { capture: true, passive: false });
    }
  };
  listen();
  for (const name of ['open', 'write', 'writeln']) {
    const native = document[name];
    document[name] = function (...args) {
      const result = native.apply(this, args);
      listen();
      return result;
    };
  }
  const observer = new MutationObserver((records) => note(records));
  const note = (records) => {
    for (const record of records) if (changed.size <= MAX_CHANGED) changed.add(record.target);
  };
  observer.observe(document, { subtree: true, childList: true, characterData: true, attributeFilter: SAID });

  const middleIsOthers = (element) => {
    const box = element.getClientRects()[0];
    if (!box) return false;
    let hit = document.elementFromPoint(box.left + box.width / 2, box.top + box.height / 2);
    if (!hit || !element.contains(hit)) return false;
    for (; hit !== element; hit = hit.parentElement) if (hit.matches(ATOMIC)) return true;
    return false;
  };
  const parent = (element) => element.parentElement || element.getRootNode().host || null;
  // The element and what is around it, as far as a click on the one is a click on the other.
  const place = (element) => {
    const found = [];
    for (let at = element; at && !at.matches('html, body'); at = parent(at)) {
      const bid = at.getAttribute('bid');
      const fresh = (bid === null && !(at instanceof SVGElement)) || changed.size > MAX_CHANGED ||
        [...changed].some((node) => at.contains(node));
      const atomic = at.matches(ATOMIC);
      found.push({ bid, fresh, atomic, others: !at.matches('select') && middleIsOthers(at) });
      if (atomic || api.isClickable(at)) return found;
    }
    return found.slice(0, 1);
  };

  api.hand = {
    open: (bids, keys) => {
      phase = 'open';
      allowed = { bids, keys, mouse: false, key: false };
    },
    close: () => {
      phase = 'busy';
    },
    // An observation has just been taken.
    seen: () => {
      phase = 'ready';
      observer.takeRecords();
      changed = new Set();
      scroll = [window.scrollX, window.scrollY];
      return true;
    },
    // The oldest gesture as it stands now: the page may have changed since it was made.
    next: () => {
      if (!waiting.length) return null;
      note(observer.takeRecords());
      const { element, target, ...item } = waiting[0];
      return {
        ...item,
        ready: phase === 'ready',
        name: element ? describe(element) : '',
        gone: [element, target].some((each) => each && !each.isConnected),
        place: element ? place(element) : [],
        target: target ? place(target) : [],
        scrolled: [window.scrollX - scroll[0], window.scrollY - scroll[1]],
      };
    },
    drop: (number) => waiting.splice(0, number).length,
    scrollBack: () => window.scrollTo({ left: scroll[0], top: scroll[1], behavior: 'instant' }),
    commit: () => commit(true),
  };
})();
