// A clipboard for each environment: Chromium has one for the whole browser, which its profiles share. What is copied is
// noted here, before the page's own scripts, and handed to the environment (`look`), which puts it on each page that is
// looked at; what the browser would paste is replaced by it.
(() => {
  const api = window.__webrl;
  if (api.takeCopied) return;
  // As in settle.js: a page may replace globals.
  const { Blob, ClipboardEvent, ClipboardItem, DataTransfer, Document, EventTarget, Object, Reflect, String } = window;
  const { apply } = Reflect;
  const { addEventListener, dispatchEvent } = EventTarget.prototype;
  const { createElement, execCommand } = Document.prototype;
  const { setData } = DataTransfer.prototype;
  const { getSelection } = window;
  // One board for a document and the frames in it that are of its origin.
  const board = (() => {
    try {
      return window.parent.__webrl.board ?? {};
    } catch {
      return {}; // of another origin
    }
  })();
  api.board = board; // `types`: what was copied last, by its types; `pending`: what a page's listeners may still change
  const current = () => {
    board.pending?.();
    return board.types ?? {};
  };
  const copy = (types) => {
    board.pending?.();
    Object.assign(board, { types, isNew: true });
  };

  // What was copied since this was last asked, or null.
  api.takeCopied = () => {
    api.listen(); // a page that has written its document again has lost its listeners
    const types = current();
    const { isNew } = board;
    board.isNew = false;
    return isNew ? types : null;
  };
  // What was copied on another page.
  api.giveCopied = (types) => {
    current();
    if (!board.isNew) board.types = types;
  };

  // What the browser copies by itself: nothing where nothing is selected.
  const selected = (target) => {
    if (/^(input|textarea)$/.test(target.localName)) {
      const text = target.type === 'password' ? '' : target.value.slice(target.selectionStart, target.selectionEnd);
      return text ? { 'text/plain': text } : null;
    }
    const selection = apply(getSelection, window, []);
    if (!String(selection)) return null;
    const holder = apply(createElement, document, ['div']);
    for (let i = 0; i < selection.rangeCount; i += 1) holder.append(selection.getRangeAt(i).cloneContents());
    return { 'text/plain': String(selection), 'text/html': holder.innerHTML };
  };
  const onCopy = (event) => {
    const own = {};
    const found = selected(event.composedPath()[0]);
    const data = event.clipboardData;
    data.setData = (type, text) => {
      own[type === 'text' ? 'text/plain' : type] = String(text);
      apply(setData, data, [type, text]);
    };
    board.pending?.();
    board.pending = () => {
      board.pending = null;
      const types = event.defaultPrevented ? own : found;
      if (types && Object.keys(types).length) copy(types);
    };
  };
  const onPaste = (event) => {
    if (!event.isTrusted) return;
    event.stopImmediatePropagation();
    event.preventDefault();
    const types = current();
    const clipboardData = new DataTransfer();
    for (const [type, value] of Object.entries(types)) apply(setData, clipboardData, [type, value]);
    const target = event.composedPath()[0];
    const own = new ClipboardEvent('paste', { clipboardData, bubbles: true, cancelable: true, composed: true });
    const isLeft = apply(dispatchEvent, target, [own]);
    if (isLeft && types['text/plain']) apply(execCommand, document, ['insertText', false, types['text/plain']]);
  };
  api.listenToCopies = () => {
    for (const name of ['copy', 'cut']) apply(addEventListener, window, [name, onCopy, true]);
    apply(addEventListener, window, ['paste', onPaste, true]);
  };
  api.listenToCopies();
  api.forgetCopied = () => {
    Object.assign(board, { types: null, pending: null, isNew: false });
  };

  const native = window.Clipboard?.prototype; // pages of http://… have none
  if (!native) return;
  const textOf = (item, type) => item.getType(type).then((blob) => blob.text());
  native.writeText = async function (text) { copy({ 'text/plain': String(text) }); };
  native.write = async function (items) {
    const types = {};
    for (const item of items) {
      for (const type of item.types) if (type.startsWith('text/')) types[type] = await textOf(item, type);
    }
    copy(types);
  };
  native.readText = async function () { return current()['text/plain'] ?? ''; };
  native.read = async function () {
    const blobs = Object.entries(current()).map(([type, text]) => [type, new Blob([text], { type })]);
    return blobs.length ? [new ClipboardItem(Object.fromEntries(blobs))] : [];
  };
})();
