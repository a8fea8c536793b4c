// Sites with limits: a service worker's requests would bypass them. A page is told so, as by a browser that has none
// (Playwright's own `service_workers: block` tells it that all went well, and leaves a way round it).
if (globalThis.ServiceWorkerContainer) ServiceWorkerContainer.prototype.register = async () => {
  throw new DOMException('Failed to register a ServiceWorker: they are turned off here.', 'SecurityError');
};
