// Sites with limits: a service worker's requests would bypass them. The page's registration fails, as in a browser where
// they are turned off (Playwright's own `service_workers: block` lets it succeed with no worker, and leaves a way round).
if (globalThis.ServiceWorkerContainer) ServiceWorkerContainer.prototype.register = async () => {
  throw new DOMException('Failed to register a ServiceWorker: they are turned off here.', 'SecurityError');
};
