// Runs before the page's own scripts. Watches what the page still has to do (timers, animation frames, requests), so
// that an observation can be taken as soon as the page is quiet instead of after a fixed sleep.
// Everything of ours hangs on one non-enumerable property, `window.__webrl`.
(() => {
  if (window.__webrl) return;
  // A page may replace globals, and methods of built-in classes: ours are those from before its first line.
  const { CustomEvent, Document, DocumentFragment, Element, EventTarget, HTMLElement, Math, MessagePort, MutationObserver,
    Number, Object, Promise, Reflect, RegExp, String, performance } = window;
  const { apply } = Reflect;
  const keep = (Class) => {
    const Kept = class extends Class {};
    for (const key of Reflect.ownKeys(Class.prototype)) {
      if (key !== 'constructor') Object.defineProperty(Kept.prototype, key, Object.getOwnPropertyDescriptor(Class.prototype, key));
    }
    return Kept;
  };
  const [Map, Set, WeakMap, WeakSet] = [keep(window.Map), keep(window.Set), keep(window.WeakMap), keep(window.WeakSet)];
  const { addEventListener: addListener, dispatchEvent } = EventTarget.prototype;
  const listen = (target, type, handler, options) => apply(addListener, target, [type, handler, options]);
  const api = {};
  Object.defineProperty(window, '__webrl', { value: api, enumerable: false, configurable: true });

  const native = {
    setTimeout: window.setTimeout.bind(window),
    clearTimeout: window.clearTimeout.bind(window),
    setInterval: window.setInterval.bind(window),
    requestAnimationFrame: window.requestAnimationFrame.bind(window),
    cancelAnimationFrame: window.cancelAnimationFrame.bind(window),
    requestIdleCallback: window.requestIdleCallback.bind(window),
    cancelIdleCallback: window.cancelIdleCallback.bind(window),
    fetch: window.fetch ? window.fetch.bind(window) : undefined,
  };
  const clock = performance.now;
  const now = () => apply(clock, performance, []);
  const timeouts = new Map(); // id -> time at which it fires
  const intervals = new Set();
  const frames = new Set();
  const idle = new Set();
  const requests = new Set();
  let ended = -Infinity; // when the last of them ended
  let conversed = false; // ever, or a request is no longer waited for: what is said next, and when, nobody knows
  const MAX_ROUNDS = 6; // of late requests, each after the answers to those before: a page with more asks for ever
  let rounds = 0;
  let late = false;
  let wake = () => {};

  window.setTimeout = function (handler, delay, ...args) {
    const id = native.setTimeout((...given) => {
      timeouts.delete(id);
      wake();
      if (typeof handler === 'function') return apply(handler, window, given);
      return (0, eval)(window.trustedTypes?.isScript(handler) ? handler : String(handler));
    }, delay, ...args);
    timeouts.set(id, now() + Math.max(0, Number(delay) || 0));
    return id;
  };
  window.setInterval = function (...args) {
    const id = native.setInterval(...args);
    intervals.add(id);
    return id;
  };
  // Timeouts and intervals share one id space: either function may clear either.
  window.clearTimeout = window.clearInterval = function (id) {
    timeouts.delete(id);
    intervals.delete(id);
    wake();
    return native.clearTimeout(id);
  };
  for (const [request, cancel, waiting] of [['requestAnimationFrame', 'cancelAnimationFrame', frames],
    ['requestIdleCallback', 'cancelIdleCallback', idle]]) {
    window[request] = function (callback, ...args) {
      const id = native[request]((time) => {
        waiting.delete(id);
        wake();
        return callback(time);
      }, ...args);
      waiting.add(id);
      return id;
    };
    window[cancel] = function (id) {
      waiting.delete(id);
      wake();
      return native[cancel](id);
    };
  }

  const heeded = new WeakSet(); // hears of its end (EventTarget's addEventListener, below)
  const dues = new WeakMap(); // of signals that are given at a time
  const awaitAbort = (signal, due) => {
    dues.set(signal, due);
    native.setTimeout(() => { // the deadline of a request is no work
      if (signal.aborted || !(signal.onabort || heeded.has(signal))) return;
      timeouts.set(signal, due);
      listen(signal, 'abort', () => {
        timeouts.delete(signal);
        wake();
      }, { once: true });
    }, 0);
    return signal;
  };
  const { timeout, any } = window.AbortSignal; // since Chromium 103, and 116
  if (timeout) AbortSignal.timeout = (delay) => awaitAbort(apply(timeout, AbortSignal, [delay]), now() + Number(delay));
  if (any) AbortSignal.any = (signals) => {
    const given = [...signals];
    const due = Math.min(...given.map((signal) => dues.get(signal) ?? Infinity));
    const first = apply(any, AbortSignal, [given]);
    return due < Infinity ? awaitAbort(first, due) : first;
  };

  const { postTask } = window.Scheduler?.prototype ?? {}; // since Chromium 94, and where there is TLS
  if (postTask) Scheduler.prototype.postTask = function (...args) {
    const begun = apply(postTask, this, args);
    timeouts.set(begun, now() + (Number(args[1]?.delay) || 0));
    const done = () => {
      timeouts.delete(begun);
      wake();
    };
    return passOn(begun, done);
  };

  const answered = new Set(); // addresses, without their numbers, that have answered: what asks them again, by itself, polls
  const { replace } = String.prototype;
  const track = (url, method = 'GET') => {
    const token = { url: url && !PRESSES.test(window.event?.type) && /^get$/i.test(method) && apply(replace, `${url}`, [/\d+/g, '']) };
    if (late && requests.size === 0) rounds += 1;
    if (rounds <= MAX_ROUNDS) requests.add(token);
    else conversed = true;
    return () => {
      const isAwaited = requests.delete(token);
      if (token.url) answered.add(token.url);
      if (isAwaited) ended = now();
      wake();
      return isAwaited;
    };
  };
  const LOADED = ['load', 'error'];
  const ENDS = [...LOADED, 'canplay'];
  const atEnd = (target, events, done) => {
    for (const event of events) listen(target, event, done, { once: true });
  };
  const until = (promise, done = track()) => {
    promise.then(done, done);
    return promise;
  };
  // The page's own promise is one that only the page handles: a failure that it ignores is an `unhandledrejection`.
  const passOn = (promise, done = track()) => promise.then((value) => {
    done();
    return value;
  }, (error) => {
    done();
    throw error;
  });
  if (native.fetch) {
    window.fetch = function (...args) {
      const { method, url } = Object(args[0]);
      return passOn(native.fetch(...args), track(url ?? args[0], args[1]?.method ?? method));
    };
    // The answer is there with its headers; what it says comes later.
    for (const name of ['arrayBuffer', 'blob', 'bytes', 'formData', 'json', 'text']) {
      const read = Response.prototype[name];
      if (read) Response.prototype[name] = function () { return passOn(read.call(this)); };
    }
  }
  const { open: begin, send } = XMLHttpRequest.prototype;
  const begun = new WeakMap();
  XMLHttpRequest.prototype.open = function (...args) {
    begun.set(this, [args[1], args[0]]);
    return apply(begin, this, args);
  };
  XMLHttpRequest.prototype.send = function (...args) {
    listen(this, 'loadend', track(...begun.get(this) ?? []), { once: true });
    return apply(send, this, args);
  };

  // Waited for within the horizon alone: a picture may never come, and the next look into a database begins before the
  // last has ended.
  const errands = new Set();
  const errand = () => {
    const token = {};
    errands.add(token);
    return () => {
      errands.delete(token);
      wake();
    };
  };
  const within = (promise) => passOn(promise, errand());
  const withinUntil = (...events) => (begun, target) => atEnd(begun ?? target, events, errand());
  // What the browser does in a time of its own, often on another thread.
  const takesTime = (prototype, names, wait = (begun) => passOn(begun)) => {
    for (const name of names.split(' ')) {
      const begin = prototype?.[name]; // pages without TLS have no cryptography
      if (begin) prototype[name] = function (...args) {
        const begun = apply(begin, this, args);
        return wait(begun, this, args) ?? begun;
      };
    }
  };
  takesTime(Element.prototype, 'requestFullscreen');
  takesTime(Document.prototype, 'startViewTransition', ({ finished }) => { until(finished); });
  takesTime(Blob.prototype, 'arrayBuffer bytes text');
  takesTime(window.SubtleCrypto?.prototype, 'decrypt deriveBits deriveKey digest encrypt exportKey generateKey importKey ' +
    'sign unwrapKey verify wrapKey');
  takesTime(window.CacheStorage?.prototype, 'keys match open');
  takesTime(window.Cache?.prototype, 'add addAll keys match matchAll put');
  takesTime(window.LockManager?.prototype, 'request', within);
  takesTime(window.OffscreenCanvas?.prototype, 'convertToBlob');
  const fontSet = Object.getPrototypeOf(document.fonts); // its class has a global name in some versions of Chromium only
  for (const prototype of [FontFace.prototype, fontSet]) takesTime(prototype, 'load', within);
  takesTime(HTMLImageElement.prototype, 'decode', within);
  takesTime(HTMLMediaElement.prototype, 'load', withinUntil('loadeddata', 'error'));
  takesTime(HTMLMediaElement.prototype, 'play', within);
  takesTime(window.MediaDevices?.prototype, 'enumerateDevices');
  takesTime(window.ServiceWorkerContainer?.prototype, 'getRegistration getRegistrations');
  takesTime(window.ServiceWorkerContainer?.prototype, 'register', (begun, container) => passOn(begun.then((registration) => {
    if (!registration.active) until(container.ready, errand());
    return registration;
  })));
  takesTime(window.MediaDevices?.prototype, 'getDisplayMedia getUserMedia', within);
  takesTime(window.BaseAudioContext?.prototype, 'decodeAudioData');
  takesTime(window.OfflineAudioContext?.prototype, 'startRendering');
  takesTime(IDBFactory.prototype, 'open deleteDatabase', withinUntil('success', 'error', 'blocked'));
  takesTime(IDBDatabase.prototype, 'transaction', withinUntil('complete', 'abort'));
  takesTime(FileReader.prototype, 'readAsArrayBuffer readAsDataURL readAsText', withinUntil('loadend'));
  // A dialog for files that no click in the document opens: the input is in none, or it is asked for its picker.
  const tellFiles = (isAsked) => apply(dispatchEvent, document, [new CustomEvent('__webrl-files', { detail: isAsked })]);
  const askForFiles = (input) => {
    if (input.type !== 'file' || navigator.userActivation?.hasBeenActive === false) return;
    tellFiles(true);
    listen(input, 'change', () => tellFiles(false), { once: true });
  };
  takesTime(HTMLElement.prototype, 'click', (_, element) => { if (!element.isConnected) askForFiles(element); });
  takesTime(window.HTMLInputElement.prototype, 'showPicker', (_, input) => askForFiles(input)); // since Chromium 99
  // What it says with a coming frame.
  for (const { prototype } of [IntersectionObserver, ResizeObserver]) {
    takesTime(prototype, 'observe', () => {
      const done = errand();
      native.requestAnimationFrame(() => native.setTimeout(done, 0));
    });
  }
  // What scrolls smoothly sets out within a few frames.
  const SET_OUT_MS = 100;
  let arrive; // ends the wait for what has
  const { getComputedStyle } = window;
  const setOut = (_, part, [how] = []) => {
    const isSmooth = (each) => each instanceof Element && getComputedStyle(each).scrollBehavior === 'smooth';
    if (how?.behavior === 'smooth' || isSmooth(part) || isSmooth(document.documentElement)) {
      native.setTimeout(errand(), SET_OUT_MS);
    }
  };
  takesTime(Element.prototype, 'scroll scrollBy scrollIntoView scrollTo', setOut);
  takesTime(window, 'scroll scrollBy scrollTo', setOut);
  if (window.navigation) listen(navigation, 'navigate', ({ hashChange }) => { if (hashChange) setOut(); });
  // And so does what the keys scroll.
  const SCROLLS = /^(Page(Up|Down)|Home|End|Arrow(Up|Down|Left|Right)| )$/;
  const isCut = ({ clientHeight, clientWidth, scrollHeight, scrollWidth }) =>
    scrollHeight > clientHeight || scrollWidth > clientWidth;
  const keyDown = (event) => {
    const { isTrusted, key, target } = event;
    if (!isTrusted || !SCROLLS.test(key) || !(target instanceof Element)) return;
    const takesKeys = target.isContentEditable || /^(button|input|select|textarea)$/.test(target.localName);
    if (takesKeys && (key === ' ' || target.localName !== 'button')) return;
    if (!isCut(target) && !isCut(document.scrollingElement ?? target)) return;
    native.setTimeout(() => { if (!event.defaultPrevented) native.setTimeout(errand(), SET_OUT_MS); }, 0);
  };
  const { toBlob } = HTMLCanvasElement.prototype;
  HTMLCanvasElement.prototype.toBlob = function (callback, ...args) {
    let done = () => {};
    const take = (blob) => {
      done();
      callback(blob);
    };
    apply(toBlob, this, [typeof callback === 'function' ? take : callback, ...args]);
    done = track();
  };

  const { get: fontsReady, ...ready } = Object.getOwnPropertyDescriptor(fontSet, 'ready');
  Object.defineProperty(fontSet, 'ready', { ...ready, get() {
    return until(apply(fontsReady, this, []), errand());
  } });

  window.Image = new Proxy(window.Image, { construct(...given) {
    const picture = Reflect.construct(...given);
    atEnd(picture, LOADED, errand());
    return picture;
  } });
  // Of the other pictures, of frames, sounds and films, those whose coming the page has something to do at; once for each
  // address, as they may never come.
  const hears = (element) => heeded.has(element) || (element.onload ?? element.onerror ?? null) !== null ||
    (element.oncanplay ?? element.oncanplaythrough ?? element.onloadeddata ?? element.onloadedmetadata ?? null) !== null;
  const awaited = new WeakMap();
  const awaitEnd = (element) => {
    awaited.set(element, element.src);
    atEnd(element, ENDS, errand());
  };
  const awaitLoad = (element, isComing) => native.setTimeout(() => {
    if (hears(element) && isComing(element)) awaitEnd(element);
  }, 0);
  const isPictureComing = ({ complete }) => !complete;
  const { HAVE_FUTURE_DATA, NETWORK_IDLE } = HTMLMediaElement;
  const isMediaComing = ({ error, networkState, readyState }) => // NETWORK_NO_SOURCE: it is being chosen, or none was found
    !error && networkState > NETWORK_IDLE && readyState < HAVE_FUTURE_DATA;
  for (const [{ prototype }, names, isComing] of [[HTMLImageElement, ['src'], isPictureComing],
    [HTMLMediaElement, ['src'], isMediaComing], [HTMLIFrameElement, ['src', 'srcdoc'], (frame) => frame.isConnected]]) {
    for (const name of names) {
      const { set: setSource, ...source } = Object.getOwnPropertyDescriptor(prototype, name);
      Object.defineProperty(prototype, name, { ...source, set(value) {
        apply(setSource, this, [value]);
        awaitLoad(this, isComing);
      } });
    }
  }
  window.Audio = new Proxy(window.Audio, { construct(...given) {
    const sound = Reflect.construct(...given);
    awaitLoad(sound, isMediaComing);
    return sound;
  } });
  // Those that the page has not made itself.
  const { get: imagesOf } = Object.getOwnPropertyDescriptor(Document.prototype, 'images');
  const isBlankYet = ({ contentDocument, src, srcdoc }) => (src || srcdoc) && contentDocument?.URL === 'about:blank';
  const named = (name) => apply(Document.prototype.getElementsByTagName, document, [name]);
  const inPage = [[apply(imagesOf, document, []), isPictureComing], [named('iframe'), isBlankYet],
    [named('audio'), isMediaComing], [named('video'), isMediaComing]];
  const awaitWritten = () => {
    for (const [elements, isComing] of inPage) {
      for (const element of elements) {
        if (!isComing(element) || element.loading === 'lazy' || !hears(element)) continue;
        if (awaited.get(element) !== element.src) awaitEnd(element);
      }
    }
  };
  // A form may be sent into a frame.
  const sentInto = (target) => {
    const frame = target && apply(Document.prototype.getElementsByName, document, [target])[0];
    if (frame?.localName === 'iframe') awaitLoad(frame, () => true);
  };
  api.awaitFrame = (frame) => awaitLoad(frame, ({ isConnected }) => isConnected);
  takesTime(HTMLFormElement.prototype, 'submit', (_, form) => sentInto(form.target));
  const submitted = ({ defaultPrevented, submitter, target }) => {
    if (!defaultPrevented) sentInto(submitter?.formTarget || target.target);
  };

  // Scripts that a page writes as HTML never run, nor say that they have come.
  const inert = new WeakSet();
  const scripts = (html, element) => (/<script/i.test(html) ? [...element.querySelectorAll('script')] : []);
  const { set: setHTML, ...inner } = Object.getOwnPropertyDescriptor(Element.prototype, 'innerHTML');
  Object.defineProperty(Element.prototype, 'innerHTML', { ...inner, set(html) {
    setHTML.call(this, html);
    for (const script of scripts(html, this)) inert.add(script);
  } });
  const insertHTML = Element.prototype.insertAdjacentHTML;
  Element.prototype.insertAdjacentHTML = function (where, html) {
    const old = new Set(scripts(html, this.parentNode ?? this));
    insertHTML.call(this, where, html);
    for (const script of scripts(html, this.parentNode ?? this)) if (!old.has(script)) inert.add(script);
  };

  // Parts of a program that are loaded when they are needed: bundlers put scripts, style sheets and preloaded modules
  // into the head. (Those of the document itself are in its `readyState`.)
  const loads = (node) => {
    if (inert.has(node)) return false;
    if (node.localName === 'script') return node.src && !node.noModule && /^(module|.*javascript|)$/i.test(node.type);
    return node.localName === 'link' && node.href && !node.disabled && /^(stylesheet|modulepreload)$/.test(node.rel);
  };
  const parts = new MutationObserver((records) => {
    for (const place of [document.documentElement, document.head]) {
      if (place) parts.observe(place, { childList: true });
    }
    if (document.readyState === 'loading') return;
    for (const { addedNodes } of records) {
      for (const node of addedNodes) {
        if (loads(node)) atEnd(node, LOADED, track());
      }
    }
  });
  parts.observe(document, { childList: true });

  // Messages to oneself are how programs put off work to a task of its own (React renders in many, of 5 ms each). They
  // are counted, not timed, so that a busy machine does not end the wait; a page that never stops is not waited for.
  const MAX_TURNS = 400;
  let tasks = 0;
  let turns = 0;
  const turn = () => {
    tasks += 1;
    turns += 1;
    native.setTimeout(() => {
      tasks -= 1;
      wake();
    }, 0);
  };
  const post = MessagePort.prototype.postMessage;
  MessagePort.prototype.postMessage = function (...args) {
    turn();
    return post.apply(this, args);
  };

  // What a page writes into a loaded document, as into a frame, often has no end: it is waited for as long as a timer.
  let isWritten = false;
  for (const name of ['open', 'write', 'writeln', 'close']) {
    const act = Document.prototype[name];
    Document.prototype[name] = function (...args) {
      if (this === document && (name === 'close' || document.readyState !== 'loading')) isWritten = name !== 'close';
      return apply(act, this, args);
    };
  }

  // A conversation has no end that could be waited for: a page that has sent or heard something has the whole horizon,
  // and time for what it hears and for the first answer.
  const FIRST_WORDS_MS = 500;
  let talks = false;
  let spoken = -Infinity; // when something was last heard
  let connected = -Infinity; // when the last conversation began
  const talk = () => {
    talks = conversed = true;
    spoken = now();
    wake();
  };
  api.hear = talk; // a script that the page has imported, which it does not hear of itself
  const heard = new WeakSet();
  const listenTo = (conversation) => {
    if (!heard.has(conversation)) listen(conversation, 'message', talk);
    heard.add(conversation);
  };
  const { send: sendMessage } = window.WebSocket?.prototype ?? {}; // pages that only read have none
  if (sendMessage) {
    WebSocket.prototype.send = function (...args) {
      talk();
      listenTo(this);
      return sendMessage.apply(this, args);
    };
    window.WebSocket = class WebSocket extends window.WebSocket {
      constructor(...args) {
        super(...args);
        listenTo(this);
        const done = track();
        for (const name of ['open', 'error', 'close']) listen(this, name, done, { once: true });
        listen(this, 'open', () => {
          connected = now();
          talk();
        }, { once: true });
      }
    };
  }
  const endless = new WeakSet(); // what is read from for longer than is waited for
  const awaitPart = (part, reader) => {
    const done = endless.has(reader) ? talk : track();
    return passOn(part, () => { if (done() === false) endless.add(reader); });
  };
  takesTime(ReadableStreamDefaultReader.prototype, 'read', awaitPart);
  takesTime(Object.getPrototypeOf(new ReadableStream().values?.() ?? {}), 'next', awaitPart); // since Chromium 124
  window.EventSource = class EventSource extends window.EventSource {
    constructor(...args) {
      super(...args);
      connected = now();
      talk();
      listenTo(this);
    }
  };

  // A worker is a server beside the page: its first word, and its answer to what it is told, are waited for; but one that
  // has once said nothing may never do, and only a page that shows nothing waits for it then.
  const WORD_MS = 2000;
  const SILENT_MS = 100;
  const MAX_TOLD = 20; // within one wait
  let told = 0;
  const isBlank = () => !document.body?.innerText.trim();
  if (window.Worker) {
    const tell = Worker.prototype.postMessage;
    const waits = new WeakMap(); // worker -> what ends each wait for a word of it, oldest first
    const silent = new WeakSet();
    const awaitWord = (worker, spoken) => {
      if (++told > MAX_TOLD) return;
      const done = track();
      const end = () => {
        native.clearTimeout(id);
        waits.get(worker).delete(end);
        done();
      };
      const giveUp = () => {
        if (spoken) silent.add(worker);
        if (isBlank()) id = native.setTimeout(giveUp, SILENT_MS);
        else end();
      };
      let id = native.setTimeout(giveUp, silent.has(worker) ? SILENT_MS : WORD_MS);
      waits.get(worker).add(end);
    };
    Worker.prototype.postMessage = function (...args) {
      if (waits.has(this)) awaitWord(this, true);
      return tell.apply(this, args);
    };
    window.Worker = class Worker extends window.Worker {
      constructor(...args) {
        super(...args);
        conversed = true;
        waits.set(this, new Set());
        listen(this, 'message', () => { for (const end of waits.get(this)) return end(); });
        listen(this, 'error', () => { for (const end of waits.get(this)) end(); });
        awaitWord(this, false);
      }
    };
  }

  // Elements that listen to the mouse: an anchor without address is a link if it does.
  const PRESSES = /^(click|contextmenu|dblclick|mousedown|mouseup|pointerdown|pointerup)$/;
  const hasHandler = ({ onclick, oncontextmenu, ondblclick, onmousedown, onmouseup, onpointerdown, onpointerup }) =>
    (onclick ?? oncontextmenu ?? ondblclick ?? onmousedown ?? onmouseup ?? onpointerdown ?? onpointerup ?? null) !== null;
  const clickable = new WeakSet();
  const droppable = new WeakSet();
  const keyed = new WeakSet();
  EventTarget.prototype.addEventListener = function (type, ...args) {
    if (PRESSES.test(type)) clickable.add(this instanceof Element ? this : document);
    if (this instanceof Element && type === 'drop') droppable.add(this);
    if (this instanceof Element && /^key(down|press|up)$/.test(type)) keyed.add(this);
    if (/^(abort|error|load|canplay(through)?|loaded(meta)?data)$/.test(type)) heeded.add(this);
    return addListener.call(this, type, ...args);
  };
  api.isClickable = (element) => clickable.has(element) || hasHandler(element);

  // Elements with a role that no attribute says.
  const internals = new WeakMap();
  // Shadow trees that a page has closed are open to us alone.
  const closed = new WeakSet();
  const { attachShadow } = Element.prototype;
  const { get: shadowOf, ...shadow } = Object.getOwnPropertyDescriptor(Element.prototype, 'shadowRoot');
  Element.prototype.attachShadow = function (options) {
    if (options?.mode !== 'closed') return apply(attachShadow, this, [options]);
    let root;
    try {
      root = apply(attachShadow, this, [{ ...options, mode: 'open' }]);
    } catch {
      return apply(attachShadow, this, [options]); // the page's HTML has closed it already; or its own error
    }
    closed.add(this);
    Object.defineProperty(root, 'mode', { value: 'closed' });
    return root;
  };
  Object.defineProperty(Element.prototype, 'shadowRoot', { ...shadow, get() {
    return closed.has(this) ? null : apply(shadowOf, this, []);
  } });
  const { attachInternals } = HTMLElement.prototype;
  if (attachInternals) HTMLElement.prototype.attachInternals = function () {
    const found = attachInternals.call(this);
    internals.set(this, found);
    return found;
  };

  // What is known of elements here alone; each by its place among those that `allElements` of mark.js finds.
  const { querySelectorAll: findInDocument } = Document.prototype;
  const { querySelectorAll: findInShadow } = DocumentFragment.prototype;
  const isField = (element) => element.localName === 'input' || element.localName === 'textarea';
  const hasKeyHandler = (field) => (field.onkeydown ?? field.onkeypress ?? field.onkeyup ?? null) !== null;
  const facts = () => {
    const found = [];
    let at = 0;
    const look = (elements) => {
      for (const element of elements) {
        const role = internals.get(element)?.role ?? null;
        const isClickable = api.isClickable(element) || (at === 0 && api.isClickable(document)); // its root hears for it
        const isDropTarget = droppable.has(element) || element.ondrop !== null;
        const hearsKeys = keyed.has(element) || (isField(element) && hasKeyHandler(element));
        if (isClickable || isDropTarget || hearsKeys || role) {
          found[found.length] = { at, clickable: isClickable, droppable: isDropTarget, onclick: element.onclick != null,
            keys: hearsKeys, role };
        }
        at += 1;
        const shadow = apply(shadowOf, element, []);
        if (shadow) look(apply(findInShadow, shadow, ['*']));
      }
    };
    look(apply(findInDocument, document, ['*']));
    return found;
  };

  const MAX_OPENED = 20; // by one document; what gets around this is closed again (env.py)
  let opened = 0;
  const open = window.open;
  window.open = (...args) => (++opened > MAX_OPENED ? null : apply(open, window, args));
  let pointer = null; // where the mouse was last seen; over a frame, where it went in
  const point = (event) => {
    if (event.isTrusted) pointer = [event.clientX, event.clientY];
  };
  // A frame is sent elsewhere by its own program, or by that of the page around it.
  const { get: frameOf } = Object.getOwnPropertyDescriptor(window, 'frameElement');
  const leaveFrame = () => {
    const frame = apply(frameOf, window, []); // null if the page around it is of another origin
    if (frame?.localName === 'iframe') window.parent.__webrl?.awaitFrame(frame);
  };
  const eachFrame = (act) => {
    for (let index = 0; index < window.length; index += 1) {
      try {
        act(window[index].__webrl);
      } catch {
        // of another origin, or nothing of ours
      }
    }
  };
  // What `document.open` takes away is put back.
  api.listen = () => {
    for (const type of ['mousemove', 'mouseover']) listen(window, type, point, { capture: true, passive: true });
    listen(document, '__webrl', takeLine);
    listen(window, 'keydown', keyDown, { capture: true, passive: true });
    listen(window, 'submit', submitted);
    if (apply(frameOf, window, [])) listen(window, 'beforeunload', leaveFrame);
    if ('onscrollend' in window) { // since Chromium 114
      listen(window, 'scroll', () => { arrive ??= errand(); }, { capture: true, passive: true });
      listen(window, 'scrollend', () => { arrive = arrive?.(); }, { capture: true, passive: true });
    }
    listen(window, 'message', turn); // counted as they come: our call of `postMessage` would name another sender
    api.listenToCopies?.();
    eachFrame((inner) => inner.listen());
  };

  const { getAnimations } = Document.prototype; // a form of that name would be the document's own
  // A page in the middle of a finite CSS transition or animation is not quiet yet; endless ones never are.
  const animating = () => {
    for (const animation of apply(getAnimations, document, [])) {
      const ends = animation.effect?.getComputedTiming().endTime ?? Infinity;
      if (animation.playState === 'running' && ends < Infinity) return true;
    }
    return false;
  };

  // Work of the page that will happen by time `until`.
  const pending = (until) => {
    if (talks || tasks || document.readyState !== 'complete') return true;
    awaitWritten();
    if (frames.size || idle.size || intervals.size || errands.size) return true;
    for (const due of timeouts.values()) if (due <= until) return true;
    return animating();
  };
  // Whether elements may be on their way somewhere else.
  api.moving = () => frames.size > 0 || intervals.size > 0 || animating();

  // What one document has to do; times are in milliseconds from now, as each has a clock of its own.
  const QUIET_MS = 20;
  const ANSWER_MS = 150; // what a page makes of an answer that came late
  const TALK_MS = 1000; // a conversation is followed no longer
  api.work = {
    begin: () => { turns = told = 0; },
    busy: () => requests.size > 0 || (document.readyState === 'loading' && !isWritten) || (tasks > 0 && turns < MAX_TURNS),
    pending: (ms) => pending(now() + ms),
    answered: () => now() - ended,
    conversed: () => conversed,
    runLate: () => { late = true; },
    // How long what was heard, or scrolls, is still waited for.
    listens: () => Math.max(ANSWER_MS - (now() - spoken), FIRST_WORDS_MS - (now() - connected), arrive ? QUIET_MS : 0),
    forget: () => {
      let open = 0;
      for (const { url } of requests) if (!answered.has(url)) open += 1;
      conversed ||= requests.size > 0;
      requests.clear();
      errands.clear();
      arrive = undefined;
      rounds = 0;
      late = talks = false;
      return open;
    },
  };
  // This document's work and that of the frames in it that are of its origin.
  api.works = () => {
    let found = [api.work];
    eachFrame((inner) => { found = [...found, ...inner.works()]; });
    return found;
  };

  // Whether nothing that the page does by itself is due within `ms`.
  api.isIdle = (ms) => {
    for (const work of api.works()) if (work.busy() || work.pending(ms) || work.conversed()) return false;
    return true;
  };

  // Resolves when the page is quiet: at once if nothing is pending; after `horizonMs` whatever timers and animations
  // still run, but not before it has had time for a late answer, and for a few requests that follow from that; after
  // `capMs` even if requests are still open: gives their number, and never waits for them again.
  api.settle = async (horizonMs, capMs) => {
    const start = now();
    // What a click has set off (a `javascript:` link, a form) begins in a task of its own.
    if (horizonMs > 0) await new Promise((resolve) => native.setTimeout(resolve, 0));
    for (const work of api.works()) work.begin();
    const some = (has) => {
      for (const work of api.works()) if (has(work)) return true;
      return false;
    };
    const least = (measure) => {
      let found = Infinity;
      for (const work of api.works()) found = Math.min(found, measure(work));
      return found;
    };
    const answered = () => least((work) => work.answered());
    const listens = () => (now() - start < TALK_MS ? -least((work) => -work.listens()) : 0);
    const left = () => Math.max(start + horizonMs - now(), ANSWER_MS - answered(), listens());
    const busy = () => some((work) => work.busy());
    const soon = (ms = left()) => ms > 0 && some((work) => work.pending(ms));
    if (!busy() && !soon() && answered() > ANSWER_MS) return 0;
    let changed = now();
    const observer = new MutationObserver(() => { changed = now(); });
    observer.observe(document, { subtree: true, childList: true, attributes: true, characterData: true });
    const quiet = () => Math.min(now() - changed, answered()) >= Math.min(QUIET_MS, horizonMs);
    while (now() - start < capMs && (busy() || soon() || (left() > 0 && !quiet()))) {
      if (now() - start >= horizonMs) for (const work of api.works()) work.runLate();
      await new Promise((resolve) => {
        const id = native.setTimeout(resolve, 15);
        wake = () => { native.clearTimeout(id); native.setTimeout(resolve, 0); };
      });
      wake = () => {};
    }
    observer.disconnect();
    let open = 0;
    for (const work of api.works()) open += work.forget();
    return open;
  };

  // Loads the document again from its source, inside the same window: a tenth of the cost of a navigation. Timers,
  // listeners and globals of the old document go; top-level `let` and `const` would stay (MiniWoB pages have none).
  // False if it does not finish loading in time.
  const builtIn = new Set(Reflect.ownKeys(window));
  let written = 0; // how often
  api.rewrite = async (source, capMs) => {
    written += 1;
    for (const id of [...timeouts.keys(), ...intervals]) native.clearTimeout(id);
    for (const id of frames) native.cancelAnimationFrame(id);
    for (const id of idle) native.cancelIdleCallback(id);
    for (const tracked of [timeouts, intervals, frames, idle, requests, errands]) tracked.clear();
    opened = 0;
    for (const key of Reflect.ownKeys(window)) {
      if (!builtIn.has(key) && !delete window[key]) window[key] = undefined;
    }
    for (const storage of ['localStorage', 'sessionStorage']) {
      try {
        window[storage].clear();
      } catch {
        // not available on this origin
      }
    }
    if (location.hash || location.href.endsWith('#')) history.replaceState(null, '', location.href.split('#')[0]);
    document.open();
    pointer = null;
    api.listen();
    api.forgetCopied?.();
    const loaded = new Promise((resolve) => {
      listen(window, 'load', () => native.setTimeout(() => resolve(true), 0));
      native.setTimeout(() => resolve(false), capMs);
    });
    document.write(source);
    document.close();
    window.scrollTo(0, 0);
    return loaded;
  };
  api.native = native;

  // Questions of world.js, which come over a node that this world hears of by an event.
  api.state = () => null; // what a page says of its task
  const answers = {
    facts, moving: api.moving, isIdle: api.isIdle,
    pointer: () => pointer,
    takeCopied: () => api.takeCopied?.() ?? null,
    giveCopied: (types) => { api.giveCopied?.(types); return null; },
    hear: () => { api.hear(); return null; },
    state: () => api.state(),
  };
  const takeLine = (event) => {
    event.stopImmediatePropagation();
    const line = event.relatedTarget;
    const tell = (type, detail) => apply(dispatchEvent, line, [new CustomEvent(type, { detail })]);
    const settle = async (number, horizonMs, capMs) => {
      let [error, open] = ['', 0];
      try {
        open = await api.settle(horizonMs, capMs);
      } catch (thrown) {
        error = `${thrown}`;
      }
      tell('settled', [number, error, written, open]);
    };
    listen(line, 'ask', ({ detail: [what, ...given] }) => {
      if (what === 'settle') settle(...given);
      tell('answer', what === 'settle' ? null : answers[what](...given));
    });
  };
  api.listen();
})();
