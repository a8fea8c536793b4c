// The first script of our own world: it shares a page's elements, but neither its globals nor its prototypes, which pages
// replace. Here the page is read and acted on; what only the page's own world knows is asked of settle.js there, over
// events of a node that is in no document.
(() => {
  if (window.__webrl) return;
  const api = {};
  Object.defineProperty(window, '__webrl', { value: api });

  const line = document.createComment('');
  let answer;
  line.addEventListener('answer', (event) => { answer = event.detail; });
  const tryToAsk = (...question) => {
    for (let attempt = 0; attempt < 2; attempt += 1) {
      answer = undefined;
      line.dispatchEvent(new CustomEvent('ask', { detail: question }));
      if (answer !== undefined) return answer;
      document.dispatchEvent(new FocusEvent('__webrl', { relatedTarget: line })); // it begins to listen to the line
    }
    return undefined;
  };
  const ask = (...question) => {
    const told = tryToAsk(...question);
    if (told === undefined) throw new Error('the page has no __webrl');
    return told;
  };

  const waiting = new Map(); // number of a wait -> its end
  let waits = 0;
  let written = 0;
  line.addEventListener('settled', ({ detail: [number, error, times, open] }) => {
    waiting.get(number)?.([error, open]);
    if (times !== written) api.forgetMarks();
    written = times;
  });
  // Resolves when the page is quiet, with the number of its requests that are not waited for any longer (settle.js).
  api.settle = async (horizonMs, capMs) => {
    waits += 1;
    const end = new Promise((resolve) => waiting.set(waits, resolve));
    ask('settle', waits, horizonMs, capMs);
    const [error, open] = await end;
    if (error) throw new Error(error);
    return open;
  };
  const QUESTIONS = ['giveCopied', 'hear', 'isIdle', 'moving', 'pointer', 'state', 'takeCopied'];
  for (const what of QUESTIONS) api[what] = (...given) => ask(what, ...given);

  // What only the page's own world knows of its elements, all of which are given in document order.
  let told = new WeakMap();
  api.learn = (elements) => {
    told = new WeakMap();
    for (const { at, ...facts } of tryToAsk('facts') ?? []) told.set(elements[at], facts);
  };
  api.isClickable = (element) => told.get(element)?.clickable ?? false;
  api.isDropTarget = (element) => told.get(element)?.droppable ?? false;
  api.hasOnclick = (element) => told.get(element)?.onclick ?? false;
  api.hearsKeys = (element) => told.get(element)?.keys ?? false;
  api.innerRole = (element) => told.get(element)?.role ?? null;
})();
