// Loaded into Playwright's driver before its own code. Playwright turns the browser's cache off wherever requests are
// asked about (`context.route`), so that every page would fetch, parse and compile its scripts and styles anew, and going
// back would send forms again; here they are asked about all the same, and the cache stays on, as in a profile without
// routes. However a version of Playwright is put together, its messages to the browser pass JSON.stringify; that the
// first one did is told by a file, which `webrl/rollouts/browser.py` looks for.
const { writeFileSync } = require('fs');
const { join } = require('path');
const stringify = JSON.stringify;
JSON.stringify = (value, ...rest) => {
  if (value?.method === 'Browser.getVersion') writeFileSync(join(process.env.TMPDIR, 'keeps-cache'), '');
  if (value?.method === 'Network.setCacheDisabled') value = { ...value, params: { cacheDisabled: false } };
  return stringify(value, ...rest);
};
