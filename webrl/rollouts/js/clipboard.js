// A clipboard for each environment: Chromium has one for the whole browser, which its profiles share. What is copied is
// noted here and handed to the environment (`look`), which puts it on each page that is looked at; what the browser would
// paste is replaced by it.
(() => {
  const api = window.__webrl;
  if (api.takeCopied) return;
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
    listen();
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
    const selection = getSelection();
    if (!String(selection)) return null;
    const holder = document.createElement('div');
    for (let i = 0; i < selection.rangeCount; i += 1) holder.append(selection.getRangeAt(i).cloneContents());
    return { 'text/plain': String(selection), 'text/html': holder.innerHTML };
  };
  const onCopy = (event) => {
    const own = {};
    const found = selected(event.composedPath()[0]);
    const data = event.clipboardData;
    const { setData } = DataTransfer.prototype;
    data.setData = (type, text) => {
      own[type === 'text' ? 'text/plain' : type] = String(text);
      setData.call(data, type, text);
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
    for (const [type, value] of Object.entries(types)) clipboardData.setData(type, value);
    const target = event.composedPath()[0];
    const own = new ClipboardEvent('paste', { clipboardData, bubbles: true, cancelable: true, composed: true });
    if (target.dispatchEvent(own) && types['text/plain']) document.execCommand('insertText', false, types['text/plain']);
  };
  // A document that is written anew has lost its listeners; where they are still there this changes nothing.
  const listen = api.listenToCopies = () => {
    for (const name of ['copy', 'cut']) window.addEventListener(name, onCopy, true);
    window.addEventListener('paste', onPaste, true);
    for (let index = 0; index < window.length; index += 1) {
      try {
        window[index].__webrl?.listenToCopies?.();
      } catch {
        // of another origin
      }
    }
  };
  listen();
  api.forgetCopied = () => {
    Object.assign(board, { types: null, pending: null, isNew: false });
    listen();
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
