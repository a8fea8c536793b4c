// Loaded into Playwright's driver before its own code. Playwright turns the browser's cache off wherever requests are
// asked about (`context.route`), so that every page would fetch, parse and compile its scripts and styles anew; here
// they are asked about all the same, and the cache stays on, as in a profile without routes.
const Module = require('module');
const load = Module._load;
Module._load = function (...args) {
  const loaded = load.apply(this, args);
  const prototype = /crNetworkManager/.test(args[0]) && loaded.CRNetworkManager?.prototype;
  const update = prototype && prototype._updateProtocolRequestInterceptionForSession;
  if (update && !update.keepsCache) {
    prototype._updateProtocolRequestInterceptionForSession = function (info, initial) {
      const session = Object.create(info.session);
      session.send = (method, params) =>
        info.session.send(method, method === 'Network.setCacheDisabled' ? { cacheDisabled: false } : params);
      return update.call(this, { ...info, session }, initial);
    };
    prototype._updateProtocolRequestInterceptionForSession.keepsCache = true;
  }
  return loaded;
};
