// Read-only sites. Of sockets and what outlives its page the browser does not ask: pages have none of it, and one that is
// left asks for nothing. Programs that live on a socket (JupyterLab, Node-RED) find its server down, and go on.
for (const name of ['WebSocketStream', 'WebTransport', 'fetchLater']) delete globalThis[name];
globalThis.WebSocket = class WebSocket extends EventTarget {
  static CONNECTING = 0; static OPEN = 1; static CLOSING = 2; static CLOSED = 3;
  CONNECTING = 0; OPEN = 1; CLOSING = 2; CLOSED = 3;
  readyState = 0; bufferedAmount = 0; binaryType = 'blob'; extensions = ''; protocol = '';
  onopen = null; onmessage = null; onerror = null; onclose = null;
  constructor(url) {
    super();
    this.url = new URL(url, document.baseURI).href.replace(/^http/, 'ws');
    if (globalThis.__webrl) __webrl.refusedSocket = this.url.split('?')[0];
    for (const type of ['error', 'close']) this.addEventListener(type, (event) => this[`on${type}`]?.(event));
    setTimeout(() => {
      this.readyState = 3;
      this.dispatchEvent(new Event('error'));
      this.dispatchEvent(new CloseEvent('close', { code: 1006 }));
    }, 0);
  }
  send() { if (!this.readyState) throw new DOMException('Still in CONNECTING state.', 'InvalidStateError'); }
  close() {}
};
Navigator.prototype.sendBeacon = () => false;
((fetch, { send } = XMLHttpRequest.prototype) => {
  let left = false;
  addEventListener('pagehide', () => { left = true; }, true);
  addEventListener('pageshow', () => { left = false; }, true);
  globalThis.fetch = (input, init) => {
    if (left) return Promise.reject(new TypeError('Failed to fetch'));
    return init?.keepalive ?? input?.keepalive ? fetch(input, { ...init, keepalive: false }) : fetch(input, init);
  };
  XMLHttpRequest.prototype.send = function (...body) { if (!left) send.apply(this, body); };
})(fetch);
